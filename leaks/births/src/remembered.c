/* Where a birth happened of which the log is told only later, when the code that runs has moved on. */
#include "remembered.h"

#include <stdlib.h>
#include <string.h>

struct remembered {
    PyCodeObject *called;
    int count; /* as `places_here` returns it */
    intptr_t exact;
    uint32_t op; /* the number of the name of the call plus one; 0 where that was not asked for */
    uint16_t scope;
    struct place places[];
};

/* What the next births on this thread are put down with; borrowed. */
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
    int count = places_here(places, frames_wanted < PLACES_AT_MOST ? frames_wanted : PLACES_AT_MOST, &called, &exact);
    size_t nbytes = count > 0 ? (size_t)count * sizeof *places : 0;
    struct remembered *remembered = malloc(sizeof *remembered + nbytes);
    PyObject *capsule = remembered == NULL ? NULL : PyCapsule_New(remembered, NULL, NULL);
    if (capsule == NULL) {
        free(remembered);
        PyErr_Clear();
        return NULL;
    }
    *remembered = (struct remembered){(PyCodeObject *)Py_XNewRef((PyObject *)called), count, exact, 0, scope};
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
    if (remembered != NULL && remembered->op == 0 && remembered->count > 0) {
        /* That runs code, and with it births of its own. */
        remembered->op = (uint32_t)places_op(remembered->places[0].code, remembered->exact) + 1;
    }
    in_use = remembered;
}

uint16_t remembered_op(void) { return in_use == NULL || in_use->op == 0 ? UINT16_MAX : (uint16_t)(in_use->op - 1); }

bool remembered_places(struct place *places, uint32_t wanted, PyCodeObject **called, int *count)
{
    if (in_use == NULL) {
        return false;
    }
    *called = in_use->called;
    *count = in_use->count < 0 || (uint32_t)in_use->count < wanted ? in_use->count : (int)wanted;
    if (*count > 0) {
        memcpy(places, in_use->places, (size_t)*count * sizeof *places);
    }
    return true;
}

bool remembered_scope(uint16_t *scope)
{
    if (in_use != NULL) {
        *scope = in_use->scope;
    }
    return in_use != NULL;
}
