/* What every disposal of a tensor goes through, compiled: `_torch_disposal.drop`, for plain tensors. Everything else is
 * handed to the Python function. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_HOT_DISPOSAL_H
#define DISPOSESCOPE_TORCH_HOT_DISPOSAL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Takes what disposals need out of a dict, by the names that `_torch_disposal` gives, once in a process. */
PyObject *disposal_bind(PyObject *module, PyObject *things);
bool disposal_is_bound(void);

/* Lets a tensor go. */
PyObject *disposal_drop(PyObject *module, PyObject *tensor);

#endif
