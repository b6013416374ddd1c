/* The placeholders that dead tensors are given, compiled: a few are made ahead, below autograd, which spares each the way through
 * it. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_PLACEHOLDERS_H
#define DISPOSESCOPE_TORCH_PLACEHOLDERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Takes what makes a placeholder out of a dict, by the names that `disposal` gives. -1 with an error set. */
int placeholders_bind(PyObject *things);

/* A spare tensor whose implementation is a placeholder that nobody else has, a new reference; NULL with an error set. */
PyObject *placeholders_take(void);

#endif
