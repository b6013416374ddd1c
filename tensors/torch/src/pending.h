/* Births that somebody is still to be told of. What no call tells of, as that which functions without a seam make in a loop, shall
 * not pile up. */
#ifndef DISPOSESCOPE_TORCH_PENDING_H
#define DISPOSESCOPE_TORCH_PENDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Takes the entries of what is dead out of a list, where they are many, each time that it has become twice as long. -1 with an
 * error set. */
int pending_forget_dead(PyObject *pending);

#endif
