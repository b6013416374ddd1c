/* Errors that come up where none can be raised, because whoever called looks for none. */
#ifndef DISPOSESCOPE_TORCH_ERRORS_H
#define DISPOSESCOPE_TORCH_ERRORS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Takes the module `threading`, which is kept. */
void errors_bind(PyObject *threading);

/* Has an error raised in the code of this thread as soon as that goes on; on other threads than the main one a new one of its
 * class. Steals it. Runs no Python code before the interpreter goes down. */
void error_raise_later(PyObject *error);

#endif
