/* Checks of arguments, and exceptions that are raised later. */
#include "compiled.h"

bool arguments_fit(const char *function, const struct argument *arguments, size_t number)
{
    for (const struct argument *argument = arguments; argument < arguments + number; argument++) {
        if (argument->type == NULL ? !PyCallable_Check(argument->value)
                                   : !PyObject_TypeCheck(argument->value, argument->type)) {
            PyErr_Format(PyExc_TypeError, "internal error: %s of %s() has type %s, expected %s", argument->name,
                         function, Py_TYPE(argument->value)->tp_name,
                         argument->type == NULL ? "a function" : argument->type->tp_name);
            return false;
        }
    }
    return true;
}

static PyObject *threading; /* the module */

int errors_make(void)
{
    threading = PyImport_ImportModule("threading");
    return threading == NULL ? -1 : 0;
}

/* A pending call: the interpreter calls it on the main thread between two instructions. */
static int raise_now(void *error)
{
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)error), error);
    Py_DECREF((PyObject *)error);
    return -1;
}

static bool is_main_thread(void)
{
    /* Private attributes, because the functions of the module run Python code. */
    PyObject *thread = PyObject_GetAttrString(threading, "_main_thread");
    PyObject *ident = thread == NULL ? NULL : PyObject_GetAttrString(thread, "_ident");
    unsigned long number = ident == NULL ? 0 : PyLong_AsUnsignedLong(ident);
    bool is_main = !PyErr_Occurred() && number == PyThread_get_thread_ident();
    PyErr_Clear();
    Py_XDECREF(thread);
    Py_XDECREF(ident);
    return is_main;
}

static bool is_finalizing(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

void error_raise_later(PyObject *error)
{
    if (is_finalizing()) {
        /* No Python code will run that could raise it. */
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        PyErr_WriteUnraisable(NULL);
    }
    else if (is_main_thread() && Py_AddPendingCall(raise_now, error) == 0) {
        return;
    }
    else {
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), (PyObject *)Py_TYPE(error));
    }
    Py_DECREF(error);
}
