#include "bound.h"

PyObject *bound[OBJECTS];
Py_ssize_t offsets[SLOTS];
PyTypeObject *entry_type, *anchored_type, *strong_type, *kind_type, *scope_type, *ledger_type, *usual_scope_type;
PyObject *state_unopened, *state_open, *state_closed, *empty_tuple;
PyObject *name_born, *name_disposed, *name_died, *name_opened, *name_take, *name_popitem, *name_entered, *name_left,
    *name_leaving, *name_keep;
static PyObject *name_ledger, *name_pop;

static PyObject *remembered_ledger;
static uint64_t remembered_thread;

static const char *const object_names[OBJECTS] = {
    [LIVE] = "LIVE",         [DEAD] = "DEAD",         [DEAD_COMPOSITES] = "DEAD_COMPOSITES", [LISTENERS] = "LISTENERS",
    [ANCHORED] = "ANCHORED", [LOCAL] = "LOCAL",       [CURRENT] = "CURRENT", [MEMORY] = "MEMORY",
    [ENTERED] = "ENTERED",   [LEFT] = "LEFT",         [AWAITED] = "AWAITED", [ENTERING] = "ENTERING",
    [RESOLVE] = "resolve",   [SETTLE] = "settle",     [SHARED] = "SHARED",   [PART_DIED] = "part_died",
    [MODULES_SEEN] = "modules_seen",
    [FINISH_RELEASE] = "finish_release",
    [LEAVE_THE_STACK] = "leave_the_stack",
    [EXPLAIN] = "explain",
    [END] = "end",
    [RAISE_WHAT_FAILED] = "raise_what_failed",
};

static const char *const slot_names[SLOTS] = {
    [ENTRY_KEY] = "key",
    [ENTRY_KIND] = "kind",
    [ENTRY_OWNER] = "owner",
    [ENTRY_HOME] = "home",
    [ENTRY_UNIT] = "unit",
    [ENTRY_MEMBERS] = "members",
    [ENTRY_COUNTED] = "counted",
    [ANCHORED_TUPLES] = "_tuples",
    [STRONG_HELD] = "_held",
    [KIND_ANCHOR] = "anchor",
    [KIND_RELEASE] = "release",
    [SCOPE_ACCOUNT] = "_account",
    [SCOPE_ARENA] = "_arena",
    [SCOPE_BELOW] = "_below",
    [SCOPE_DIRECT] = "_direct",
    [SCOPE_ENTRIES] = "_entries",
    [SCOPE_FRAME] = "_frame",
    [SCOPE_OUTER] = "_outer",
    [SCOPE_PARTICULAR] = "_particular",
    [SCOPE_PASSED_OVER] = "_passed_over",
    [SCOPE_SERVED] = "_served",
    [SCOPE_STATE] = "_state",
    [SCOPE_BUDGET] = "budget",
    [SCOPE_GRAPH] = "graph",
    [SCOPE_KEEP_PAGES] = "keep_pages",
    [SCOPE_NAME] = "name",
    [SCOPE_STRICT] = "strict",
    [LEDGER_COMPILED] = "compiled",
    [LEDGER_PERIOD] = "period",
};

bool is_bound(void) { return entry_type != NULL; }

/* What each object must be, so that the paths that use it need not ask. */
static bool fits(enum object which, PyObject *object)
{
    switch (which) {
    case LIVE:
    case DEAD:
    case SHARED:
    case AWAITED:
        return PyDict_CheckExact(object);
    case CURRENT:
        return PyContextVar_CheckExact(object);
    case ENTERING:
        return PyFrozenSet_CheckExact(object);
    case LOCAL:
        return true;
    case RESOLVE:
    case SETTLE:
    case PART_DIED:
    case FINISH_RELEASE:
    case LEAVE_THE_STACK:
    case EXPLAIN:
    case END:
    case RAISE_WHAT_FAILED:
        return PyCallable_Check(object);
    default:
        return PyList_CheckExact(object);
    }
}

