#include "disposal.h"

#include <stdbool.h>

#include "bound.h"
#include "state.h"

/* ================================================================== placeholders */

enum making { MAKE, ARGUMENTS, OPTIONS, BELOW_AUTOGRAD, MAKING_OBJECTS };

static const char *const names_of_making[MAKING_OBJECTS] = {
    [MAKE] = "make",
    [ARGUMENTS] = "make_arguments",
    [OPTIONS] = "make_options",
    [BELOW_AUTOGRAD] = "below_autograd",
};

static PyObject *making[MAKING_OBJECTS];
static PyObject *name_enter, *name_exit;

/* What was made ahead. The collector does not see it: whoever looks for tensors there shall find his own. */
enum { AT_ONCE = 16 };
static PyObject *ahead[AT_ONCE];
static int number_ahead;

int placeholders_bind(PyObject *things)
{
    if ((name_enter = PyUnicode_InternFromString("__enter__")) == NULL ||
        (name_exit = PyUnicode_InternFromString("__exit__")) == NULL || take(things, names_of_making, MAKING_OBJECTS, making) < 0) {
        return -1;
    }
    return 0;
}

static PyObject *make_placeholder(void) { return PyObject_Call(making[MAKE], making[ARGUMENTS], making[OPTIONS]); }

/* Makes some ahead, as many as fit. -1 with an error set where there is none then. */
static int make_ahead(void)
{
    PyObject *guard = PyObject_CallNoArgs(making[BELOW_AUTOGRAD]);
    PyObject *entered = guard == NULL ? NULL : PyObject_CallMethodNoArgs(guard, name_enter);
    if (entered == NULL) {
        Py_XDECREF(guard);
        return -1;
    }
    Py_DECREF(entered);
    /* No code of the program's may run here, as that of finalizers would: it would find itself below autograd. */
    int collected = PyGC_Disable();
    while (number_ahead < AT_ONCE) {
        PyObject *made = make_placeholder();
        if (made == NULL) {
            break;
        }
        PyObject_GC_UnTrack(made);
        ahead[number_ahead++] = made;
    }
    if (collected) {
        PyGC_Enable();
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *left = PyObject_CallMethodObjArgs(guard, name_exit, Py_None, Py_None, Py_None, NULL);
    Py_DECREF(guard);
    if (left == NULL || number_ahead != 0) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    }
    else {
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(left);
    return left == NULL || number_ahead == 0 ? -1 : 0;
}

PyObject *placeholders_take(void)
{
    if (number_ahead == 0) {
        /* What a transform makes is the transform's, and of no use after it. */
        if (state_modes_are_on() < 0 || state_is_particular()) {
            return make_placeholder();
        }
        if (make_ahead() < 0) {
            return NULL;
        }
    }
    PyObject *spare = ahead[--number_ahead];
    PyObject_GC_Track(spare);
    return spare;
}

/* ================================================================== disposal */

enum object { MODES_ARE_ON, SWAP, DISPOSED, RECORDS, MAKE_DEAD, FRESH, AFTER_RELEASES, SETTLE, OBJECTS };

static const char *const names[OBJECTS] = {
    [MODES_ARE_ON] = "modes_are_on",
    [SWAP] = "swap",
    [DISPOSED] = "disposed",
    [RECORDS] = "records",
    [MAKE_DEAD] = "make_dead",
    [FRESH] = "fresh",
    [AFTER_RELEASES] = "after_releases",
    [SETTLE] = "settle",
};

static PyObject *bound[OBJECTS];
static PyTypeObject *tensor_type;
static PyObject *name_class, *shape_of, *dtype_of;

PyObject *disposal_bind(PyObject *module, PyObject *things)
{
    (void)module;
    if (!may_bind(things, bound[MODES_ARE_ON])) {
        return NULL;
    }
    PyObject *tensor = PyDict_GetItemString(things, "Tensor"), *records = PyDict_GetItemString(things, "records");
    PyObject *fresh = PyDict_GetItemString(things, "fresh"), *after = PyDict_GetItemString(things, "after_releases");
    if (tensor == NULL || !PyType_Check(tensor) || records == NULL || !PyDict_CheckExact(records) || fresh == NULL ||
        !PyList_CheckExact(fresh) || after == NULL || !PyList_CheckExact(after)) {
        PyErr_SetString(PyExc_TypeError, "bind_disposal() was given something else than it wants");
        return NULL;
    }
    if ((name_class = PyUnicode_InternFromString("__class__")) == NULL ||
        (shape_of = PyObject_GetAttrString(tensor, "shape")) == NULL ||
        (dtype_of = PyObject_GetAttrString(tensor, "dtype")) == NULL) {
        return NULL;
    }
    if (Py_TYPE(shape_of)->tp_descr_get == NULL || Py_TYPE(dtype_of)->tp_descr_get == NULL) {
        PyErr_SetString(PyExc_TypeError, "a tensor class has no descriptors");
        return NULL;
    }
    if (placeholders_bind(things) < 0 || take(things, names, OBJECTS, bound) < 0) {
        return NULL;
    }
    tensor_type = (PyTypeObject *)Py_NewRef(tensor);
    Py_RETURN_NONE;
}

/* Shape, dtype and record of the tensor that died last: the next one is often alike. */
static PyObject *last_shape, *last_dtype, *last_record;

/* An attribute of PyTorch's own, asked of its descriptor. */
static PyObject *ask(PyObject *descriptor, PyObject *tensor)
{
    return Py_TYPE(descriptor)->tp_descr_get(descriptor, tensor, (PyObject *)tensor_type);
}

/* What is remembered of a tensor that is to die, a new reference; NULL with or without an error where Python has to find
 * out. */
static PyObject *record_of(PyObject *tensor)
{
    PyObject *dtype = ask(dtype_of, tensor);
    PyObject *shape = dtype == NULL ? NULL : ask(shape_of, tensor);
    PyObject *record = NULL, *known = NULL;
    int alike = shape == NULL ? -1 : dtype == last_dtype ? PyObject_RichCompareBool(shape, last_shape, Py_EQ) : 0;
    if (alike > 0) {
        record = Py_NewRef(last_record);
    }
    else if (alike == 0 && (known = PyTuple_Pack(3, (PyObject *)tensor_type, shape, dtype)) != NULL &&
             (record = PyDict_GetItemWithError(bound[RECORDS], known)) != NULL) {
        Py_INCREF(record);
        Py_XSETREF(last_shape, Py_NewRef(shape));
        Py_XSETREF(last_dtype, Py_NewRef(dtype));
        Py_XSETREF(last_record, Py_NewRef(record));
    }
    Py_XDECREF(known);
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    return record;
}

/* What ``object.__class__ = cls`` does where it may be done, which Python has found out for these classes before. */
static int set_class(PyObject *object, PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030D0000
    PyTypeObject *before = Py_TYPE(object);
    Py_SET_TYPE(object, (PyTypeObject *)Py_NewRef((PyObject *)type));
    Py_DECREF(before);
    return 0;
#else
    return PyObject_SetAttr(object, name_class, (PyObject *)type);
#endif
}

/* What was set on a tensor, a new reference, or NULL where there is nothing. -1 with an error set. */
static int state_of(PyObject *tensor, PyObject **state)
{
#if PY_VERSION_HEX < 0x030D0000
    /* Asked for it, Python makes a dict where there is none. */
    PyObject **place = _PyObject_GetDictPtr(tensor);
    *state = place == NULL ? NULL : Py_XNewRef(*place);
#else
    if ((*state = PyObject_GenericGetDict(tensor, NULL)) == NULL) {
        return -1;
    }
#endif
    if (*state != NULL && (!PyDict_Check(*state) || PyDict_GET_SIZE(*state) == 0)) {
        Py_CLEAR(*state);
    }
    return 0;
}

/* The tensor and the spare have changed their implementations: the one gets dead, the other what the tensor was. */
static int exchange(PyObject *tensor, PyObject *spare, PyObject *record)
{
    if (set_class(spare, tensor_type) < 0) {
        return -1;
    }
    PyObject *state;
    if (state_of(tensor, &state) < 0) {
        return -1;
    }
    int failed = state == NULL ? 0 : PyObject_GenericSetDict(spare, state, NULL);
    Py_XDECREF(state);
    if (failed < 0 || PyObject_GenericSetDict(tensor, record, NULL) < 0) {
        return -1;
    }
    return set_class(tensor, (PyTypeObject *)bound[DISPOSED]);
}

/* Whether a function mode is on the stack, which sees attributes too. -1 with an error set. */
static int modes_are_on(void)
{
    int on = state_modes_are_on();
    if (on >= 0) {
        return on;
    }
    PyObject *told = PyObject_CallNoArgs(bound[MODES_ARE_ON]);
    on = told == NULL ? -1 : told != Py_False;
    Py_XDECREF(told);
    return on;
}

PyObject *disposal_spare(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return bound[MAKE_DEAD] != NULL ? placeholders_take() : PyErr_Format(PyExc_RuntimeError, "spare() has not been bound");
}

/* Whether the calling thread is the only one. It looks at its own state alone, which no other thread changes. */
static bool is_alone(void)
{
    PyThreadState *here = PyThreadState_Get();
    return PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(here)) == here && PyThreadState_Next(here) == NULL;
}

