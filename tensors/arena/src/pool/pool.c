#define _GNU_SOURCE
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../../scopes/src/shared/clock.h"
#include "../compiler.h"
#include "pages.h"
#include "poison.h"

/* ================================================================== regions */

/* A region is a piece of memory from the system. It begins at a multiple of REGION_ALIGNMENT, and
 * every block begins in the first REGION_ALIGNMENT bytes of its region, so that the region of a
 * block is found from the block's address. Free regions are in a cache. */

#define REGION_ALIGNMENT ((size_t)1 << 20)  /* bytes */
#define HEADER_NBYTES ((size_t)128)         /* the place of the header at the beginning of a region */
#define LARGE_CLASSES 240                   /* 8 for each doubling, from 128 KiB up to what an address can hold */
#define FIRST_PLACES ((size_t)4096)         /* a large block begins in the first so many bytes of its region */
#define LARGEST_FROM_LIBC ((size_t)1 << 30) /* the largest region, in bytes, that is taken from the C library */
#define DECAY_MS 1000                       /* the high-water marks sink at most so often */
#define IDLE_MS 10000                       /* cached regions that were not used for so long are given back */
#define SPARE_NBYTES ((size_t)8 << 20)      /* so many bytes may be cached in any case */

enum region_kind { SLAB, LARGE };

/* The header of a region. */
struct region {
    uint32_t mark;        /* region_mark(kind); anything else means that an address is no block of the arena */
    uint16_t kind;        /* enum region_kind */
    uint16_t class;       /* the size class: slab_class() or large_class() */
    uint8_t fresh;        /* bytes that were never handed out are still zero */
    uint8_t from_libc;    /* from heap_allocate, because the system refused another mapping */
    uint16_t cached;      /* whether it is in the cache: not in use */
    uint32_t live;        /* slab: how many blocks are in use */
    uint32_t carved;      /* slab: how many blocks have been handed out at least once */
    uint32_t capacity;    /* slab: how many blocks fit */
    uint32_t free_head;   /* slab: index of the first free block, plus one; 0 for none */
    uint32_t reciprocal;  /* slab: ceil(2**32 / block_nbytes), to divide by multiplication */
    uint32_t data_offset; /* from the region's beginning to the first block */
    size_t block_nbytes;  /* slab: the bytes of each block */
    size_t mapped;        /* the bytes of the region */
    struct region *next, *prev;   /* the list of slabs of a class with free blocks, or of cached large regions */
    struct region *older, *newer; /* the list of cached regions, in the order in which they were cached */
    struct region *before, *after; /* the list of all regions, the newest mapping first */
    uint64_t since_ms;    /* cached: since when */
    struct block large;   /* large: the block */
};
_Static_assert(sizeof(struct region) <= HEADER_NBYTES, "the header of a region must fit its place");

/* The regions of one kind, in bytes: in use, cached, the decaying high-water mark of bytes in use,
 * and the most in use since the mark sank last. The ends of the list of cached regions. */
struct meter {
    size_t live, cached, high_water, recent_peak;
    struct region *oldest, *newest;
};

static struct meter meters[2]; /* by enum region_kind */
static struct region *cached_large[LARGE_CLASSES]; /* cached regions of large blocks, by class */
static struct region *all_regions;
/* The bytes of free blocks in slabs, cached or not, without those that were never handed out. */
static size_t free_in_slabs;
uint64_t pool_misses;
/* When the high-water marks sank last, and how far tests have advanced the clock. */
static uint64_t aged_ms, ahead_ms;

static uint64_t now_ms(void) { return clock_ms() + ahead_ms; }

void pool_advance_clock(uint64_t ms) { ahead_ms += ms; }

RARELY_CALLED static _Noreturn void end_for(const char *what, const void *address)
{
    fprintf(stderr, "disposescope: %s %p\n", what, address);
    abort();
}

static inline uint32_t region_mark(enum region_kind kind) { return 0x64734152u + (uint32_t)kind; }

/* The region of a block. Ends the process if there is none. */
static inline struct region *region_of(void *address)
{
    struct region *region = (struct region *)((uintptr_t)address & ~(REGION_ALIGNMENT - 1));
    if (UNLIKELY(region->mark - region_mark(SLAB) > LARGE)) {
        end_for("no block of the arena:", address);
    }
    return region;
}

