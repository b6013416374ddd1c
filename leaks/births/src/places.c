/* Where a birth happens: facts about codes and their lines, the walk through the frames, and origins
 * that are kept for births that are recorded later. */
#include "log.h"

#include "../../../scopes/src/shared/frames.h"
#include "../../../scopes/src/shared/raised.h"

#include <stdlib.h>
#include <string.h>

/* What code is to a person who looks for a line: `Role` in scopes/base/sites.py, with the same
 * numbers. UNKNOWN: there was no memory to store the role. */
enum role { USER, GENERATED, LIBRARY, KEEPER, THROUGH, PASSING, LAYERS, UNKNOWN };

/* ------------------------------------------------------------------ facts about codes
 *
 * A line has several instructions, and the interpreter moves from one to another while it
 * specialises a call. Births of one line shall have one site: so the first instruction that was seen
 * on a line stands for the line. There are four sorts of facts. What a fact is about is a number:
 *
 *     about                   value
 *     ABOUT_ROLE              the role of the code
 *     an instruction          the instruction that stands for its line
 *     -1 - a line             the instruction that stands for the line (lines begin at 1)
 *     ABOUT_OP(instruction)   the number of the name of the call that the instruction makes
 *
 * The role of a code is its first fact. With it the log takes a reference to the code, so that no
 * other code gets its address. */
#define ABOUT_ROLE ((intptr_t)-1)
#define ABOUT_OP(instruction) (INTPTR_MIN + (instruction))

static uint32_t fact_hash(const PyCodeObject *code, intptr_t about)
{
    return hash_folded(hash_mixed(hash_mixed(0, (uint64_t)(uintptr_t)code), (uint64_t)about));
}

/* Whether a fact is known; `value` gets its value. */
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

