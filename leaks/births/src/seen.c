/* Memory that no resource stands for: what is there, and its records, many at once. In Python: log.py, record_builder.py. */
#include "record_builder.h"

enum seen_slot { SEEN_IDENTITY, SEEN_KIND, SEEN_DEVICE, SEEN_NBYTES, SEEN_NUMBER, SEEN_REFERENCE, SEEN_LIVES, SEEN_ESCAPE, SEEN_SLOTS };

static const char *const seen_names[SEEN_SLOTS] = {"identity", "kind", "device", "nbytes", "number", "_reference", "_lives", "_escape"};

static int seen_slots(PyObject *type, Py_ssize_t *slots)
{
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "the class of what was seen is no class");
        return -1;
    }
    for (int slot = 0; slot < SEEN_SLOTS; slot++) {
        if (find_slot((PyTypeObject *)type, seen_names[slot], &slots[slot]) < 0) {
            return -1;
        }
    }
    return 0;
}

PyObject *seen_records(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *type, *seen, *pieces;
    struct rows *rows;
    struct record_builder record_builder = {.facts = {NULL, NULL, 0}};
    Py_ssize_t slots[SEEN_SLOTS];
    if (!PyArg_ParseTuple(arguments, "OO!OdIOO!O!:build_memory_records", &type, &PyDict_Type, &record_builder.numbers,
                          &record_builder.facts.function, &record_builder.now_s, &record_builder.closings, &seen, &PyList_Type, &pieces, &rows_type, &rows)) {
        return NULL;
    }
    if (seen_slots(seen, slots) < 0 || record_builder_make(&record_builder, type) < 0) {
        return NULL;
    }
    PyObject *records = PyList_New(0);
    for (Py_ssize_t i = 0; records != NULL && i < PyList_GET_SIZE(pieces) && i < Py_SIZE(rows); i++) {
        PyObject *piece = PyList_GET_ITEM(pieces, i);
        if (!Py_IS_TYPE(piece, (PyTypeObject *)seen)) {
            PyErr_SetString(PyExc_TypeError, "this was not seen");
            Py_CLEAR(records);
            break;
        }
        PyObject *nbytes = slot_value(piece, slots[SEEN_NBYTES]);
        PyObject *storages = record_builder_storages(&record_builder, slot_value(piece, slots[SEEN_IDENTITY]), nbytes);
        PyObject *record = storages == NULL ? NULL
                                            : record_builder_record(&record_builder, &rows->rows[i],
                                                            &(struct likeness){
                                                                .kind = slot_value(piece, slots[SEEN_KIND]),
                                                                .shape = Py_None,
                                                                .dtype = Py_None,
                                                                .nbytes = nbytes,
                                                                .used_nbytes = nbytes,
                                                                .storages = storages,
                                                            });
        Py_XDECREF(storages);
        if (record == NULL || PyList_Append(records, record) < 0) {
            Py_CLEAR(records);
        }
        Py_XDECREF(record);
    }
    record_builder_close(&record_builder);
    return records;
}

/* What is there behind a reference: 1 with its identity and its bytes, new references; 0 where it is gone or to be left out. */
static int identified(PyObject *identify, PyObject *reference, const struct row *row, PyObject **identity, PyObject **nbytes)
{
    if (identify == Py_None) {
        *identity = Py_NewRef(reference);
        *nbytes = PyLong_FromUnsignedLongLong(row->nbytes);
        return *nbytes == NULL ? -1 : 1;
    }
    PyObject *thing = PyWeakref_Check(reference) ? PyObject_CallNoArgs(reference) : Py_NewRef(reference);
    PyObject *told = thing == NULL || thing == Py_None ? NULL : PyObject_CallOneArg(identify, thing);
    Py_XDECREF(thing);
    if (told == NULL || told == Py_None) {
        Py_XDECREF(told);
        return PyErr_Occurred() ? -1 : 0;
    }
    int found = PyTuple_CheckExact(told) && PyTuple_GET_SIZE(told) == 2 ? 1 : -1;
    if (found > 0) {
        *identity = Py_NewRef(PyTuple_GET_ITEM(told, 0));
        *nbytes = Py_NewRef(PyTuple_GET_ITEM(told, 1));
    }
    else {
        PyErr_SetString(PyExc_TypeError, "identity and bytes are a tuple of two");
    }
    Py_DECREF(told);
    return found;
}

