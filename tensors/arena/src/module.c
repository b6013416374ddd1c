/* The table of functions of the module `compiled`, and its initialisation. Documented in
 * compiled.pyi. */
#include "functions.h"

#include <stdlib.h>
#include <string.h>

#include "../../../scopes/src/shared/module.h"
#include "accounts.h"
#include "handler.h"
#include "passes.h"

/* ------------------------------------------------------------------ the pool */

static PyObject *statistics(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    struct pool_figures pool = pool_figures_now();
    return Py_BuildValue("nnnnnKKK", (Py_ssize_t)account_totals.live_blocks, (Py_ssize_t)account_totals.live_nbytes,
                         (Py_ssize_t)account_totals.peak_nbytes, (Py_ssize_t)pool.cached_nbytes,
                         (Py_ssize_t)pool.mapped_nbytes,
                         (unsigned long long)(account_totals.births - account_totals.misses),
                         (unsigned long long)pool_misses, (unsigned long long)account_totals.escapes);
}

static PyObject *empty_cache(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    pool_empty();
    Py_RETURN_NONE;
}

static PyObject *decay(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    (void)arguments;
    (void)count; /* also a callback of the garbage collector, which passes its phase and statistics */
    pool_decay();
    Py_RETURN_NONE;
}

static PyObject *advance_clock(PyObject *module, PyObject *ms)
{
    (void)module;
    unsigned long long passed = PyLong_AsUnsignedLongLong(ms);
    if (passed == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    pool_advance_clock(passed);
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ the module */

static PyMethodDef functions[] = {
    {"address", arena_address, METH_O, NULL},
    {"block", arena_block, METH_O, NULL},
    {"advance_clock", advance_clock, METH_O, NULL},
    {"charge", (PyCFunction)(void (*)(void))arena_charge, METH_FASTCALL, NULL},
    {"close_account", (PyCFunction)(void (*)(void))arena_close_account, METH_FASTCALL, NULL},
    {"decay", (PyCFunction)(void (*)(void))decay, METH_FASTCALL, NULL},
    {"discharge", (PyCFunction)(void (*)(void))arena_discharge, METH_FASTCALL, NULL},
    {"empty_cache", empty_cache, METH_NOARGS, NULL},
    {"enter", arena_enter, METH_O, NULL},
    {"escaped", arena_escaped, METH_O, NULL},
    {"figures", arena_figures, METH_O, NULL},
    {"is_served", arena_is_served, METH_O, NULL},
    {"last_refusal", arena_last_refusal, METH_NOARGS, NULL},
    {"leave", arena_leave, METH_O, NULL},
    {"live_nbytes", arena_live_nbytes, METH_O, NULL},
    {"move", (PyCFunction)(void (*)(void))arena_move, METH_FASTCALL, NULL},
    {"move_unshared", (PyCFunction)(void (*)(void))arena_move_unshared, METH_FASTCALL, NULL},
    {"owner", arena_owner, METH_O, NULL},
    {"record_into", arena_record_into, METH_O, NULL},
    {"reset", arena_reset, METH_NOARGS, NULL},
    {"served", (PyCFunction)(void (*)(void))arena_served, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"set_base_types", arena_set_base_types, METH_O, NULL},
    {"sites", arena_sites, METH_O, NULL},
    {"swap_handler", arena_swap_handler, METH_O, NULL},
    {"statistics", statistics, METH_NOARGS, NULL},
    {"record_buffers", arena_record_buffers, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* Makes, finds and frees one array. This tests that NumPy uses its memory handler as the arena
 * expects, which the version of NumPy's ABI does not guarantee. -1 with an exception. */
static int try_one_array(void)
{
    PyObject *before = numpy_set_handler(handler_capsule);
    if (before == NULL) {
        return -1;
    }
    enum { COUNT = 100 }; /* of float64 */
    PyObject *array = PyObject_CallFunction((PyObject *)numpy_ndarray, "(i)", COUNT);
    Py_XDECREF(numpy_set_handler(before));
    Py_DECREF(before);
    if (array == NULL) {
        return -1;
    }
    size_t live = account_totals.live_blocks;
    void *found = arrays_block_of(array);
    bool as_expected =
        live == 1 && found != NULL && (uintptr_t)found % ARENA_ALIGNMENT == 0 &&
        block_at(found)->nbytes == COUNT * sizeof(double);
    Py_DECREF(array);
    if (!as_expected || account_totals.live_blocks != 0) {
        PyErr_SetString(PyExc_ImportError, "this NumPy does not use its memory handler as the arena expects");
        return -1;
    }
    return 0;
}

static int fill(PyObject *module)
{
    static bool is_made;
    if (!module_may_be_made(module, is_made)) {
        return -1;
    }
    const char *debug = getenv("DISPOSESCOPE_ARENA_DEBUG");
    guards_wanted = debug != NULL && strcmp(debug, "") != 0 && strcmp(debug, "0") != 0;
    if (accounts_make() < 0 || numpy_install() < 0 || handler_make() < 0 || passes_make(module) < 0 ||
        try_one_array() < 0) {
        return -1;
    }
    is_made = PyModule_AddObjectRef(module, "debug", guards_wanted ? Py_True : Py_False) == 0;
    return is_made ? 0 : -1;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)fill},
    MAIN_INTERPRETER_ONLY {0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions,
                                 .m_slots = module_slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