/* ------------------------------------------------------------------ the system */

/* A new region. The fields of its header that are not set here are zero. NULL if the system
 * refuses. */
static struct region *map(enum region_kind kind, size_t nbytes)
{
    bool huge = kind == LARGE && nbytes >= HUGE_FROM;
    size_t alignment = huge ? HUGE_PAGE : REGION_ALIGNMENT;
    struct region *region;
    void *begin = pages_map(nbytes, alignment);
    if (begin != NULL) {
        region = begin;
        region->fresh = true;
    }
    else {
        /* The system may refuse one more mapping (vm.max_map_count) while it has memory, which the
         * C library's heap can get. */
        if (nbytes > LARGEST_FROM_LIBC) {
            return NULL;
        }
        region = heap_allocate((nbytes + REGION_ALIGNMENT - 1) & ~(REGION_ALIGNMENT - 1), REGION_ALIGNMENT);
        if (region == NULL) {
            return NULL;
        }
        memset(region, 0, sizeof *region);
        region->from_libc = true;
    }
    region->mark = region_mark(kind);
    region->kind = (uint16_t)kind;
    region->mapped = nbytes;
    region->before = NULL;
    region->after = all_regions;
    if (all_regions != NULL) {
        all_regions->before = region;
    }
    all_regions = region;
    return region;
}

static void unmap(struct region *region)
{
    SHOW(region, region->mapped);
    region->mark = 0;
    if (region->before != NULL) {
        region->before->after = region->after;
    }
    else {
        all_regions = region->after;
    }
    if (region->after != NULL) {
        region->after->before = region->before;
    }
    if (region->from_libc) {
        heap_free(region);
    }
    else {
        pages_unmap(region, region->mapped);
    }
}

/* ------------------------------------------------------------------ lists and the cache */

/* Put a region at the head of a list of one class. */
static void region_link(struct region **list, struct region *region)
{
    region->prev = NULL;
    region->next = *list;
    if (*list != NULL) {
        (*list)->prev = region;
    }
    *list = region;
}

/* Take a region out of a list of one class. */
static void region_unlink(struct region **list, struct region *region)
{
    if (region->prev != NULL) {
        region->prev->next = region->next;
    }
    else {
        *list = region->next;
    }
    if (region->next != NULL) {
        region->next->prev = region->prev;
    }
    region->next = region->prev = NULL;
}

/* Count bytes as in use. */
static void into_use(struct meter *meter, size_t nbytes)
{
    meter->live += nbytes;
    if (meter->live > meter->recent_peak) {
        meter->recent_peak = meter->live;
        if (meter->live > meter->high_water) {
            meter->high_water = meter->live;
        }
    }
}

/* Take a region out of the cache. */
static void from_cache(struct region *region)
{
    struct meter *meter = &meters[region->kind];
    if (region->older != NULL) {
        region->older->newer = region->newer;
    }
    else {
        meter->oldest = region->newer;
    }
    if (region->newer != NULL) {
        region->newer->older = region->older;
    }
    else {
        meter->newest = region->older;
    }
    region->older = region->newer = NULL;
    region->cached = false;
    meter->cached -= region->mapped;
    if (region->kind == LARGE) {
        region_unlink(&cached_large[region->class], region);
    }
}

/* Give cached regions back to the system until the bytes in use and cached are within a bound, and
 * all regions that were not used since a time.
 *
 * For the bound, the newest and the oldest region are given back in turns. If it were always the
 * oldest one, a program whose steps cycle through a little more than fits would lose each region
 * just before it needs it again. If it were never the oldest one, regions of sizes that are not
 * needed any more would stay. */
static void shrink(struct meter *meter, size_t bound, uint64_t unused_since_ms)
{
    static bool newest;
    for (;;) {
        struct region *region = meter->oldest;
        if (region == NULL) {
            return;
        }
        if (region->since_ms >= unused_since_ms) {
            if (meter->live + meter->cached <= bound) {
                return;
            }
            newest = !newest;
            region = newest ? meter->newest : region;
        }
        from_cache(region);
        if (region->kind == SLAB) {
            free_in_slabs -= region->carved * region->block_nbytes;
        }
        unmap(region);
    }
}