/* Add a fact with `value`. Where it is known already, perhaps from Python code that ran in between,
 * `value` gets what is known. False where there is no memory. */
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
    if (about == ABOUT_ROLE) {
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
        if (gone.all[i].about == ABOUT_ROLE) {
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
    if (fact_find(&log->code_facts, code, ABOUT_ROLE, &role)) {
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
    if (role < USER || role > LAYERS) {
        role = USER;
    }
    return fact_add(&log->code_facts, code, ABOUT_ROLE, &role) ? (enum role)role : UNKNOWN;
}

/* The instruction that stands for the line of an instruction. The role of the code is known. Runs no
 * Python code. */
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

/* The number of the name of the call that an instruction makes; NO_NUMBER where it has none. May run
 * Python code. The caller holds the code. */
static uint16_t op_of(Log *log, PyCodeObject *code, intptr_t instruction)
{
    intptr_t number = NO_NUMBER, role;
    if (fact_find(&log->code_facts, code, ABOUT_OP(instruction), &number)) {
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
    /* That ran Python code, which may have cleared the facts: without its role the code has no
     * reference here, and gets no facts. */
    if (fact_find(&log->code_facts, code, ABOUT_ROLE, &role)) {
        fact_add(&log->code_facts, code, ABOUT_OP(instruction), &number);
    }
    return (uint16_t)number;
}

/* Whether the name of a function of a library tells no reader which operation it is: a wrapper's
 * (nested, or a lambda), or a private name. */
static bool is_nameless(const PyCodeObject *code)
{
    Py_UCS4 first = PyUnicode_GET_LENGTH(code->co_name) == 0 ? '_' : PyUnicode_READ_CHAR(code->co_name, 0);
    return code->co_flags & CO_NESTED || first == '_' || first == '<';
}

uint16_t origin_op(Log *log, const struct origin *origin)
{
    uint16_t op = op_of(log, origin->call.code, origin->call.instruction);
    return op != NO_NUMBER || is_nameless(origin->called) ? op : names_number(&log->ops, origin->called->co_name);
}

/* ------------------------------------------------------------------ the walk through the frames */

/* How many codes have facts at most; all facts are forgotten then, and found again where needed. A
 * program that makes code all the time shall not keep all of it. */
#define CODES_AT_MOST 50000

/* How many of the innermost frames of this thread are passed over: those of the constructors of an
 * object that is being made, whose birth is that of its caller. */
static _Thread_local uint32_t frames_left_out;

void origin_leave_out(uint32_t frames) { frames_left_out = frames; }

/* The origin of a birth here and now, with at most so many places, which are put into `room`. May
 * run Python code; keeps an exception that is set. */
static struct origin origin_here(Log *log, struct place *room, uint32_t wanted)
{
    struct origin origin = {.places = room, .op = NO_NUMBER};
    struct place generated = {NULL, 0}, outermost = {NULL, 0};
    if (log->code_facts.codes > CODES_AT_MOST) {
        code_facts_clear(log);
    }
    struct walk walk;
    walk_begin(&walk);
    for (uint32_t i = 0; i < frames_left_out && !walk_ended(&walk); i++) {
        walk_out(&walk);
    }
    bool is_innermost = frames_left_out == 0;
    while (!walk_ended(&walk) && origin.count < (int)wanted) {
        enum role role = role_of(log, &walk);
        if (role == UNKNOWN || (is_innermost && role == KEEPER)) {
            walk_end(&walk);
            return (struct origin){.count = -1, .op = NO_NUMBER};
        }
        if (is_innermost && (role == THROUGH || role == PASSING)) {
            walk_out(&walk);
            if (role == THROUGH && !walk_ended(&walk)) {
                /* The frame around code that only passes a call on is the function that was called. */
                origin.called = walk_code(&walk);
                walk_out(&walk);
            }
            continue;
        }
        is_innermost = false;
        struct place here = {walk_code(&walk), walk_instruction(&walk)};
        if (origin.call.code == NULL && (role == USER || role == LAYERS)) {
            origin.call = here;
        }
        if (role == USER) {
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
        origin.call = only;
        if (only.code != NULL) {
            only.instruction = first_of_line(&log->code_facts, only.code, only.instruction);
            room[origin.count++] = only;
        }
    }
    return origin;
}

bool place_here(Log *log, struct place *place) { return origin_here(log, place, 1).count > 0; }

/* ------------------------------------------------------------------ origins that are remembered */

/* The origin of a birth that is recorded later, when other code runs. It has references to the
 * codes. */
struct remembered {
    struct origin origin;
    uint64_t openings; /* of the log, when it was made */
    uint16_t scope;    /* the number of the name of the scope that was current */
    bool is_named;     /* the name of the call was asked for */
    struct place places[];
};

/* The origin that the next births on this thread are recorded with; borrowed, NULL for their own. */
static _Thread_local const struct remembered *origin_in_use;

/* The destructor of a capsule with a `struct remembered`. */
static void free_remembered(PyObject *capsule)
{
    struct remembered *remembered = PyCapsule_GetPointer(capsule, NULL);
    for (int i = 0; i < remembered->origin.count; i++) {
        Py_DECREF((PyObject *)remembered->places[i].code);
    }
    Py_XDECREF((PyObject *)remembered->origin.called);
    Py_XDECREF((PyObject *)remembered->origin.call.code);
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
    Py_XINCREF((PyObject *)origin.call.code);
    for (int i = 0; i < origin.count; i++) {
        Py_INCREF((PyObject *)places[i].code);
    }
    PyCapsule_SetDestructor(capsule, free_remembered);
    return capsule;
}

bool origin_is_recent(const Log *log, PyObject *capsule)
{
    const struct remembered *remembered = PyCapsule_GetPointer(capsule, NULL);
    return remembered->openings == log->openings;
}

/* Ask for the name of the call. May run Python code. */
static void name_call(Log *log, struct remembered *remembered)
{
    if (!remembered->is_named && remembered->origin.count > 0) {
        const struct place *call = &remembered->origin.call;
        remembered->origin.op = op_of(log, call->code, call->instruction);
        remembered->is_named = true;
    }
}

bool origin_is_recorded_soon(Log *log, PyObject *capsule)
{
    struct remembered *remembered = PyCapsule_GetPointer(capsule, NULL);
    name_call(log, remembered);
    uint16_t op = remembered->origin.op;
    return op != NO_NUMBER && (log->recorded_soon[op / 64] >> (op % 64) & 1) != 0;
}

void origin_use(Log *log, PyObject *capsule)
{
    struct remembered *remembered = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NULL);
    if (remembered != NULL) {
        /* Before the origin is in use: it runs Python code, whose births are its own. */
        name_call(log, remembered);
    }
    origin_in_use = remembered;
    scope_number_use(remembered == NULL ? NULL : &remembered->scope);
}

struct origin origin_of_birth(Log *log, struct place room[PLACES_AT_MOST])
{
    uint32_t wanted = frames_wanted(log);
    if (origin_in_use == NULL) {
        return origin_here(log, room, wanted);
    }
    struct origin origin = origin_in_use->origin;
    if (origin.count > (int)wanted) {
        origin.count = (int)wanted;
    }
    return origin;
}
