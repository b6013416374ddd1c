#include "slots.h"

#include <structmember.h>

int find_slot(PyTypeObject *type, const char *name, Py_ssize_t *offset)
{
    PyObject *descriptor = PyObject_GetAttrString((PyObject *)type, name);
    if (descriptor == NULL) {
        return -1;
    }
    const PyMemberDef *member =
        Py_TYPE(descriptor) == &PyMemberDescr_Type ? ((PyMemberDescrObject *)descriptor)->d_member : NULL;
    if (member == NULL || member->type != T_OBJECT_EX) {
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, name);
        Py_DECREF(descriptor);
        return -1;
    }
    *offset = member->offset;
    Py_DECREF(descriptor);
    return 0;
}
