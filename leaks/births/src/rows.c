/* What Python gets of rows: each as a `Row`, one by one or of a window of births. */
#include "log.h"

#include <stddef.h>
#include <stdlib.h>
#include <structmember.h>

/* ------------------------------------------------------------------ one row */

/* A copy of a row that Python reads. It has a reference to the name of the scope. */
struct row_object {
    PyObject_HEAD
    unsigned int site, closings;
    unsigned long long nbytes, number;
    double at_s, weight;
    PyObject *scope;
};

static PyMemberDef members[] = {
    {"site", T_UINT, offsetof(struct row_object, site), READONLY, NULL},
    {"nbytes", T_ULONGLONG, offsetof(struct row_object, nbytes), READONLY, NULL},
    {"number", T_ULONGLONG, offsetof(struct row_object, number), READONLY, NULL},
    {"closings", T_UINT, offsetof(struct row_object, closings), READONLY, NULL},
    {"at_s", T_DOUBLE, offsetof(struct row_object, at_s), READONLY, NULL},
    {"scope", T_OBJECT, offsetof(struct row_object, scope), READONLY, NULL},
    {"weight", T_DOUBLE, offsetof(struct row_object, weight), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void row_dealloc(PyObject *object)
{
    Py_XDECREF(((struct row_object *)object)->scope);
    PyObject_Free(object);
}

PyTypeObject row_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.leaks.births.compiled.Row",
    .tp_doc = "What is known of a birth.",
    .tp_basicsize = sizeof(struct row_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = row_dealloc,
    .tp_members = members,
};

/* A new reference, or NULL with an exception. Runs no Python code: what it makes is nothing for the garbage collector. */
static PyObject *row_object(const struct row *row)
{
    struct row_object *object = PyObject_New(struct row_object, &row_type);
    if (object != NULL) {
        object->site = (unsigned int)row->site;
        object->closings = row->closings;
        object->nbytes = row->nbytes;
        object->number = row->order;
        object->at_s = birth_log.loaded_at + row->at_ms * 1e-3;
        object->weight = births_weight(row);
        object->scope = Py_NewRef(names_object(&scope_names, row->scope));
    }
    return (PyObject *)object;
}

static PyObject *recalled(const struct row *row) { return row == NULL ? Py_NewRef(Py_None) : row_object(row); }

PyObject *rows_recall(PyObject *module, PyObject *entry)
{
    (void)module;
    return recalled(table_find(entry));
}

PyObject *rows_recall_block(PyObject *module, PyObject *address)
{
    (void)module;
    void *key = PyLong_AsVoidPtr(address);
    return key == NULL && PyErr_Occurred() ? NULL : recalled(table_find(key));
}

PyObject *rows_recall_memory(PyObject *module, PyObject *object)
{
    (void)module;
    const struct sighting *sighting = sightings_of(object);
    return recalled(sighting == NULL || sighting->row.flags & ROW_EXCLUDED ? NULL : &sighting->row);
}

PyObject *rows_is_in_use(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "is_in_use() takes an address and the number of a birth");
        return NULL;
    }
    void *key = PyLong_AsVoidPtr(arguments[0]);
    unsigned long long order = PyLong_AsUnsignedLongLong(arguments[1]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    const struct row *row = table_find(key);
    return PyBool_FromLong(row != NULL && row->order == order);
}

/* ------------------------------------------------------------------ the rows of a window of births */

struct found {
    void *key;
    struct row row;
};

static int by_birth(const void *one, const void *other)
{
    uint64_t before = ((const struct found *)one)->row.order, after = ((const struct found *)other)->row.order;
    return (before > after) - (before < after);
}

/* A pair of lists: the keys of what was found, and their rows, in the order of birth. Takes the references that the keys hold where
 * they are objects. */
static PyObject *listed(struct found *found, size_t count, bool objects)
{
    qsort(found, count, sizeof *found, by_birth);
    PyObject *keys = PyList_New((Py_ssize_t)count), *rows = PyList_New((Py_ssize_t)count);
    bool failed = keys == NULL || rows == NULL;
    for (size_t i = 0; i < count; i++) {
        PyObject *key = objects ? (PyObject *)found[i].key : failed ? NULL : PyLong_FromVoidPtr(found[i].key);
        PyObject *row = failed ? NULL : row_object(&found[i].row);
        if (key == NULL || row == NULL) {
            failed = true;
            Py_XDECREF(key);
            Py_XDECREF(row);
            continue;
        }
        PyList_SET_ITEM(keys, (Py_ssize_t)i, key);
        PyList_SET_ITEM(rows, (Py_ssize_t)i, row);
    }
    PyObject *pair = failed ? NULL : PyTuple_Pack(2, keys, rows);
    Py_XDECREF(keys);
    Py_XDECREF(rows);
    return pair;
}

static PyObject *in_table(uint64_t low, uint64_t high, bool entries)
{
    size_t count = 0, position = 0;
    struct found *found = malloc((table_count() + 1) * sizeof *found);
    if (found == NULL) {
        return PyErr_NoMemory();
    }
    void *key;
    struct row *row;
    while (table_next(&position, &key, &row)) {
        if (!(row->flags & ROW_ENTRY) == !entries && row->order > low && row->order <= high) {
            if (entries) {
                Py_INCREF((PyObject *)key);
            }
            found[count++] = (struct found){key, *row};
        }
    }
    PyObject *pair = listed(found, count, entries);
    free(found);
    return pair;
}

PyObject *rows_entries(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned long long low, high;
    return PyArg_ParseTuple(arguments, "KK:entries", &low, &high) ? in_table(low, high, true) : NULL;
}

PyObject *rows_blocks(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned long long low, high;
    return PyArg_ParseTuple(arguments, "KK:blocks", &low, &high) ? in_table(low, high, false) : NULL;
}

PyObject *rows_sightings(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned long long low, high;
    if (!PyArg_ParseTuple(arguments, "KK:sightings", &low, &high)) {
        return NULL;
    }
    size_t count = 0, all = sightings_count();
    struct found *found = malloc((all + 1) * sizeof *found);
    if (found == NULL) {
        return PyErr_NoMemory();
    }
    for (size_t i = 0; i < all; i++) {
        struct sighting *each = all_sightings[i];
        if (!(each->row.flags & ROW_EXCLUDED) && each->row.order > low && each->row.order <= high) {
            found[count++] = (struct found){Py_NewRef((PyObject *)each), each->row};
        }
    }
    PyObject *pair = listed(found, count, true);
    free(found);
    return pair;
}

PyObject *rows_untrack(PyObject *module, PyObject *objects)
{
    (void)module;
    if (!PyList_CheckExact(objects)) {
        PyErr_SetString(PyExc_TypeError, "untrack() takes a list");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); i++) {
        if (PyObject_IS_GC(PyList_GET_ITEM(objects, i))) {
            PyObject_GC_UnTrack(PyList_GET_ITEM(objects, i));
        }
    }
    Py_RETURN_NONE;
}
