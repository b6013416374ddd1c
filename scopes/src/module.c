/* The module `compiled`: the paths that every birth, death and block goes through, compiled. Documented in compiled.pyi. */
#include "births.h"
#include "blocks.h"
#include "bound.h"
#include "module.h"

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

static PyObject *forget(PyObject *module, PyObject *ledger)
{
    (void)module;
    forget_ledger(ledger);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_O, NULL},
    {"anchor_died", compiled_anchor_died, METH_O, NULL},
    {"born", (PyCFunction)(void (*)(void))compiled_born, METH_FASTCALL, NULL},
    {"born_pending", (PyCFunction)(void (*)(void))compiled_born_pending, METH_FASTCALL, NULL},
    {"born_whole", (PyCFunction)(void (*)(void))compiled_born_whole, METH_FASTCALL, NULL},
    {"died", compiled_died, METH_O, NULL},
    {"forget_ledger", forget, METH_O, NULL},
    {"leave", (PyCFunction)(void (*)(void))compiled_leave, METH_FASTCALL, NULL},
    {"part", (PyCFunction)(void (*)(void))compiled_part, METH_FASTCALL, NULL},
    {"install_compiled", compiled_install, METH_O, NULL},
    {"release", (PyCFunction)(void (*)(void))compiled_release, METH_FASTCALL, NULL},
    {"release_newest", (PyCFunction)(void (*)(void))compiled_release_newest, METH_FASTCALL, NULL},
    {"set_current", compiled_set_current, METH_O, NULL},
    {"sweep", compiled_sweep, METH_NOARGS, NULL},
    {"with_undo", compiled_with_undo, METH_O, NULL},
    {0},
};

static int fill(PyObject *module)
{
    static bool is_made;
    if (!module_may_be_made(module, is_made)) {
        return -1;
    }
    PyObject *changes = PyCapsule_New(&compiled_changes, "disposescope.scopes.compiled.changes", NULL);
    int failed = changes == NULL || PyModule_AddObjectRef(module, "changes", changes) < 0 ? -1 : PyModule_AddType(module, &counts_type);
    Py_XDECREF(changes);
    if (failed < 0) {
        return -1;
    }
    Py_XSETREF(died_function, PyObject_GetAttrString(module, "died"));
    Py_XSETREF(anchor_died_function, PyObject_GetAttrString(module, "anchor_died"));
    is_made = died_function != NULL && anchor_died_function != NULL;
    return is_made ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, MAIN_INTERPRETER_ONLY {0, NULL}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
