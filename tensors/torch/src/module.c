/* The module `compiled`: what every birth of a tensor inside a scope, and every disposal of one, goes through, compiled.
 * Documented in compiled.pyi. It knows PyTorch by the objects that it is given; everything unusual is handed
 * to the Python functions that it is given too. Used under the GIL. */
#include "../../../scopes/src/module.h"
#include "state.h"
#include "births.h"
#include "disposal.h"
#include "lone.h"
#include "looks.h"
#include "seam.h"

static PyMethodDef functions[] = {
    {"bind_births", births_bind, METH_O, NULL},
    {"bind_disposal", disposal_bind, METH_O, NULL},
    {"bind_log", looks_bind_log, METH_O, NULL},
    {"bind_seam", seam_bind, METH_O, NULL},
    {"entered", seam_entered, METH_O, NULL},
    {"left", seam_left, METH_O, NULL},
    {"unborn", (PyCFunction)(void (*)(void))attributes_unborn, METH_FASTCALL, NULL},
    {"watch_births", births_watch, METH_VARARGS, NULL},
    {"watch_classes", births_watch_classes, METH_O, NULL},
    {"forget_looks", looks_forget, METH_NOARGS, NULL},
    {"identity_if_alone", lone_identity, METH_O, NULL},
    {"know", looks_know, METH_O, NULL},
    {"look", looks_look, METH_NOARGS, NULL},
    {"look_at", looks_look_at, METH_O, NULL},
    {"drop", disposal_drop, METH_O, NULL},
    {"spare", disposal_spare, METH_NOARGS, NULL},
    {0},
};

static int fill(PyObject *module)
{
    static bool is_made;
    if (!module_may_be_made(module, is_made)) {
        return -1;
    }
    is_made = lone_make() == 0;
    return is_made ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, MAIN_INTERPRETER_ONLY {0, NULL}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
