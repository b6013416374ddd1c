/* Budgets: what Python counts against them, and asks about a refusal. */
#include "functions.h"

#include "accounts.h"
#include "handler.h"
#include "lock.h"
#include "pool.h"
#include "scopes.h"

PyObject *arena_charge(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "charge() takes a scope and a number of bytes");
        return NULL;
    }
    size_t nbytes = PyLong_AsSize_t(arguments[1]);
    if (nbytes == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    if (!scopes_check(arguments[0])) {
        return NULL;
    }
    if (account_totals.budgets == 0) {
        Py_RETURN_NONE;
    }
    struct account *account = scopes_account(arguments[0], true);
    if (account == NULL) {
        return NULL;
    }
    struct region *doomed = NULL;
    arena_lock();
    struct account *limit = account_refusing(account_now(account), nbytes);
    if (limit != NULL) {
        handler_refuse(limit, nbytes);
        doomed = pool_empty();
    }
    else {
        account_charge(account, nbytes);
    }
    arena_unlock();
    regions_unmap(doomed);
    if (limit != NULL) {
        Py_RETURN_FALSE;
    }
    return Py_NewRef(*scopes_slot(arguments[0], SLOT_ACCOUNT));
}

PyObject *arena_discharge(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || Py_TYPE(arguments[0]) != &account_type) {
        PyErr_SetString(PyExc_TypeError, "discharge() takes what charge() returned and a number of bytes");
        return NULL;
    }
    size_t nbytes = PyLong_AsSize_t(arguments[1]);
    if (nbytes == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    arena_lock();
    account_discharge(((struct account_object *)arguments[0])->account, nbytes);
    arena_unlock();
    Py_RETURN_NONE;
}

PyObject *arena_last_refusal(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    struct refusal last = handler_last_refusal();
    arena_lock();
    struct account *limit = last.limit == 0 ? NULL : account_limited(last.limit);
    PyObject *reference = NULL;
    size_t budget = 0;
    if (limit != NULL) {
        reference = scopes_reference_of(limit);
        budget = limit->budget;
    }
    arena_unlock();
    if (limit == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("Nnnn", scopes_scope_of(reference), (Py_ssize_t)budget, (Py_ssize_t)last.charged,
                         (Py_ssize_t)last.nbytes);
}
