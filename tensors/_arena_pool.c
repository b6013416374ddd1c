#define _GNU_SOURCE
#include "_arena_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "_arena_lock.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define HIDE(address, nbytes) ASAN_POISON_MEMORY_REGION(address, nbytes)
#define SHOW(address, nbytes) ASAN_UNPOISON_MEMORY_REGION(address, nbytes)
#else
#define HIDE(address, nbytes) ((void)(address), (void)(nbytes))
#define SHOW(address, nbytes) ((void)(address), (void)(nbytes))
#endif

#define PAGE ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_FROM ((size_t)4 << 20) /* as NumPy's own threshold for transparent huge pages */
#define SLAB_NBYTES REGION_ALIGNMENT
#define HEADER_NBYTES ((size_t)128)
#define SLAB_CLASSES 40 /* 8 by 64 bytes up to 512, then 4 for each doubling up to LARGEST_IN_SLAB */
#define LARGE_CLASSES 240 /* 8 for each doubling, from 128 KiB up to what an address can hold */
#define LARGEST_REQUEST ((size_t)1 << 46)
#define GUARD_NBYTES ((size_t)32)
#define GUARD_BYTE 0xFD
#define FREED_BYTE 0xDD
#define BORN_BYTE 0xCD
#define DECAY_MS 1000
#define IDLE_MS 10000
#define SPARE_NBYTES ((size_t)4 << 20)
#define REGION_MARK 0x64734152u

enum region_kind { SLAB, LARGE };

/* The head of a region. The memory of the region belongs to the pool from the mapping to the unmapping. */
struct region {
    uint32_t mark;        /* REGION_MARK; anything else at this place is no region, and freeing into it is a bug */
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

static struct meter meters[2]; /* by enum region_kind */
static struct region *with_room[SLAB_CLASSES];
static struct region *cached_large[LARGE_CLASSES];
static size_t free_in_slabs; /* bytes of blocks that were handed out once and are free now */
static uint64_t hits, decayed_ms;
uint64_t pool_misses;
bool pool_debug;

static uint64_t now_ms(void)
{
    struct timespec now;
#ifdef CLOCK_MONOTONIC_COARSE
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ------------------------------------------------------------------ size classes */

static inline unsigned log2_below(size_t n) { return 63 - (unsigned)__builtin_clzll(n); }

static inline unsigned slab_class(size_t nbytes)
{
    if (nbytes <= 512) {
        return (unsigned)((nbytes + 63) / 64) - 1;
    }
    unsigned log = log2_below(nbytes - 1);
    return 8 + (log - 9) * 4 + (unsigned)(((nbytes - 1) >> (log - 2)) & 3);
}

static size_t slab_class_nbytes(unsigned class)
{
    if (class < 8) {
        return (class + 1) * (size_t)64;
    }
    unsigned log = 9 + (class - 8) / 4;
    return ((size_t)5 + (class - 8) % 4) << (log - 2);
}

static inline unsigned large_class(size_t nbytes, size_t *rounded)
{
    unsigned log = log2_below(nbytes - 1);
    size_t steps = (nbytes - 1) >> (log - 3);
    *rounded = (steps + 1) << (log - 3);
    return (log - 17) * 8 + (unsigned)(steps & 7);
}

/* ------------------------------------------------------------------ regions from the system */

static struct region *region_of(void *address)
{
    struct region *region = (struct region *)((uintptr_t)address & ~(REGION_ALIGNMENT - 1));
    if (region->mark != REGION_MARK) {
        fprintf(stderr, "disposescope: %p is no block of the arena\n", address);
        abort();
    }
    return region;
}

/* A new region, its header zero but for what is known here; without the lock. */
static struct region *map(enum region_kind kind, size_t nbytes)
{
    bool huge = kind == LARGE && nbytes >= HUGE_FROM;
    size_t alignment = huge ? HUGE_PAGE : REGION_ALIGNMENT;
    struct region *region;
    char *start = mmap(NULL, nbytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start != MAP_FAILED) {
        char *begin = (char *)(((uintptr_t)start + alignment - 1) & ~(alignment - 1));
        if (begin > start) {
            munmap(start, (size_t)(begin - start));
        }
        munmap(begin + nbytes, (size_t)(start + alignment - begin));
#ifdef MADV_HUGEPAGE
        if (huge) {
            madvise(begin, nbytes & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
        }
#endif
        region = (struct region *)begin;
        region->fresh = true;
    }
    else {
        /* The system may refuse one more mapping (vm.max_map_count) while it has memory. */
        region = aligned_alloc(REGION_ALIGNMENT, (nbytes + REGION_ALIGNMENT - 1) & ~(REGION_ALIGNMENT - 1));
        if (region == NULL) {
            return NULL;
        }
        memset(region, 0, sizeof *region);
        region->from_libc = true;
    }
    region->mark = REGION_MARK;
    region->kind = (uint16_t)kind;
    region->mapped = nbytes;
    return region;
}

void pool_unmap(struct region *doomed)
{
    while (doomed != NULL) {
        struct region *next = doomed->next;
        SHOW(doomed, doomed->mapped);
        doomed->mark = 0;
        if (doomed->from_libc) {
            free(doomed);
        }
        else {
            munmap(doomed, doomed->mapped);
        }
        doomed = next;
    }
}

/* ------------------------------------------------------------------ lists and the cache */

static void link_into(struct region **list, struct region *region)
{
    region->prev = NULL;
    region->next = *list;
    if (*list != NULL) {
        (*list)->prev = region;
    }
    *list = region;
}

static void unlink_from(struct region **list, struct region *region)
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
        unlink_from(&cached_large[region->class], region);
    }
}

/* Take regions out of the cache until it is within bounds, the longest unused first. */
static struct region *shrink(struct meter *meter, size_t bound, uint64_t born_before_ms, struct region *doomed)
{
    while (meter->oldest != NULL &&
           (meter->live + meter->cached > bound || meter->oldest->since_ms < born_before_ms)) {
        struct region *region = meter->oldest;
        from_cache(region);
        if (region->kind == SLAB) {
            free_in_slabs -= region->carved * region->block_nbytes;
        }
        region->next = doomed;
        doomed = region;
    }
    return doomed;
}

static size_t bound_of(const struct meter *meter)
{
    return meter->high_water + meter->high_water / 8 + SPARE_NBYTES;
}

/* Put a region that is not in use any more into the cache. */
static struct region *into_cache(struct region *region)
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
        link_into(&cached_large[region->class], region);
    }
    return shrink(meter, bound_of(meter), 0, NULL);
}

