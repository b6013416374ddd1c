/* Passes: a pass records births and deaths of blocks in a scope, and serves blocks from a slab by a
 * plan.
 *
 * A pass belongs to the account of its scope, and to the accounts of the scopes inside it. While it
 * is open, each birth that is charged to one of these accounts is recorded: its bytes, its places
 * (the code and instruction of the innermost Python frames) and the time of its death. Time is the
 * number of births before.
 *
 * A plan is a list of slots, in the order of the births of an earlier pass. A slot has some of the
 * places of its birth, the innermost ones. A birth takes the next slot of its places into which it
 * fits, looking a few slots ahead. A slot has an offset in the slab. Its bytes are handed out only
 * if every block that lies there is dead, which is checked each time. The pool serves all other
 * births.
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

/* Record a birth. Returns its number, or NO_BIRTH without memory to record it. Keeps an exception
 * that is set, and runs no Python code. If the slab serves the birth, `planned` is set to the
 * block. Otherwise it is set to NULL, and the caller asks the pool, and then calls pass_track(), or
 * pass_take_back() if the pool had no memory. `resized` says that the block replaces another one
 * that is reallocated. */
uint32_t pass_born(struct pass *pass, size_t nbytes, bool resized, struct tracked **planned);
void pass_track(struct pass *pass, uint32_t birth, void *address, struct block *block);
void pass_take_back(struct pass *pass, uint32_t birth);

/* Record the death of a tracked block, and stop tracking it. */
void pass_block_died(struct tracked *tracked);

/* Record that a tracked block has another size now, at the same address. */
void pass_block_resized(struct tracked *tracked, size_t nbytes);

/* The types of the module: Slab, PassPlan and Pass. 0, or -1 with an exception. */
int passes_make(PyObject *module);

#endif
