/* The tables of entries, the current scope, the entries of a scope, listeners and hooks, and the
 * check for awaited modules. */
#include "scopes.h"

#include "shared/collector.h"

PyObject *live_table, *dead_table, *shared_table, *dead_composites;
PyObject *listeners, *entered_hooks, *left_hooks, *awaited_table, *memory_service;
PyObject *entering_names;

static PyObject *current_variable, *name_owner, *name_pop, *name_resolve;

/* ------------------------------------------------------------------ making the tables */

/* The value of `compiled.ENTERING`. */
static PyObject *make_entering_names(void)
{
    return PyObject_CallFunction((PyObject *)&PyFrozenSet_Type, "((sssss))", "__enter__", "__aenter__", "__next__",
                                 "enter_context", "enter_async_context");
}

int tables_make(PyObject *module)
{
    const struct {
        const char *name;
        PyObject **place;
        PyObject *made;
    } tables[] = {
        {"LIVE", &live_table, PyDict_New()},
        {"DEAD", &dead_table, PyDict_New()},
        {"SHARED", &shared_table, PyDict_New()},
        {"DEAD_COMPOSITES", &dead_composites, PyList_New(0)},
        {"LISTENERS", &listeners, PyList_New(0)},
        {"ENTERED", &entered_hooks, PyList_New(0)},
        {"LEFT", &left_hooks, PyList_New(0)},
        {"AWAITED", &awaited_table, PyDict_New()},
        {"ENTERING", &entering_names, make_entering_names()},
        {"CURRENT", &current_variable, PyContextVar_New("disposescope.current", Py_None)},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        *tables[i].place = tables[i].made;
        failed |= tables[i].made == NULL || PyModule_AddObjectRef(module, tables[i].name, tables[i].made) < 0;
    }
    if (failed || (name_pop = PyUnicode_InternFromString("pop")) == NULL ||
        (name_resolve = PyUnicode_InternFromString("_resolve")) == NULL ||
        (name_owner = PyUnicode_InternFromString("owner")) == NULL) {
        return -1;
    }
    return 0;
}

/* ------------------------------------------------------------------ the current scope */

static bool scope_check(PyObject *scope)
{
    if (scope == Py_None || is_scope(scope)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "internal error: the current scope has type %s, expected DisposeScope or None",
                 Py_TYPE(scope)->tp_name);
    return false;
}

PyObject *top_scope(void)
{
    PyObject *scope;
    if (PyContextVar_Get(current_variable, Py_None, &scope) < 0) {
        return NULL;
    }
    if (!scope_check(scope)) {
        Py_DECREF(scope);
        return NULL;
    }
    return scope;
}

PyObject *resolve_scope(PyObject *top)
{
    PyObject *scope = PyObject_CallMethodNoArgs(top, name_resolve);
    if (scope != NULL && !scope_check(scope)) {
        Py_CLEAR(scope);
    }
    return scope;
}

ScopeState *current_scope(void)
{
    PyObject *scope = top_scope();
    if (scope != NULL && scope != Py_None && !scope_is_direct((ScopeState *)scope)) {
        Py_SETREF(scope, resolve_scope(scope));
    }
    if (scope == Py_None) {
        Py_CLEAR(scope);
    }
    return (ScopeState *)scope;
}

int set_current(PyObject *scope)
{
    int collects = hold_collector();
    PyObject *token = PyContextVar_Set(current_variable, scope);
    let_collect(collects);
    Py_XDECREF(token);
    return token == NULL ? -1 : 0;
}

