/* The functions and tables that the C files of scopes/ share. Other rooms include the headers in
 * shared/ instead. Every function is called with the GIL held.
 *
 * A `compiled_x` implements `x` of the module `compiled`, which compiled.pyi documents. */
#ifndef DISPOSESCOPE_SCOPES_H
#define DISPOSESCOPE_SCOPES_H

#include "shared/types.h"

/* ------------------------------------------------------------------ tables.c: tables, the current scope, listeners */

/* The tables are never freed: resources still die while the interpreter shuts down. */

extern PyTypeObject scope_state_type;

/* Dicts and lists. compiled.pyi says what each holds: there they are `LIVE`, `DEAD`, `SHARED`,
 * `DEAD_COMPOSITES`, `LISTENERS`, `ENTERED`, `LEFT`, `AWAITED` and `ENTERING`. */
extern PyObject *live_table, *dead_table, *shared_table, *dead_composites;
extern PyObject *listeners, *entered_hooks, *left_hooks, *awaited_table;
/* A `context.Memory`, the arena; NULL before it is set. */
extern PyObject *memory_service;
extern PyObject *entering_names;

/* Makes the tables and adds them to the module. -1 with an error set. */
int tables_make(PyObject *module);

static inline bool is_scope(PyObject *object) { return PyObject_TypeCheck(object, &scope_state_type); }

/* The value of the context variable, a new reference: the scope entered last, or None. NULL with
 * an error set. Runs no Python code. */
PyObject *top_scope(void);
/* The current scope, a new reference. NULL for no scope, and with an error set. Runs Python code
 * if generators are involved. */
ScopeState *current_scope(void);
/* The current scope, given the scope in the context variable: a new reference, None for no scope.
 * NULL with an error set. Runs Python code. */
PyObject *resolve_scope(PyObject *top);

/* Changes the context variable. No interrupt can come in between. -1 with an error set. */
int set_current(PyObject *scope);
PyObject *compiled_set_current(PyObject *module, PyObject *scope);

/* Where a scope was entered: a tuple of its name, a code object or None, and the offset of an
 * instruction. A new reference; NULL with an error set. Refers neither to the scope nor to a frame. */
PyObject *origin_of(ScopeState *scope);

/* Puts an entry into the entries of a scope, or takes it out if it is there. -1 with an error set.
 * `entries` is a dict; a subclass of dict may run any code. */
int own(ScopeState *scope, Entry *entry);
int disown(ScopeState *scope, Entry *entry);

