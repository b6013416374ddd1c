/* The module `_arena`: what Python asks of the arena. Documented in _arena.pyi. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>
#include <string.h>

#include "_arena_accounts.h"
#include "_arena_guards.h"
#include "_arena_handler.h"
#include "_arena_lock.h"
#include "_arena_numpy.h"
#include "_arena_pool.h"
#include "_arena_scopes.h"

static PyObject *bind(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *current, *type, *resolve, *mark_of, *listeners, *ties, *log;
    if (!PyArg_ParseTuple(arguments, "OO!OOO!O!O:bind", &current, &PyType_Type, &type, &resolve, &mark_of, &PyList_Type,
                          &listeners, &PyTuple_Type, &ties, &log)) {
        return NULL;
    }
    if (scopes_bind_log(log) < 0 ||
        scopes_bind(current, (PyTypeObject *)type, resolve, mark_of, listeners, ties) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static bool check_scope(PyObject *object)
{
    if (scopes_is_scope(object)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "expected a DisposeScope, not a %s", Py_TYPE(object)->tp_name);
    return false;
}

/* ------------------------------------------------------------------ the handler of a context */

static PyObject *enter(PyObject *module, PyObject *scope)
{
    (void)module;
    if (!check_scope(scope)) {
        return NULL;
    }
    PyObject *before = NULL;
    if (*scopes_slot(scope, SLOT_ARENA) == Py_True) {
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
        /* A handler that is not the arena's stays: it is the program's own. */
        bool ours = present == handler_capsule;
        Py_DECREF(present);
        if (ours) {
            before = numpy_set_handler(NULL);
            if (before == NULL) {
                return NULL;
            }
        }
    }
    if (before != NULL) {
        Py_XSETREF(*scopes_slot(scope, SLOT_SERVED), before);
    }
    if (*scopes_slot(scope, SLOT_BUDGET) != Py_None && scopes_account(scope, true) == NULL) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Whether a leak detector wants the arena to serve contexts outside of scopes. */
static bool is_watched;

static PyObject *watch(PyObject *module, PyObject *wanted)
{
    (void)module;
    is_watched = wanted == Py_True;
    Py_RETURN_NONE;
}

static PyObject *reset(PyObject *module, PyObject *ignored)
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

static PyObject *leave(PyObject *module, PyObject *scope)
{
    if (!check_scope(scope)) {
        return NULL;
    }
    PyObject **slot = scopes_slot(scope, SLOT_SERVED);
    PyObject *before = *slot;
    if (before != handler_capsule && is_watched) {
        /* A detector watches the births outside of scopes as well. */
        Py_XSETREF(*slot, Py_NewRef(Py_None));
        Py_RETURN_NONE;
    }
    if (before == NULL || before == Py_None) {
        return reset(module, NULL);
    }
    PyObject *present = numpy_set_handler(before);
    if (present == NULL) {
        return NULL;
    }
    if ((present == handler_capsule) == (before == handler_capsule)) {
        /* Another context than the one that was entered, which may be left yet: here all stays as it was. */
        PyObject *again = numpy_set_handler(present);
        Py_DECREF(present);
        if (again == NULL) {
            return NULL;
        }
        Py_DECREF(again);
        Py_RETURN_NONE;
    }
    *slot = Py_NewRef(Py_None);
    Py_DECREF(before);
    Py_DECREF(present);
    Py_RETURN_NONE;
}

static PyObject *swap_handler(PyObject *module, PyObject *wanted)
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

static PyObject *block(PyObject *module, PyObject *array)
{
    (void)module;
    void *address = handler_block_of(array);
    if (address == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("Nn", PyLong_FromVoidPtr(address), (Py_ssize_t)pool_block_at(address)->nbytes);
}

static PyObject *served(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
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

/* ------------------------------------------------------------------ accounts */

/* The account of a scope or of nobody (None), made if need be. */
static struct account *account_argument(PyObject *scope)
{
    if (scope == Py_None) {
        return &account_of_nobody;
    }
    return check_scope(scope) ? scopes_account(scope, true) : NULL;
}

static PyObject *close_account(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "close_account() takes a scope and its outer scope");
        return NULL;
    }
    if (!check_scope(arguments[0])) {
        return NULL;
    }
    struct account *account = scopes_account(arguments[0], false);
    if (account == NULL) {
        Py_RETURN_NONE;
    }
    struct account *heir = &account_of_nobody;
    if (account->references > 1 || account->elsewhere_nbytes != 0) {
        heir = account_argument(arguments[1]);
        if (heir == NULL) {
            return NULL;
        }
    }
    arena_lock();
    heir = account_now(heir);
    if (heir != account) {
        account_close(account, heir);
    }
    struct region *doomed = pool_decay();
    arena_unlock();
    regions_unmap(doomed);
    return Py_BuildValue("nn", (Py_ssize_t)account->escaped_blocks, (Py_ssize_t)account->escaped_nbytes);
}

static PyObject *figures(PyObject *module, PyObject *scope)
{
    (void)module;
    if (!check_scope(scope)) {
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

static PyObject *live_nbytes(PyObject *module, PyObject *scope)
{
    (void)module;
    if (!check_scope(scope)) {
        return NULL;
    }
    struct account *account = scopes_account(scope, false);
    return PyLong_FromSize_t(account == NULL ? 0 : account->live_nbytes);
}

static PyObject *owner(PyObject *module, PyObject *array)
{
    (void)module;
    void *address = handler_block_of(array);
    if (address == NULL) {
        Py_RETURN_NONE;
    }
    arena_lock();
    struct account *account = account_now(pool_block_at(address)->as.account);
    arena_unlock();
    return scopes_scope_of(account);
}

static PyObject *escaped(PyObject *module, PyObject *address)
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
    bool is_closed = pool_block_at(start)->as.account->forward != NULL;
    arena_unlock();
    return PyBool_FromLong(is_closed);
}

static PyObject *is_served(PyObject *module, PyObject *array)
{
    (void)module;
    return PyBool_FromLong(handler_block_of(array) != NULL);
}

static PyObject *move(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "move() takes an array, the scope that it leaves and the one it goes to");
        return NULL;
    }
    void *address = handler_block_of(arguments[0]);
    if (address == NULL) {
        Py_RETURN_FALSE;
    }
    struct account *source = NULL;
    if (arguments[1] != Py_None) {
        if (!check_scope(arguments[1])) {
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
    bool moved = handler_move(address, source, account_now(target));
    arena_unlock();
    return PyBool_FromLong(moved);
}

/* ------------------------------------------------------------------ budgets */

static PyObject *charge(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
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
    if (!check_scope(arguments[0])) {
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

static PyObject *discharge(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
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

static PyObject *last_refusal(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    struct refusal last = handler_last_refusal();
    arena_lock();
    struct account *limit = last.limit == 0 ? NULL : account_limited(last.limit);
    if (limit != NULL) {
        limit->references++;
    }
    arena_unlock();
    if (limit == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *told = Py_BuildValue("Nnnn", scopes_scope_of(limit), (Py_ssize_t)limit->budget, (Py_ssize_t)last.charged,
                                   (Py_ssize_t)last.nbytes);
    arena_lock();
    account_release(limit);
    arena_unlock();
    return told;
}

/* ------------------------------------------------------------------ sites */

static PyObject *sites(PyObject *module, PyObject *scope)
{
    (void)module;
    struct account *wanted = NULL;
    if (scope != Py_None) {
        if (!check_scope(scope)) {
            return NULL;
        }
        wanted = scopes_account(scope, false);
        if (wanted == NULL) {
            return PyList_New(0);
        }
    }
    PyObject *copy = PyDict_Copy(scopes_sites());
    PyObject *rows = copy == NULL ? NULL : PyList_New(0);
    Py_ssize_t position = 0;
    PyObject *key, *mark;
    while (rows != NULL && PyDict_Next(copy, &position, &key, &mark)) {
        if (!PyDict_Contains(scopes_sites(), key)) {
            continue; /* freed a moment ago, by what this loop let go */
        }
        struct block *block = pool_block_at(PyLong_AsVoidPtr(key));
        arena_lock();
        size_t nbytes = block->nbytes;
        struct account *account = account_now(block->as.account);
        bool counts = wanted == NULL || account == wanted;
        for (struct account *limit = account->limits; limit != NULL && !counts; limit = limit->limits) {
            counts = limit == wanted;
        }
        arena_unlock();
        if (counts) {
            PyObject *row = Py_BuildValue("On", mark, (Py_ssize_t)nbytes);
            if (row == NULL || PyList_Append(rows, row) < 0) {
                Py_CLEAR(rows);
            }
            Py_XDECREF(row);
        }
    }
    Py_XDECREF(copy);
    return rows;
}

/* ------------------------------------------------------------------ the pool */

static PyObject *statistics(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    arena_lock();
    struct pool_figures pool = pool_tell();
    struct account_figures totals = account_totals;
    arena_unlock();
    return Py_BuildValue("nnnnnKKK", (Py_ssize_t)totals.live_blocks, (Py_ssize_t)totals.live_nbytes,
                         (Py_ssize_t)totals.peak_nbytes, (Py_ssize_t)pool.cached_nbytes, (Py_ssize_t)pool.mapped_nbytes,
                         (unsigned long long)(totals.births - totals.misses), (unsigned long long)pool.misses,
                         (unsigned long long)totals.escapes);
}

static PyObject *empty_cache(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    arena_lock();
    struct region *doomed = pool_empty();
    arena_unlock();
    regions_unmap(doomed);
    Py_RETURN_NONE;
}

static PyObject *decay(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    (void)arguments;
    (void)count; /* also called as a callback of the garbage collector, with its phase and its figures */
    arena_lock();
    struct region *doomed = pool_decay();
    arena_unlock();
    regions_unmap(doomed);
    Py_RETURN_NONE;
}

static PyObject *address(PyObject *module, PyObject *array)
{
    (void)module;
    if (!PyObject_TypeCheck(array, numpy_ndarray)) {
        PyErr_Format(PyExc_TypeError, "expected an ndarray, not a %s", Py_TYPE(array)->tp_name);
        return NULL;
    }
    return PyLong_FromVoidPtr(((struct numpy_array *)array)->data);
}

static PyMethodDef functions[] = {
    {"address", address, METH_O, NULL},
    {"bind", bind, METH_VARARGS, NULL},
    {"block", block, METH_O, NULL},
    {"charge", (PyCFunction)(void (*)(void))charge, METH_FASTCALL, NULL},
    {"close_account", (PyCFunction)(void (*)(void))close_account, METH_FASTCALL, NULL},
    {"decay", (PyCFunction)(void (*)(void))decay, METH_FASTCALL, NULL},
    {"discharge", (PyCFunction)(void (*)(void))discharge, METH_FASTCALL, NULL},
    {"empty_cache", empty_cache, METH_NOARGS, NULL},
    {"enter", enter, METH_O, NULL},
    {"escaped", escaped, METH_O, NULL},
    {"figures", figures, METH_O, NULL},
    {"is_served", is_served, METH_O, NULL},
    {"last_refusal", last_refusal, METH_NOARGS, NULL},
    {"leave", leave, METH_O, NULL},
    {"live_nbytes", live_nbytes, METH_O, NULL},
    {"move", (PyCFunction)(void (*)(void))move, METH_FASTCALL, NULL},
    {"owner", owner, METH_O, NULL},
    {"reset", reset, METH_NOARGS, NULL},
    {"served", (PyCFunction)(void (*)(void))served, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"sites", sites, METH_O, NULL},
    {"swap_handler", swap_handler, METH_O, NULL},
    {"statistics", statistics, METH_NOARGS, NULL},
    {"watch", watch, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* One array through all of it: born, found, freed. What an ABI version does not say shows here. */
static int try_it(void)
{
    PyObject *before = numpy_set_handler(handler_capsule);
    if (before == NULL) {
        return -1;
    }
    PyObject *array = PyObject_CallFunction((PyObject *)numpy_ndarray, "(i)", 100);
    Py_XDECREF(numpy_set_handler(before));
    Py_DECREF(before);
    if (array == NULL) {
        return -1;
    }
    size_t live = account_totals.live_blocks;
    void *found = handler_block_of(array);
    bool whole = live == 1 && found != NULL && (uintptr_t)found % ARENA_ALIGNMENT == 0 && pool_block_at(found)->nbytes == 800;
    Py_DECREF(array);
    if (!whole || account_totals.live_blocks != 0) {
        PyErr_SetString(PyExc_ImportError, "this NumPy does not use its memory handler as the arena expects");
        return -1;
    }
    return 0;
}

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_arena", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__arena(void)
{
    const char *debug = getenv("DISPOSESCOPE_ARENA_DEBUG");
    guards_wanted = debug != NULL && strcmp(debug, "") != 0 && strcmp(debug, "0") != 0;
    if (PyType_Ready(&account_type) < 0 || numpy_arrive() < 0 || handler_make() < 0 || try_it() < 0) {
        return NULL;
    }
    if (arena_lock_survives_fork() < 0) {
        return PyErr_NoMemory();
    }
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "ALIGNMENT", (long)ARENA_ALIGNMENT) < 0) {
        Py_CLEAR(module);
    }
    if (module != NULL && PyModule_AddObjectRef(module, "debug", guards_wanted ? Py_True : Py_False) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