static size_t bound_of(const struct meter *meter)
{
    return meter->high_water + meter->high_water / 4 + SPARE_NBYTES;
}

/* Do what pool_decay() says. */
static void age(uint64_t now)
{
    aged_ms = now;
    for (int kind = SLAB; kind <= LARGE; kind++) {
        struct meter *meter = &meters[kind];
        size_t excess = meter->high_water - meter->recent_peak;
        meter->high_water -= excess < page_nbytes() ? excess : excess / 4;
        meter->recent_peak = meter->live;
        shrink(meter, bound_of(meter), now > IDLE_MS ? now - IDLE_MS : 0);
    }
}

/* Take a region out of the cache into use. */
static void region_reuse(struct region *region)
{
    from_cache(region);
    into_use(&meters[region->kind], region->mapped);
}

/* Put a region that is not in use any more into the cache, or give it back. */
static void region_retire(struct region *region)
{
    struct meter *meter = &meters[region->kind];
    meter->live -= region->mapped;
    meter->cached += region->mapped;
    region->cached = true;
    region->since_ms = now_ms();
    region->newer = NULL;
    region->older = meter->newest;
    if (meter->newest != NULL) {
        meter->newest->newer = region;
    }
    else {
        meter->oldest = region;
    }
    meter->newest = region;
    if (region->kind == LARGE) {
        region_link(&cached_large[region->class], region);
    }
    if (region->since_ms - aged_ms >= DECAY_MS) {
        age(region->since_ms);
    }
    else {
        shrink(meter, bound_of(meter), 0);
    }
}

/* Give all cached regions back. */
static void regions_empty(void)
{
    for (int kind = SLAB; kind <= LARGE; kind++) {
        shrink(&meters[kind], 0, 0);
        meters[kind].high_water = meters[kind].recent_peak = meters[kind].live;
    }
}

/* A new region, in use; NULL if the system refuses. */
static struct region *region_new(enum region_kind kind, size_t nbytes)
{
    pool_misses++;
    struct region *region = map(kind, nbytes);
    if (region == NULL) {
        return NULL;
    }
    /* After the mapping, so that memory which the system refuses does not raise the high-water
     * mark. */
    into_use(&meters[kind], nbytes);
    shrink(&meters[kind], bound_of(&meters[kind]), 0);
    return region;
}

/* ================================================================== guards */

/* The bytes that fill guards, freed blocks and new blocks. */
#define GUARD_BYTE 0xFD
#define FREED_BYTE 0xDD
#define BORN_BYTE 0xCD
#define GUARD_NBYTES ((size_t)32) /* behind each block */

bool guards_wanted;

/* Put the guard behind the bytes of a block. */
static void guards_put(void *address, size_t nbytes) { memset((char *)address + nbytes, GUARD_BYTE, GUARD_NBYTES); }

/* Fill a block that is born, and put the guard behind it. */
static void guards_dress(void *address, size_t nbytes)
{
    memset(address, BORN_BYTE, nbytes);
    guards_put(address, nbytes);
}

/* Check the guard of a block that is freed, and fill the block. */
static void guards_undress(void *address, size_t nbytes)
{
    const unsigned char *guard = (const unsigned char *)address + nbytes;
    for (size_t i = 0; i < GUARD_NBYTES; i++) {
        if (guard[i] != GUARD_BYTE) {
            end_for("written past the end of a block of the arena:", address);
        }
    }
    memset(address, FREED_BYTE, nbytes);
}

/* Check that a freed block was not written to. */
static void guards_check(const void *address, size_t nbytes)
{
    const unsigned char *bytes = address;
    for (size_t i = 0; i < nbytes; i++) {
        if (bytes[i] != FREED_BYTE) {
            end_for("written after it was freed, a block of the arena:", address);
        }
    }
}

/* ================================================================== slabs */

/* Slabs are regions with blocks of one size class, of up to LARGEST_IN_SLAB bytes. The block that
 * was freed last is handed out first, because it is probably in the CPU's cache. A slab without
 * blocks in use goes to the cache of regions, except the last one of its class. */

