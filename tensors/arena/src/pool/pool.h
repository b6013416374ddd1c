/* The pool: blocks of any size from memory of the system, each beginning at a multiple of
 * ARENA_ALIGNMENT, and a cache of what is not in use.
 *
 * Blocks of up to 128 KiB come from slabs; a larger one has a region of its own, in whole pages.
 * Size classes are a quarter of a power of two apart for slabs and an eighth for large blocks, so
 * that at most a quarter of a block is slack (blocks of less than 256 bytes are rounded up to the
 * alignment). A freed large block is cached by its class, and reused for requests of which it is at
 * most 5/4.
 *
 * What is cached is bounded: regions in use and cached together stay within what was in use at once
 * lately (a high-water mark that decays), plus a quarter and a little. A region that was not reused
 * for a while goes back to the system at the next event.
 *
 * The GIL is the lock of the pool: every function here is called with it, and calls no Python. */
#ifndef DISPOSESCOPE_ARENA_POOL_H
#define DISPOSESCOPE_ARENA_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_ALIGNMENT ((size_t)64) /* every block begins at a multiple of it */

struct account;

/* What is known of one block. While it is in use: the account that it was charged to when it was
 * born or last moved, with a reference, and in the lowest bits of that address who else knows the
 * block. While it is free: the index of the next free block of its slab, plus one. */
struct block {
    uintptr_t word; /* see block_account and block_is */
    size_t nbytes;  /* as requested */
};

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

/* Charge it to an account, the notes staying as they are; with none, if it was not in use. */
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

/* Guard bytes and poison, by DISPOSESCOPE_ARENA_DEBUG=1: a block is filled when it is born and when
 * it is freed, and has bytes behind it that are looked at when it is freed. What is found ends the
 * process with a message. Set once, before the first block. */
extern bool guards_wanted;

/* The figures of the pool. */
struct pool_figures {
    size_t cached_nbytes; /* free memory that is kept: cached regions, and free blocks of slabs in use */
    size_t mapped_nbytes; /* address space in regions, in use or cached */
};

/* Take a block of at least nbytes, 1 or more.
 *
 * block: gets what is known of the block; the caller fills in the account.
 * dirty: gets whether the block may hold other bytes than zeros.
 * Returns NULL where the system refuses memory, also after the cache was given up. */
void *pool_take(size_t nbytes, struct block **block, bool *dirty);

/* Give a block back. */
void pool_give(void *address);

/* What is known of the block that begins at an address; ends the process where none does. */
struct block *pool_block_at(void *address);

/* The beginning of the block in use that an address of any kind is in; NULL where none is. Looks at
 * one region after another. */
void *pool_find(const void *address);

/* How many bytes the block has room for. */
size_t pool_room(void *address);

/* Change what a block that is in use counts as holding; nbytes must not exceed its room. */
void pool_resize(void *address, size_t nbytes);

/* Clear a block that may hold other bytes than zeros. */
void pool_clear(void *address, size_t nbytes);

/* Give up all that is cached. */
void pool_empty(void);

/* Let the high-water mark sink towards what was needed since the last time, and give up what the
 * cache holds above it or has not used for a while. Does nothing within a second of the last time.
 * */
void pool_decay(void);

/* Let the clock of the cache go forward, so that tests need not wait. */
void pool_advance_clock(uint64_t ms);

/* The figures now. */
struct pool_figures pool_figures_now(void);

#endif
