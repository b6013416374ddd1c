#include "record_builder.h"

#include <stdlib.h>

PyObject *facts_of(struct facts *facts, uint32_t site)
{
    if (site >= facts->room) {
        uint32_t room = site + site / 2 + 16;
        PyObject **fresh = realloc(facts->known, room * sizeof *fresh);
        if (fresh == NULL) {
            return PyErr_NoMemory();
        }
        for (uint32_t i = facts->room; i < room; i++) {
            fresh[i] = NULL;
        }
        facts->known = fresh;
        facts->room = room;
    }
    if (facts->known[site] == NULL) {
        PyObject *number = PyLong_FromUnsignedLong(site);
        PyObject *told = number == NULL ? NULL : PyObject_CallOneArg(facts->function, number);
        Py_XDECREF(number);
        if (told != NULL && (!PyTuple_Check(told) || PyTuple_GET_SIZE(told) < FACTS)) {
            PyErr_Format(PyExc_TypeError, "what is known of a site is a tuple of %d", FACTS);
            Py_CLEAR(told);
        }
        facts->known[site] = told;
    }
    return facts->known[site];
}

void facts_forget(struct facts *facts)
{
    for (uint32_t i = 0; i < facts->room; i++) {
        Py_XDECREF(facts->known[i]);
    }
    free(facts->known);
}

static const char *const record_names[RECORD_SLOTS] = {
    "kind",  "shape", "dtype",      "nbytes", "used_nbytes", "storages", "site", "disposal",
    "scope", "age_s", "generation", "state",  "frames",      "device",   "op",
};

int record_builder_make(struct record_builder *record_builder, PyObject *type)
{
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "the class of records is no class");
        return -1;
    }
    record_builder->type = (PyTypeObject *)type;
    for (int slot = 0; slot < RECORD_SLOTS; slot++) {
        if (find_slot(record_builder->type, record_names[slot], &record_builder->slots[slot]) < 0) {
            return -1;
        }
    }
    record_builder->alive = PyUnicode_InternFromString("alive");
    return record_builder->alive == NULL ? -1 : 0;
}

void record_builder_close(struct record_builder *record_builder)
{
    facts_forget(&record_builder->facts);
    Py_XDECREF(record_builder->alive);
    Py_XDECREF(record_builder->age);
    Py_XDECREF(record_builder->generation);
}

PyObject *identity_key(PyObject *module, PyObject *identity)
{
    (void)module;
    if (!PyLong_CheckExact(identity)) {
        return Py_NewRef(identity);
    }
    unsigned long long address = PyLong_AsUnsignedLongLong(identity);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return Py_NewRef(identity);
    }
    return PyLong_FromUnsignedLongLong(address >> 6 | address << 58);
}

void left_alone(PyObject *object)
{
    if (PyObject_IS_GC(object)) {
        PyObject_GC_UnTrack(object);
    }
}

/* A storage by its number and its bytes; a new reference. */
static PyObject *numbered(struct record_builder *record_builder, PyObject *identity, PyObject *nbytes)
{
    PyObject *key = identity_key(NULL, identity);
    PyObject *next = key == NULL ? NULL : PyLong_FromSsize_t(PyDict_GET_SIZE(record_builder->numbers));
    PyObject *number = next == NULL ? NULL : PyDict_SetDefault(record_builder->numbers, key, next);
    PyObject *pair = number == NULL ? NULL : PyTuple_Pack(2, number, nbytes);
    Py_XDECREF(next);
    Py_XDECREF(key);
    return pair;
}

PyObject *record_builder_storages(struct record_builder *record_builder, PyObject *identity, PyObject *nbytes)
{
    PyObject *pair = numbered(record_builder, identity, nbytes);
    PyObject *storages = pair == NULL ? NULL : PyTuple_Pack(1, pair);
    if (storages != NULL && PyLong_CheckExact(nbytes)) {
        left_alone(pair);
        left_alone(storages);
    }
    Py_XDECREF(pair);
    return storages;
}

/* Have age and generation of a birth at hand: those of many births in a row are the same. */
static int remember_moment(struct record_builder *record_builder, const struct row *row)
{
    if (record_builder->age == NULL || row->at_ms != record_builder->at_ms) {
        Py_XSETREF(record_builder->age, PyFloat_FromDouble(record_builder->now_s - (log_loaded_at + row->at_ms * 1e-3)));
        record_builder->at_ms = row->at_ms;
    }
    if (record_builder->generation == NULL || row->closings != record_builder->born_at) {
        Py_XSETREF(record_builder->generation, PyLong_FromLong((long)record_builder->closings - (long)row->closings));
        record_builder->born_at = row->closings;
    }
    return record_builder->age == NULL || record_builder->generation == NULL ? -1 : 0;
}

PyObject *record_builder_record(struct record_builder *record_builder, const struct row *row, const struct likeness *likeness)
{
    PyObject *facts = facts_of(&record_builder->facts, (uint32_t)row->site);
    if (facts == NULL) {
        return NULL;
    }
    if (remember_moment(record_builder, row) < 0) {
        return NULL;
    }
    PyObject *record = record_builder->type->tp_alloc(record_builder->type, 0);
    if (record == NULL) {
        return NULL;
    }
    const Py_ssize_t *slots = record_builder->slots;
    fill_slot(record, slots[SITE], Py_NewRef(PyTuple_GET_ITEM(facts, FACT_SITE)));
    fill_slot(record, slots[DISPOSAL], Py_NewRef(Py_None));
    fill_slot(record, slots[SCOPE], Py_NewRef(names_object(&scope_names, row->scope)));
    fill_slot(record, slots[AGE_S], Py_NewRef(record_builder->age));
    fill_slot(record, slots[GENERATION], Py_NewRef(record_builder->generation));
    fill_slot(record, slots[STATE], Py_NewRef(record_builder->alive));
    fill_slot(record, slots[FRAMES], Py_NewRef(PyTuple_GET_ITEM(facts, FACT_FRAMES)));
    fill_slot(record, slots[DEVICE], Py_NewRef(PyTuple_GET_ITEM(facts, FACT_DEVICE)));
    fill_slot(record, slots[OP], Py_NewRef(PyTuple_GET_ITEM(facts, FACT_OP)));
    fill_slot(record, slots[KIND], Py_NewRef(likeness->kind));
    fill_slot(record, slots[SHAPE], Py_NewRef(likeness->shape));
    fill_slot(record, slots[DTYPE], Py_NewRef(likeness->dtype));
    fill_slot(record, slots[NBYTES], Py_NewRef(likeness->nbytes));
    fill_slot(record, slots[USED_NBYTES], Py_NewRef(likeness->used_nbytes));
    fill_slot(record, slots[STORAGES], Py_NewRef(likeness->storages));
    left_alone(record);
    return record;
}
