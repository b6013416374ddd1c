/* What the compiled files of this room call in each other. Other rooms include what is in shared/.
 * Used with the GIL held. */
#ifndef DISPOSESCOPE_SCOPES_H
#define DISPOSESCOPE_SCOPES_H

#include "shared/types.h"

/* What all compiled parts of scopes share: the tables of entries, the current scope, and the
 * listeners. The tables are made with the module, which names each of them, and live as long as the
 * process: resources die while the interpreter goes down. Used with the GIL held. */

extern PyTypeObject scope_state_type;

/* Dicts and lists; what each holds is in compiled.pyi. */
extern PyObject *live_table, *dead_table, *shared_table, *dead_composites;
extern PyObject *listeners, *entered_hooks, *left_hooks, *awaited_table;
/* What serves plain memory; NULL before one does. */
extern PyObject *memory_service;
extern PyObject *entering_names;

/* Makes all of it and adds it to the module. -1 with an error set. */
int tables_make(PyObject *module);

static inline bool is_scope(PyObject *object) { return PyObject_TypeCheck(object, &scope_state_type); }

/* What lies in the context variable, a new reference; NULL with an error set. Runs no Python
 * code. */
PyObject *top_scope(void);
/* The current scope, a new reference or NULL: with an error set, or without for none. Runs Python
 * code where generators are involved. */
ScopeState *current_scope(void);
/* The same for a scope that lies in the context variable: None for no scope. NULL with an error
 * set. */
PyObject *resolve_scope(PyObject *top);

/* Changes the context variable: one step for every interrupt. -1 with an error set. */
int set_current(PyObject *scope);
PyObject *compiled_set_current(PyObject *module, PyObject *scope);

/* Where a scope was entered: a tuple of its name, a code object or None, and the offset of an
 * instruction. A new reference; NULL with an error set. Refers neither to the scope nor to a frame. */
PyObject *origin_of(ScopeState *scope);

/* Puts an entry into the list of a scope, or takes it out where it is there. -1 with an error set.
 * The list is a dict; a subclass of it may run any code. */
int own(ScopeState *scope, Entry *entry);
int disown(ScopeState *scope, Entry *entry);

