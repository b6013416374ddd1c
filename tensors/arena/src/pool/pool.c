#define _GNU_SOURCE
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../../scopes/src/shared/clock.h"
#include "pages.h"
#include "poison.h"

/* ================================================================== regions */

/* Memory from the system, in pieces that begin at multiples of REGION_ALIGNMENT, so that the region
 * of a block is found from its address alone; and the cache of those that are not in use. */

#define REGION_ALIGNMENT ((size_t)1 << 20)
#define HEADER_NBYTES ((size_t)128)
#define LARGE_CLASSES 240 /* 8 for each doubling, from 128 KiB up to what an address can hold */
#define FIRST_PLACES ((size_t)4096) /* where a large block may begin in its region */
#define LARGEST_FROM_LIBC ((size_t)1 << 30)
#define DECAY_MS 1000
#define IDLE_MS 10000
#define SPARE_NBYTES ((size_t)8 << 20)

enum region_kind { SLAB, LARGE };

/* The head of a region. The memory of the region belongs to the pool from the mapping to the
 * unmapping. */
struct region {
    uint32_t mark;        /* region_mark(kind); with anything else here it is no region, and freeing into it a bug */
    uint16_t kind;        /* enum region_kind */
    uint16_t class;       /* of slabs or of large blocks */
    uint8_t fresh;        /* what was never carved is zero still */
    uint8_t from_libc;    /* from heap_allocate, because the system refused another mapping */
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
    struct region *before, *after; /* all regions, the newest mapping first */
    uint64_t since_ms;    /* cached: when */
    struct block large;   /* large: the block */
};
_Static_assert(sizeof(struct region) <= HEADER_NBYTES, "the header of a region must fit its place");

/* The regions of one kind: bytes in use and cached, and the bound of their sum. */
struct meter {
    size_t live, cached, high_water, recent_peak;
    struct region *oldest, *newest;
};

static struct meter meters[2]; /* by enum region_kind */
static struct region *cached_large[LARGE_CLASSES]; /* cached, by class */
static struct region *all_regions;
/* Bytes of blocks that were handed out once and are free in their slab, cached or not. */
static size_t free_in_slabs;
uint64_t pool_misses;
static uint64_t aged_ms, ahead_ms;

static uint64_t now_ms(void) { return clock_ms() + ahead_ms; }

void pool_advance_clock(uint64_t ms) { ahead_ms += ms; }

static __attribute__((noreturn, cold)) void end_for(const char *what, const void *address)
{
    fprintf(stderr, "disposescope: %s %p\n", what, address);
    abort();
}

static inline uint32_t region_mark(enum region_kind kind) { return 0x64734152u + (uint32_t)kind; }

/* The region of a block; ends the process where there is none. */
static inline struct region *region_of(void *address)
{
    struct region *region = (struct region *)((uintptr_t)address & ~(REGION_ALIGNMENT - 1));
    if (__builtin_expect(region->mark - region_mark(SLAB) > LARGE, 0)) {
        end_for("no block of the arena:", address);
    }
    return region;
}

/* ------------------------------------------------------------------ the system */

/* A new region, its header zero but for what is known here. NULL where the system refuses. */
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

/* Put a region at the head of a list of its class. */
static void region_link(struct region **list, struct region *region)
{
    region->prev = NULL;
    region->next = *list;
    if (*list != NULL) {
        (*list)->prev = region;
    }
    *list = region;
}

/* Take one out of it. */
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

/* Give regions of the cache back to the system until it is within bounds, and those that were not
 * used since a time.
 *
 * For the bound, the newest and the oldest in turns: by age alone, a program whose steps cycle
 * through a little more than fits would lose each region just before it needs it again; without it,
 * sizes that are needed no more would stay. */
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

/* Let the high-water marks sink towards what was needed since the last time, and give up what the
 * cache holds above them or has not used for a while. */
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

/* A region is not in use any more: cache it, or give it back. */
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

/* Give up all that is cached. */
static void regions_empty(void)
{
    for (int kind = SLAB; kind <= LARGE; kind++) {
        shrink(&meters[kind], 0, 0);
        meters[kind].high_water = meters[kind].recent_peak = meters[kind].live;
    }
}