/* Makes a tensor dead for Python code, and has what is left to do wait: another thread may compute with it. One that something
 * was set on is left to Python. */
static PyObject *put_off(PyObject *tensor, PyObject *record)
{
    PyObject *state;
    if (state_of(tensor, &state) < 0) {
        return NULL;
    }
    if (state != NULL) {
        Py_DECREF(state);
        return PyObject_CallOneArg(bound[MAKE_DEAD], tensor);
    }
    PyObject *reference = PyWeakref_NewRef(tensor, NULL);
    int failed = reference == NULL ? -1 : 0;
    if (failed == 0 && PyList_GET_SIZE(bound[FRESH]) == 0) {
        failed = PyList_Append(bound[AFTER_RELEASES], bound[SETTLE]);
    }
    if (failed == 0 && (failed = PyObject_GenericSetDict(tensor, record, NULL)) == 0 &&
        (failed = set_class(tensor, (PyTypeObject *)bound[DISPOSED])) == 0) {
        failed = PyList_Append(bound[FRESH], reference);
    }
    Py_XDECREF(reference);
    return failed < 0 ? NULL : Py_NewRef(Py_None);
}

/* `disposal.drop` for a plain tensor, whose like has been dropped before. */
PyObject *disposal_drop(PyObject *module, PyObject *tensor)
{
    (void)module;
    if (bound[MAKE_DEAD] == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "drop() has not been bound");
        return NULL;
    }
    PyObject *record = NULL;
    if (Py_TYPE(tensor) == tensor_type) {
        int on = modes_are_on();
        if (on < 0) {
            return NULL;
        }
        if (!on) {
            record = record_of(tensor);
            PyErr_Clear();
        }
    }
    if (record == NULL) {
        return PyObject_CallOneArg(bound[MAKE_DEAD], tensor);
    }
    PyObject *result = NULL;
    if (!is_alone()) {
        result = put_off(tensor, record);
        Py_DECREF(record);
        return result;
    }
    PyObject *spare = placeholders_take();
    if (spare != NULL) {
        PyObject *pair[] = {tensor, spare};
        PyObject *swapped = PyObject_Vectorcall(bound[SWAP], pair, 2, NULL);
        if (swapped != NULL) {
            result = exchange(tensor, spare, record) < 0 ? NULL : Py_NewRef(Py_None);
        }
        else if (PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            /* C++ refers to it weakly. */
            PyErr_Clear();
            result = PyObject_CallOneArg(bound[MAKE_DEAD], tensor);
        }
        Py_XDECREF(swapped);
        Py_DECREF(spare);
    }
    Py_DECREF(record);
    return result;
}
