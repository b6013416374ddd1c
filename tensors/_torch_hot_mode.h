/* The mode that a thread has while somebody is to be told of births: of what a call of PyTorch made, when it is over. */
#ifndef DISPOSESCOPE_TORCH_HOT_MODE_H
#define DISPOSESCOPE_TORCH_HOT_MODE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Takes a dict of what is needed to tell, which is kept; see _torch_hot.pyi. -1 with an error set. */
int mode_bind(PyObject *things);

/* Tells of what was born on this thread, without the mode; where there are budgets, that is for the mode to do. -1 with an error
 * set. */
int mode_tell(void);

PyObject *mode_handler_of(PyObject *module, PyObject *mode);

#endif
