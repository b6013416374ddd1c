/* Births and deaths: `_births.born` and `_deaths.died`, compiled. */
#ifndef DISPOSESCOPE_HOT_BIRTHS_H
#define DISPOSESCOPE_HOT_BIRTHS_H

#include "_hot_bound.h"

/* The callback of every entry, a function object of the module; set when the module is made. */
extern PyObject *died_function;

PyObject *hot_born(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
/* The same, but no listener is told yet: the resource has an address and nothing else. Runs no Python code where the scope is
 * given. */
PyObject *hot_born_untold(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
/* The entry of a member that nobody knows yet. */
PyObject *hot_part(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *hot_died(PyObject *module, PyObject *entry);

#endif
