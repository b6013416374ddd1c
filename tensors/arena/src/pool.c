#define _GNU_SOURCE
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "accounts.h"

/* ================================================================== regions */

#define PAGE ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_FROM ((size_t)4 << 20) /* as NumPy's own threshold for transparent huge pages */
#define LARGEST_FROM_LIBC ((size_t)1 << 30)
#define DECAY_MS 1000
#define IDLE_MS 10000
#define SPARE_NBYTES ((size_t)8 << 20)

struct meter meters[2];
struct region *cached_large[LARGE_CLASSES];
size_t free_in_slabs;
uint64_t regions_misses;
static uint64_t aged_ms, ahead_ms;

static uint64_t now_ms(void)
{
    struct timespec now;
#ifdef CLOCK_MONOTONIC_COARSE
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000 + ahead_ms;
}

void regions_pass_time(uint64_t ms) { ahead_ms += ms; }

void regions_abort(const void *address)
{
    fprintf(stderr, "disposescope: %p is no block of the arena\n", address);
    abort();
}

/* ------------------------------------------------------------------ the system */

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
        /* The system may refuse one more mapping (vm.max_map_count) while it has memory, which the C library's heap can get. */
        if (nbytes > LARGEST_FROM_LIBC) {
            return NULL;
        }
        region = aligned_alloc(REGION_ALIGNMENT, (nbytes + REGION_ALIGNMENT - 1) & ~(REGION_ALIGNMENT - 1));
        if (region == NULL) {
            return NULL;
        }
        memset(region, 0, sizeof *region);
        region->from_libc = true;
    }
    region->mark = region_mark(kind);
    region->kind = (uint16_t)kind;
    region->mapped = nbytes;
    return region;
}

void regions_unmap(struct region *doomed)
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

void region_link(struct region **list, struct region *region)
{
    region->prev = NULL;
    region->next = *list;
    if (*list != NULL) {
        (*list)->prev = region;
    }
    *list = region;
}

void region_unlink(struct region **list, struct region *region)
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

/* Take regions out of the cache until it is within bounds, and those that were not used since a time.
 *
 * For the bound, the newest and the oldest in turns: by age alone, a program whose steps cycle through a little more than fits
 * would lose each region just before it needs it again; without it, sizes that are needed no more would stay. */
static struct region *shrink(struct meter *meter, size_t bound, uint64_t unused_since_ms, struct region *doomed)
{
    static bool newest;
    for (;;) {
        struct region *region = meter->oldest;
        if (region == NULL) {
            return doomed;
        }
        if (region->since_ms >= unused_since_ms) {
            if (meter->live + meter->cached <= bound) {
                return doomed;
            }
            newest = !newest;
            region = newest ? meter->newest : region;
        }
        from_cache(region);
        if (region->kind == SLAB) {
            free_in_slabs -= region->carved * region->block_nbytes;
        }
        region->next = doomed;
        doomed = region;
    }
}

static size_t bound_of(const struct meter *meter)
{
    return meter->high_water + meter->high_water / 4 + SPARE_NBYTES;
}

static struct region *age(uint64_t now, struct region *doomed)
{
    aged_ms = now;
    for (int kind = SLAB; kind <= LARGE; kind++) {
        struct meter *meter = &meters[kind];
        size_t excess = meter->high_water - meter->recent_peak;
        meter->high_water -= excess < PAGE ? excess : excess / 4;
        meter->recent_peak = meter->live;
        doomed = shrink(meter, bound_of(meter), now > IDLE_MS ? now - IDLE_MS : 0, doomed);
    }
    return doomed;
}

struct region *regions_age(struct region *doomed) { return age(now_ms(), doomed); }

bool regions_due(void) { return now_ms() - aged_ms >= DECAY_MS; }

void region_reuse(struct region *region)
{
    from_cache(region);
    into_use(&meters[region->kind], region->mapped);
}

struct region *region_retire(struct region *region)
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
        return age(region->since_ms, NULL);
    }
    return shrink(meter, bound_of(meter), 0, NULL);
}

struct region *regions_empty(struct region *doomed)
{
    for (int kind = SLAB; kind <= LARGE; kind++) {
        doomed = shrink(&meters[kind], 0, 0, doomed);
        meters[kind].high_water = meters[kind].recent_peak = meters[kind].live;
    }
    return doomed;
}

struct region *region_new(enum region_kind kind, size_t nbytes, struct region **doomed)
{
    regions_misses++;
    arena_unlock();
    struct region *region = map(kind, nbytes);
    arena_lock();
    if (region == NULL) {
        return NULL;
    }
    /* Not before: what the system refuses must not count as having been needed. */
    into_use(&meters[kind], nbytes);
    *doomed = shrink(&meters[kind], bound_of(&meters[kind]), 0, *doomed);
    return region;
}

