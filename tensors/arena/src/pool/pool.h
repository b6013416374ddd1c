/* The pool: blocks of any size at multiples of ARENA_ALIGNMENT, in memory from the system, and a
 * cache of free memory.
 *
 * Blocks of up to 128 KiB come from slabs, regions with many blocks of one size. A larger block has
 * a region of its own, in whole pages. Size classes are a quarter of a power of two apart for slabs
 * and an eighth for large blocks, so that at most a quarter of a block is unused (blocks of less
 * than 256 bytes are rounded up to the alignment). The region of a freed large block is cached by
 * its class, and reused for requests of at least 4/5 of its size.
 *
 * The cache is bounded: regions in use and cached regions together have at most as many bytes as
 * were lately in use at once (a high-water mark that decays), plus a quarter and SPARE_NBYTES. A
 * region that was not reused for IDLE_MS goes back to the system at the next event.
 *
 * The GIL is the lock of the pool: every function is called with it, and calls no Python. */
#ifndef DISPOSESCOPE_ARENA_POOL_H
#define DISPOSESCOPE_ARENA_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_ALIGNMENT ((size_t)64) /* every block begins at a multiple of it */

struct account;

/* A block. While it is in use, `word` is the address of the account that it was charged to when it
 * was born or last moved, an owned reference; the lowest bits of the address are notes. While it is
 * free, `word` is the index of the next free block of its slab, plus one. */
struct block {
    uintptr_t word; /* see block_account and block_is */
    size_t nbytes;  /* as requested */
};

/* The notes: which tables have the block. */

enum block_note {
    RECORDED = 1, /* its birth site is in the table of sites */
    LOGGED = 2,   /* its birth is in the log of births of a leak detector */
    TRACKED = 4,  /* it is in the table of tracked blocks: see tracked.h */
    BLOCK_NOTES = 7
};

static inline struct account *block_account(const struct block *block)
{
    return (struct account *)(block->word & ~(uintptr_t)BLOCK_NOTES);
}

/* Charge a block to an account. The notes stay as they are. */
static inline void block_charge(struct block *block, struct account *account)
{
    block->word = (uintptr_t)account | (block->word & BLOCK_NOTES);
}

static inline bool block_is(const struct block *block, enum block_note note) { return (block->word & note) != 0; }

static inline void block_note(struct block *block, enum block_note note, bool is_so)
{
    block->word = is_so ? block->word | note : block->word & ~(uintptr_t)note;
}

/* How often the system was asked for memory. */
extern uint64_t pool_misses;

/* Guard bytes and poison, with DISPOSESCOPE_ARENA_DEBUG=1. A block is filled with fixed bytes when
 * it is born and when it is freed, and the guard bytes behind it are checked when it is freed. A
 * stray write ends the process with a message. Set once, before the first block. */
extern bool guards_wanted;

/* The figures of the pool. */
struct pool_figures {
    size_t cached_nbytes; /* free memory: cached regions, and free blocks of slabs in use */
    size_t mapped_nbytes; /* all regions, in use or cached */
};

/* Take a block of at least `nbytes`, 1 or more. Returns its address; NULL if the system refuses
 * memory even after the cache was emptied.
 *
 * *block is set to the block; the caller charges it to an account.
 * *dirty is set to whether the block may hold other bytes than zeros. */
void *pool_take(size_t nbytes, struct block **block, bool *dirty);

/* Give a block back. */
void pool_give(void *address);

/* The block that begins at an address. Ends the process if there is none. */
struct block *pool_block_at(void *address);

/* The beginning of the block in use that any address lies in, or NULL. Slow: looks at all
 * regions. */
void *pool_find(const void *address);

/* The most bytes that the block at an address can hold. */
size_t pool_room(void *address);

/* Change the requested bytes of a block in use. They must not exceed its room. */
void pool_resize(void *address, size_t nbytes);

/* Fill a block with zeros. */
void pool_clear(void *address, size_t nbytes);

/* Give all cached memory back to the system. */
void pool_empty(void);

/* Lower the high-water marks towards what was needed since the last call, and give back cached
 * regions above them and regions that were not used for IDLE_MS. Does nothing if the last call was
 * less than DECAY_MS ago. */
void pool_decay(void);

/* Advance the clock of the cache, for tests. */
void pool_advance_clock(uint64_t ms);

/* The figures now. */
struct pool_figures pool_figures_now(void);

#endif
