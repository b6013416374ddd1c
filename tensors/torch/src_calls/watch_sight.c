#include "watch_sight.h"

#include "watch_given.h"

struct sight_objects sight_objects;
static PyObject *name_is_cpu, *name_nbytes;

bool may_have_tensors(PyObject *result)
{
    /* Most of what is none is of a class that is no Python class. */
    return Py_IS_TYPE(result, sight_objects.tensor_type) || PyTuple_Check(result) || PyList_CheckExact(result) || PyDict_CheckExact(result) ||
           (PyType_HasFeature(Py_TYPE(result), Py_TPFLAGS_HEAPTYPE) && PyObject_TypeCheck(result, sight_objects.tensor_type));
}

int sight_make(void)
{
    name_is_cpu = PyUnicode_InternFromString("is_cpu");
    name_nbytes = PyUnicode_InternFromString("nbytes");
    return name_is_cpu == NULL || name_nbytes == NULL ? -1 : 0;
}

/* The number of a device by its name; -1 where memory on it is none (meta), or with an exception. */
static int device_number(PyObject *tensor, PyObject *storage)
{
    PyObject *is_cpu = PyObject_GetAttr(tensor, name_is_cpu);
    if (is_cpu == NULL) {
        return -1;
    }
    Py_DECREF(is_cpu);
    if (is_cpu == Py_True) {
        return sight_objects.cpu;
    }
    PyObject *name = PyObject_CallOneArg(sight_objects.device_of, storage);
    if (name == NULL) {
        return -1;
    }
    int number = name == Py_None ? -1 : sight_objects.log->device_number(name);
    Py_DECREF(name);
    return number;
}

int sight(PyObject *tensor, PyObject *op, const struct call *call)
{
    if (sight_objects.log->samples()) {
        /* Of views as well: what falls on them is dropped below, and every birth keeps its chance. */
        PyObject *told = PyObject_GetAttr(tensor, name_nbytes);
        size_t nbytes = told == NULL ? 0 : PyLong_AsSize_t(told);
        Py_XDECREF(told);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            nbytes = 0;
        }
        if (!sight_objects.log->is_kept(nbytes)) {
            return 0;
        }
    }
    PyObject *storage = PyObject_CallOneArg(sight_objects.storage_of, tensor);
    if (storage == NULL) {
        /* A tensor inside of a transform, a sparse one, an opaque one: nothing that could be watched. */
        PyErr_Clear();
        return 0;
    }
    int failed = 0;
    if (!sight_objects.log->is_known(storage) && !is_given(call, storage, sight_objects.tensor_type, sight_objects.storage_of)) {
        PyObject *told = PyObject_CallOneArg(sight_objects.nbytes_of, storage);
        size_t nbytes = told == NULL ? (size_t)-1 : PyLong_AsSize_t(told);
        Py_XDECREF(told);
        int device = nbytes == 0 || nbytes == (size_t)-1 ? -1 : device_number(tensor, storage);
        if (device >= 0) {
            failed = sight_objects.log->sight(storage, op, nbytes, sight_objects.kind, (uint16_t)device);
        }
        else if (PyErr_Occurred()) {
            failed = PyErr_ExceptionMatches(PyExc_Exception) ? 0 : -1;
        }
        if (failed == 0) {
            PyErr_Clear();
        }
    }
    Py_DECREF(storage);
    return failed;
}
