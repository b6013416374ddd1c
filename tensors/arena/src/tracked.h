/* Tracked blocks: blocks whose birth is recorded by an open pass, and blocks in the slab of a plan.
 *
 * The pool finds a block by its region. A block in a slab has no region; it is found by its address
 * in the table of tracked blocks. A block of the pool is in that table while the pass in which it
 * was born is open. The functions `block_*` below take the address of a block of either kind.
 *
 * A slab is a piece of memory from the system whose blocks have the offsets of a plan. It exists as
 * long as anything serves from it or a block in it is in use.
 *
 * The GIL is the lock: every function is called with it, and calls no Python. */
#ifndef DISPOSESCOPE_ARENA_TRACKED_H
#define DISPOSESCOPE_ARENA_TRACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compiler.h"
#include "pool/pool.h"

struct pass;

struct slab {
    size_t references; /* one until it is abandoned, and one from each block in it */
    char *base;
    size_t nbytes;
    size_t live_blocks, live_nbytes; /* the blocks in use, and their bytes as requested */
    struct tracked *blocks;          /* the blocks in use, by address if it is abandoned */
    bool verified;                   /* dead bytes are poisoned, and blocks have guard bytes behind them */
    bool abandoned;                  /* nothing is served from it any more */
    bool serves;                     /* whether it serves an open pass */
    const char *fault;               /* the first stray write that was found, as text; or NULL */
    size_t fault_offset;             /* the offset of that write */
    struct slab *next, *previous;    /* the list of all slabs */
};

struct tracked {
    struct block block; /* in a slab: the block; for the pool's blocks unused. First field: see tracked_of() */
    void *address;
    size_t room;       /* in a slab: the bytes that it occupies, with the guard */
    struct slab *slab; /* NULL for a block of the pool */
    struct tracked *next, *previous; /* the list of blocks in its slab */
    struct pass *pass; /* the open pass in which it was born, or NULL. Borrowed: the pass clears it when it ends */
    struct tracked *later, *earlier; /* the list of blocks of that pass */
    uint32_t birth;    /* the number of its birth in that pass */
    uint32_t slot;     /* in a slab: the number of its slot in the plan of that pass */
};

/* The tracked block that a block in a slab is part of. */
static inline struct tracked *tracked_of(struct block *block) { return (struct tracked *)block; }

/* The bytes that a block of `nbytes` occupies in a slab, with its guard: a multiple of
 * ARENA_ALIGNMENT. */
size_t slab_room(size_t nbytes, bool verified);

/* A new slab with one reference; NULL if the system refuses memory. */
struct slab *slab_new(size_t nbytes, bool verified);

/* Leave a slab that serves nothing any more to the blocks in use. Pages that none of them has are
 * given back to the system, now and whenever a block dies. */
void slab_abandon(struct slab *slab);

/* Check the guard bytes behind the blocks that are in use. */
void slab_check(struct slab *slab);

/* Put a block of `nbytes` at an offset. No byte of its room may be in use. NULL without memory for
 * the table. */
struct tracked *slab_put(struct slab *slab, size_t offset, size_t nbytes);

/* Track a block of the pool, and set its note TRACKED. NULL without memory for the table. */
struct tracked *tracked_add(void *address, struct block *block);

/* The tracked block that begins at an address, or NULL. */
struct tracked *tracked_find(const void *address);

/* Stop tracking a block. A block in a slab is freed by this; the note of a block of the pool stays
 * set. */
void tracked_remove(struct tracked *tracked);

/* All slabs lie in this span of addresses: a quick test for most addresses. */
extern uintptr_t slabs_begin, slabs_span;

/* The slab that has an address, or NULL. `slab_of` is the same, and quicker. */
struct slab *slab_among_all(const void *address);

static inline struct slab *slab_of(const void *address)
{
    return UNLIKELY((uintptr_t)address - slabs_begin < slabs_span) ? slab_among_all(address) : NULL;
}

/* Like `pool_block_at`, `pool_find`, `pool_room` and `pool_resize`, for blocks of the pool and of
 * slabs. */
struct block *block_at(void *address);
void *block_find(const void *address);
size_t block_room(void *address);
void block_resize(void *address, size_t nbytes);

#endif
