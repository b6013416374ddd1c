#include "_birthlog.h"
#include "_birthlog_frames.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ codes */

/* What a code is to a person who looks for a line; as in _site.py. */
enum rank { USER, GENERATED, LIBRARY, KEEPER, THROUGH, PASSING, LOST };

/* Every code that was met, held so that its address stays its own. */
struct code {
    PyCodeObject *code;
    enum rank rank;
};

static struct code *codes;
static size_t room_for_codes, count_of_codes;
static PyObject *rank_function;

static inline uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash ^= word;
    hash *= UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ (hash >> 29);
}

static struct code *code_slot(const PyCodeObject *code)
{
    size_t mask = room_for_codes - 1;
    size_t at = (size_t)mixed(0, (uint64_t)(uintptr_t)code) & mask;
    while (codes[at].code != NULL && codes[at].code != code) {
        at = (at + 1) & mask;
    }
    return &codes[at];
}

static int grow_codes(void)
{
    size_t before = room_for_codes;
    struct code *old = codes, *fresh = calloc(before == 0 ? 1024 : before * 2, sizeof *fresh);
    if (fresh == NULL) {
        return -1;
    }
    codes = fresh;
    room_for_codes = before == 0 ? 1024 : before * 2;
    for (size_t at = 0; at < before; at++) {
        if (old[at].code != NULL) {
            *code_slot(old[at].code) = old[at];
        }
    }
    free(old);
    return 0;
}