struct region *pool_empty(void)
{
    struct region *doomed = NULL;
    for (unsigned class = 0; class < SLAB_CLASSES; class++) {
        /* A class keeps at most one slab that is not in use, at the head or further down. */
        for (struct region *slab = with_room[class], *next; slab != NULL; slab = next) {
            next = slab->next;
            if (slab->live == 0) {
                unlink_from(&with_room[class], slab);
                meters[SLAB].live -= slab->mapped;
                free_in_slabs -= slab->carved * slab->block_nbytes;
                slab->next = doomed;
                doomed = slab;
            }
        }
    }
    doomed = shrink(&meters[SLAB], 0, 0, doomed);
    doomed = shrink(&meters[LARGE], 0, 0, doomed);
    for (int kind = SLAB; kind <= LARGE; kind++) {
        meters[kind].high_water = meters[kind].recent_peak = meters[kind].live;
    }
    return doomed;
}

struct region *pool_decay(void)
{
    uint64_t now = now_ms();
    if (now - decayed_ms < DECAY_MS) {
        return NULL;
    }
    decayed_ms = now;
    struct region *doomed = NULL;
    for (int kind = SLAB; kind <= LARGE; kind++) {
        struct meter *meter = &meters[kind];
        size_t excess = meter->high_water - meter->recent_peak;
        meter->high_water -= excess < PAGE ? excess : excess / 4;
        meter->recent_peak = meter->live;
        doomed = shrink(meter, bound_of(meter), now > IDLE_MS ? now - IDLE_MS : 0, doomed);
    }
    return doomed;
}