/* See compiled.pyi. */
PyObject *compiled_change_owner(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

static inline bool anybody_listens(void) { return PyList_GET_SIZE(listeners) != 0; }

/* Calls a method of each listener with one object, or with two; calls each hook with an object. -1
 * with an error set. */
int tell_listeners(PyObject *method, PyObject *first, PyObject *second);
int call_hooks(PyObject *hooks, PyObject *object);

/* Functions of the Python part that compiled code calls for what is rare. */
extern PyObject *finish_release_function, *settle_earlier_function;
PyObject *compiled_set_callbacks(PyObject *module, PyObject *arguments, PyObject *options);
PyObject *compiled_set_memory_service(PyObject *module, PyObject *service);

/* How many modules there were when those that are awaited were looked for. */
PyObject *compiled_note_modules_seen(PyObject *module, PyObject *number);
/* Whether a module has been imported that some kind waits for, or may have been. */
bool modules_were_imported(void);
PyObject *compiled_modules_were_imported(PyObject *module, PyObject *ignored);

/* Entries: `Entry`, `HeldEntry`, `StrongEntry` and `AnchoredEntry`, how they are made, and how the
 * resource behind one is reached. */

extern PyTypeObject entry_type, held_entry_type, strong_entry_type, anchored_entry_type;

/* Makes the types ready and adds them to the module. -1 with an error set. */
int entries_make(PyObject *module);

static inline bool is_entry(PyObject *object) { return PyObject_TypeCheck(object, &entry_type); }

/* Whether it is an entry; TypeError where it is none. */
static inline bool entry_check(PyObject *object, const char *function)
{
    if (is_entry(object)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "internal error: %s() was given a %s, expected an entry", function,
                 Py_TYPE(object)->tp_name);
    return false;
}

/* The entry of a resource, in no table yet: a new reference, NULL with an error set. */
Entry *make_entry(PyObject *resource, PyObject *kind);
/* The same of a tuple, which its anchor identifies. */
Entry *make_anchored_entry(PyObject *tuple, PyObject *anchor, PyObject *kind);

/* The entry of any resource: a new reference, NULL with an error set. Asks the kind for an
 * anchor. */
Entry *make_any_entry(PyObject *resource, PyObject *kind);

PyObject *compiled_make_entry(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

/* The resource behind an entry, a new reference; NULL where it is gone, and where an error is
 * set. */
PyObject *resource_of(Entry *entry);

/* What a weak reference refers to, a new reference; NULL where it is gone. */
PyObject *referent_of(PyObject *reference);

/* Whether an entry holds its resource: see `HeldEntry`. */
static inline bool is_holding(PyObject *entry)
{
    return (Py_TYPE(entry) == &held_entry_type || Py_TYPE(entry) == &strong_entry_type) &&
           ((HeldEntry *)entry)->held != Py_None;
}

/* Holds the resource no more. What dies of that can run any code. */
static inline void stop_holding(PyObject *entry)
{
    if (is_holding(entry)) {
        put(&((HeldEntry *)entry)->held, Py_None);
    }
}

static inline bool is_anchored(const Entry *entry) { return Py_TYPE(entry) == &anchored_entry_type; }

/* Lets go of the members of an entry: they hold each other. */
void forget_members(Entry *entry);

/* The counters of threads: `Ledger`, the one of the calling thread, and the sums over all. */

extern PyTypeObject ledger_type;

/* Makes the types ready and adds them to the module. -1 with an error set. */
int ledgers_make(PyObject *module);

/* The ledger of the calling thread, borrowed: the thread holds it. NULL with an error set: without
 * memory. */
Ledger *ledger_here(void);

/* Takes back that a birth was counted, where it was since the counters of its thread were set to
 * zero. */
void take_back_birth(Entry *entry);
/* The same, and counts it only when somebody counts: see `counted` in compiled.pyi. */
void leave_birth_open(Entry *entry);
/* Counts the birth that was left open. Of the others nothing changes. */
void count_open_birth(Entry *entry);

PyObject *compiled_take_back_birth(PyObject *module, PyObject *entry);
PyObject *compiled_leave_birth_open(PyObject *module, PyObject *entry);
PyObject *compiled_count_open_birth(PyObject *module, PyObject *entry);
PyObject *compiled_thread_ledger(PyObject *module, PyObject *ignored);
PyObject *compiled_counts_of_process(PyObject *module, PyObject *ignored);
PyObject *compiled_clear_process(PyObject *module, PyObject *ignored);

/* Births and deaths. */

/* The callbacks of entries, and of those of tuples: functions of the module. */
extern PyObject *died_function, *anchor_died_function;

/* -1 with an error set. */
int births_make(PyObject *module);

PyObject *compiled_again(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_born(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
/* The same, but no listener is called yet: the resource has an address and nothing else. Runs no
 * Python code where the scope is given. */
PyObject *born_pending(PyObject *resource, PyObject *kind, PyObject *scope);
PyObject *compiled_died(PyObject *module, PyObject *entry);

/* Composites that are born whole, and what they leave behind. */
PyObject *compiled_born_whole(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_anchor_died(PyObject *module, PyObject *entry);
PyObject *compiled_sweep(PyObject *module, PyObject *ignored);

/* The release of resources. */

/* -1 with an error set. */
int releases_make(void);

PyObject *compiled_release(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_release_newest(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

/* What is still held when a block ends, and what keepers hold. */
PyObject *compiled_note_variables(PyObject *module, PyObject *frame);
PyObject *compiled_held_entries(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_kept_entries(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

/* The type of scopes, and the ways into and out of one: `__init__`, `__enter__` where nothing is
 * unusual, for which there is a method in Python otherwise, and its end, whatever comes up
 * meanwhile. */

/* Makes the type ready and adds it to the module. -1 with an error set. */
int blocks_make(PyObject *module);

/* A method made of a pair of functions: the second is called where the first raises, with the
 * object and what it raised. It is not interrupted before its first line, as a method in Python can
 * be. */
PyObject *compiled_with_undo(PyObject *module, PyObject *both);

#endif
