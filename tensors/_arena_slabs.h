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

#include "_arena_regions.h"

#define LARGEST_IN_SLAB ((size_t)128 << 10)
#define SLAB_CLASSES 40 /* 8 by 64 bytes up to 512, then 4 for each doubling up to LARGEST_IN_SLAB */
#define PARKED_MOST 16

/* The blocks of one class that are parked, the latest last. */
struct parked {
    uint32_t count;
    uint32_t limit; /* 0 until the class is used first, and for good where nothing is to be parked */
    struct {
        void *address;
        struct block *block;
    } places[PARKED_MOST];
};

extern struct parked slabs_parked[SLAB_CLASSES];

static inline unsigned log2_below(size_t n) { return 63 - (unsigned)__builtin_clzll(n); }

/* The class of a block of 1 to LARGEST_IN_SLAB bytes. */
static inline unsigned slab_class(size_t nbytes)
{
    if (nbytes <= 512) {
        return (unsigned)((nbytes + 63) / 64) - 1;
    }
    unsigned log = log2_below(nbytes - 1);
    return 8 + (log - 9) * 4 + (unsigned)(((nbytes - 1) >> (log - 2)) & 3);
}

static inline struct block *blocks_of(struct region *slab) { return (struct block *)((char *)slab + HEADER_NBYTES); }

static inline uint32_t index_in(const struct region *slab, const void *address)
{
    uint64_t offset = (uint64_t)((const char *)address - (const char *)slab) - slab->data_offset;
    return (uint32_t)((offset * slab->reciprocal) >> 32);
}

/* A parked block of a class, or NULL. */
static inline void *slabs_unpark(unsigned class, struct block **block)
{
    struct parked *parked = &slabs_parked[class];
    if (parked->count == 0) {
        return NULL;
    }
    parked->count--;
    *block = parked->places[parked->count].block;
    return parked->places[parked->count].address;
}

/* Park a block that is in use no more; returns whether there was a place. */
static inline bool slabs_park(unsigned class, void *address, struct block *block)
{
    struct parked *parked = &slabs_parked[class];
    uint32_t count = parked->count;
    if (count >= parked->limit) {
        return false;
    }
    parked->places[count].address = address;
    parked->places[count].block = block;
    parked->count = count + 1;
    return true;
}

/* Take a block from a slab. The lock is given up and taken again where the system is asked for memory.
 *
 * block: gets what is known of the block. dirty: gets whether it may hold other bytes than zeros. doomed: gets regions that
 * are to be unmapped. NULL where the system refuses memory. */
void *slabs_take(unsigned class, struct block **block, bool *dirty, struct region **doomed);

/* Give a block back to its slab. Returns the regions to unmap. */
struct region *slabs_give(struct region *slab, void *address);

/* Give what is parked back to the slabs, and the slabs without blocks in use to the cache. Returns the regions to unmap. */
struct region *slabs_drain(void);

/* Bytes of the blocks that are parked. */
size_t slabs_parked_nbytes(void);

#endif
