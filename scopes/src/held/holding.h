/* What is still held when a block ends: what variables.c, holding.c and keepers.c call in each
 * other, each only what stands in those before it.
 *
 * Who holds what is answered from the references themselves: those of an object are counted (its
 * reference count), and those of variables, of tuples and of containers are found one by one.
 * Nothing here walks the heap. Used with the GIL held. */
#ifndef DISPOSESCOPE_HOLDING_H
#define DISPOSESCOPE_HOLDING_H

#include "../scopes.h"

/* ------------------------------------------------------------------ a table of objects */

/* By address. The objects of a table are held by whoever puts them in. */
struct place {
    PyObject *object;
    Py_ssize_t value;
};

struct table {
    struct place *places;
    size_t mask, used;
};

static inline size_t place_of(const struct table *table, const PyObject *object)
{
    size_t at = ((uintptr_t)object >> 4) * (uintptr_t)0x9E3779B1u & table->mask;
    while (table->places[at].object != NULL && table->places[at].object != object) {
        at = (at + 1) & table->mask;
    }
    return at;
}

static inline Py_ssize_t *table_find(const struct table *table, const PyObject *object)
{
    struct place *place = table->places == NULL ? NULL : &table->places[place_of(table, object)];
    return place == NULL || place->object == NULL ? NULL : &place->value;
}

/* The value of an object that is not in the table yet; NULL without memory, with the error set. */
static inline Py_ssize_t *table_add(struct table *table, PyObject *object)
{
    if (table->places == NULL || table->used * 2 > table->mask) {
        size_t size = table->places == NULL ? 32 : (table->mask + 1) * 2;
        struct table larger = {PyMem_Calloc(size, sizeof *larger.places), size - 1, table->used};
        if (larger.places == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        for (size_t at = 0; table->places != NULL && at <= table->mask; at++) {
            if (table->places[at].object != NULL) {
                larger.places[place_of(&larger, table->places[at].object)] = table->places[at];
            }
        }
        PyMem_Free(table->places);
        *table = larger;
    }
    struct place *place = &table->places[place_of(table, object)];
    table->used++;
    *place = (struct place){object, 0};
    return &place->value;
}

/* ------------------------------------------------------------- variables.c: what the variables of frames refer to */

/* What is called with each variable: its value, its number or its name, whether the frame alone can
 * refer to it, and how many references the iteration itself has. Non-zero ends the iteration. */
typedef int (*variable_visitor)(PyObject *value, Py_ssize_t number, PyObject *name, bool is_own, int extra, void *arg);

/* Calls it with the variables of a frame that have a value, and returns what ended that; -1 with an
 * error set. */
int visit_variables(PyFrameObject *frame, variable_visitor visit, void *arg);

/* Calls it with what a running frame computes with and counts no reference to, as from Python 3.14
 * on: that of the variable counts for both. A value that the block returns is one. Returns what
 * ended that. */
int visit_borrowed(PyFrameObject *frame, visitproc visit, void *arg);

/* Whether a frame has ended, and neither runs, on any thread, nor is suspended. */
bool has_ended(PyFrameObject *frame);

/* The frames that run on this thread, innermost first, without those by which this package came
 * here: a list; NULL with an error set. */
PyObject *running_frames(Py_ssize_t at_most);

/* ------------------------------------------------------------------ holding.c: the references to what a scope owns */

/* Has references to its parts, and none to `types` and `before`. */
struct count {
    /* By object: how many of its references have not been found. */
    struct table left;
    /* Each part of each entry, and which entry: members stand for their composite. */
    struct part {
        PyObject *resource, *entry;
        Py_ssize_t unit;
    } *parts;
    Py_ssize_t number, room;
    /* Of how many objects references have not been found. */
    Py_ssize_t open;
    /* The types of tuples that are resources: a tuple. */
    PyObject *types;
    /* For the variables of the block: those that were somebody else's when it began, or NULL. */
    PyObject *before;
};

/* Counts the references to the resources of a list of entries, and finds those that they have among
 * each other. `types` is set before, all else is zero; `count_clear` is to be called in any case.
 * -1 with an error set. */
int count_all(struct count *count, PyObject *entries, const char *function);
void count_clear(struct count *count);

/* Finds the reference of a variable: a visitor of variables, whose argument is the count. */
int find_in_variable(PyObject *value, Py_ssize_t number, PyObject *name, bool is_own, int extra, void *count);

/* Finds what a library itself has of references to a resource, where its kind counts them. -1 with
 * an error set. */
int find_in_libraries(struct count *count);

/* A way through objects, and how far it has come. */
struct through {
    struct count *count;
    int depth, seen;
    /* Whether an object may be looked into, given `arg`; NULL where all may. */
    bool (*may_enter)(PyObject *object, const void *arg);
    const void *arg;
};

/* Finds the references of all that an object refers to, and of what that alone refers to; of a
 * list, of what is at its end. */
void follow_all(PyObject *object, struct through *through);

#endif
