/* Passes: recordings of what is born and freed in a scope, and the service of its blocks from a
 * slab by a plan.
 *
 * A pass belongs to the account of its scope, and to those of the scopes inside it. While it is
 * open each birth charged to one of them is recorded: its bytes, where it was, when it died. Time
 * is the number of births before.
 *
 * A plan is a list of slots, in the order of the births of an earlier pass. A birth takes the next
 * slot of its place (the innermost frame of Python's and its instruction) into which it fits,
 * looking ahead a little. The slot has bytes of the slab, and these are handed out where every
 * block that was given any of them is dead, which is looked up each time. Whatever differs, the
 * pool serves.
 *
 * Every function here is called with the GIL held. */
#ifndef DISPOSESCOPE_ARENA_PASSES_H
#define DISPOSESCOPE_ARENA_PASSES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tracked.h"

struct pass; /* begins with its `struct pass_head` */

#define NO_BIRTH UINT32_MAX

/* Record a birth. Returns its number, or NO_BIRTH where there is no memory for that. Keeps an
 * exception that is set, and runs no Python code. `planned` gets the block where the slab serves
 * it, and NULL where the pool has to; then pass_track() follows, or pass_take_back() where it could
 * not. */
uint32_t pass_born(struct pass *pass, size_t nbytes, bool resized, struct tracked **planned);
void pass_track(struct pass *pass, uint32_t birth, void *address, struct block *block);
void pass_take_back(struct pass *pass, uint32_t birth);

/* A tracked block is freed: recorded as dead, and tracked no more. */
void pass_block_died(struct tracked *tracked);

/* A tracked block has another size now, in its place. */
void pass_block_resized(struct tracked *tracked, size_t nbytes);

/* The types of the module: Slab, PassPlan and Pass. 0, or -1 with an exception. */
int passes_make(PyObject *module);

#endif
