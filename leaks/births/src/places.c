/* Where a birth happens: what is known of codes and their lines, the walk through the frames, and
 * origins that are remembered for a birth of which the log learns later. */
#include "log.h"

#include "../../../scopes/src/shared/frames.h"
#include "../../../scopes/src/shared/raised.h"

#include <stdlib.h>
#include <string.h>

/* What code is to a person who looks for a line: `Role` in scopes/base/sites.py. UNKNOWN where
 * there is no memory for it. */
enum role { USER, GENERATED, LIBRARY, KEEPER, THROUGH, PASSING, UNKNOWN };

/* ------------------------------------------------------------------ what is known of codes
 *
 * One line has several instructions, and the interpreter moves from one of them to another while it
 * specialises a call: the first that was met stands for all. So there are facts of four sorts, each
 * about a number:
 *
 *     ITS_ROLE             the role of the code
 *     an instruction       the first instruction of its line
 *     -1 - a line          its first instruction
 *     ITS_OP(instruction)  the number of the name of the call that it makes
 *
 * The role of a code comes first, and with it the reference to the code, so that its address stays
 * its own. */
#define ITS_ROLE ((intptr_t)-1)
#define ITS_OP(instruction) (INTPTR_MIN + (instruction))

static uint32_t fact_hash(const PyCodeObject *code, intptr_t about)
{
    return hash_folded(hash_mixed(hash_mixed(0, (uint64_t)(uintptr_t)code), (uint64_t)about));
}

/* Whether something is known; `value` gets it. */
static bool fact_find(const struct code_facts *facts, const PyCodeObject *code, intptr_t about, intptr_t *value)
{
    struct hash_search search = hash_search(&facts->index, fact_hash(code, about));
    for (uint32_t at = hash_next(&facts->index, &search); at != NOT_FOUND; at = hash_next(&facts->index, &search)) {
        if (facts->all[at].code == code && facts->all[at].about == about) {
            *value = facts->all[at].value;
            return true;
        }
    }
    return false;
}

/* Add a fact where nobody has meanwhile; `value` gets the one that stands there. False where there
 * is no memory. */
static bool fact_add(struct code_facts *facts, PyCodeObject *code, intptr_t about, intptr_t *value)
{
    if (fact_find(facts, code, about, value)) {
        return true;
    }
    struct code_fact *all = array_grown(facts->all, facts->count, &facts->room, sizeof *all);
    if (all == NULL) {
        return false;
    }
    facts->all = all;
    if (hash_add(&facts->index, fact_hash(code, about), facts->count) < 0) {
        return false;
    }
    all[facts->count++] = (struct code_fact){code, about, *value};
    if (about == ITS_ROLE) {
        Py_INCREF((PyObject *)code);
        facts->codes++;
    }
    return true;
}

void code_facts_clear(Log *log)
{
    struct code_facts gone = log->code_facts;
    log->code_facts = (struct code_facts){0};
    for (uint32_t i = 0; i < gone.count; i++) {
        if (gone.all[i].about == ITS_ROLE) {
            Py_DECREF((PyObject *)gone.all[i].code);
        }
    }
    free(gone.all);
    free(gone.index.slots);
}

