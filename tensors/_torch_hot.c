/* The module `_torch_hot`: what every birth of a tensor inside a scope, and every disposal of one, goes through, compiled.
 * Documented in _torch_hot.pyi. It knows PyTorch by the objects that it is given; everything unusual is handed
 * to the Python functions that it is given too. Used under the GIL. */
#include "../scopes/_hot_module.h"
#include "_torch_hot_api.h"
#include "_torch_hot_alone.h"
#include "_torch_hot_attributes.h"
#include "_torch_hot_births.h"
#include "_torch_hot_disposal.h"
#include "_torch_hot_mode.h"
#include "_torch_hot_seam.h"
#include "_torch_hot_state.h"

static PyObject *is_bound(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyBool_FromLong(births_are_bound() || disposal_is_bound());
}

static PyMethodDef functions[] = {
    {"alone", (PyCFunction)(void (*)(void))alone_call, METH_FASTCALL, NULL},
    {"bind_alone", alone_bind, METH_O, NULL},
    {"bind_births", births_bind, METH_O, NULL},
    {"bind_disposal", disposal_bind, METH_O, NULL},
    {"bind_seam", seam_bind, METH_O, NULL},
    {"is_bound", is_bound, METH_NOARGS, NULL},
    {"entered", seam_entered, METH_O, NULL},
    {"left", seam_left, METH_O, NULL},
    {"unborn", (PyCFunction)(void (*)(void))attributes_unborn, METH_FASTCALL, NULL},
    {"watch_births", births_watch, METH_VARARGS, NULL},
    {"watch_classes", births_watch_classes, METH_O, NULL},
    {"handler_of", mode_handler_of, METH_O, NULL},
    {"tell_of", mode_tell_of, METH_O, NULL},
    {"drop", disposal_drop, METH_O, NULL},
    {0},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_torch_hot", .m_size = -1, .m_methods = functions};

static const struct torch_hot_api api = {
    births_are_seen, state_runs_backward, state_disable, state_enable, seam_is_undisturbed, seam_may_have_untold, mode_tell,
    mode_tell_by_calls,
};

PyMODINIT_FUNC PyInit__torch_hot(void)
{
    PyObject *module = hot_module(&definition);
    PyObject *capsule = module == NULL ? NULL : PyCapsule_New((void *)&api, TORCH_HOT_CAPSULE, NULL);
    if (capsule == NULL || PyModule_AddObjectRef(module, "api", capsule) < 0) {
        Py_CLEAR(module);
    }
    Py_XDECREF(capsule);
    return module;
}