/* See compiled.pyi. */
PyObject *compiled_change_owner(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

static inline bool anybody_listens(void) { return PyList_GET_SIZE(listeners) != 0; }

/* The first calls a method of each listener with `first`, and `second` unless it is NULL. The
 * other calls each hook with `object`. -1 with an error set. */
int tell_listeners(PyObject *method, PyObject *first, PyObject *second);
int call_hooks(PyObject *hooks, PyObject *object);

/* Python functions that compiled code calls for rare cases: see `set_callbacks` in compiled.pyi. */
extern PyObject *finish_release_function, *settle_earlier_function;
PyObject *compiled_set_callbacks(PyObject *module, PyObject *arguments, PyObject *options);
PyObject *compiled_set_memory_service(PyObject *module, PyObject *service);

/* Notes the size of sys.modules at the last look for awaited modules. */
PyObject *compiled_note_modules_seen(PyObject *module, PyObject *number);
/* Whether an awaited module may have been imported since the last look. */
bool modules_were_imported(void);
PyObject *compiled_modules_were_imported(PyObject *module, PyObject *ignored);

/* ------------------------------------------------------------------ entries.c: the types of entries */

extern PyTypeObject entry_type, held_entry_type, strong_entry_type, anchored_entry_type;

/* Makes the types ready and adds them to the module. -1 with an error set. */
int entries_make(PyObject *module);

static inline bool is_entry(PyObject *object) { return PyObject_TypeCheck(object, &entry_type); }

/* Whether an object is an entry. False with a TypeError set. */
static inline bool entry_check(PyObject *object, const char *function)
{
    if (is_entry(object)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "internal error: %s() was given a %s, expected an entry", function,
                 Py_TYPE(object)->tp_name);
    return false;
}

/* These make an entry that is in no table yet, and return a new reference, NULL with an error set.
 * The first is for a resource that can be weakly referenced, the second for a tuple with its
 * anchor, the third for any resource: it asks the kind for an anchor. */
Entry *make_entry(PyObject *resource, PyObject *kind);
Entry *make_anchored_entry(PyObject *tuple, PyObject *anchor, PyObject *kind);
Entry *make_any_entry(PyObject *resource, PyObject *kind);

PyObject *compiled_make_entry(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

/* The resource of an entry, a new reference. NULL if it is gone, and with an error set. */
PyObject *resource_of(Entry *entry);

/* The object that a weak reference refers to, a new reference; NULL if it is gone. */
PyObject *referent_of(PyObject *reference);

/* Whether an entry holds a strong reference to its resource: see `HeldEntry`. */
static inline bool is_holding(PyObject *entry)
{
    return (Py_TYPE(entry) == &held_entry_type || Py_TYPE(entry) == &strong_entry_type) &&
           ((HeldEntry *)entry)->held != Py_None;
}

/* Drops the strong reference to the resource. If that frees it, any code can run. */
static inline void stop_holding(PyObject *entry)
{
    if (is_holding(entry)) {
        put(&((HeldEntry *)entry)->held, Py_None);
    }
}

static inline bool is_anchored(const Entry *entry) { return Py_TYPE(entry) == &anchored_entry_type; }

/* Empties `members`. A composite's entry and those of its members refer to each other; without this
 * they would be a cycle. */
void forget_members(Entry *entry);

/* ------------------------------------------------------------------ ledgers.c: the counters of threads */

extern PyTypeObject ledger_type;

/* Makes the types ready and adds them to the module. -1 with an error set. */
int ledgers_make(PyObject *module);

/* The ledger of the calling thread, borrowed: the thread holds it. NULL with a MemoryError set. */
Ledger *ledger_here(void);

/* Subtracts a birth from the counters, if it was counted since they were set to zero. */
void take_back_birth(Entry *entry);
/* Takes a birth back and leaves it open whether it counts: see `counted` in compiled.pyi. */
void leave_birth_open(Entry *entry);
/* Counts a birth that was left open. Does nothing for any other. */
void count_open_birth(Entry *entry);

PyObject *compiled_take_back_birth(PyObject *module, PyObject *entry);
PyObject *compiled_leave_birth_open(PyObject *module, PyObject *entry);
PyObject *compiled_count_open_birth(PyObject *module, PyObject *entry);
PyObject *compiled_thread_ledger(PyObject *module, PyObject *ignored);
PyObject *compiled_counts_of_process(PyObject *module, PyObject *ignored);
PyObject *compiled_clear_process(PyObject *module, PyObject *ignored);

/* ------------------------------------------------------------------ births.c: births and deaths */

/* The weak reference callbacks of entries: `compiled.died`, and `compiled.anchor_died` for
 * tuples. */
extern PyObject *died_function, *anchor_died_function;

/* -1 with an error set. */
int births_make(PyObject *module);

PyObject *compiled_born(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
/* Records a birth without calling a listener: see `struct scopes_api`. */
PyObject *born_pending(PyObject *resource, PyObject *kind, PyObject *scope);
PyObject *compiled_died(PyObject *module, PyObject *entry);

PyObject *compiled_born_tuple(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_anchor_died(PyObject *module, PyObject *entry);
PyObject *compiled_sweep(PyObject *module, PyObject *ignored);

/* ------------------------------------------------------------------ releases.c: the release of resources */

/* -1 with an error set. */
int releases_make(void);

PyObject *compiled_release(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_release_newest(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

/* ------------------------------------------------------------------ held/: references to resources at a block's end */

PyObject *compiled_note_variables(PyObject *module, PyObject *frame);
PyObject *compiled_variables_of(PyObject *module, PyObject *frame);
PyObject *compiled_held_entries(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_kept_entries(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

/* ------------------------------------------------------------------ blocks.c: the type of scopes */

/* Makes the type ready and adds it to the module. -1 with an error set. */
int blocks_make(PyObject *module);

PyObject *compiled_again(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_with_undo(PyObject *module, PyObject *both);

#endif
