#include "alone.h"

#include "attributes.h"
#include "bound.h"
#include "state.h"

enum object { LISTENERS, TRANSFORM, FORWARD_AD, OBJECTS };

static const char *const names[OBJECTS] = {
    [LISTENERS] = "LISTENERS",
    [TRANSFORM] = "transform",
    [FORWARD_AD] = "forward_ad",
};

static PyObject *bound[OBJECTS];
static PyObject *name_level;

PyObject *alone_bind(PyObject *module, PyObject *things)
{
    (void)module;
    if (!may_bind(things, bound[LISTENERS])) {
        return NULL;
    }
    if (name_level == NULL && (name_level = PyUnicode_InternFromString("_current_level")) == NULL) {
        return NULL;
    }
    PyObject *listeners = PyDict_GetItemString(things, "LISTENERS"), *module_names = PyDict_GetItemString(things, "forward_ad");
    if (listeners == NULL || !PyList_CheckExact(listeners) ||
        module_names == NULL || !PyDict_CheckExact(module_names)) {
        PyErr_SetString(PyExc_TypeError, "bind_alone() was given something else than it wants");
        return NULL;
    }
    if (take(things, names, OBJECTS, bound) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Whether derivatives are made by graphs alone: neither forward, nor by a transform. -1 with an error set. */
static int is_underived(void)
{
    PyObject *level = PyDict_GetItemWithError(bound[FORWARD_AD], name_level);
    if (level == NULL || !PyLong_CheckExact(level)) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int overflow = 0;
    if (PyLong_AsLongAndOverflow(level, &overflow) >= 0 || overflow > 0) {
        return 0;
    }
    PyObject *transform = PyObject_CallNoArgs(bound[TRANSFORM]);
    Py_XDECREF(transform);
    return transform == NULL ? -1 : transform == Py_None;
}

PyObject *alone_call(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    if (bound[LISTENERS] == NULL || PyList_GET_SIZE(bound[LISTENERS]) != 0 || !state_is_plain()) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    int underived = is_underived();
    if (underived < 0) {
        return NULL;
    }
    if (!underived) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    return attributes_unborn(module, arguments, number);
}