PyObject *compiled_set_current(PyObject *module, PyObject *scope)
{
    (void)module;
    if (!scope_check(scope) || set_current(scope) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ the entries of a scope */

int own(ScopeState *scope, Entry *entry)
{
    PyObject *entries = scope->entries;
    if (PyDict_CheckExact(entries)) {
        return PyDict_SetItem(entries, (PyObject *)entry, Py_None);
    }
    Py_INCREF(entries);
    int failed = PyObject_SetItem(entries, (PyObject *)entry, Py_None);
    Py_DECREF(entries);
    return failed;
}

int disown(ScopeState *scope, Entry *entry)
{
    PyObject *entries = scope->entries;
    if (PyDict_CheckExact(entries)) {
#if PY_VERSION_HEX >= 0x030D0000
        return PyDict_Pop(entries, (PyObject *)entry, NULL) < 0 ? -1 : 0;
#else
        PyObject *held = _PyDict_Pop(entries, (PyObject *)entry, Py_None);
        Py_XDECREF(held);
        return held == NULL ? -1 : 0;
#endif
    }
    Py_INCREF(entries);
    PyObject *popped = PyObject_CallMethodObjArgs(entries, name_pop, (PyObject *)entry, Py_None, NULL);
    Py_DECREF(entries);
    Py_XDECREF(popped);
    return popped == NULL ? -1 : 0;
}

PyObject *compiled_change_owner(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 3 || !is_entry(arguments[0]) || !scope_check(arguments[1]) || !scope_check(arguments[2])) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "internal error: change_owner() takes an entry and two scopes, or None");
        }
        return NULL;
    }
    Entry *entry = (Entry *)arguments[0];
    PyObject *alive = PyDict_GetItemWithError(live_table, entry->key);
    if (alive != (PyObject *)entry || entry->owner != arguments[1]) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    /* Through the setter, so that a `HeldEntry` gets hold of its resource again. */
    return PyObject_SetAttr((PyObject *)entry, name_owner, arguments[2]) < 0 ? NULL : Py_NewRef(Py_True);
}

/* ------------------------------------------------------------------ listeners and hooks */

int tell_listeners(PyObject *method, PyObject *first, PyObject *second)
{
    /* The size is read anew each time, so that a listener that is added meanwhile is called too. */
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(listeners); i++) {
        PyObject *listener = Py_NewRef(PyList_GET_ITEM(listeners, i));
        PyObject *arguments[] = {listener, first, second};
        PyObject *returned = PyObject_VectorcallMethod(method, arguments, second == NULL ? 2 : 3, NULL);
        Py_DECREF(listener);
        if (returned == NULL) {
            return -1;
        }
        Py_DECREF(returned);
    }
    return 0;
}

int call_hooks(PyObject *hooks, PyObject *object)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(hooks); i++) {
        PyObject *hook = Py_NewRef(PyList_GET_ITEM(hooks, i));
        PyObject *done = PyObject_CallOneArg(hook, object);
        Py_DECREF(hook);
        if (done == NULL) {
            return -1;
        }
        Py_DECREF(done);
    }
    return 0;
}

/* ------------------------------------------------------------------ functions of the Python part */

PyObject *finish_release_function, *settle_earlier_function;

PyObject *compiled_set_callbacks(PyObject *module, PyObject *arguments, PyObject *options)
{
    static char *names[] = {"finish_release", "settle_earlier", NULL};
    PyObject *finish_release, *settle_earlier;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "$OO:set_callbacks", names, &finish_release,
                                     &settle_earlier)) {
        return NULL;
    }
    if (!PyCallable_Check(finish_release) || !PyCallable_Check(settle_earlier)) {
        PyErr_Format(PyExc_TypeError,
                     "internal error: finish_release has type %s and settle_earlier %s, expected functions",
                     Py_TYPE(finish_release)->tp_name, Py_TYPE(settle_earlier)->tp_name);
        return NULL;
    }
    Py_XSETREF(finish_release_function, Py_NewRef(finish_release));
    Py_XSETREF(settle_earlier_function, Py_NewRef(settle_earlier));
    Py_RETURN_NONE;
}

PyObject *compiled_set_memory_service(PyObject *module, PyObject *service)
{
    (void)module;
    Py_XSETREF(memory_service, Py_NewRef(service));
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ modules that are awaited */

/* The size of sys.modules at the last look for awaited modules. */
static Py_ssize_t modules_seen;

PyObject *compiled_note_modules_seen(PyObject *module, PyObject *number)
{
    (void)module;
    Py_ssize_t seen = PyLong_AsSsize_t(number);
    if (seen == -1 && PyErr_Occurred()) {
        return NULL;
    }
    modules_seen = seen;
    Py_RETURN_NONE;
}

bool modules_were_imported(void)
{
    if (PyDict_GET_SIZE(awaited_table) == 0) {
        return false;
    }
    PyObject *modules = PyImport_GetModuleDict();
    return modules == NULL || !PyDict_CheckExact(modules) || PyDict_GET_SIZE(modules) != modules_seen;
}

PyObject *compiled_modules_were_imported(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyBool_FromLong(modules_were_imported());
}
