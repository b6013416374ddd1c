#include "_torch_hot_untold.h"

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

int untold_forget_dead(PyObject *untold)
{
    Py_ssize_t number = PyList_GET_SIZE(untold), dead = 0, kept = 0;
    if (number < 1024 || (number & (number - 1)) != 0) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < number; i++) {
        dead += is_dead(PyList_GET_ITEM(untold, i));
    }
    if (dead < number / 4) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < number; i++) {
        PyObject *entry = PyList_GET_ITEM(untold, i);
        if (!is_dead(entry)) {
            PyList_SET_ITEM(untold, i, PyList_GET_ITEM(untold, kept));
            PyList_SET_ITEM(untold, kept++, entry);
        }
    }
    /* What goes with the entries can run other code, which puts another list in the place of this one. */
    Py_INCREF(untold);
    int failed = PyList_SetSlice(untold, kept, number, NULL);
    Py_DECREF(untold);
    return failed;
}
