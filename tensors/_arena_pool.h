/* The pool: where blocks come from and where they go back to.
 *
 * Memory comes from the system in regions, which begin at multiples of REGION_ALIGNMENT, so that the region of a block is
 * found from its address alone. A region is either a slab, which holds blocks of one size class (up to LARGEST_IN_SLAB
 * bytes), or holds one large block, in whole pages. Every block begins at a multiple of ARENA_ALIGNMENT.
 *
 * Size classes are a quarter of a power of two apart for slabs and an eighth for large blocks, so that at most a quarter of
 * a block is slack (blocks of less than 256 bytes are rounded up to the alignment). A freed slab block is reused first by
 * its slab; a freed large block is cached by its class, and reused for requests of which it is at most 5/4. A slab without
 * blocks in use is cached as well. What is cached is bounded: in use and cached together stay within what was in use at
 * once lately (a high-water mark that decays), plus an eighth.
 *
 * Every function here that takes no lock itself is called with the arena's lock held, by any thread, with or without
 * the GIL.
 */
#ifndef DISPOSESCOPE_ARENA_POOL_H
#define DISPOSESCOPE_ARENA_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_ALIGNMENT ((size_t)64)
#define REGION_ALIGNMENT ((size_t)1 << 20)
#define LARGEST_IN_SLAB ((size_t)128 << 10)

struct account;
struct region;

/* What is known of one block. While it is in use: the account that it was charged to when it was born or last moved, with
 * a reference. While it is free: the index of the next free block of its slab, plus one. */
struct block {
    union {
        struct account *account;
        uintptr_t next_free;
    } as;
    size_t nbytes : 63;  /* as requested */
    size_t recorded : 1; /* its birth site is in the table of sites */
};

/* What the pool tells of itself. */
struct pool_figures {
    size_t cached_nbytes; /* free memory that is kept: cached regions, and free blocks of slabs in use */
    size_t mapped_nbytes; /* address space in regions, in use or cached */
    uint64_t hits;        /* requests served without asking the system for memory */
    uint64_t misses;      /* the others */
};

/* Guard bytes and poison, by DISPOSESCOPE_ARENA_DEBUG=1; set once, before the first block. */
extern bool pool_debug;

/* How often the system was asked for memory; read with the lock held. */
extern uint64_t pool_misses;

/* Take a block of at least nbytes. The lock is given up and taken again where the system is asked for memory.
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

/* Give up all that is cached. Returns the regions to unmap once the lock is released. */
struct region *pool_empty(void);

/* Let the high-water mark sink towards what was needed since the last time, and give up what the cache holds above it or
 * has not used for a while. Does nothing within a second of the last time. Returns as pool_empty. */
struct region *pool_decay(void);

/* Return regions to the system. Called without the lock. */
void pool_unmap(struct region *doomed);

/* The figures now. */
struct pool_figures pool_tell(void);

#endif
