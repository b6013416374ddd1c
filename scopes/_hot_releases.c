#include "_hot_releases.h"

#include "_raised.h"

/* The resource behind a plain entry, a new reference, or NULL where it is gone. Sets no error. */
static PyObject *resource_of(PyObject *entry)
{
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

/* A plain entry without members; everything else is the business of the Python function. */
static bool is_plain(PyObject *entry)
{
    if (Py_TYPE(entry) != entry_type) {
        return false;
    }
    PyObject *members = get(entry, ENTRY_MEMBERS), *owner = get(entry, ENTRY_OWNER);
    return PyTuple_CheckExact(members) && PyTuple_GET_SIZE(members) == 0 && Py_TYPE(get(entry, ENTRY_KIND)) == kind_type &&
           (owner == Py_None || is_scope(owner));
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

/* Puts an entry into DEAD: 1, or 0 where another entry of its resource was released, which is all then. Why that makes every
 * release one of a kind is said in `_releases.release_in_python`. -1 with an error set. Runs no Python code. */
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
    PyObject *other = Py_TYPE(there) == entry_type ? resource_of(there) : NULL;
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

/* None, or what the release raised; NULL with an error set for what it does not collect. `taken` is the list, if any, that the
 * caller took the entry out of. */
static PyObject *release_plain(PyObject *entry, PyObject *taken)
{
    PyObject *ledger = ledger_here();
    if (ledger == NULL) {
        return NULL;
    }
    PyObject *resource = resource_of(entry);
    PyObject *owner = Py_NewRef(get(entry, ENTRY_OWNER));
    PyObject *result = NULL;
    int claimed = claim(entry, resource, ledger, owner, taken);
    if (claimed == 0) {
        result = Py_NewRef(Py_None);
    }
    else if (claimed > 0) {
        put(entry, ENTRY_OWNER, Py_None);
        result = Py_NewRef(Py_None);
        if (resource != NULL) {
            if (PyList_GET_SIZE(bound[LISTENERS]) != 0 && tell(bound[LISTENERS], name_disposed, entry, owner) < 0) {
                Py_CLEAR(result);
            }
            else {
                PyObject *kind = Py_NewRef(get(entry, ENTRY_KIND));
                PyObject *done = PyObject_CallOneArg(get(kind, KIND_RELEASE), resource);
                Py_DECREF(kind);
                if (done == NULL) {
                    Py_SETREF(result, take_raised());
                }
                Py_XDECREF(done);
            }
        }
    }
    Py_DECREF(owner);
    Py_DECREF(ledger);
    Py_XDECREF(resource);
    return result;
}

PyObject *hot_release(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number < 1 || number > 2 || !is_bound() || !PyObject_TypeCheck(arguments[0], entry_type)) {
        PyErr_SetString(PyExc_TypeError, "release() takes an entry");
        return NULL;
    }
    return is_plain(arguments[0]) ? release_plain(arguments[0], NULL)
                                  : PyObject_Vectorcall(bound[RELEASE], arguments, (size_t)number, NULL);
}

PyObject *hot_release_newest(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
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
        PyObject *failure = Py_TYPE(entry) == entry_type && is_plain(entry) ? release_plain(entry, entries)
                                                                            : hot_release(NULL, &entry, 1);
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
