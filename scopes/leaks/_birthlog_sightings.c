#include "_birthlog.h"

struct sighting *first_sighting, *last_sighting;
static size_t count;
static PyObject *callback;

PyTypeObject sighting_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.scopes.leaks._birthlog.Sighting",
    .tp_doc = "A weak reference to what stands for memory, with what is known of its birth.",
    .tp_basicsize = sizeof(struct sighting),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_base = &_PyWeakref_RefType,
};

static void unlink_it(struct sighting *sighting)
{
    *(sighting->previous == NULL ? &first_sighting : &sighting->previous->next) = sighting->next;
    *(sighting->next == NULL ? &last_sighting : &sighting->next->previous) = sighting->previous;
    sighting->next = sighting->previous = NULL;
    count--;
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
    /* Its only reference that could close a cycle is that to the callback, which has none: no work for the collector. */
    PyObject_GC_UnTrack(made);
    struct sighting *sighting = (struct sighting *)made;
    sighting->row = (struct row){.flags = ROW_EXCLUDED};
    sighting->next = NULL;
    sighting->previous = last_sighting;
    *(last_sighting == NULL ? &first_sighting : &last_sighting->next) = sighting;
    last_sighting = sighting;
    count++;
    return (struct sighting *)Py_NewRef(made);
}

void sightings_clear(void)
{
    while (first_sighting != NULL) {
        struct sighting *sighting = first_sighting;
        unlink_it(sighting);
        Py_DECREF((PyObject *)sighting);
    }
}

size_t sightings_count(void) { return count; }
