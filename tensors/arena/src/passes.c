#include "passes.h"

#include <stdlib.h>
#include <string.h>

#include "../../../scopes/src/shared/frames.h"
#include "accounts.h"
#include "functions.h"

/* ================================================================== a slab, as Python has it */

struct slab_object {
    PyObject_HEAD
    struct slab *slab;
};

static PyObject *slab_make(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *parameters[] = {"nbytes", "verified", NULL};
    Py_ssize_t nbytes;
    int verified = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "n|p:Slab", parameters, &nbytes, &verified)) {
        return NULL;
    }
    if (nbytes <= 0 || nbytes > PY_SSIZE_T_MAX / 2) {
        PyErr_Format(PyExc_ValueError, "Slab: %zd is no number of bytes", nbytes);
        return NULL;
    }
    struct slab_object *self = (struct slab_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->slab = slab_new((size_t)nbytes, verified);
    if (self->slab == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void slab_dealloc(struct slab_object *self)
{
    if (self->slab != NULL) {
        slab_abandon(self->slab);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *slab_get_nbytes(struct slab_object *self, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(self->slab->nbytes);
}

static PyObject *slab_get_live_blocks(struct slab_object *self, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(self->slab->live_blocks);
}

static PyObject *slab_get_live_nbytes(struct slab_object *self, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(self->slab->live_nbytes);
}

static PyObject *slab_get_fault(struct slab_object *self, void *closure)
{
    (void)closure;
    slab_check(self->slab);
    if (self->slab->fault == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("sn", self->slab->fault, (Py_ssize_t)self->slab->fault_offset);
}

static PyGetSetDef slab_fields[] = {
    {"nbytes", (getter)slab_get_nbytes, NULL, NULL, NULL},
    {"live_blocks", (getter)slab_get_live_blocks, NULL, NULL, NULL},
    {"live_nbytes", (getter)slab_get_live_nbytes, NULL, NULL, NULL},
    {"fault", (getter)slab_get_fault, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject slab_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.tensors.arena.compiled.Slab",
    .tp_basicsize = sizeof(struct slab_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = slab_make,
    .tp_dealloc = (destructor)slab_dealloc,
    .tp_getset = slab_fields,
};

/* ================================================================== plans */

#define BY_POOL SIZE_MAX /* an offset: the slot is no block of the slab */
#define PLACES 16

struct place {
    PyCodeObject *code; /* a reference */
    int instruction;
    int line; /* of the instruction in the slots of a plan; otherwise 0 */
};

/* Places in their order, innermost first. */
struct trace {
    uint32_t first, count;
};

struct slot {
    struct trace trace; /* in the places of the plan; a count of 0 where there was no frame */
    size_t nbytes; /* the most that fits */
    size_t offset;
    uint32_t first, spans; /* of the spans of bytes that it has, where it is in the slab */
};

/* The slab is cut where a slot begins or ends, and `used` has a bit for each span between two cuts:
 * whether the block that was given it in this pass is alive. What a block takes at its birth are
 * the spans of its slot. */
struct plan_object {
    PyObject_HEAD
    struct place *places;
    uint32_t places_count;
    struct slot *slots;
    uint32_t count;
    size_t *cuts;
    uint32_t cuts_count;
    uint64_t *used;
    size_t height;
    bool verified;
    bool serves; /* for an open pass */
};

static int by_size_t(const void *one, const void *other)
{
    size_t a = *(const size_t *)one, b = *(const size_t *)other;
    return (a > b) - (a < b);
}

/* The number of the last cut that is not above an offset; 0 where none is. */
static uint32_t cut_below(const struct plan_object *plan, size_t offset)
{
    uint32_t low = 0, high = plan->cuts_count;
    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;
        if (plan->cuts[middle] <= offset) {
            low = middle;
        }
        else {
            high = middle;
        }
    }
    return low;
}

/* Cut the slab where slots begin and end. 0, or -1 with an exception. */
static int cut(struct plan_object *plan)
{
    plan->cuts = PyMem_Calloc((size_t)plan->count * 2 + 1, sizeof *plan->cuts);
    if (plan->cuts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct slot *slot = &plan->slots[i];
        if (slot->offset != BY_POOL) {
            size_t end = slot->offset + slab_room(slot->nbytes, plan->verified);
            plan->cuts[count++] = slot->offset;
            plan->cuts[count++] = end;
            plan->height = end > plan->height ? end : plan->height;
        }
    }
    qsort(plan->cuts, count, sizeof *plan->cuts, by_size_t);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (kept == 0 || plan->cuts[kept - 1] != plan->cuts[i]) {
            plan->cuts[kept++] = plan->cuts[i];
        }
    }
    plan->cuts_count = kept;
    for (uint32_t i = 0; i < plan->count; i++) {
        struct slot *slot = &plan->slots[i];
        if (slot->offset != BY_POOL) {
            slot->first = cut_below(plan, slot->offset);
            slot->spans = cut_below(plan, slot->offset + slab_room(slot->nbytes, plan->verified)) - slot->first;
        }
    }
    plan->used = PyMem_Calloc((size_t)kept / 64 + 1, sizeof *plan->used);
    if (plan->used == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

/* Read the places of a trace; there is room for PLACES more. 0, or -1 with an exception. */
static int read_trace(struct plan_object *plan, struct trace *trace, PyObject *pairs)
{
    if (!PyTuple_Check(pairs) || PyTuple_GET_SIZE(pairs) > PLACES) {
        PyErr_Format(PyExc_TypeError, "PassPlan: a trace is a tuple of at most %d places", PLACES);
        return -1;
    }
    trace->first = plan->places_count;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pairs); i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, i), *code;
        int instruction;
        if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "O!i", &PyCode_Type, &code, &instruction)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "PassPlan: a place is a tuple of code and instruction");
            }
            return -1;
        }
        plan->places[plan->places_count++] = (struct place){
            .code = (PyCodeObject *)Py_NewRef(code),
            .instruction = instruction,
            .line = PyCode_Addr2Line((PyCodeObject *)code, instruction),
        };
        trace->count++;
    }
    return 0;
}

