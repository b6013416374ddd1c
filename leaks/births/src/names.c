/* Numbers for the names that repeat from birth to birth (of kinds, devices, calls, passes and
 * scopes), and the number of the name of the current scope. */
#include "log.h"

#include "../../../scopes/src/shared/raised.h"

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

/* Add an object that has no number; its number, or NO_NUMBER where all are taken or memory is short
 * (an exception may be set then). */
static uint16_t add_name(struct names *names, PyObject *object)
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
    /* The comparison of a subclass of str could run any Python code. */
    if (object == Py_None || PyUnicode_CheckExact(object)) {
        PyObject *known = PyDict_GetItemWithError(names->numbers, object);
        number = known == NULL ? add_name(names, object) : (uint16_t)PyLong_AsLong(known);
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

/* The first two numbers in the names of scopes: of None, and of "". */
enum { NO_SCOPE, UNNAMED_SCOPE };

int scope_names_make(struct names *names)
{
    PyObject *unnamed = PyUnicode_FromString("");
    if (unnamed == NULL || names_make(names) < 0) {
        Py_XDECREF(unnamed);
        return -1;
    }
    bool is_made = names_number(names, Py_None) == NO_SCOPE && names_number(names, unnamed) == UNNAMED_SCOPE;
    Py_DECREF(unnamed);
    if (!is_made) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

uint16_t scope_number(Log *log, PyObject *scope)
{
    if (scope == Py_None) {
        return NO_SCOPE;
    }
    PyObject *name = ((ScopeState *)scope)->name;
    return name == Py_None ? UNNAMED_SCOPE : names_number(&log->scope_names, name);
}

/* What `scope_number_use` was given on this thread. */
static _Thread_local const uint16_t *number_in_use;

void scope_number_use(const uint16_t *number) { number_in_use = number; }

bool scope_number_in_use(uint16_t *number)
{
    if (number_in_use != NULL) {
        *number = *number_in_use;
    }
    return number_in_use != NULL;
}

uint16_t scope_number_here(Log *log)
{
    uint16_t in_use;
    if (scope_number_in_use(&in_use)) {
        return in_use;
    }
    PyObject *scope;
    if (PyContextVar_Get(log->scopes->current, Py_None, &scope) < 0) {
        PyErr_Clear();
        return NO_NUMBER;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (scope != Py_None && !scope_is_direct((ScopeState *)scope)) {
        Py_SETREF(scope, log->scopes->resolve(scope));
        if (scope == NULL) {
            put_off_raised();
            scope = Py_NewRef(Py_None);
        }
    }
    uint16_t number = scope_number(log, scope);
    Py_DECREF(scope);
    PyErr_Restore(type, value, traceback);
    return number;
}
