/* The straight ways into and out of a scope: `__init__` without options, `__enter__` and `__exit__` where nothing is
 * unusual. Everything else is the business of the methods in Python, which stay. */
#ifndef DISPOSESCOPE_HOT_BLOCKS_H
#define DISPOSESCOPE_HOT_BLOCKS_H

#include "_hot_bound.h"

/* How often the innermost scope of any context was changed: whoever remembers one looks at it. Under the GIL. */
extern uint64_t hot_changes;

/* Counts a change that was made in Python. */
PyObject *hot_changed(PyObject *module, PyObject *ignored);

/* Gives the class of scopes the compiled methods. None, or NULL with an error set and nothing changed. */
PyObject *hot_quicken(PyObject *module, PyObject *type);

#endif
