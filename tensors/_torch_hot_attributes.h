/* The attributes of a tensor that hand out a tensor which was there before: a gradient, a base. What they hand out is no birth,
 * and what is assigned to a gradient belongs to the parameter. */
#ifndef DISPOSESCOPE_TORCH_HOT_ATTRIBUTES_H
#define DISPOSESCOPE_TORCH_HOT_ATTRIBUTES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Takes a tuple of PyTorch's own descriptors, and the function that is called with what is assigned to one. -1 with an error
 * set, and nothing changed, where one of them is none. */
int attributes_watch(PyObject *descriptors, PyObject *assigned);

/* Whether one of them is being read on this thread. */
bool attributes_are_read(void);

#endif
