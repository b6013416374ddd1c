/* Where a birth happens: the codes that were met, their lines, the walk through the frames, and places that are remembered for
 * a birth of which the log learns later. */
#include "log.h"

#include "../../../scopes/src/raised.h"
#include "frames.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ codes */

/* What a code is to a person who looks for a line; as in scopes/sites.py. */
enum rank { USER, GENERATED, LIBRARY, KEEPER, THROUGH, PASSING, LOST };

/* Every code that was met, held so that its address stays its own. */
struct code {
    PyCodeObject *code;
    enum rank rank;
};

static struct code *codes;
static size_t room_for_codes, count_of_codes;
static PyObject *rank_function;

static struct code *code_slot(const PyCodeObject *code)
{
    size_t mask = room_for_codes - 1;
    size_t at = (size_t)hash_mixed(0, (uint64_t)(uintptr_t)code) & mask;
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
    if (PyErr_Occurred()) {
        put_off_raised();
    }
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
    size_t at = (size_t)hash_mixed(hash_mixed(0, (uint64_t)(uintptr_t)code), (uint64_t)instruction) & mask;
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

void places_forget(void)
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

#define CODES_AT_MOST 50000

static int places_walked(struct place *places, uint32_t wanted, PyCodeObject **called)
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

bool places_innermost(struct place *place)
{
    PyCodeObject *called;
    return places_walked(place, 1, &called) >= 1;
}

void places_bind(PyObject *rank) { Py_XSETREF(rank_function, Py_NewRef(rank)); }

/* ------------------------------------------------------------------ places that are remembered, because the code that runs will have moved on */

struct remembered {
    PyCodeObject *called;
    int count; /* as `places_walked` returns it */
    uint16_t scope;
    struct place places[];
};

/* What the next births on this thread are recorded with; borrowed. */
static _Thread_local const struct remembered *in_use;

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
    int count = places_walked(places, birth_log.frames < PLACES_AT_MOST ? birth_log.frames : PLACES_AT_MOST, &called);
    size_t nbytes = count > 0 ? (size_t)count * sizeof *places : 0;
    struct remembered *remembered = malloc(sizeof *remembered + nbytes);
    PyObject *capsule = remembered == NULL ? NULL : PyCapsule_New(remembered, NULL, NULL);
    if (capsule == NULL) {
        free(remembered);
        PyErr_Clear();
        return NULL;
    }
    *remembered = (struct remembered){(PyCodeObject *)Py_XNewRef((PyObject *)called), count, scope};
    memcpy(remembered->places, places, nbytes);
    for (int i = 0; i < count; i++) {
        Py_INCREF((PyObject *)places[i].code);
    }
    PyCapsule_SetDestructor(capsule, forget);
    return capsule;
}

void remembered_use(PyObject *capsule) { in_use = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NULL); }

int places_of_birth(struct place *places, uint32_t wanted, PyCodeObject **called)
{
    if (in_use == NULL) {
        return places_walked(places, wanted, called);
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
