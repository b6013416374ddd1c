/* Where rows stand: in a table by address, and in weak references to what stands for memory. */
#include "log.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ the table by address */

/* Open addressing with linear probing; a row is taken out by shifting those behind it back, so that no slot is lost. It grows by a
 * half, which keeps between a half and three quarters of it in use. */
struct slot {
    void *key;
    struct row row;
};

static struct slot *slots;
static size_t table_room, table_used;

#define FIRST_ROOM ((size_t)1024)

static inline size_t home_of(const void *key)
{
    uint64_t hash = (uint64_t)(uintptr_t)key * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(((hash >> 32) * (uint64_t)table_room) >> 32);
}

static inline size_t after(size_t position) { return position + 1 == table_room ? 0 : position + 1; }

static struct slot *slot_of(const void *key)
{
    if (table_used == 0) {
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

static int grow_table(void)
{
    size_t before = table_room;
    struct slot *old = slots;
    size_t wanted = before == 0 ? FIRST_ROOM : before + before / 2;
    struct slot *fresh = calloc(wanted, sizeof *fresh);
    if (fresh == NULL) {
        return -1;
    }
    slots = fresh;
    table_room = wanted;
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
    if (table_used + 1 > table_room - table_room / 4 && grow_table() < 0) {
        return -1;
    }
    insert(key, row);
    table_used++;
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
    table_used--;
    return true;
}

struct row *table_find(void *key)
{
    struct slot *slot = slot_of(key);
    return slot == NULL ? NULL : &slot->row;
}

bool table_next(size_t *position, void **key, struct row **row)
{
    while (*position < table_room) {
        struct slot *slot = &slots[(*position)++];
        if (slot->key != NULL) {
            *key = slot->key;
            *row = &slot->row;
            return true;
        }
    }
    return false;
}

size_t table_count(void) { return table_used; }

void table_clear(void)
{
    struct slot *old = slots;
    size_t before = table_room;
    slots = NULL;
    table_room = table_used = 0;
    for (size_t at = 0; at < before; at++) {
        if (old[at].key != NULL && old[at].row.flags & ROW_ENTRY) {
            Py_DECREF((PyObject *)old[at].key);
        }
    }
    free(old);
}

/* ------------------------------------------------------------------ weak references */

struct sighting **all_sightings;
static size_t sighting_count, sighting_room;
static PyObject *gone_callback;

PyTypeObject sighting_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.leaks.births.compiled.Sighting",
    .tp_doc = "A weak reference to what stands for memory, with what is known of its birth.",
    .tp_basicsize = sizeof(struct sighting),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_base = &_PyWeakref_RefType,
};

/* Take one out of the list; its reference is the caller's then. The last one takes its place. */
static void unlink_it(struct sighting *sighting)
{
    size_t place = (size_t)sighting->reference.hash;
    struct sighting *last = all_sightings[--sighting_count];
    all_sightings[place] = last;
    last->reference.hash = (Py_hash_t)place;
    sighting->reference.hash = NOT_LISTED;
}

static PyObject *gone(PyObject *module, PyObject *object)
{
    (void)module;
    struct sighting *sighting = (struct sighting *)object;
    if (sighting_is_listed(sighting)) {
        unlink_it(sighting);
        if (!(sighting->row.flags & ROW_EXCLUDED)) {
            sites_died(&sighting->row);
        }
        Py_DECREF(object);
    }
    Py_RETURN_NONE;
}

static PyMethodDef gone_definition = {"gone", gone, METH_O, NULL};

int sightings_make(void)
{
    /* By identity, unlike other weak references. */
    sighting_type.tp_hash = PyBaseObject_Type.tp_hash;
    sighting_type.tp_richcompare = PyBaseObject_Type.tp_richcompare;
    if (PyType_Ready(&sighting_type) < 0) {
        return -1;
    }
    if (gone_callback == NULL) {
        gone_callback = PyCFunction_New(&gone_definition, NULL);
    }
    return gone_callback == NULL ? -1 : 0;
}

struct sighting *sightings_of(PyObject *object)
{
    if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) {
        return NULL;
    }
    PyObject **list = PyObject_GET_WEAKREFS_LISTPTR(object);
    for (PyWeakReference *found = (PyWeakReference *)*list; found != NULL; found = found->wr_next) {
        if (Py_TYPE(found) == &sighting_type) {
            return (struct sighting *)found;
        }
    }
    return NULL;
}

/* Room for one more; -1 where there is none. */
static int grow_sightings(void)
{
    size_t wanted = sighting_room == 0 ? 1024 : sighting_room + sighting_room / 2;
    struct sighting **fresh = realloc(all_sightings, wanted * sizeof *fresh);
    if (fresh == NULL) {
        return -1;
    }
    all_sightings = fresh;
    sighting_room = wanted;
    return 0;
}

struct sighting *sightings_add(PyObject *object)
{
    PyObject *arguments = PyTuple_Pack(2, object, gone_callback);
    if (arguments == NULL) {
        return NULL;
    }
    PyObject *made = sighting_type.tp_base->tp_new(&sighting_type, arguments, NULL);
    Py_DECREF(arguments);
    if (made == NULL) {
        return NULL;
    }
    struct sighting *sighting = (struct sighting *)made;
    sighting->reference.hash = NOT_LISTED;
    sighting->row = (struct row){.flags = ROW_EXCLUDED};
    if (!PyObject_IS_GC(object)) {
        /* Its only reference that could close a cycle is that to the callback, which has none: no work for the collector. But a
         * reference to what the collector may find in a garbage cycle must be one of its own objects then: it moves them. */
        PyObject_GC_UnTrack(made);
    }
    if (sighting_count == sighting_room && grow_sightings() < 0) {
        Py_DECREF(made);
        PyErr_NoMemory();
        return NULL;
    }
    sighting->reference.hash = (Py_hash_t)sighting_count;
    all_sightings[sighting_count++] = (struct sighting *)Py_NewRef(made);
    return sighting;
}

void sightings_clear(void)
{
    while (sighting_count != 0) {
        struct sighting *sighting = all_sightings[sighting_count - 1];
        unlink_it(sighting);
        Py_DECREF((PyObject *)sighting);
    }
    free(all_sightings);
    all_sightings = NULL;
    sighting_room = 0;
}

size_t sightings_count(void) { return sighting_count; }
