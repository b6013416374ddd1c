/* Whether a tensor is one of the many of a program that nothing hangs on: no graph, no base, no gradient. */
#ifndef DISPOSESCOPE_TORCH_LONE_H
#define DISPOSESCOPE_TORCH_LONE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Makes the names that it asks for, once in a process. -1 with an error set. */
int lone_make(void);

/* See compiled.pyi. */
PyObject *lone_identity(PyObject *module, PyObject *tensor);

#endif
