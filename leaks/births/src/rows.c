/* What the log tells of births: their rows, one by one as tuples, and many at once as a sequence. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ one row */

/* A row as a tuple: site, bytes, number of birth, closings, time, scope, weight. */
#define COLUMNS 7

static PyObject *column_of(const struct row *row, Py_ssize_t column)
{
    switch (column) {
    case 0:
        return PyLong_FromUnsignedLong((unsigned long)row->site);
    case 1:
        return PyLong_FromUnsignedLongLong(row->nbytes);
    case 2:
        return PyLong_FromUnsignedLongLong(row->order);
    case 3:
        return PyLong_FromUnsignedLong(row->closings);
    case 4:
        return PyFloat_FromDouble(log_loaded_at + row->at_ms * 1e-3);
    case 5:
        return Py_NewRef(names_object(&scope_names, row->scope));
    default:
        return PyFloat_FromDouble(log_weight(row));
    }
}

static PyObject *told(const struct row *row)
{
    PyObject *tuple = PyTuple_New(COLUMNS);
    for (Py_ssize_t column = 0; tuple != NULL && column < COLUMNS; column++) {
        PyObject *value = column_of(row, column);
        if (value == NULL) {
            Py_CLEAR(tuple);
        }
        else {
            PyTuple_SET_ITEM(tuple, column, value);
        }
    }
    return tuple;
}

PyObject *rows_recall(PyObject *module, PyObject *key)
{
    (void)module;
    struct row *row = table_find(key);
    if (row == NULL) {
        Py_RETURN_NONE;
    }
    struct row copy = *row;
    return told(&copy);
}

PyObject *rows_recall_block(PyObject *module, PyObject *address)
{
    void *key = PyLong_AsVoidPtr(address);
    if (key == NULL && PyErr_Occurred()) {
        return NULL;
    }
    return rows_recall(module, key);
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
    struct row *row = table_find(key);
    return PyBool_FromLong(row != NULL && row->order == order);
}

PyObject *rows_recall_memory(PyObject *module, PyObject *object)
{
    (void)module;
    struct sighting *sighting = sightings_of(object);
    if (sighting == NULL || sighting->row.flags & ROW_EXCLUDED) {
        Py_RETURN_NONE;
    }
    struct row copy = sighting->row;
    return told(&copy);
}

/* ------------------------------------------------------------------ many rows */

static Py_ssize_t length(PyObject *object) { return Py_SIZE(object); }

static PyObject *item(PyObject *object, Py_ssize_t place)
{
    if (place < 0 || place >= Py_SIZE(object)) {
        PyErr_SetString(PyExc_IndexError, "there are not so many rows");
        return NULL;
    }
    return told(&((struct rows *)object)->rows[place]);
}

static PyObject *joined(PyObject *object, PyObject *other)
{
    if (!Py_IS_TYPE(other, &rows_type)) {
        PyErr_Format(PyExc_TypeError, "rows are joined with rows, not with a %s", Py_TYPE(other)->tp_name);
        return NULL;
    }
    struct rows *whole = rows_of(Py_SIZE(object) + Py_SIZE(other));
    if (whole != NULL) {
        memcpy(whole->rows, ((struct rows *)object)->rows, (size_t)Py_SIZE(object) * sizeof(struct row));
        memcpy(whole->rows + Py_SIZE(object), ((struct rows *)other)->rows, (size_t)Py_SIZE(other) * sizeof(struct row));
    }
    return (PyObject *)whole;
}

/* One column of some rows, as a list. */
static PyObject *column(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2 || !PyList_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "column() takes the number of a column and a list of places");
        return NULL;
    }
    Py_ssize_t wanted = PyLong_AsSsize_t(arguments[0]);
    if (wanted < 0 || wanted >= COLUMNS) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_IndexError, "a row has %d columns", COLUMNS);
        }
        return NULL;
    }
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(arguments[1]); i++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyList_GET_ITEM(arguments[1], i));
        PyObject *value = NULL;
        if (place >= 0 && place < Py_SIZE(object)) {
            value = column_of(&((struct rows *)object)->rows[place], wanted);
        }
        else if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_IndexError, "there are not so many rows");
        }
        if (value == NULL || PyList_Append(list, value) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(value);
    }
    return list;
}

static PyMethodDef methods[] = {
    {"column", (PyCFunction)(void (*)(void))column, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods sequence = {.sq_length = length, .sq_item = item, .sq_concat = joined};

PyTypeObject rows_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.leaks.births.compiled.Rows",
    .tp_doc = "The rows of some births.",
    .tp_basicsize = sizeof(struct rows),
    .tp_itemsize = sizeof(struct row),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_as_sequence = &sequence,
    .tp_methods = methods,
};

int rows_make(void) { return PyType_Ready(&rows_type); }

struct rows *rows_of(Py_ssize_t count) { return (struct rows *)rows_type.tp_alloc(&rows_type, count); }

/* ------------------------------------------------------------------ what is known of a window of births */

struct found {
    void *key;
    struct row row;
};

#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)

/* Sort by the number of the birth, by its digits, the lowest first. `room` is as long as `found`. Returns where the result is. */
static struct found *in_order(struct found *found, struct found *room, size_t count)
{
    uint64_t first = UINT64_MAX, last = 0, before = 0;
    bool sorted = true;
    for (size_t i = 0; i < count; i++) {
        uint64_t order = found[i].row.order;
        sorted = sorted && order >= before;
        before = order;
        first = order < first ? order : first;
        last = order > last ? order : last;
    }
    for (int shift = 0; !sorted && (last - first) >> shift != 0; shift += DIGIT_BITS) {
        size_t places[DIGITS] = {0}, place = 0;
        for (size_t i = 0; i < count; i++) {
            places[((found[i].row.order - first) >> shift) & (DIGITS - 1)]++;
        }
        for (size_t digit = 0; digit < DIGITS; digit++) {
            size_t these = places[digit];
            places[digit] = place;
            place += these;
        }
        for (size_t i = 0; i < count; i++) {
            room[places[((found[i].row.order - first) >> shift) & (DIGITS - 1)]++] = found[i];
        }
        struct found *sorted_by_this = room;
        room = found;
        found = sorted_by_this;
    }
    return found;
}

/* The keys of what was found as a list, and the rows, in the order of birth. Takes the references that the keys hold where they are
 * objects. */
static PyObject *listed(struct found *found, size_t count, bool objects)
{
    struct found *room = malloc((count + 1) * sizeof *room);
    struct found *ordered = room == NULL ? found : in_order(found, room, count);
    PyObject *keys = room == NULL ? PyErr_NoMemory() : PyList_New((Py_ssize_t)count);
    struct rows *rows = keys == NULL ? NULL : rows_of((Py_ssize_t)count);
    for (size_t i = 0; i < count; i++) {
        PyObject *key = objects ? (PyObject *)ordered[i].key : rows == NULL ? NULL : PyLong_FromVoidPtr(ordered[i].key);
        if (rows == NULL) {
            Py_XDECREF(key);
            continue;
        }
        if (key == NULL) {
            Py_CLEAR(rows);
            continue;
        }
        PyList_SET_ITEM(keys, (Py_ssize_t)i, key);
        rows->rows[i] = ordered[i].row;
    }
    free(room);
    PyObject *pair = rows == NULL ? NULL : PyTuple_Pack(2, keys, (PyObject *)rows);
    Py_XDECREF(keys);
    Py_XDECREF((PyObject *)rows);
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
