/* What Python gets of births: one birth as a `Row`, or the rows of a window, which are the births
 * whose numbers lie between two numbers. */
#include "log.h"

#include <stddef.h>
#include <stdlib.h>
#include <structmember.h>

/* ------------------------------------------------------------------ one birth */

/* A copy of a birth for Python: `Row` in compiled.pyi. It has a reference to the name of the scope. */
struct row {
    PyObject_HEAD
    unsigned int site, closings;
    unsigned long long nbytes, number;
    double at_s, weight;
    PyObject *scope;
};

static PyMemberDef members[] = {
    {"site", T_UINT, offsetof(struct row, site), READONLY, NULL},
    {"nbytes", T_ULONGLONG, offsetof(struct row, nbytes), READONLY, NULL},
    {"number", T_ULONGLONG, offsetof(struct row, number), READONLY, NULL},
    {"closings", T_UINT, offsetof(struct row, closings), READONLY, NULL},
    {"at_s", T_DOUBLE, offsetof(struct row, at_s), READONLY, NULL},
    {"scope", T_OBJECT, offsetof(struct row, scope), READONLY, NULL},
    {"weight", T_DOUBLE, offsetof(struct row, weight), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void row_dealloc(PyObject *object)
{
    Py_XDECREF(((struct row *)object)->scope);
    PyObject_Free(object);
}

PyTypeObject row_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.leaks.births.compiled.Row",
    .tp_doc = "What is known of a birth.",
    .tp_basicsize = sizeof(struct row),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = row_dealloc,
    .tp_members = members,
};

/* The row of a birth, None for NULL: a new reference, or NULL with an exception. Runs no Python
 * code: the garbage collector does not track rows, so that to make one never starts it. */
static PyObject *row_of(const Log *log, const struct birth *birth)
{
    if (birth == NULL) {
        return Py_NewRef(Py_None);
    }
    struct row *row = PyObject_New(struct row, &row_type);
    if (row != NULL) {
        row->site = (unsigned int)birth->site;
        row->closings = birth->closings;
        row->nbytes = birth->nbytes;
        row->number = birth->number;
        row->at_s = log->made_at + birth->at_ms * 1e-3;
        row->weight = birth_weight(log, birth);
        row->scope = Py_NewRef(names_object(&log->scope_names, birth->scope));
    }
    return (PyObject *)row;
}

PyObject *rows_recall(Log *log, PyObject *entry) { return row_of(log, birth_of(log, entry)); }

PyObject *rows_recall_block(Log *log, PyObject *address)
{
    void *key = PyLong_AsVoidPtr(address);
    return key == NULL && PyErr_Occurred() ? NULL : row_of(log, birth_of(log, key));
}

PyObject *rows_recall_memory(Log *log, PyObject *object)
{
    const struct birth *birth = birth_of_memory(log, object);
    return row_of(log, birth == NULL || birth->flags & BIRTH_UNCOUNTED ? NULL : birth);
}

PyObject *rows_is_in_use(Log *log, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "is_in_use() takes an address and the number of a birth");
        return NULL;
    }
    void *key = PyLong_AsVoidPtr(arguments[0]);
    unsigned long long number = PyLong_AsUnsignedLongLong(arguments[1]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    const struct birth *birth = birth_of(log, key);
    return PyBool_FromLong(birth != NULL && birth->number == number);
}

/* ------------------------------------------------------------------ the births of a window */

static int by_number(const void *one, const void *other)
{
    uint64_t before = ((const struct birth *)one)->number, after = ((const struct birth *)other)->number;
    return (before > after) - (before < after);
}

/* A pair of lists: the keys of the births of a window, and their rows, in the order of birth. Which
 * births is told by the flag that says what their key is; 0 for blocks. The window is after the
 * first and up to the second of the numbers in `arguments`. */
static PyObject *list_births(Log *log, PyObject *arguments, unsigned key_flag)
{
    unsigned long long after, until;
    if (!PyArg_ParseTuple(arguments, "KK", &after, &until)) {
        return NULL;
    }
    /* A copy, which owns its keys: the objects made below may start the garbage collector, and with
     * it births and deaths. */
    struct birth *found = malloc(((size_t)log->births.count + 1) * sizeof *found);
    if (found == NULL) {
        return PyErr_NoMemory();
    }
    size_t count = 0;
    for (uint32_t i = 0; i < log->births.count; i++) {
        struct birth birth = log->births.all[i];
        bool is_left_out = key_flag == BIRTH_OF_MEMORY && birth.flags & BIRTH_UNCOUNTED;
        if ((birth.flags & (BIRTH_OF_ENTRY | BIRTH_OF_MEMORY)) == key_flag && !is_left_out && birth.number > after &&
            birth.number <= until) {
            if (key_flag != 0) {
                Py_INCREF((PyObject *)birth.key);
            }
            found[count++] = birth;
        }
    }
    qsort(found, count, sizeof *found, by_number);
    PyObject *keys = PyList_New((Py_ssize_t)count), *rows = PyList_New((Py_ssize_t)count);
    bool failed = keys == NULL || rows == NULL;
    for (size_t i = 0; i < count; i++) {
        PyObject *key = key_flag != 0 ? (PyObject *)found[i].key : failed ? NULL : PyLong_FromVoidPtr(found[i].key);
        PyObject *row = failed ? NULL : row_of(log, &found[i]);
        if (key == NULL || row == NULL) {
            failed = true;
            Py_XDECREF(key);
            Py_XDECREF(row);
            continue;
        }
        PyList_SET_ITEM(keys, (Py_ssize_t)i, key);
        PyList_SET_ITEM(rows, (Py_ssize_t)i, row);
    }
    free(found);
    PyObject *pair = failed ? NULL : PyTuple_Pack(2, keys, rows);
    Py_XDECREF(keys);
    Py_XDECREF(rows);
    return pair;
}

PyObject *rows_entries(Log *log, PyObject *arguments) { return list_births(log, arguments, BIRTH_OF_ENTRY); }
PyObject *rows_blocks(Log *log, PyObject *arguments) { return list_births(log, arguments, 0); }
PyObject *rows_recorded_memory(Log *log, PyObject *arguments) { return list_births(log, arguments, BIRTH_OF_MEMORY); }
