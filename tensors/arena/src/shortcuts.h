/* The shortest ways through the arena: small blocks that are parked, or in slabs that have room, for scopes about which nothing
 * is to be asked. Whoever finds them closed takes the way of all blocks, in handler.c.
 *
 * Called with the GIL held, and without the arena's lock: where there is a tally, the GIL is that lock, and what is done here for
 * the account of the tally touches no figure of an account. A class parks nothing with guards.
 */
#ifndef DISPOSESCOPE_ARENA_SHORTCUTS_H
#define DISPOSESCOPE_ARENA_SHORTCUTS_H

#include <string.h>

#include "pool.h"
#include "accounts.h"
#include "scopes.h"

/* Whether a block of this size comes from a slab; one of 0 bytes is asked for as one of 1 byte, by others. */
static inline bool is_small(size_t nbytes) { return nbytes - 1 < LARGEST_IN_SLAB; }

/* A parked block for the account of the tally: most small arrays. */
static inline void *shortcut_tallied(const PyThreadState *thread, size_t nbytes)
{
    if (!tally_is_current(thread)) {
        return NULL;
    }
    size_t class;
    if (nbytes - 1 < LARGEST_OF_STEPS) {
        class = class_by_steps(nbytes);
    }
    else if (is_small(nbytes)) {
        class = class_by_doublings(nbytes);
    }
    else {
        return NULL;
    }
    struct block *block;
    void *address = slabs_unpark(class, &block);
    if (address == NULL) {
        return NULL;
    }
    *block = (struct block){.word = (uintptr_t)tally.account, .nbytes = nbytes};
    SHOW(address, nbytes);
    return tally_birth(address, nbytes);
}

/* The same from a slab that has room, where nothing is parked. */
static inline void *shortcut_unparked(size_t nbytes, bool zeroed)
{
    struct block *block;
    bool dirty;
    void *address = guards_wanted ? NULL : slabs_take_at_hand(slab_class(nbytes), &block, &dirty);
    if (address == NULL) {
        return NULL;
    }
    *block = (struct block){.word = (uintptr_t)tally.account, .nbytes = nbytes};
    SHOW(address, nbytes);
    if (zeroed && dirty) {
        memset(address, 0, nbytes);
    }
    return tally_birth(address, nbytes);
}

/* A parked block for an account that has to be found. */
static inline void *shortcut_found(size_t nbytes, bool zeroed)
{
    struct account *account = scopes_plain_account();
    if (account == NULL) {
        return NULL;
    }
    struct block *block;
    arena_lock();
    void *address = slabs_unpark(slab_class(nbytes), &block);
    if (address != NULL) {
        account_add_plain(account, nbytes);
        *block = (struct block){.word = (uintptr_t)account, .nbytes = nbytes};
    }
    arena_unlock();
    if (address != NULL) {
        SHOW(address, nbytes);
        if (zeroed) {
            memset(address, 0, nbytes);
        }
    }
    return address;
}

/* The way back of a block of the tally's account, that of most; whether it could be taken. */
static inline bool shortcut_back_tallied(void *address)
{
    struct region *slab = (struct region *)((uintptr_t)address & ~(REGION_ALIGNMENT - 1));
    if (slab->mark != region_mark(SLAB)) {
        return false;
    }
    struct block *block = &blocks_of(slab)[index_in(slab, address)];
    /* Of an account and without notes. */
    if (block->word != (uintptr_t)tally.account || !slabs_park(slab->class, address, block)) {
        return false;
    }
    HIDE(address, slab->block_nbytes);
    tally_death(block->nbytes);
    return true;
}

/* The same where there is no place to park it. */
static inline bool shortcut_back_unparked(void *address)
{
    struct region *slab = region_of(address);
    if (guards_wanted || slab->kind != SLAB) {
        return false;
    }
    struct block *block = &blocks_of(slab)[index_in(slab, address)];
    if (block->word != (uintptr_t)tally.account) {
        return false;
    }
    HIDE(address, slab->block_nbytes);
    tally_death(block->nbytes);
    struct region *doomed = slabs_give(slab, address);
    if (doomed != NULL) {
        regions_unmap(doomed);
    }
    return true;
}

/* The way back of a block of any account. */
static inline bool shortcut_back(void *address)
{
    struct region *region = region_of(address);
    if (region->kind != SLAB) {
        return false;
    }
    struct block *block = &blocks_of(region)[index_in(region, address)];
    if (block_is(block, RECORDED)) {
        return false;
    }
    if (block_is(block, LOGGED)) {
        block_note(block, LOGGED, false);
        scopes_log->block_died(address);
    }
    arena_lock();
    struct account *account = block_account(block);
    bool parked = account->plain && account->references > 1 && slabs_park(region->class, address, block);
    if (parked) {
        account_drop_plain(account, block->nbytes);
        HIDE(address, region->block_nbytes);
    }
    arena_unlock();
    return parked;
}

#endif
