/* The table of tracked blocks, and slabs: see tracked.h. */
#define _GNU_SOURCE
#include "tracked.h"

#include <stdlib.h>
#include <string.h>

#include "pool/pages.h"
#include "pool/poison.h"

/* ================================================================== the table */

/* By address: a hash table with open addressing and linear probing, at most half full. When an
 * entry is taken out, the entries behind it are shifted back. */
static struct tracked **table;
static size_t table_room, table_used; /* the room is a power of two, or 0 */

static struct tracked *spare; /* unused structs, a list linked by `next` */

/* The index where the search for an address begins. */
static size_t home_of(const void *address)
{
    uint64_t hash = ((uint64_t)(uintptr_t)address >> 6) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(hash >> 32) & (table_room - 1);
}

static void place(struct tracked *tracked)
{
    size_t at = home_of(tracked->address);
    while (table[at] != NULL) {
        at = (at + 1) & (table_room - 1);
    }
    table[at] = tracked;
}

/* Make room for one more entry. False without memory. */
static bool grow(void)
{
    if (table_used * 2 < table_room) {
        return true;
    }
    struct tracked **before = table;
    size_t count = table_room, wanted = count == 0 ? 256 : count * 2;
    struct tracked **after = calloc(wanted, sizeof *after);
    if (after == NULL) {
        return false;
    }
    table = after;
    table_room = wanted;
    for (size_t i = 0; i < count; i++) {
        if (before[i] != NULL) {
            place(before[i]);
        }
    }
    free(before);
    return true;
}

struct tracked *tracked_find(const void *address)
{
    if (table_used == 0) {
        return NULL;
    }
    size_t at = home_of(address);
    while (table[at] != NULL && table[at]->address != address) {
        at = (at + 1) & (table_room - 1);
    }
    return table[at];
}

/* A zeroed struct for an address, in the table. NULL without memory. */
static struct tracked *new_tracked(void *address)
{
    if (!grow()) {
        return NULL;
    }
    struct tracked *tracked = spare;
    if (tracked != NULL) {
        spare = tracked->next;
        memset(tracked, 0, sizeof *tracked);
    }
    else {
        tracked = calloc(1, sizeof *tracked);
        if (tracked == NULL) {
            return NULL;
        }
    }
    tracked->address = address;
    place(tracked);
    table_used++;
    return tracked;
}

static void take_out(struct tracked *tracked)
{
    size_t at = home_of(tracked->address), mask = table_room - 1;
    while (table[at] != tracked) {
        at = (at + 1) & mask;
    }
    /* Shift back entries that would not be found behind the hole. */
    for (size_t next = (at + 1) & mask; table[next] != NULL; next = (next + 1) & mask) {
        size_t home = home_of(table[next]->address);
        if (((next - home) & mask) >= ((next - at) & mask)) {
            table[at] = table[next];
            at = next;
        }
    }
    table[at] = NULL;
    table_used--;
}

struct tracked *tracked_add(void *address, struct block *block)
{
    struct tracked *tracked = new_tracked(address);
    if (tracked != NULL) {
        block_note(block, TRACKED, true);
    }
    return tracked;
}

/* ================================================================== slabs */

/* The bytes behind each block in a verified slab; and the bytes that fill them, dead memory and new
 * blocks. */
#define GUARD_NBYTES ARENA_ALIGNMENT
#define GUARD_BYTE 0xFD
#define DEAD_BYTE 0xDD
#define BORN_BYTE 0xCD

static struct slab *all_slabs;
uintptr_t slabs_begin, slabs_span;

/* Set `slabs_begin` and `slabs_span`. */
static void find_span(void)
{
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (struct slab *slab = all_slabs; slab != NULL; slab = slab->next) {
        uintptr_t base = (uintptr_t)slab->base;
        begin = base < begin ? base : begin;
        end = base + slab->nbytes > end ? base + slab->nbytes : end;
    }
    slabs_begin = end == 0 ? 0 : begin;
    slabs_span = end == 0 ? 0 : end - begin;
}

struct slab *slab_among_all(const void *address)
{
    struct slab *slab = all_slabs;
    while (slab != NULL && (uintptr_t)address - (uintptr_t)slab->base >= slab->nbytes) {
        slab = slab->next;
    }
    return slab;
}

size_t slab_room(size_t nbytes, bool verified)
{
    size_t room = (nbytes + ARENA_ALIGNMENT - 1) & ~(ARENA_ALIGNMENT - 1);
    return room + (verified ? GUARD_NBYTES : 0);
}

