/* The course of what lives of each site, over the passes of loops. */
#include "sites.h"

#include <stdlib.h>
#include <string.h>

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

void series_clear(struct series *series)
{
    while (series != NULL) {
        struct series *next = series->next;
        free(series->points);
        free(series);
        series = next;
    }
}

void series_forget_passes(void)
{
    free(passes_by_name);
    passes_by_name = NULL;
    count_of_passes = 0;
}
