#define _GNU_SOURCE
#include "pool.h"

#include <string.h>
#include <sys/mman.h>

#include "guards.h"
#include "lock.h"
#include "slabs.h"

#define LARGEST_REQUEST ((size_t)1 << 46)
#define PAGE ((size_t)4096)
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