#define SLAB_NBYTES REGION_ALIGNMENT
#define LARGEST_IN_SLAB ((size_t)128 << 10) /* bytes */
#define LARGEST_OF_STEPS ((size_t)512)      /* up to so many bytes the size classes are 64 bytes apart */
#define SLAB_CLASSES 40 /* 8 up to LARGEST_OF_STEPS, then 4 for each doubling up to LARGEST_IN_SLAB */

static struct region *with_room[SLAB_CLASSES]; /* by class: slabs in use with free blocks */

/* The class of a block of 1 to LARGEST_IN_SLAB bytes. */
static inline size_t slab_class(size_t nbytes)
{
    if (nbytes <= LARGEST_OF_STEPS) {
        return (nbytes - 1) / 64;
    }
    unsigned log = highest_bit(nbytes - 1);
    return 8 + (log - 9) * 4 + (((nbytes - 1) >> (log - 2)) & 3);
}

/* The array of blocks' records, which comes behind the header. The blocks themselves begin at
 * `data_offset`. */
static inline struct block *blocks_of(struct region *slab) { return (struct block *)((char *)slab + HEADER_NBYTES); }

/* The index of the block at an address. */
static inline uint32_t index_in(const struct region *slab, const void *address)
{
    uint64_t offset = (uint64_t)((const char *)address - (const char *)slab) - slab->data_offset;
    return (uint32_t)((offset * slab->reciprocal) >> 32);
}

/* The bytes of the blocks of a class. */
static size_t slab_class_nbytes(size_t class)
{
    if (class < 8) {
        return (class + 1) * (size_t)64;
    }
    size_t log = 9 + (class - 8) / 4;
    return ((size_t)5 + (class - 8) % 4) << (log - 2);
}

/* Divide a slab into blocks of a class. */
static void cut(struct region *slab, size_t class)
{
    size_t nbytes = slab_class_nbytes(class);
    uint32_t capacity = (uint32_t)((SLAB_NBYTES - HEADER_NBYTES) / (nbytes + sizeof(struct block)));
    size_t offset;
    for (;;) {
        offset = (HEADER_NBYTES + capacity * sizeof(struct block) + ARENA_ALIGNMENT - 1) & ~(ARENA_ALIGNMENT - 1);
        if (offset + capacity * nbytes <= SLAB_NBYTES) {
            break;
        }
        capacity--;
    }
    slab->class = (uint16_t)class;
    slab->block_nbytes = nbytes;
    slab->capacity = capacity;
    slab->data_offset = (uint32_t)offset;
    slab->reciprocal = (uint32_t)((((uint64_t)1 << 32) + nbytes - 1) / nbytes);
    slab->live = slab->carved = slab->free_head = 0;
}

/* A slab for a class, from the cache or new, with all of its blocks free. NULL if the system
 * refuses memory. */
NEVER_INLINE static struct region *slab_for(size_t class)
{
    struct region *slab = meters[SLAB].newest;
    if (slab != NULL) {
        region_reuse(slab);
        free_in_slabs -= slab->carved * slab->block_nbytes;
        slab->fresh = false;
    }
    else {
        slab = region_new(SLAB, SLAB_NBYTES);
        if (slab == NULL) {
            return NULL;
        }
    }
    cut(slab, class);
    /* The records of blocks may lie where blocks of another class were before. */
    SHOW(slab, slab->data_offset);
    HIDE((char *)slab + slab->data_offset, slab->mapped - slab->data_offset);
    region_link(&with_room[class], slab);
    return slab;
}

