/* Which resources are still held when a block ends: the functions that variables.c, holding.c and
 * keepers.c share. Each file calls only the files before it.
 *
 * A resource is held if it has more references than those that are found: its reference count says
 * how many there are, and the references of variables, tuples and containers are looked for one by
 * one. Nothing here walks the heap. Every function is called with the GIL held. */
#ifndef DISPOSESCOPE_HOLDING_H
#define DISPOSESCOPE_HOLDING_H

#include "../scopes.h"

/* ------------------------------------------------------------------ a table of objects */

/* A hash table from objects, by address, to numbers. It holds no references: whoever puts an object
 * in keeps it alive. */
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

/* Adds an object that is not in the table yet, with the value 0, and returns a pointer to the
 * value, valid until the next addition. NULL with a MemoryError set. */
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

/* A callback for each variable of a frame that has a value. A variable has a number, or a name if
 * its frame keeps variables in a dict. `is_own` says that nothing but the frame can refer to the
 * variable, such as a closure. `extra` is the number of references that the iteration itself has to
 * the value. A non-zero result ends the iteration. */
typedef int (*variable_visitor)(PyObject *value, Py_ssize_t number, PyObject *name, bool is_own, int extra, void *arg);

/* Calls `visit` with each variable of a frame. Returns the non-zero result that ended the
 * iteration, or 0; -1 with an error set. */
int visit_variables(PyFrameObject *frame, variable_visitor visit, void *arg);

/* Calls `visit` with each object on a running frame's value stack that the frame borrows from a
 * variable, such as a value that the block returns. Python 3.14 and later have such values; earlier
 * versions have none. Returns the non-zero result that ended the iteration, or 0. */
int visit_borrowed(PyFrameObject *frame, visitproc visit, void *arg);

/* Whether a frame has ended: it neither runs on any thread nor is suspended. */
bool has_ended(PyFrameObject *frame);

/* A new list of the frames that run on this thread, innermost first, without this package's own
 * innermost frames. NULL with an error set. */
PyObject *running_frames(Py_ssize_t at_most);

/* ------------------------------------------------------------------ holding.c: the references to what a scope owns */

/* The references to the resources of a list of entries. Owns the references in `parts`; `types` and
 * `before` are borrowed. */
struct count {
    /* By object: how many of its references have not been found yet. */
    struct table left;
    /* The resource of each entry, and those of its members. `unit` is the index of the entry in the
     * list; the parts of one entry are neighbours. `room` is the capacity of the array. */
    struct part {
        PyObject *resource, *entry;
        Py_ssize_t unit;
    } *parts;
    Py_ssize_t number, room;
    /* How many objects have references that have not been found yet. */
    Py_ssize_t objects_left;
    /* A tuple of types: the types of tuples that are resources. */
    PyObject *types;
    /* While the variables of the block are visited: the set of numbers and names of variables that
     * were bound before the block began. NULL otherwise. */
    PyObject *before;
};

/* Counts the references to the resources of a list of entries, and finds the references from one
 * resource to another. The caller sets `types` and zeroes all other fields before, and calls
 * `count_clear` in any case. -1 with an error set. */
int count_all(struct count *count, PyObject *entries, const char *function);
void count_clear(struct count *count);

/* Subtracts the reference of a variable. A `variable_visitor`, whose argument is the count. */
int find_in_variable(PyObject *value, Py_ssize_t number, PyObject *name, bool is_own, int extra, void *count);

/* Subtracts the references that libraries themselves have to resources: see
 * `Kind.library_references`. -1 with an error set. */
int find_in_libraries(struct count *count);

/* A traversal from an object through others: how deep it is now, and how many objects it has
 * seen. */
struct traversal {
    struct count *count;
    int depth, seen;
    /* Whether the traversal may enter an object, given `arg`. NULL if it may enter all. */
    bool (*may_enter)(PyObject *object, const void *arg);
    const void *arg;
};

/* Subtracts the references that an object has, and those of the objects that only it refers to. Of
 * a list the newest elements are looked at. */
void follow_all(PyObject *object, struct traversal *traversal);

#endif