/* ================================================================== guards */

#define GUARD_BYTE 0xFD
#define FREED_BYTE 0xDD
#define BORN_BYTE 0xCD

bool guards_wanted;

static void corrupt(const char *what, const void *address)
{
    fprintf(stderr, "disposescope: %s block %p of the arena\n", what, address);
    abort();
}

void guards_dress(void *address, size_t nbytes)
{
    memset(address, BORN_BYTE, nbytes);
    guards_move(address, nbytes);
}

void guards_move(void *address, size_t nbytes) { memset((char *)address + nbytes, GUARD_BYTE, GUARD_NBYTES); }

void guards_undress(void *address, size_t nbytes)
{
    const unsigned char *guard = (const unsigned char *)address + nbytes;
    for (size_t i = 0; i < GUARD_NBYTES; i++) {
        if (guard[i] != GUARD_BYTE) {
            corrupt("written past the end of", address);
        }
    }
    memset(address, FREED_BYTE, nbytes);
}

void guards_check(const void *address, size_t nbytes)
{
    const unsigned char *bytes = address;
    for (size_t i = 0; i < nbytes; i++) {
        if (bytes[i] != FREED_BYTE) {
            corrupt("written after it was freed, the", address);
        }
    }
}

/* ================================================================== slabs */

#define SLAB_NBYTES REGION_ALIGNMENT
#define PARKED_NBYTES ((size_t)256 << 10)

struct parked slabs_parked[SLAB_CLASSES];
static struct region *with_room[SLAB_CLASSES]; /* in use, with free blocks */

static size_t slab_class_nbytes(size_t class)
{
    if (class < 8) {
        return (class + 1) * (size_t)64;
    }
    size_t log = 9 + (class - 8) / 4;
    return ((size_t)5 + (class - 8) % 4) << (log - 2);
}

void slabs_begin(void)
{
    for (size_t class = 0; class < SLAB_CLASSES; class++) {
        slabs_parked[class].latest = slabs_parked[class].last = slabs_parked[class].places;
    }
}

