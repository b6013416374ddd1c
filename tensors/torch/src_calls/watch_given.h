/* Whether the memory of a result was given to the call. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_WATCH_GIVEN_H
#define DISPOSESCOPE_TORCH_WATCH_GIVEN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "calls.h"

/* Whether a tensor with a storage is what a call was bound to, or among its arguments, or in a list or tuple that is.
 * `storage_of` tells the storage of a tensor; errors count as no. */
bool is_given(const struct call *call, PyObject *storage, PyTypeObject *tensor_type, PyObject *storage_of);

#endif
