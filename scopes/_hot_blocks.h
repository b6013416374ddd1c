/* The straight ways into and out of a scope: `__init__` without options, `__enter__` and `__exit__` where nothing is
 * unusual. Everything else is the business of the methods in Python, which stay. */
#ifndef DISPOSESCOPE_HOT_BLOCKS_H
#define DISPOSESCOPE_HOT_BLOCKS_H

#include "_hot_bound.h"

/* Gives the class of scopes the compiled methods. None, or NULL with an error set and nothing changed. */
PyObject *hot_quicken(PyObject *module, PyObject *type);

#endif