PyObject *seen_is_referenced(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "is_referenced() takes a reference and the number of a birth");
        return NULL;
    }
    PyObject *thing = PyObject_CallNoArgs(arguments[0]);
    if (thing == NULL) {
        return NULL;
    }
    Py_DECREF(thing);
    return PyBool_FromLong(thing != Py_None);
}

/* Whether the key of an identity is among some; they are asked as any container. */
static int is_among(PyObject *some, PyObject *identity)
{
    PyObject *key = identity_key(NULL, identity);
    int found = key == NULL ? -1 : PyDict_CheckExact(some) ? PyDict_Contains(some, key) : PySequence_Contains(some, key);
    Py_XDECREF(key);
    return found;
}

PyObject *seen_all(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *type, *kind, *but, *identify, *lives, *references, *escape;
    struct rows *rows;
    struct facts facts = {NULL, NULL, 0};
    Py_ssize_t slots[SEEN_SLOTS];
    if (!PyArg_ParseTuple(arguments, "OUOOOOO!O!O:see", &type, &kind, &facts.function, &but, &identify, &lives, &PyList_Type,
                          &references, &rows_type, &rows, &escape)) {
        return NULL;
    }
    PyObject *pieces = seen_slots(type, slots) < 0 ? NULL : PyList_New(0);
    struct rows *kept = pieces == NULL ? NULL : rows_of(Py_SIZE(rows));
    Py_ssize_t count = 0;
    bool failed = kept == NULL;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(references) && i < Py_SIZE(rows); i++) {
        const struct row *row = &rows->rows[i];
        PyObject *told = facts_of(&facts, (uint32_t)row->site), *reference = PyList_GET_ITEM(references, i);
        PyObject *its_kind = told == NULL ? NULL : PyTuple_GET_ITEM(told, FACT_KIND);
        if (its_kind == NULL || (its_kind != kind && PyUnicode_Compare(its_kind, kind) != 0)) {
            failed = PyErr_Occurred() != NULL;
            continue;
        }
        PyObject *identity = NULL, *nbytes = NULL;
        int found = identified(identify, reference, row, &identity, &nbytes);
        int left_out = found > 0 ? is_among(but, identity) : 1;
        if (found > 0 && left_out == 0) {
            PyObject *piece = ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
            PyObject *number = piece == NULL ? NULL : PyLong_FromUnsignedLongLong(row->order);
            if (number != NULL) {
                fill_slot(piece, slots[SEEN_IDENTITY], Py_NewRef(identity));
                fill_slot(piece, slots[SEEN_KIND], Py_NewRef(kind));
                fill_slot(piece, slots[SEEN_DEVICE], Py_NewRef(PyTuple_GET_ITEM(told, FACT_DEVICE)));
                fill_slot(piece, slots[SEEN_NBYTES], Py_NewRef(nbytes));
                fill_slot(piece, slots[SEEN_NUMBER], number);
                fill_slot(piece, slots[SEEN_REFERENCE], Py_NewRef(reference));
                fill_slot(piece, slots[SEEN_LIVES], Py_NewRef(lives));
                fill_slot(piece, slots[SEEN_ESCAPE], Py_NewRef(escape));
                left_alone(piece);
                failed = PyList_Append(pieces, piece) < 0;
                kept->rows[count++] = *row;
            }
            Py_XDECREF(piece);
        }
        Py_XDECREF(identity);
        Py_XDECREF(nbytes);
        failed = failed || PyErr_Occurred() != NULL;
    }
    facts_forget(&facts);
    if (kept != NULL) {
        Py_SET_SIZE(kept, count);
    }
    PyObject *pair = failed ? NULL : PyTuple_Pack(2, pieces, (PyObject *)kept);
    Py_XDECREF(pieces);
    Py_XDECREF((PyObject *)kept);
    return pair;
}
