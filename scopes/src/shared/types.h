/* The objects that scopes are made of: the entry of a resource, the counters of a thread, and the
 * state of a scope. Other compiled parts of the package read them, and find the types and tables in
 * the capsule `api` of this room's module.
 *
 * All of it is used with the GIL held. A field of an object is never NULL, and holds a reference of
 * its own; where it has nothing it holds None, or the empty tuple. */
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

/* Only its thread adds to it, so that no count is lost; but for births, which compiled code alone
 * counts. It is in the list of all ledgers until its thread ends; the entries of what was born on
 * the thread hold it. */
typedef struct Ledger {
    PyObject_HEAD
    long long counts[COUNTERS];
    /* Both stand for the time since the counters were set to zero: of births in a scope, and
     * outside. */
    PyObject *period, *unscoped_period;
    /* Whether its thread has ended, which has left its counts to the process. */
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
    /* Of what a scope has released: the `origin` of that scope. None for any other, also for a
     * member. */
    PyObject *released_by;
} Entry;

/* Whether it is not known yet if the birth is one that counts: see `counted` in compiled.pyi. */
static inline bool is_open_birth(const Entry *entry) { return entry->counted == Py_None; }

/* Of an object of a kind that is held: `held` is the object, or None once it is released or
 * kept. */
typedef struct {
    Entry entry;
    PyObject *held;
} HeldEntry;

/* Of what cannot be weakly referenced, and is held therefore. The weak reference is to the
 * token. */
typedef struct {
    HeldEntry held_entry;
    PyObject *token;
} StrongEntry;

/* Of a tuple: the weak reference is to its anchor. `tuples` has a pair of each tuple around that,
 * the oldest first: its type, and a tuple of weak references to its elements. */
typedef struct {
    Entry entry;
    PyObject *tuples;
} AnchoredEntry;

/* ------------------------------------------------------------------ scopes */

/* The base of `DisposeScope`: see compiled.pyi. */
typedef struct {
    PyObject_HEAD
    PyObject *weak_references; /* NULL for none */
    PyObject *name, *graph, *budget, *escapes;
    PyObject *strict;      /* True or False */
    PyObject *entries;     /* a dict, or an instance of a subclass of it */
    PyObject *outer;       /* a ScopeState or None */
    PyObject *below;       /* a ScopeState or None */
    PyObject *frame;       /* a frame or None */
    PyObject *suspended; /* a tuple of ScopeState */
    PyObject *state;       /* 0, 1 or 2: unopened, open, closed */
    PyObject *direct;      /* True or False */
    PyObject *arena;       /* True or False */
    PyObject *account;     /* the arena's, or None */
    PyObject *served;      /* the arena's, or None */
    PyObject *variables;   /* what note_variables() returned when it was entered, or None */
    PyObject *escaped;     /* a tuple of Entry: what was held when it was left */
    /* Where the scope was entered: the code that did, or None, and the offset of its
     * instruction. */
    PyObject *code;
    int instruction;
    /* A tuple of the scope's name and of these two, made when the scope releases something; None
     * before. */
    PyObject *origin;
    bool keep_pages;
    bool has_memory_options;
    bool limits_recording;
} ScopeState;

static inline bool scope_is_closed(const ScopeState *scope) { return PyLong_AsLong(scope->state) == 2; }
static inline bool scope_is_open(const ScopeState *scope) { return PyLong_AsLong(scope->state) == 1; }

/* Whether it is open, and nothing about generators is to be thought of: then it is current where it
 * lies in the context variable, and `resolve` says who is otherwise. */
static inline bool scope_is_direct(const ScopeState *scope) { return scope->direct == Py_True; }
static inline bool scope_is_strict(const ScopeState *scope) { return scope->strict == Py_True; }
/* Whether the arena serves its block. */
static inline bool scope_has_arena(const ScopeState *scope) { return scope->arena == Py_True; }

/* Puts a new reference into a field. What was there is let go last, for that can run any code. */
static inline void put(PyObject **field, PyObject *value)
{
    PyObject *before = *field;
    *field = Py_NewRef(value);
    Py_XDECREF(before);
}

/* ------------------------------------------------------------------ what other compiled parts find here */

#define SCOPES_API "disposescope.scopes.compiled.api"

/* All of it lives as long as the process. */
struct scopes_api {
    PyTypeObject *scope_state, *entry, *strong_entry, *anchored_entry;
    /* The context variable with the innermost entered scope; by ``id``, the entries of what is
     * alive; the listeners. */
    PyObject *current, *live, *listeners;
    /* The current scope, where the innermost entered one is not direct: a new reference, None for
     * no scope. NULL with an error set. Runs Python code. */
    PyObject *(*resolve)(PyObject *scope);
    /* The entry, a new reference, of a resource that is born into a scope and has an address and
     * nothing else: no listener hears of it yet. NULL with an error set. Runs no Python code. */
    PyObject *(*born_pending)(PyObject *resource, PyObject *kind, PyObject *scope);
    /* Counts the birth of an entry only when somebody counts. Runs no Python code. */
    void (*leave_birth_open)(Entry *entry);
};

/* NULL with an error set where the module of scopes is not loaded. */
static inline const struct scopes_api *scopes_api_of(PyObject *capsule)
{
    return (const struct scopes_api *)PyCapsule_GetPointer(capsule, SCOPES_API);
}

static inline bool is_scope_of(const struct scopes_api *api, PyObject *object)
{
    return PyObject_TypeCheck(object, api->scope_state);
}

/* Whether what a call returned is true; the reference is taken over. -1 with an error set, also
 * where the call returned NULL. */
static inline int take_truth(PyObject *returned)
{
    int answer = returned == NULL ? -1 : PyObject_IsTrue(returned);
    Py_XDECREF(returned);
    return answer;
}

#endif
