/* What every disposal of a tensor goes through, compiled: `disposal.drop`, for plain tensors. Everything else is
 * handed to the Python function. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_DISPOSAL_H
#define DISPOSESCOPE_TORCH_DISPOSAL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Takes what disposals need out of a dict, by the names that `disposal` gives, once in a process. */
PyObject *disposal_bind(PyObject *module, PyObject *things);

/* Lets a tensor go. */
PyObject *disposal_drop(PyObject *module, PyObject *tensor);

/* A spare tensor: see `placeholders_take`. */
PyObject *disposal_spare(PyObject *module, PyObject *ignored);

#endif
