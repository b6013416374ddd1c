#include "functions.h"

#include <structmember.h>

#include "arrays.h"
#include "numpy.h"
#include "pool.h"

/* What the functions that are made here have at hand, in this order: the class of handles, the slot of their array, the function in
 * Python that knows what these do not, and what is known of types of elements. Nothing of it changes. */
enum given { HANDLES, SLOT, OTHERWISE, TYPES_OF_ELEMENTS, GIVEN };

#define SLOT_NAME "disposescope.tensors.arena.compiled.slot"

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
    PyObject *owner = arrays_owner_of(array), *told = NULL;
    if (owner == NULL) {
        told = PyObject_CallOneArg(PyTuple_GET_ITEM(given, OTHERWISE), handle);
    }
    else {
        PyObject *storage = arrays_storage(owner);
        told = storage == NULL ? NULL : PyTuple_Pack(1, storage);
        Py_XDECREF(storage);
    }
    Py_DECREF(array);
    return told;
}

/* As `move`, for the block behind a handle, and only where nothing else refers to it. */
static PyObject *move_alone(PyObject *given, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "move_alone() takes a handle, the scope that it leaves and the one it goes to");
        return NULL;
    }
    PyObject *array = array_of(given, arguments[0]);
    if (array == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    PyObject *moved = Py_False;
    /* The handle refers to its array, and so does this function. */
    if (arrays_holds_alone(array, 2)) {
        PyObject *given_on[] = {array, arguments[1], arguments[2]};
        moved = arena_move(NULL, given_on, 3);
    }
    else {
        Py_INCREF(moved);
    }
    Py_DECREF(array);
    return moved;
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
        told = PyObject_CallOneArg(PyTuple_GET_ITEM(given, OTHERWISE), handle);
    }
    Py_DECREF(array);
    return told;
}

PyObject *arena_tellers(PyObject *module, PyObject *arguments)
{
    static PyMethodDef functions[] = {
        {"storages", storages, METH_O, NULL},
        {"layout", layout, METH_O, NULL},
        {"move_alone", (PyCFunction)(void (*)(void))move_alone, METH_FASTCALL, NULL},
    };
    (void)module;
    PyObject *type, *slot, *otherwise[2], *known;
    if (!PyArg_ParseTuple(arguments, "O!O!OOO!:tellers", &PyType_Type, &type, &PyMemberDescr_Type, &slot, &otherwise[0],
                          &otherwise[1], &PyDict_Type, &known)) {
        return NULL;
    }
    PyMemberDef *member = ((PyMemberDescrObject *)slot)->d_member;
    if (member->type != T_OBJECT_EX || ((PyDescrObject *)slot)->d_type != (PyTypeObject *)type) {
        PyErr_SetString(PyExc_TypeError, "tellers() takes a class and a slot of it");
        return NULL;
    }
    /* The member belongs to the class, which is kept. */
    PyObject *capsule = PyCapsule_New(member, SLOT_NAME, NULL);
    PyObject *made = capsule == NULL ? NULL : PyTuple_New(3);
    for (int i = 0; made != NULL && i < 3; i++) {
        PyObject *given = PyTuple_Pack(GIVEN, type, capsule, i < 2 ? otherwise[i] : Py_None, known);
        PyObject *function = given == NULL ? NULL : PyCFunction_New(&functions[i], given);
        Py_XDECREF(given);
        if (function == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyTuple_SET_ITEM(made, i, function);
    }
    Py_XDECREF(capsule);
    return made;
}
