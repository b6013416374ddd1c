/* Births and deaths: how a resource gets into LIVE and its scope, what happens when it dies by
 * reference count, and tuples that are born with all of their elements. */
#include "scopes.h"

PyObject *died_function, *anchor_died_function;

static PyObject *name_born, *name_died, *name_take;

int births_make(PyObject *module)
{
    died_function = PyObject_GetAttrString(module, "died");
    anchor_died_function = PyObject_GetAttrString(module, "anchor_died");
    name_born = PyUnicode_InternFromString("born");
    name_died = PyUnicode_InternFromString("died");
    name_take = PyUnicode_InternFromString("_take");
    bool is_made = died_function != NULL && anchor_died_function != NULL && name_born != NULL && name_died != NULL &&
                   name_take != NULL;
    return is_made ? 0 : -1;
}

/* Takes `unit` out of DEAD_COMPOSITES if it is the last one there and all of its members are dead.
 * -1 with an error set. */
static int forget_spent(Entry *unit);
/* Takes all composites whose members are dead out of DEAD_COMPOSITES. -1 with an error set. */
static int sweep(void);

/* Whether two entries with the same key belong to the same resource. They may not: the older one
 * may be left over from a dead object whose callback was interrupted. False for tuples. */
static bool are_of_one(PyObject *known, Entry *entry)
{
    if (!is_entry(known) || is_anchored((Entry *)known) || is_anchored(entry)) {
        return false;
    }
    PyObject *known_resource = resource_of((Entry *)known), *resource = resource_of(entry);
    Py_XDECREF(known_resource);
    Py_XDECREF(resource);
    PyErr_Clear();
    return known_resource != NULL && known_resource == resource;
}

/* Puts an entry into LIVE and into the entries of its owner `scope`, which may be NULL, or does
 * neither. Returns 0; 1 if the resource has an entry already; -1 with an error set. Runs no Python
 * code, unless a stale entry is replaced and its death runs some. */
