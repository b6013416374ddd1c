#include "births.h"

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

/* ================================================================== composites that are born whole */

PyObject *anchor_died_function;

/* ------------------------------------------------------------------ births */

/* The elements of a tuple as weak references without callbacks, None where there is none. */
static PyObject *references_to(PyObject *elements)
{
    Py_ssize_t number = PyTuple_GET_SIZE(elements);
    PyObject *references = PyTuple_New(number);
    for (Py_ssize_t i = 0; references != NULL && i < number; i++) {
        PyObject *element = PyTuple_GET_ITEM(elements, i);
        PyObject *reference = element == Py_None ? Py_NewRef(Py_None) : PyWeakref_NewRef(element, NULL);
        if (reference == NULL) {
            Py_CLEAR(references);
            break;
        }
        PyTuple_SET_ITEM(references, i, reference);
    }
    return references;
}

/* `identity._untracked`: that of a tuple, whose anchor stands for it, or that of an object of its own. */
static PyObject *unit_of(PyObject *resource, PyObject *kind, PyObject *ledger, PyObject *scope)
{
    if (get(kind, KIND_ANCHOR) == Py_None) {
        return make_entry(entry_type, resource, NULL, kind, ledger, scope);
    }
    PyObject *find = Py_NewRef(get(kind, KIND_ANCHOR));
    PyObject *anchor = PyObject_CallOneArg(find, resource);
    Py_DECREF(find);
    PyObject *references = anchor == NULL ? NULL : references_to(resource);
    PyObject *tuples = references == NULL ? NULL : Py_BuildValue("((OO))", (PyObject *)Py_TYPE(resource), references);
    PyObject *key = tuples == NULL ? NULL : PyLong_FromLongLong(-(long long)(uintptr_t)anchor - 1);
    PyObject *unit = key == NULL ? NULL : make_entry(anchored_type, anchor, key, kind, ledger, scope);
    if (unit != NULL) {
        put(unit, ANCHORED_TUPLES, tuples);
    }
    Py_XDECREF(key);
    Py_XDECREF(tuples);
    Py_XDECREF(references);
    Py_XDECREF(anchor);
    return unit;
}

/* The entries of the members of a unit, none of which is in a table yet. NULL with an error set. */
static PyObject *parts_of(PyObject *members, PyObject *kind, PyObject *ledger, PyObject *unit)
{
    Py_ssize_t given = PySequence_Fast_GET_SIZE(members), number = 0;
    for (Py_ssize_t i = 0; i < given; i++) {
        number += PySequence_Fast_GET_ITEM(members, i) != Py_None;
    }
    PyObject *parts = PyTuple_New(number);
    number = 0;
    for (Py_ssize_t i = 0; parts != NULL && i < given; i++) {
        PyObject *member = PySequence_Fast_GET_ITEM(members, i);
        if (member == Py_None) {
            continue;
        }
        PyObject *part = number == PyTuple_GET_SIZE(parts) ? NULL : make_entry(entry_type, member, NULL, kind, ledger, NULL);
        if (part == NULL) {
            Py_CLEAR(parts);
            break;
        }
        put(part, ENTRY_UNIT, unit);
        put(part, ENTRY_COUNTED, Py_False);
        PyTuple_SET_ITEM(parts, number++, part);
    }
    return parts;
}

/* 1 where one of some entries has the key of another that is known, -1 with an error set. */
static int any_known(PyObject *entries)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
        int known = PyDict_Contains(bound[LIVE], get(PyTuple_GET_ITEM(entries, i), ENTRY_KEY));
        if (known != 0) {
            return known;
        }
    }
    return 0;
}

/* Takes the first of some entries out of the table again; keeps the error that is set. */
static void forget(PyObject *entries, Py_ssize_t number)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    while (number-- > 0) {
        if (PyDict_DelItem(bound[LIVE], get(PyTuple_GET_ITEM(entries, number), ENTRY_KEY)) < 0) {
            PyErr_Clear();
        }
    }
    PyErr_Restore(type, value, traceback);
}

/* Into the table, all or nothing. -1 with an error set. */
static int make_known(PyObject *entries)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        if (PyDict_SetItem(bound[LIVE], get(entry, ENTRY_KEY), entry) < 0) {
            forget(entries, i);
            return -1;
        }
    }
    return 0;
}

/* The unit, known and owned with its members; None where a member is known already. NULL with an error set. */
static PyObject *bear_whole(PyObject *const *arguments, PyObject *ledger, PyObject *scope)
{
    PyObject *unit = unit_of(arguments[0], arguments[1], ledger, scope);
    PyObject *parts = unit == NULL ? NULL : parts_of(arguments[2], arguments[3], ledger, unit);
    PyObject *born = NULL;
    if (parts != NULL) {
        /* From here on no other thread comes in between. */
        int known = any_known(parts);
        if (known > 0) {
            born = Py_NewRef(Py_None);
        }
        else if (known == 0) {
            put(unit, ENTRY_MEMBERS, parts);
            if (make_known(parts) == 0) {
                if (record(unit, ledger, scope) == 0) {
                    born = Py_NewRef(unit);
                }
                else {
                    forget(parts, PyTuple_GET_SIZE(parts));
                }
            }
        }
        if (born != unit) {
            /* They hold each other. */
            put(unit, ENTRY_MEMBERS, empty_tuple);
        }
    }
    Py_XDECREF(parts);
    Py_XDECREF(unit);
    return born;
}

