#include "slabs.h"

#include "guards.h"

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
