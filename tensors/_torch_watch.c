/* The module `_torch_watch`: a mode for PyTorch's functions that puts the memory of what they return into the birth log.
 *
 * It lets every call through. What a call returned is a birth of memory unless the memory is an argument's, or was handed out by
 * an attribute. PyTorch is not known here: Python tells what is asked of it. Documented in _torch_watch.pyi.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "../scopes/leaks/_birthlog_api.h"
#include "_torch_watch_given.h"
#include "_torch_watch_names.h"

static struct birthlog_api *log_api;
static PyTypeObject *wrapper_type;
static PyObject *tensor_type, *storage_of, *nbytes_of, *backward_running, *others, *device_of, *given, *particular;
static PyObject *name_is_cpu, *name_nbytes, *name_grad_fn, *name_base, *name_grad, *name_cdata, *name_torch;
static PyTypeObject *plain_types[16];
static int count_of_plain;
static uint16_t kind_number, cpu_number;

/* The number of a device by its name; -1 where memory on it is none (meta), or with an exception. */
static int device_number(PyObject *tensor, PyObject *storage)
{
    PyObject *is_cpu = PyObject_GetAttr(tensor, name_is_cpu);
    if (is_cpu == NULL) {
        return -1;
    }
    Py_DECREF(is_cpu);
    if (is_cpu == Py_True) {
        return cpu_number;
    }
    PyObject *name = PyObject_CallOneArg(device_of, storage);
    if (name == NULL) {
        return -1;
    }
    int number = name == Py_None ? -1 : log_api->device_number(name);
    Py_DECREF(name);
    return number;
}

/* Put the memory of a tensor down, unless an argument has it. -1 with an exception. */
static int sight(PyObject *tensor, PyObject *op, PyObject *arguments, PyObject *named)
{
    if (log_api->samples()) {
        /* Of views as well: what falls on them is dropped below, and every birth keeps its chance. */
        PyObject *told = PyObject_GetAttr(tensor, name_nbytes);
        size_t nbytes = told == NULL ? 0 : PyLong_AsSize_t(told);
        Py_XDECREF(told);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            nbytes = 0;
        }
        if (!log_api->is_kept(nbytes)) {
            return 0;
        }
    }
    PyObject *storage = PyObject_CallOneArg(storage_of, tensor);
    if (storage == NULL) {
        /* A tensor inside of a transform, a sparse one, an opaque one: nothing that could be watched. */
        PyErr_Clear();
        return 0;
    }
    int failed = 0;
    if (!log_api->is_known(storage) && !is_given(arguments, named, storage, (PyTypeObject *)tensor_type, storage_of)) {
        PyObject *told = PyObject_CallOneArg(nbytes_of, storage);
        size_t nbytes = told == NULL ? (size_t)-1 : PyLong_AsSize_t(told);
        Py_XDECREF(told);
        int device = nbytes == 0 || nbytes == (size_t)-1 ? -1 : device_number(tensor, storage);
        if (device >= 0) {
            failed = log_api->sight(storage, op, nbytes, kind_number, (uint16_t)device);
        }
        else {
            PyErr_Clear();
        }
    }
    Py_DECREF(storage);
    return failed;
}

static bool runs_backward(void)
{
    PyObject *task = PyObject_CallNoArgs(backward_running);
    if (task == NULL) {
        PyErr_Clear();
        return false;
    }
    long number = PyLong_AsLong(task);
    Py_DECREF(task);
    return number != -1;
}

static bool is_plain(PyObject *result)
{
    for (int i = 0; i < count_of_plain; i++) {
        if (Py_IS_TYPE(result, plain_types[i])) {
            return true;
        }
    }
    return false;
}

static bool is_particular(PyObject *function)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(particular); i++) {
        if (PyTuple_GET_ITEM(particular, i) == function) {
            return true;
        }
    }
    return false;
}

static PyObject *torch_function(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names_given)
{
    (void)self;
    if (count < 2 || count > 4 || (names_given != NULL && PyTuple_GET_SIZE(names_given) != 0)) {
        PyErr_SetString(PyExc_TypeError, "__torch_function__() takes a function, types, arguments and keyword arguments");
        return NULL;
    }
    PyObject *function = arguments[0];
    PyObject *given_arguments = count > 2 ? Py_NewRef(arguments[2]) : PyTuple_New(0);
    if (given_arguments == NULL) {
        return NULL;
    }
    PyObject *named = count > 3 && arguments[3] != Py_None ? arguments[3] : NULL;
    PyObject *result = PyObject_Call(function, given_arguments, named);
    if (result == NULL || !log_api->is_open()) {
        Py_DECREF(given_arguments);
        return result;
    }
    int failed = 0;
    bool is_attribute = Py_IS_TYPE(function, wrapper_type);
    if (Py_IS_TYPE(result, (PyTypeObject *)tensor_type) && !is_particular(function)) {
        if (!is_attribute && !runs_backward()) {
            failed = sight(result, name_of(function), given_arguments, named);
        }
    }
    else if (result == Py_None) {
        /* Only what is assigned to an attribute matters: what reads one has no value. */
        if (is_attribute && PyTuple_CheckExact(given_arguments) && PyTuple_GET_SIZE(given_arguments) > 1) {
            PyObject *told = PyObject_CallFunctionObjArgs(given, function, given_arguments, NULL);
            failed = told == NULL ? -1 : 0;
            Py_XDECREF(told);
        }
    }
    else if (!is_attribute && !is_plain(result) && !runs_backward()) {
        PyObject *told = PyObject_CallFunctionObjArgs(others, result, function, given_arguments,
                                                      named == NULL ? Py_None : named, NULL);
        failed = told == NULL ? -1 : 0;
        Py_XDECREF(told);
    }
    Py_DECREF(given_arguments);
    if (failed) {
        Py_DECREF(result);
        return NULL;
    }
    return result;
}

