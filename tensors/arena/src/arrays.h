/* Which block of the arena an array has its memory in. */
#ifndef DISPOSESCOPE_ARENA_ARRAYS_H
#define DISPOSESCOPE_ARENA_ARRAYS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "accounts.h"

/* The array that owns the memory of an array as a block of the arena; borrowed, NULL where the memory is not the arena's.
 * Follows views through memoryviews and ties (see scopes_bind). */
PyObject *arrays_owner_of(PyObject *array);

/* The beginning of that block, or NULL. */
void *arrays_block_of(PyObject *array);

/* The block as a storage: (address, bytes), 0 bytes where its array has no elements. A new reference, NULL with an exception. */
PyObject *arrays_storage(PyObject *owner);

/* Whether nothing but an array refers to its memory, and nothing but so many references to that array. */
bool arrays_holds_alone(PyObject *array, Py_ssize_t references);

/* Move the block of an array that is charged to `source` now to another account. Returns whether it was. With the lock held. */
bool arrays_move(void *address, struct account *source, struct account *target);

#endif
