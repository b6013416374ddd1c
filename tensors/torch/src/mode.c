#include "mode.h"

#include <stdbool.h>

#include "../../../scopes/src/slots.h"
#include "bound.h"
#include "seam.h"

enum object { TELL, LISTENERS, BUDGETED, LIVE, OBJECTS };

static const char *const names[OBJECTS] = {
    [TELL] = "tell", [LISTENERS] = "LISTENERS", [BUDGETED] = "BUDGETED", [LIVE] = "LIVE",
};

static PyObject *bound[OBJECTS], *name_born;
static PyTypeObject *entry_type;
static Py_ssize_t key_offset;

int mode_bind(PyObject *things)
{
    PyObject *entry = PyDict_GetItemString(things, "Entry"), *live = PyDict_GetItemString(things, "LIVE");
    if (entry == NULL || !PyType_Check(entry) || live == NULL || !PyDict_CheckExact(live)) {
        PyErr_SetString(PyExc_TypeError, "bind_births() was given something else than it wants");
        return -1;
    }
    if ((key_offset = offset_of_slot((PyTypeObject *)entry, "key")) < 0 ||
        (name_born = PyUnicode_InternFromString("born")) == NULL || take(things, names, OBJECTS, bound) < 0) {
        return -1;
    }
    entry_type = (PyTypeObject *)Py_NewRef(entry);
    return 0;
}

/* Who tells of births, and what is remembered of those that no call tells of, by the address of the entry. */
static const struct torch_calls *by_calls;
static PyObject *places;

void mode_tell_by_calls(const struct torch_calls *calls)
{
    by_calls = calls;
    if (places != NULL) {
        PyDict_Clear(places);
    }
}

bool mode_is_spared(void) { return by_calls != NULL; }

PyObject *mode_place(void) { return by_calls == NULL || by_calls->are_running() ? NULL : by_calls->remember(); }

int mode_remember(PyObject *entry, PyObject *place)
{
    if (place == NULL && (places == NULL || PyDict_GET_SIZE(places) == 0)) {
        return 0;
    }
    if (places == NULL && (places = PyDict_New()) == NULL) {
        return -1;
    }
    PyObject *key = PyLong_FromVoidPtr(entry);
    int failed = key == NULL ? -1 : 0;
    if (failed == 0 && place != NULL) {
        failed = PyDict_SetItem(places, key, place);
    }
    else if (failed == 0 && (failed = PyDict_Contains(places, key)) > 0) {
        /* One at the same address has gone pending. */
        failed = PyDict_DelItem(places, key);
    }
    Py_XDECREF(key);
    return failed;
}

/* What is remembered for an entry, and no longer then: a new reference, or NULL with or without an error set. */
static PyObject *take_place(PyObject *entry)
{
    if (places == NULL || PyDict_GET_SIZE(places) == 0) {
        return NULL;
    }
    PyObject *key = PyLong_FromVoidPtr(entry);
    PyObject *place = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(places, key));
    if (place != NULL && PyDict_DelItem(places, key) < 0) {
        Py_CLEAR(place);
    }
    Py_XDECREF(key);
    return place;
}

/* Tells the listeners of one birth, unless that is over. -1 with an error set. */
static int tell_listeners(PyObject *entry)
{
    if (!PyObject_TypeCheck(entry, entry_type) ||
        PyDict_GetItemWithError(bound[LIVE], read_slot(entry, key_offset)) != entry) {
        return PyErr_Occurred() ? -1 : 0;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bound[LISTENERS]); i++) {
        PyObject *listener = Py_NewRef(PyList_GET_ITEM(bound[LISTENERS], i));
        PyObject *told = PyObject_VectorcallMethod(name_born, (PyObject *[]){listener, entry}, 2, NULL);
        Py_DECREF(listener);
        if (told == NULL) {
            return -1;
        }
        Py_DECREF(told);
    }
    return 0;
}