static int record(Entry *entry, ScopeState *scope)
{
    Ledger *ledger = ledger_here();
    if (ledger == NULL) {
        return -1;
    }
    put(&entry->counted, scope == NULL ? ledger->unscoped_period : ledger->period);
    if (scope != NULL) {
        put(&entry->owner, (PyObject *)scope);
    }
    PyObject *known = PyDict_SetDefault(live_table, entry->key, (PyObject *)entry);
    if (known == NULL) {
        return -1;
    }
    if (known != (PyObject *)entry) {
        if (are_of_one(known, entry)) {
            return 1;
        }
        if (PyDict_SetItem(live_table, entry->key, (PyObject *)entry) < 0) {
            return -1;
        }
    }
    if (scope == NULL) {
        ledger->counts[CREATED_UNSCOPED]++;
        return 0;
    }
    if (own(scope, entry) == 0) {
        ledger->counts[CREATED_IN_SCOPE]++;
        if (scope_is_closed(scope)) {
            /* Another thread closed the scope while Python code was looking for it. `_take` gives
             * the entry to the next open scope out. */
            PyObject *taken = PyObject_CallMethodOneArg((PyObject *)scope, name_take, (PyObject *)entry);
            Py_XDECREF(taken);
            return taken == NULL ? -1 : 0;
        }
        return 0;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    put(&entry->owner, Py_None);
    if (PyDict_DelItem(live_table, entry->key) < 0) {
        PyErr_Clear();
    }
    PyErr_Restore(type, value, traceback);
    return -1;
}

/* ------------------------------------------------------------------ births of single resources */

/* Records a birth without calling listeners. `given` is the scope, or NULL for the current one.
 * Sets `is_new` to whether the resource had no entry. Returns the entry, a new reference; NULL with
 * an error set. */
static PyObject *make_born(PyObject *resource, PyObject *kind, PyObject *given, bool *is_new)
{
    /* Looking for the scope can run other code, so it comes first. The rest is one step for every
     * other thread. */
    ScopeState *scope = given == NULL ? current_scope() : (ScopeState *)Py_NewRef(given);
    Entry *entry = NULL;
    if (scope != NULL || !PyErr_Occurred()) {
        entry = make_entry(resource, kind);
        int failed = entry == NULL ? -1 : record(entry, scope);
        *is_new = failed == 0;
        if (failed > 0) {
            /* It was born before, and keeps its entry: a resource has one kind and one owner. */
            PyObject *known = PyDict_GetItemWithError(live_table, entry->key);
            Py_XINCREF(known);
            Py_SETREF(entry, (Entry *)known);
        }
        else if (failed < 0) {
            Py_CLEAR(entry);
        }
    }
    Py_XDECREF(scope);
    return (PyObject *)entry;
}

static bool check_born(PyObject *const *arguments, Py_ssize_t number)
{
    if (number != 2 && number != 3) {
        PyErr_SetString(PyExc_TypeError, "born() takes a resource, its kind, and the scope where that is known");
        return false;
    }
    if (number == 3 && arguments[2] != Py_None && !is_scope(arguments[2])) {
        PyErr_Format(PyExc_TypeError, "internal error: born() was given a %s, expected a DisposeScope",
                     Py_TYPE(arguments[2])->tp_name);
        return false;
    }
    return true;
}

PyObject *compiled_born(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (!check_born(arguments, number)) {
        return NULL;
    }
    bool is_new = false;
    PyObject *scope = number == 3 && arguments[2] != Py_None ? arguments[2] : NULL;
    PyObject *entry = make_born(arguments[0], arguments[1], scope, &is_new);
    if (entry != NULL && is_new && anybody_listens() && tell_listeners(name_born, entry, NULL) < 0) {
        Py_CLEAR(entry);
    }
    return entry;
}

PyObject *born_pending(PyObject *resource, PyObject *kind, PyObject *scope)
{
    bool is_new;
    return make_born(resource, kind, scope, &is_new);
}

/* ------------------------------------------------------------------ deaths */

/* Takes an entry out of a table: 1, or 0 if it is not there. Runs no Python code in between. -1
 * with an error set. */
static int taken_out_of(PyObject *table, Entry *entry)
{
    PyObject *found = PyDict_GetItemWithError(table, entry->key);
    if (found == (PyObject *)entry) {
        return PyDict_DelItem(table, entry->key) < 0 ? -1 : 1;
    }
    return found == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Whether an entry is in LIVE: 1 or 0, -1 with an error set. */
static int is_live(const Entry *entry)
{
    PyObject *found = PyDict_GetItemWithError(live_table, entry->key);
    return found == (const PyObject *)entry ? 1 : PyErr_Occurred() ? -1 : 0;
}

static int die(Entry *entry);

/* Records the death of a tuple after one of its elements has died: a tuple holds its elements, so
 * it must be gone. Does nothing if another tuple with the same anchor, and without that element, is
 * left. -1 with an error set. */
static int tuple_died(Entry *unit)
{
    if (!is_anchored(unit)) {
        return 0;
    }
    int live = is_live(unit);
    if (live <= 0) {
        return live < 0 ? -1 : forget_spent(unit);
    }
    PyObject *tuples = ((AnchoredEntry *)unit)->tuples;
    PyObject *left = PyTuple_GET_SIZE(tuples) == 1 ? NULL : resource_of(unit);
    if (left != NULL || PyErr_Occurred()) {
        Py_XDECREF(left);
        return left == NULL ? -1 : 0;
    }
    return die(unit);
}

/* If tuples are among the composites that share a member, takes the member out of SHARED and
 * returns these composites, a new reference. NULL otherwise, and with an error set. */
static PyObject *sharing_tuples(Entry *member)
{
    PyObject *others = PyDict_GetItemWithError(shared_table, (PyObject *)member);
    bool found = is_entry(member->unit) && is_anchored((Entry *)member->unit);
    if (others == NULL || !PyTuple_CheckExact(others)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; !found && i < PyTuple_GET_SIZE(others); i++) {
        found = Py_TYPE(PyTuple_GET_ITEM(others, i)) == &anchored_entry_type;
    }
    if (!found) {
        return NULL;
    }
    Py_INCREF(others);
    if (PyDict_DelItem(shared_table, (PyObject *)member) < 0) {
        Py_CLEAR(others);
    }
    return others;
}

/* Records the deaths of the tuples that a dead member was an element of. -1 with an error set. */
static int part_died(Entry *member)
{
    PyObject *others = PyDict_GET_SIZE(shared_table) == 0 ? NULL : sharing_tuples(member);
    if (others == NULL && PyErr_Occurred()) {
        return -1;
    }
    PyObject *unit = Py_NewRef(member->unit);
    int failed = is_entry(unit) ? tuple_died((Entry *)unit) : 0;
    Py_DECREF(unit);
    for (Py_ssize_t i = 0; failed == 0 && others != NULL && i < PyTuple_GET_SIZE(others); i++) {
        PyObject *other = PyTuple_GET_ITEM(others, i);
        failed = is_entry(other) ? tuple_died((Entry *)other) : 0;
    }
    Py_XDECREF(others);
    return failed;
}

/* Puts the entry of a dead composite into DEAD_COMPOSITES, for `settle`: 1, or 0 if it is no
 * composite. -1 with an error set. */
static int keep_dead_composite(Entry *entry)
{
    if (PyTuple_GET_SIZE(entry->members) == 0) {
        return 0;
    }
    return PyList_Append(dead_composites, (PyObject *)entry) < 0 ? -1 : 1;
}

/* So many dead composites are collected before they are swept. If half of them are left after a
 * sweep, they would be looked at again and again, so that they are settled instead. */
enum { SWEEP_AT = 512, SETTLE_AT = 256 };

/* Takes a resource that died while it was alive, not released, from its owner, and counts it. -1
 * with an error set. */
static int leave_owner(Entry *entry)
{
    Ledger *ledger = ledger_here();
    if (ledger == NULL) {
        return -1;
    }
    if (entry->unit != Py_None) {
        return keep_dead_composite(entry) < 0 ? -1 : part_died(entry);
    }
    if (entry->owner == Py_None) {
        ledger->counts[DISPOSED_UNSCOPED]++;
    }
    else {
        PyObject *owner = Py_NewRef(entry->owner);
        int failed = disown((ScopeState *)owner, entry);
        Py_DECREF(owner);
        if (failed < 0) {
            return -1;
        }
        /* An open birth was not counted, so its death is not counted either. */
        ledger->counts[DISPOSED_IN_SCOPE] += !is_open_birth(entry);
    }
    int kept = keep_dead_composite(entry);
    if (kept == 0) {
        put(&entry->owner, Py_None);
    }
    if (kept <= 0) {
        return kept;
    }
    if (PyList_GET_SIZE(dead_composites) < SWEEP_AT) {
        return 0;
    }
    if (sweep() < 0) {
        return -1;
    }
    if (PyList_GET_SIZE(dead_composites) >= SETTLE_AT && settle_earlier_function != NULL) {
        PyObject *done = PyObject_CallNoArgs(settle_earlier_function);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    return 0;
}

/* Records the death of a resource, alive or released, and tells listeners. -1 with an error set. */
static int die(Entry *entry)
{
    /* The caller's reference is borrowed from the dying object, and the tables may hold the only
     * other ones. */
    Py_INCREF(entry);
    int alive = taken_out_of(live_table, entry);
    if (alive > 0) {
        alive = leave_owner(entry);
    }
    else if (alive == 0 && (alive = taken_out_of(dead_table, entry)) > 0) {
        forget_members(entry);
    }
    if (alive >= 0 && anybody_listens()) {
        alive = tell_listeners(name_died, (PyObject *)entry, NULL);
    }
    Py_DECREF(entry);
    return alive < 0 ? -1 : 0;
}

PyObject *compiled_died(PyObject *module, PyObject *entry)
{
    (void)module;
    if (!entry_check(entry, "died") || die((Entry *)entry) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *compiled_anchor_died(PyObject *module, PyObject *entry)
{
    (void)module;
    if (!entry_check(entry, "anchor_died")) {
        return NULL;
    }
    int known = is_live((Entry *)entry);
    if (known == 0) {
        PyObject *found = PyDict_GetItemWithError(dead_table, ((Entry *)entry)->key);
        known = found == entry ? 1 : PyErr_Occurred() ? -1 : 0;
    }
    if (known < 0 || (known > 0 && die((Entry *)entry) < 0)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ births of tuples with their elements */

/* A tuple of new entries, in no table yet, for the elements of a composite that are not None. NULL
 * with an error set. */
static PyObject *parts_of(PyObject *elements, PyObject *kind, Entry *unit)
{
    Py_ssize_t given = PyTuple_GET_SIZE(elements), number = 0;
    for (Py_ssize_t i = 0; i < given; i++) {
        number += PyTuple_GET_ITEM(elements, i) != Py_None;
    }
    PyObject *parts = PyTuple_New(number);
    number = 0;
    for (Py_ssize_t i = 0; parts != NULL && i < given; i++) {
        PyObject *element = PyTuple_GET_ITEM(elements, i);
        if (element == Py_None) {
            continue;
        }
        Entry *part = make_entry(element, kind);
        if (part == NULL) {
            Py_CLEAR(parts);
            break;
        }
        put(&part->unit, (PyObject *)unit);
        PyTuple_SET_ITEM(parts, number++, (PyObject *)part);
    }
    return parts;
}

static Entry *entry_at(PyObject *entries, Py_ssize_t at) { return (Entry *)PyTuple_GET_ITEM(entries, at); }

/* Whether LIVE has the key of one of the entries: 1 or 0, -1 with an error set. */
static int any_known(PyObject *entries)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
        int known = PyDict_Contains(live_table, entry_at(entries, i)->key);
        if (known != 0) {
            return known;
        }
    }
    return 0;
}

/* Takes the first `number` entries out of LIVE again. Keeps the error that is set. */
static void forget(PyObject *entries, Py_ssize_t number)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    while (number-- > 0) {
        if (PyDict_DelItem(live_table, entry_at(entries, number)->key) < 0) {
            PyErr_Clear();
        }
    }
    PyErr_Restore(type, value, traceback);
}

/* Puts all entries into LIVE, or none. -1 with an error set. */
static int make_known(PyObject *entries)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
        Entry *entry = entry_at(entries, i);
        if (PyDict_SetItem(live_table, entry->key, (PyObject *)entry) < 0) {
            forget(entries, i);
            return -1;
        }
    }
    return 0;
}

/* Records the birth of a tuple and its elements. Returns the tuple's entry, a new reference; None if
 * an element is known already. NULL with an error set. `arguments` are those of `born_tuple()`. */
static PyObject *make_born_tuple(PyObject *const *arguments, ScopeState *scope)
{
    Entry *unit = make_any_entry(arguments[0], arguments[1]);
    PyObject *parts = unit == NULL ? NULL : parts_of(arguments[0], arguments[2], unit);
    PyObject *born = NULL;
    if (parts != NULL) {
        /* From here on no Python code runs, so that no other thread comes in between. */
        int known = any_known(parts);
        if (known > 0) {
            born = Py_NewRef(Py_None);
        }
        else if (known == 0) {
            put(&unit->members, parts);
            if (make_known(parts) == 0) {
                if (record(unit, scope) == 0) {
                    born = Py_NewRef((PyObject *)unit);
                }
                else {
                    forget(parts, PyTuple_GET_SIZE(parts));
                }
            }
        }
        if (born != (PyObject *)unit) {
            forget_members(unit);
        }
    }
    Py_XDECREF(parts);
    Py_XDECREF(unit);
    return born;
}

PyObject *compiled_born_tuple(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 3 || !PyTuple_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "born_tuple() takes a tuple, its kind, and the kind of its elements");
        return NULL;
    }
    /* Looking for the scope can run other code, so it comes first. */
    ScopeState *scope = current_scope();
    PyObject *unit = scope == NULL && PyErr_Occurred() ? NULL : make_born_tuple(arguments, scope);
    Py_XDECREF(scope);
    if (unit != NULL && unit != Py_None && anybody_listens() && tell_listeners(name_born, unit, NULL) < 0) {
        Py_CLEAR(unit);
    }
    return unit;
}

