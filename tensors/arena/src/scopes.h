/* Which account a birth is charged to: the one of the scope that is current in the context of the birth.
 *
 * Everything here is called with the GIL held and without the arena's lock.
 */
#ifndef DISPOSESCOPE_ARENA_SCOPES_H
#define DISPOSESCOPE_ARENA_SCOPES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "../../../leaks/births/src/api.h"
#include "accounts.h"

/* What stands for the account in Python. The scope holds it in its slot `_account`; it holds one reference to the account,
 * and a weak one to the scope. */
struct account_object {
    PyObject_HEAD
    struct account *account;
    PyObject *scope;
};

extern PyTypeObject account_type;

/* The slots of a scope that are read and written here. */
enum scope_slot {
    SLOT_ACCOUNT,
    SLOT_ARENA,
    SLOT_DIRECT,
    SLOT_STATE,
    SLOT_FRAME,
    SLOT_PASSED_OVER,
    SLOT_OUTER,
    SLOT_SERVED,
    SLOT_BUDGET,
    SLOT_STRICT,
    SCOPE_SLOTS
};

/* Learn who counts how often an innermost scope was changed: a capsule with the number, or None. Returns 0, or -1 with an
 * exception. */
int scopes_bind_changes(PyObject *capsule);

/* Learn where scopes are found: the context variable that holds the innermost entered one; their type; the function that
 * tells the current one where that is not plain; the list that is not empty while somebody wants marks; the types of objects
 * that stand between an array and the one it shares memory with, as its attribute `base` (a tuple). Returns 0, or -1 with an
 * exception. */
int scopes_bind(PyObject *current, PyTypeObject *type, PyObject *resolve, PyObject *listeners, PyObject *ties);

/* The birth log of the leak detector, NULL until it is loaded; the numbers of "numpy.ndarray" and "cpu:0" in it, which are
 * set before it. Atomic: the handler reads it without the GIL. */
extern struct birthlog_api *_Atomic scopes_log;
extern uint16_t scopes_log_kind, scopes_log_device;

/* Learn where the log is: its capsule. Returns 0, or -1 with an exception. */
int scopes_bind_log(PyObject *capsule);

/* Whether an object is of one of these types. */
bool scopes_is_tie(PyObject *object);

/* Whether an object is a scope. The second raises TypeError where it is none. */
bool scopes_is_scope(PyObject *object);
bool scopes_check(PyObject *object);

/* A slot of a scope; borrowed, NULL where it is empty. */
PyObject **scopes_slot(PyObject *scope, enum scope_slot slot);

/* What a slot holds, None where it is empty; borrowed. */
static inline PyObject *scopes_held(PyObject *scope, enum scope_slot slot)
{
    PyObject *held = *scopes_slot(scope, slot);
    return held == NULL ? Py_None : held;
}

/* The account of a scope, or NULL where it has none yet; made where `make` is true, and then NULL with an exception where
 * that fails. No new reference: the scope holds it. */
struct account *scopes_account(PyObject *scope, bool make);

/* The account that a block born now is charged to. Never NULL, raises nothing, keeps an exception that is set. */
struct account *scopes_current_account(void);

/* What the shortest way to an account needs; set by scopes_bind. */
struct scopes_places {
    PyObject *current;          /* the context variable; NULL before */
    PyTypeObject *type;         /* of scopes */
    PyObject *listeners;        /* not empty: somebody wants marks */
    Py_ssize_t account, direct; /* offsets of the slots */
};

extern struct scopes_places scopes_places;

/* The same where nothing is to be asked about the account (see its `plain`), and NULL otherwise: ask the long way. The tally
 * remembers it. */
static inline struct account *scopes_plain_account(void)
{
    const struct scopes_places *at = &scopes_places;
    PyObject *scope;
    if (at->current == NULL || PyContextVar_Get(at->current, Py_None, &scope) < 0) {
        PyErr_Clear();
        return NULL;
    }
    struct account *account = NULL;
    if (Py_TYPE(scope) == at->type && PyList_GET_SIZE(at->listeners) == 0) {
        PyObject *held = *(PyObject **)((char *)scope + at->account);
        if (held != NULL && held != Py_None && *(PyObject **)((char *)scope + at->direct) == Py_True) {
            account = ((struct account_object *)held)->account;
            if (!account->plain) {
                account = NULL;
            }
        }
    }
    Py_DECREF(scope);
    if (account != NULL) {
        arena_lock();
        tally_remember(account);
        arena_unlock();
    }
    return account;
}

/* The weak reference to the scope that an account stands for, a new reference; NULL where it is nobody's or the scope is
 * gone. With the lock held. */
PyObject *scopes_reference_of(const struct account *account);

/* The scope behind such a reference, which is given up; a new reference, None where there is none. Without the lock. */
PyObject *scopes_scope_of(PyObject *reference);

#endif
