/* What each line made: how many were born there, how many live, and their bytes. */
#include "remembered.h"

#include <stdlib.h>
#include <string.h>

struct site *sites;
uint32_t count_of_sites;
int64_t device_live_nbytes[DEVICES];

static uint32_t room_for_sites;
static uint32_t *site_index; /* number plus one by hash; twice as long as the room for sites, a power of two */
static uint32_t room_for_index;

static int grow_sites(void)
{
    uint32_t room = room_for_sites == 0 ? 256 : room_for_sites * 2;
    struct site *fresh = realloc(sites, room * sizeof *fresh);
    if (fresh == NULL) {
        return -1;
    }
    sites = fresh;
    uint32_t *index = calloc((size_t)room * 2, sizeof *index);
    if (index == NULL) {
        return -1;
    }
    free(site_index);
    site_index = index;
    room_for_sites = room;
    room_for_index = room * 2;
    for (uint32_t i = 0; i < count_of_sites; i++) {
        uint32_t at = (uint32_t)sites[i].hash & (room_for_index - 1);
        while (site_index[at] != 0) {
            at = (at + 1) & (room_for_index - 1);
        }
        site_index[at] = i + 1;
    }
    return 0;
}

static bool is_the_same(const struct site *site, uint64_t hash, const struct place *places, uint32_t count, uint16_t op,
                        uint16_t kind, uint16_t device)
{
    return site->hash == hash && site->count_of_places == count && site->op == op && site->kind == kind &&
           site->device == device && memcmp(site->places, places, count * sizeof *places) == 0;
}

uint32_t sites_here(PyObject *op, uint16_t kind, uint16_t device)
{
    struct place places[PLACES_AT_MOST];
    PyCodeObject *called;
    uint32_t wanted = frames_wanted < PLACES_AT_MOST ? frames_wanted : PLACES_AT_MOST;
    int found;
    if (!remembered_places(places, wanted, &called, &found)) {
        intptr_t exact;
        found = places_here(places, wanted, &called, &exact);
    }
    if (found < 0) {
        return UINT32_MAX;
    }
    uint16_t op_number = op == NULL ? remembered_op() : names_number(&op_names, op);
    if (op_number == UINT16_MAX && called != NULL) {
        op_number = names_number(&op_names, called->co_name);
    }
    uint32_t count = (uint32_t)found;
    uint64_t hash = mixed(mixed(count, op_number), (uint64_t)kind << 16 | device);
    for (uint32_t i = 0; i < count; i++) {
        hash = mixed(mixed(hash, (uint64_t)(uintptr_t)places[i].code), (uint64_t)places[i].instruction);
    }
    if (count_of_sites == room_for_sites && grow_sites() < 0) {
        return UINT32_MAX;
    }
    uint32_t at = (uint32_t)hash & (room_for_index - 1);
    while (site_index[at] != 0) {
        uint32_t number = site_index[at] - 1;
        if (is_the_same(&sites[number], hash, places, count, op_number, kind, device)) {
            return number;
        }
        at = (at + 1) & (room_for_index - 1);
    }
    if (count_of_sites >= SITES_AT_MOST) {
        return UINT32_MAX;
    }
    struct place *kept = malloc((count == 0 ? 1 : count) * sizeof *kept);
    if (kept == NULL) {
        return UINT32_MAX;
    }
    for (uint32_t i = 0; i < count; i++) {
        kept[i] = places[i];
        Py_INCREF((PyObject *)kept[i].code);
    }
    sites[count_of_sites] = (struct site){
        .hash = hash, .places = kept, .count_of_places = count, .op = op_number, .kind = kind, .device = device};
    site_index[at] = count_of_sites + 1;
    return count_of_sites++;
}

/* The bytes that a row adds to its site. */
static int64_t share_of(const struct row *row) { return (int64_t)((double)row->nbytes * log_weight(row)); }

void sites_born(const struct row *row)
{
    struct site *site = &sites[row->site];
    int64_t share = share_of(row);
    site->births++;
    site->live += log_weight(row);
    site->live_nbytes += share;
    if (site->live_nbytes > site->peak_nbytes) {
        site->peak_nbytes = site->live_nbytes;
    }
    if (site->device < DEVICES && !(row->flags & ROW_BACKED)) {
        device_live_nbytes[site->device] += share;
    }
}

void sites_died(const struct row *row)
{
    struct site *site = &sites[row->site];
    int64_t share = share_of(row);
    site->live -= log_weight(row);
    site->live_nbytes -= share;
    if (site->device < DEVICES && !(row->flags & ROW_BACKED)) {
        device_live_nbytes[site->device] -= share;
    }
}

void sites_clear(void)
{
    for (uint32_t i = 0; i < count_of_sites; i++) {
        series_clear(sites[i].series);
        sites[i].series = NULL;
    }
    /* Code that is let go may take anything with it: afterwards, when there are no sites any more. */
    struct site *gone = sites;
    uint32_t count = count_of_sites;
    sites = NULL;
    count_of_sites = room_for_sites = 0;
    free(site_index);
    site_index = NULL;
    room_for_index = 0;
    memset(device_live_nbytes, 0, sizeof device_live_nbytes);
    series_forget_passes();
    places_forget();
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t at = 0; at < gone[i].count_of_places; at++) {
            Py_DECREF((PyObject *)gone[i].places[at].code);
        }
        free(gone[i].places);
    }
    free(gone);
}

PyObject *sites_told(PyObject *module, PyObject *number)
{
    (void)module;
    unsigned long wanted = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (wanted >= count_of_sites) {
        PyErr_Format(PyExc_IndexError, "there are %u sites, and no number %lu", count_of_sites, wanted);
        return NULL;
    }
    /* What is made here may run the garbage collector, and with it births, which move the sites. */
    uint32_t places_count = sites[wanted].count_of_places;
    PyObject *places = PyTuple_New(places_count);
    for (uint32_t i = 0; places != NULL && i < places_count; i++) {
        PyObject *place = Py_BuildValue("On", (PyObject *)sites[wanted].places[i].code,
                                        (Py_ssize_t)sites[wanted].places[i].instruction);
        if (place == NULL) {
            Py_CLEAR(places);
        }
        else {
            PyTuple_SET_ITEM(places, i, place);
        }
        if (wanted >= count_of_sites) {
            Py_CLEAR(places);
        }
    }
    if (places == NULL) {
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    struct site copy = sites[wanted];
    return Py_BuildValue("OOONKdLL", names_object(&kind_names, copy.kind), names_object(&device_names, copy.device),
                         names_object(&op_names, copy.op), places, (unsigned long long)copy.births, copy.live,
                         (long long)copy.live_nbytes, (long long)copy.peak_nbytes);
}
