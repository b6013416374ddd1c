#include "_hot_releases.h"

/* The exception that was just raised, normalised and with its traceback: a new reference. */
static PyObject *take_raised(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
        Py_DECREF(traceback);
    }
    Py_DECREF(type);
    return value;
#endif
}

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

/* Whether another entry of a resource was released: then this one leaves LIVE, which is all. -1 with an error set. Why that
 * makes every release one of a kind is said in `_releases.release_in_python`. Runs no Python code. */
static int was_released(PyObject *entry, PyObject *resource)
{
    PyObject *key = get(entry, ENTRY_KEY);
    PyObject *dead = resource == NULL ? NULL : PyDict_GetItemWithError(bound[DEAD], key);
    if (dead == NULL || dead == entry || Py_TYPE(dead) != entry_type) {
        return PyErr_Occurred() ? -1 : 0;
    }
    PyObject *other = resource_of(dead);
    Py_XDECREF(other);
    if (other != resource) {
        return 0;
    }
    return PyDict_DelItem(bound[LIVE], key) < 0 ? -1 : 1;
}

/* Into DEAD, out of LIVE, out of the list of its owner unless it is `taken` out of that: one step for every other thread,
 * because no Python code runs. -1 with an error set. */
static int claim(PyObject *entry, PyObject *ledger, PyObject *owner, bool referenced, PyObject *taken)
{
    PyObject *key = get(entry, ENTRY_KEY);
    if (referenced && PyDict_SetItem(bound[DEAD], key, entry) < 0) {
        return -1;
    }
    if (PyDict_DelItem(bound[LIVE], key) < 0) {
        return -1;
    }
    if (get(entry, ENTRY_UNIT) != Py_None) {
        return 0;
    }
    if (owner != Py_None && get(owner, SCOPE_ENTRIES) != taken && disown(owner, entry) < 0) {
        return -1;
    }
    count(ledger, owner == Py_None ? DISPOSED_UNSCOPED : DISPOSED_IN_SCOPE);
    return 0;
}

/* None, or what the release raised; NULL with an error set for what it does not collect. `taken` is the list, if any, that the
 * caller took the entry out of. */
static PyObject *release_plain(PyObject *entry, PyObject *taken)
{
    PyObject *ledger = ledger_here();
    if (ledger == NULL) {
        return NULL;
    }
    PyObject *found = PyDict_GetItemWithError(bound[LIVE], get(entry, ENTRY_KEY));
    if (found != entry) {
        Py_DECREF(ledger);
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    PyObject *resource = resource_of(entry);
    int before = was_released(entry, resource);
    if (before != 0) {
        Py_DECREF(ledger);
        Py_XDECREF(resource);
        return before < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *owner = Py_NewRef(get(entry, ENTRY_OWNER));
    PyObject *result = NULL;
    if (claim(entry, ledger, owner, resource != NULL, taken) == 0) {
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