/* A region from the system; the lock is given up meanwhile. */
static struct region *new_region(enum region_kind kind, size_t nbytes, struct region **doomed)
{
    struct meter *meter = &meters[kind];
    pool_misses++;
    into_use(meter, nbytes);
    arena_unlock();
    struct region *region = map(kind, nbytes);
    if (region == NULL) {
        arena_lock();
        struct region *cached = pool_empty();
        arena_unlock();
        pool_unmap(cached);
        region = map(kind, nbytes);
    }
    arena_lock();
    if (region == NULL) {
        meter->live -= nbytes;
        return NULL;
    }
    *doomed = shrink(meter, bound_of(meter), 0, *doomed);
    return region;
}

/* ------------------------------------------------------------------ debugging */

static void corrupt(const char *what, const unsigned char *address)
{
    fprintf(stderr, "disposescope: %s block %p of the arena\n", what, (const void *)address);
    abort();
}

static void dress(unsigned char *address, size_t nbytes)
{
    memset(address, BORN_BYTE, nbytes);
    memset(address + nbytes, GUARD_BYTE, GUARD_NBYTES);
}

static void undress(unsigned char *address, size_t nbytes)
{
    for (size_t i = 0; i < GUARD_NBYTES; i++) {
        if (address[nbytes + i] != GUARD_BYTE) {
            corrupt("written past the end of", address);
        }
    }
    memset(address, FREED_BYTE, nbytes);
}

static void check_untouched(const unsigned char *address, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        if (address[i] != FREED_BYTE) {
            corrupt("written after it was freed, the", address);
        }
    }
}

/* ------------------------------------------------------------------ slabs */

static inline struct block *blocks_of(struct region *slab) { return (struct block *)((char *)slab + HEADER_NBYTES); }

static void cut(struct region *slab, unsigned class)
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

static void *take_small(size_t room, struct block **block, bool *dirty, struct region **doomed)
{
    unsigned class = slab_class(room);
    struct region *slab = with_room[class];
    if (slab == NULL) {
        slab = meters[SLAB].newest;
        if (slab != NULL) {
            from_cache(slab);
            into_use(&meters[SLAB], slab->mapped);
            free_in_slabs -= slab->carved * slab->block_nbytes;
            slab->fresh = false;
            hits++;
        }
        else {
            slab = new_region(SLAB, SLAB_NBYTES, doomed);
            if (slab == NULL) {
                return NULL;
            }
        }
        cut(slab, class);
        HIDE((char *)slab + slab->data_offset, slab->mapped - slab->data_offset);
        link_into(&with_room[class], slab);
    }
    else {
        hits++;
    }
    struct block *blocks = blocks_of(slab);
    uint32_t index;
    if (slab->free_head != 0) {
        index = slab->free_head - 1;
        slab->free_head = (uint32_t)blocks[index].as.next_free;
        free_in_slabs -= slab->block_nbytes;
        *dirty = true;
        if (pool_debug) {
            char *freed = (char *)slab + slab->data_offset + index * slab->block_nbytes;
            SHOW(freed, blocks[index].nbytes);
            check_untouched((unsigned char *)freed, blocks[index].nbytes);
        }
    }
    else {
        index = slab->carved++;
        *dirty = !slab->fresh;
    }
    slab->live++;
    if (slab->free_head == 0 && slab->carved == slab->capacity) {
        unlink_from(&with_room[class], slab);
    }
    *block = &blocks[index];
    return (char *)slab + slab->data_offset + index * slab->block_nbytes;
}

static inline uint32_t index_in(const struct region *slab, const void *address)
{
    uint64_t offset = (uint64_t)((const char *)address - (const char *)slab) - slab->data_offset;
    return (uint32_t)((offset * slab->reciprocal) >> 32);
}