/* Tells the listeners of one birth, with where it was. -1 with an error set. */
static int tell_of(PyObject *entry)
{
    PyObject *place = take_place(entry);
    if (place == NULL) {
        return PyErr_Occurred() ? -1 : tell_listeners(entry);
    }
    const struct torch_calls *calls = by_calls;
    if (calls != NULL) {
        calls->use(place);
    }
    int failed = tell_listeners(entry);
    if (calls != NULL) {
        calls->use(NULL);
    }
    Py_DECREF(place);
    return failed;
}

PyObject *mode_tell_of(PyObject *module, PyObject *entry)
{
    (void)module;
    if (entry_type == NULL || !PyObject_TypeCheck(entry, entry_type)) {
        PyErr_SetString(PyExc_TypeError, "tell_of() takes an entry, after bind_births()");
        return NULL;
    }
    return tell_of(entry) < 0 ? NULL : Py_NewRef(Py_None);
}

/* Tells the listeners of what was born on this thread. -1 with an error set. */
static int tell_of_all(void)
{
    PyObject *pending = seam_take_pending();
    int failed = pending == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; failed == 0 && PyList_CheckExact(pending) && i < PyList_GET_SIZE(pending); i++) {
        PyObject *entry = Py_NewRef(PyList_GET_ITEM(pending, i));
        failed = tell_of(entry);
        Py_DECREF(entry);
    }
    Py_XDECREF(pending);
    return failed;
}

int mode_tell(void)
{
    int pending = PyDict_GET_SIZE(bound[BUDGETED]) != 0 ? 0 : seam_has_pending();
    return pending > 0 ? tell_of_all() : pending;
}

/* Tells of what was born on this thread; where there are budgets, that is for Python to do. -1 with an error set. */
static int tell(PyObject *result, PyObject *args, PyObject *kwargs)
{
    if (PyDict_GET_SIZE(bound[BUDGETED]) == 0) {
        return tell_of_all();
    }
    PyObject *told = PyObject_Vectorcall(bound[TELL], (PyObject *[]){result, args, kwargs}, 3, NULL);
    Py_XDECREF(told);
    return told == NULL ? -1 : 0;
}

/* `BirthMode.__torch_function__`, where births are seen without it: func, types, args, kwargs. */
static PyObject *handle(PyObject *mode, PyObject *const *arguments, Py_ssize_t number)
{
    (void)mode;
    if (number < 2 || number > 4 || entry_type == NULL || (number > 2 && !PyTuple_Check(arguments[2])) ||
        (number > 3 && arguments[3] != Py_None && !PyDict_Check(arguments[3]))) {
        PyErr_SetString(PyExc_TypeError, "__torch_function__() takes a function, types, a tuple and a dict");
        return NULL;
    }
    PyObject *func = arguments[0], *kwargs = number > 3 ? arguments[3] : Py_None;
    PyObject *args = number > 2 ? Py_NewRef(arguments[2]) : PyTuple_New(0);
    PyObject *result = args == NULL ? NULL : PyObject_Call(func, args, kwargs == Py_None ? NULL : kwargs);
    int pending = result == NULL ? 0 : seam_has_pending();
    if (pending > 0) {
        pending = tell(result, args, kwargs);
    }
    if (pending < 0) {
        /* What a budget refuses shall be gone when it is told. */
        PyObject *error, *value, *traceback;
        PyErr_Fetch(&error, &value, &traceback);
        Py_CLEAR(result);
        Py_CLEAR(args);
        PyErr_Restore(error, value, traceback);
    }
    Py_XDECREF(args);
    return result;
}

static PyMethodDef handler = {"__torch_function__", (PyCFunction)(void (*)(void))handle, METH_FASTCALL, NULL};

PyObject *mode_handler_of(PyObject *module, PyObject *mode)
{
    (void)module;
    return PyCFunction_New(&handler, mode);
}
