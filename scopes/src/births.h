/* Births and deaths: `ownership.born` and `identity.died`, compiled. */
#ifndef DISPOSESCOPE_SCOPES_BIRTHS_H
#define DISPOSESCOPE_SCOPES_BIRTHS_H

#include "bound.h"

/* The callback of every entry, a function object of the module; set when the module is made. */
extern PyObject *died_function;

PyObject *compiled_born(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
/* The same, but no listener is told yet: the resource has an address and nothing else. Runs no Python code where the scope is
 * given. */
PyObject *compiled_born_pending(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
/* The entry of a member that nobody knows yet. */
PyObject *compiled_part(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *compiled_died(PyObject *module, PyObject *entry);

/* The entry of a resource, in no table yet; with a `key`, that of a tuple by its anchor, which is the `resource` then. `scope` may
 * be NULL. A new reference. */
PyObject *make_entry(PyTypeObject *type, PyObject *resource, PyObject *key, PyObject *kind, PyObject *ledger, PyObject *scope);
/* Into the tables and the list of its owner, all or nothing. Runs no Python code but what dies by a replaced entry. */
int record(PyObject *entry, PyObject *ledger, PyObject *scope);

/* Composites that are born whole, and what they leave behind: `ownership.born_whole`, `identity.anchor_died` and
 * the quick part of `identity.settle`. */

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