static PyObject *put_down(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "sight() takes a tensor, what was called, and its arguments");
        return NULL;
    }
    if (sight(arguments[0], arguments[1] == Py_None ? NULL : name_of(arguments[1]), arguments[2],
              arguments[3] == Py_None ? NULL : arguments[3]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ tensors that refer to nothing else */

/* Called by a tensor for each thing that it refers to: 1 to stop at any but its class. */
static int is_no_class(PyObject *thing, void *type) { return thing != (PyObject *)type; }

/* Whether an attribute of a tensor is None; -1 with an exception. */
static int is_none(PyObject *tensor, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(tensor, name);
    Py_XDECREF(value);
    return value == NULL ? -1 : value == Py_None;
}

static PyObject *alone(PyObject *module, PyObject *tensor)
{
    (void)module;
    PyTypeObject *type = Py_TYPE(tensor);
    if (type != (PyTypeObject *)tensor_type || type->tp_traverse == NULL ||
        type->tp_traverse(tensor, is_no_class, type) != 0) {
        Py_RETURN_NONE;
    }
    PyObject *names_of_edges[] = {name_grad_fn, name_base, name_grad};
    for (size_t i = 0; i < sizeof names_of_edges / sizeof names_of_edges[0]; i++) {
        int none = is_none(tensor, names_of_edges[i]);
        if (none <= 0) {
            return none < 0 ? NULL : Py_NewRef(Py_None);
        }
    }
    PyObject *storage = PyObject_CallOneArg(storage_of, tensor);
    if (storage == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            return NULL;
        }
        /* A sparse one, an opaque one. */
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    PyObject *address = PyObject_GetAttr(storage, name_cdata);
    Py_DECREF(storage);
    PyObject *identity = address == NULL ? NULL : PyTuple_Pack(2, name_torch, address);
    Py_XDECREF(address);
    return identity;
}

/* ------------------------------------------------------------------ the mode and the module */

static PyMethodDef methods[] = {
    {"__torch_function__", (PyCFunction)(void (*)(void))torch_function, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject watch_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.tensors._torch_watch.Watch",
    .tp_doc = "The mode.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = methods,
    .tp_new = PyType_GenericNew,
};

static PyObject *bind(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *plain, *capsule, *kind, *cpu;
    if (!PyArg_ParseTuple(arguments, "OO!OOOOOOO!O!O!UU:bind", &capsule, &PyType_Type, &tensor_type, &storage_of, &nbytes_of,
                          &backward_running, &others, &device_of, &given, &PyTuple_Type, &particular,
                          &PyTuple_Type, &plain, &PyType_Type, &wrapper_type, &kind, &cpu)) {
        return NULL;
    }
    log_api = PyCapsule_GetPointer(capsule, BIRTHLOG_CAPSULE);
    if (log_api == NULL) {
        return NULL;
    }
    /* Kept for the life of the process. */
    Py_INCREF(capsule);
    Py_INCREF(tensor_type);
    Py_INCREF(wrapper_type);
    Py_INCREF(storage_of);
    Py_INCREF(nbytes_of);
    Py_INCREF(backward_running);
    Py_INCREF(others);
    Py_INCREF(device_of);
    Py_INCREF(given);
    Py_INCREF(particular);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plain) && count_of_plain < 16; i++) {
        if (PyType_Check(PyTuple_GET_ITEM(plain, i))) {
            plain_types[count_of_plain++] = (PyTypeObject *)Py_NewRef(PyTuple_GET_ITEM(plain, i));
        }
    }
    kind_number = log_api->kind_number(kind);
    cpu_number = log_api->device_number(cpu);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"alone", alone, METH_O, NULL},
    {"bind", bind, METH_VARARGS, NULL},
    {"sight", (PyCFunction)(void (*)(void))put_down, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_torch_watch", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__torch_watch(void)
{
#ifdef Py_GIL_DISABLED
    (void)definition, (void)watch_type;
    PyErr_SetString(PyExc_ImportError, "the compiled watch of PyTorch relies on the global interpreter lock");
    return NULL;
#else
    name_is_cpu = PyUnicode_InternFromString("is_cpu");
    name_nbytes = PyUnicode_InternFromString("nbytes");
    name_grad_fn = PyUnicode_InternFromString("grad_fn");
    name_base = PyUnicode_InternFromString("_base");
    name_grad = PyUnicode_InternFromString("_grad");
    name_cdata = PyUnicode_InternFromString("_cdata");
    name_torch = PyUnicode_InternFromString("torch");
    if (name_nbytes == NULL || name_is_cpu == NULL || name_grad_fn == NULL || name_base == NULL || name_grad == NULL ||
        name_cdata == NULL || name_torch == NULL || PyType_Ready(&watch_type) < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddObjectRef(module, "Watch", (PyObject *)&watch_type) < 0) {
        Py_CLEAR(module);
    }
    return module;
#endif
}
