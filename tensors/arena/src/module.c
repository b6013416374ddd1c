/* The module `compiled`: what Python asks of the arena. Documented in compiled.pyi. */
#include "functions.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#include "../../../scopes/src/module.h"
#include "accounts.h"
#include "handler.h"
#include "pool.h"
#include "scopes.h"

/* ================================================================== what a handle says of its array */

/* What the functions that are made here have at hand, in this order: the class of handles, the slot of their array, the function in
 * Python that knows what these do not, and what is known of types of elements. Nothing of it changes. */
enum given { HANDLES, SLOT, OTHERWISE, TYPES_OF_ELEMENTS, GIVEN };

#define SLOT_NAME "disposescope.tensors.arena.compiled.slot"

/* The array of a handle, a new reference; NULL without an exception where it is disposed. */
static PyObject *array_of(PyObject *given, PyObject *handle)
{
    if (!PyObject_TypeCheck(handle, (PyTypeObject *)PyTuple_GET_ITEM(given, HANDLES))) {
        PyErr_Format(PyExc_TypeError, "expected a handle, not a %s", Py_TYPE(handle)->tp_name);
        return NULL;
    }
    PyMemberDef *slot = PyCapsule_GetPointer(PyTuple_GET_ITEM(given, SLOT), SLOT_NAME);
    PyObject *array = slot == NULL ? NULL : PyMember_GetOne((const char *)handle, slot);
    if (array == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
    }
    return array;
}

/* ((address, bytes),) where the memory is a block of the arena. */
static PyObject *storages(PyObject *given, PyObject *handle)
{
    PyObject *array = array_of(given, handle);
    if (array == NULL) {
        return PyErr_Occurred() ? NULL : PyTuple_New(0);
    }
    PyObject *owner = arrays_owner_of(array), *told = NULL;
    if (owner == NULL) {
        told = PyObject_CallOneArg(PyTuple_GET_ITEM(given, OTHERWISE), handle);
    }
    else {
        PyObject *storage = arrays_storage(owner);
        told = storage == NULL ? NULL : PyTuple_Pack(1, storage);
        Py_XDECREF(storage);
    }
    Py_DECREF(array);
    return told;
}

/* As `move`, for the block behind a handle, and only where nothing else refers to it. */
static PyObject *move_alone(PyObject *given, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "move_alone() takes a handle, the scope that it leaves and the one it goes to");
        return NULL;
    }
    PyObject *array = array_of(given, arguments[0]);
    if (array == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    PyObject *moved = Py_False;
    /* The handle refers to its array, and so does this function. */
    if (arrays_holds_alone(array, 2)) {
        PyObject *given_on[] = {array, arguments[1], arguments[2]};
        moved = arena_move(NULL, given_on, 3);
    }
    else {
        Py_INCREF(moved);
    }
    Py_DECREF(array);
    return moved;
}

static PyObject *shape_of(const struct numpy_array *array, Py_ssize_t *size)
{
    PyObject *shape = PyTuple_New(array->nd);
    *size = 1;
    for (int axis = 0; shape != NULL && axis < array->nd; axis++) {
        PyObject *length = PyLong_FromSsize_t(array->dimensions[axis]);
        if (length == NULL) {
            Py_CLEAR(shape);
            break;
        }
        PyTuple_SET_ITEM(shape, axis, length);
        *size *= array->dimensions[axis];
    }
    if (shape != NULL && array->nd > 0) {
        /* Of numbers alone: the garbage collector would leave it alone too, once it has met it. */
        PyObject_GC_UnTrack(shape);
    }
    return shape;
}

/* (shape, name of the type of elements, bytes of the elements) where that type is known. */
static PyObject *layout(PyObject *given, PyObject *handle)
{
    PyObject *array = array_of(given, handle);
    if (array == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    const struct numpy_array *fields = (const struct numpy_array *)array;
    PyObject *known = NULL, *told = NULL;
    if (Py_TYPE(array) == numpy_ndarray) {
        known = PyDict_GetItemWithError(PyTuple_GET_ITEM(given, TYPES_OF_ELEMENTS), fields->descr);
    }
    if (known != NULL && PyTuple_CheckExact(known) && PyTuple_GET_SIZE(known) == 2) {
        Py_ssize_t nbytes = PyLong_AsSsize_t(PyTuple_GET_ITEM(known, 1)), size;
        PyObject *shape = nbytes == -1 && PyErr_Occurred() ? NULL : shape_of(fields, &size);
        if (shape != NULL) {
            told = Py_BuildValue("(NOn)", shape, PyTuple_GET_ITEM(known, 0), size * nbytes);
        }
    }
    else if (!PyErr_Occurred()) {
        told = PyObject_CallOneArg(PyTuple_GET_ITEM(given, OTHERWISE), handle);
    }
    Py_DECREF(array);
    return told;
}

static PyObject *tellers(PyObject *module, PyObject *arguments)
{
    static PyMethodDef functions[] = {
        {"storages", storages, METH_O, NULL},
        {"layout", layout, METH_O, NULL},
        {"move_alone", (PyCFunction)(void (*)(void))move_alone, METH_FASTCALL, NULL},
    };
    (void)module;
    PyObject *type, *slot, *otherwise[2], *known;
    if (!PyArg_ParseTuple(arguments, "O!O!OOO!:tellers", &PyType_Type, &type, &PyMemberDescr_Type, &slot, &otherwise[0],
                          &otherwise[1], &PyDict_Type, &known)) {
        return NULL;
    }
    PyMemberDef *member = ((PyMemberDescrObject *)slot)->d_member;
    if (member->type != T_OBJECT_EX || ((PyDescrObject *)slot)->d_type != (PyTypeObject *)type) {
        PyErr_SetString(PyExc_TypeError, "tellers() takes a class and a slot of it");
        return NULL;
    }
    /* The member belongs to the class, which is kept. */
    PyObject *capsule = PyCapsule_New(member, SLOT_NAME, NULL);
    PyObject *made = capsule == NULL ? NULL : PyTuple_New(3);
    for (int i = 0; made != NULL && i < 3; i++) {
        PyObject *given = PyTuple_Pack(GIVEN, type, capsule, i < 2 ? otherwise[i] : Py_None, known);
        PyObject *function = given == NULL ? NULL : PyCFunction_New(&functions[i], given);
        Py_XDECREF(given);
        if (function == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyTuple_SET_ITEM(made, i, function);
    }
    Py_XDECREF(capsule);
    return made;
}

/* ================================================================== the module */

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
    {"tellers", tellers, METH_VARARGS, NULL},
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
    is_made = PyModule_AddIntConstant(module, "ALIGNMENT", (long)ARENA_ALIGNMENT) == 0 &&
              PyModule_AddObjectRef(module, "debug", guards_wanted ? Py_True : Py_False) == 0;
    return is_made ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
    MAIN_INTERPRETER_ONLY {0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