/* Take a block from a slab: see pool_take. */
static void *slabs_take(size_t class, struct block **block, bool *dirty)
{
    struct region *slab = with_room[class];
    if (slab == NULL && (slab = slab_for(class)) == NULL) {
        return NULL;
    }
    struct block *blocks = blocks_of(slab);
    uint32_t index;
    if (slab->free_head != 0) {
        index = slab->free_head - 1;
        slab->free_head = (uint32_t)blocks[index].word;
        free_in_slabs -= slab->block_nbytes;
        *dirty = true;
        if (guards_wanted) {
            char *freed = (char *)slab + slab->data_offset + index * slab->block_nbytes;
            SHOW(freed, blocks[index].nbytes);
            guards_check(freed, blocks[index].nbytes);
        }
    }
    else {
        index = slab->carved++;
        *dirty = !slab->fresh;
    }
    slab->live++;
    if (slab->free_head == 0 && slab->carved == slab->capacity) {
        region_unlink(&with_room[class], slab);
    }
    *block = &blocks[index];
    return (char *)slab + slab->data_offset + index * slab->block_nbytes;
}

/* Give a block back to its slab. */
static void slabs_give(struct region *slab, void *address)
{
    uint32_t index = index_in(slab, address);
    struct block *block = &blocks_of(slab)[index];
    if (slab->free_head == 0 && slab->carved == slab->capacity) {
        region_link(&with_room[slab->class], slab);
    }
    block->word = slab->free_head;
    slab->free_head = index + 1;
    free_in_slabs += slab->block_nbytes;
    if (--slab->live != 0 || (with_room[slab->class] == slab && slab->next == NULL)) {
        /* The only slab of its class with room stays in use, so that a single block that comes and
         * goes does not cut a slab each time. */
        return;
    }
    region_unlink(&with_room[slab->class], slab);
    region_retire(slab);
}

/* Give the slabs without blocks in use to the cache. */
static void slabs_retire(void)
{
    for (size_t class = 0; class < SLAB_CLASSES; class++) {
        for (struct region *slab = with_room[class], *next; slab != NULL; slab = next) {
            next = slab->next;
            if (slab->live == 0) {
                region_unlink(&with_room[class], slab);
                region_retire(slab);
            }
        }
    }
}

/* ================================================================== the pool */

#define LARGEST_REQUEST ((size_t)1 << 46) /* bytes; larger requests are refused at once */
/* From so many bytes on, a block is cleared by giving its pages back: the system clears those that
 * are touched again. Measured: at 16 MiB a memset takes half the time if all is used afterwards, at
 * 64 MiB both take the same; pages that are never used cost a quarter. */
#define DISCARD_FROM ((size_t)32 << 20)
/* Large blocks begin in turns at one of 7 places in the first page of their region. Otherwise the
 * distances between the arrays of one expression would be multiples of REGION_ALIGNMENT, so that
 * they would contend for the same sets of the CPU's caches and the same memory banks. Measured:
 * this saves up to a tenth of the time from 2 MiB on. */
#define PLACES 7
#define PLACE_STEP (9 * ARENA_ALIGNMENT)
_Static_assert(HEADER_NBYTES + (PLACES - 1) * PLACE_STEP < FIRST_PLACES,
               "the places of large blocks must be in their part of the region");

/* ------------------------------------------------------------------ large blocks */

/* The class of a region of `nbytes`, and the bytes of a region of that class. */
static inline unsigned large_class(size_t nbytes, size_t *rounded)
{
    unsigned log = highest_bit(nbytes - 1);
    size_t steps = (nbytes - 1) >> (log - 3);
    *rounded = (steps + 1) << (log - 3);
    return (log - 17) * 8 + (unsigned)(steps & 7);
}

static void *take_large(size_t room, struct block **block, bool *dirty)
{
    static unsigned place;
    size_t mapped;
    unsigned class = large_class(room + FIRST_PLACES, &mapped);
    struct region *region = cached_large[class];
    if (region == NULL && class + 1 < LARGE_CLASSES) {
        struct region *next = cached_large[class + 1];
        if (next != NULL && next->mapped - next->mapped / 5 <= room) {
            region = next;
        }
    }
    if (region != NULL) {
        region_reuse(region);
        *dirty = true;
        if (guards_wanted) {
            SHOW((char *)region + region->data_offset, region->large.nbytes);
            guards_check((char *)region + region->data_offset, region->large.nbytes);
        }
    }
    else {
        region = region_new(LARGE, mapped);
        if (region == NULL) {
            return NULL;
        }
        region->class = (uint16_t)class;
        region->data_offset = (uint32_t)(HEADER_NBYTES + place * PLACE_STEP);
        place = (place + 1) % PLACES;
        *dirty = !region->fresh;
        HIDE((char *)region + HEADER_NBYTES, mapped - HEADER_NBYTES);
    }
    *block = &region->large;
    return (char *)region + region->data_offset;
}

