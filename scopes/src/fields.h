/* Fields of objects that Python code reads and assigns, with a check of what is assigned: the
 * compiled code relies on it. */
#ifndef DISPOSESCOPE_SCOPES_FIELDS_H
#define DISPOSESCOPE_SCOPES_FIELDS_H

#include "types.h"

struct field {
    const char *name;
    size_t offset;
    PyTypeObject *type; /* what it holds an instance of */
    bool may_be_none;
};

/* For a PyGetSetDef, with a `struct field` as closure. */
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
    if (!(field->may_be_none && value == Py_None) && !PyObject_TypeCheck(value, field->type)) {
        PyErr_Format(PyExc_TypeError, "%s of a %s must be %s%s, not %s", field->name, Py_TYPE(self)->tp_name,
                     field->type->tp_name, field->may_be_none ? " or None" : "", Py_TYPE(value)->tp_name);
        return -1;
    }
    put((PyObject **)((char *)self + field->offset), value);
    return 0;
}

#endif
