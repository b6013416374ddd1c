/* The attributes of a tensor that make a Python object which is no birth: that of a tensor which was there before (a gradient, a
 * base), or that under the array which `numpy()` returns. What is assigned to a gradient belongs to the parameter. */
#ifndef DISPOSESCOPE_TORCH_ATTRIBUTES_H
#define DISPOSESCOPE_TORCH_ATTRIBUTES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Takes a tuple of PyTorch's own descriptors, its method for arrays, the names of the module whose code only hands over what it
 * was given, and the function that is called with what is assigned to an attribute. False, and nothing changed, where one of them
 * is none. */
bool attributes_watch(PyObject *descriptors, PyObject *numpy, PyObject *passing, PyObject *assigned);

/* Calls a function with one argument; what it makes no scope owns. Whether that is so now, on this thread. */
PyObject *attributes_unborn(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
bool attributes_make_unborn(void);

/* Whether one of these is running on this thread, and no other code that it has called: a mode's, or that of a class. */
bool attributes_are_read(void);

#endif
