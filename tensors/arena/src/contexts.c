/* Which handler serves a context: what Python asks when scopes are entered and left. */
#include "functions.h"

#include "handler.h"
#include "numpy.h"
#include "scopes.h"

/* Whether a leak detector wants the arena to serve contexts outside of scopes. */
static bool is_watched;

PyObject *arena_enter(PyObject *module, PyObject *scope)
{
    (void)module;
    if (!scopes_check(scope)) {
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

PyObject *arena_watch(PyObject *module, PyObject *wanted)
{
    (void)module;
    is_watched = wanted == Py_True;
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

PyObject *arena_leave(PyObject *module, PyObject *scope)
{
    if (!scopes_check(scope)) {
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
        return arena_reset(module, NULL);
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

/* Calls a function with its arguments under a handler; what served the context before, which is given up here, does so again. */
static PyObject *call_before(PyObject *before, PyObject *handler, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    PyObject *result = PyObject_Vectorcall(arguments[0], arguments + 1, (size_t)(count - 1), names);
    if (before != handler) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        Py_XDECREF(numpy_set_handler(before));
        PyErr_Restore(type, value, traceback);
    }
    Py_DECREF(before);
    return result;
}

PyObject *arena_served(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    (void)module;
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "served() needs a function");
        return NULL;
    }
    PyObject *before = numpy_set_handler(handler_capsule);
    return before == NULL ? NULL : call_before(before, handler_capsule, arguments, count, names);
}

PyObject *arena_unserved(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    (void)module;
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "unserved() needs a function");
        return NULL;
    }
    PyObject *present = numpy_get_handler();
    if (present == NULL) {
        return NULL;
    }
    if (present != handler_capsule) {
        return call_before(present, present, arguments, count, names);
    }
    Py_DECREF(present);
    PyObject *before = numpy_set_handler(NULL);
    return before == NULL ? NULL : call_before(before, NULL, arguments, count, names);
}
