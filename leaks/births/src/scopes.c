/* The scopes of births, by the numbers of their names. */
#include "../../../scopes/src/raised.h"
#include "remembered.h"

static PyObject *current_variable, *resolve_function;
static PyObject *name_name, *name_direct;

uint16_t scopes_number(PyObject *scope)
{
    if (scope == Py_None) {
        static uint16_t number;
        static uint64_t known_in;
        if (known_in != log_era + 1) {
            number = names_number(&scope_names, Py_None);
            known_in = log_era + 1;
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
    return name_name == NULL || name_direct == NULL ? -1 : 0;
}

void scopes_bind(PyObject *current, PyObject *resolve)
{
    Py_XSETREF(current_variable, Py_NewRef(current));
    Py_XSETREF(resolve_function, Py_NewRef(resolve));
}
