/* What each line made: how many were born there, how many live, their bytes, and the course of these over the passes of loops. */
#include "log.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ passes: what lives of each site over the passes of loops */

#define POINTS 256

/* What lived after each pass by one name, from one pass on; only passes whose number is a multiple of the name's stride. */
struct series {
    struct series *next;
    struct point {
        int64_t nbytes;
        uint32_t live;
    } *points;
    uint32_t first; /* the pass of the first point, over the stride */
    uint32_t count, room;
    uint16_t name;
};

/* What is the same for all series of a name. */
struct passes {
    uint32_t count, stride;
};

static struct passes *passes_by_name;
static size_t count_of_passes;

/* Keep every second point of every series of a name. */
static void thin(uint16_t name)
{
    passes_by_name[name].stride *= 2;
    for (uint32_t i = 0; i < count_of_sites; i++) {
        for (struct series *series = sites[i].series; series != NULL; series = series->next) {
            if (series->name == name) {
                uint32_t skip = series->first & 1, kept = 0;
                for (uint32_t at = skip; at < series->count; at += 2) {
                    series->points[kept++] = series->points[at];
                }
                series->count = kept;
                series->first = (series->first + skip) / 2;
            }
        }
    }
}

static struct point point_of(const struct site *site)
{
    double live = site->live + 0.5;
    uint32_t count = live <= 0 ? 0 : live >= (double)UINT32_MAX ? UINT32_MAX : (uint32_t)live;
    return (struct point){.nbytes = site->live_nbytes, .live = count};
}

int sites_mark(uint16_t name)
{
    if (name >= count_of_passes) {
        size_t count = (size_t)name + 1;
        struct passes *fresh = realloc(passes_by_name, count * sizeof *fresh);
        if (fresh == NULL) {
            return -1;
        }
        for (size_t i = count_of_passes; i < count; i++) {
            fresh[i] = (struct passes){0, 1};
        }
        passes_by_name = fresh;
        count_of_passes = count;
    }
    struct passes *passes = &passes_by_name[name];
    uint32_t pass = ++passes->count;
    if (pass % passes->stride != 0) {
        return 0;
    }
    if (pass / passes->stride >= POINTS) {
        thin(name);
        if (pass % passes->stride != 0) {
            return 0;
        }
    }
    uint32_t position = pass / passes->stride;
    for (uint32_t i = 0; i < count_of_sites; i++) {
        struct site *site = &sites[i];
        struct series *series = site->series;
        while (series != NULL && series->name != name) {
            series = series->next;
        }
        if (series == NULL) {
            if (site->live < 0.5) {
                continue;
            }
            series = calloc(1, sizeof *series);
            if (series == NULL) {
                return -1;
            }
            series->name = name;
            series->next = site->series;
            site->series = series;
        }
        if (series->count == 0) {
            series->first = position;
        }
        if (series->count == series->room) {
            uint32_t room = series->room == 0 ? 8 : series->room * 2;
            struct point *points = realloc(series->points, room * sizeof *points);
            if (points == NULL) {
                return -1;
            }
            series->points = points;
            series->room = room;
        }
        series->points[series->count++] = point_of(site);
    }
    return 0;
}

uint32_t sites_passes(uint16_t name) { return name < count_of_passes ? passes_by_name[name].count : 0; }

static int append(PyObject *list, uint32_t pass, struct point point)
{
    PyObject *row = Py_BuildValue("IIL", pass, point.live, (long long)point.nbytes);
    int failed = row == NULL ? -1 : PyList_Append(list, row);
    Py_XDECREF(row);
    return failed;
}

PyObject *sites_series(uint32_t number, uint16_t name)
{
    PyObject *list = PyList_New(0);
    if (list == NULL || number >= count_of_sites || name >= count_of_passes) {
        return list;
    }
    struct series *series = sites[number].series;
    while (series != NULL && series->name != name) {
        series = series->next;
    }
    if (series == NULL) {
        return list;
    }
    /* Copies, for what is called below may run the collector. */
    struct passes passes = passes_by_name[name];
    struct point now = point_of(&sites[number]), points[POINTS];
    uint32_t first = series->first, count = series->count < POINTS ? series->count : POINTS, last = 0;
    memcpy(points, series->points, count * sizeof *points);
    for (uint32_t at = 0; at < count; at++) {
        last = (first + at) * passes.stride;
        if (append(list, last, points[at]) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    if (last < passes.count && append(list, passes.count, now) < 0) {
        Py_DECREF(list);
        return NULL;
    }
    return list;
}

static void series_clear(struct series *series)
{
    while (series != NULL) {
        struct series *next = series->next;
        free(series->points);
        free(series);
        series = next;
    }
}

static void passes_forget(void)
{
    free(passes_by_name);
    passes_by_name = NULL;
    count_of_passes = 0;
}

/* ------------------------------------------------------------------ sites */

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
    uint32_t wanted = birth_log.frames < PLACES_AT_MOST ? birth_log.frames : PLACES_AT_MOST;
    int found = places_of_birth(places, wanted, &called);
    if (found < 0) {
        return UINT32_MAX;
    }
    uint16_t op_number = op == NULL ? remembered_op() : names_number(&op_names, op);
    if (op_number == UINT16_MAX && called != NULL) {
        op_number = names_number(&op_names, called->co_name);
    }
    uint32_t count = (uint32_t)found;
    uint64_t hash = hash_mixed(hash_mixed(count, op_number), (uint64_t)kind << 16 | device);
    for (uint32_t i = 0; i < count; i++) {
        hash = hash_mixed(hash_mixed(hash, (uint64_t)(uintptr_t)places[i].code), (uint64_t)places[i].instruction);
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
static int64_t share_of(const struct row *row) { return (int64_t)((double)row->nbytes * births_weight(row)); }

void sites_born(const struct row *row)
{
    struct site *site = &sites[row->site];
    int64_t share = share_of(row);
    site->births++;
    site->live += births_weight(row);
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
    site->live -= births_weight(row);
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
    passes_forget();
    places_forget();
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t at = 0; at < gone[i].count_of_places; at++) {
            Py_DECREF((PyObject *)gone[i].places[at].code);
        }
        free(gone[i].places);
    }
    free(gone);
}

PyObject *sites_row(PyObject *module, PyObject *number)
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
