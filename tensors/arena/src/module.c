/* The module `compiled`: what Python asks of the arena. Documented in compiled.pyi. */
#include "functions.h"

#include <stdlib.h>
#include <string.h>

#include "../../../scopes/src/module.h"
#include "accounts.h"
#include "arrays.h"
#include "guards.h"
#include "handler.h"
#include "lock.h"
#include "numpy.h"
#include "pool.h"
#include "scopes.h"
#include "sites.h"
#include "slabs.h"

static PyObject *bind(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *current, *type, *resolve, *mark_of, *listeners, *ties, *changes;
    static bool is_bound;
    if (!module_may_be_bound(is_bound)) {
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "OO!OOO!O!O:bind", &current, &PyType_Type, &type, &resolve, &mark_of, &PyList_Type,
                          &listeners, &PyTuple_Type, &ties, &changes)) {
        return NULL;
    }
    if (scopes_bind_changes(changes) < 0 || sites_bind(mark_of) < 0 ||
        scopes_bind(current, (PyTypeObject *)type, resolve, listeners, ties) < 0) {
        return NULL;
    }
    is_bound = true;
    Py_RETURN_NONE;
}

static PyObject *bind_log(PyObject *module, PyObject *log)
{
    (void)module;
    if (!module_may_be_bound(scopes_log != NULL) || scopes_bind_log(log) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ the pool */

static PyObject *statistics(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    arena_lock();
    struct pool_figures pool = pool_tell();
    struct account_figures totals = account_totals;
    arena_unlock();
    return Py_BuildValue("nnnnnKKK", (Py_ssize_t)totals.live_blocks, (Py_ssize_t)totals.live_nbytes,
                         (Py_ssize_t)totals.peak_nbytes, (Py_ssize_t)pool.cached_nbytes, (Py_ssize_t)pool.mapped_nbytes,
                         (unsigned long long)(totals.births - totals.misses), (unsigned long long)pool.misses,
                         (unsigned long long)totals.escapes);
}

static PyObject *empty_cache(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    arena_lock();
    struct region *doomed = pool_empty();
    arena_unlock();
    regions_unmap(doomed);
    Py_RETURN_NONE;
}

static PyObject *decay(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    (void)arguments;
    (void)count; /* also called as a callback of the garbage collector, with its phase and its figures */
    arena_lock();
    struct region *doomed = pool_decay();
    arena_unlock();
    regions_unmap(doomed);
    Py_RETURN_NONE;
}

static PyObject *pass_time(PyObject *module, PyObject *ms)
{
    (void)module;
    unsigned long long passed = PyLong_AsUnsignedLongLong(ms);
    if (passed == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    arena_lock();
    regions_pass_time(passed);
    arena_unlock();
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ the module */

static PyMethodDef functions[] = {
    {"address", arena_address, METH_O, NULL},
    {"bind", bind, METH_VARARGS, NULL},
    {"bind_log", bind_log, METH_O, NULL},
    {"block", arena_block, METH_O, NULL},
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
    {"owner", arena_owner, METH_O, NULL},
    {"pass_time", pass_time, METH_O, NULL},
    {"reset", arena_reset, METH_NOARGS, NULL},
    {"served", (PyCFunction)(void (*)(void))arena_served, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"unserved", (PyCFunction)(void (*)(void))arena_unserved, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"sites", arena_sites, METH_O, NULL},
    {"swap_handler", arena_swap_handler, METH_O, NULL},
    {"statistics", statistics, METH_NOARGS, NULL},
    {"tellers", arena_tellers, METH_VARARGS, NULL},
    {"watch", arena_watch, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* One array through all of it: born, found, freed. What an ABI version does not say shows here. */
static int try_it(void)
{
    PyObject *before = numpy_set_handler(handler_capsule);
    if (before == NULL) {
        return -1;
    }
    PyObject *array = PyObject_CallFunction((PyObject *)numpy_ndarray, "(i)", 100);
    Py_XDECREF(numpy_set_handler(before));
    Py_DECREF(before);
    if (array == NULL) {
        return -1;
    }
    size_t live = account_totals.live_blocks;
    void *found = arrays_block_of(array);
    bool whole = live == 1 && found != NULL && (uintptr_t)found % ARENA_ALIGNMENT == 0 && pool_block_at(found)->nbytes == 800;
    Py_DECREF(array);
    if (!whole || account_totals.live_blocks != 0) {
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
    slabs_begin();
    if (PyType_Ready(&account_type) < 0 || numpy_install() < 0 || handler_make() < 0 || try_it() < 0) {
        return -1;
    }
    if (arena_lock_survives_fork() < 0) {
        PyErr_NoMemory();
        return -1;
    }
    is_made = PyModule_AddIntConstant(module, "ALIGNMENT", (long)ARENA_ALIGNMENT) == 0 &&
              PyModule_AddObjectRef(module, "debug", guards_wanted ? Py_True : Py_False) == 0;
    return is_made ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    MAIN_INTERPRETER_ONLY {0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
