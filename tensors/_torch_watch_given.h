/* Whether the memory of a result was given to the call. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_WATCH_GIVEN_H
#define DISPOSESCOPE_TORCH_WATCH_GIVEN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Whether a tensor with a storage is among arguments (a tuple) or named ones (a dict, or NULL), or in a list or tuple
 * that is. `storage_of` tells the storage of a tensor; errors count as no. */
bool is_given(PyObject *arguments, PyObject *named, PyObject *storage, PyTypeObject *tensor_type, PyObject *storage_of);

#endif
