/* The objects that scopes are made of: the entry of a resource, the counters of a thread, and the
 * state of a scope. Other compiled parts of the package read them. They find the types and tables
 * in the capsule `disposescope.scopes.compiled.api`.
 *
 * All functions are called with the GIL held. An object's PyObject * field is never NULL and owns
 * its reference, unless a comment says otherwise. An empty field holds None or the empty tuple. */
#ifndef DISPOSESCOPE_SCOPES_TYPES_H
#define DISPOSESCOPE_SCOPES_TYPES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* ------------------------------------------------------------------ the counters of a thread */

/* In the order of `COUNTERS` in functions.py. */
enum counter {
    CREATED_IN_SCOPE,
    CREATED_UNSCOPED,
    DISPOSED_IN_SCOPE,
    DISPOSED_UNSCOPED,
    ATTACHED,
    DETACHED,
    MOVED,
    GRAPHS_KEPT,
    ESCAPED,
    COUNTERS
};

/* Only its own thread adds to the counts, so that none is lost without a lock. Counts of births are
 * the exception: other threads may change them, but only in compiled code, in one step. A ledger is
 * in the ring of all ledgers until its thread ends. The entries of resources born on the thread
 * keep it alive. */
typedef struct Ledger {
    PyObject_HEAD
    long long counts[COUNTERS];
    /* Two plain objects that stand for the time since the counters were set to zero. The entry of
     * a birth that was counted refers to one of them: `period` for births in a scope,
     * `unscoped_period` for others. A reset makes new ones, which marks older births. */
    PyObject *period, *unscoped_period;
    /* Whether its thread has ended. Its counts are in the sum of all ended threads then. */
    bool has_ended;
    struct Ledger *previous, *next;
} Ledger;

/* ------------------------------------------------------------------ entries */

/* A weak reference to a resource, with what is known of it: see compiled.pyi. */
typedef struct {
    PyWeakReference reference;
    PyObject *key, *kind, *counted;
    PyObject *owner;   /* a ScopeState or None */
    PyObject *home;    /* a Ledger or None */
    PyObject *unit;    /* an Entry or None */
    PyObject *members; /* a tuple of Entry */
    /* The `origin` of the scope that has released the resource. None if it is alive, if no scope
     * released it, and for a member. */
    PyObject *released_by;
} Entry;

/* Whether it is still open if the birth counts in the statistics: see `counted` in compiled.pyi. */
static inline bool is_open_birth(const Entry *entry) { return entry->counted == Py_None; }

/* The entry of an object that its scope holds strongly: see `Kind.is_held`. `held` is the object,
 * or None once it is released or kept. */
typedef struct {
    Entry entry;
    PyObject *held;
} HeldEntry;

/* The entry of an object that cannot be weakly referenced, and is held for that reason. The weak
 * reference points to the token instead. */
typedef struct {
    HeldEntry held_entry;
    PyObject *token;
} StrongEntry;

/* The entry of a tuple. The weak reference points to the tuple's anchor, a member whose identity
 * stands for the tuple's. `tuples` has a pair for each tuple with this anchor, the oldest first:
 * the tuple's type, and a tuple of weak references to its elements. */
typedef struct {
    Entry entry;
    PyObject *tuples;
} AnchoredEntry;

/* ------------------------------------------------------------------ scopes */

/* The values of `ScopeState.state`, as Python ints. `context.py` has the same numbers. */
enum scope_state_number { SCOPE_UNOPENED, SCOPE_OPEN, SCOPE_CLOSED };

