/* Where a birth happens: the codes that were met, their lines, the walk through the frames, and places that are remembered for
 * a birth of which the log learns later. */
#include "log.h"

#include "../../../scopes/src/raised.h"
#include "frames.h"

#include <stdlib.h>
#include <string.h>

/* What a code is to a person who looks for a line; as in scopes/sites.py. */
enum rank { USER, GENERATED, LIBRARY, KEEPER, THROUGH, PASSING, LOST };

/* ------------------------------------------------------------------ what is known of codes and their lines
 *
 * One line has several instructions, and the interpreter moves from one of them to another while it specialises a call: the first
 * that was met stands for all. So there is one table of four things, by code and a number: the rank of the code (ITS_RANK), of an
 * instruction the first one of its line, of a line, as the negative of the line less one, its first instruction, and of an
 * instruction (ITS_OP) the number of the name of the call that it makes. What has the rank holds the code, so that its address stays
 * its own. */
#define ITS_RANK ((intptr_t)-1)
#define ITS_OP(instruction) (INTPTR_MIN + (instruction))

struct known {
    PyCodeObject *code;
    intptr_t instruction, value;
};

static struct known *known;
static size_t room_for_known, count_of_known, count_of_codes;
static PyObject *rank_function;

/* Where something of a code stands, or where it is to be put: its code is NULL then. */
static struct known *known_slot(const PyCodeObject *code, intptr_t instruction)
{
    size_t mask = room_for_known - 1;
    size_t at = (size_t)hash_mixed(hash_mixed(0, (uint64_t)(uintptr_t)code), (uint64_t)instruction) & mask;
    while (known[at].code != NULL && (known[at].code != code || known[at].instruction != instruction)) {
        at = (at + 1) & mask;
    }
    return &known[at];
}

/* What is known; NULL where nothing is. */
static const struct known *known_of(const PyCodeObject *code, intptr_t instruction)
{
    const struct known *slot = known == NULL ? NULL : known_slot(code, instruction);
    return slot == NULL || slot->code == NULL ? NULL : slot;
}

/* Have room for two more; -1 where there is no memory. */
static int make_room(void)
{
    if (known != NULL && count_of_known + 2 <= room_for_known / 2) {
        return 0;
    }
    size_t before = room_for_known, room = before == 0 ? 1024 : before * 2;
    struct known *old = known, *fresh = calloc(room, sizeof *fresh);
    if (fresh == NULL) {
        return -1;
    }
    known = fresh;
    room_for_known = room;
    for (size_t at = 0; at < before; at++) {
        if (old[at].code != NULL) {
            *known_slot(old[at].code, old[at].instruction) = old[at];
        }
    }
    free(old);
    return 0;
}

/* Put something down, where nobody has meanwhile; returns what stands there. There is room for it. */
static intptr_t put_known(PyCodeObject *code, intptr_t instruction, intptr_t value)
{
    struct known *slot = known_slot(code, instruction);
    if (slot->code == NULL) {
        *slot = (struct known){code, instruction, value};
        count_of_known++;
        if (instruction == ITS_RANK) {
            Py_INCREF((PyObject *)code);
            count_of_codes++;
        }
    }
    return slot->value;
}

