/* What each line made: how many were born there, how many live, their bytes, and what lived of it
 * after each pass of a loop. */
#include "log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ series: what lives of each site after passes of loops */

/* A series never has so many points: every second point is dropped before, however many passes a
 * program makes. `series` in compiled.pyi promises it. */
#define POINTS 256

/* What lived of a site after passes of one name. Passes are numbered from 1 since births began to be
 * recorded; a series has points only for passes whose number is a multiple of the stride of
 * their name. For programs that name no passes each birth is a pass, with NO_NAME. */
struct series {
    struct series *next; /* of another name */
    struct point {
        int64_t nbytes;
        uint32_t live;
        bool is_held; /* a report may have held some of them */
    } *points;
    uint32_t first; /* the number of the pass of the first point, divided by the stride */
    uint32_t count, room;
    uint16_t name;
};

/* The name of the passes of which each is a birth. */
#define NO_NAME NO_NUMBER

/* The passes with a name, which is given by its number; NULL where there were none. */
static struct passes *passes_by(struct sites *sites, uint16_t name)
{
    return name == NO_NAME ? &sites->birth_passes : name < sites->passes_count ? &sites->passes[name] : NULL;
}

/* Double the stride of a name: drop every second point of every series of it. */
static void double_stride(struct sites *sites, uint16_t name)
{
    passes_by(sites, name)->stride *= 2;
    for (uint32_t i = 0; i < sites->count; i++) {
        for (struct series *series = sites->all[i].series; series != NULL; series = series->next) {
            if (series->name == name) {
                /* Kept are the passes that are a multiple of the new stride. */
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

/* What lives of a site now, rounded: the count may be an estimate. */
static struct point point_of(const struct sites *sites, const struct site *site)
{
    double live = site->live + 0.5;
    uint32_t count = live <= 0 ? 0 : live >= (double)UINT32_MAX ? UINT32_MAX : (uint32_t)live;
    return (struct point){.nbytes = site->live_nbytes, .live = count, .is_held = sites->reports > 0};
}

/* The series of a site over passes of a name; NULL where it has none. */
static struct series *series_of(const struct site *site, uint16_t name)
{
    struct series *series = site->series;
    while (series != NULL && series->name != name) {
        series = series->next;
    }
    return series;
}

/* Add a point of what lives of a site now; `position` is the number of the pass over the stride. A
 * series begins with the first pass after which anything lived. -1 where there is no memory. */
static int add_point(const struct sites *sites, struct site *site, uint16_t name, uint32_t position)
{
    struct series *series = series_of(site, name);
    if (series == NULL) {
        if (site->live < 0.5) {
            return 0;
        }
        if ((series = calloc(1, sizeof *series)) == NULL) {
            return -1;
        }
        *series = (struct series){.name = name, .next = site->series};
        site->series = series;
    }
    if (series->count == 0) {
        series->first = position;
    }
    struct point *points = array_grown(series->points, series->count, &series->room, sizeof *points);
    if (points == NULL) {
        return -1;
    }
    series->points = points;
    points[series->count++] = point_of(sites, site);
    return 0;
}

/* A pass has ended: record what lives of each site; -1 where there is no memory. Runs no Python
 * code. */
static int record_pass(struct sites *sites, uint16_t name)
{
    while (name != NO_NAME && name >= sites->passes_count) {
        struct passes *all = realloc(sites->passes, (sites->passes_count + 1) * sizeof *all);
        if (all == NULL) {
            return -1;
        }
        all[sites->passes_count++] = (struct passes){.stride = 1};
        sites->passes = all;
    }
    struct passes *passes = passes_by(sites, name);
    passes->stride += passes->stride == 0;
    uint32_t pass = ++passes->count - passes->before;
    if (pass % passes->stride == 0 && pass / passes->stride >= POINTS) {
        double_stride(sites, name);
    }
    if (pass % passes->stride != 0) {
        return 0;
    }
    for (uint32_t i = 0; i < sites->count; i++) {
        if (add_point(sites, &sites->all[i], name, pass / passes->stride) < 0) {
            return -1;
        }
    }
    return 0;
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

static struct passes begun_anew(const struct passes *passes)
{
    return (struct passes){.count = passes->count, .before = passes->count, .stride = 1};
}

void sites_begin(Log *log)
{
    struct sites *sites = &log->sites;
    for (uint32_t i = 0; i < sites->count; i++) {
        series_clear(sites->all[i].series);
        sites->all[i].series = NULL;
    }
    for (uint32_t i = 0; i < sites->passes_count; i++) {
        sites->passes[i] = begun_anew(&sites->passes[i]);
    }
    sites->birth_passes = begun_anew(&sites->birth_passes);
}

uint32_t sites_passes(const Log *log, uint16_t name)
{
    return name < log->sites.passes_count ? log->sites.passes[name].count : 0;
}

void sites_birth(Log *log)
{
    /* Without memory for a point its series has one point less, and the birth is still recorded. */
    (void)record_pass(&log->sites, NO_NAME);
}

PyObject *sites_mark(Log *log, PyObject *name)
{
    uint16_t number = names_number(&log->pass_names, name);
    if (number == NO_NUMBER) {
        return PyLong_FromLong(0);
    }
    if (record_pass(&log->sites, number) < 0) {
        return PyErr_NoMemory();
    }
    struct passes *passes = &log->sites.passes[number];
    passes->ends[0] = passes->ends[1];
    passes->ends[1] = log->last_birth;
    log->marks++;
    return PyLong_FromUnsignedLong(sites_passes(log, number));
}

PyObject *sites_last_pass(Log *log, PyObject *name)
{
    uint16_t number = names_number(&log->pass_names, name);
    if (number >= log->sites.passes_count) {
        return Py_BuildValue("ii", 0, 0);
    }
    const struct passes *passes = &log->sites.passes[number];
    return Py_BuildValue("KK", (unsigned long long)passes->ends[0], (unsigned long long)passes->ends[1]);
}

void sites_report(Log *log, bool begins)
{
    if (begins) {
        if (log->sites.reports++ == 0) {
            log->sites.reports_since = log->last_birth;
        }
    }
    else if (log->sites.reports > 0) {
        log->sites.reports--;
    }
}

/* The part `at` of `count` of the way from one number to another, or more than the whole way. */
static int64_t on_the_way(int64_t from, int64_t to, uint32_t at, uint32_t count)
{
    return from + (int64_t)llround((double)(to - from) * at / count);
}

/* What goes on as before would be `estimate`. Not more than was seen is alive, nor less than what was
 * made since the report was begun: the report holds only what lived before. */
static int64_t as_seen(int64_t estimate, int64_t seen, int64_t before)
{
    int64_t least = seen > before ? seen - before : 0;
    return estimate < least ? least : estimate > seen ? seen : estimate;
}

/* Estimate what lived without a report that held results at these points.
 *
 * They are between the points before and after the report. Where none follows, or most has been freed
 * at the next one, which may have happened at any time meanwhile, the line goes on as it did before. */
static void settle_points(struct point *points, uint32_t count)
{
    for (uint32_t at = 0; at < count; at++) {
        if (!points[at].is_held) {
            continue;
        }
        uint32_t after = at;
        while (after < count && points[after].is_held) {
            after++;
        }
        uint32_t held_count = after - at;
        if (after < count && (at == 0 || points[after].live >= points[at - 1].live / 2)) {
            struct point last = points[after], first = at > 0 ? points[at - 1] : last;
            for (uint32_t held = at; held < after; held++) {
                uint32_t steps = held - at + 1;
                points[held].nbytes = on_the_way(first.nbytes, last.nbytes, steps, held_count + 1);
                points[held].live = (uint32_t)on_the_way(first.live, last.live, steps, held_count + 1);
            }
        }
        else if (at > 0) {
            uint32_t earlier_count = held_count < at ? held_count : at;
            struct point first = points[at - 1], earlier = {0};
            if (earlier_count < at) {
                earlier = points[at - 1 - earlier_count];
            }
            for (uint32_t held = at; held < after; held++) {
                uint32_t steps = earlier_count + held - at + 1;
                int64_t nbytes = on_the_way(earlier.nbytes, first.nbytes, steps, earlier_count);
                int64_t live = on_the_way(earlier.live, first.live, steps, earlier_count);
                points[held].nbytes = as_seen(nbytes, points[held].nbytes, first.nbytes);
                points[held].live = (uint32_t)as_seen(live, points[held].live, first.live);
            }
        }
        at = after;
    }
}

static int append_point(PyObject *list, uint32_t pass, struct point point)
{
    PyObject *row = Py_BuildValue("IIL", pass, point.live, (long long)point.nbytes);
    int failed = row == NULL ? -1 : PyList_Append(list, row);
    Py_XDECREF(row);
    return failed;
}

PyObject *sites_series(Log *log, PyObject *const *arguments, Py_ssize_t argument_count)
{
    if (argument_count != 2) {
        PyErr_SetString(PyExc_TypeError, "series() takes the number of a site and the name of passes");
        return NULL;
    }
    unsigned long number = PyLong_AsUnsignedLong(arguments[0]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    bool by_births = arguments[1] == Py_None;
    uint16_t name = by_births ? NO_NAME : names_number(&log->pass_names, arguments[1]);
    PyObject *list = PyList_New(0);
    if (list == NULL || number >= log->sites.count || (name == NO_NAME && !by_births) ||
        passes_by(&log->sites, name) == NULL) {
        return list;
    }
    const struct series *series = series_of(&log->sites.all[number], name);
    if (series == NULL) {
        return list;
    }
    /* Copies: the objects made below may start the garbage collector, and with it births, which
     * move the series. */
    struct passes passes = *passes_by(&log->sites, name);
    struct point points[POINTS + 1];
    uint32_t first = series->first, count = series->count < POINTS ? series->count : POINTS, last = 0;
    memcpy(points, series->points, count * sizeof *points);
    points[count] = point_of(&log->sites, &log->sites.all[number]);
    /* What lives now is no point after the report: all may have been freed since the last pass. */
    settle_points(points, points[count].is_held ? count + 1 : count);
    for (uint32_t at = 0; at < count; at++) {
        last = passes.before + (first + at) * passes.stride;
        if (append_point(list, last, points[at]) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    if (last < passes.count && append_point(list, passes.count, points[count]) < 0) {
        Py_DECREF(list);
        return NULL;
    }
    return list;
}

/* ------------------------------------------------------------------ sites */

static bool is_same(const struct site *site, const struct site *other)
{
    return site->hash == other->hash && site->places_count == other->places_count && site->op == other->op &&
           site->kind == other->kind && site->device == other->device &&
           memcmp(site->places, other->places, site->places_count * sizeof *site->places) == 0;
}

static uint32_t hash_of(const struct site *site)
{
    uint64_t hash = hash_mixed(hash_mixed(site->places_count, site->op), (uint64_t)site->kind << 16 | site->device);
    for (uint32_t i = 0; i < site->places_count; i++) {
        hash = hash_mixed(hash_mixed(hash, (uint64_t)(uintptr_t)site->places[i].code),
                          (uint64_t)site->places[i].instruction);
    }
    return hash_folded(hash);
}

/* Add a copy of a site, with a copy of its places and references to their codes; its number, or
 * NO_SITE where there is no memory, or there are too many sites. */
static uint32_t add_site(struct sites *sites, struct site site)
{
    struct site *all =
        sites->count >= SITES_AT_MOST ? NULL : array_grown(sites->all, sites->count, &sites->room, sizeof *all);
    if (all == NULL) {
        return NO_SITE;
    }
    sites->all = all;
    struct place *places = malloc((site.places_count + 1) * sizeof *places);
    if (places == NULL || hash_add(&sites->index, site.hash, sites->count) < 0) {
        free(places);
        return NO_SITE;
    }
    for (uint32_t i = 0; i < site.places_count; i++) {
        places[i] = site.places[i];
        Py_INCREF((PyObject *)places[i].code);
    }
    site.places = places;
    all[sites->count] = site;
    return sites->count++;
}

uint32_t site_here(Log *log, PyObject *op, uint16_t kind, uint16_t device)
{
    struct place room[PLACES_AT_MOST];
    struct origin origin = origin_of_birth(log, room);
    if (origin.count < 0) {
        return NO_SITE;
    }
    struct site site = {
        .places = origin.places, .places_count = (uint32_t)origin.count, .kind = kind, .device = device};
    site.op = op == NULL ? origin.op : names_number(&log->ops, op);
    if (site.op == NO_NUMBER && origin.called != NULL) {
        site.op = origin_op(log, &origin);
    }
    site.hash = hash_of(&site);
    struct hash_search search = hash_search(&log->sites.index, site.hash);
    uint32_t at = hash_next(&log->sites.index, &search);
    while (at != NOT_FOUND && !is_same(&log->sites.all[at], &site)) {
        at = hash_next(&log->sites.index, &search);
    }
    return at == NOT_FOUND ? add_site(&log->sites, site) : at;
}

double birth_weight(const Log *log, const struct birth *birth)
{
    if (!(birth->flags & BIRTH_SAMPLED) || log->sampling.mean_nbytes <= 0) {
        return 1.0;
    }
    /* A birth of so many bytes is kept with the probability 1 - exp(-nbytes / mean_nbytes), see
     * births_keep, and stands for one over that. */
    double kept = -expm1(-(double)birth->nbytes / log->sampling.mean_nbytes);
    return kept <= 0 ? 1.0 : 1.0 / kept;
}

/* ------------------------------------------------------------ what a site holds between two turns of a loop
 *
 * An expression makes one or two others on the way to its result, which are gone before the next
 * turn of a loop. So what the loop holds is the lowest level within a few births. The last turns,
 * after the highest of these lows, are taken to have added as many as those before it. */

#define BIRTHS_OF_A_LOW 8

/* Take the level before the latest birth of a site. */
static void take_level(struct site *site, struct level level, bool is_unknown)
{
    if (level.births % BIRTHS_OF_A_LOW == 0 || level.live <= site->low.live) {
        site->low = level;
    }
    site->low_is_unknown |= is_unknown;
    if (site->births % BIRTHS_OF_A_LOW == 0) {
        if (!site->low_is_unknown) {
            if (site->low.live >= site->highest.live) {
                site->before_highest = site->low_before;
                site->highest = site->low;
                site->births_at_fall = site->last_birth_before_fall = 0;
            }
            site->low_before = site->low;
        }
        site->low_is_unknown = false;
    }
}

/* The most that a site held. */
static struct level most_held(const struct site *site)
{
    struct level most = site->highest, before = site->before_highest;
    uint64_t later = (site->births_at_fall != 0 ? site->births_at_fall : site->births) - most.births;
    if (most.births > before.births && most.live > before.live) {
        double turns = (double)(later < 2 * BIRTHS_OF_A_LOW ? later : 2 * BIRTHS_OF_A_LOW) /
                       (double)(most.births - before.births);
        most.live += turns * (most.live - before.live);
        most.nbytes += (int64_t)(turns * (double)(most.nbytes - before.nbytes));
    }
    most.nbytes = most.nbytes < site->peak_nbytes ? most.nbytes : site->peak_nbytes;
    return most;
}

void site_count_birth(Log *log, const struct birth *birth)
{
    if (!(birth->flags & BIRTH_UNCOUNTED)) {
        struct site *site = &log->sites.all[birth->site];
        double weight = birth_weight(log, birth);
        struct level before = {site->live - weight,
                               site->live_nbytes - (int64_t)((double)birth->nbytes * weight), site->births};
        site->births++;
        site->made += weight;
        site->made_scalars += birth->flags & BIRTH_SCALAR ? weight : 0;
        take_level(site, before, log->sites.reports > 0);
    }
}

/* How many results a site made, without scalars on the way to larger ones. */
static uint64_t made_at(const struct site *site)
{
    bool makes_larger = site->made > site->made_scalars;
    return (uint64_t)llround(site->made - (makes_larger ? site->made_scalars - site->live_scalars : 0));
}

void site_count(Log *log, const struct birth *birth, int sign)
{
    if (birth->flags & BIRTH_UNCOUNTED) {
        return;
    }
    struct site *site = &log->sites.all[birth->site];
    double weight = birth_weight(log, birth);
    int64_t nbytes = sign * (int64_t)((double)birth->nbytes * weight);
    site->live += sign * weight;
    site->live_scalars += birth->flags & BIRTH_SCALAR ? sign * weight : 0;
    site->live_nbytes += nbytes;
    if (sign > 0) {
        site->latest_birth = log->last_birth;
        site->first_birth = site->first_birth != 0 ? site->first_birth : log->last_birth;
    }
    else {
        site->latest_death = log->last_birth;
        site->held_since = log->sites.reports > 0 ? log->sites.reports_since : 0;
        if (site->births_at_fall == 0 && 2 * site->live < site->highest.live) {
            site->births_at_fall = site->births;
            site->last_birth_before_fall = log->last_birth;
        }
    }
    if (site->live_nbytes > site->peak_nbytes) {
        site->peak_nbytes = site->live_nbytes;
    }
    if (site->device < DEVICES && !(birth->flags & BIRTH_BACKED)) {
        log->sites.live_nbytes[site->device] += nbytes;
        if (log->sites.live_nbytes[site->device] >= log->looks.next_nbytes) {
            log->looks.has_grown = true;
        }
    }
}

void site_count_elsewhere(Log *log, struct birth *birth, bool is_elsewhere)
{
    unsigned flags = is_elsewhere ? birth->flags | BIRTH_BACKED : birth->flags & ~(unsigned)BIRTH_BACKED;
    const struct site *site = &log->sites.all[birth->site];
    if (flags != birth->flags && !(birth->flags & BIRTH_UNCOUNTED) && site->device < DEVICES) {
        int64_t nbytes = (int64_t)((double)birth->nbytes * birth_weight(log, birth));
        log->sites.live_nbytes[site->device] += is_elsewhere ? -nbytes : nbytes;
    }
    birth->flags = flags;
}

void sites_clear(Log *log)
{
    /* A code that is freed may run any Python code. So the log has no sites before the first code is
     * freed. */
    struct sites gone = log->sites;
    log->sites = (struct sites){0};
    code_facts_clear(log);
    for (uint32_t i = 0; i < gone.count; i++) {
        series_clear(gone.all[i].series);
        for (uint32_t at = 0; at < gone.all[i].places_count; at++) {
            Py_DECREF((PyObject *)gone.all[i].places[at].code);
        }
        free((void *)gone.all[i].places);
    }
    free(gone.all);
    free(gone.passes);
    free(gone.index.slots);
}

/* Whether there is a site with a number, which `wanted` gets; false with an exception. */
static bool is_site(const Log *log, PyObject *number, unsigned long *wanted)
{
    *wanted = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred()) {
        return false;
    }
    if (*wanted >= log->sites.count) {
        PyErr_Format(PyExc_IndexError, "there are %u sites, and no number %lu", log->sites.count, *wanted);
        return false;
    }
    return true;
}

static PyTypeObject *site_row_type;

int sites_add_type(PyObject *module)
{
    static PyStructSequence_Field fields[] = {
        {"kind", NULL}, {"device", NULL}, {"op", NULL}, {"places", NULL}, {"births", NULL}, {"live", NULL},
        {"nbytes", NULL}, {"peak_nbytes", NULL}, {"first_birth", NULL}, {"last_birth", NULL},
        {"last_birth_before_death", NULL}, {"held_since", NULL}, {"made", NULL}, {"held", NULL},
        {"held_nbytes", NULL}, {"last_birth_before_fall", NULL}, {NULL, NULL},
    };
    PyStructSequence_Desc description = {
        .name = "disposescope.leaks.births.compiled.SiteRow",
        .fields = fields,
        .n_in_sequence = sizeof fields / sizeof *fields - 1,
    };
    site_row_type = PyStructSequence_NewType(&description);
    return site_row_type == NULL ? -1 : PyModule_AddType(module, site_row_type);
}

PyObject *sites_site(Log *log, PyObject *number)
{
    unsigned long wanted;
    if (!is_site(log, number, &wanted)) {
        return NULL;
    }
    /* The objects made here may start the garbage collector, and with it births, which move the
     * sites, or a clear. */
    uint64_t clearings = log->clearings;
    uint32_t count = log->sites.all[wanted].places_count;
    PyObject *places = PyTuple_New(count);
    for (uint32_t i = 0; places != NULL && log->clearings == clearings && i < count; i++) {
        const struct place *place = &log->sites.all[wanted].places[i];
        PyObject *pair = Py_BuildValue("On", (PyObject *)place->code, (Py_ssize_t)place->instruction);
        if (pair == NULL) {
            Py_CLEAR(places);
            break;
        }
        PyTuple_SET_ITEM(places, i, pair);
    }
    if (places != NULL && log->clearings != clearings) {
        Py_CLEAR(places);
        PyErr_Format(PyExc_IndexError, "the log was cleared while site %lu was read", wanted);
    }
    if (places == NULL) {
        return NULL;
    }
    struct site site = log->sites.all[wanted];
    struct level most = most_held(&site);
    PyObject *fields = Py_BuildValue(
        "OOONKdLLKKKKKLLK", names_object(&log->kind_names, site.kind), names_object(&log->devices, site.device),
        names_object(&log->ops, site.op), places, (unsigned long long)site.births, site.live,
        (long long)site.live_nbytes, (long long)site.peak_nbytes, (unsigned long long)site.first_birth,
        (unsigned long long)site.latest_birth, (unsigned long long)site.latest_death,
        (unsigned long long)site.held_since, (unsigned long long)made_at(&site),
        llround(most.live), (long long)most.nbytes, (unsigned long long)site.last_birth_before_fall);
    PyObject *row = fields == NULL ? NULL : PyObject_CallOneArg((PyObject *)site_row_type, fields);
    Py_XDECREF(fields);
    return row;
}
