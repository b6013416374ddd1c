/* The seam between a scope and the mode of its thread, compiled: `entered` and `left` of `_torch_scopes`, where nothing
 * but that mode is on the stack of modes. Everything else is handed to the Python functions. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_HOT_SEAM_H
#define DISPOSESCOPE_TORCH_HOT_SEAM_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Takes what the seam needs out of a dict, by the names that `_torch_scopes` gives, once in a process. */
PyObject *seam_bind(PyObject *module, PyObject *things);

/* Called with each scope that has been entered, or is being left, on its thread. */
PyObject *seam_entered(PyObject *module, PyObject *scope);
PyObject *seam_left(PyObject *module, PyObject *scope);

#endif
