#include "births.h"

#include "wholes.h"

PyObject *died_function;

/* The tuple (resource, died) of the last call: nobody else has seen it, so that it can be filled again. NULL while it is in
 * use. */
static PyObject *spare_arguments;

static PyObject *take_arguments(PyObject *resource)
{
    PyObject *arguments = spare_arguments;
    if (arguments == NULL) {
        return PyTuple_Pack(2, resource, died_function);
    }
    spare_arguments = NULL;
    PyTuple_SET_ITEM(arguments, 0, Py_NewRef(resource));
    return arguments;
}

static void give_back(PyObject *arguments)
{
    if (spare_arguments != NULL || Py_REFCNT(arguments) != 1) {
        Py_DECREF(arguments);
        return;
    }
    PyObject *resource = PyTuple_GET_ITEM(arguments, 0);
    PyTuple_SET_ITEM(arguments, 0, Py_NewRef(Py_None));
    spare_arguments = arguments;
    Py_DECREF(resource);
}

PyObject *make_entry(PyTypeObject *type, PyObject *resource, PyObject *key, PyObject *kind, PyObject *ledger, PyObject *scope)
{
    bool own_key = key == NULL;
    key = own_key ? PyLong_FromVoidPtr(resource) : Py_NewRef(key);
    PyObject *arguments = key == NULL ? NULL
                          : own_key   ? take_arguments(resource)
                                      : PyTuple_Pack(2, resource, anchor_died_function);
    /* What calling the type does, less an __init__ that only looks at the arguments again. */
    PyObject *entry = arguments == NULL ? NULL : type->tp_new(type, arguments, NULL);
    if (arguments != NULL && own_key) {
        give_back(arguments);
    }
    else {
        Py_XDECREF(arguments);
    }
    if (entry != NULL) {
        put(entry, ENTRY_KEY, key);
        put(entry, ENTRY_KIND, kind);
        put(entry, ENTRY_OWNER, scope == NULL ? Py_None : scope);
        put(entry, ENTRY_HOME, ledger);
        put(entry, ENTRY_UNIT, Py_None);
        put(entry, ENTRY_MEMBERS, empty_tuple);
        put(entry, ENTRY_COUNTED, scope == NULL ? Py_True : get(ledger, LEDGER_PERIOD));
    }
    Py_XDECREF(key);
    return entry;
}

int record(PyObject *entry, PyObject *ledger, PyObject *scope)
{
    PyObject *key = get(entry, ENTRY_KEY);
    if (PyDict_SetItem(bound[LIVE], key, entry) < 0) {
        return -1;
    }
    if (scope == NULL) {
        count(ledger, CREATED_UNSCOPED);
        return 0;
    }
    if (own(scope, entry) == 0) {
        count(ledger, CREATED_IN_SCOPE);
        if (get(scope, SCOPE_STATE) == state_closed) {
            /* Another thread closed it while Python code looked for it: the entry goes where the next birth will. */
            PyObject *taken = PyObject_CallMethodOneArg(scope, name_take, entry);
            Py_XDECREF(taken);
            return taken == NULL ? -1 : 0;
        }
        return 0;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    put(entry, ENTRY_OWNER, Py_None);
    if (PyDict_DelItem(bound[LIVE], key) < 0) {
        PyErr_Clear();
    }
    PyErr_Restore(type, value, traceback);
    return -1;
}

/* `born()`, but for what the listeners are told. */
static PyObject *bear(PyObject *const *arguments, Py_ssize_t number)
{
    if (number != 2 && number != 3) {
        PyErr_SetString(PyExc_TypeError, "born() takes a resource, its kind, and the scope where that is known");
        return NULL;
    }
    if (!is_bound()) {
        PyErr_SetString(PyExc_RuntimeError, "born() has not been bound");
        return NULL;
    }
    /* What can run other code comes first, and the rest is one step for every other thread. */
    PyObject *ledger = ledger_here();
    if (ledger == NULL) {
        return NULL;
    }
    PyObject *scope = number == 3 && is_scope(arguments[2]) ? Py_NewRef(arguments[2]) : current();
    PyObject *entry = NULL;
    if (scope != NULL || !PyErr_Occurred()) {
        entry = make_entry(entry_type, arguments[0], NULL, arguments[1], ledger, scope);
        if (entry != NULL && record(entry, ledger, scope) < 0) {
            Py_CLEAR(entry);
        }
    }
    Py_DECREF(ledger);
    Py_XDECREF(scope);
    return entry;
}

PyObject *compiled_born(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    PyObject *entry = bear(arguments, number);
    if (entry != NULL && PyList_GET_SIZE(bound[LISTENERS]) != 0 &&
        tell(bound[LISTENERS], name_born, entry, NULL) < 0) {
        Py_CLEAR(entry);
    }
    return entry;
}

PyObject *compiled_born_pending(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    return bear(arguments, number);
}

PyObject *compiled_part(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 3 || !is_bound() || !PyObject_TypeCheck(arguments[2], entry_type)) {
        PyErr_SetString(PyExc_TypeError, "part() takes a resource, its kind, and the entry of a composite");
        return NULL;
    }
    PyObject *ledger = ledger_here();
    PyObject *entry = ledger == NULL ? NULL : make_entry(entry_type, arguments[0], NULL, arguments[1], ledger, NULL);
    Py_XDECREF(ledger);
    if (entry != NULL) {
        put(entry, ENTRY_UNIT, arguments[2]);
        put(entry, ENTRY_COUNTED, Py_False);
        if (PyDict_SetItem(bound[LIVE], get(entry, ENTRY_KEY), entry) < 0) {
            Py_CLEAR(entry);
        }
    }
    return entry;
}

