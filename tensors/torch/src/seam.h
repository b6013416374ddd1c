/* The seam between a scope and its thread, compiled: `entered` and `left` of `threads`, where nothing but the mode for
 * births is on the stack of modes, if anything. Everything else is handed to the Python functions. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_SEAM_H
#define DISPOSESCOPE_TORCH_SEAM_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "api.h"

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

/* The mode that a thread has while somebody is to be told of births: of what a call of PyTorch made, when it is over. */

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

/* Births that somebody is still to be told of. What no call tells of, as that which functions without a seam make in a loop, shall
 * not pile up. */

/* Takes the entries of what is dead out of a list, where they are many, each time that it has become twice as long. -1 with an
 * error set. */
int pending_forget_dead(PyObject *pending);

#endif
