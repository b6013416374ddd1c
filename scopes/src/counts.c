#include "counts.h"

static PyObject *values(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    const long long *held = ((Counts *)self)->values;
    return Py_BuildValue("(LLLL)", held[CREATED_IN_SCOPE], held[CREATED_UNSCOPED], held[DISPOSED_IN_SCOPE],
                         held[DISPOSED_UNSCOPED]);
}

static PyObject *clear(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    for (int which = 0; which < COUNTERS; which++) {
        ((Counts *)self)->values[which] = 0;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"values", values, METH_NOARGS, NULL},
    {"clear", clear, METH_NOARGS, NULL},
    {0},
};

/* Without references to other objects, and zero when it is made. */
PyTypeObject counts_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "_compiled.Counts",
    .tp_basicsize = sizeof(Counts),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = methods,
    .tp_new = PyType_GenericNew,
};
