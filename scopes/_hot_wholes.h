/* Composites that are born whole, and what they leave behind: `_births.born_whole`, `_deaths.anchor_died` and
 * `_estates.sweep`, compiled. */
#ifndef DISPOSESCOPE_HOT_WHOLES_H
#define DISPOSESCOPE_HOT_WHOLES_H

#include "_hot_bound.h"

/* The callback of the entry of a tuple, a function object of the module; set when the module is made. */
extern PyObject *anchor_died_function;

PyObject *hot_born_whole(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *hot_anchor_died(PyObject *module, PyObject *entry);
PyObject *hot_sweep(PyObject *module, PyObject *ignored);

/* Forgets the composite that has died last, where this is it and all of its members are gone now. -1 with an error set. */
int forget_spent(PyObject *unit);
/* Forgets the composites that have died with all of their members. -1 with an error set. */
int sweep(void);

#endif
