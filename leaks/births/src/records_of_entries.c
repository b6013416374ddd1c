/* Records of resources, many at once: what record_builder.py does in Python, which says what each thing means. */
#include "record_builder.h"

static struct {
    PyTypeObject *type;
    Py_ssize_t key, kind, unit, members;
} entry;

int records_bind(PyTypeObject *type)
{
    if (find_slot(type, "key", &entry.key) < 0 || find_slot(type, "kind", &entry.kind) < 0 ||
        find_slot(type, "unit", &entry.unit) < 0 || find_slot(type, "members", &entry.members) < 0) {
        return -1;
    }
    Py_INCREF(type);
    Py_XSETREF(entry.type, type);
    return 0;
}

/* What is asked of the resources of one kind; it has the references. */
struct kind_facts {
    PyObject *kind, *name, *storages, *layout;
};

static void kind_facts_forget(struct kind_facts *kind_facts)
{
    Py_CLEAR(kind_facts->kind);
    Py_CLEAR(kind_facts->name);
    Py_CLEAR(kind_facts->storages);
    Py_CLEAR(kind_facts->layout);
}

static int kind_facts_read(struct kind_facts *kind_facts, PyObject *kind)
{
    if (kind_facts->kind == kind) {
        return 0;
    }
    kind_facts_forget(kind_facts);
    kind_facts->name = PyObject_GetAttrString(kind, "name");
    kind_facts->storages = kind_facts->name == NULL ? NULL : PyObject_GetAttrString(kind, "storages");
    kind_facts->layout = kind_facts->storages == NULL ? NULL : PyObject_GetAttrString(kind, "layout");
    if (kind_facts->layout == NULL) {
        return -1;
    }
    kind_facts->kind = Py_NewRef(kind);
    return 0;
}

/* Whether an entry is that of a resource which lives by itself, with one storage or none: all others are for Python. */
static bool is_plain(PyObject *thing, PyObject *dead, PyObject *disposals)
{
    if (!Py_IS_TYPE(thing, entry.type) || slot_value(thing, entry.unit) != Py_None ||
        slot_value(thing, entry.kind) == NULL) {
        return false;
    }
    PyObject *members = slot_value(thing, entry.members), *key = slot_value(thing, entry.key);
    if (members == NULL || !PyTuple_CheckExact(members) || PyTuple_GET_SIZE(members) != 0 || key == NULL) {
        return false;
    }
    /* An entry that was born is where the living are until its resource goes, or it is found here, among few. */
    PyObject *released = PyDict_GET_SIZE(dead) == 0 ? NULL : PyDict_GetItemWithError(dead, key);
    if (released == thing || PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    int disposed = PyDict_GET_SIZE(disposals) == 0 ? 0 : PyDict_Contains(disposals, thing);
    if (disposed < 0) {
        PyErr_Clear();
    }
    return disposed == 0;
}

/* The record of a plain entry, a new reference; NULL without an exception where the resource is gone or not that simple, which
 * `gone` tells apart. */
static PyObject *record_of_entry(struct record_builder *record_builder, struct kind_facts *kind_facts, PyObject *thing, const struct row *row, bool *gone)
{
    *gone = false;
    if (kind_facts_read(kind_facts, slot_value(thing, entry.kind)) < 0) {
        return NULL;
    }
    PyObject *resource = PyObject_CallNoArgs(thing);
    if (resource == NULL || resource == Py_None) {
        *gone = resource != NULL;
        Py_XDECREF(resource);
        return NULL;
    }
    PyObject *storages = PyObject_CallOneArg(kind_facts->storages, resource);
    PyObject *layout = storages == NULL            ? NULL
                       : kind_facts->layout == Py_None ? Py_NewRef(Py_None)
                                                   : PyObject_CallOneArg(kind_facts->layout, resource);
    Py_DECREF(resource);
    if (layout == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        /* Another thread disposes it, perhaps: Python finds out. */
        PyErr_Clear();
    }
    PyObject *record = NULL, *told = NULL, *zero = NULL, *nbytes = NULL;
    if (layout == NULL || !PyTuple_CheckExact(storages) || PyTuple_GET_SIZE(storages) > 1 ||
        !(layout == Py_None || (PyTuple_CheckExact(layout) && PyTuple_GET_SIZE(layout) == 3))) {
        goto done;
    }
    if (PyTuple_GET_SIZE(storages) == 0) {
        told = Py_NewRef(storages);
        nbytes = zero = PyLong_FromLong(0);
    }
    else {
        PyObject *pair = PyTuple_GET_ITEM(storages, 0);
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyLong_CheckExact(PyTuple_GET_ITEM(pair, 1))) {
            goto done;
        }
        nbytes = PyTuple_GET_ITEM(pair, 1);
        told = record_builder_storages(record_builder, PyTuple_GET_ITEM(pair, 0), nbytes);
    }
    if (told != NULL && nbytes != NULL) {
        bool known = layout != Py_None;
        record = record_builder_record(record_builder, row,
                               &(struct likeness){
                                   .kind = kind_facts->name,
                                   .shape = known ? PyTuple_GET_ITEM(layout, 0) : Py_None,
                                   .dtype = known ? PyTuple_GET_ITEM(layout, 1) : Py_None,
                                   .nbytes = nbytes,
                                   .used_nbytes = known ? PyTuple_GET_ITEM(layout, 2) : nbytes,
                                   .storages = told,
                               });
    }
done:
    Py_XDECREF(zero);
    Py_XDECREF(told);
    Py_XDECREF(layout);
    Py_XDECREF(storages);
    return record;
}

