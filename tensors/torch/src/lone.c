#include "lone.h"

#include "looks.h"

static PyObject *name_grad_fn, *name_base, *name_grad, *name_cdata, *name_torch, *name_resizable;

int lone_make(void)
{
    name_grad_fn = PyUnicode_InternFromString("grad_fn");
    name_base = PyUnicode_InternFromString("_base");
    name_grad = PyUnicode_InternFromString("_grad");
    name_cdata = PyUnicode_InternFromString("_cdata");
    name_torch = PyUnicode_InternFromString("torch");
    name_resizable = PyUnicode_InternFromString("resizable");
    return name_resizable == NULL || name_grad_fn == NULL || name_base == NULL || name_grad == NULL || name_cdata == NULL || name_torch == NULL ? -1 : 0;
}

/* Called by a tensor for each thing that it refers to: 1 to stop at any but its class. */
static int is_no_class(PyObject *thing, void *type) { return thing != (PyObject *)type; }

/* Whether an attribute of a tensor is None; -1 with an exception. */
static int is_none(PyObject *tensor, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(tensor, name);
    Py_XDECREF(value);
    return value == NULL ? -1 : value == Py_None;
}

PyObject *lone_identity(PyObject *module, PyObject *tensor)
{
    (void)module;
    PyTypeObject *type = Py_TYPE(tensor);
    if (!looks_know_class(type) || type->tp_traverse == NULL ||
        type->tp_traverse(tensor, is_no_class, type) != 0) {
        Py_RETURN_NONE;
    }
    PyObject *names_of_edges[] = {name_grad_fn, name_base, name_grad};
    for (size_t i = 0; i < sizeof names_of_edges / sizeof names_of_edges[0]; i++) {
        int none = is_none(tensor, names_of_edges[i]);
        if (none <= 0) {
            return none < 0 ? NULL : Py_NewRef(Py_None);
        }
    }
    PyObject *storage = looks_storage_of(tensor);
    if (storage == NULL) {
        /* A sparse one, an opaque one. */
        Py_RETURN_NONE;
    }
    /* What PyTorch has not allocated may be an array's. */
    PyObject *resizable = PyObject_CallMethodNoArgs(storage, name_resizable);
    Py_XDECREF(resizable);
    if (resizable != Py_True) {
        Py_DECREF(storage);
        return resizable == NULL ? NULL : Py_NewRef(Py_None);
    }
    PyObject *address = PyObject_GetAttr(storage, name_cdata);
    Py_DECREF(storage);
    PyObject *identity = address == NULL ? NULL : PyTuple_Pack(2, name_torch, address);
    Py_XDECREF(address);
    return identity;
}
