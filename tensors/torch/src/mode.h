/* The mode that a thread has while somebody is to be told of births: of what a call of PyTorch made, when it is over. */
#ifndef DISPOSESCOPE_TORCH_MODE_H
#define DISPOSESCOPE_TORCH_MODE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "api.h"

/* Takes a dict of what is needed to tell, which is kept; see compiled.pyi. -1 with an error set. */
int mode_bind(PyObject *things);

/* Who else tells of births; NULL for nobody. Whether somebody does, so that listeners need no mode. */
void mode_tell_by_calls(const struct torch_calls *calls);
bool mode_is_spared(void);
/* What is to be remembered of a birth that no call will tell of; a new reference, or NULL without an error. Can run any code. */
PyObject *mode_place(void);
/* Remembers that for an entry of which somebody is to be told; NULL is nothing. Runs no other code. -1 with an error set. */
int mode_remember(PyObject *entry, PyObject *place);

/* Tells of what was born on this thread, without the mode; where there are budgets, that is for the mode to do. -1 with an error
 * set. */
int mode_tell(void);

/* See compiled.pyi. */
PyObject *mode_tell_of(PyObject *module, PyObject *entry);
PyObject *mode_handler_of(PyObject *module, PyObject *mode);

#endif