/* The base of `DisposeScope`: see compiled.pyi. */
typedef struct {
    PyObject_HEAD
    PyObject *weak_references; /* NULL for none */
    PyObject *name, *graph, *budget, *escapes;
    PyObject *strict;      /* True or False */
    PyObject *entries;     /* a dict, or an instance of a subclass of it */
    PyObject *outer;       /* a ScopeState or None: the outer scope, as the user sees it */
    PyObject *below;       /* a ScopeState or None: what was in the context variable before */
    PyObject *frame;       /* a frame or None: that of the generator whose block this is */
    PyObject *suspended;   /* a tuple of ScopeState: scopes suspended when this one was entered */
    PyObject *state;       /* an int: see `enum scope_state_number` */
    PyObject *direct;      /* True or False: see `scope_is_direct` */
    PyObject *arena;       /* True or False: whether the arena serves the block */
    PyObject *account;     /* the arena's account of the scope, or None */
    PyObject *served;      /* what the arena puts back when the scope is left, or None */
    PyObject *variables;   /* what note_variables() returned when it was entered, or None */
    PyObject *escaped;     /* a tuple of Entry: what was held when it was left */
    /* Where the scope was entered: a code object or None, and the offset of its instruction. */
    PyObject *code;
    int instruction;
    /* The tuple (name, code, instruction), made when the scope releases something; None before. */
    PyObject *origin;
    /* The option `keep_pages`; whether `arena` or `budget` is not the default; whether the option
     * `graph` limits what the block may record. */
    bool keep_pages;
    bool has_memory_options;
    bool limits_recording;
} ScopeState;

static inline bool scope_is_closed(const ScopeState *scope) { return PyLong_AsLong(scope->state) == SCOPE_CLOSED; }
static inline bool scope_is_open(const ScopeState *scope) { return PyLong_AsLong(scope->state) == SCOPE_OPEN; }

/* Whether the scope is open, its block is no generator's, and no scope was suspended when it was
 * entered. Such a scope is the current one if it is in the context variable. Otherwise
 * `scopes_api.resolve` finds the current scope. */
static inline bool scope_is_direct(const ScopeState *scope) { return scope->direct == Py_True; }
static inline bool scope_is_strict(const ScopeState *scope) { return scope->strict == Py_True; }
/* Whether the arena serves its block. */
static inline bool scope_has_arena(const ScopeState *scope) { return scope->arena == Py_True; }

/* Puts a new reference into a field. The reference to the old value is dropped last, because that
 * can run any code. */
static inline void put(PyObject **field, PyObject *value)
{
    PyObject *before = *field;
    *field = Py_NewRef(value);
    Py_XDECREF(before);
}

/* ------------------------------------------------------------------ the capsule for other compiled parts */

#define SCOPES_API "disposescope.scopes.compiled.api"

/* All pointers are valid until the process ends. */
struct scopes_api {
    PyTypeObject *scope_state, *entry, *strong_entry, *anchored_entry;
    /* `CURRENT`, `LIVE` and `LISTENERS` of compiled.pyi. */
    PyObject *current, *live, *listeners;
    /* The current scope, given the scope in the context variable if that is not direct: a new
     * reference, None for no scope. NULL with an error set. Runs Python code. */
    PyObject *(*resolve)(PyObject *scope);
    /* Records the birth of a resource in a scope and returns its entry, a new reference. The
     * resource may be uninitialised: only its address is used, and no listener is called. NULL with
     * an error set. Runs no Python code. */
    PyObject *(*born_pending)(PyObject *resource, PyObject *kind, PyObject *scope);
    /* Leaves it open whether the birth of an entry counts: see `counted` in compiled.pyi. Runs no
     * Python code. */
    void (*leave_birth_open)(Entry *entry);
};

/* The API behind a capsule; NULL with an error set if it is another capsule. */
static inline const struct scopes_api *scopes_api_of(PyObject *capsule)
{
    return (const struct scopes_api *)PyCapsule_GetPointer(capsule, SCOPES_API);
}

static inline bool is_scope_of(const struct scopes_api *api, PyObject *object)
{
    return PyObject_TypeCheck(object, api->scope_state);
}

/* Whether `returned`, the result of a call, is true. Takes the reference over. -1 with an error
 * set, also if the call failed and `returned` is NULL. */
static inline int take_truth(PyObject *returned)
{
    int answer = returned == NULL ? -1 : PyObject_IsTrue(returned);
    Py_XDECREF(returned);
    return answer;
}

#endif