/* A region from the system, in use; NULL where the system refuses. */
static struct region *region_new(enum region_kind kind, size_t nbytes)
{
    pool_misses++;
    struct region *region = map(kind, nbytes);
    if (region == NULL) {
        return NULL;
    }
    /* Not before: what the system refuses must not count as having been needed. */
    into_use(&meters[kind], nbytes);
    shrink(&meters[kind], bound_of(&meters[kind]), 0);
    return region;
}

/* ================================================================== guards */

#define GUARD_BYTE 0xFD
#define FREED_BYTE 0xDD
#define BORN_BYTE 0xCD
#define GUARD_NBYTES ((size_t)32)

bool guards_wanted;

/* Put the guard behind the bytes of a block. */
static void guards_put(void *address, size_t nbytes) { memset((char *)address + nbytes, GUARD_BYTE, GUARD_NBYTES); }

/* Fill a block that is born, and put the guard behind it. */
static void guards_dress(void *address, size_t nbytes)
{
    memset(address, BORN_BYTE, nbytes);
    guards_put(address, nbytes);
}

/* Look at the guard of a block that is freed, and poison it. */
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

/* Look whether a freed block was written to. */
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

/* Regions that hold blocks of one size class, of up to LARGEST_IN_SLAB bytes. A freed block is the
 * next that its slab hands out, so that what was in the processor's cache is used again. A slab
 * without blocks in use goes to the cache of regions, but for one of each class. */

#define SLAB_NBYTES REGION_ALIGNMENT
#define LARGEST_IN_SLAB ((size_t)128 << 10)
#define LARGEST_OF_STEPS ((size_t)512)
#define SLAB_CLASSES 40 /* 8 by 64 bytes up to LARGEST_OF_STEPS, then 4 for each doubling up to LARGEST_IN_SLAB */

static struct region *with_room[SLAB_CLASSES]; /* in use, with free blocks */

static inline unsigned log2_below(size_t n) { return 63 - (unsigned)__builtin_clzll(n); }

/* The class of a block of 1 to LARGEST_IN_SLAB bytes. */
static inline size_t slab_class(size_t nbytes)
{
    if (nbytes <= LARGEST_OF_STEPS) {
        return (nbytes - 1) / 64;
    }
    unsigned log = log2_below(nbytes - 1);
    return 8 + (log - 9) * 4 + (((nbytes - 1) >> (log - 2)) & 3);
}

static inline struct block *blocks_of(struct region *slab) { return (struct block *)((char *)slab + HEADER_NBYTES); }

static inline uint32_t index_in(const struct region *slab, const void *address)
{
    uint64_t offset = (uint64_t)((const char *)address - (const char *)slab) - slab->data_offset;
    return (uint32_t)((offset * slab->reciprocal) >> 32);
}

static size_t slab_class_nbytes(size_t class)
{
    if (class < 8) {
        return (class + 1) * (size_t)64;
    }
    size_t log = 9 + (class - 8) / 4;
    return ((size_t)5 + (class - 8) % 4) << (log - 2);
}

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

/* A slab without blocks for a class; NULL where the system refuses memory. */
static __attribute__((noinline)) struct region *slab_for(size_t class)
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
    /* Another class before may have had its blocks where what is known of the blocks is now. */
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
        /* The only one with room for its class stays, so that a single block that comes and goes
         * costs no cutting. */
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

#define LARGEST_REQUEST ((size_t)1 << 46)
/* From here on the system clears dirty pages cheaper, when and if they are touched. Measured: at 16
 * MiB a memset takes half the time where all is used afterwards, at 64 MiB both take the same, and
 * what is never used costs a quarter. */
#define DISCARD_FROM ((size_t)32 << 20)
/* Large blocks begin at one of these places in the first page of their region, in turns: the arrays
 * of one expression would otherwise lie at one distance from each other, a multiple of
 * REGION_ALIGNMENT, and contend for the same sets of the caches and the same banks of the memory.
 * Measured: up to a tenth of the time from 2 MiB on. */
#define PLACES 7
#define PLACE_STEP (9 * ARENA_ALIGNMENT)
_Static_assert(HEADER_NBYTES + (PLACES - 1) * PLACE_STEP < FIRST_PLACES,
               "the places of large blocks must be in their part of the region");

/* ------------------------------------------------------------------ large blocks */

static inline unsigned large_class(size_t nbytes, size_t *rounded)
{
    unsigned log = log2_below(nbytes - 1);
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

/* ------------------------------------------------------------------ the pool */

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
        /* The word of a free block is an index, which no address is as small as. */
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