PyObject *compiled_born_whole(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 4 || !is_bound() || Py_TYPE(arguments[1]) != kind_type ||
        !(PyTuple_Check(arguments[2]) || PyList_CheckExact(arguments[2])) ||
        (get(arguments[1], KIND_ANCHOR) != Py_None && !PyTuple_Check(arguments[0]))) {
        PyErr_SetString(PyExc_TypeError, "born_whole() takes a resource, its kind, a list of members, and their kind");
        return NULL;
    }
    /* What can run other code comes first. */
    PyObject *ledger = ledger_here();
    if (ledger == NULL) {
        return NULL;
    }
    PyObject *scope = current();
    PyObject *unit = scope == NULL && PyErr_Occurred() ? NULL : bear_whole(arguments, ledger, scope);
    Py_XDECREF(scope);
    Py_DECREF(ledger);
    if (unit != NULL && unit != Py_None && PyList_GET_SIZE(bound[LISTENERS]) != 0 &&
        tell(bound[LISTENERS], name_born, unit, NULL) < 0) {
        Py_CLEAR(unit);
    }
    return unit;
}

/* ------------------------------------------------------------------ deaths */

PyObject *compiled_anchor_died(PyObject *module, PyObject *entry)
{
    if (!is_bound() || !PyObject_TypeCheck(entry, entry_type)) {
        PyErr_SetString(PyExc_TypeError, "anchor_died() takes an entry");
        return NULL;
    }
    PyObject *key = get(entry, ENTRY_KEY);
    PyObject *found = PyDict_GetItemWithError(bound[LIVE], key);
    if (found != entry && !PyErr_Occurred()) {
        found = PyDict_GetItemWithError(bound[DEAD], key);
    }
    if (found == entry) {
        return compiled_died(module, entry);
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Whether a composite has died with all of its members, none of which was a composite. -1 with an error set. */
static int is_spent(PyObject *unit)
{
    PyObject *members = get(unit, ENTRY_MEMBERS);
    if (!PyTuple_CheckExact(members)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members); i++) {
        PyObject *member = PyTuple_GET_ITEM(members, i);
        PyObject *below = get(member, ENTRY_MEMBERS);
        if (!PyTuple_CheckExact(below) || PyTuple_GET_SIZE(below) != 0) {
            return 0;
        }
        PyObject *found = PyDict_GetItemWithError(bound[LIVE], get(member, ENTRY_KEY));
        if (found == member || PyErr_Occurred()) {
            return found == member ? 0 : -1;
        }
    }
    return 1;
}

int forget_spent(PyObject *unit)
{
    PyObject *dead_composites = bound[DEAD_COMPOSITES];
    Py_ssize_t last = PyList_GET_SIZE(dead_composites) - 1;
    if (last < 0 || PyList_GET_ITEM(dead_composites, last) != unit || PyDict_GET_SIZE(bound[SHARED]) != 0) {
        return 0;
    }
    int spent = is_spent(unit);
    if (spent <= 0) {
        return spent;
    }
    Py_INCREF(unit);
    int failed = PyList_SetSlice(dead_composites, last, last + 1, NULL);
    if (failed == 0) {
        /* They hold each other. */
        put(unit, ENTRY_MEMBERS, empty_tuple);
        put(unit, ENTRY_OWNER, Py_None);
    }
    Py_DECREF(unit);
    return failed;
}

int sweep(void)
{
    if (PyDict_GET_SIZE(bound[SHARED]) != 0) {
        return 0;
    }
    PyObject *dead_composites = bound[DEAD_COMPOSITES];
    /* Taken out first: what is let go below may leave dead_composites of its own. */
    PyObject *taken = PyList_GetSlice(dead_composites, 0, PyList_GET_SIZE(dead_composites));
    if (taken == NULL || PyList_SetSlice(dead_composites, 0, PyList_GET_SIZE(taken), NULL) < 0) {
        Py_XDECREF(taken);
        return -1;
    }
    int failed = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(taken); i++) {
        PyObject *unit = PyList_GET_ITEM(taken, i);
        int spent = failed < 0 ? 0 : is_spent(unit);
        if (spent > 0) {
            put(unit, ENTRY_MEMBERS, empty_tuple);
            put(unit, ENTRY_OWNER, Py_None);
        }
        else if (spent < 0 || PyList_Append(dead_composites, unit) < 0) {
            failed = -1;
        }
    }
    Py_DECREF(taken);
    return failed;
}

PyObject *compiled_sweep(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    if (!is_bound() || sweep() < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "sweep() has not been bound");
        }
        return NULL;
    }
    Py_RETURN_NONE;
}
