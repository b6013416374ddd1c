#include "_arena_functions.h"

#include <structmember.h>

#include "_arena_arrays.h"
#include "_arena_numpy.h"
#include "_arena_pool.h"

/* What the functions that are made here have at hand, in this order: the class of handles, the slot of their array, the function in
 * Python that knows what these do not, and what is known of types of elements. Nothing of it changes. */
enum given { HANDLES, SLOT, IN_PYTHON, TYPES_OF_ELEMENTS, GIVEN };

#define SLOT_NAME "disposescope.tensors._arena.slot"

/* The array of a handle, a new reference; NULL without an exception where it is disposed. */
static PyObject *array_of(PyObject *given, PyObject *handle)
{
    if (!PyObject_TypeCheck(handle, (PyTypeObject *)PyTuple_GET_ITEM(given, HANDLES))) {
        PyErr_Format(PyExc_TypeError, "expected a handle, not a %s", Py_TYPE(handle)->tp_name);
        return NULL;
    }
    PyMemberDef *slot = PyCapsule_GetPointer(PyTuple_GET_ITEM(given, SLOT), SLOT_NAME);
    PyObject *array = slot == NULL ? NULL : PyMember_GetOne((const char *)handle, slot);
    if (array == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
    }
    return array;
}

/* ((address, bytes),) where the memory is a block of the arena. */
static PyObject *storages(PyObject *given, PyObject *handle)
{
    PyObject *array = array_of(given, handle);
    if (array == NULL) {
        return PyErr_Occurred() ? NULL : PyTuple_New(0);
    }
    void *address = arrays_block_of(array);
    PyObject *told = address == NULL
                         ? PyObject_CallOneArg(PyTuple_GET_ITEM(given, IN_PYTHON), handle)
                         : Py_BuildValue("((Nn))", PyLong_FromVoidPtr(address), (Py_ssize_t)pool_block_at(address)->nbytes);
    Py_DECREF(array);
    return told;
}

static PyObject *shape_of(const struct numpy_array *array, Py_ssize_t *size)
{
    PyObject *shape = PyTuple_New(array->nd);
    *size = 1;
    for (int axis = 0; shape != NULL && axis < array->nd; axis++) {
        PyObject *length = PyLong_FromSsize_t(array->dimensions[axis]);
        if (length == NULL) {
            Py_CLEAR(shape);
            break;
        }
        PyTuple_SET_ITEM(shape, axis, length);
        *size *= array->dimensions[axis];
    }
    if (shape != NULL && array->nd > 0) {
        /* Of numbers alone: the garbage collector would leave it alone too, once it has met it. */
        PyObject_GC_UnTrack(shape);
    }
    return shape;
}

/* (shape, name of the type of elements, bytes of the elements) where that type is known. */
static PyObject *layout(PyObject *given, PyObject *handle)
{
    PyObject *array = array_of(given, handle);
    if (array == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    const struct numpy_array *fields = (const struct numpy_array *)array;
    PyObject *known = NULL, *told = NULL;
    if (Py_TYPE(array) == numpy_ndarray) {
        known = PyDict_GetItemWithError(PyTuple_GET_ITEM(given, TYPES_OF_ELEMENTS), fields->descr);
    }
    if (known != NULL && PyTuple_CheckExact(known) && PyTuple_GET_SIZE(known) == 2) {
        Py_ssize_t nbytes = PyLong_AsSsize_t(PyTuple_GET_ITEM(known, 1)), size;
        PyObject *shape = nbytes == -1 && PyErr_Occurred() ? NULL : shape_of(fields, &size);
        if (shape != NULL) {
            told = Py_BuildValue("(NOn)", shape, PyTuple_GET_ITEM(known, 0), size * nbytes);
        }
    }
    else if (!PyErr_Occurred()) {
        told = PyObject_CallOneArg(PyTuple_GET_ITEM(given, IN_PYTHON), handle);
    }
    Py_DECREF(array);
    return told;
}

PyObject *arena_tellers(PyObject *module, PyObject *arguments)
{
    static PyMethodDef functions[] = {
        {"storages", storages, METH_O, NULL},
        {"layout", layout, METH_O, NULL},
    };
    (void)module;
    PyObject *type, *slot, *in_python[2], *known;
    if (!PyArg_ParseTuple(arguments, "O!O!OOO!:tellers", &PyType_Type, &type, &PyMemberDescr_Type, &slot, &in_python[0],
                          &in_python[1], &PyDict_Type, &known)) {
        return NULL;
    }
    PyMemberDef *member = ((PyMemberDescrObject *)slot)->d_member;
    if (member->type != T_OBJECT_EX || ((PyDescrObject *)slot)->d_type != (PyTypeObject *)type) {
        PyErr_SetString(PyExc_TypeError, "tellers() takes a class and a slot of it");
        return NULL;
    }
    /* The member belongs to the class, which is kept. */
    PyObject *capsule = PyCapsule_New(member, SLOT_NAME, NULL), *told[2] = {NULL, NULL};
    for (int i = 0; capsule != NULL && i < 2; i++) {
        PyObject *given = PyTuple_Pack(GIVEN, type, capsule, in_python[i], known);
        told[i] = given == NULL ? NULL : PyCFunction_New(&functions[i], given);
        Py_XDECREF(given);
    }
    PyObject *both = told[0] == NULL || told[1] == NULL ? NULL : PyTuple_Pack(2, told[0], told[1]);
    Py_XDECREF(told[0]);
    Py_XDECREF(told[1]);
    Py_XDECREF(capsule);
    return both;
}
