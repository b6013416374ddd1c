/* Tracked blocks: those whose birth is in the recording of a pass, and those that lie in the slab
 * of a plan.
 *
 * The pool knows blocks by their regions. What lies in a slab has no region: it is found in a
 * table, by its address, and so is a block of the pool while the pass in which it was born is open.
 * Below stand the functions that take the address of any block.
 *
 * A slab is one piece of memory from the system, in which a plan says what lies where. It stays as
 * long as a block in it is in use, whoever has given it up before.
 *
 * The GIL is the lock of all of it: every function here is called with it, and calls no Python. */
#ifndef DISPOSESCOPE_ARENA_TRACKED_H
#define DISPOSESCOPE_ARENA_TRACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool/pool.h"

struct pass;

struct slab {
    size_t references; /* of who serves from it, and one of each block in it */
    char *base;
    size_t nbytes;
    size_t live_blocks, live_nbytes; /* of the blocks in use, as requested */
    struct tracked *blocks;          /* in use, the latest first */
    bool verified;                   /* dead bytes are poisoned, and blocks have guard bytes behind them */
    bool abandoned;                  /* nothing is served from it any more */
    bool serves;                     /* an open pass */
    const char *fault;               /* what was found wrong with bytes first, NULL for nothing */
    size_t fault_offset;             /* where that is */
    struct slab *next, *previous;    /* all slabs */
};

struct tracked {
    struct block block; /* of a block in a slab; for another one the pool has it. The first: see tracked_of() */
    void *address;
    size_t room;       /* in a slab: the bytes that it may have there, with the guard */
    struct slab *slab; /* NULL: it is the pool's */
    struct tracked *next, *previous; /* in its slab */
    struct pass *pass; /* the open one in which it was born, or NULL. No reference: a pass lets go of its blocks */
    struct tracked *later, *earlier; /* of that pass */
    uint32_t birth;    /* its number in that pass */
    uint32_t slot;     /* in a slab: its number in the plan of that pass */
};

/* The tracked block of a block in a slab. */
static inline struct tracked *tracked_of(struct block *block) { return (struct tracked *)block; }

/* How many bytes a block of nbytes has in a slab: a multiple of ARENA_ALIGNMENT. */
size_t slab_room(size_t nbytes, bool verified);

/* A slab with one reference; NULL where the system refuses. */
struct slab *slab_new(size_t nbytes, bool verified);

/* Drop a reference. */
void slab_release(struct slab *slab);

/* Serve nothing from it any more, and give the pages in which no block is in use back to the
 * system. */
void slab_abandon(struct slab *slab);
/* Look at the guard bytes behind the blocks that are in use. */
void slab_check(struct slab *slab);

/* Put a block of nbytes at an offset, where every byte of its room is dead. NULL where there is no
 * memory for the table. */
struct tracked *slab_put(struct slab *slab, size_t offset, size_t nbytes);

/* Track a block of the pool, and set its note. NULL where there is no memory for the table. */
struct tracked *tracked_add(void *address, struct block *block);

/* The tracked block at an address; NULL where none is. */
struct tracked *tracked_find(const void *address);

/* A block is tracked no more. That of a slab is dead then; the note of another one stays as it
 * is. */
void tracked_remove(struct tracked *tracked);

/* Where slabs are: nothing outside of this is in one. */
extern uintptr_t slabs_begin, slabs_span;

/* The slab that an address is in, or NULL. */
struct slab *slab_among_all(const void *address);

static inline struct slab *slab_of(const void *address)
{
    return __builtin_expect((uintptr_t)address - slabs_begin < slabs_span, 0) ? slab_among_all(address) : NULL;
}

/* As the functions of the pool of like names, for a block of either. */
struct block *block_at(void *address);
void *block_find(const void *address);
size_t block_room(void *address);
void block_resize(void *address, size_t nbytes);

#endif
