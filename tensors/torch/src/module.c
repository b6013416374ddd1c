/* The module `compiled`: its table of functions and initialisation. Documented in compiled.pyi. It
 * handles every birth of a tensor inside a scope. PyTorch's classes, and Python functions for
 * unusual cases, are passed to it as arguments. */
#include "compiled.h"

#include "../../../scopes/src/shared/module.h"

/* ------------------------------------------------------------------ the module */

/* Whether the calling thread is the only one. It reads only the state of its own thread, which no
 * other thread changes. */
static PyObject *is_only_thread(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PyThreadState *here = PyThreadState_Get();
    return PyBool_FromLong(PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(here)) == here &&
                           PyThreadState_Next(here) == NULL);
}

static PyMethodDef functions[] = {
    {"backward_elsewhere", compiled_backward_elsewhere, METH_NOARGS, NULL},
    {"begin_look", compiled_begin_look, METH_NOARGS, NULL},
    {"forget_backward", compiled_forget_backward, METH_NOARGS, NULL},
    {"is_only_thread", is_only_thread, METH_NOARGS, NULL},
    {"read_between", (PyCFunction)(void (*)(void))compiled_read_between, METH_FASTCALL, NULL},
    {"thread_state", compiled_thread_state, METH_NOARGS, NULL},
    {"unborn", (PyCFunction)(void (*)(void))compiled_unborn, METH_FASTCALL, NULL},
    {0},
};

static int fill(PyObject *module)
{
    static bool is_made;
    if (!module_may_be_made(module, is_made)) {
        return -1;
    }
    is_made = errors_make() == 0 && threads_make(module) == 0 && memory_make(module) == 0 && births_make() == 0 &&
              descriptors_make() == 0 && watch_make(module) == 0;
    return is_made ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)fill}, MAIN_INTERPRETER_ONLY {0, NULL}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
