/* The slots of a class written in Python: found by name once, and read and written without Python from then on. For
 * every compiled part that knows such a class. Used under the GIL. */
#ifndef DISPOSESCOPE_SLOTS_H
#define DISPOSESCOPE_SLOTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <structmember.h>

/* Where a slot lies in the instances of a class. -1 with an error set where the class has no slot of that name. */
static inline Py_ssize_t offset_of_slot(PyTypeObject *type, const char *name)
{
    PyObject *descriptor = PyObject_GetAttrString((PyObject *)type, name);
    if (descriptor == NULL) {
        return -1;
    }
    const PyMemberDef *member =
        Py_TYPE(descriptor) == &PyMemberDescr_Type ? ((PyMemberDescrObject *)descriptor)->d_member : NULL;
    Py_ssize_t offset = member != NULL && member->type == T_OBJECT_EX ? member->offset : -1;
    Py_DECREF(descriptor);
    if (offset < 0) {
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, name);
    }
    return offset;
}

/* What lies in a slot, borrowed; an empty one counts as None. */
static inline PyObject *read_slot(PyObject *object, Py_ssize_t offset)
{
    PyObject *held = *(PyObject **)((char *)object + offset);
    return held == NULL ? Py_None : held;
}

/* Puts a new reference into a slot. What was there is let go last, for that can run any code. */
static inline void write_slot(PyObject *object, Py_ssize_t offset, PyObject *value)
{
    PyObject **place = (PyObject **)((char *)object + offset);
    PyObject *before = *place;
    *place = Py_NewRef(value);
    Py_XDECREF(before);
}

/* Whether an object is an instance of a class. `usual` is the class that one had last, nearly always the same, whose bases
 * need not be looked through again. */
static inline bool is_instance(PyObject *object, PyTypeObject *type, PyTypeObject **usual)
{
    if (Py_TYPE(object) == *usual) {
        return true;
    }
    if (!PyObject_TypeCheck(object, type)) {
        return false;
    }
    Py_XSETREF(*usual, (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(object)));
    return true;
}

#endif
