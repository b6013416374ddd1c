/* The module `compiled_calls`: the memory of what PyTorch's functions return, put into the birth log.
 *
 * What a call returned is a birth of memory unless the memory is an argument's. PyTorch is not known here: Python tells what is
 * asked of it. Documented in compiled_calls.pyi.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "../../../scopes/src/module.h"
#include "../../../leaks/births/src/api.h"
#include "calls.h"
#include "calls_operators.h"
#include "../src/api.h"
#include "watch_alone.h"
#include "watch_names.h"
#include "watch_sight.h"

static const struct torch_births_api *births;
static PyObject *others, *moved, *assigned, *name_of_moving, *name_of_making, *name_of_applying;

/* ------------------------------------------------------------------ calls */

static int ask_python(PyObject *function, const struct call *call, PyObject *op, PyObject *result)
{
    PyObject *arguments[] = {
        result,
        op == NULL ? Py_None : op,
        call->self == NULL ? Py_None : call->self,
        call->arguments == NULL ? Py_None : call->arguments,
        call->named == NULL ? Py_None : call->named,
    };
    PyObject *done = PyObject_Vectorcall(function, arguments, 5, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Puts the memory of all tensors in a result down. -1 with an exception. */
static int sight_all(PyObject *result, PyObject *op, const struct call *call, int levels)
{
    if (call->name == name_of_applying && Py_REFCNT(result) > 1 && !PyTuple_Check(result)) {
        /* A function of the program returned what it has elsewhere too, and had perhaps; what its calls make is seen there. */
        return 0;
    }
    if (Py_IS_TYPE(result, sight_objects.tensor_type)) {
        return sight(result, op, call);
    }
    int failed = 0;
    if (PyTuple_Check(result) && levels > 0) {
        for (Py_ssize_t i = 0; failed == 0 && i < PyTuple_GET_SIZE(result); i++) {
            failed = sight_all(PyTuple_GET_ITEM(result, i), op, call, levels - 1);
        }
    }
    else if (PyList_CheckExact(result) && levels > 0) {
        for (Py_ssize_t i = 0; failed == 0 && i < PyList_GET_SIZE(result); i++) {
            PyObject *item = Py_NewRef(PyList_GET_ITEM(result, i));
            failed = sight_all(item, op, call, levels - 1);
            Py_DECREF(item);
        }
    }
    else if (PyDict_CheckExact(result) || PyObject_TypeCheck(result, sight_objects.tensor_type)) {
        failed = ask_python(others, call, op, result);
    }
    return failed;
}

/* Whether a tensor is made of an object of some Python class, as a storage is: then it may have memory that was there. */
static bool makes_of_object(const struct call *call)
{
    return call->name == name_of_making && call->arguments != NULL && PyTuple_GET_SIZE(call->arguments) == 1 &&
           PyType_HasFeature(Py_TYPE(PyTuple_GET_ITEM(call->arguments, 0)), Py_TPFLAGS_HEAPTYPE);
}

static int call_is_over(const struct call *call, PyObject *result)
{
    bool moves = call->name == name_of_moving || makes_of_object(call);
    /* What works in place makes nothing, but gives a tensor other memory perhaps. Of views only their births are told. */
    if ((result == call->self && !moves) || (call->name == NULL && !births->are_births_pending()) || !may_have_tensors(result) ||
        !sight_objects.log->is_open() || births->runs_backward()) {
        return 0;
    }
    /* What a loader's worker hands over is given its memory while births wait for the batch. */
    int undisturbed = call->name == name_of_moving ? 1 : births->is_undisturbed();
    if (undisturbed <= 0) {
        return undisturbed;
    }
    /* Where nobody is to see functions called, somebody called a function of a library who is to see that. */
    bool disabled;
    int before = births->disable(&disabled);
    PyObject *op = call->name == name_of_moving || disabled ? NULL : call->name;
    int failed = moves ? ask_python(moved, call, op, result) : call->name == NULL ? 0 : sight_all(result, op, call, 3);
    failed = failed < 0 ? failed : births->tell_of_births();
    births->enable(before);
    return failed;
}

static int is_assigned(PyObject *name, PyObject *tensor, PyObject *value)
{
    if (value == Py_None || !sight_objects.log->is_open()) {
        return 0;
    }
    PyObject *done = PyObject_CallFunctionObjArgs(assigned, name, tensor, value, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *put_down(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 4 || sight_objects.log == NULL) {
        PyErr_SetString(PyExc_TypeError, "sight() takes a tensor, what was called, and its arguments, after bind()");
        return NULL;
    }
    PyObject *op = arguments[1] == Py_None ? NULL : PyUnicode_CheckExact(arguments[1]) ? arguments[1] : name_of(arguments[1]);
    const struct call call = {op, NULL, arguments[2], arguments[3] == Py_None ? NULL : arguments[3]};
    return sight(arguments[0], op, &call) < 0 ? NULL : Py_NewRef(Py_None);
}

/* ------------------------------------------------------------------ the module */

static PyObject *bind(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *capsule, *tensor_type, *storage_of, *nbytes_of, *device_of, *kind, *cpu;
    if (!module_may_be_bound(sight_objects.log != NULL)) {
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "OO!OOOUU:bind", &capsule, &PyType_Type, &tensor_type, &storage_of, &nbytes_of, &device_of,
                          &kind, &cpu)) {
        return NULL;
    }
    const struct birthlog_api *log = PyCapsule_GetPointer(capsule, BIRTHLOG_CAPSULE);
    if (log == NULL) {
        return NULL;
    }
    /* Kept for the life of the process. */
    Py_INCREF(capsule);
    sight_objects = (struct sight_objects){
        .log = log,
        .tensor_type = (PyTypeObject *)Py_NewRef(tensor_type),
        .storage_of = Py_NewRef(storage_of),
        .nbytes_of = Py_NewRef(nbytes_of),
        .device_of = Py_NewRef(device_of),
        .kind = log->kind_number(kind),
        .cpu = log->device_number(cpu),
    };
    Py_RETURN_NONE;
}

static PyObject *find_calls(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *capsule, *functions, *attributes, *items, *constructors, *for_others, *for_moved, *for_assigned;
    if (!PyArg_ParseTuple(arguments, "OO!O!OO!OOO:find_calls", &capsule, &PyList_Type, &functions, &PyList_Type, &attributes, &items,
                          &PyList_Type, &constructors, &for_others, &for_moved, &for_assigned)) {
        return NULL;
    }
    const struct torch_births_api *api = PyCapsule_GetPointer(capsule, TORCH_BIRTHS_CAPSULE);
    if (api == NULL || sight_objects.log == NULL || births != NULL) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "find_calls() is to be called once, after bind()");
    }
    int found = 0;
    if (api->births_are_seen()) {
        found = calls_find(functions, attributes, items, constructors, call_is_over, is_assigned);
    }
    if (found <= 0) {
        return found < 0 ? NULL : Py_NewRef(Py_False);
    }
    Py_INCREF(capsule);
    births = api;
    others = Py_NewRef(for_others);
    moved = Py_NewRef(for_moved);
    assigned = Py_NewRef(for_assigned);
    Py_RETURN_TRUE;
}