struct slab *slab_new(size_t nbytes, bool verified)
{
    struct slab *slab = calloc(1, sizeof *slab);
    if (slab == NULL) {
        return NULL;
    }
    nbytes = pages_up(nbytes);
    char *base = pages_map(nbytes, nbytes >= HUGE_FROM ? HUGE_PAGE : page_nbytes());
    if (base == NULL) {
        free(slab);
        return NULL;
    }
    if (verified) {
        memset(base, DEAD_BYTE, nbytes);
    }
    HIDE(base, nbytes);
    *slab = (struct slab){.references = 1, .base = base, .nbytes = nbytes, .verified = verified, .next = all_slabs};
    if (all_slabs != NULL) {
        all_slabs->previous = slab;
    }
    all_slabs = slab;
    find_span();
    return slab;
}

/* Drop a reference. */
static void slab_release(struct slab *slab)
{
    if (--slab->references != 0) {
        return;
    }
    if (slab->next != NULL) {
        slab->next->previous = slab->previous;
    }
    if (slab->previous != NULL) {
        slab->previous->next = slab->next;
    }
    else {
        all_slabs = slab->next;
    }
    find_span();
    SHOW(slab->base, slab->nbytes);
    pages_unmap(slab->base, slab->nbytes);
    free(slab);
}

static int by_address(const void *one, const void *other)
{
    const struct tracked *a = *(struct tracked *const *)one, *b = *(struct tracked *const *)other;
    return (a->address > b->address) - (a->address < b->address);
}

/* Sort the list of blocks by address. False without memory. */
static bool sort_blocks(struct slab *slab)
{
    struct tracked **sorted = malloc((slab->live_blocks + 1) * sizeof *sorted);
    if (sorted == NULL) {
        return false;
    }
    size_t count = 0;
    for (struct tracked *tracked = slab->blocks; tracked != NULL; tracked = tracked->next) {
        sorted[count++] = tracked;
    }
    qsort(sorted, count, sizeof *sorted, by_address);
    sorted[count] = NULL;
    for (size_t i = 0; i < count; i++) {
        sorted[i]->previous = i == 0 ? NULL : sorted[i - 1];
        sorted[i]->next = sorted[i + 1];
    }
    slab->blocks = sorted[0];
    free(sorted);
    return true;
}

/* Give the pages that lie wholly between two addresses back to the system. */
static void give_pages(char *begin, char *end)
{
    char *first, *last;
    pages_discard(begin, end, &first, &last);
}

void slab_abandon(struct slab *slab)
{
    /* Without memory for the order, the pages stay until the last block has died. */
    if (slab->blocks != NULL && sort_blocks(slab)) {
        slab->abandoned = true;
        char *begin = slab->base;
        for (struct tracked *tracked = slab->blocks; tracked != NULL; tracked = tracked->next) {
            give_pages(begin, tracked->address);
            begin = (char *)tracked->address + tracked->room;
        }
        give_pages(begin, slab->base + slab->nbytes);
    }
    slab_release(slab);
}

/* Give back the pages of a block that dies in an abandoned slab, except those of its neighbours. */
static void give_block(const struct tracked *tracked)
{
    const struct slab *slab = tracked->slab;
    const struct tracked *before = tracked->previous, *after = tracked->next;
    char *begin = (char *)((uintptr_t)tracked->address & ~(uintptr_t)(page_nbytes() - 1));
    char *end = (char *)pages_up((uintptr_t)tracked->address + tracked->room);
    char *free_begin = before == NULL ? slab->base : (char *)before->address + before->room;
    char *free_end = after == NULL ? slab->base + slab->nbytes : after->address;
    give_pages(begin > free_begin ? begin : free_begin, end < free_end ? end : free_end);
}

/* ------------------------------------------------------------------ poison and guards */

/* Record a stray write, if it is the first one. */
static void note_fault(struct slab *slab, const char *fault, const void *address)
{
    if (slab->fault == NULL) {
        slab->fault = fault;
        slab->fault_offset = (size_t)((const char *)address - slab->base);
    }
}

/* Whether all bytes have one value. */
static bool is_filled(const unsigned char *bytes, unsigned char byte, size_t nbytes)
{
    return nbytes == 0 || (bytes[0] == byte && memcmp(bytes, bytes + 1, nbytes - 1) == 0);
}

