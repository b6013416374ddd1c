/* The release of resources. Several threads may release one resource at once: whoever takes its
 * entry out of LIVE does the work, and everybody else does nothing. */
#include "scopes.h"

#include "shared/raised.h"

static PyObject *name_disposed, *name_popitem, *name_release;

int releases_make(void)
{
    name_disposed = PyUnicode_InternFromString("disposed");
    name_popitem = PyUnicode_InternFromString("popitem");
    name_release = PyUnicode_InternFromString("release");
    return name_disposed == NULL || name_popitem == NULL || name_release == NULL ? -1 : 0;
}

/* Takes an entry out of LIVE: 1, or 0 if it is not there. -1 with an error set. No other thread
 * runs in between. */
static int leave_live(Entry *entry)
{
    PyObject *key = entry->key, *taken = NULL;
#if PY_VERSION_HEX >= 0x030D0000
    if (PyDict_Pop(live_table, key, &taken) < 0) {
        return -1;
    }
#else
    /* A lookup in a large table is slow, so this makes only one. */
    if ((taken = _PyDict_Pop(live_table, key, Py_None)) == NULL) {
        return -1;
    }
#endif
    int there = taken == (PyObject *)entry;
    if (!there && taken != NULL && taken != Py_None && PyDict_SetItem(live_table, key, taken) < 0) {
        there = -1;
    }
    Py_XDECREF(taken);
    return there;
}

/* Puts an entry into DEAD: 1, or 0 if another entry of the same resource is there already. Two
 * threads may each have made an entry, the second thread after the first entry had left LIVE. The
 * second entry was never in use, because `identity.track_once` looks into DEAD after it has put its
 * entry into LIVE. -1 with an error set. Runs no Python code. */
static int enter_dead(Entry *entry, PyObject *resource)
{
    PyObject *there = PyDict_SetDefault(dead_table, entry->key, (PyObject *)entry);
    if (there == NULL) {
        return -1;
    }
    if (there == (PyObject *)entry) {
        return 1;
    }
    bool are_of_one = !is_anchored((Entry *)there) && !is_anchored(entry);
    PyObject *other = are_of_one ? resource_of((Entry *)there) : NULL;
    Py_XDECREF(other);
    if (other == resource) {
        return 0;
    }
    return PyDict_SetItem(dead_table, entry->key, (PyObject *)entry) < 0 ? -1 : 1;
}

/* Moves an entry from LIVE to DEAD, and takes it out of its owner's entries, unless these are
 * `taken`, which the caller took it out of. Returns 1, or 0 if somebody else has released it. No
 * other thread runs in between, because no Python code does. -1 with an error set. */
static int claim(Entry *entry, PyObject *resource, Ledger *ledger, PyObject *owner, PyObject *taken)
{
    int claimed = leave_live(entry);
    if (claimed > 0 && resource != NULL) {
        claimed = enter_dead(entry, resource);
        if (claimed < 0) {
            /* No memory: the resource stays alive. */
            PyObject *error, *value, *traceback;
            PyErr_Fetch(&error, &value, &traceback);
            if (PyDict_SetItem(live_table, entry->key, (PyObject *)entry) < 0) {
                PyErr_Clear();
            }
            PyErr_Restore(error, value, traceback);
        }
    }
    if (claimed <= 0 || entry->unit != Py_None) {
        return claimed;
    }
    if (owner != Py_None && ((ScopeState *)owner)->entries != taken && disown((ScopeState *)owner, entry) < 0) {
        return -1;
    }
    count_open_birth(entry);
    ledger->counts[owner == Py_None ? DISPOSED_UNSCOPED : DISPOSED_IN_SCOPE]++;
    return 1;
}

/* Moves the exception that is set into a list, which is made if it is NULL. No error is set
 * afterwards, so that the release can go on. -1 without memory: the exception is lost. */
static int collect(PyObject **failures)
{
    PyObject *raised = take_raised();
    if (*failures == NULL) {
        *failures = PyList_New(0);
    }
    int failed = *failures == NULL ? -1 : PyList_Append(*failures, raised);
    if (failed < 0) {
        PyErr_Clear();
    }
    Py_DECREF(raised);
    return failed;
}

/* Finishes a release that raised, and that of a composite: calls `identity.finish_release`, and
 * calls it again if it was interrupted. Takes over the reference to `failures`. */
