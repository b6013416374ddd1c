/* Births, seen where the Python object of a tensor gets its memory: every one of them, and nothing else. */
#ifndef DISPOSESCOPE_TORCH_BIRTHS_H
#define DISPOSESCOPE_TORCH_BIRTHS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Takes a dict of what is needed; see compiled.pyi. None, or NULL with an error set. */
PyObject *births_bind(PyObject *module, PyObject *things);

/* Whether they are seen so on this system, with this PyTorch: None is told otherwise, and a mode has to see them. */
PyObject *births_watch(PyObject *module, PyObject *things);
/* Sees those of the instances of more classes. */
PyObject *births_watch_classes(PyObject *module, PyObject *types);
bool births_are_seen(void);

/* Whether a budget is to be asked, which the mode does when a call is over. */
bool births_need_the_mode(void);

#endif
