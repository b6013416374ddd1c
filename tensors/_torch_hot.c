/* The module `_torch_hot`: what every call of PyTorch inside a scope, and every disposal of a tensor, goes through,
 * compiled. Documented in _torch_hot.pyi. It knows PyTorch by the objects that it is given; everything unusual is handed
 * to the Python functions that it is given too. Used under the GIL. */
#include "../scopes/_hot_module.h"
#include "_torch_hot_births.h"
#include "_torch_hot_disposal.h"
#include "_torch_hot_seam.h"

static PyObject *is_bound(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyBool_FromLong(births_are_bound() || disposal_is_bound());
}

static PyObject *references(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 2 || !PyTuple_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "references() takes a function and a tuple");
        return NULL;
    }
    PyObject *result = PyObject_Call(arguments[0], arguments[1], NULL);
    if (result == NULL) {
        return NULL;
    }
    PyObject *number_of = PyLong_FromSsize_t(Py_REFCNT(result));
    Py_DECREF(result);
    return number_of;
}

static PyMethodDef functions[] = {
    {"bind_births", births_bind, METH_O, NULL},
    {"bind_disposal", disposal_bind, METH_O, NULL},
    {"bind_seam", seam_bind, METH_O, NULL},
    {"is_bound", is_bound, METH_NOARGS, NULL},
    {"entered", seam_entered, METH_O, NULL},
    {"left", seam_left, METH_O, NULL},
    {"references", (PyCFunction)(void (*)(void))references, METH_FASTCALL, NULL},
    {"handler_of", births_handler_of, METH_O, NULL},
    {"drop", disposal_drop, METH_O, NULL},
    {0},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_torch_hot", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__torch_hot(void) { return hot_module(&definition); }
