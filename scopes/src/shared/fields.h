/* Fields of C structs that Python code can read and assign. An assignment checks the type, because
 * compiled code relies on it. */
#ifndef DISPOSESCOPE_SCOPES_FIELDS_H
#define DISPOSESCOPE_SCOPES_FIELDS_H

#include "types.h"

/* The type of a field's value. An enum, because on Windows the addresses of Python's own types are
 * no compile-time constants and cannot initialise a static `struct field`. */
enum content { AN_OBJECT, A_BOOL, A_DICT, A_FRAME, AN_INT, A_LIST, A_STR, A_TUPLE, OWN_TYPE };

struct field {
    const char *name;
    size_t offset;
    enum content content;
    bool may_be_none;
    PyTypeObject *own; /* for OWN_TYPE, a type that this extension defines; else NULL */
};

static inline PyTypeObject *type_of_content(const struct field *field)
{
    switch (field->content) {
    case A_BOOL:
        return &PyBool_Type;
    case A_DICT:
        return &PyDict_Type;
    case A_FRAME:
        return &PyFrame_Type;
    case AN_INT:
        return &PyLong_Type;
    case A_LIST:
        return &PyList_Type;
    case A_STR:
        return &PyUnicode_Type;
    case A_TUPLE:
        return &PyTuple_Type;
    case OWN_TYPE:
        return field->own;
    default:
        return &PyBaseObject_Type;
    }
}

/* The getter of a PyGetSetDef whose closure is a `struct field`. `set_field` is the setter. */
static inline PyObject *get_field(PyObject *self, void *closure)
{
    return Py_NewRef(*(PyObject **)((char *)self + ((const struct field *)closure)->offset));
}

static inline int set_field(PyObject *self, PyObject *value, void *closure)
{
    const struct field *field = closure;
    if (value == NULL) {
        PyErr_Format(PyExc_AttributeError, "%s of a %s cannot be deleted", field->name, Py_TYPE(self)->tp_name);
        return -1;
    }
    PyTypeObject *type = type_of_content(field);
    if (!(field->may_be_none && value == Py_None) && !PyObject_TypeCheck(value, type)) {
        PyErr_Format(PyExc_TypeError, "%s of a %s must be %s%s, not %s", field->name, Py_TYPE(self)->tp_name,
                     type->tp_name, field->may_be_none ? " or None" : "", Py_TYPE(value)->tp_name);
        return -1;
    }
    put((PyObject **)((char *)self + field->offset), value);
    return 0;
}

#endif
