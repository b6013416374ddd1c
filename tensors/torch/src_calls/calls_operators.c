#include "calls_operators.h"

#include "calls.h"
#include "watch_names.h"
#include "watch_sight.h"

enum { METHODS = 2 };

static PyObject *befores[METHODS], *name_of_operators;
static int count_of_methods;

/* Calls the method that was there before, with the operator before its arguments. */
static PyObject *call(int number, PyObject *operator, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    enum { SMALL = 16 };
    Py_ssize_t count_of_all = 1 + count + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    PyObject *room[SMALL], **all = count_of_all <= SMALL ? room : PyMem_Malloc((size_t)count_of_all * sizeof *all);
    if (all == NULL) {
        return PyErr_NoMemory();
    }
    all[0] = operator;
    for (Py_ssize_t i = 1; i < count_of_all; i++) {
        all[i] = given[i - 1];
    }
    calls_begun();
    PyObject *result = PyObject_Vectorcall(befores[number], all, (size_t)(count + 1), names);
    PyObject *arguments = NULL;
    if (result != NULL && may_have_tensors(result)) {
        /* Those by keyword as well: all that is asked is whether one of them was there. */
        arguments = PyTuple_New(count_of_all - 1);
        for (Py_ssize_t i = 1; arguments != NULL && i < count_of_all; i++) {
            PyTuple_SET_ITEM(arguments, i - 1, Py_NewRef(all[i]));
        }
        if (arguments == NULL) {
            Py_CLEAR(result);
        }
    }
    if (arguments == NULL) {
        result = calls_ended(result);
    }
    else {
        PyObject *name = name_of(operator);
        const struct call over = {name == NULL ? name_of_operators : name, NULL, arguments, NULL};
        result = calls_over(&over, result);
        Py_DECREF(arguments);
    }
    if (all != room) {
        PyMem_Free(all);
    }
    return result;
}

static PyObject *call_first(PyObject *operator, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    return call(0, operator, given, count, names);
}

static PyObject *call_second(PyObject *operator, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    return call(1, operator, given, count, names);
}

static PyMethodDef definitions[METHODS] = {
    {"__call__", (PyCFunction)(void (*)(void))call_first, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"__call__", (PyCFunction)(void (*)(void))call_second, METH_FASTCALL | METH_KEYWORDS, NULL},
};

PyObject *operators_method(PyTypeObject *type, PyObject *before)
{
    if (count_of_methods == METHODS) {
        PyErr_SetString(PyExc_RuntimeError, "there are no more classes of operators");
        return NULL;
    }
    if (name_of_operators == NULL && (name_of_operators = PyUnicode_InternFromString("__call__")) == NULL) {
        return NULL;
    }
    PyObject *method = PyDescr_NewMethod(type, &definitions[count_of_methods]);
    if (method != NULL) {
        befores[count_of_methods++] = Py_NewRef(before);
    }
    return method;
}
