#include "watch_names.h"

#include <stdint.h>

/* What functions are called, by their address: they are held. */
#define NAMES 1024
static struct {
    PyObject *function, *name;
} names[NAMES];
static int count_of_names;

PyObject *name_of(PyObject *function)
{
    size_t at = ((size_t)(uintptr_t)function >> 4) * 0x9E3779B1u % NAMES;
    for (; names[at].function != NULL; at = (at + 1) % NAMES) {
        if (names[at].function == function) {
            return names[at].name;
        }
    }
    if (count_of_names >= NAMES / 2) {
        return NULL;
    }
    PyObject *name = PyObject_GetAttrString(function, "__name__");
    if (name == NULL || !PyUnicode_CheckExact(name)) {
        PyErr_Clear();
        Py_XDECREF(name);
        return NULL;
    }
    names[at].function = Py_NewRef(function);
    names[at].name = name;
    count_of_names++;
    return name;
}
