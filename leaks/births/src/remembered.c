/* Where a birth happened of which the log is told only later, when the code that runs has moved on. */
#include "remembered.h"

#include <stdlib.h>
#include <string.h>

struct remembered {
    PyCodeObject *called;
    int count; /* as `places_here` returns it */
    uint16_t scope;
    struct place places[];
};

/* What the next births on this thread are put down with; borrowed. */
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
    int count = places_here(places, frames_wanted < PLACES_AT_MOST ? frames_wanted : PLACES_AT_MOST, &called);
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