/* ------------------------------------------------------------------ blocks of any size */

static inline void *take(size_t room, struct block **block, bool *dirty)
{
    return room > LARGEST_IN_SLAB ? take_large(room, block, dirty) : slabs_take(slab_class(room), block, dirty);
}

void *pool_take(size_t nbytes, struct block **block, bool *dirty)
{
    if (nbytes > LARGEST_REQUEST) {
        return NULL;
    }
    size_t room = nbytes + (guards_wanted ? GUARD_NBYTES : 0);
    void *address = take(room, block, dirty);
    if (address == NULL) {
        pool_empty();
        address = take(room, block, dirty);
        if (address == NULL) {
            return NULL;
        }
    }
    SHOW(address, room);
    (*block)->nbytes = nbytes;
    (*block)->word = 0;
    if (guards_wanted) {
        guards_dress(address, nbytes);
        *dirty = true;
    }
    return address;
}

void pool_give(void *address)
{
    struct region *region = region_of(address);
    if (guards_wanted) {
        guards_undress(address, pool_block_at(address)->nbytes);
    }
    if (region->kind == SLAB) {
        HIDE(address, region->block_nbytes);
        slabs_give(region, address);
    }
    else {
        HIDE(address, region->mapped - region->data_offset);
        region_retire(region);
    }
}

struct block *pool_block_at(void *address)
{
    struct region *region = region_of(address);
    return region->kind == SLAB ? &blocks_of(region)[index_in(region, address)] : &region->large;
}

void *pool_find(const void *address)
{
    uintptr_t place = (uintptr_t)address;
    for (struct region *region = all_regions; region != NULL; region = region->after) {
        uintptr_t data = (uintptr_t)region + region->data_offset;
        if (place - (uintptr_t)region >= region->mapped) {
            continue;
        }
        if (region->cached || place < data) {
            return NULL;
        }
        if (region->kind == LARGE) {
            return (void *)data;
        }
        uint32_t index = (uint32_t)((place - data) / region->block_nbytes);
        /* The word of a free block is an index plus one; no address of an account is as small. */
        bool in_use = index < region->carved && blocks_of(region)[index].word > region->capacity;
        return in_use ? (void *)(data + index * region->block_nbytes) : NULL;
    }
    return NULL;
}

size_t pool_room(void *address)
{
    struct region *region = region_of(address);
    size_t room = region->kind == SLAB ? region->block_nbytes : region->mapped - region->data_offset;
    return room - (guards_wanted ? GUARD_NBYTES : 0);
}

void pool_resize(void *address, size_t nbytes)
{
    struct block *block = pool_block_at(address);
    if (guards_wanted) {
        SHOW(address, nbytes + GUARD_NBYTES);
        guards_put(address, nbytes);
    }
    else {
        size_t larger = nbytes > block->nbytes ? nbytes : block->nbytes;
        HIDE(address, larger);
        SHOW(address, nbytes);
    }
    block->nbytes = nbytes;
}

void pool_clear(void *address, size_t nbytes)
{
    if (nbytes >= DISCARD_FROM) {
        char *begin = address, *end = begin + nbytes, *first, *last;
        if (pages_discard(begin, end, &first, &last)) {
            memset(begin, 0, (size_t)(first - begin));
            memset(last, 0, (size_t)(end - last));
            return;
        }
    }
    memset(address, 0, nbytes);
}

void pool_empty(void)
{
    slabs_retire();
    regions_empty();
}

void pool_decay(void)
{
    if (now_ms() - aged_ms >= DECAY_MS) {
        slabs_retire();
        age(now_ms());
    }
}

struct pool_figures pool_figures_now(void)
{
    return (struct pool_figures){
        .cached_nbytes = free_in_slabs + meters[LARGE].cached,
        .mapped_nbytes = meters[SLAB].live + meters[SLAB].cached + meters[LARGE].live + meters[LARGE].cached,
    };
}
