/* The module `_hot`: the paths that every birth, death and block goes through, compiled. Documented in _hot.pyi. */
#include "_hot_births.h"
#include "_hot_blocks.h"
#include "_hot_bound.h"
#include "_hot_counts.h"
#include "_hot_module.h"
#include "_hot_releases.h"
#include "_hot_wholes.h"

static PyObject *bind(PyObject *module, PyObject *things)
{
    (void)module;
    if (is_bound() || !PyDict_CheckExact(things)) {
        PyErr_SetString(PyExc_RuntimeError, "bind() takes a dict, once in a process");
        return NULL;
    }
    if (bind_all(things) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *bound_already(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyBool_FromLong(is_bound());
}

static PyObject *forget(PyObject *module, PyObject *ledger)
{
    (void)module;
    forget_ledger(ledger);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_O, NULL},
    {"is_bound", bound_already, METH_NOARGS, NULL},
    {"anchor_died", hot_anchor_died, METH_O, NULL},
    {"born", (PyCFunction)(void (*)(void))hot_born, METH_FASTCALL, NULL},
    {"born_untold", (PyCFunction)(void (*)(void))hot_born_untold, METH_FASTCALL, NULL},
    {"born_whole", (PyCFunction)(void (*)(void))hot_born_whole, METH_FASTCALL, NULL},
    {"changed", hot_changed, METH_NOARGS, NULL},
    {"died", hot_died, METH_O, NULL},
    {"forget_ledger", forget, METH_O, NULL},
    {"part", (PyCFunction)(void (*)(void))hot_part, METH_FASTCALL, NULL},
    {"quicken", hot_quicken, METH_O, NULL},
    {"release", (PyCFunction)(void (*)(void))hot_release, METH_FASTCALL, NULL},
    {"release_newest", (PyCFunction)(void (*)(void))hot_release_newest, METH_FASTCALL, NULL},
    {"sweep", hot_sweep, METH_NOARGS, NULL},
    {0},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_hot", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__hot(void)
{
    PyObject *module = hot_module(&definition);
    if (module == NULL) {
        return NULL;
    }
    PyObject *changes = PyCapsule_New(&hot_changes, "disposescope.scopes._hot.changes", NULL);
    if (changes == NULL || PyModule_AddObjectRef(module, "changes", changes) < 0) {
        Py_XDECREF(changes);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(changes);
    PyObject *died = PyObject_GetAttrString(module, "died"), *anchor_died = PyObject_GetAttrString(module, "anchor_died");
    if (died == NULL || anchor_died == NULL || PyModule_AddType(module, &counts_type) < 0) {
        Py_XDECREF(died);
        Py_XDECREF(anchor_died);
        Py_DECREF(module);
        return NULL;
    }
    if (died_function == NULL) {
        died_function = Py_NewRef(died);
        anchor_died_function = Py_NewRef(anchor_died);
    }
    Py_DECREF(died);
    Py_DECREF(anchor_died);
    return module;
}
