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

/* The placeholders that dead tensors are given, compiled: a few are made ahead, below autograd, which spares each the way through
 * it. Used under the GIL. */

/* Takes what makes a placeholder out of a dict, by the names that `disposal` gives. -1 with an error set. */
int placeholders_bind(PyObject *things);

/* A spare tensor whose implementation is a placeholder that nobody else has, a new reference; NULL with an error set. */
PyObject *placeholders_take(void);

#endif
