/* What PyTorch is doing on the calling thread, asked of PyTorch itself: its own C++ functions, found by name. */
#ifndef DISPOSESCOPE_TORCH_STATE_H
#define DISPOSESCOPE_TORCH_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Takes the paths of PyTorch's libraries, which are loaded, and the number of the dispatch key of transforms. -1 with an error
 * set; 0 where a function is missing; 1. */
int state_find(PyObject *paths, unsigned long key);

/* Whether what is made now is no birth: in a backward pass, in a transform, or where nobody is to see functions called. */
bool state_is_particular(void);

/* One reason for that: a backward pass runs. */
bool state_runs_backward(void);

/* Lets nobody see functions called, no mode and no class; returns what was so before, to be given back, and tells whether that was
 * the same. */
int state_disable(bool *disabled_before);
void state_enable(int before);

/* Whether a function mode is on the stack of the calling thread; -1 where PyTorch cannot be asked. */
int state_modes_are_on(void);

#endif
