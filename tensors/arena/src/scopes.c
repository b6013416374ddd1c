/* Functions of the module about scopes: they switch the handler of a context, and tell and change
 * the owners of blocks. */
#include "accounts.h"
#include "functions.h"
#include "handler.h"
#include "tracked.h"

/* ================================================================== the handler of a context */

PyObject *arena_enter(PyObject *module, PyObject *object)
{
    (void)module;
    ScopeState *scope = scope_argument(object);
    if (scope == NULL) {
        return NULL;
    }
    PyObject *before = NULL;
    if (scope_has_arena(scope)) {
        before = numpy_set_handler(handler_capsule);
        if (before == NULL) {
            return NULL;
        }
        if (before == handler_capsule) {
            Py_CLEAR(before);
        }
        else if (numpy_settle() < 0) {
            Py_DECREF(before);
            return NULL;
        }
    }
    else {
        PyObject *present = numpy_get_handler();
        if (present == NULL) {
            return NULL;
        }
        /* A handler of the program's own stays. */
        bool is_arena = present == handler_capsule;
        Py_DECREF(present);
        if (is_arena) {
            before = numpy_set_handler(NULL);
            if (before == NULL) {
                return NULL;
            }
        }
    }
    if (before != NULL) {
        Py_SETREF(scope->served, before);
    }
    if (scope->budget != Py_None && account_of(scope, true) == NULL) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *arena_reset(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PyObject *before = numpy_get_handler();
    if (before == handler_capsule) {
        Py_DECREF(before);
        before = numpy_set_handler(NULL);
    }
    if (before == NULL) {
        return NULL;
    }
    Py_DECREF(before);
    Py_RETURN_NONE;
}

PyObject *arena_leave(PyObject *module, PyObject *object)
{
    ScopeState *scope = scope_argument(object);
    if (scope == NULL) {
        return NULL;
    }
    PyObject *before = scope->served;
    if (before != handler_capsule && handler_logs_births()) {
        /* A detector is open and watches births outside of scopes too: the arena serves on. */
        put(&scope->served, Py_None);
        Py_RETURN_NONE;
    }
    if (before == Py_None) {
        return arena_reset(module, NULL);
    }
    PyObject *present = numpy_set_handler(before);
    if (present == NULL) {
        return NULL;
    }
    if ((present == handler_capsule) == (before == handler_capsule)) {
        /* The scope is left in another context than it was entered in. This context keeps its
         * handler; `served` stays, because the scope may still be left in its own context. */
        PyObject *again = numpy_set_handler(present);
        Py_DECREF(present);
        if (again == NULL) {
            return NULL;
        }
        Py_DECREF(again);
        Py_RETURN_NONE;
    }
    put(&scope->served, Py_None);
    Py_DECREF(present);
    Py_RETURN_NONE;
}

PyObject *arena_swap_handler(PyObject *module, PyObject *wanted)
{
    (void)module;
    if (wanted == Py_None) {
        wanted = handler_capsule;
    }
    else if (!PyCapsule_IsValid(wanted, "mem_handler")) {
        PyErr_SetString(PyExc_TypeError, "swap_handler() takes what it returned, or None for the arena");
        return NULL;
    }
    PyObject *before = numpy_set_handler(wanted);
    if (before == handler_capsule) {
        Py_DECREF(before);
        Py_RETURN_NONE;
    }
    return before;
}

PyObject *arena_served(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    (void)module;
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "served() needs a function");
        return NULL;
    }
    PyObject *before = numpy_set_handler(handler_capsule);
    if (before == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(arguments[0], arguments + 1, (size_t)(count - 1), names);
    if (before != handler_capsule) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        Py_XDECREF(numpy_set_handler(before));
        PyErr_Restore(type, value, traceback);
    }
    Py_DECREF(before);
    return result;
}

/* ================================================================== the owners of blocks */

/* The account of a scope, made if there is none, or for None that of nobody: borrowed. NULL with an
 * exception. */
static struct account *account_argument(PyObject *object)
{
    if (object == Py_None) {
        return &account_of_nobody;
    }
    ScopeState *scope = scope_argument(object);
    return scope == NULL ? NULL : account_of(scope, true);
}

PyObject *arena_close_account(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    int keeps = count == 3 ? PyObject_IsTrue(arguments[2]) : 0;
    if (count != 3 || keeps < 0) {
        PyErr_SetString(PyExc_TypeError, "close_account() takes a scope, its outer scope and whether it keeps");
        return NULL;
    }
    struct account *account;
    if (!account_of_argument(arguments[0], false, &account)) {
        return NULL;
    }
    if (account == NULL) {
        Py_RETURN_NONE;
    }
    struct account *successor = &account_of_nobody;
    bool owns = account->references > 1 || account->elsewhere_nbytes != 0;
    if (owns) {
        successor = account_argument(arguments[1]);
        if (successor == NULL) {
            return NULL;
        }
    }
    successor = account_now(successor);
    if (successor != account) {
        account->keeps = keeps != 0;
        account_close(account, successor);
    }
    pool_decay();
    return Py_BuildValue("nn", (Py_ssize_t)account->escaped_blocks, (Py_ssize_t)account->escaped_nbytes);
}

PyObject *arena_figures(PyObject *module, PyObject *scope)
{
    (void)module;
    struct account *account;
    if (!account_of_argument(scope, false, &account)) {
        return NULL;
    }
    struct account now = account == NULL ? (struct account){.budget = SIZE_MAX} : *account;
    return Py_BuildValue(
        "nnnKKnnn", (Py_ssize_t)now.live_blocks, (Py_ssize_t)now.live_nbytes, (Py_ssize_t)now.peak_nbytes,
        (unsigned long long)(now.births - now.misses), (unsigned long long)now.misses, (Py_ssize_t)now.escaped_blocks,
        (Py_ssize_t)now.escaped_nbytes,
        (Py_ssize_t)(now.budget == SIZE_MAX ? now.live_nbytes + now.elsewhere_nbytes : now.charged_nbytes));
}

PyObject *arena_live_nbytes(PyObject *module, PyObject *scope)
{
    (void)module;
    struct account *account;
    if (!account_of_argument(scope, false, &account)) {
        return NULL;
    }
    return PyLong_FromSize_t(account == NULL ? 0 : account->live_nbytes);
}

PyObject *arena_owner(PyObject *module, PyObject *array)
{
    (void)module;
    void *address = arrays_block_of(array);
    if (address == NULL) {
        Py_RETURN_NONE;
    }
    return account_scope(account_now(block_account(block_at(address))));
}

PyObject *arena_escaped(PyObject *module, PyObject *address)
{
    (void)module;
    void *start = PyLong_AsVoidPtr(address);
    if (start == NULL && PyErr_Occurred()) {
        return NULL;
    }
    if (!handler_has_logged(start)) {
        Py_RETURN_FALSE;
    }
    return PyBool_FromLong(account_has_escaped(block_account(block_at(start))));
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
        if (!account_of_argument(arguments[1], false, &source)) {
            return NULL;
        }
        if (source == NULL) {
            Py_RETURN_FALSE;
        }
    }
    struct account *target = account_argument(arguments[2]);
    if (target == NULL) {
        return NULL;
    }
    bool moved = arrays_move(address, source, account_now(target));
    return PyBool_FromLong(moved);
}

PyObject *arena_move_unshared(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    /* Two references: that of the tensor, and that of the caller. */
    if (count == 3 && !arrays_is_unshared(arguments[0], 2)) {
        Py_RETURN_FALSE;
    }
    return arena_move(module, arguments, count);
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