/* The record of any entry, as Python makes it; a new reference, None where there is nothing to tell. */
static PyObject *record_in_python(PyObject *others, PyObject *thing, PyObject *rows, Py_ssize_t place)
{
    PyObject *row = PySequence_GetItem(rows, place);
    PyObject *record = row == NULL ? NULL : PyObject_CallFunctionObjArgs(others, thing, row, NULL);
    Py_XDECREF(row);
    return record;
}

/* Put down the records of some entries, those of their subjects, and shorten the rows to theirs. */
static int build_all_records(struct record_builder *record_builder, PyObject *dead, PyObject *disposals, PyObject *others, PyObject *entries,
                       struct rows *rows, PyObject *records, PyObject *subjects, struct rows *kept)
{
    struct kind_facts kind_facts = {NULL, NULL, NULL, NULL};
    Py_ssize_t count = 0;
    int failed = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries) && !failed; i++) {
        PyObject *thing = Py_NewRef(PyList_GET_ITEM(entries, i)), *record = NULL;
        bool gone = false;
        if (is_plain(thing, dead, disposals)) {
            record = record_of_entry(record_builder, &kind_facts, thing, &rows->rows[i], &gone);
        }
        if (record == NULL && !gone && !PyErr_Occurred()) {
            record = record_in_python(others, thing, (PyObject *)rows, i);
        }
        if (PyErr_Occurred()) {
            failed = -1;
        }
        else if (record != NULL && record != Py_None) {
            failed = PyList_Append(records, record) < 0 || PyList_Append(subjects, thing) < 0 ? -1 : 0;
            kept->rows[count++] = rows->rows[i];
        }
        Py_XDECREF(record);
        Py_DECREF(thing);
    }
    kind_facts_forget(&kind_facts);
    Py_SET_SIZE(kept, count);
    return failed;
}

PyObject *records_of_entries(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *type, *dead, *disposals, *others, *entries;
    struct rows *rows;
    struct record_builder record_builder = {.facts = {NULL, NULL, 0}};
    if (!PyArg_ParseTuple(arguments, "OO!OdIO!O!OO!O!:build_records", &type, &PyDict_Type, &record_builder.numbers, &record_builder.facts.function,
                          &record_builder.now_s, &record_builder.closings, &PyDict_Type, &dead, &PyDict_Type, &disposals, &others, &PyList_Type,
                          &entries, &rows_type, &rows)) {
        return NULL;
    }
    if (PyList_GET_SIZE(entries) != Py_SIZE(rows) || entry.type == NULL) {
        PyErr_SetString(PyExc_ValueError, "build_records() takes as many entries as rows");
        return NULL;
    }
    if (record_builder_make(&record_builder, type) < 0) {
        return NULL;
    }
    PyObject *records = PyList_New(0), *subjects = PyList_New(0), *told = NULL;
    struct rows *kept = rows_of(Py_SIZE(rows));
    if (records != NULL && subjects != NULL && kept != NULL &&
        build_all_records(&record_builder, dead, disposals, others, entries, rows, records, subjects, kept) == 0) {
        told = PyTuple_Pack(3, records, subjects, (PyObject *)kept);
    }
    Py_XDECREF(records);
    Py_XDECREF(subjects);
    Py_XDECREF((PyObject *)kept);
    record_builder_close(&record_builder);
    return told;
}