static int read_slot(struct slot *slot, PyObject *row, const struct trace *traces, Py_ssize_t traces_count)
{
    Py_ssize_t trace, nbytes, offset;
    if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "nnn", &trace, &nbytes, &offset)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "PassPlan: a slot is a tuple of a trace's number, bytes and offset");
        }
        return -1;
    }
    if (trace < 0 || trace >= traces_count || nbytes <= 0 || nbytes > PY_SSIZE_T_MAX / 4 || offset < -1 ||
        offset > PY_SSIZE_T_MAX / 4 || (offset != -1 && (size_t)offset % ARENA_ALIGNMENT != 0)) {
        PyErr_SetString(PyExc_ValueError,
                        "PassPlan: a slot has the number of a trace, some bytes, and an aligned offset or -1");
        return -1;
    }
    slot->trace = traces[trace];
    slot->nbytes = (size_t)nbytes;
    slot->offset = offset == -1 ? BY_POOL : (size_t)offset;
    return 0;
}

/* Read the traces and the slots of a plan. 0, or -1 with an exception. */
static int read_plan(struct plan_object *plan, PyObject *pairs, PyObject *rows)
{
    Py_ssize_t traces_count = PyTuple_GET_SIZE(pairs), count = PyTuple_GET_SIZE(rows);
    struct trace *traces = PyMem_Calloc((size_t)traces_count + 1, sizeof *traces);
    plan->places = traces_count > UINT32_MAX / 4 / PLACES
                       ? NULL
                       : PyMem_Calloc((size_t)traces_count * PLACES + 1, sizeof *plan->places);
    plan->slots = count > UINT32_MAX / 4 ? NULL : PyMem_Calloc((size_t)count + 1, sizeof *plan->slots);
    int failed = 0;
    if (traces == NULL || plan->places == NULL || plan->slots == NULL) {
        PyErr_NoMemory();
        failed = -1;
    }
    for (Py_ssize_t i = 0; !failed && i < traces_count; i++) {
        failed = read_trace(plan, &traces[i], PyTuple_GET_ITEM(pairs, i));
    }
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        failed = read_slot(&plan->slots[i], PyTuple_GET_ITEM(rows, i), traces, traces_count);
        plan->count++;
    }
    PyMem_Free(traces);
    return failed;
}

