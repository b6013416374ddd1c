/* Operators of PyTorch that are looked up by name: their classes call them, written in Python. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_CALLS_OPERATORS_H
#define DISPOSESCOPE_TORCH_CALLS_OPERATORS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* A method to be put in the place of another of a class, which it calls: a new reference, or NULL with an exception. There can be
 * so many of them in a process as there are classes of operators. */
PyObject *operators_method(PyTypeObject *type, PyObject *before);

#endif
