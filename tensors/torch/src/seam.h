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

/* What goes on on the calling thread, the flags together: an optimizer steps, or other code of PyTorch's makes what is its own; a
 * compiled function runs that has entered no scope. -1 with an error set. */
enum { AT_WORK_STEP = 1, AT_WORK_COMPILED = 2 };
int seam_at_work(void);
/* Whether the mode is on its stack, or will be once it is undisturbed. -1 with an error set. */
int seam_has_mode(void);
/* Adds the entry of a birth on it that a budget is still to be asked about. -1 with an error set. */
int seam_add_pending(PyObject *entry);

/* Forgets those of them, once in a while, that are of what is dead. -1 with an error set. */
int seam_forget_dead(void);

#endif