static PyObject *finish(Entry *entry, PyObject *resource, PyObject *failures, PyObject *with_members, PyObject *owner,
                        bool lives)
{
    PyObject *result = NULL;
    if (failures != NULL || (failures = PyList_New(0)) != NULL) {
        PyObject *arguments[] = {
            (PyObject *)entry,         resource == NULL ? Py_None : resource, failures, with_members, owner,
            lives ? Py_True : Py_False};
        result = PyObject_Vectorcall(finish_release_function, arguments, 6, NULL);
        if (result == NULL) {
            if (collect(&failures) == 0) {
                result = PyObject_Vectorcall(finish_release_function, arguments, 6, NULL);
            }
            else {
                PyErr_NoMemory();
            }
        }
        Py_DECREF(failures);
    }
    return result;
}

/* Records who releases an entry: a scope, or None for nobody. */
static void note_releaser(Entry *entry, PyObject *scope)
{
    PyObject *origin = scope == Py_None ? Py_NewRef(Py_None) : origin_of((ScopeState *)scope);
    if (origin == NULL) {
        /* No memory: errors of later uses do not name the scope. */
        PyErr_Clear();
        return;
    }
    put(&entry->released_by, origin);
    Py_DECREF(origin);
}

/* Releases a resource. Returns None, or the exception that the release raised; NULL with an error
 * set if the release has not begun, and without memory. `taken` is the dict that the caller took
 * the entry out of, or NULL. `by_owner` says that the owner releases it: errors about later uses
 * name that scope. */
static PyObject *release_entry(Entry *entry, PyObject *taken, PyObject *with_members, bool by_owner)
{
    Ledger *ledger = ledger_here();
    if (ledger == NULL) {
        return NULL;
    }
    if (finish_release_function == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "internal error: release() was called before set_callbacks()");
        return NULL;
    }
    PyObject *resource = resource_of(entry);
    if (resource == NULL && PyErr_Occurred()) {
        return NULL;
    }
    bool is_forgotten = Py_TYPE(entry) == &strong_entry_type;
    PyObject *owner = Py_NewRef(entry->owner);
    PyObject *result = NULL, *failures = NULL;
    int claimed = claim(entry, is_forgotten ? NULL : resource, ledger, owner, taken);
    if (claimed == 0) {
        result = Py_NewRef(Py_None);
    }
    else if (claimed > 0) {
        int failed = 0;
        bool lives = false;
        put(&entry->owner, Py_None);
        note_releaser(entry, by_owner ? owner : Py_None);
        stop_holding((PyObject *)entry);
        if (resource != NULL) {
            if (anybody_listens() && tell_listeners(name_disposed, (PyObject *)entry, owner) < 0) {
                failed = collect(&failures);
            }
            PyObject *done = PyObject_CallMethodOneArg(entry->kind, name_release, resource);
            if (done == NULL) {
                lives = true;
                failed |= collect(&failures);
            }
            Py_XDECREF(done);
        }
        bool is_whole = PyTuple_GET_SIZE(entry->members) != 0 && with_members == Py_True;
        if (failures == NULL && !is_whole && !lives) {
            result = Py_NewRef(Py_None);
        }
        else {
            result = finish(entry, resource, failures, with_members, owner, lives);
        }
        if (failed < 0 && result != NULL) {
            /* The release is done, but an exception of it was lost. */
            Py_CLEAR(result);
            PyErr_NoMemory();
        }
    }
    Py_DECREF(owner);
    Py_XDECREF(resource);
    return result;
}

PyObject *compiled_release(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number < 1 || number > 3) {
        PyErr_SetString(PyExc_TypeError, "release() takes an entry, whether its members are released too, "
                                         "and whether its owner does");
        return NULL;
    }
    if (!entry_check(arguments[0], "release")) {
        return NULL;
    }
    return release_entry((Entry *)arguments[0], NULL, number >= 2 ? arguments[1] : Py_True,
                         number == 3 && arguments[2] == Py_True);
}

PyObject *compiled_release_newest(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 2 || !PyDict_Check(arguments[0]) || !PyList_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "release_newest() takes a dict of entries and a list");
        return NULL;
    }
    PyObject *entries = arguments[0];
    while (PyDict_GET_SIZE(entries) != 0) {
        PyObject *item = PyObject_CallMethodNoArgs(entries, name_popitem);
        if (item == NULL) {
            return NULL;
        }
        PyObject *entry = PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 2 ? PyTuple_GET_ITEM(item, 0) : item;
        PyObject *failure =
            entry_check(entry, "release_newest") ? release_entry((Entry *)entry, entries, Py_True, true) : NULL;
        Py_DECREF(item);
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