/* The role of the code of a frame. May run Python code. */
static enum role role_of(Log *log, struct walk *walk)
{
    PyCodeObject *code = walk_code(walk);
    intptr_t role;
    if (fact_find(&log->code_facts, code, ITS_ROLE, &role)) {
        return (enum role)role;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *globals = walk_globals(walk);
    PyObject *answer = globals == NULL ? NULL
                                       : PyObject_CallFunctionObjArgs(log->rank_of, (PyObject *)code, globals, NULL);
    Py_XDECREF(globals);
    role = answer == NULL ? USER : PyLong_AsLong(answer);
    Py_XDECREF(answer);
    if (PyErr_Occurred()) {
        put_off_raised();
    }
    PyErr_Restore(type, value, traceback);
    if (role < USER || role > PASSING) {
        role = USER;
    }
    return fact_add(&log->code_facts, code, ITS_ROLE, &role) ? (enum role)role : UNKNOWN;
}

/* The instruction that stands for the line of one, of a code whose role is known. Runs no Python
 * code. */
static intptr_t first_of_line(struct code_facts *facts, PyCodeObject *code, intptr_t instruction)
{
    intptr_t first = instruction;
    if (fact_find(facts, code, instruction, &first)) {
        return first;
    }
    int line = PyCode_Addr2Line(code, (int)instruction);
    if (line > 0 && fact_add(facts, code, -(intptr_t)line - 1, &first)) {
        fact_add(facts, code, instruction, &first);
    }
    return first;
}

/* The number of the name of the call that an instruction makes; NO_NUMBER where it has none. Runs
 * Python code. The caller holds the code. */
static uint16_t op_of(Log *log, PyCodeObject *code, intptr_t instruction)
{
    intptr_t number = NO_NUMBER, role;
    if (fact_find(&log->code_facts, code, ITS_OP(instruction), &number)) {
        return (uint16_t)number;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *name = PyObject_CallFunction(log->name_of_call, "On", (PyObject *)code, (Py_ssize_t)instruction);
    if (name != NULL && name != Py_None) {
        number = names_number(&log->ops, name);
    }
    Py_XDECREF(name);
    if (PyErr_Occurred()) {
        put_off_raised();
    }
    PyErr_Restore(type, value, traceback);
    /* That ran code, which may have let go of the code. */
    if (fact_find(&log->code_facts, code, ITS_ROLE, &role)) {
        fact_add(&log->code_facts, code, ITS_OP(instruction), &number);
    }
    return (uint16_t)number;
}

/* Whether the name of a function of a library says nothing of an operation: that of one that wraps
 * others, or is the library's own. */
static bool is_nameless(const PyCodeObject *code)
{
    Py_UCS4 first = PyUnicode_GET_LENGTH(code->co_name) == 0 ? '_' : PyUnicode_READ_CHAR(code->co_name, 0);
    return code->co_flags & CO_NESTED || first == '_' || first == '<';
}

uint16_t origin_op(Log *log, const struct origin *origin)
{
    uint16_t op = op_of(log, origin->places[0].code, origin->instruction);
    return op != NO_NUMBER || is_nameless(origin->called) ? op : names_number(&log->ops, origin->called->co_name);
}

/* ------------------------------------------------------------------ the walk through the frames */

#define CODES_AT_MOST 50000

/* How many of the innermost frames of this thread are passed over: those of an object that is being
 * made. */
static _Thread_local uint32_t frames_left_out;

void origin_leave_out(uint32_t frames) { frames_left_out = frames; }

/* The origin of a birth here and now, with at most so many places, which are put into `room`. May
 * run Python code; keeps an exception that is set. */
static struct origin origin_here(Log *log, struct place *room, uint32_t wanted)
{
    struct origin origin = {.places = room, .op = NO_NUMBER};
    struct place generated = {NULL, 0}, outermost = {NULL, 0};
    if (log->code_facts.codes > CODES_AT_MOST) {
        /* A program that makes code all the time shall not keep all of it. */
        code_facts_clear(log);
    }
    struct walk walk;
    walk_begin(&walk);
    for (uint32_t i = 0; i < frames_left_out && !walk_ended(&walk); i++) {
        walk_out(&walk);
    }
    bool innermost = frames_left_out == 0;
    while (!walk_ended(&walk) && origin.count < (int)wanted) {
        enum role role = role_of(log, &walk);
        if (role == UNKNOWN || (innermost && role == KEEPER)) {
            walk_end(&walk);
            return (struct origin){.count = -1, .op = NO_NUMBER};
        }
        if (innermost && (role == THROUGH || role == PASSING)) {
            walk_out(&walk);
            if (role == THROUGH && !walk_ended(&walk)) {
                /* The function that asked for it stands between its caller and what is called. */
                origin.called = walk_code(&walk);
                walk_out(&walk);
            }
            continue;
        }
        innermost = false;
        struct place here = {walk_code(&walk), walk_instruction(&walk)};
        if (role == USER) {
            if (origin.count == 0) {
                origin.instruction = here.instruction;
            }
            here.instruction = first_of_line(&log->code_facts, here.code, here.instruction);
            room[origin.count++] = here;
        }
        else if (origin.count == 0) {
            outermost = here;
            if (role != GENERATED) {
                origin.called = here.code;
            }
            else if (generated.code == NULL) {
                generated = here;
            }
        }
        walk_out(&walk);
    }
    walk_end(&walk);
    if (origin.count == 0) {
        struct place only = generated.code != NULL ? generated : outermost;
        origin.called = NULL;
        origin.instruction = only.instruction;
        if (only.code != NULL) {
            room[origin.count++] = only;
        }
    }
    return origin;
}

bool place_here(Log *log, struct place *place) { return origin_here(log, place, 1).count > 0; }

/* ------------------------------------------------------------------ origins that are remembered */

/* The origin of a birth of which the log learns when the code that runs has moved on. It has
 * references to the codes. */
struct remembered {
    struct origin origin;
    uint64_t openings; /* of the log until then */
    uint16_t scope;
    bool is_named; /* the name of its call was asked for */
    struct place places[];
};

/* What the next births on this thread are recorded with; borrowed. */
static _Thread_local const struct remembered *in_use;

static void forget(PyObject *capsule)
{
    struct remembered *remembered = PyCapsule_GetPointer(capsule, NULL);
    for (int i = 0; i < remembered->origin.count; i++) {
        Py_DECREF((PyObject *)remembered->places[i].code);
    }
    Py_XDECREF((PyObject *)remembered->origin.called);
    free(remembered);
}

static uint32_t frames_wanted(const Log *log) { return log->frames < PLACES_AT_MOST ? log->frames : PLACES_AT_MOST; }

PyObject *origin_remember(Log *log)
{
    struct place places[PLACES_AT_MOST];
    uint16_t scope = scope_number_here(log);
    struct origin origin = origin_here(log, places, frames_wanted(log));
    size_t nbytes = origin.count > 0 ? (size_t)origin.count * sizeof *places : 0;
    struct remembered *remembered = malloc(sizeof *remembered + nbytes);
    PyObject *capsule = remembered == NULL ? NULL : PyCapsule_New(remembered, NULL, NULL);
    if (capsule == NULL) {
        free(remembered);
        PyErr_Clear();
        return NULL;
    }
    *remembered = (struct remembered){.origin = origin, .openings = log->openings, .scope = scope};
    memcpy(remembered->places, places, nbytes);
    remembered->origin.places = remembered->places;
    Py_XINCREF((PyObject *)origin.called);
    for (int i = 0; i < origin.count; i++) {
        Py_INCREF((PyObject *)places[i].code);
    }
    PyCapsule_SetDestructor(capsule, forget);
    return capsule;
}

bool origin_is_recent(const Log *log, PyObject *capsule)
{
    const struct remembered *remembered = PyCapsule_GetPointer(capsule, NULL);
    return remembered->openings == log->openings;
}

void origin_use(Log *log, PyObject *capsule)
{
    struct remembered *remembered = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NULL);
    if (remembered != NULL && !remembered->is_named && remembered->origin.count > 0) {
        /* That runs code, and with it births of its own. */
        remembered->origin.op = op_of(log, remembered->places[0].code, remembered->origin.instruction);
        remembered->is_named = true;
    }
    in_use = remembered;
    scope_number_use(remembered == NULL ? NULL : &remembered->scope);
}

struct origin origin_of_birth(Log *log, struct place room[PLACES_AT_MOST])
{
    uint32_t wanted = frames_wanted(log);
    if (in_use == NULL) {
        return origin_here(log, room, wanted);
    }
    struct origin origin = in_use->origin;
    if (origin.count > (int)wanted) {
        origin.count = (int)wanted;
    }
    return origin;
}
