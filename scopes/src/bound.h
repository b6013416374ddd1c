/* What the compiled hot paths are bound to: the tables, lists and types of the Python part, and where the slots of its
 * classes lie. Bound once, in the main interpreter, and kept for the life of the process: resources die while the
 * interpreter goes down. All of it is used under the GIL. */
#ifndef DISPOSESCOPE_SCOPES_BOUND_H
#define DISPOSESCOPE_SCOPES_BOUND_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "slots.h"

/* The counters of one thread that the compiled paths add to, in the order of the first fields of a ledger. */
enum counter { CREATED_IN_SCOPE, CREATED_UNSCOPED, DISPOSED_IN_SCOPE, DISPOSED_UNSCOPED, COUNTERS };

typedef struct {
    PyObject_HEAD
    long long values[COUNTERS];
} Counts;

extern PyTypeObject counts_type;

/* Objects of the Python part, by their names there. */
enum object {
    LIVE, DEAD, SHARED, DEAD_COMPOSITES, LISTENERS, ANCHORED, LOCAL, CURRENT, MEMORY, ENTERED, LEFT, AWAITED, ENTERING, MODULES_SEEN,
    RESOLVE, SETTLE, PART_DIED, FINISH_RELEASE, LEAVE_THE_STACK, EXPLAIN, END, RAISE_WHAT_FAILED, OBJECTS
};

/* Slots of an entry, of a kind, of a scope and of a ledger. */
enum slot {
    ENTRY_KEY, ENTRY_KIND, ENTRY_OWNER, ENTRY_HOME, ENTRY_UNIT, ENTRY_MEMBERS, ENTRY_COUNTED,
    ANCHORED_TUPLES,
    STRONG_HELD,
    KIND_ANCHOR, KIND_RELEASE,
    SCOPE_ACCOUNT, SCOPE_ARENA, SCOPE_BELOW, SCOPE_DIRECT, SCOPE_ENTRIES, SCOPE_FRAME, SCOPE_OUTER, SCOPE_PARTICULAR,
    SCOPE_PASSED_OVER, SCOPE_SERVED, SCOPE_STATE, SCOPE_BUDGET, SCOPE_GRAPH, SCOPE_KEEP_PAGES, SCOPE_NAME, SCOPE_STRICT,
    LEDGER_COMPILED, LEDGER_PERIOD,
    SLOTS
};

extern PyObject *bound[OBJECTS];
extern Py_ssize_t offsets[SLOTS];
extern PyTypeObject *entry_type, *anchored_type, *strong_type, *kind_type, *scope_type, *ledger_type;

/* Integers that are states of a scope, and strings that name methods. */
extern PyObject *state_unopened, *state_open, *state_closed, *empty_tuple;
extern PyObject *name_born, *name_disposed, *name_died, *name_opened, *name_take, *name_popitem, *name_entered, *name_left,
    *name_leaving, *name_keep;

/* Takes the objects and types out of a dict. -1 with an error set where one is missing; nothing is bound then. */
int bind_all(PyObject *things);
bool is_bound(void);

/* What lies in a slot, borrowed; an empty one counts as None. */
static inline PyObject *get(PyObject *object, enum slot slot) { return read_slot(object, offsets[slot]); }

/* Puts a new reference into a slot. What was there is let go last, for that can run any code. */
static inline void put(PyObject *object, enum slot slot, PyObject *value) { write_slot(object, offsets[slot], value); }

/* The class that a scope had last. */
extern PyTypeObject *usual_scope_type;

static inline bool is_scope(PyObject *object) { return is_instance(object, scope_type, &usual_scope_type); }

/* The ledger of the calling thread, a new reference. NULL with an error set. Can run any code: to be called first. */
PyObject *ledger_here(void);
/* A thread has ended: its ledger is no longer to be remembered. */
void forget_ledger(PyObject *ledger);
/* Adds one to a counter of the calling thread's ledger, which `ledger_here` has looked at. */
static inline void count(PyObject *ledger, enum counter counter)
{
    ((Counts *)get(ledger, LEDGER_COMPILED))->values[counter]++;
}

/* The scope that the context variable names, a new reference or NULL: with an error set, or without for none. Runs
 * Python code where generators are involved. */
PyObject *current(void);
/* What lies in the context variable, a new reference; NULL with an error set. Runs no Python code. */
PyObject *top(void);

/* Puts an entry into the list of a scope, or takes it out where it is there. -1 with an error set. The list is a dict; a
 * subclass of it may run any code. */
int own(PyObject *scope, PyObject *entry);
int disown(PyObject *scope, PyObject *entry);

/* Calls a method of each listener with one object, or with two. -1 with an error set. */
int tell(PyObject *listeners, PyObject *method, PyObject *first, PyObject *second);

#endif