/* The rank of the code of a frame; LOST where there is no memory to remember it. */
static enum rank rank_of(struct walk *walk)
{
    PyCodeObject *code = walk_code(walk);
    if (codes != NULL) {
        struct code *known = code_slot(code);
        if (known->code != NULL) {
            return known->rank;
        }
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *globals = walk_globals(walk);
    PyObject *told = globals == NULL ? NULL
                                     : PyObject_CallFunctionObjArgs(rank_function, (PyObject *)code, globals, NULL);
    Py_XDECREF(globals);
    long rank = told == NULL ? USER : PyLong_AsLong(told);
    Py_XDECREF(told);
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    if (rank < USER || rank > PASSING) {
        rank = USER;
    }
    if ((codes == NULL || count_of_codes + 1 > room_for_codes / 2) && grow_codes() < 0) {
        return LOST;
    }
    struct code *slot = code_slot(code);
    if (slot->code == NULL) {
        slot->code = (PyCodeObject *)Py_NewRef((PyObject *)code);
        slot->rank = (enum rank)rank;
        count_of_codes++;
    }
    return slot->rank;
}

/* ------------------------------------------------------------------ lines */

/* One line has several instructions, and the interpreter moves from one of them to another while it specialises a call: the first
 * that was met stands for all. By instruction, and by line as the negative of the line less one; the codes are held above. */
struct known_place {
    PyCodeObject *code;
    intptr_t instruction, canonical;
};

static struct known_place *known_places;
static size_t room_for_known, count_of_known;

static struct known_place *known_slot(const PyCodeObject *code, intptr_t instruction)
{
    size_t mask = room_for_known - 1;
    size_t at = (size_t)mixed(mixed(0, (uint64_t)(uintptr_t)code), (uint64_t)instruction) & mask;
    while (known_places[at].code != NULL &&
           (known_places[at].code != code || known_places[at].instruction != instruction)) {
        at = (at + 1) & mask;
    }
    return &known_places[at];
}

static int grow_known(void)
{
    size_t before = room_for_known, room = before == 0 ? 1024 : before * 2;
    struct known_place *old = known_places, *fresh = calloc(room, sizeof *fresh);
    if (fresh == NULL) {
        return -1;
    }
    known_places = fresh;
    room_for_known = room;
    for (size_t at = 0; at < before; at++) {
        if (old[at].code != NULL) {
            *known_slot(old[at].code, old[at].instruction) = old[at];
        }
    }
    free(old);
    return 0;
}

/* The instruction that stands for the line of one. Runs no Python code. */
static intptr_t canonical(PyCodeObject *code, intptr_t instruction)
{
    if (known_places != NULL) {
        struct known_place *known = known_slot(code, instruction);
        if (known->code != NULL) {
            return known->canonical;
        }
    }
    if ((known_places == NULL || count_of_known + 2 > room_for_known / 2) && grow_known() < 0) {
        return instruction;
    }
    int line = PyCode_Addr2Line(code, (int)instruction);
    if (line > 0) {
        struct known_place *by_line = known_slot(code, -(intptr_t)line - 1);
        if (by_line->code == NULL) {
            *by_line = (struct known_place){code, -(intptr_t)line - 1, instruction};
            count_of_known++;
        }
        intptr_t first = by_line->canonical;
        *known_slot(code, instruction) = (struct known_place){code, instruction, first};
        count_of_known++;
        return first;
    }
    return instruction;
}

/* Let go of all codes; sites hold theirs. What is let go may take anything with it. */
static void forget_codes(void)
{
    struct code *old = codes;
    size_t before = room_for_codes;
    codes = NULL;
    room_for_codes = count_of_codes = 0;
    free(known_places);
    known_places = NULL;
    room_for_known = count_of_known = 0;
    for (size_t at = 0; at < before; at++) {
        Py_XDECREF((PyObject *)old[at].code);
    }
    free(old);
}

/* ------------------------------------------------------------------ where we are */

#define PLACES_AT_MOST 64
#define CODES_AT_MOST 50000

uint32_t frames_wanted = 1;

/* The places of user code, innermost first; where there is none, generated code or the outermost frame. `called` gets the code
 * of the library that the innermost one called, or NULL. Returns how many, or -1 where nothing is to be remembered. */
static int places_here(struct place *places, uint32_t wanted, PyCodeObject **called)
{
    int count = 0;
    struct place generated = {NULL, 0}, outermost = {NULL, 0};
    *called = NULL;
    if (count_of_codes > CODES_AT_MOST) {
        /* A program that makes code all the time shall not keep all of it. */
        forget_codes();
    }
    struct walk walk;
    walk_begin(&walk);
    bool innermost = true;
    while (!walk_ended(&walk) && count < (int)wanted) {
        enum rank rank = rank_of(&walk);
        if (rank == LOST || (innermost && rank == KEEPER)) {
            walk_end(&walk);
            return -1;
        }
        if (innermost && (rank == THROUGH || rank == PASSING)) {
            walk_out(&walk);
            if (rank == THROUGH && !walk_ended(&walk)) {
                /* The function that asked for it stands between its caller and what is called. */
                *called = walk_code(&walk);
                walk_out(&walk);
            }
            continue;
        }
        innermost = false;
        struct place here = {walk_code(&walk), walk_instruction(&walk)};
        if (rank == USER) {
            here.instruction = canonical(here.code, here.instruction);
            places[count++] = here;
        }
        else if (count == 0) {
            outermost = here;
            if (rank == GENERATED) {
                if (generated.code == NULL) {
                    generated = here;
                }
            }
            else {
                *called = here.code;
            }
        }
        walk_out(&walk);
    }
    walk_end(&walk);
    if (count == 0) {
        if (generated.code != NULL) {
            places[count++] = generated;
        }
        else if (outermost.code != NULL) {
            places[count++] = outermost;
        }
        *called = NULL;
    }
    return count;
}

bool sites_place_here(struct place *place)
{
    PyCodeObject *called;
    struct place places[1];
    if (places_here(places, 1, &called) < 1) {
        return false;
    }
    *place = places[0];
    return true;
}

/* ------------------------------------------------------------------ series */

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
    int found = places_here(places, frames_wanted < PLACES_AT_MOST ? frames_wanted : PLACES_AT_MOST, &called);
    if (found < 0) {
        return UINT32_MAX;
    }
    if (op == NULL && called != NULL) {
        op = called->co_name;
    }
    uint16_t op_number = op == NULL ? UINT16_MAX : names_number(&op_names, op);
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
        while (sites[i].series != NULL) {
            struct series *next = sites[i].series->next;
            free(sites[i].series->points);
            free(sites[i].series);
            sites[i].series = next;
        }
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
    free(passes_by_name);
    passes_by_name = NULL;
    count_of_passes = 0;
    forget_codes();
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t at = 0; at < gone[i].count_of_places; at++) {
            Py_DECREF((PyObject *)gone[i].places[at].code);
        }
        free(gone[i].places);
    }
    free(gone);
}

int sites_bind(PyObject *rank)
{
    Py_XSETREF(rank_function, Py_NewRef(rank));
    return 0;
}
