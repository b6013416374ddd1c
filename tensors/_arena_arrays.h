/* Which block of the arena an array has its memory in. */
#ifndef DISPOSESCOPE_ARENA_ARRAYS_H
#define DISPOSESCOPE_ARENA_ARRAYS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "_arena_accounts.h"

/* The beginning of the block that an array has its memory in, or NULL where the memory is not the arena's. Follows views to
 * the array that owns the memory, through memoryviews and ties (see scopes_bind). */
void *arrays_block_of(PyObject *array);

/* Move the block of an array that is charged to `source` now, or to anybody where source is NULL, to another account. Returns
 * whether it was. With the lock held. */
bool arrays_move(void *address, struct account *source, struct account *target);

#endif