/* Takes an entry out of a table if it is there; runs no Python code in between. 1 for taken, -1 with an error set. */
static int taken_out_of(PyObject *table, PyObject *entry)
{
    PyObject *key = get(entry, ENTRY_KEY);
    PyObject *found = PyDict_GetItemWithError(table, key);
    if (found == entry) {
        return PyDict_DelItem(table, key) < 0 ? -1 : 1;
    }
    return found == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Whether there have been several tuples around the anchor that an entry stands for. */
static bool has_several_tuples(PyObject *unit)
{
    if (Py_TYPE(unit) != anchored_type) {
        return false;
    }
    PyObject *tuples = get(unit, ANCHORED_TUPLES);
    return !PyTuple_CheckExact(tuples) || PyTuple_GET_SIZE(tuples) != 1;
}

/* `identity.part_died`, where the member is part of one composite only. -1 with an error set. */
static int part_died(PyObject *entry)
{
    PyObject *unit = get(entry, ENTRY_UNIT);
    if (PyDict_GET_SIZE(bound[SHARED]) != 0 || !PyObject_TypeCheck(unit, entry_type) ||
        Py_TYPE(get(unit, ENTRY_KIND)) != kind_type || has_several_tuples(unit)) {
        PyObject *done = PyObject_CallOneArg(bound[PART_DIED], entry);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    if (get(get(unit, ENTRY_KIND), KIND_ANCHOR) == Py_None) {
        return 0;
    }
    if (PyDict_GetItemWithError(bound[LIVE], get(unit, ENTRY_KEY)) != unit) {
        return PyErr_Occurred() ? -1 : forget_spent(unit);
    }
    Py_INCREF(unit);
    PyObject *done = compiled_died(NULL, unit);
    Py_DECREF(unit);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* The end of a resource that was alive. */
static int leave_owner(PyObject *entry, PyObject *ledger)
{
    PyObject *members = get(entry, ENTRY_MEMBERS);
    bool composite = PyTuple_CheckExact(members) && PyTuple_GET_SIZE(members) != 0;
    if (get(entry, ENTRY_UNIT) != Py_None) {
        if (composite && PyList_Append(bound[DEAD_COMPOSITES], entry) < 0) {
            return -1;
        }
        return PyList_GET_SIZE(bound[ANCHORED]) != 0 ? part_died(entry) : 0;
    }
    PyObject *owner = get(entry, ENTRY_OWNER);
    if (owner == Py_None || !is_scope(owner)) {
        count(ledger, DISPOSED_UNSCOPED);
    }
    else {
        Py_INCREF(owner);
        int failed = disown(owner, entry);
        Py_DECREF(owner);
        if (failed < 0) {
            return -1;
        }
        count(ledger, DISPOSED_IN_SCOPE);
    }
    if (!composite) {
        put(entry, ENTRY_OWNER, Py_None);
        return 0;
    }
    if (PyList_Append(bound[DEAD_COMPOSITES], entry) < 0) {
        return -1;
    }
    if (PyList_GET_SIZE(bound[DEAD_COMPOSITES]) < 512) {
        return 0;
    }
    if (sweep() < 0) {
        return -1;
    }
    /* Of those that leave something many are left: the others would be looked at again and again. */
    if (PyList_GET_SIZE(bound[DEAD_COMPOSITES]) >= 256) {
        PyObject *done = PyObject_CallNoArgs(bound[SETTLE]);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    return 0;
}

PyObject *compiled_died(PyObject *module, PyObject *entry)
{
    (void)module;
    if (!is_bound() || !PyObject_TypeCheck(entry, entry_type)) {
        PyErr_SetString(PyExc_TypeError, "died() takes an entry");
        return NULL;
    }
    PyObject *ledger = ledger_here();
    if (ledger == NULL) {
        return NULL;
    }
    /* A dying object lends its reference to the callback, and the tables may hold the only others. */
    Py_INCREF(entry);
    int alive = taken_out_of(bound[LIVE], entry);
    if (alive > 0) {
        alive = leave_owner(entry, ledger);
    }
    else if (alive == 0 && (alive = taken_out_of(bound[DEAD], entry)) > 0) {
        /* They hold each other. */
        put(entry, ENTRY_MEMBERS, empty_tuple);
    }
    Py_DECREF(ledger);
    if (alive >= 0 && PyList_GET_SIZE(bound[LISTENERS]) != 0) {
        alive = tell(bound[LISTENERS], name_died, entry, NULL);
    }
    Py_DECREF(entry);
    if (alive < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}