static int find_slots(PyTypeObject *type, enum slot first, enum slot last)
{
    for (enum slot slot = first; slot <= last; slot++) {
        if ((offsets[slot] = offset_of_slot(type, slot_names[slot])) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyTypeObject *type_in(PyObject *things, const char *name)
{
    PyObject *type = PyDict_GetItemString(things, name);
    if (type == NULL || !PyType_Check(type)) {
        PyErr_Format(PyExc_TypeError, "bind() wants the type %s", name);
        return NULL;
    }
    return (PyTypeObject *)type;
}

static int make_constants(void)
{
    static const struct {
        PyObject **place;
        const char *text;
    } names[] = {
        {&name_born, "born"},       {&name_disposed, "disposed"}, {&name_died, "died"},       {&name_opened, "opened"},
        {&name_take, "_take"},      {&name_popitem, "popitem"},   {&name_entered, "entered"}, {&name_left, "left"},
        {&name_leaving, "leaving"}, {&name_pop, "pop"},        {&name_keep, "keep"},         {&name_ledger, "ledger"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (*names[i].place == NULL && (*names[i].place = PyUnicode_InternFromString(names[i].text)) == NULL) {
            return -1;
        }
    }
    if (empty_tuple == NULL && (empty_tuple = PyTuple_New(0)) == NULL) {
        return -1;
    }
    /* Small integers are immortal, or at least never freed. */
    if ((state_unopened = PyLong_FromLong(0)) == NULL || (state_open = PyLong_FromLong(1)) == NULL ||
        (state_closed = PyLong_FromLong(2)) == NULL) {
        return -1;
    }
    return 0;
}

int bind_all(PyObject *things)
{
    PyTypeObject *entry = type_in(things, "Entry"), *anchored = NULL, *strong = NULL, *kind = NULL, *scope = NULL, *ledger = NULL;
    if (entry == NULL || (anchored = type_in(things, "AnchoredEntry")) == NULL ||
        (strong = type_in(things, "StrongEntry")) == NULL || (kind = type_in(things, "Kind")) == NULL || (scope = type_in(things, "ScopeView")) == NULL ||
        (ledger = type_in(things, "Ledger")) == NULL || make_constants() < 0) {
        return -1;
    }
    if (!PyType_IsSubtype(entry, &_PyWeakref_RefType) || !PyType_IsSubtype(anchored, entry) ||
        !PyType_IsSubtype(strong, entry)) {
        PyErr_SetString(PyExc_TypeError, "an entry is a weak reference");
        return -1;
    }
    if (find_slots(entry, ENTRY_KEY, ENTRY_COUNTED) < 0 || find_slots(anchored, ANCHORED_TUPLES, ANCHORED_TUPLES) < 0 ||
        find_slots(strong, STRONG_HELD, STRONG_HELD) < 0 ||
        find_slots(kind, KIND_ANCHOR, KIND_RELEASE) < 0 ||
        find_slots(scope, SCOPE_ACCOUNT, SCOPE_STRICT) < 0 ||
        find_slots(ledger, LEDGER_COMPILED, LEDGER_PERIOD) < 0) {
        return -1;
    }
    for (enum object which = 0; which < OBJECTS; which++) {
        PyObject *object = PyDict_GetItemString(things, object_names[which]);
        if (object == NULL || !fits(which, object)) {
            PyErr_Format(PyExc_TypeError, "bind() wants %s", object_names[which]);
            return -1;
        }
    }
    for (enum object which = 0; which < OBJECTS; which++) {
        bound[which] = Py_NewRef(PyDict_GetItemString(things, object_names[which]));
    }
    anchored_type = (PyTypeObject *)Py_NewRef((PyObject *)anchored);
    strong_type = (PyTypeObject *)Py_NewRef((PyObject *)strong);
    kind_type = (PyTypeObject *)Py_NewRef((PyObject *)kind);
    scope_type = (PyTypeObject *)Py_NewRef((PyObject *)scope);
    ledger_type = (PyTypeObject *)Py_NewRef((PyObject *)ledger);
    entry_type = (PyTypeObject *)Py_NewRef((PyObject *)entry);
    return 0;
}

/* ------------------------------------------------------------------ ledgers */

PyObject *ledger_here(void)
{
    uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (thread == remembered_thread && remembered_ledger != NULL) {
        return Py_NewRef(remembered_ledger);
    }
    PyObject *ledger = PyObject_GetAttr(bound[LOCAL], name_ledger);
    if (ledger == NULL) {
        return NULL;
    }
    if (Py_TYPE(ledger) != ledger_type || Py_TYPE(get(ledger, LEDGER_COMPILED)) != &counts_type) {
        PyErr_SetString(PyExc_TypeError, "the ledger of this thread is none");
        Py_DECREF(ledger);
        return NULL;
    }
    PyObject *before = remembered_ledger;
    remembered_ledger = Py_NewRef(ledger);
    remembered_thread = thread;
    Py_XDECREF(before);
    return ledger;
}

void forget_ledger(PyObject *ledger)
{
    if (remembered_ledger == ledger) {
        remembered_thread = 0;
        Py_CLEAR(remembered_ledger);
    }
}

/* ------------------------------------------------------------------ the current scope */

PyObject *top(void)
{
    PyObject *scope;
    if (PyContextVar_Get(bound[CURRENT], Py_None, &scope) < 0) {
        return NULL;
    }
    if (scope != Py_None && !is_scope(scope)) {
        PyErr_Format(PyExc_TypeError, "the current scope is a %s", Py_TYPE(scope)->tp_name);
        Py_DECREF(scope);
        return NULL;
    }
    return scope;
}

PyObject *current(void)
{
    PyObject *scope = top();
    if (scope == NULL) {
        return NULL;
    }
    if (scope != Py_None && get(scope, SCOPE_DIRECT) != Py_True) {
        PyObject *found = PyObject_CallOneArg(bound[RESOLVE], scope);
        Py_DECREF(scope);
        if (found == NULL) {
            return NULL;
        }
        scope = found;
        if (scope != Py_None && !is_scope(scope)) {
            PyErr_Format(PyExc_TypeError, "the current scope is a %s", Py_TYPE(scope)->tp_name);
            Py_DECREF(scope);
            return NULL;
        }
    }
    if (scope == Py_None) {
        Py_DECREF(scope);
        return NULL;
    }
    return scope;
}

/* ------------------------------------------------------------------ the list of a scope */

int own(PyObject *scope, PyObject *entry)
{
    PyObject *entries = get(scope, SCOPE_ENTRIES);
    if (PyDict_CheckExact(entries)) {
        return PyDict_SetItem(entries, entry, Py_None);
    }
    Py_INCREF(entries);
    int failed = PyObject_SetItem(entries, entry, Py_None);
    Py_DECREF(entries);
    return failed;
}

int disown(PyObject *scope, PyObject *entry)
{
    PyObject *entries = get(scope, SCOPE_ENTRIES);
    if (PyDict_CheckExact(entries)) {
#if PY_VERSION_HEX >= 0x030D0000
        return PyDict_Pop(entries, entry, NULL) < 0 ? -1 : 0;
#else
        PyObject *held = _PyDict_Pop(entries, entry, Py_None);
        Py_XDECREF(held);
        return held == NULL ? -1 : 0;
#endif
    }
    Py_INCREF(entries);
    PyObject *popped = PyObject_CallMethodObjArgs(entries, name_pop, entry, Py_None, NULL);
    Py_DECREF(entries);
    Py_XDECREF(popped);
    return popped == NULL ? -1 : 0;
}

/* ------------------------------------------------------------------ listeners */

int tell(PyObject *listeners, PyObject *method, PyObject *first, PyObject *second)
{
    /* As a for statement goes through a list: what is added meanwhile is told as well. */
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(listeners); i++) {
        PyObject *listener = Py_NewRef(PyList_GET_ITEM(listeners, i));
        PyObject *arguments[] = {listener, first, second};
        PyObject *told = method == NULL ? PyObject_CallOneArg(listener, first)
                                        : PyObject_VectorcallMethod(method, arguments, second == NULL ? 2 : 3, NULL);
        Py_DECREF(listener);
        if (told == NULL) {
            return -1;
        }
        Py_DECREF(told);
    }
    return 0;
}

/* ================================================================== the counters of a thread */

static PyObject *values(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    const long long *held = ((Counts *)self)->values;
    return Py_BuildValue("(LLLL)", held[CREATED_IN_SCOPE], held[CREATED_UNSCOPED], held[DISPOSED_IN_SCOPE],
                         held[DISPOSED_UNSCOPED]);
}

static PyObject *clear(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    for (int which = 0; which < COUNTERS; which++) {
        ((Counts *)self)->values[which] = 0;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods_of_counts[] = {
    {"values", values, METH_NOARGS, NULL},
    {"clear", clear, METH_NOARGS, NULL},
    {0},
};

/* Without references to other objects, and zero when it is made. */
PyTypeObject counts_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.scopes.compiled.Counts",
    .tp_basicsize = sizeof(Counts),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = methods_of_counts,
    .tp_new = PyType_GenericNew,
};
