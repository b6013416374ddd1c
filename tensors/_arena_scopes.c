#include "_arena_scopes.h"

#include <structmember.h>

#include "_arena_lock.h"

static PyObject *current_variable, *resolve_function, *listener_list, *tie_types;
static PyTypeObject *scope_type;
struct scopes_places scopes_places;
static Py_ssize_t offsets[SCOPE_SLOTS];
static const char *const slot_names[SCOPE_SLOTS] = {
    [SLOT_ACCOUNT] = "_account", [SLOT_ARENA] = "_arena",   [SLOT_DIRECT] = "_direct",           [SLOT_STATE] = "_state",
    [SLOT_FRAME] = "_frame",     [SLOT_OUTER] = "_outer",   [SLOT_PASSED_OVER] = "_passed_over", [SLOT_SERVED] = "_served",
    [SLOT_BUDGET] = "budget",    [SLOT_STRICT] = "strict",
};

/* ------------------------------------------------------------------ the account object */

static void account_dealloc(struct account_object *self)
{
    struct account *account = self->account;
    if (account != NULL) {
        arena_lock();
        account->owner = NULL;
        if (account->forward == NULL) {
            /* A scope that died open, such as that of a generator at the exit of the interpreter. */
            account_close(account, &account_of_nobody);
        }
        account_release(account);
        arena_unlock();
    }
    Py_XDECREF(self->scope);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject account_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.tensors._arena.Account",
    .tp_doc = "What a scope has in use, as the scope holds it.",
    .tp_basicsize = sizeof(struct account_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)account_dealloc,
};

/* ------------------------------------------------------------------ scopes */

int scopes_bind(PyObject *current, PyTypeObject *type, PyObject *resolve, PyObject *listeners, PyObject *ties)
{
    for (int slot = 0; slot < SCOPE_SLOTS; slot++) {
        PyObject *descriptor = PyObject_GetAttrString((PyObject *)type, slot_names[slot]);
        if (descriptor == NULL || Py_TYPE(descriptor) != &PyMemberDescr_Type) {
            Py_XDECREF(descriptor);
            PyErr_Format(PyExc_TypeError, "%s has no slot %s", type->tp_name, slot_names[slot]);
            return -1;
        }
        offsets[slot] = ((PyMemberDescrObject *)descriptor)->d_member->offset;
        Py_DECREF(descriptor);
    }
    /* Kept for the life of the process: arrays are born and freed while the interpreter goes down. */
    current_variable = Py_NewRef(current);
    resolve_function = Py_NewRef(resolve);
    listener_list = Py_NewRef(listeners);
    tie_types = Py_NewRef(ties);
    scope_type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    scopes_places = (struct scopes_places){.current = current_variable,
                                           .type = scope_type,
                                           .listeners = listener_list,
                                           .account = offsets[SLOT_ACCOUNT],
                                           .direct = offsets[SLOT_DIRECT]};
    return 0;
}

struct birthlog_api *scopes_log;
uint16_t scopes_log_kind, scopes_log_device;

int scopes_bind_log(PyObject *capsule)
{
    if (capsule == Py_None) {
        return 0;
    }
    struct birthlog_api *api = PyCapsule_GetPointer(capsule, BIRTHLOG_CAPSULE);
    PyObject *kind = api == NULL ? NULL : PyUnicode_FromString("numpy.ndarray");
    PyObject *device = kind == NULL ? NULL : PyUnicode_FromString("cpu:0");
    if (device != NULL) {
        scopes_log_kind = api->kind_number(kind);
        scopes_log_device = api->device_number(device);
        /* Its module is held by the interpreter, and blocks may be freed after that: the capsule is kept for ever. */
        Py_INCREF(capsule);
        scopes_log = api;
    }
    Py_XDECREF(kind);
    Py_XDECREF(device);
    return scopes_log == NULL ? -1 : 0;
}

bool scopes_is_scope(PyObject *object) { return scope_type != NULL && Py_TYPE(object) == scope_type; }

bool scopes_check(PyObject *object)
{
    if (scopes_is_scope(object)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "expected a DisposeScope, not a %s", Py_TYPE(object)->tp_name);
    return false;
}

bool scopes_is_tie(PyObject *object)
{
    for (Py_ssize_t i = 0; tie_types != NULL && i < PyTuple_GET_SIZE(tie_types); i++) {
        if ((PyObject *)Py_TYPE(object) == PyTuple_GET_ITEM(tie_types, i)) {
            return true;
        }
    }
    return false;
}

PyObject **scopes_slot(PyObject *scope, enum scope_slot slot) { return (PyObject **)((char *)scope + offsets[slot]); }

static inline PyObject *slot_of(PyObject *scope, enum scope_slot slot)
{
    PyObject *held = scopes_load(scopes_slot(scope, slot));
    return held == NULL ? Py_None : held;
}

/* The outer scope or None, a new reference. */
static PyObject *outer_of(PyObject *scope)
{
#ifdef Py_GIL_DISABLED
    /* Another thread may change it. */
    PyObject *outer = PyObject_GetAttrString(scope, slot_names[SLOT_OUTER]);
    if (outer == NULL) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return outer;
#else
    return Py_NewRef(slot_of(scope, SLOT_OUTER));
#endif
}

/* The account of the nearest scope outside that has one, from which limits come, a reference; NULL where there is none, or no
 * budget anywhere. */
