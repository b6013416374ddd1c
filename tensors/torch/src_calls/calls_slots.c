#include "calls_slots.h"

#include "calls.h"

enum { CONSTRUCTORS = 2, CLASSES = 64 };

/* A function that makes instances, in the place of which another is put, and the classes that have it. */
struct constructor {
    newfunc before;
    PyTypeObject *classes[CLASSES];
    int count;
};

static struct constructor constructors[CONSTRUCTORS];
static int count_of_constructors;
static PyWrapperDescrObject *items_wrapper;
static binaryfunc items_before;
static PyObject *name_of_items, *name_of_tensors;

static PyObject *take_items(PyObject *tensor, PyObject *key)
{
    const struct call call = {name_of_items, tensor, key, NULL};
    calls_begun();
    return calls_over(&call, items_before(tensor, key));
}

static PyObject *make(int number, PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    const struct call call = {name_of_tensors, NULL, arguments, named};
    calls_begun();
    return calls_over(&call, constructors[number].before(type, arguments, named));
}

static PyObject *make_first(PyTypeObject *type, PyObject *arguments, PyObject *named) { return make(0, type, arguments, named); }
static PyObject *make_second(PyTypeObject *type, PyObject *arguments, PyObject *named) { return make(1, type, arguments, named); }

static const newfunc makers[CONSTRUCTORS] = {make_first, make_second};

/* Whether the function that makes instances of a class could be put among those that are called through here. */
static bool find_constructor(PyTypeObject *type)
{
    int number = 0;
    while (number < count_of_constructors && constructors[number].before != type->tp_new) {
        number++;
    }
    if (number == CONSTRUCTORS || constructors[number].count == CLASSES) {
        return false;
    }
    struct constructor *constructor = &constructors[number];
    constructor->before = type->tp_new;
    constructor->classes[constructor->count++] = (PyTypeObject *)Py_NewRef((PyObject *)type);
    count_of_constructors += number == count_of_constructors;
    return true;
}

bool slots_find(PyObject *items, PyObject *classes)
{
    if (!Py_IS_TYPE(items, &PyWrapperDescr_Type)) {
        return false;
    }
    items_wrapper = (PyWrapperDescrObject *)Py_NewRef(items);
    items_before = *(binaryfunc *)&items_wrapper->d_wrapped;
    name_of_items = Py_NewRef(PyDescr_NAME(items_wrapper));
    const PyTypeObject *tensors = PyDescr_TYPE(items_wrapper);
    bool fit = tensors->tp_as_mapping != NULL && tensors->tp_as_mapping->mp_subscript == items_before &&
               (name_of_tensors = PyUnicode_InternFromString("Tensor")) != NULL;
    for (Py_ssize_t i = 0; fit && i < PyList_GET_SIZE(classes); i++) {
        PyObject *type = PyList_GET_ITEM(classes, i);
        fit = PyType_Check(type) && ((PyTypeObject *)type)->tp_new != NULL && find_constructor((PyTypeObject *)type);
    }
    PyErr_Clear();
    return fit;
}

/* Calls a function with a class and with all that are derived from it. */
static void visit(PyTypeObject *type, void (*change)(PyTypeObject *, bool), bool begins)
{
    change(type, begins);
    PyObject *below = PyObject_CallMethod((PyObject *)&PyType_Type, "__subclasses__", "O", type);
    for (Py_ssize_t i = 0; below != NULL && PyList_Check(below) && i < PyList_GET_SIZE(below); i++) {
        visit((PyTypeObject *)PyList_GET_ITEM(below, i), change, begins);
    }
    Py_XDECREF(below);
    PyErr_Clear();
}

static void change_items(PyTypeObject *type, bool begins)
{
    binaryfunc from = begins ? items_before : take_items, to = begins ? take_items : items_before;
    if (type->tp_as_mapping != NULL && type->tp_as_mapping->mp_subscript == from) {
        type->tp_as_mapping->mp_subscript = to;
    }
}

static void change_constructor(PyTypeObject *type, bool begins)
{
    for (int i = 0; i < count_of_constructors; i++) {
        newfunc from = begins ? constructors[i].before : makers[i], to = begins ? makers[i] : constructors[i].before;
        if (type->tp_new == from) {
            type->tp_new = to;
            return;
        }
    }
}

static void change_all(bool begins)
{
    *(binaryfunc *)&items_wrapper->d_wrapped = begins ? take_items : items_before;
    visit(PyDescr_TYPE(items_wrapper), change_items, begins);
    for (int i = 0; i < count_of_constructors; i++) {
        for (int at = 0; at < constructors[i].count; at++) {
            visit(constructors[i].classes[at], change_constructor, begins);
        }
    }
}

void slots_begin(void) { change_all(true); }
void slots_end(void) { change_all(false); }
