/* Composites that are born whole, and what they leave behind: `ownership.born_whole`, `identity.anchor_died` and
 * `dead_composites.sweep`, compiled. */
#ifndef DISPOSESCOPE_SCOPES_WHOLES_H
#define DISPOSESCOPE_SCOPES_WHOLES_H

#include "bound.h"

/* The callback of the entry of a tuple, a function object of the module; set when the module is made. */
extern PyObject *anchor_died_function;

PyObject *compiled_born_whole(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_anchor_died(PyObject *module, PyObject *entry);
PyObject *compiled_sweep(PyObject *module, PyObject *ignored);

/* Forgets the composite that has died last, where this is it and all of its members are gone now. -1 with an error set. */
int forget_spent(PyObject *unit);
/* Forgets the composites that have died with all of their members. -1 with an error set. */
int sweep(void);

#endif
