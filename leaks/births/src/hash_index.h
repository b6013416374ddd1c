/* The hash table of this room: it finds the positions of elements in an array of the caller's.
 *
 * It stores only hashes and positions: the caller compares the element at each position that it
 * returns. Open addressing with linear probing; a removal shifts the slots behind it back, so that
 * no slot has to be marked as removed. The table grows by a half when three quarters of it are in use. */
#ifndef DISPOSESCOPE_BIRTHS_HASH_INDEX_H
#define DISPOSESCOPE_BIRTHS_HASH_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct hash_slot {
    uint32_t hash;
    uint32_t position_plus_one; /* 0 where the slot is empty */
};

/* All zeros is an empty index. It owns its slots. */
struct hash_index {
    struct hash_slot *slots;
    uint32_t room, used;
};

#define NOT_FOUND UINT32_MAX

/* A hash that also depends on one more word. The multiplier is 2 to the 64th over the golden ratio
 * (Fibonacci hashing); the shift brings the upper bits, which depend on all others, down. */
static inline uint64_t hash_mixed(uint64_t hash, uint64_t word)
{
    hash ^= word;
    hash *= UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ (hash >> 29);
}

/* The hash that an index takes. After a multiplication the upper bits depend on all bits. */
static inline uint32_t hash_folded(uint64_t hash) { return (uint32_t)(hash >> 32); }

/* The slot at which the search for a hash begins. */
static inline uint32_t hash_home(const struct hash_index *index, uint32_t hash)
{
    return (uint32_t)(((uint64_t)hash * index->room) >> 32);
}

static inline uint32_t hash_after(const struct hash_index *index, uint32_t at)
{
    return at + 1 == index->room ? 0 : at + 1;
}

/* A search: `hash_search` begins it, and each call of `hash_next` returns one more position whose
 * element has that hash, or NOT_FOUND. */
struct hash_search {
    uint32_t hash, at;
};

static inline struct hash_search hash_search(const struct hash_index *index, uint32_t hash)
{
    return (struct hash_search){hash, hash_home(index, hash)};
}

static inline uint32_t hash_next(const struct hash_index *index, struct hash_search *search)
{
    if (index->used == 0) {
        return NOT_FOUND;
    }
    while (index->slots[search->at].position_plus_one != 0) {
        const struct hash_slot *slot = &index->slots[search->at];
        search->at = hash_after(index, search->at);
        if (slot->hash == search->hash) {
            return slot->position_plus_one - 1;
        }
    }
    return NOT_FOUND;
}

/* Put a slot into the first empty slot from its home on; there is one. */
static inline void hash_insert(struct hash_index *index, struct hash_slot slot)
{
    uint32_t at = hash_home(index, slot.hash);
    while (index->slots[at].position_plus_one != 0) {
        at = hash_after(index, at);
    }
    index->slots[at] = slot;
}

/* Add a position; -1 where there is no memory. */
static inline int hash_add(struct hash_index *index, uint32_t hash, uint32_t position)
{
    if (index->used >= index->room - index->room / 4) {
        uint32_t room = index->room == 0 ? 256 : index->room + index->room / 2;
        struct hash_index grown = {room < index->room ? NULL : calloc(room, sizeof *grown.slots), room, index->used};
        if (grown.slots == NULL) {
            return -1;
        }
        for (uint32_t at = 0; at < index->room; at++) {
            if (index->slots[at].position_plus_one != 0) {
                hash_insert(&grown, index->slots[at]);
            }
        }
        free(index->slots);
        *index = grown;
    }
    hash_insert(index, (struct hash_slot){hash, position + 1});
    index->used++;
    return 0;
}

/* The slot of a position. The position must be in the index. */
static inline uint32_t hash_slot_of(const struct hash_index *index, uint32_t hash, uint32_t position)
{
    uint32_t at = hash_home(index, hash);
    while (index->slots[at].position_plus_one != position + 1) {
        at = hash_after(index, at);
    }
    return at;
}

/* The element at position `before` has moved to position `after` of the array. */
static inline void hash_move(struct hash_index *index, uint32_t hash, uint32_t before, uint32_t after)
{
    index->slots[hash_slot_of(index, hash, before)].position_plus_one = after + 1;
}

static inline void hash_remove(struct hash_index *index, uint32_t hash, uint32_t position)
{
    uint32_t hole = hash_slot_of(index, hash, position);
    for (uint32_t at = hash_after(index, hole); index->slots[at].position_plus_one != 0; at = hash_after(index, at)) {
        uint32_t home = hash_home(index, index->slots[at].hash);
        /* This slot fills the hole unless its home lies behind the hole, also round the end: a
         * search, which begins at its home, would not find it before. */
        bool stays = hole <= at ? (hole < home && home <= at) : (hole < home || home <= at);
        if (!stays) {
            index->slots[hole] = index->slots[at];
            hole = at;
        }
    }
    index->slots[hole].position_plus_one = 0;
    index->used--;
}

/* An array with room for one more element of `size` bytes. It takes the place of the given array.
 * NULL where there is no memory; the given array is as it was then. */
static inline void *array_grown(void *array, uint32_t count, uint32_t *room, size_t size)
{
    if (count < *room) {
        return array;
    }
    uint32_t wanted = *room == 0 ? 8 : *room + (*room + 1) / 2;
    void *grown = wanted < *room ? NULL : realloc(array, (size_t)wanted * size);
    if (grown != NULL) {
        *room = wanted;
    }
    return grown;
}

#endif
