/* What every call of PyTorch inside a scope goes through, compiled: `BirthMode.__torch_function__`. Everything unusual is
 * handed to the Python functions that it is given. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_HOT_BIRTHS_H
#define DISPOSESCOPE_TORCH_HOT_BIRTHS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Takes what births need out of a dict, by the names that `_torch_births` gives, once in a process. */
PyObject *births_bind(PyObject *module, PyObject *things);
bool births_are_bound(void);

/* The function that a mode is to have as its `__torch_function__`. */
PyObject *births_handler_of(PyObject *module, PyObject *mode);

#endif
