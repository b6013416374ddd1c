/* Regions: memory from the system, in pieces that begin at multiples of REGION_ALIGNMENT, so that the region of a block is
 * found from its address alone; and the cache of those that are not in use.
 *
 * What is cached is bounded: regions in use and cached together stay within what was in use at once lately (a high-water
 * mark that decays), plus a quarter and a little. A region that was not reused for a while goes back to the system at the next
 * event: see regions_age.
 *
 * Every function here is called with the arena's lock held, but for regions_unmap.
 */
#ifndef DISPOSESCOPE_ARENA_REGIONS_H
#define DISPOSESCOPE_ARENA_REGIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define HIDE(address, nbytes) ASAN_POISON_MEMORY_REGION(address, nbytes)
#define SHOW(address, nbytes) ASAN_UNPOISON_MEMORY_REGION(address, nbytes)
#else
#define HIDE(address, nbytes) ((void)(address), (void)(nbytes))
#define SHOW(address, nbytes) ((void)(address), (void)(nbytes))
#endif

#define ARENA_ALIGNMENT ((size_t)64) /* every block begins at a multiple of it */
#define REGION_ALIGNMENT ((size_t)1 << 20)
#define HEADER_NBYTES ((size_t)128)
#define LARGE_CLASSES 240 /* 8 for each doubling, from 128 KiB up to what an address can hold */

struct account;

/* What is known of one block. While it is in use: the account that it was charged to when it was born or last moved, with
 * a reference, and in the lowest bits of that address who else knows the block. While it is free: the index of the next free
 * block of its slab, plus one. */
struct block {
    uintptr_t word; /* see block_account and block_is */
    size_t nbytes;  /* as requested */
};

enum block_note {
    RECORDED = 1, /* its birth site is in the table of sites */
    LOGGED = 2,   /* its birth is in the birth log of the leak detector */
    BLOCK_NOTES = 3
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

enum region_kind { SLAB, LARGE };

/* The head of a region. The memory of the region belongs to the pool from the mapping to the unmapping. */
struct region {
    uint32_t mark;        /* region_mark(kind); anything else at this place is no region, and freeing into it is a bug */
    uint16_t kind;        /* enum region_kind */
    uint16_t class;       /* of slabs or of large blocks */
    uint8_t fresh;        /* what was never carved is zero still */
    uint8_t from_libc;    /* aligned_alloc'ed, because the system refused another mapping */
    uint16_t cached;      /* in the cache: not in use */
    uint32_t live;        /* slab: blocks in use */
    uint32_t carved;      /* slab: blocks that have been handed out at least once */
    uint32_t capacity;    /* slab: blocks that fit */
    uint32_t free_head;   /* slab: index of the first free block, plus one */
    uint32_t reciprocal;  /* slab: ceil(2**32 / block_nbytes), to divide by */
    uint32_t data_offset; /* from the region's beginning to the first block */
    size_t block_nbytes;  /* slab: of each block */
    size_t mapped;        /* bytes of the region */
    struct region *next, *prev;   /* slab in use with free blocks, or large block cached: the list of its class */
    struct region *older, *newer; /* cached: the order in which regions came into the cache */
    uint64_t since_ms;    /* cached: when */
    struct block large;   /* large: the block */
};
_Static_assert(sizeof(struct region) <= HEADER_NBYTES, "the header of a region must fit its place");

/* The regions of one kind: bytes in use and cached, and the bound of their sum. */
struct meter {
    size_t live, cached, high_water, recent_peak;
    struct region *oldest, *newest;
};

extern struct meter meters[2]; /* by enum region_kind */
extern struct region *cached_large[LARGE_CLASSES]; /* cached, by class */

/* Bytes of blocks that were handed out once and are free in their slab, cached or not. */
extern size_t free_in_slabs;

/* How often the system was asked for memory. */
extern uint64_t regions_misses;

/* The region of a block; ends the process where there is none. */
void regions_abort(const void *address) __attribute__((noreturn, cold));

static inline uint32_t region_mark(enum region_kind kind) { return 0x64734152u + (uint32_t)kind; }

static inline struct region *region_of(void *address)
{
    struct region *region = (struct region *)((uintptr_t)address & ~(REGION_ALIGNMENT - 1));
    if (__builtin_expect(region->mark - region_mark(SLAB) > LARGE, 0)) {
        regions_abort(address);
    }
    return region;
}

/* Two lists of regions, through `next`, as one. */
static inline struct region *regions_join(struct region *first, struct region *second)
{
    while (first != NULL) {
        struct region *next = first->next;
        first->next = second;
        second = first;
        first = next;
    }
    return second;
}

/* Put a region at the head of a list of its class, or take it out. */
void region_link(struct region **list, struct region *region);
void region_unlink(struct region **list, struct region *region);

/* A region from the system, in use; the lock is given up meanwhile. doomed: gets the regions that it displaces. NULL where the
 * system refuses. */
struct region *region_new(enum region_kind kind, size_t nbytes, struct region **doomed);

/* Take a region out of the cache into use. */
void region_reuse(struct region *region);

/* A region is not in use any more: cache it. Returns the regions that are to be unmapped for it. */
struct region *region_retire(struct region *region);

/* Give up all that is cached; add it to a list. */
struct region *regions_empty(struct region *doomed);

/* Whether a second has passed since it last said so. */
bool regions_due(void);

/* Let the clock of the cache go forward, so that tests need not wait. */
void regions_pass_time(uint64_t ms);

/* Let the high-water marks sink towards what was needed since the last time, and give up what the cache holds above them or
 * has not used for a while; add it to a list. */
struct region *regions_age(struct region *doomed);

/* Return regions to the system. Called without the lock. */
void regions_unmap(struct region *doomed);

#endif
