/* Guard bytes and poison, by DISPOSESCOPE_ARENA_DEBUG=1: a block is filled when it is born and when it is freed, and has bytes
 * behind it that are looked at when it is freed. What is found ends the process with a message.
 */
#ifndef DISPOSESCOPE_ARENA_GUARDS_H
#define DISPOSESCOPE_ARENA_GUARDS_H

#include <stdbool.h>
#include <stddef.h>

#define GUARD_NBYTES ((size_t)32)

/* Set once, before the first block. */
extern bool guards_wanted;

/* Fill a block, and put the guard behind its bytes. */
void guards_dress(void *address, size_t nbytes);

/* Put the guard behind a block that changed its size. */
void guards_move(void *address, size_t nbytes);

/* Look at the guard of a block that is freed, and poison it. */
void guards_undress(void *address, size_t nbytes);

/* Look whether a freed block was written to. */
void guards_check(const void *address, size_t nbytes);

#endif
