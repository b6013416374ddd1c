#include "module.h"

#include <stdlib.h>
#include <string.h>

/* Open addressing with linear probing; a row is taken out by shifting those behind it back, so that no graves remain. It grows
 * by a half, which keeps between a half and three quarters of it in use. */
struct slot {
    void *key;
    struct row row;
};

static struct slot *slots;
static size_t room, used;

#define FIRST_ROOM ((size_t)1024)

static inline size_t home_of(const void *key)
{
    uint64_t hash = (uint64_t)(uintptr_t)key * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(((hash >> 32) * (uint64_t)room) >> 32);
}

static inline size_t after(size_t position) { return position + 1 == room ? 0 : position + 1; }

static struct slot *slot_of(const void *key)
{
    if (used == 0) {
        return NULL;
    }
    for (size_t at = home_of(key); slots[at].key != NULL; at = after(at)) {
        if (slots[at].key == key) {
            return &slots[at];
        }
    }
    return NULL;
}

static void insert(void *key, const struct row *row)
{
    size_t at = home_of(key);
    while (slots[at].key != NULL) {
        at = after(at);
    }
    slots[at].key = key;
    slots[at].row = *row;
}

static int grow(void)
{
    size_t before = room;
    struct slot *old = slots;
    size_t wanted = before == 0 ? FIRST_ROOM : before + before / 2;
    struct slot *fresh = calloc(wanted, sizeof *fresh);
    if (fresh == NULL) {
        return -1;
    }
    slots = fresh;
    room = wanted;
    for (size_t at = 0; at < before; at++) {
        if (old[at].key != NULL) {
            insert(old[at].key, &old[at].row);
        }
    }
    free(old);
    return 0;
}

int table_put(void *key, const struct row *row)
{
    struct slot *slot = slot_of(key);
    if (slot != NULL) {
        slot->row = *row;
        return 0;
    }
    if (used + 1 > room - room / 4 && grow() < 0) {
        return -1;
    }
    insert(key, row);
    used++;
    return 0;
}

bool table_take(void *key, struct row *row)
{
    struct slot *slot = slot_of(key);
    if (slot == NULL) {
        return false;
    }
    *row = slot->row;
    size_t hole = (size_t)(slot - slots);
    for (size_t at = after(hole); slots[at].key != NULL; at = after(at)) {
        size_t home = home_of(slots[at].key);
        /* It may go back unless its home lies between the hole and itself, round the end. */
        bool stays = hole <= at ? (hole < home && home <= at) : (hole < home || home <= at);
        if (!stays) {
            slots[hole] = slots[at];
            hole = at;
        }
    }
    slots[hole].key = NULL;
    used--;
    return true;
}

struct row *table_find(void *key)
{
    struct slot *slot = slot_of(key);
    return slot == NULL ? NULL : &slot->row;
}

bool table_next(size_t *position, void **key, struct row **row)
{
    while (*position < room) {
        struct slot *slot = &slots[(*position)++];
        if (slot->key != NULL) {
            *key = slot->key;
            *row = &slot->row;
            return true;
        }
    }
    return false;
}

size_t table_count(void) { return used; }

void table_clear(void)
{
    struct slot *old = slots;
    size_t before = room;
    slots = NULL;
    room = used = 0;
    for (size_t at = 0; at < before; at++) {
        if (old[at].key != NULL && old[at].row.flags & ROW_ENTRY) {
            Py_DECREF((PyObject *)old[at].key);
        }
    }
    free(old);
}