static struct account *limits_from(PyObject *scope)
{
    if (account_totals.budgets == 0) {
        return NULL;
    }
    struct account *found = NULL;
    PyObject *outer = outer_of(scope);
    while (found == NULL && scopes_is_scope(outer)) {
        PyObject *held = slot_of(outer, SLOT_ACCOUNT);
        if (held != Py_None) {
            found = ((struct account_object *)held)->account;
            arena_lock();
            found->references++;
            arena_unlock();
        }
        Py_SETREF(outer, outer_of(outer));
    }
    Py_DECREF(outer);
    return found;
}

static struct account *make_account(PyObject *scope)
{
    size_t budget = SIZE_MAX;
    PyObject *given = slot_of(scope, SLOT_BUDGET);
    if (given != Py_None) {
        budget = PyLong_AsSize_t(given);
        if (budget == (size_t)-1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    struct account_object *held = PyObject_New(struct account_object, &account_type);
    if (held == NULL) {
        return NULL;
    }
    held->account = NULL;
    held->scope = PyWeakref_NewRef(scope, NULL);
    if (held->scope == NULL) {
        Py_DECREF(held);
        return NULL;
    }
    struct account *outer = limits_from(scope);
    arena_lock();
    struct account *account = account_new(budget, outer == NULL ? NULL : account_now(outer));
    account_release(outer);
    arena_unlock();
    if (account == NULL) {
        Py_DECREF(held);
        PyErr_NoMemory();
        return NULL;
    }
    account->records = slot_of(scope, SLOT_STRICT) == Py_True;
    account->plain = account->plain && !account->records;
    account->owner = held;
    held->account = account;
    PyObject **slot = scopes_slot(scope, SLOT_ACCOUNT);
    arena_lock();
    PyObject *before = *slot;
    bool is_first = before == NULL || before == Py_None;
    if (is_first) {
        scopes_store(slot, (PyObject *)held);
    }
    arena_unlock();
    if (!is_first) {
        /* Making these objects can run the garbage collector, and that code which made an account first; or another thread did. */
        Py_DECREF(held);
        return ((struct account_object *)before)->account;
    }
    Py_XDECREF(before);
    return account;
}

struct account *scopes_account(PyObject *scope, bool make)
{
    PyObject *held = slot_of(scope, SLOT_ACCOUNT);
    if (held != Py_None) {
        return ((struct account_object *)held)->account;
    }
    return make ? make_account(scope) : NULL;
}

/* Whether a scope that a generator opened is the current one for certain: its generator runs, and nothing else is to be
 * thought of. `resolve` says the same, and what is current otherwise, in Python. */
static bool runs_plainly(PyObject *scope)
{
#ifdef Py_GIL_DISABLED
    /* Another thread may change what the slots hold: that is looked at in Python. */
    (void)scope;
    return false;
#endif
    PyObject *frame = slot_of(scope, SLOT_FRAME);
    PyObject *passed_over = slot_of(scope, SLOT_PASSED_OVER);
    if (!PyFrame_Check(frame) || !PyTuple_CheckExact(passed_over) || PyTuple_GET_SIZE(passed_over) != 0) {
        return false;
    }
    if (PyLong_AsLong(slot_of(scope, SLOT_STATE)) != 1) {
        return false;
    }
    PyObject *back = (PyObject *)PyFrame_GetBack((PyFrameObject *)frame);
    Py_XDECREF(back);
    return back != NULL;
}

/* The slow way; `top` is borrowed, the result a new reference or NULL for no scope. */
static PyObject *resolved(PyObject *top)
{
    if (runs_plainly(top)) {
        return Py_NewRef(top);
    }
    PyObject *scope = PyObject_CallOneArg(resolve_function, top);
    if (scope == NULL) {
        /* The interpreter is going down, or out of memory: the block is nobody's. */
        PyErr_Clear();
        return NULL;
    }
    if (!scopes_is_scope(scope)) {
        Py_DECREF(scope);
        return NULL;
    }
    return scope;
}

static struct account *account_among_others(PyObject *top)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    struct account *account = NULL;
    PyObject *scope = slot_of(top, SLOT_DIRECT) == Py_True ? Py_NewRef(top) : resolved(top);
    if (scope != NULL) {
        account = scopes_account(scope, true);
        if (account == NULL) {
            PyErr_Clear();
        }
        /* The scope is current, so somebody holds it, and it holds the account. */
        Py_DECREF(scope);
    }
    PyErr_Restore(type, value, traceback);
    return account == NULL ? &account_of_nobody : account;
}

struct account *scopes_current_account(void)
{
    PyObject *scope;
    if (current_variable == NULL || PyContextVar_Get(current_variable, Py_None, &scope) < 0) {
        PyErr_Clear();
        return &account_of_nobody;
    }
    struct account *account = &account_of_nobody;
    if (Py_TYPE(scope) == scope_type) {
        PyObject *held = slot_of(scope, SLOT_ACCOUNT);
        if (held != Py_None && *scopes_slot(scope, SLOT_DIRECT) == Py_True) {
            account = ((struct account_object *)held)->account;
        }
        else {
            account = account_among_others(scope);
        }
    }
    Py_DECREF(scope);
    return account;
}

PyObject *scopes_reference_of(const struct account *account)
{
    struct account_object *held = account->owner;
    return held == NULL ? NULL : Py_NewRef(held->scope);
}

PyObject *scopes_scope_of(PyObject *reference)
{
    PyObject *scope = NULL;
    if (reference != NULL) {
#if PY_VERSION_HEX >= 0x030D0000
        PyWeakref_GetRef(reference, &scope);
#else
        scope = Py_NewRef(PyWeakref_GET_OBJECT(reference));
#endif
        Py_DECREF(reference);
    }
    return scope == NULL ? Py_NewRef(Py_None) : scope;
}