static PyObject *watch_calls(PyObject *module, PyObject *watch)
{
    (void)module;
    int begins = PyObject_IsTrue(watch);
    if (begins < 0) {
        return NULL;
    }
    if (births == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "watch_calls() is to be called after find_calls(), where that was so");
        return NULL;
    }
    static struct torch_calls calls;
    calls = (struct torch_calls){calls_are_running, sight_objects.log->remember, sight_objects.log->use};
    if (begins) {
        calls_begin();
    }
    else {
        calls_end();
    }
    births->tell_by_calls(begins ? &calls : NULL);
    Py_RETURN_NONE;
}

static PyObject *are_calls_watched(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyBool_FromLong(calls_are_watched());
}

static PyObject *operator_method(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || !PyType_Check(arguments[0]) || sight_objects.log == NULL) {
        PyErr_SetString(PyExc_TypeError, "operator_method() takes a class and its method, after bind()");
        return NULL;
    }
    return operators_method((PyTypeObject *)arguments[0], arguments[1]);
}

static PyMethodDef functions[] = {
    {"alone", alone, METH_O, NULL},
    {"are_calls_watched", are_calls_watched, METH_NOARGS, NULL},
    {"bind", bind, METH_VARARGS, NULL},
    {"find_calls", find_calls, METH_VARARGS, NULL},
    {"operator_method", (PyCFunction)(void (*)(void))operator_method, METH_FASTCALL, NULL},
    {"sight", (PyCFunction)(void (*)(void))put_down, METH_FASTCALL, NULL},
    {"watch_calls", watch_calls, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
    static bool is_made;
#ifdef Py_GIL_DISABLED
    PyErr_SetString(PyExc_ImportError, "the compiled watch of PyTorch relies on the global interpreter lock");
    return -1;
#endif
    if (!module_may_be_made(module, is_made)) {
        return -1;
    }
    name_of_moving = PyUnicode_InternFromString("set_");
    name_of_making = PyUnicode_InternFromString("Tensor");
    name_of_applying = PyUnicode_InternFromString("apply");
    is_made = name_of_moving != NULL && name_of_making != NULL && name_of_applying != NULL && sight_make() == 0 &&
              alone_make() == 0;
    return is_made ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, MAIN_INTERPRETER_ONLY {0, NULL}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled_calls", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled_calls(void) { return PyModuleDef_Init(&definition); }