/* Whether all members of a dead composite are dead, and none of them is a composite: 1 or 0. -1
 * with an error set. */
static int is_spent(const Entry *unit)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(unit->members); i++) {
        PyObject *member = PyTuple_GET_ITEM(unit->members, i);
        if (!is_entry(member) || PyTuple_GET_SIZE(((Entry *)member)->members) != 0) {
            return 0;
        }
        int live = is_live((Entry *)member);
        if (live != 0) {
            return live < 0 ? -1 : 0;
        }
    }
    return 1;
}

static int forget_spent(Entry *unit)
{
    Py_ssize_t last = PyList_GET_SIZE(dead_composites) - 1;
    if (last < 0 || PyList_GET_ITEM(dead_composites, last) != (PyObject *)unit || PyDict_GET_SIZE(shared_table) != 0) {
        return 0;
    }
    int spent = is_spent(unit);
    if (spent <= 0) {
        return spent;
    }
    Py_INCREF(unit);
    int failed = PyList_SetSlice(dead_composites, last, last + 1, NULL);
    if (failed == 0) {
        forget_members(unit);
        put(&unit->owner, Py_None);
    }
    Py_DECREF(unit);
    return failed;
}

static int sweep(void)
{
    if (PyDict_GET_SIZE(shared_table) != 0) {
        return 0;
    }
    /* The list is emptied first, because dropping references below may add dead composites to it.
     * Making a slice could run the garbage collector, and with it code that changes the list. */
    PyObject *taken = PyList_New(0);
    if (taken == NULL || PyList_SetSlice(taken, 0, 0, dead_composites) < 0 ||
        PyList_SetSlice(dead_composites, 0, PyList_GET_SIZE(taken), NULL) < 0) {
        Py_XDECREF(taken);
        return -1;
    }
    int failed = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(taken); i++) {
        PyObject *unit = PyList_GET_ITEM(taken, i);
        int spent = failed < 0 || !is_entry(unit) ? 0 : is_spent((Entry *)unit);
        if (spent > 0) {
            forget_members((Entry *)unit);
            put(&((Entry *)unit)->owner, Py_None);
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
    if (sweep() < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}
