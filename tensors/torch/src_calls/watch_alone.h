/* Tensors that refer to nothing else. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_WATCH_ALONE_H
#define DISPOSESCOPE_TORCH_WATCH_ALONE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int alone_make(void);

/* See compiled_calls.pyi. */
PyObject *alone(PyObject *module, PyObject *tensor);

#endif
