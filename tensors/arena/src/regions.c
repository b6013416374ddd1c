#define _GNU_SOURCE
#include "regions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "lock.h"

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
