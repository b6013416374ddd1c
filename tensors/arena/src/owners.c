/* Who owns which block, and how much: what Python asks of accounts and of arrays. */
#include "functions.h"

#include "accounts.h"
#include "arrays.h"
#include "lock.h"
#include "numpy.h"
#include "pool.h"
#include "scopes.h"

/* The account of a scope or of nobody (None), made if need be. */
static struct account *account_argument(PyObject *scope)
{
    if (scope == Py_None) {
        return &account_of_nobody;
    }
    return scopes_check(scope) ? scopes_account(scope, true) : NULL;
}

PyObject *arena_close_account(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "close_account() takes a scope and its outer scope");
        return NULL;
    }
    if (!scopes_check(arguments[0])) {
        return NULL;
    }
    struct account *account = scopes_account(arguments[0], false);
    if (account == NULL) {
        Py_RETURN_NONE;
    }
    struct account *successor = &account_of_nobody;
    arena_lock();
    bool owns = account->references > 1 || account->elsewhere_nbytes != 0;
    arena_unlock();
    if (owns) {
        successor = account_argument(arguments[1]);
        if (successor == NULL) {
            return NULL;
        }
    }
    arena_lock();
    successor = account_now(successor);
    if (successor != account) {
        account_close(account, successor);
    }
    struct region *doomed = pool_decay();
    arena_unlock();
    regions_unmap(doomed);
    return Py_BuildValue("nn", (Py_ssize_t)account->escaped_blocks, (Py_ssize_t)account->escaped_nbytes);
}

PyObject *arena_figures(PyObject *module, PyObject *scope)
{
    (void)module;
    if (!scopes_check(scope)) {
        return NULL;
    }
    static const struct account none = {.budget = SIZE_MAX};
    const struct account *account = scopes_account(scope, false);
    if (account == NULL) {
        account = &none;
    }
    arena_lock();
    struct account now = *account;
    arena_unlock();
    return Py_BuildValue("nnnKKnnn", (Py_ssize_t)now.live_blocks, (Py_ssize_t)now.live_nbytes, (Py_ssize_t)now.peak_nbytes,
                         (unsigned long long)(now.births - now.misses), (unsigned long long)now.misses,
                         (Py_ssize_t)now.escaped_blocks, (Py_ssize_t)now.escaped_nbytes,
                         (Py_ssize_t)(now.budget == SIZE_MAX ? now.live_nbytes + now.elsewhere_nbytes : now.charged_nbytes));
}

PyObject *arena_live_nbytes(PyObject *module, PyObject *scope)
{
    (void)module;
    if (!scopes_check(scope)) {
        return NULL;
    }
    struct account *account = scopes_account(scope, false);
    arena_lock();
    size_t nbytes = account == NULL ? 0 : account->live_nbytes;
    arena_unlock();
    return PyLong_FromSize_t(nbytes);
}

PyObject *arena_owner(PyObject *module, PyObject *array)
{
    (void)module;
    void *address = arrays_block_of(array);
    if (address == NULL) {
        Py_RETURN_NONE;
    }
    arena_lock();
    PyObject *reference = scopes_reference_of(account_now(block_account(pool_block_at(address))));
    arena_unlock();
    return scopes_scope_of(reference);
}

PyObject *arena_escaped(PyObject *module, PyObject *address)
{
    (void)module;
    void *start = PyLong_AsVoidPtr(address);
    if (start == NULL && PyErr_Occurred()) {
        return NULL;
    }
    if (scopes_log == NULL || !scopes_log->has_block(start)) {
        Py_RETURN_FALSE;
    }
    arena_lock();
    bool is_closed = block_account(pool_block_at(start))->forward != NULL;
    arena_unlock();
    return PyBool_FromLong(is_closed);
}

PyObject *arena_is_served(PyObject *module, PyObject *array)
{
    (void)module;
    return PyBool_FromLong(arrays_block_of(array) != NULL);
}

PyObject *arena_move(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "move() takes an array, the scope that it leaves and the one it goes to");
        return NULL;
    }
    void *address = arrays_block_of(arguments[0]);
    if (address == NULL) {
        Py_RETURN_FALSE;
    }
    struct account *source = &account_of_nobody;
    if (arguments[1] != Py_None) {
        if (!scopes_check(arguments[1])) {
            return NULL;
        }
        source = scopes_account(arguments[1], false);
        if (source == NULL) {
            Py_RETURN_FALSE;
        }
    }
    struct account *target = account_argument(arguments[2]);
    if (target == NULL) {
        return NULL;
    }
    arena_lock();
    bool moved = arrays_move(address, source, account_now(target));
    arena_unlock();
    return PyBool_FromLong(moved);
}

PyObject *arena_block(PyObject *module, PyObject *array)
{
    (void)module;
    PyObject *owner = arrays_owner_of(array);
    return owner == NULL ? Py_NewRef(Py_None) : arrays_storage(owner);
}

PyObject *arena_address(PyObject *module, PyObject *array)
{
    (void)module;
    if (!PyObject_TypeCheck(array, numpy_ndarray)) {
        PyErr_Format(PyExc_TypeError, "expected an ndarray, not a %s", Py_TYPE(array)->tp_name);
        return NULL;
    }
    return PyLong_FromVoidPtr(((struct numpy_array *)array)->data);
}
