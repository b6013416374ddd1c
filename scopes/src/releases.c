#include "releases.h"

#include "raised.h"

/* The resource behind an entry, a new reference, or NULL where it is gone, and where an error is set. That of a tuple is made by
 * Python code. */
static PyObject *resource_of(PyObject *entry)
{
    if (Py_TYPE(entry) == strong_type) {
        PyObject *held = get(entry, STRONG_HELD);
        return held == Py_None ? NULL : Py_NewRef(held);
    }
    if (Py_TYPE(entry) != entry_type) {
        PyObject *resource = PyObject_CallNoArgs(entry);
        if (resource == Py_None) {
            Py_CLEAR(resource);
        }
        return resource;
    }
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *resource;
    if (PyWeakref_GetRef(entry, &resource) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return resource;
#else
    PyObject *resource = PyWeakref_GET_OBJECT(entry);
    return resource == Py_None ? NULL : Py_NewRef(resource);
#endif
}

/* Takes an entry out of LIVE: 1, or 0 where it is not there. -1 with an error set. One step for every other thread. */
static int leave_live(PyObject *entry)
{
    PyObject *key = get(entry, ENTRY_KEY), *taken = NULL;
#if PY_VERSION_HEX >= 0x030D0000
    if (PyDict_Pop(bound[LIVE], key, &taken) < 0) {
        return -1;
    }
#else
    /* The one lookup of a large table is what this costs. */
    if ((taken = _PyDict_Pop(bound[LIVE], key, Py_None)) == NULL) {
        return -1;
    }
#endif
    int there = taken == entry;
    if (!there && taken != NULL && taken != Py_None && PyDict_SetItem(bound[LIVE], key, taken) < 0) {
        there = -1;
    }
    Py_XDECREF(taken);
    return there;
}

/* Puts an entry into DEAD: 1, or 0 where another entry of its resource was released, which is all then. Two threads may each have
 * made one, the second after the first had left LIVE: `identity.track_once` looks into DEAD after it has put its own into LIVE, so
 * that the second one was never in use. -1 with an error set. Runs no Python code. */
static int enter_dead(PyObject *entry, PyObject *resource)
{
    PyObject *key = get(entry, ENTRY_KEY);
    PyObject *there = PyDict_SetDefault(bound[DEAD], key, entry);
    if (there == NULL) {
        return -1;
    }
    if (there == entry) {
        return 1;
    }
    PyObject *other = Py_TYPE(there) == entry_type && Py_TYPE(entry) == entry_type ? resource_of(there) : NULL;
    Py_XDECREF(other);
    if (other == resource) {
        return 0;
    }
    return PyDict_SetItem(bound[DEAD], key, entry) < 0 ? -1 : 1;
}

/* Out of LIVE, into DEAD, out of the list of its owner unless it is `taken` out of that: 1, or 0 where somebody else has released
 * it. One step for every other thread, because no Python code runs. -1 with an error set. */
static int claim(PyObject *entry, PyObject *resource, PyObject *ledger, PyObject *owner, PyObject *taken)
{
    int claimed = leave_live(entry);
    if (claimed > 0 && resource != NULL) {
        claimed = enter_dead(entry, resource);
        if (claimed < 0) {
            /* No memory: it stays what it was. */
            PyObject *error, *value, *traceback;
            PyErr_Fetch(&error, &value, &traceback);
            if (PyDict_SetItem(bound[LIVE], get(entry, ENTRY_KEY), entry) < 0) {
                PyErr_Clear();
            }
            PyErr_Restore(error, value, traceback);
        }
    }
    if (claimed <= 0 || get(entry, ENTRY_UNIT) != Py_None) {
        return claimed;
    }
    if (owner != Py_None && get(owner, SCOPE_ENTRIES) != taken && disown(owner, entry) < 0) {
        return -1;
    }
    count(ledger, owner == Py_None ? DISPOSED_UNSCOPED : DISPOSED_IN_SCOPE);
    return 1;
}

/* Puts the exception that is set into a list, which is made where there is none. -1 without memory. */
static int collect(PyObject **failures)
{
    PyObject *raised = take_raised();
    if (*failures == NULL) {
        *failures = PyList_New(0);
    }
    int failed = *failures == NULL ? -1 : PyList_Append(*failures, raised);
    Py_DECREF(raised);
    return failed;
}

/* What follows on a release that raised, and on that of a composite: `identity.finish_release`, once more where it was
 * interrupted. Gives up the list. */
static PyObject *finish(PyObject *entry, PyObject *resource, PyObject *failures, PyObject *with_members, PyObject *owner,
                        bool lives)
{
    PyObject *result = NULL;
    if (failures != NULL || (failures = PyList_New(0)) != NULL) {
        PyObject *arguments[] = {
            entry, resource == NULL ? Py_None : resource, failures, with_members, owner, lives ? Py_True : Py_False};
        result = PyObject_Vectorcall(bound[FINISH_RELEASE], arguments, 6, NULL);
        if (result == NULL && collect(&failures) == 0) {
            result = PyObject_Vectorcall(bound[FINISH_RELEASE], arguments, 6, NULL);
        }
        Py_DECREF(failures);
    }
    return result;
}

/* None, or what the release raised; NULL with an error set where it has not begun. `taken` is the list, if any, that the caller
 * took the entry out of. */
static PyObject *release_entry(PyObject *entry, PyObject *taken, PyObject *with_members)
{
    PyObject *ledger = ledger_here();
    if (ledger == NULL) {
        return NULL;
    }
    PyObject *resource = resource_of(entry);
    if (resource == NULL && PyErr_Occurred()) {
        Py_DECREF(ledger);
        return NULL;
    }
    bool is_held = Py_TYPE(entry) == strong_type;
    PyObject *owner = Py_NewRef(get(entry, ENTRY_OWNER));
    PyObject *result = NULL, *failures = NULL;
    int claimed = claim(entry, is_held ? NULL : resource, ledger, owner, taken);
    if (claimed == 0) {
        result = Py_NewRef(Py_None);
    }
    else if (claimed > 0) {
        int failed = 0;
        bool lives = false;
        put(entry, ENTRY_OWNER, Py_None);
        if (is_held) {
            put(entry, STRONG_HELD, Py_None);
        }
        if (resource != NULL) {
            if (PyList_GET_SIZE(bound[LISTENERS]) != 0 && tell(bound[LISTENERS], name_disposed, entry, owner) < 0) {
                failed = collect(&failures);
            }
            PyObject *kind = Py_NewRef(get(entry, ENTRY_KIND));
            PyObject *done = PyObject_CallOneArg(get(kind, KIND_RELEASE), resource);
            Py_DECREF(kind);
            if (done == NULL) {
                lives = true;
                failed |= collect(&failures);
            }
            Py_XDECREF(done);
        }
        PyObject *members = get(entry, ENTRY_MEMBERS);
        bool is_whole = PyTuple_CheckExact(members) && PyTuple_GET_SIZE(members) != 0 && with_members == Py_True;
        if (failed < 0) {
            Py_XDECREF(failures);
        }
        else if (failures == NULL && !is_whole) {
            result = Py_NewRef(Py_None);
        }
        else {
            result = finish(entry, resource, failures, with_members, owner, lives);
        }
    }
    Py_DECREF(owner);
    Py_DECREF(ledger);
    Py_XDECREF(resource);
    return result;
}

PyObject *compiled_release(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number < 1 || number > 2 || !is_bound() || !PyObject_TypeCheck(arguments[0], entry_type)) {
        PyErr_SetString(PyExc_TypeError, "release() takes an entry");
        return NULL;
    }
    return release_entry(arguments[0], NULL, number == 2 ? arguments[1] : Py_True);
}

PyObject *compiled_release_newest(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 2 || !is_bound() || !PyDict_Check(arguments[0]) || !PyList_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "release_newest() takes a dict of entries and a list");
        return NULL;
    }
    PyObject *entries = arguments[0];
    while (PyDict_GET_SIZE(entries) != 0) {
        PyObject *item = PyObject_CallMethodNoArgs(entries, name_popitem);
        if (item == NULL) {
            return NULL;
        }
        PyObject *entry = Py_NewRef(PyTuple_GET_ITEM(item, 0));
        Py_DECREF(item);
        PyObject *failure = release_entry(entry, entries, Py_True);
        Py_DECREF(entry);
        if (failure == NULL) {
            return NULL;
        }
        if (failure != Py_None && PyList_Append(arguments[1], failure) < 0) {
            Py_DECREF(failure);
            return NULL;
        }
        Py_DECREF(failure);
    }
    Py_RETURN_NONE;
}
