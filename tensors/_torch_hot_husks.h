/* The husks that dead tensors are given, compiled: a few are made ahead, below autograd, which spares each the way through
 * it. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_HOT_HUSKS_H
#define DISPOSESCOPE_TORCH_HOT_HUSKS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Takes what makes a husk out of a dict, by the names that `_torch_disposal` gives. -1 with an error set. */
int husks_bind(PyObject *things);

/* A spare tensor whose implementation is a husk that nobody else has, a new reference; NULL with an error set. */
PyObject *husks_take(void);

#endif
