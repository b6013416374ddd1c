/* Functions to put in the place of others in the tables of methods that Python calls by: each hands its number over, for Python
 * does not tell a function by which entry it was called. */
#ifndef DISPOSESCOPE_TORCH_TRAMPOLINES_H
#define DISPOSESCOPE_TORCH_TRAMPOLINES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { TRAMPOLINES = 1000 };

/* By the number of a function: one that is called with what it is bound to and one thing more (METH_O, METH_NOARGS,
 * METH_VARARGS), and one with a dict as well (METH_VARARGS | METH_KEYWORDS). */
extern const PyCFunction trampolines_of_two[TRAMPOLINES];
extern const PyCFunctionWithKeywords trampolines_of_three[TRAMPOLINES];

/* What they call. */
PyObject *call_of_two(int number, PyObject *self, PyObject *argument);
PyObject *call_of_three(int number, PyObject *self, PyObject *arguments, PyObject *named);

#endif
