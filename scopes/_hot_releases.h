/* Releases: `_releases.release` for a plain entry, compiled, and the loop of `_closing.release_newest`. */
#ifndef DISPOSESCOPE_HOT_RELEASES_H
#define DISPOSESCOPE_HOT_RELEASES_H

#include "_hot_bound.h"

PyObject *hot_release(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *hot_release_newest(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

#endif
