/* What repeats in births, by numbers: the names of kinds, devices, calls, passes and scopes; and the current scope. */
#include "log.h"

#include "../../../scopes/src/raised.h"

struct names op_names, kind_names, device_names, scope_names, pass_names;

#define NO_NUMBER UINT16_MAX

int names_make(struct names *names)
{
    PyObject *numbers = PyDict_New(), *objects = PyList_New(0);
    if (numbers == NULL || objects == NULL) {
        Py_XDECREF(numbers);
        Py_XDECREF(objects);
        return -1;
    }
    Py_XSETREF(names->numbers, numbers);
    Py_XSETREF(names->objects, objects);
    return 0;
}

static uint16_t added(struct names *names, PyObject *object)
{
    Py_ssize_t count = PyList_GET_SIZE(names->objects);
    if (count >= NO_NUMBER) {
        return NO_NUMBER;
    }
    PyObject *number = PyLong_FromSsize_t(count);
    if (number == NULL || PyList_Append(names->objects, object) < 0) {
        Py_XDECREF(number);
        return NO_NUMBER;
    }
    int failed = PyDict_SetItem(names->numbers, object, number);
    Py_DECREF(number);
    return failed ? NO_NUMBER : (uint16_t)count;
}

uint16_t names_number(struct names *names, PyObject *object)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    uint16_t number = NO_NUMBER;
    /* A subclass of str could do anything when it is compared. */
    if (object == Py_None || PyUnicode_CheckExact(object)) {
        PyObject *known = PyDict_GetItemWithError(names->numbers, object);
        number = known == NULL ? added(names, object) : (uint16_t)PyLong_AsLong(known);
    }
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    return number;
}

PyObject *names_object(const struct names *names, uint16_t number)
{
    return number < PyList_GET_SIZE(names->objects) ? PyList_GET_ITEM(names->objects, number) : Py_None;
}

/* ------------------------------------------------------------------ scopes, by the numbers of their names */

static PyObject *current_variable, *resolve_function;
static PyObject *name_name, *name_direct;

uint16_t scopes_number(PyObject *scope)
{
    if (scope == Py_None) {
        static uint16_t number;
        static uint64_t known_in;
        if (known_in != birth_log.era + 1) {
            number = names_number(&scope_names, Py_None);
            known_in = birth_log.era + 1;
        }
        return number;
    }
    static PyObject *unnamed;
    if (unnamed == NULL && (unnamed = PyUnicode_FromString("")) == NULL) {
        PyErr_Clear();
        return UINT16_MAX;
    }
    PyObject *name = PyObject_GetAttr(scope, name_name);
    if (name == NULL) {
        PyErr_Clear();
        return UINT16_MAX;
    }
    uint16_t number = names_number(&scope_names, name == Py_None ? unnamed : name);
    Py_DECREF(name);
    return number;
}

/* Of the innermost scope that was entered, a reference, the one that is current; a new reference, None where there is none. Raises
 * nothing. */
static PyObject *current_scope(PyObject *scope)
{
    PyObject *direct = PyObject_GetAttr(scope, name_direct);
    bool is_plain = direct == Py_True;
    Py_XDECREF(direct);
    if (!is_plain) {
        PyErr_Clear();
        PyObject *resolved = PyObject_CallOneArg(resolve_function, scope);
        Py_DECREF(scope);
        scope = resolved == NULL ? Py_NewRef(Py_None) : resolved;
    }
    if (PyErr_Occurred()) {
        put_off_raised();
    }
    return scope;
}

uint16_t scopes_current(void)
{
    uint16_t remembered;
    if (remembered_scope(&remembered)) {
        return remembered;
    }
    PyObject *scope;
    if (PyContextVar_Get(current_variable, Py_None, &scope) < 0) {
        PyErr_Clear();
        return UINT16_MAX;
    }
    if (scope == Py_None) {
        Py_DECREF(scope);
        return scopes_number(Py_None);
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    scope = current_scope(scope);
    uint16_t number = scopes_number(scope);
    Py_DECREF(scope);
    PyErr_Restore(type, value, traceback);
    return number;
}

int scopes_make(void)
{
    name_name = PyUnicode_InternFromString("name");
    name_direct = PyUnicode_InternFromString("_direct");
    current_variable = log_import("disposescope.scopes.context", "CURRENT");
    resolve_function = log_import("disposescope.scopes.context", "resolve");
    return name_name == NULL || name_direct == NULL || current_variable == NULL || resolve_function == NULL ? -1 : 0;
}
