/* Regions: memory from the system, in pieces that begin at multiples of REGION_ALIGNMENT, so that the region of a block is
 * found from its address alone; and the cache of those that are not in use.
 *
 * What is cached is bounded: regions in use and cached together stay within what was in use at once lately (a high-water
 * mark that decays), plus a quarter and a little. A region that was not reused for a while goes back to the system at the next
 * event: see regions_age.
 *
 * Every function here is called with the arena's lock held, but for regions_unmap.
 */
#ifndef DISPOSESCOPE_ARENA_POOL_H
#define DISPOSESCOPE_ARENA_POOL_H

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

/* The pool: blocks of any size, each beginning at a multiple of ARENA_ALIGNMENT.
 *
 * Blocks of up to LARGEST_IN_SLAB bytes come from slabs; a larger one has a region of its own, in whole pages. Size classes are
 * a quarter of a power of two apart for slabs and an eighth for large blocks, so that at most a quarter of a block is
 * slack (blocks of less than 256 bytes are rounded up to the alignment). A freed large block is cached by its class, and reused
 * for requests of which it is at most 5/4.
 *
 * Every function here that takes no lock itself is called with the arena's lock held, by any thread.
 */

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

/* Slabs: regions that hold blocks of one size class, of up to LARGEST_IN_SLAB bytes; and the parked blocks before them.
 *
 * A freed block is parked: it stays in use as far as its slab knows, and the next request of its class gets it, the latest
 * first, so that what was in the processor's cache is used again. Each class parks a few. What finds no place goes back to its
 * slab, and is reused first by it. A slab without blocks in use goes to the cache of regions, but for one of each class.
 *
 * Every function here is called with the arena's lock held.
 */

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

/* Guard bytes and poison, by DISPOSESCOPE_ARENA_DEBUG=1: a block is filled when it is born and when it is freed, and has bytes
 * behind it that are looked at when it is freed. What is found ends the process with a message.
 */

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