/* Let blocks of a class be parked from now on. With guards every block passes through its slab, where it is looked at. */
static void begin_to_park(size_t class)
{
    size_t most = PARKED_NBYTES / slab_class_nbytes(class);
    if (!guards_wanted) {
        slabs_parked[class].last = slabs_parked[class].places + (most < PARKED_MOST ? most : PARKED_MOST);
    }
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

void *slabs_take(size_t class, struct block **block, bool *dirty, struct region **doomed)
{
    struct region *slab = with_room[class];
    if (slab == NULL) {
        begin_to_park(class);
        slab = meters[SLAB].newest;
        if (slab != NULL) {
            region_reuse(slab);
            free_in_slabs -= slab->carved * slab->block_nbytes;
            slab->fresh = false;
        }
        else {
            slab = region_new(SLAB, SLAB_NBYTES, doomed);
            if (slab == NULL) {
                return NULL;
            }
        }
        cut(slab, class);
        /* Another class before may have had its blocks where what is known of the blocks is now. */
        SHOW(slab, slab->data_offset);
        HIDE((char *)slab + slab->data_offset, slab->mapped - slab->data_offset);
        region_link(&with_room[class], slab);
    }
    return slabs_take_at_hand(class, block, dirty);
}

void *slabs_take_at_hand(size_t class, struct block **block, bool *dirty)
{
    struct region *slab = with_room[class];
    if (slab == NULL) {
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

struct region *slabs_give(struct region *slab, void *address)
{
    uint32_t index = index_in(slab, address);
    struct block *block = &blocks_of(slab)[index];
    if (slab->free_head == 0 && slab->carved == slab->capacity) {
        region_link(&with_room[slab->class], slab);
    }
    block->word = slab->free_head;
    slab->free_head = index + 1;
    free_in_slabs += slab->block_nbytes;
    if (--slab->live != 0) {
        return NULL;
    }
    if (with_room[slab->class] == slab && slab->next == NULL) {
        /* The only one with room for its class: it stays, so that a single block that comes and goes costs no cutting. */
        return NULL;
    }
    region_unlink(&with_room[slab->class], slab);
    return region_retire(slab);
}

struct region *slabs_drain(void)
{
    struct region *doomed = NULL;
    for (size_t class = 0; class < SLAB_CLASSES; class++) {
        struct block *block;
        void *address;
        while ((address = slabs_unpark(class, &block)) != NULL) {
            doomed = regions_join(slabs_give(region_of(address), address), doomed);
        }
        for (struct region *slab = with_room[class], *next; slab != NULL; slab = next) {
            next = slab->next;
            if (slab->live == 0) {
                region_unlink(&with_room[class], slab);
                doomed = regions_join(region_retire(slab), doomed);
            }
        }
    }
    return doomed;
}

size_t slabs_parked_nbytes(void)
{
    size_t nbytes = 0;
    for (size_t class = 0; class < SLAB_CLASSES; class++) {
        nbytes += (size_t)(slabs_parked[class].latest - slabs_parked[class].places) * slab_class_nbytes(class);
    }
    return nbytes;
}

/* ================================================================== the pool */

#define LARGEST_REQUEST ((size_t)1 << 46)
/* From here on the system clears dirty pages cheaper, when and if they are touched. Measured: at 16 MiB a memset takes half the
 * time where all is used afterwards, at 64 MiB both take the same, and what is never used costs a quarter. */
#define DISCARD_FROM ((size_t)32 << 20)
/* Large blocks begin at one of these places in the first page of their region, in turns: the arrays of one expression would
 * otherwise lie at one distance from each other, a multiple of REGION_ALIGNMENT, and contend for the same sets of the caches
 * and the same banks of the memory. Measured: up to a tenth of the time from 2 MiB on. */
#define PLACES 7
#define PLACE_STEP (9 * ARENA_ALIGNMENT)
_Static_assert(HEADER_NBYTES + (PLACES - 1) * PLACE_STEP < PAGE, "the places of large blocks must be in the first page");

/* ------------------------------------------------------------------ large blocks */

static inline unsigned large_class(size_t nbytes, size_t *rounded)
{
    unsigned log = log2_below(nbytes - 1);
    size_t steps = (nbytes - 1) >> (log - 3);
    *rounded = (steps + 1) << (log - 3);
    return (log - 17) * 8 + (unsigned)(steps & 7);
}

static void *take_large(size_t room, struct block **block, bool *dirty, struct region **doomed)
{
    static unsigned place;
    size_t mapped;
    unsigned class = large_class(room + PAGE, &mapped);
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
        region = region_new(LARGE, mapped, doomed);
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

static void *take(size_t room, struct block **block, bool *dirty, struct region **doomed)
{
    if (room > LARGEST_IN_SLAB) {
        return take_large(room, block, dirty, doomed);
    }
    size_t class = slab_class(room);
    void *parked = slabs_unpark(class, block);
    if (parked != NULL) {
        *dirty = true;
        return parked;
    }
    return slabs_take(class, block, dirty, doomed);
}

void *pool_take(size_t nbytes, struct block **block, bool *dirty, struct region **doomed)
{
    if (nbytes > LARGEST_REQUEST) {
        return NULL;
    }
    size_t room = nbytes + (guards_wanted ? GUARD_NBYTES : 0);
    void *address = take(room, block, dirty, doomed);
    if (address == NULL) {
        struct region *cached = regions_join(pool_empty(), *doomed);
        *doomed = NULL;
        arena_unlock();
        regions_unmap(cached);
        arena_lock();
        address = take(room, block, dirty, doomed);
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

struct region *pool_give(void *address)
{
    struct region *region = region_of(address);
    if (guards_wanted) {
        guards_undress(address, pool_block_at(address)->nbytes);
    }
    if (region->kind == SLAB) {
        HIDE(address, region->block_nbytes);
        if (slabs_park(region->class, address, pool_block_at(address))) {
            return NULL;
        }
        return slabs_give(region, address);
    }
    HIDE(address, region->mapped - region->data_offset);
    return region_retire(region);
}

struct block *pool_block_at(void *address)
{
    struct region *region = region_of(address);
    return region->kind == SLAB ? &blocks_of(region)[index_in(region, address)] : &region->large;
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
        guards_move(address, nbytes);
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
        char *begin = address, *end = begin + nbytes;
        char *first = (char *)(((uintptr_t)begin + PAGE - 1) & ~(PAGE - 1)), *last = (char *)((uintptr_t)end & ~(PAGE - 1));
        if (madvise(first, (size_t)(last - first), MADV_DONTNEED) == 0) {
            memset(begin, 0, (size_t)(first - begin));
            memset(last, 0, (size_t)(end - last));
            return;
        }
    }
    memset(address, 0, nbytes);
}

struct region *pool_empty(void) { return regions_empty(slabs_drain()); }

struct region *pool_decay(void) { return regions_due() ? regions_age(slabs_drain()) : NULL; }

struct pool_figures pool_tell(void)
{
    return (struct pool_figures){
        .cached_nbytes = slabs_parked_nbytes() + free_in_slabs + meters[LARGE].cached,
        .mapped_nbytes = meters[SLAB].live + meters[SLAB].cached + meters[LARGE].live + meters[LARGE].cached,
        .misses = regions_misses,
    };
}
