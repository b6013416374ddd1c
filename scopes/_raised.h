/* The exception that is set, taken as an object: for every compiled part that keeps one. */
#ifndef DISPOSESCOPE_RAISED_H
#define DISPOSESCOPE_RAISED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The exception that was just raised, normalised and with its traceback: a new reference. None is set afterwards. One without
 * memory runs no Python code. */
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

#endif
