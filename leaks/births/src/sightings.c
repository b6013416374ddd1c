#include "module.h"

#include <stdlib.h>

struct sighting **all_sightings;
static size_t count, room;
static PyObject *callback;

PyTypeObject sighting_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.leaks.births.compiled.Sighting",
    .tp_doc = "A weak reference to what stands for memory, with what is known of its birth.",
    .tp_basicsize = sizeof(struct sighting),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_base = &_PyWeakref_RefType,
};

/* Take one out of the list; its reference is the caller's then. The last one takes its place. */
static void unlink_it(struct sighting *sighting)
{
    size_t place = (size_t)sighting->reference.hash;
    struct sighting *last = all_sightings[--count];
    all_sightings[place] = last;
    last->reference.hash = (Py_hash_t)place;
    sighting->reference.hash = NOT_LISTED;
}

static PyObject *gone(PyObject *module, PyObject *object)
{
    (void)module;
    struct sighting *sighting = (struct sighting *)object;
    if (sighting_is_listed(sighting)) {
        unlink_it(sighting);
        if (!(sighting->row.flags & ROW_EXCLUDED)) {
            sites_died(&sighting->row);
        }
        Py_DECREF(object);
    }
    Py_RETURN_NONE;
}

static PyMethodDef gone_definition = {"gone", gone, METH_O, NULL};

int sightings_make(void)
{
    /* By identity, unlike other weak references. */
    sighting_type.tp_hash = PyBaseObject_Type.tp_hash;
    sighting_type.tp_richcompare = PyBaseObject_Type.tp_richcompare;
    if (PyType_Ready(&sighting_type) < 0) {
        return -1;
    }
    if (callback == NULL) {
        callback = PyCFunction_New(&gone_definition, NULL);
    }
    return callback == NULL ? -1 : 0;
}

struct sighting *sightings_of(PyObject *object)
{
    if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) {
        return NULL;
    }
    PyObject **list = PyObject_GET_WEAKREFS_LISTPTR(object);
    for (PyWeakReference *found = (PyWeakReference *)*list; found != NULL; found = found->wr_next) {
        if (Py_TYPE(found) == &sighting_type) {
            return (struct sighting *)found;
        }
    }
    return NULL;
}

/* Room for one more; -1 where there is none. */
static int grow(void)
{
    size_t wanted = room == 0 ? 1024 : room + room / 2;
    struct sighting **fresh = realloc(all_sightings, wanted * sizeof *fresh);
    if (fresh == NULL) {
        return -1;
    }
    all_sightings = fresh;
    room = wanted;
    return 0;
}

struct sighting *sightings_add(PyObject *object)
{
    PyObject *arguments = PyTuple_Pack(2, object, callback);
    if (arguments == NULL) {
        return NULL;
    }
    PyObject *made = sighting_type.tp_base->tp_new(&sighting_type, arguments, NULL);
    Py_DECREF(arguments);
    if (made == NULL) {
        return NULL;
    }
    struct sighting *sighting = (struct sighting *)made;
    sighting->reference.hash = NOT_LISTED;
    sighting->row = (struct row){.flags = ROW_EXCLUDED};
    if (!PyObject_IS_GC(object)) {
        /* Its only reference that could close a cycle is that to the callback, which has none: no work for the collector. But a
         * reference to what the collector may find in a garbage cycle must be one of its own objects then: it moves them. */
        PyObject_GC_UnTrack(made);
    }
    if (count == room && grow() < 0) {
        Py_DECREF(made);
        PyErr_NoMemory();
        return NULL;
    }
    sighting->reference.hash = (Py_hash_t)count;
    all_sightings[count++] = (struct sighting *)Py_NewRef(made);
    return sighting;
}

void sightings_clear(void)
{
    while (count != 0) {
        struct sighting *sighting = all_sightings[count - 1];
        unlink_it(sighting);
        Py_DECREF((PyObject *)sighting);
    }
    free(all_sightings);
    all_sightings = NULL;
    room = 0;
}

size_t sightings_count(void) { return count; }
