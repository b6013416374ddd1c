/* Calls of PyTorch that nobody looks on at: what `sequences.torch_rows.aside` asks, compiled. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_ALONE_H
#define DISPOSESCOPE_TORCH_ALONE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Takes what `alone` needs out of a dict, by the names that `sequences.torch_rows` gives, once in a process. */
PyObject *alone_bind(PyObject *module, PyObject *things);

/* Calls a function with one argument; what it makes is no birth. NotImplemented where somebody looks on. */
PyObject *alone_call(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

#endif
