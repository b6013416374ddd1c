#include "watch_given.h"

/* What tensors are, and what tells the storage of one. */
struct asked {
    PyTypeObject *tensor_type;
    PyObject *storage_of;
};

/* Whether an object is a tensor with a storage, or a list or tuple with one in it; errors count as no. */
static bool has_storage(PyObject *object, PyObject *storage, int levels, const struct asked *asked)
{
    if (PyObject_TypeCheck(object, asked->tensor_type)) {
        PyObject *found = PyObject_CallOneArg(asked->storage_of, object);
        if (found == NULL) {
            PyErr_Clear();
            return false;
        }
        Py_DECREF(found);
        return found == storage;
    }
    if (levels > 0 && PyTuple_CheckExact(object)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++) {
            if (has_storage(PyTuple_GET_ITEM(object, i), storage, levels - 1, asked)) {
                return true;
            }
        }
    }
    else if (levels > 0 && PyList_CheckExact(object)) {
        /* Asking a tensor runs no code that could change the list. */
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); i++) {
            if (has_storage(PyList_GET_ITEM(object, i), storage, levels - 1, asked)) {
                return true;
            }
        }
    }
    return false;
}

bool is_given(const struct call *call, PyObject *storage, PyTypeObject *tensor_type, PyObject *storage_of)
{
    const struct asked asked = {tensor_type, storage_of};
    if ((call->self != NULL && has_storage(call->self, storage, 0, &asked)) ||
        (call->arguments != NULL && has_storage(call->arguments, storage, 2, &asked))) {
        return true;
    }
    if (call->named != NULL && PyDict_CheckExact(call->named)) {
        Py_ssize_t position = 0;
        PyObject *key, *value;
        while (PyDict_Next(call->named, &position, &key, &value)) {
            if (has_storage(value, storage, 1, &asked)) {
                return true;
            }
        }
    }
    return false;
}