static struct region *give_small(struct region *slab, void *address)
{
    uint32_t index = index_in(slab, address);
    struct block *block = &blocks_of(slab)[index];
    if (slab->free_head == 0 && slab->carved == slab->capacity) {
        link_into(&with_room[slab->class], slab);
    }
    block->as.next_free = slab->free_head;
    slab->free_head = index + 1;
    free_in_slabs += slab->block_nbytes;
    if (--slab->live != 0) {
        return NULL;
    }
    if (with_room[slab->class] == slab && slab->next == NULL) {
        /* The only one with room for its class: it stays, so that a single block that comes and goes costs no cutting. */
        return NULL;
    }
    unlink_from(&with_room[slab->class], slab);
    return into_cache(slab);
}

/* ------------------------------------------------------------------ large blocks */

static void *take_large(size_t room, struct block **block, bool *dirty, struct region **doomed)
{
    size_t mapped;
    unsigned class = large_class(room + HEADER_NBYTES, &mapped);
    struct region *region = cached_large[class];
    if (region == NULL && class + 1 < LARGE_CLASSES) {
        struct region *next = cached_large[class + 1];
        if (next != NULL && next->mapped - next->mapped / 5 <= room) {
            region = next;
        }
    }
    if (region != NULL) {
        from_cache(region);
        into_use(&meters[LARGE], region->mapped);
        hits++;
        *dirty = true;
        if (pool_debug) {
            SHOW((char *)region + HEADER_NBYTES, region->large.nbytes);
            check_untouched((unsigned char *)region + HEADER_NBYTES, region->large.nbytes);
        }
    }
    else {
        region = new_region(LARGE, mapped, doomed);
        if (region == NULL) {
            return NULL;
        }
        region->class = (uint16_t)class;
        region->data_offset = HEADER_NBYTES;
        *dirty = !region->fresh;
        HIDE((char *)region + HEADER_NBYTES, mapped - HEADER_NBYTES);
    }
    *block = &region->large;
    return (char *)region + HEADER_NBYTES;
}

/* ------------------------------------------------------------------ the pool */

void *pool_take(size_t nbytes, struct block **block, bool *dirty, struct region **doomed)
{
    if (nbytes > LARGEST_REQUEST) {
        return NULL;
    }
    size_t room = nbytes + (pool_debug ? GUARD_NBYTES : 0);
    void *address = room <= LARGEST_IN_SLAB ? take_small(room, block, dirty, doomed)
                                            : take_large(room, block, dirty, doomed);
    if (address == NULL) {
        return NULL;
    }
    SHOW(address, room);
    (*block)->nbytes = nbytes;
    (*block)->recorded = false;
    if (pool_debug) {
        dress(address, nbytes);
        *dirty = true;
    }
    return address;
}

struct region *pool_give(void *address)
{
    struct region *region = region_of(address);
    if (pool_debug) {
        undress(address, pool_block_at(address)->nbytes);
    }
    if (region->kind == SLAB) {
        HIDE(address, region->block_nbytes);
        return give_small(region, address);
    }
    HIDE(address, region->mapped - HEADER_NBYTES);
    return into_cache(region);
}

struct block *pool_block_at(void *address)
{
    struct region *region = region_of(address);
    return region->kind == SLAB ? &blocks_of(region)[index_in(region, address)] : &region->large;
}

size_t pool_room(void *address)
{
    struct region *region = region_of(address);
    size_t room = region->kind == SLAB ? region->block_nbytes : region->mapped - HEADER_NBYTES;
    return room - (pool_debug ? GUARD_NBYTES : 0);
}

void pool_resize(void *address, size_t nbytes)
{
    struct block *block = pool_block_at(address);
    if (pool_debug) {
        unsigned char *bytes = address;
        SHOW(bytes, nbytes + GUARD_NBYTES);
        memset(bytes + nbytes, GUARD_BYTE, GUARD_NBYTES);
    }
    else {
        size_t larger = nbytes > block->nbytes ? nbytes : block->nbytes;
        HIDE(address, larger);
        SHOW(address, nbytes);
    }
    block->nbytes = nbytes;
}

struct pool_figures pool_tell(void)
{
    return (struct pool_figures){
        .cached_nbytes = free_in_slabs + meters[LARGE].cached,
        .mapped_nbytes = meters[SLAB].live + meters[SLAB].cached + meters[LARGE].live + meters[LARGE].cached,
        .hits = hits,
        .misses = pool_misses,
    };
}
