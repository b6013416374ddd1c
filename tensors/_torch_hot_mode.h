/* The mode that a thread has while somebody is to be told of births: of what a call of PyTorch made, when it is over. */
#ifndef DISPOSESCOPE_TORCH_HOT_MODE_H
#define DISPOSESCOPE_TORCH_HOT_MODE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Takes the function that tells. */
void mode_bind(PyObject *tell);

PyObject *mode_handler_of(PyObject *module, PyObject *mode);

#endif
