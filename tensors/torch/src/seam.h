/* The seam between a scope and its thread, compiled: `entered` and `left` of `threads`, where nothing but the mode for
 * births is on the stack of modes, if anything. Everything else is handed to the Python functions. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_SEAM_H
#define DISPOSESCOPE_TORCH_SEAM_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Takes what the seam needs out of a dict, by the names that `threads` gives, once in a process. */
PyObject *seam_bind(PyObject *module, PyObject *things);

/* Called with each scope that has been entered, or is being left, on its thread. */
PyObject *seam_entered(PyObject *module, PyObject *scope);
PyObject *seam_left(PyObject *module, PyObject *scope);

/* Whether neither an optimizer steps on the calling thread nor a compiled function runs that has entered no scope. -1 with an
 * error set. */
int seam_is_undisturbed(void);
/* Whether the mode is on its stack, or will be once it is undisturbed. -1 with an error set. */
int seam_has_mode(void);
/* Whether births on it are still to be told of. -1 with an error set. */
int seam_has_pending(void);
/* Whether there may be some on any thread. */
bool seam_may_have_pending(void);
/* Their entries, a new list: no others are to be told of then. NULL with an error set. */
PyObject *seam_take_pending(void);
/* Adds the entry of one. -1 with an error set. */
int seam_add_pending(PyObject *entry);

/* Forgets those of them, once in a while, that are of what is dead. -1 with an error set. */
int seam_forget_dead(void);

#endif
