/* What the log asks of the kinds of resources. */
#include "births.h"

#define KINDS_AT_MOST 64

static struct kind kinds[KINDS_AT_MOST];
static int count_of_kinds;
static PyObject *kind_row_function, *measure_function;

static uint16_t number_of_string(struct names *names, PyObject *tuple, Py_ssize_t position)
{
    return names_number(names, PyTuple_GET_ITEM(tuple, position));
}

int kinds_find(PyObject *kind, struct kind *found, PyObject **held)
{
    *held = NULL;
    for (int i = 0; i < count_of_kinds; i++) {
        if (kinds[i].kind == kind) {
            *found = kinds[i];
            return 0;
        }
    }
    PyObject *row = PyObject_CallOneArg(kind_row_function, kind);
    if (row == NULL) {
        return -1;
    }
    if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 5) {
        Py_DECREF(row);
        PyErr_SetString(PyExc_TypeError, "the row of a kind is a tuple of five");
        return -1;
    }
    *found = (struct kind){
        .kind = kind,
        .name = number_of_string(&kind_names, row, 0),
        .weigh = PyTuple_GET_ITEM(row, 1),
        .memory = PyTuple_GET_ITEM(row, 2),
        .device = number_of_string(&device_names, row, 3),
        .backed = PyTuple_GET_ITEM(row, 4) == Py_True,
    };
    if (count_of_kinds < KINDS_AT_MOST) {
        Py_INCREF(kind);
        Py_INCREF(found->weigh);
        Py_INCREF(found->memory);
        kinds[count_of_kinds++] = *found;
    }
    *held = row;
    return 0;
}

int kinds_measure(PyObject *entry, size_t *nbytes, uint16_t *device)
{
    PyObject *told = PyObject_CallOneArg(measure_function, entry);
    if (told == NULL) {
        return -1;
    }
    int failed = -1;
    if (PyTuple_CheckExact(told) && PyTuple_GET_SIZE(told) == 2) {
        *nbytes = PyLong_AsSize_t(PyTuple_GET_ITEM(told, 0));
        *device = number_of_string(&device_names, told, 1);
        failed = *nbytes == (size_t)-1 && PyErr_Occurred() ? -1 : 0;
    }
    else {
        PyErr_SetString(PyExc_TypeError, "bytes and device are a tuple of two");
    }
    Py_DECREF(told);
    return failed;
}

void kinds_bind(PyObject *kind_row, PyObject *measured)
{
    Py_XSETREF(kind_row_function, Py_NewRef(kind_row));
    Py_XSETREF(measure_function, Py_NewRef(measured));
}
