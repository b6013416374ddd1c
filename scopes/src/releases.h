/* Releases: `identity.release`, compiled, and the loop of `scope.release_newest`. */
#ifndef DISPOSESCOPE_SCOPES_RELEASES_H
#define DISPOSESCOPE_SCOPES_RELEASES_H

#include "bound.h"

PyObject *compiled_release(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_release_newest(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

#endif
