#include "scopes.h"

#include <structmember.h>

#include "../../../scopes/src/raised.h"
#include "lock.h"

static PyObject *current_variable, *resolve_function, *listener_list, *tie_types;
static PyTypeObject *scope_type;
struct scopes_places scopes_places;
static Py_ssize_t offsets[SCOPE_SLOTS];
static const char *const slot_names[SCOPE_SLOTS] = {
    [SLOT_ACCOUNT] = "_account", [SLOT_ARENA] = "_arena",   [SLOT_DIRECT] = "_direct",           [SLOT_STATE] = "_state",
    [SLOT_FRAME] = "_frame",     [SLOT_OUTER] = "_outer",   [SLOT_PASSED_OVER] = "_passed_over", [SLOT_SERVED] = "_served",
    [SLOT_BUDGET] = "budget",    [SLOT_STRICT] = "strict",
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
    tally.hearers = &((PyVarObject *)listeners)->ob_size;
    tie_types = Py_NewRef(ties);
    scope_type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    scopes_places = (struct scopes_places){.current = current_variable,
                                           .type = scope_type,
                                           .listeners = listener_list,
                                           .account = offsets[SLOT_ACCOUNT],
                                           .direct = offsets[SLOT_DIRECT]};
    return 0;
}

int scopes_bind_changes(PyObject *capsule)
{
    arena_lock();
    tally_forget();
    arena_unlock();
    tally.changes = NULL;
    if (capsule != Py_None) {
        tally.changes = PyCapsule_GetPointer(capsule, "disposescope.scopes.compiled.changes");
        return tally.changes == NULL ? -1 : 0;
    }
    return 0;
}

struct birthlog_api *_Atomic scopes_log;
uint16_t scopes_log_kind, scopes_log_device;

int scopes_bind_log(PyObject *capsule)
{
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

/* Whether a scope that a generator opened is the current one for certain: its generator runs, and nothing else is to be
 * thought of. `resolve` says the same, and what is current otherwise, in Python. */
static bool runs_plainly(PyObject *scope)
{
#ifdef Py_GIL_DISABLED
    /* Another thread may change what the slots hold: that is looked at in Python. */
    (void)scope;
    return false;
#endif
    PyObject *frame = scopes_held(scope, SLOT_FRAME);
    PyObject *passed_over = scopes_held(scope, SLOT_PASSED_OVER);
    if (!PyFrame_Check(frame) || !PyTuple_CheckExact(passed_over) || PyTuple_GET_SIZE(passed_over) != 0) {
        return false;
    }
    if (PyLong_AsLong(scopes_held(scope, SLOT_STATE)) != 1) {
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
        /* An interrupt, or the interpreter is going down, or out of memory: the block is nobody's. */
        put_off_raised();
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
    PyObject *scope = scopes_held(top, SLOT_DIRECT) == Py_True ? Py_NewRef(top) : resolved(top);
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
    if (tally_is_current(_PyThreadState_UncheckedGet())) {
        return tally.account;
    }
    PyObject *scope;
    if (current_variable == NULL || PyContextVar_Get(current_variable, Py_None, &scope) < 0) {
        PyErr_Clear();
        return &account_of_nobody;
    }
    struct account *account = &account_of_nobody;
    if (Py_TYPE(scope) == scope_type) {
        PyObject *held = scopes_held(scope, SLOT_ACCOUNT);
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
