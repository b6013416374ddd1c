/* The pool: blocks of any size, each beginning at a multiple of ARENA_ALIGNMENT.
 *
 * Blocks of up to LARGEST_IN_SLAB bytes come from slabs; a larger one has a region of its own, in whole pages. Size classes are
 * a quarter of a power of two apart for slabs and an eighth for large blocks, so that at most a quarter of a block is
 * slack (blocks of less than 256 bytes are rounded up to the alignment). A freed large block is cached by its class, and reused
 * for requests of which it is at most 5/4.
 *
 * Every function here that takes no lock itself is called with the arena's lock held, by any thread.
 */
#ifndef DISPOSESCOPE_ARENA_POOL_H
#define DISPOSESCOPE_ARENA_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "regions.h"

/* What the pool tells of itself. */
struct pool_figures {
    size_t cached_nbytes; /* free memory that is kept: cached regions, and free blocks of slabs in use */
    size_t mapped_nbytes; /* address space in regions, in use or cached */
    uint64_t misses;      /* how often the system was asked for memory */
};

/* Take a block of at least nbytes, 1 or more. The lock is given up and taken again where the system is asked for memory.
 *
 * block: gets what is known of the block; the caller fills in the account.
 * dirty: gets whether the block may hold other bytes than zeros.
 * doomed: gets regions that the new one displaces; the caller unmaps them once it has released the lock.
 * Returns NULL where the system refuses memory, also after the cache was given up. */
void *pool_take(size_t nbytes, struct block **block, bool *dirty, struct region **doomed);

/* Give a block back. Returns the regions to unmap once the lock is released, or NULL. */
struct region *pool_give(void *address);

/* What is known of the block that begins at an address. */
struct block *pool_block_at(void *address);

/* How many bytes the block has room for. */
size_t pool_room(void *address);

/* Change what a block that is in use counts as holding; nbytes must not exceed its room. */
void pool_resize(void *address, size_t nbytes);

/* Clear a block that may hold other bytes than zeros. Called without the lock, by whoever took it. */
void pool_clear(void *address, size_t nbytes);

/* Give up all that is cached. Returns the regions to unmap once the lock is released. */
struct region *pool_empty(void);

/* Let the high-water mark sink towards what was needed since the last time, and give up what the cache holds above it or
 * has not used for a while. Does nothing within a second of the last time. Returns as pool_empty. */
struct region *pool_decay(void);

/* The figures now. */
struct pool_figures pool_tell(void);

#endif
