/* The ways into and out of a scope: `__init__` without options and `__enter__` where nothing is unusual, for which there are
 * methods in Python otherwise, and its end, whatever comes up meanwhile. */
#ifndef DISPOSESCOPE_SCOPES_BLOCKS_H
#define DISPOSESCOPE_SCOPES_BLOCKS_H

#include "bound.h"

/* How often the innermost scope of any context was changed: whoever remembers one looks at it. Under the GIL. */
extern uint64_t compiled_changes;

/* Changes it, and counts that: one step for every interrupt. */
PyObject *compiled_set_current(PyObject *module, PyObject *scope);

/* The end of a block, or of a scope before its block is over: `scope.leave`. */
PyObject *compiled_leave(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

/* A method made of a pair of functions: the second is called where the first raises, with the object and what it raised. It is not
 * interrupted before its first line, as a method in Python can be. */
PyObject *compiled_with_undo(PyObject *module, PyObject *both);

/* Gives the class of scopes the compiled methods. None, or NULL with an error set and nothing changed. */
PyObject *compiled_install(PyObject *module, PyObject *type);

/* Releases: `identity.release`, compiled, and the loop of `scope.release_newest`. */

PyObject *compiled_release(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_release_newest(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

#endif