static PyObject *plan_make(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *parameters[] = {"traces", "slots", "verified", NULL};
    PyObject *traces, *rows;
    int verified = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "O!O!|p:PassPlan", parameters, &PyTuple_Type, &traces,
                                     &PyTuple_Type, &rows, &verified)) {
        return NULL;
    }
    struct plan_object *self = (struct plan_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->verified = verified;
    if (read_plan(self, traces, rows) < 0 || cut(self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void plan_dealloc(struct plan_object *self)
{
    for (uint32_t i = 0; i < self->places_count; i++) {
        Py_DECREF(self->places[i].code);
    }
    PyMem_Free(self->places);
    PyMem_Free(self->slots);
    PyMem_Free(self->cuts);
    PyMem_Free(self->used);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *plan_exclude(struct plan_object *self, PyObject *number)
{
    Py_ssize_t slot = PyLong_AsSsize_t(number);
    if (slot == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (slot < 0 || slot >= (Py_ssize_t)self->count) {
        PyErr_Format(PyExc_IndexError, "exclude: the plan has no slot %zd", slot);
        return NULL;
    }
    if (self->serves) {
        PyErr_SetString(PyExc_RuntimeError, "exclude: the plan serves a pass");
        return NULL;
    }
    self->slots[slot].offset = BY_POOL;
    Py_RETURN_NONE;
}

static PyObject *plan_get_height(struct plan_object *self, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(self->height);
}

static PyMethodDef plan_methods[] = {
    {"exclude", (PyCFunction)(void (*)(void))plan_exclude, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef plan_fields[] = {
    {"height", (getter)plan_get_height, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject plan_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.tensors.arena.compiled.PassPlan",
    .tp_basicsize = sizeof(struct plan_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = plan_make,
    .tp_dealloc = (destructor)plan_dealloc,
    .tp_methods = plan_methods,
    .tp_getset = plan_fields,
};

/* ------------------------------------------------------------------ spans */

enum spans_verb { LOOK, TAKE, GIVE };

/* Take or give some spans, or look at them; whether all of them were dead before. */
static bool spans_do(struct plan_object *plan, enum spans_verb verb, uint32_t first, uint32_t count)
{
    bool dead = true;
    uint32_t end = first + count;
    for (uint32_t at = first, stop; at < end; at = stop) {
        uint32_t word = at / 64;
        stop = (word + 1) * 64 < end ? (word + 1) * 64 : end;
        uint64_t mask = (~UINT64_C(0) << (at % 64)) & (~UINT64_C(0) >> (63 - (stop - 1) % 64));
        dead = dead && (plan->used[word] & mask) == 0;
        if (verb == TAKE) {
            plan->used[word] |= mask;
        }
        else if (verb == GIVE) {
            plan->used[word] &= ~mask;
        }
    }
    return dead;
}

/* Take the spans in which blocks of earlier passes are alive, for the whole of a pass: they may die
 * in it. */
static void take_what_lives(struct plan_object *plan, const struct slab *slab)
{
    memset(plan->used, 0, (plan->cuts_count / 64 + 1) * sizeof *plan->used);
    if (plan->cuts_count < 2) {
        return;
    }
    for (const struct tracked *tracked = slab->blocks; tracked != NULL; tracked = tracked->next) {
        size_t begin = (size_t)((const char *)tracked->address - slab->base), end = begin + tracked->room;
        uint32_t first = cut_below(plan, begin), last = cut_below(plan, end - 1);
        spans_do(plan, TAKE, first, last - first + 1);
    }
}

/* ================================================================== passes */

enum outcome {
    RECORDED_ONLY, /* there is no plan */
    SERVED,        /* by the slab */
    ESCAPES,       /* its slot is one that the pool serves */
    UNKNOWN,       /* no slot of that place ahead */
    LARGER,        /* than the next slot of that place */
    IN_USE,        /* bytes of its slot are */
    RESIZED,       /* it is the new place of a block that was given another size */
    ELSEWHERE,     /* it was born on another thread */
    NOTED,         /* it is memory of another library, that Python has noted */
    SAVED          /* likewise, and a graph may have saved it */
};

#define ALIVE UINT32_MAX
#define NO_SLOT UINT32_MAX
#define LOOKAHEAD 64
#define MOST_BIRTHS ((uint32_t)1 << 24)

struct birth {
    size_t nbytes;
    uint32_t died;  /* the number of births at its death */
    uint32_t slot;
    uint32_t trace; /* where its places are, and how many; none for what the slab served */
    uint8_t places, outcome;
};

struct pass {
    struct pass_head head;
    unsigned long thread;
    struct plan_object *plan; /* references, while it is open; the plan may be NULL */
    struct slab_object *slab;
    uint32_t cursor;          /* the slot that is expected next */
    struct birth *births;
    /* What is born after the last that there is room for is not recorded. */
    uint32_t births_count, births_room, births_most;
    struct place *places;
    uint32_t places_count, places_room;
    /* Births with the same places share a trace. The traces are a table with open addressing, half
     * of it free, of entries with a count of 0. Its room is a power of two, or 0. */
    struct trace *traces;
    uint32_t traces_count, traces_room;
    struct tracked *blocks; /* born in it and in use */
    size_t live_nbytes, peak_nbytes;
    uint32_t hits, misses, escaped;
};

/* ------------------------------------------------------------------ recording */

/* Room for one more; false where there is no memory. */
static bool has_room(void **items, uint32_t count, uint32_t *room, uint32_t most, size_t item_nbytes)
{
    if (count < *room) {
        return true;
    }
    uint32_t wanted = *room == 0 ? 64 : *room + *room / 2;
    wanted = wanted < most ? wanted : most;
    void *larger = wanted == *room ? NULL : realloc(*items, wanted * item_nbytes);
    if (larger == NULL) {
        return false;
    }
    *items = larger;
    *room = wanted;
    return true;
}

static uint64_t hash_of(const struct place *places, uint32_t count)
{
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) {
        hash = (hash ^ (uintptr_t)places[i].code) * UINT64_C(0x9E3779B97F4A7C15);
        hash = (hash ^ (uint32_t)places[i].instruction) * UINT64_C(0x9E3779B97F4A7C15);
    }
    return hash >> 32;
}

/* The entry of some places in the table, or the free one where they would be. */
static struct trace *trace_at(const struct pass *pass, const struct place *places, uint32_t count)
{
    uint32_t at = (uint32_t)hash_of(places, count) & (pass->traces_room - 1);
    for (;; at = (at + 1) & (pass->traces_room - 1)) {
        struct trace *trace = &pass->traces[at];
        if (trace->count == 0) {
            return trace;
        }
        if (trace->count == count) {
            const struct place *known = &pass->places[trace->first];
            uint32_t same = 0;
            while (same < count && known[same].code == places[same].code &&
                   known[same].instruction == places[same].instruction) {
                same++;
            }
            if (same == count) {
                return trace;
            }
        }
    }
}

/* Room in the table for one more; false where there is no memory. */
static bool grow_traces(struct pass *pass)
{
    if (pass->traces_count * 2 < pass->traces_room) {
        return true;
    }
    struct trace *before = pass->traces;
    uint32_t count = pass->traces_room;
    struct trace *after = calloc(count == 0 ? 64 : (size_t)count * 2, sizeof *after);
    if (after == NULL) {
        return false;
    }
    pass->traces = after;
    pass->traces_room = count == 0 ? 64 : count * 2;
    for (uint32_t i = 0; i < count; i++) {
        if (before[i].count != 0) {
            *trace_at(pass, &pass->places[before[i].first], before[i].count) = before[i];
        }
    }
    free(before);
    return true;
}

/* Record where a birth is: the frames of this thread, innermost first. */
static void record_places(struct pass *pass, struct birth *birth)
{
    struct place found[PLACES];
    uint32_t count = 0;
    struct walk walk;
    walk_begin(&walk);
    for (; !walk_ended(&walk) && count < PLACES; walk_out(&walk)) {
        found[count++] = (struct place){.code = walk_code(&walk), .instruction = walk_instruction(&walk)};
    }
    /* The frames, which hold the code, are there until the end of the walk and beyond: no Python
     * code runs. */
    walk_end(&walk);
    if (count == 0 || !grow_traces(pass)) {
        return;
    }
    struct trace *trace = trace_at(pass, found, count);
    if (trace->count == 0) {
        uint32_t first = pass->places_count;
        for (uint32_t i = 0; i < count; i++) {
            if (!has_room((void **)&pass->places, pass->places_count, &pass->places_room, MOST_BIRTHS,
                          sizeof *pass->places)) {
                while (pass->places_count > first) {
                    Py_DECREF(pass->places[--pass->places_count].code);
                }
                return;
            }
            pass->places[pass->places_count++] = (struct place){
                .code = (PyCodeObject *)Py_NewRef((PyObject *)found[i].code),
                .instruction = found[i].instruction,
            };
        }
        *trace = (struct trace){.first = first, .count = count};
        pass->traces_count++;
    }
    birth->trace = trace->first;
    birth->places = (uint8_t)count;
}

/* Whether the innermost place is the one of a slot. In Python 3.11 a call is two instructions,
 * PRECALL and CALL, and which of them is running depends on how often it ran: the compiler
 * specializes the former, which then does the work of both. */
static inline bool is_innermost(const struct place *wanted, const struct place *seen)
{
#if PY_VERSION_HEX < 0x030C0000
    int distance = wanted->instruction - seen->instruction;
    return wanted->code == seen->code && (distance == 0 || distance == 4 || distance == -4);
#else
    return wanted->code == seen->code && wanted->instruction == seen->instruction;
#endif
}

/* Whether a place further out is the one of a slot: its line is. Which instruction a caller is at
 * depends on how often it ran, too. */
static inline bool is_caller(const struct place *wanted, struct place *seen)
{
    if (wanted->code != seen->code || wanted->instruction == seen->instruction) {
        return wanted->code == seen->code;
    }
    if (seen->line == 0) {
        seen->line = PyCode_Addr2Line(seen->code, seen->instruction);
    }
    return wanted->line == seen->line;
}

/* The frames of a birth, which are looked at as far as slots ask for them. */
struct frames {
    struct walk walk;
    struct place seen[PLACES];
    uint32_t count;
};

/* Whether these frames are at the places of a slot. */
static bool is_of(const struct plan_object *plan, const struct slot *slot, struct frames *frames)
{
    const struct place *wanted = &plan->places[slot->trace.first];
    for (uint32_t i = 0; i < slot->trace.count; i++) {
        if (i == frames->count) {
            if (walk_ended(&frames->walk)) {
                return false;
            }
            frames->seen[frames->count++] =
                (struct place){.code = walk_code(&frames->walk), .instruction = walk_instruction(&frames->walk)};
            walk_out(&frames->walk);
        }
        struct place *seen = &frames->seen[i];
        if (i == 0 ? !is_innermost(&wanted[i], seen) : !is_caller(&wanted[i], seen)) {
            return false;
        }
    }
    return slot->trace.count != 0 || (frames->count == 0 && walk_ended(&frames->walk));
}

/* The slot that a birth takes, and what comes of it. */
static uint32_t find_slot(struct pass *pass, size_t nbytes, uint8_t *outcome)
{
    struct plan_object *plan = pass->plan;
    struct frames frames;
    frames.count = 0;
    walk_begin(&frames.walk);
    uint32_t end = plan->count - pass->cursor > LOOKAHEAD ? pass->cursor + LOOKAHEAD : plan->count;
    uint32_t found = NO_SLOT, too_small = NO_SLOT;
    for (uint32_t i = pass->cursor; i < end && found == NO_SLOT; i++) {
        const struct slot *slot = &plan->slots[i];
        if (!is_of(plan, slot, &frames)) {
            continue;
        }
        if (nbytes <= slot->nbytes) {
            found = i;
        }
        else if (too_small == NO_SLOT) {
            too_small = i;
        }
    }
    walk_end(&frames.walk);
    if (found != NO_SLOT) {
        const struct slot *slot = &plan->slots[found];
        pass->cursor = found + 1;
        if (slot->offset == BY_POOL) {
            *outcome = ESCAPES;
        }
        else {
            *outcome = spans_do(plan, LOOK, slot->first, slot->spans) ? SERVED : IN_USE;
        }
        return found;
    }
    *outcome = too_small == NO_SLOT ? UNKNOWN : LARGER;
    if (too_small == pass->cursor && too_small != NO_SLOT) {
        pass->cursor++;
    }
    return too_small;
}

static void add_nbytes(struct pass *pass, size_t nbytes)
{
    pass->live_nbytes += nbytes;
    pass->peak_nbytes = pass->live_nbytes > pass->peak_nbytes ? pass->live_nbytes : pass->peak_nbytes;
}

static void link_block(struct pass *pass, struct tracked *tracked, uint32_t birth)
{
    tracked->pass = pass;
    tracked->birth = birth;
    tracked->earlier = NULL;
    tracked->later = pass->blocks;
    if (pass->blocks != NULL) {
        pass->blocks->earlier = tracked;
    }
    pass->blocks = tracked;
    add_nbytes(pass, pass->births[birth].nbytes);
}

static void unlink_block(struct tracked *tracked)
{
    if (tracked->later != NULL) {
        tracked->later->earlier = tracked->earlier;
    }
    if (tracked->earlier != NULL) {
        tracked->earlier->later = tracked->later;
    }
    else {
        tracked->pass->blocks = tracked->later;
    }
    tracked->pass = NULL;
}

static bool is_miss(uint8_t outcome) { return outcome == UNKNOWN || outcome == LARGER || outcome == IN_USE; }

uint32_t pass_born(struct pass *pass, size_t nbytes, bool resized, struct tracked **planned)
{
    *planned = NULL;
    if (!has_room((void **)&pass->births, pass->births_count, &pass->births_room, pass->births_most,
                  sizeof *pass->births)) {
        return NO_BIRTH;
    }
    uint32_t number = pass->births_count++;
    struct birth *birth = &pass->births[number];
    *birth = (struct birth){.nbytes = nbytes, .died = ALIVE, .slot = NO_SLOT};
    if (PyThread_get_thread_ident() != pass->thread) {
        birth->outcome = ELSEWHERE;
    }
    else if (resized) {
        birth->outcome = RESIZED;
    }
    else if (pass->plan != NULL) {
        birth->slot = find_slot(pass, nbytes, &birth->outcome);
    }
    if (birth->outcome == SERVED) {
        const struct slot *slot = &pass->plan->slots[birth->slot];
        struct tracked *tracked = slab_put(pass->slab->slab, slot->offset, nbytes);
        if (tracked != NULL) {
            tracked->slot = birth->slot;
            spans_do(pass->plan, TAKE, slot->first, slot->spans);
            link_block(pass, tracked, number);
            pass->hits++;
            *planned = tracked;
            return number;
        }
        birth->outcome = UNKNOWN;
    }
    pass->misses += is_miss(birth->outcome);
    record_places(pass, birth);
    return number;
}

void pass_track(struct pass *pass, uint32_t birth, void *address, struct block *block)
{
    struct tracked *tracked = birth == NO_BIRTH ? NULL : tracked_add(address, block);
    if (tracked != NULL) {
        link_block(pass, tracked, birth);
    }
}

void pass_take_back(struct pass *pass, uint32_t birth)
{
    if (birth != NO_BIRTH) {
        /* Its number stays taken: it has no bytes, and is dead at once. */
        struct birth *refused = &pass->births[birth];
        pass->misses -= is_miss(refused->outcome);
        refused->nbytes = 0;
        refused->died = birth + 1;
    }
}

void pass_block_died(struct tracked *tracked)
{
    struct pass *pass = tracked->pass;
    if (pass != NULL) {
        pass->births[tracked->birth].died = pass->births_count;
        pass->live_nbytes -= pass->births[tracked->birth].nbytes;
        if (tracked->slab != NULL) {
            const struct slot *slot = &pass->plan->slots[tracked->slot];
            spans_do(pass->plan, GIVE, slot->first, slot->spans);
        }
        unlink_block(tracked);
    }
    tracked_remove(tracked);
}

void pass_block_resized(struct tracked *tracked, size_t nbytes)
{
    if (tracked->pass != NULL) {
        struct birth *birth = &tracked->pass->births[tracked->birth];
        if (nbytes > birth->nbytes) {
            add_nbytes(tracked->pass, nbytes - birth->nbytes);
            birth->nbytes = nbytes;
        }
    }
}

/* ------------------------------------------------------------------ totals of passes */

struct totals_object {
    PyObject_HEAD
    unsigned long long passes, hits, misses, escaped;
};

/* All at once: passes may end on other threads. */
static PyObject *totals_figures(struct totals_object *self, PyObject *ignored)
{
    (void)ignored;
    return Py_BuildValue("KKKK", self->passes, self->hits, self->misses, self->escaped);
}

static PyMethodDef totals_methods[] = {
    {"figures", (PyCFunction)(void (*)(void))totals_figures, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject totals_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.tensors.arena.compiled.PassTotals",
    .tp_basicsize = sizeof(struct totals_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_methods = totals_methods,
};

/* ------------------------------------------------------------------ a pass, as Python has it */

struct pass_object {
    PyObject_HEAD
    struct pass *pass;
};

/* The pass is over: what of it is in use is left to live on. Returns how many blocks of the slab
 * that is. */
static uint32_t close_pass(struct pass *pass)
{
    uint32_t escaped = 0;
    if (!pass->head.is_open) {
        return 0;
    }
    pass->head.is_open = false;
    passes_open--;
    while (pass->blocks != NULL) {
        struct tracked *tracked = pass->blocks;
        unlink_block(tracked);
        pass->escaped++;
        if (tracked->slab != NULL) {
            escaped++;
        }
        else {
            block_note(pool_block_at(tracked->address), TRACKED, false);
            tracked_remove(tracked);
        }
    }
    struct plan_object *plan = pass->plan;
    struct slab_object *slab = pass->slab;
    pass->plan = NULL;
    pass->slab = NULL;
    if (plan != NULL) {
        plan->serves = false;
        slab->slab->serves = false;
    }
    Py_XDECREF(plan);
    Py_XDECREF(slab);
    return escaped;
}

static PyObject *pass_make(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *parameters[] = {"plan", "slab", "most_births", NULL};
    PyObject *plan = Py_None, *slab = Py_None;
    Py_ssize_t most = MOST_BIRTHS;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "|OOn:Pass", parameters, &plan, &slab, &most)) {
        return NULL;
    }
    if (most < 1 || most > (Py_ssize_t)MOST_BIRTHS) {
        PyErr_Format(PyExc_ValueError, "Pass: most_births is from 1 to %u, not %zd", (unsigned)MOST_BIRTHS, most);
        return NULL;
    }
    if ((plan == Py_None) != (slab == Py_None) ||
        (plan != Py_None && (!Py_IS_TYPE(plan, &plan_type) || !Py_IS_TYPE(slab, &slab_type)))) {
        PyErr_SetString(PyExc_TypeError, "Pass: give a PassPlan and a Slab, or neither");
        return NULL;
    }
    struct pass_object *self = (struct pass_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->pass = calloc(1, sizeof *self->pass);
    if (self->pass == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->pass->head.references = 1;
    self->pass->births_most = (uint32_t)most;
    if (plan != Py_None) {
        self->pass->plan = (struct plan_object *)Py_NewRef(plan);
        self->pass->slab = (struct slab_object *)Py_NewRef(slab);
    }
    return (PyObject *)self;
}

static void pass_dealloc(struct pass_object *self)
{
    struct pass *pass = self->pass;
    if (pass != NULL) {
        if (pass->head.is_open) {
            close_pass(pass);
        }
        Py_CLEAR(pass->plan);
        Py_CLEAR(pass->slab);
        uint32_t count = pass->places_count;
        pass->places_count = 0;
        for (uint32_t i = 0; i < count; i++) {
            Py_DECREF(pass->places[i].code);
        }
        /* Accounts may refer to it for long. */
        free(pass->births);
        free(pass->places);
        free(pass->traces);
        pass->births = NULL;
        pass->places = NULL;
        pass->traces = NULL;
        pass_release(&pass->head);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *pass_begin(struct pass_object *self, PyObject *object)
{
    struct pass *pass = self->pass;
    struct account *account = &account_of_nobody;
    if (object != Py_None) {
        ScopeState *scope = scope_argument(object);
        account = scope == NULL ? NULL : account_of(scope, true);
        if (account == NULL) {
            return NULL;
        }
        account = account_now(account);
    }
    struct plan_object *plan = pass->plan;
    if (pass->head.is_open || pass->births_count != 0) {
        PyErr_SetString(PyExc_RuntimeError, "begin: a pass begins once");
        return NULL;
    }
    if (plan != NULL) {
        struct slab *slab = pass->slab->slab;
        if (plan->serves || slab->serves || plan->verified != slab->verified || plan->height > slab->nbytes) {
            PyErr_SetString(PyExc_ValueError,
                            "begin: the plan or the slab serves another pass, or the plan does not fit the slab");
            return NULL;
        }
        take_what_lives(plan, slab);
        plan->serves = true;
        slab->serves = true;
    }
    pass->thread = PyThread_get_thread_ident();
    pass->head.is_open = true;
    passes_open++;
    struct pass_head *before = account->pass;
    pass->head.references++;
    account->pass = &pass->head;
    pass_release(before);
    Py_RETURN_NONE;
}

static PyObject *pass_end(struct pass_object *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count > 1 || (count == 1 && !Py_IS_TYPE(arguments[0], &totals_type))) {
        PyErr_SetString(PyExc_TypeError, "end: give the PassTotals to add the pass to, or nothing");
        return NULL;
    }
    struct pass *pass = self->pass;
    bool ends = pass->head.is_open;
    uint32_t escaped = close_pass(pass);
    if (ends && count == 1) {
        struct totals_object *totals = (struct totals_object *)arguments[0];
        totals->passes++;
        totals->hits += pass->hits;
        totals->misses += pass->misses;
        totals->escaped += pass->escaped;
    }
    return PyLong_FromUnsignedLong(escaped);
}

static PyObject *pass_note(struct pass_object *self, PyObject *size)
{
    struct pass *pass = self->pass;
    size_t nbytes = PyLong_AsSize_t(size);
    if (nbytes == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    /* As a plain array would be: of the scope that is current, in a task or a generator too. */
    if (!pass->head.is_open || account_now(account_current())->pass != &pass->head) {
        Py_RETURN_NONE;
    }
    if (!has_room((void **)&pass->births, pass->births_count, &pass->births_room, pass->births_most,
                  sizeof *pass->births)) {
        Py_RETURN_NONE;
    }
    struct birth *birth = &pass->births[pass->births_count];
    *birth = (struct birth){.nbytes = nbytes, .died = ALIVE, .slot = NO_SLOT, .outcome = NOTED};
    record_places(pass, birth);
    add_nbytes(pass, nbytes);
    return PyLong_FromUnsignedLong(pass->births_count++);
}

/* What was noted under a number and is alive; NULL where there is none, with or without an error
 * set. */
static struct birth *noted_birth(struct pass *pass, PyObject *number)
{
    size_t at = PyLong_AsSize_t(number);
    if ((at == (size_t)-1 && PyErr_Occurred()) || !pass->head.is_open || at >= pass->births_count) {
        return NULL;
    }
    struct birth *birth = &pass->births[at];
    return (birth->outcome == NOTED || birth->outcome == SAVED) && birth->died == ALIVE ? birth : NULL;
}

static PyObject *pass_note_death(struct pass_object *self, PyObject *number)
{
    struct birth *birth = noted_birth(self->pass, number);
    if (birth != NULL) {
        birth->died = self->pass->births_count;
        self->pass->live_nbytes -= birth->nbytes;
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *pass_note_saved(struct pass_object *self, PyObject *number)
{
    struct birth *birth = noted_birth(self->pass, number);
    if (birth != NULL) {
        birth->outcome = SAVED;
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* The places of a birth, a new reference: one tuple for all births that share them, which
 * `tuples` has by the first place. */
static PyObject *places_of(const struct pass *pass, const struct birth *birth, PyObject **tuples)
{
    if (birth->places != 0 && tuples[birth->trace] != NULL) {
        return Py_NewRef(tuples[birth->trace]);
    }
    PyObject *places = PyTuple_New(birth->places);
    for (uint32_t i = 0; places != NULL && i < birth->places; i++) {
        const struct place *place = &pass->places[birth->trace + i];
        PyObject *pair = Py_BuildValue("Oi", place->code, place->instruction);
        if (pair == NULL) {
            Py_CLEAR(places);
        }
        else {
            PyTuple_SET_ITEM(places, i, pair);
        }
    }
    return places;
}

static PyObject *pass_births(struct pass_object *self, PyObject *ignored)
{
    (void)ignored;
    const struct pass *pass = self->pass;
    if (pass->head.is_open) {
        PyErr_SetString(PyExc_RuntimeError, "births: the pass is open");
        return NULL;
    }
    PyObject **tuples = PyMem_Calloc((size_t)pass->places_count + 1, sizeof *tuples);
    PyObject *rows = tuples == NULL ? PyErr_NoMemory() : PyList_New(pass->births_count);
    for (uint32_t i = 0; rows != NULL && i < pass->births_count; i++) {
        const struct birth *birth = &pass->births[i];
        PyObject *places = places_of(pass, birth, tuples);
        if (places != NULL && birth->places != 0) {
            /* Held by the rows. */
            tuples[birth->trace] = places;
        }
        PyObject *row = places == NULL
                            ? NULL
                            : Py_BuildValue("nLiLN", (Py_ssize_t)birth->nbytes,
                                            birth->died == ALIVE ? -1LL : (long long)birth->died, (int)birth->outcome,
                                            birth->slot == NO_SLOT ? -1LL : (long long)birth->slot, places);
        if (row == NULL) {
            Py_CLEAR(rows);
        }
        else {
            PyList_SET_ITEM(rows, i, row);
        }
    }
    PyMem_Free(tuples);
    return rows;
}

static PyObject *pass_get_time(struct pass_object *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(self->pass->births_count);
}

static PyObject *pass_get_peak_nbytes(struct pass_object *self, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(self->pass->peak_nbytes);
}

static PyObject *pass_get_misses(struct pass_object *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(self->pass->misses);
}

static PyMethodDef pass_methods[] = {
    {"begin", (PyCFunction)(void (*)(void))pass_begin, METH_O, NULL},
    {"end", (PyCFunction)(void (*)(void))pass_end, METH_FASTCALL, NULL},
    {"births", (PyCFunction)(void (*)(void))pass_births, METH_NOARGS, NULL},
    {"note", (PyCFunction)(void (*)(void))pass_note, METH_O, NULL},
    {"note_death", (PyCFunction)(void (*)(void))pass_note_death, METH_O, NULL},
    {"note_saved", (PyCFunction)(void (*)(void))pass_note_saved, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef pass_fields[] = {
    {"time", (getter)pass_get_time, NULL, NULL, NULL},
    {"peak_nbytes", (getter)pass_get_peak_nbytes, NULL, NULL, NULL},
    {"misses", (getter)pass_get_misses, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject pass_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.tensors.arena.compiled.Pass",
    .tp_basicsize = sizeof(struct pass_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = pass_make,
    .tp_dealloc = (destructor)pass_dealloc,
    .tp_methods = pass_methods,
    .tp_getset = pass_fields,
};

int passes_make(PyObject *module)
{
    static const struct {
        const char *name;
        PyTypeObject *type;
    } types[] = {{"Slab", &slab_type}, {"PassPlan", &plan_type}, {"Pass", &pass_type}, {"PassTotals", &totals_type}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (PyType_Ready(types[i].type) < 0 ||
            PyModule_AddObjectRef(module, types[i].name, (PyObject *)types[i].type) < 0) {
            return -1;
        }
    }
    return 0;
}
