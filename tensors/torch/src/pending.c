#include "pending.h"

#include <stdbool.h>

static bool is_dead(PyObject *entry)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    int alive = PyWeakref_GetRef(entry, &found);
    Py_XDECREF(found);
    return alive == 0;
#else
    return PyWeakref_GET_OBJECT(entry) == Py_None;
#endif
}

int pending_forget_dead(PyObject *pending)
{
    Py_ssize_t number = PyList_GET_SIZE(pending), dead = 0, kept = 0;
    if (number < 1024 || (number & (number - 1)) != 0) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < number; i++) {
        dead += is_dead(PyList_GET_ITEM(pending, i));
    }
    if (dead < number / 4) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < number; i++) {
        PyObject *entry = PyList_GET_ITEM(pending, i);
        if (!is_dead(entry)) {
            PyList_SET_ITEM(pending, i, PyList_GET_ITEM(pending, kept));
            PyList_SET_ITEM(pending, kept++, entry);
        }
    }
    /* What goes with the entries can run other code, which puts another list in the place of this one. */
    Py_INCREF(pending);
    int failed = PyList_SetSlice(pending, kept, number, NULL);
    Py_DECREF(pending);
    return failed;
}
