/* The slots of objects of this library's own classes, read and filled in without their descriptors. */
#ifndef DISPOSESCOPE_BIRTHLOG_SLOTS_H
#define DISPOSESCOPE_BIRTHLOG_SLOTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Where the slot of a class is in its instances, and in those of its subclasses; -1 with an exception where it has none. */
int find_slot(PyTypeObject *type, const char *name, Py_ssize_t *offset);

/* What is in a slot, borrowed; NULL where it is empty. */
static inline PyObject *slot_value(PyObject *object, Py_ssize_t offset)
{
    return *(PyObject **)((char *)object + offset);
}

/* Fill the empty slot of a new object; takes the reference. */
static inline void fill_slot(PyObject *object, Py_ssize_t offset, PyObject *value)
{
    *(PyObject **)((char *)object + offset) = value;
}

#endif
