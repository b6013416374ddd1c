/* Slabs: regions that hold blocks of one size class, of up to LARGEST_IN_SLAB bytes; and the parked blocks before them.
 *
 * A freed block is parked: it stays in use as far as its slab knows, and the next request of its class gets it, the latest
 * first, so that what was in the processor's cache is used again. Each class parks a few. What finds no place goes back to its
 * slab, and is reused first by it. A slab without blocks in use goes to the cache of regions, but for one of each class.
 *
 * Every function here is called with the arena's lock held.
 */
#ifndef DISPOSESCOPE_ARENA_SLABS_H
#define DISPOSESCOPE_ARENA_SLABS_H

#include "regions.h"

#define LARGEST_IN_SLAB ((size_t)128 << 10)
#define LARGEST_OF_STEPS ((size_t)512)
#define SLAB_CLASSES 40 /* 8 by 64 bytes up to LARGEST_OF_STEPS, then 4 for each doubling up to LARGEST_IN_SLAB */
#define PARKED_MOST 14 /* so that the parked blocks of a class take four cache lines */

/* The blocks of one class that are parked, the latest last. */
struct parked {
    struct parked_place {
        void *address;
        struct block *block;
    } * latest, *last;                     /* the first place where nothing is parked; up to which there may be */
    struct parked_place places[1 + PARKED_MOST]; /* the first stays empty */
};

extern struct parked slabs_parked[SLAB_CLASSES];

static inline unsigned log2_below(size_t n) { return 63 - (unsigned)__builtin_clzll(n); }

/* The class of a block of 1 to LARGEST_IN_SLAB bytes: up to LARGEST_OF_STEPS, from there, and in any case. */
static inline size_t class_by_steps(size_t nbytes) { return (nbytes - 1) / 64; }

static inline size_t class_by_doublings(size_t nbytes)
{
    unsigned log = log2_below(nbytes - 1);
    return 8 + (log - 9) * 4 + (((nbytes - 1) >> (log - 2)) & 3);
}

static inline size_t slab_class(size_t nbytes)
{
    return nbytes <= LARGEST_OF_STEPS ? class_by_steps(nbytes) : class_by_doublings(nbytes);
}

static inline struct block *blocks_of(struct region *slab) { return (struct block *)((char *)slab + HEADER_NBYTES); }

static inline uint32_t index_in(const struct region *slab, const void *address)
{
    uint64_t offset = (uint64_t)((const char *)address - (const char *)slab) - slab->data_offset;
    return (uint32_t)((offset * slab->reciprocal) >> 32);
}

/* A parked block of a class, or NULL. */
static inline void *slabs_unpark(size_t class, struct block **block)
{
    struct parked *parked = &slabs_parked[class];
    struct parked_place *latest = parked->latest;
    void *address = latest->address;
    if (address != NULL) {
        *block = latest->block;
        parked->latest = latest - 1;
    }
    return address;
}

/* Park a block that is in use no more; returns whether there was a place. */
static inline bool slabs_park(size_t class, void *address, struct block *block)
{
    struct parked *parked = &slabs_parked[class];
    struct parked_place *latest = parked->latest;
    if (latest == parked->last) {
        return false;
    }
    latest[1] = (struct parked_place){.address = address, .block = block};
    parked->latest = latest + 1;
    return true;
}

/* Let nothing be parked yet. Called once, before all else here. */
void slabs_begin(void);

/* Take a block from a slab. The lock is given up and taken again where the system is asked for memory.
 *
 * block: gets what is known of the block. dirty: gets whether it may hold other bytes than zeros. doomed: gets regions that
 * are to be unmapped. NULL where the system refuses memory. */
void *slabs_take(size_t class, struct block **block, bool *dirty, struct region **doomed);

/* The same from a slab in use, without asking the system; NULL where none has room. */
void *slabs_take_at_hand(size_t class, struct block **block, bool *dirty);

/* Give a block back to its slab. Returns the regions to unmap. */
struct region *slabs_give(struct region *slab, void *address);

/* Give what is parked back to the slabs, and the slabs without blocks in use to the cache. Returns the regions to unmap. */
struct region *slabs_drain(void);

/* Bytes of the blocks that are parked. */
size_t slabs_parked_nbytes(void);

#endif
