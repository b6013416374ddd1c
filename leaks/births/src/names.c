#include "module.h"

struct names op_names, kind_names, device_names, scope_names, pass_names;

#define NO_NUMBER UINT16_MAX

int names_make(struct names *names)
{
    PyObject *numbers = PyDict_New(), *objects = PyList_New(0);
    if (numbers == NULL || objects == NULL) {
        Py_XDECREF(numbers);
        Py_XDECREF(objects);
        return -1;
    }
    Py_XSETREF(names->numbers, numbers);
    Py_XSETREF(names->objects, objects);
    return 0;
}

static uint16_t added(struct names *names, PyObject *object)
{
    Py_ssize_t count = PyList_GET_SIZE(names->objects);
    if (count >= NO_NUMBER) {
        return NO_NUMBER;
    }
    PyObject *number = PyLong_FromSsize_t(count);
    if (number == NULL || PyList_Append(names->objects, object) < 0) {
        Py_XDECREF(number);
        return NO_NUMBER;
    }
    int failed = PyDict_SetItem(names->numbers, object, number);
    Py_DECREF(number);
    return failed ? NO_NUMBER : (uint16_t)count;
}

uint16_t names_number(struct names *names, PyObject *object)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    uint16_t number = NO_NUMBER;
    /* A subclass of str could do anything when it is compared. */
    if (object == Py_None || PyUnicode_CheckExact(object)) {
        PyObject *known = PyDict_GetItemWithError(names->numbers, object);
        number = known == NULL ? added(names, object) : (uint16_t)PyLong_AsLong(known);
    }
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    return number;
}

PyObject *names_object(const struct names *names, uint16_t number)
{
    return number < PyList_GET_SIZE(names->objects) ? PyList_GET_ITEM(names->objects, number) : Py_None;
}