/* The rank of the code of a frame; LOST where there is no memory to remember it. May run Python code. */
static enum rank rank_of(struct walk *walk)
{
    PyCodeObject *code = walk_code(walk);
    const struct known *before = known_of(code, ITS_RANK);
    if (before != NULL) {
        return (enum rank)before->value;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *globals = walk_globals(walk);
    PyObject *answer = globals == NULL ? NULL
                                       : PyObject_CallFunctionObjArgs(rank_function, (PyObject *)code, globals, NULL);
    Py_XDECREF(globals);
    long rank = answer == NULL ? USER : PyLong_AsLong(answer);
    Py_XDECREF(answer);
    if (PyErr_Occurred()) {
        put_off_raised();
    }
    PyErr_Restore(type, value, traceback);
    if (rank < USER || rank > PASSING) {
        rank = USER;
    }
    return make_room() < 0 ? LOST : (enum rank)put_known(code, ITS_RANK, rank);
}

/* The instruction that stands for the line of one, of a code whose rank is known. Runs no Python code. */
static intptr_t canonical(PyCodeObject *code, intptr_t instruction)
{
    const struct known *before = known_of(code, instruction);
    if (before != NULL) {
        return before->value;
    }
    int line = PyCode_Addr2Line(code, (int)instruction);
    if (line <= 0 || make_room() < 0) {
        return instruction;
    }
    return put_known(code, instruction, put_known(code, -(intptr_t)line - 1, instruction));
}

static PyObject *naming_function;

void places_name_calls_by(PyObject *function) { Py_XSETREF(naming_function, Py_NewRef(function)); }

/* The number of the name of the call that an instruction makes; UINT16_MAX where it has none. Runs Python code. The caller holds the
 * code. */
static uint16_t op_of(PyCodeObject *code, intptr_t instruction)
{
    const struct known *before = known_of(code, ITS_OP(instruction));
    if (before != NULL) {
        return (uint16_t)before->value;
    }
    if (naming_function == NULL) {
        return UINT16_MAX;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *name = PyObject_CallFunction(naming_function, "On", (PyObject *)code, (Py_ssize_t)instruction);
    uint16_t number = name == NULL || name == Py_None ? UINT16_MAX : names_number(&op_names, name);
    Py_XDECREF(name);
    if (PyErr_Occurred()) {
        put_off_raised();
    }
    PyErr_Restore(type, value, traceback);
    /* That ran code, which may have let go of the code. */
    if (known_of(code, ITS_RANK) != NULL && make_room() == 0) {
        put_known(code, ITS_OP(instruction), number);
    }
    return number;
}

void places_forget(void)
{
    struct known *old = known;
    size_t before = room_for_known;
    known = NULL;
    room_for_known = count_of_known = count_of_codes = 0;
    for (size_t at = 0; at < before; at++) {
        if (old[at].code != NULL && old[at].instruction == ITS_RANK) {
            Py_DECREF((PyObject *)old[at].code);
        }
    }
    free(old);
}

/* ------------------------------------------------------------------ the walk */

#define CODES_AT_MOST 50000

/* As `places_of_birth`, whatever is remembered. `exact` gets the instruction of the innermost one, where the place has that which
 * stands for its line. */
static int places_walked(struct place *places, uint32_t wanted, PyCodeObject **called, intptr_t *exact)
{
    int count = 0;
    struct place generated = {NULL, 0}, outermost = {NULL, 0};
    *called = NULL;
    if (count_of_codes > CODES_AT_MOST) {
        /* A program that makes code all the time shall not keep all of it. */
        places_forget();
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
            if (count == 0) {
                *exact = here.instruction;
            }
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
        *exact = count == 0 ? 0 : places[0].instruction;
        *called = NULL;
    }
    return count;
}

bool places_innermost(struct place *place)
{
    PyCodeObject *called;
    intptr_t exact;
    return places_walked(place, 1, &called, &exact) >= 1;
}

int places_make(void)
{
    rank_function = log_import("disposescope.scopes.sites", "rank_of");
    return rank_function == NULL ? -1 : 0;
}

/* ------------------------------------------------------------------ places that are remembered */

/* Where a birth happened of which the log learns when the code that runs has moved on. */

struct remembered {
    PyCodeObject *called;
    int count; /* as `places_walked` returns it */
    uint16_t scope, op;
    intptr_t exact;
    bool is_named; /* whether the number of the name of the call stands in `op` */
    struct place places[];
};

/* What the next births on this thread are recorded with; borrowed. */
static _Thread_local struct remembered *in_use;

static void forget(PyObject *capsule)
{
    struct remembered *remembered = PyCapsule_GetPointer(capsule, NULL);
    for (int i = 0; i < remembered->count; i++) {
        Py_DECREF((PyObject *)remembered->places[i].code);
    }
    Py_XDECREF((PyObject *)remembered->called);
    free(remembered);
}

PyObject *remembered_here(void)
{
    struct place places[PLACES_AT_MOST];
    PyCodeObject *called;
    uint16_t scope = scopes_current();
    intptr_t exact = 0;
    uint32_t wanted = birth_log.frames < PLACES_AT_MOST ? birth_log.frames : PLACES_AT_MOST;
    int count = places_walked(places, wanted, &called, &exact);
    size_t nbytes = count > 0 ? (size_t)count * sizeof *places : 0;
    struct remembered *remembered = malloc(sizeof *remembered + nbytes);
    PyObject *capsule = remembered == NULL ? NULL : PyCapsule_New(remembered, NULL, NULL);
    if (capsule == NULL) {
        free(remembered);
        PyErr_Clear();
        return NULL;
    }
    *remembered = (struct remembered){
        .called = (PyCodeObject *)Py_XNewRef((PyObject *)called), .count = count, .scope = scope, .op = UINT16_MAX, .exact = exact};
    memcpy(remembered->places, places, nbytes);
    for (int i = 0; i < count; i++) {
        Py_INCREF((PyObject *)places[i].code);
    }
    PyCapsule_SetDestructor(capsule, forget);
    return capsule;
}

void remembered_use(PyObject *capsule)
{
    struct remembered *remembered = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NULL);
    if (remembered != NULL && !remembered->is_named && remembered->count > 0) {
        /* That runs code, and with it births of its own. */
        remembered->op = op_of(remembered->places[0].code, remembered->exact);
        remembered->is_named = true;
    }
    in_use = remembered;
}

uint16_t remembered_op(void) { return in_use == NULL ? UINT16_MAX : in_use->op; }

int places_of_birth(struct place *places, uint32_t wanted, PyCodeObject **called)
{
    if (in_use == NULL) {
        intptr_t exact;
        return places_walked(places, wanted, called, &exact);
    }
    *called = in_use->called;
    int count = in_use->count < 0 || (uint32_t)in_use->count < wanted ? in_use->count : (int)wanted;
    if (count > 0) {
        memcpy(places, in_use->places, (size_t)count * sizeof *places);
    }
    return count;
}

bool remembered_scope(uint16_t *scope)
{
    if (in_use != NULL) {
        *scope = in_use->scope;
    }
    return in_use != NULL;
}
