/* Taking objects of the Python part out of a dict, once in a process, and keeping them for its life. */
#ifndef DISPOSESCOPE_TORCH_BOUND_H
#define DISPOSESCOPE_TORCH_BOUND_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Whether objects may be taken: from a dict, and none has been. With an error set where not. */
static inline bool may_bind(PyObject *things, PyObject *taken_before)
{
    if (taken_before == NULL && PyDict_CheckExact(things)) {
        return true;
    }
    PyErr_SetString(PyExc_RuntimeError, "bind() takes a dict, once in a process");
    return false;
}

/* Takes so many objects by their names; -1 with an error set, and nothing taken, where one is missing. */
static inline int take(PyObject *things, const char *const *names, int number, PyObject **bound)
{
    for (int which = 0; which < number; which++) {
        if (PyDict_GetItemString(things, names[which]) == NULL) {
            PyErr_Format(PyExc_TypeError, "bind() wants %s", names[which]);
            return -1;
        }
    }
    for (int which = 0; which < number; which++) {
        bound[which] = Py_NewRef(PyDict_GetItemString(things, names[which]));
    }
    return 0;
}

#endif
