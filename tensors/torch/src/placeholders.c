#include "placeholders.h"

#include <stdbool.h>

#include "bound.h"
#include "state.h"

enum object { MAKE, ARGUMENTS, OPTIONS, BELOW_AUTOGRAD, OBJECTS };

static const char *const names[OBJECTS] = {
    [MAKE] = "make",
    [ARGUMENTS] = "make_arguments",
    [OPTIONS] = "make_options",
    [BELOW_AUTOGRAD] = "below_autograd",
};

static PyObject *bound[OBJECTS];
static PyObject *name_enter, *name_exit;

/* What was made ahead. The collector does not see it: whoever looks for tensors there shall find his own. */
enum { AT_ONCE = 16 };
static PyObject *ahead[AT_ONCE];
static int number;

int placeholders_bind(PyObject *things)
{
    if ((name_enter = PyUnicode_InternFromString("__enter__")) == NULL ||
        (name_exit = PyUnicode_InternFromString("__exit__")) == NULL || take(things, names, OBJECTS, bound) < 0) {
        return -1;
    }
    return 0;
}

static PyObject *make(void) { return PyObject_Call(bound[MAKE], bound[ARGUMENTS], bound[OPTIONS]); }

/* Makes some ahead, as many as fit. -1 with an error set where there is none then. */
static int make_ahead(void)
{
    PyObject *guard = PyObject_CallNoArgs(bound[BELOW_AUTOGRAD]);
    PyObject *entered = guard == NULL ? NULL : PyObject_CallMethodNoArgs(guard, name_enter);
    if (entered == NULL) {
        Py_XDECREF(guard);
        return -1;
    }
    Py_DECREF(entered);
    /* No code of the program's may run here, as that of finalizers would: it would find itself below autograd. */
    int collected = PyGC_Disable();
    while (number < AT_ONCE) {
        PyObject *made = make();
        if (made == NULL) {
            break;
        }
        PyObject_GC_UnTrack(made);
        ahead[number++] = made;
    }
    if (collected) {
        PyGC_Enable();
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *left = PyObject_CallMethodObjArgs(guard, name_exit, Py_None, Py_None, Py_None, NULL);
    Py_DECREF(guard);
    if (left == NULL || number != 0) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    }
    else {
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(left);
    return left == NULL || number == 0 ? -1 : 0;
}

PyObject *placeholders_take(void)
{
    if (number == 0) {
        /* What a transform makes is the transform's, and of no use after it. */
        if (state_modes_are_on() < 0 || state_is_particular()) {
            return make();
        }
        if (make_ahead() < 0) {
            return NULL;
        }
    }
    PyObject *spare = ahead[--number];
    PyObject_GC_Track(spare);
    return spare;
}
