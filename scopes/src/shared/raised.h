/* Take the exception that is set as an object, keep it, and set it again later. */
#ifndef DISPOSESCOPE_RAISED_H
#define DISPOSESCOPE_RAISED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The exception that was just raised, normalised and with its traceback: a new reference. No
 * exception is set afterwards. Runs no Python code for a MemoryError. */
static inline PyObject *take_raised(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
        Py_DECREF(traceback);
    }
    Py_XDECREF(type);
    return value;
#endif
}

/* Raises an exception again. Neither its traceback nor its context changes. */
static inline void put_raised(PyObject *raised)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(Py_NewRef(raised));
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(raised)), Py_NewRef(raised), PyException_GetTraceback(raised));
#endif
}

/* Clears the exception that is set, in functions that cannot raise. An exception that stops the
 * program, such as KeyboardInterrupt, is raised again in this thread at the next line of Python. */
static inline void put_off_raised(void)
{
    PyObject *raised = take_raised();
    if (raised != NULL && !PyErr_GivenExceptionMatches(raised, PyExc_Exception)) {
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), (PyObject *)Py_TYPE(raised));
    }
    Py_XDECREF(raised);
}

#endif
