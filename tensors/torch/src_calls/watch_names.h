/* The names of the functions that are called. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_WATCH_NAMES_H
#define DISPOSESCOPE_TORCH_WATCH_NAMES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* What a function is called, borrowed: it and its name are kept for the life of the process. NULL, without an error,
 * where it has no name, or too many are kept already. */
PyObject *name_of(PyObject *function);

#endif