/* Fill the room behind a block's bytes, which nobody may write to. */
static void put_guard(struct tracked *tracked)
{
    size_t nbytes = tracked->block.nbytes;
    char *behind = (char *)tracked->address + nbytes;
    SHOW(tracked->address, tracked->room);
    if (tracked->slab->verified) {
        memset(behind, GUARD_BYTE, tracked->room - nbytes);
    }
    HIDE(behind, tracked->room - nbytes);
}

/* Check the room behind a block's bytes. Leaves the room marked as in use. */
static void check_guard(struct tracked *tracked)
{
    SHOW(tracked->address, tracked->room);
    size_t nbytes = tracked->block.nbytes;
    if (tracked->slab->verified &&
        !is_filled((unsigned char *)tracked->address + nbytes, GUARD_BYTE, tracked->room - nbytes)) {
        note_fault(tracked->slab, "written past the end of an array", tracked->address);
    }
}

void slab_check(struct slab *slab)
{
    for (struct tracked *tracked = slab->verified ? slab->blocks : NULL; tracked != NULL; tracked = tracked->next) {
        check_guard(tracked);
        HIDE((char *)tracked->address + tracked->block.nbytes, tracked->room - tracked->block.nbytes);
    }
}

/* ------------------------------------------------------------------ blocks */

struct tracked *slab_put(struct slab *slab, size_t offset, size_t nbytes)
{
    char *address = slab->base + offset;
    struct tracked *tracked = new_tracked(address);
    if (tracked == NULL) {
        return NULL;
    }
    tracked->slab = slab;
    tracked->room = slab_room(nbytes, slab->verified);
    tracked->block = (struct block){.word = TRACKED, .nbytes = nbytes};
    tracked->next = slab->blocks;
    if (slab->blocks != NULL) {
        slab->blocks->previous = tracked;
    }
    slab->blocks = tracked;
    slab->references++;
    slab->live_blocks++;
    slab->live_nbytes += nbytes;
    if (slab->verified) {
        SHOW(address, tracked->room);
        if (!is_filled((unsigned char *)address, DEAD_BYTE, tracked->room)) {
            note_fault(slab, "written after an array there was dead", address);
        }
        memset(address, BORN_BYTE, nbytes);
    }
    put_guard(tracked);
    return tracked;
}

void tracked_remove(struct tracked *tracked)
{
    struct slab *slab = tracked->slab;
    take_out(tracked);
    if (slab != NULL) {
        check_guard(tracked);
        if (slab->verified) {
            memset(tracked->address, DEAD_BYTE, tracked->room);
        }
        HIDE(tracked->address, tracked->room);
        if (slab->abandoned) {
            give_block(tracked);
        }
        if (tracked->next != NULL) {
            tracked->next->previous = tracked->previous;
        }
        if (tracked->previous != NULL) {
            tracked->previous->next = tracked->next;
        }
        else {
            slab->blocks = tracked->next;
        }
        slab->live_blocks--;
        slab->live_nbytes -= tracked->block.nbytes;
    }
    tracked->next = spare;
    spare = tracked;
    if (slab != NULL) {
        slab_release(slab);
    }
}

/* ================================================================== blocks of either kind */

struct block *block_at(void *address)
{
    return slab_of(address) == NULL ? pool_block_at(address) : &tracked_find(address)->block;
}

void *block_find(const void *address)
{
    struct slab *slab = slab_of(address);
    if (slab == NULL) {
        return pool_find(address);
    }
    struct tracked *tracked = slab->blocks;
    while (tracked != NULL && (uintptr_t)address - (uintptr_t)tracked->address >= tracked->room) {
        tracked = tracked->next;
    }
    return tracked == NULL ? NULL : tracked->address;
}

size_t block_room(void *address)
{
    if (slab_of(address) == NULL) {
        return pool_room(address);
    }
    const struct tracked *tracked = tracked_find(address);
    return tracked->room - (tracked->slab->verified ? GUARD_NBYTES : 0);
}

void block_resize(void *address, size_t nbytes)
{
    if (slab_of(address) == NULL) {
        pool_resize(address, nbytes);
        return;
    }
    struct tracked *tracked = tracked_find(address);
    check_guard(tracked);
    tracked->slab->live_nbytes += nbytes - tracked->block.nbytes;
    tracked->block.nbytes = nbytes;
    put_guard(tracked);
}
