#include "scopes.h"

#include <structmember.h>

#include "../../../scopes/src/raised.h"
#include "accounts.h"
#include "functions.h"
#include "handler.h"
#include "pool.h"

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

/* ================================================================== the account of a scope */

/* The account of a scope: made when the first block is born in it, held by its slot, and closed with the scope at the latest. */

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
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.tensors.arena.compiled.Account",
    .tp_doc = "What a scope has in use, as the scope holds it.",
    .tp_basicsize = sizeof(struct account_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)account_dealloc,
};

/* ------------------------------------------------------------------ making it */

/* The outer scope or None, a new reference. */
static PyObject *outer_of(PyObject *scope)
{
    return Py_NewRef(scopes_held(scope, SLOT_OUTER));
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
        PyObject *held = scopes_held(outer, SLOT_ACCOUNT);
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
    PyObject *given = scopes_held(scope, SLOT_BUDGET);
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
    account->records = scopes_held(scope, SLOT_STRICT) == Py_True;
    account->plain = account->plain && !account->records;
    account->owner = held;
    held->account = account;
    PyObject **slot = scopes_slot(scope, SLOT_ACCOUNT);
    arena_lock();
    PyObject *before = *slot;
    bool is_first = before == NULL || before == Py_None;
    if (is_first) {
        *slot = (PyObject *)held;
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
    PyObject *held = scopes_held(scope, SLOT_ACCOUNT);
    if (held != Py_None) {
        return ((struct account_object *)held)->account;
    }
    return make ? make_account(scope) : NULL;
}

/* ------------------------------------------------------------------ back to the scope */

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

/* ================================================================== contexts */

/* Which handler serves a context: what Python asks when scopes are entered and left. */

/* Whether a leak detector wants the arena to serve contexts outside of scopes. */
static bool is_watched;

PyObject *arena_enter(PyObject *module, PyObject *scope)
{
    (void)module;
    if (!scopes_check(scope)) {
        return NULL;
    }
    PyObject *before = NULL;
    if (*scopes_slot(scope, SLOT_ARENA) == Py_True) {
        before = numpy_set_handler(handler_capsule);
        if (before == NULL) {
            return NULL;
        }
        if (before == handler_capsule) {
            Py_CLEAR(before);
        }
        else if (numpy_settle() < 0) {
            Py_DECREF(before);
            return NULL;
        }
    }
    else {
        PyObject *present = numpy_get_handler();
        if (present == NULL) {
            return NULL;
        }
        /* A handler that is not the arena's stays: it is the program's own. */
        bool ours = present == handler_capsule;
        Py_DECREF(present);
        if (ours) {
            before = numpy_set_handler(NULL);
            if (before == NULL) {
                return NULL;
            }
        }
    }
    if (before != NULL) {
        Py_XSETREF(*scopes_slot(scope, SLOT_SERVED), before);
    }
    if (*scopes_slot(scope, SLOT_BUDGET) != Py_None && scopes_account(scope, true) == NULL) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *arena_watch(PyObject *module, PyObject *wanted)
{
    (void)module;
    is_watched = wanted == Py_True;
    Py_RETURN_NONE;
}

PyObject *arena_reset(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PyObject *before = numpy_get_handler();
    if (before == handler_capsule) {
        Py_DECREF(before);
        before = numpy_set_handler(NULL);
    }
    if (before == NULL) {
        return NULL;
    }
    Py_DECREF(before);
    Py_RETURN_NONE;
}

PyObject *arena_leave(PyObject *module, PyObject *scope)
{
    if (!scopes_check(scope)) {
        return NULL;
    }
    PyObject **slot = scopes_slot(scope, SLOT_SERVED);
    PyObject *before = *slot;
    if (before != handler_capsule && is_watched) {
        /* A detector watches the births outside of scopes as well. */
        Py_XSETREF(*slot, Py_NewRef(Py_None));
        Py_RETURN_NONE;
    }
    if (before == NULL || before == Py_None) {
        return arena_reset(module, NULL);
    }
    PyObject *present = numpy_set_handler(before);
    if (present == NULL) {
        return NULL;
    }
    if ((present == handler_capsule) == (before == handler_capsule)) {
        /* Another context than the one that was entered, which may be left yet: here all stays as it was. */
        PyObject *again = numpy_set_handler(present);
        Py_DECREF(present);
        if (again == NULL) {
            return NULL;
        }
        Py_DECREF(again);
        Py_RETURN_NONE;
    }
    *slot = Py_NewRef(Py_None);
    Py_DECREF(before);
    Py_DECREF(present);
    Py_RETURN_NONE;
}

PyObject *arena_swap_handler(PyObject *module, PyObject *wanted)
{
    (void)module;
    if (wanted == Py_None) {
        wanted = handler_capsule;
    }
    else if (!PyCapsule_IsValid(wanted, "mem_handler")) {
        PyErr_SetString(PyExc_TypeError, "swap_handler() takes what it returned, or None for the arena");
        return NULL;
    }
    PyObject *before = numpy_set_handler(wanted);
    if (before == handler_capsule) {
        Py_DECREF(before);
        Py_RETURN_NONE;
    }
    return before;
}

/* Calls a function with its arguments under a handler; what served the context before, which is given up here, does so again. */
static PyObject *call_before(PyObject *before, PyObject *handler, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    PyObject *result = PyObject_Vectorcall(arguments[0], arguments + 1, (size_t)(count - 1), names);
    if (before != handler) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        Py_XDECREF(numpy_set_handler(before));
        PyErr_Restore(type, value, traceback);
    }
    Py_DECREF(before);
    return result;
}

PyObject *arena_served(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    (void)module;
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "served() needs a function");
        return NULL;
    }
    PyObject *before = numpy_set_handler(handler_capsule);
    return before == NULL ? NULL : call_before(before, handler_capsule, arguments, count, names);
}

PyObject *arena_unserved(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    (void)module;
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "unserved() needs a function");
        return NULL;
    }
    PyObject *present = numpy_get_handler();
    if (present == NULL) {
        return NULL;
    }
    if (present != handler_capsule) {
        return call_before(present, present, arguments, count, names);
    }
    Py_DECREF(present);
    PyObject *before = numpy_set_handler(NULL);
    return before == NULL ? NULL : call_before(before, NULL, arguments, count, names);
}

/* ================================================================== owners */

/* Who owns which block, and how much: what Python asks of accounts and of arrays. */

/* The account of a scope or of nobody (None), made if need be. */
static struct account *account_argument(PyObject *scope)
{
    if (scope == Py_None) {
        return &account_of_nobody;
    }
    return scopes_check(scope) ? scopes_account(scope, true) : NULL;
}

PyObject *arena_close_account(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "close_account() takes a scope and its outer scope");
        return NULL;
    }
    if (!scopes_check(arguments[0])) {
        return NULL;
    }
    struct account *account = scopes_account(arguments[0], false);
    if (account == NULL) {
        Py_RETURN_NONE;
    }
    struct account *successor = &account_of_nobody;
    arena_lock();
    bool owns = account->references > 1 || account->elsewhere_nbytes != 0;
    arena_unlock();
    if (owns) {
        successor = account_argument(arguments[1]);
        if (successor == NULL) {
            return NULL;
        }
    }
    arena_lock();
    successor = account_now(successor);
    if (successor != account) {
        account_close(account, successor);
    }
    struct region *doomed = pool_decay();
    arena_unlock();
    regions_unmap(doomed);
    return Py_BuildValue("nn", (Py_ssize_t)account->escaped_blocks, (Py_ssize_t)account->escaped_nbytes);
}

PyObject *arena_figures(PyObject *module, PyObject *scope)
{
    (void)module;
    if (!scopes_check(scope)) {
        return NULL;
    }
    static const struct account none = {.budget = SIZE_MAX};
    const struct account *account = scopes_account(scope, false);
    if (account == NULL) {
        account = &none;
    }
    arena_lock();
    struct account now = *account;
    arena_unlock();
    return Py_BuildValue("nnnKKnnn", (Py_ssize_t)now.live_blocks, (Py_ssize_t)now.live_nbytes, (Py_ssize_t)now.peak_nbytes,
                         (unsigned long long)(now.births - now.misses), (unsigned long long)now.misses,
                         (Py_ssize_t)now.escaped_blocks, (Py_ssize_t)now.escaped_nbytes,
                         (Py_ssize_t)(now.budget == SIZE_MAX ? now.live_nbytes + now.elsewhere_nbytes : now.charged_nbytes));
}

PyObject *arena_live_nbytes(PyObject *module, PyObject *scope)
{
    (void)module;
    if (!scopes_check(scope)) {
        return NULL;
    }
    struct account *account = scopes_account(scope, false);
    arena_lock();
    size_t nbytes = account == NULL ? 0 : account->live_nbytes;
    arena_unlock();
    return PyLong_FromSize_t(nbytes);
}

PyObject *arena_owner(PyObject *module, PyObject *array)
{
    (void)module;
    void *address = arrays_block_of(array);
    if (address == NULL) {
        Py_RETURN_NONE;
    }
    arena_lock();
    PyObject *reference = scopes_reference_of(account_now(block_account(pool_block_at(address))));
    arena_unlock();
    return scopes_scope_of(reference);
}

PyObject *arena_escaped(PyObject *module, PyObject *address)
{
    (void)module;
    void *start = PyLong_AsVoidPtr(address);
    if (start == NULL && PyErr_Occurred()) {
        return NULL;
    }
    if (scopes_log == NULL || !scopes_log->has_block(start)) {
        Py_RETURN_FALSE;
    }
    arena_lock();
    bool is_closed = block_account(pool_block_at(start))->forward != NULL;
    arena_unlock();
    return PyBool_FromLong(is_closed);
}

PyObject *arena_is_served(PyObject *module, PyObject *array)
{
    (void)module;
    return PyBool_FromLong(arrays_block_of(array) != NULL);
}

PyObject *arena_move(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "move() takes an array, the scope that it leaves and the one it goes to");
        return NULL;
    }
    void *address = arrays_block_of(arguments[0]);
    if (address == NULL) {
        Py_RETURN_FALSE;
    }
    struct account *source = &account_of_nobody;
    if (arguments[1] != Py_None) {
        if (!scopes_check(arguments[1])) {
            return NULL;
        }
        source = scopes_account(arguments[1], false);
        if (source == NULL) {
            Py_RETURN_FALSE;
        }
    }
    struct account *target = account_argument(arguments[2]);
    if (target == NULL) {
        return NULL;
    }
    arena_lock();
    bool moved = arrays_move(address, source, account_now(target));
    arena_unlock();
    return PyBool_FromLong(moved);
}

PyObject *arena_block(PyObject *module, PyObject *array)
{
    (void)module;
    PyObject *owner = arrays_owner_of(array);
    return owner == NULL ? Py_NewRef(Py_None) : arrays_storage(owner);
}

PyObject *arena_address(PyObject *module, PyObject *array)
{
    (void)module;
    if (!PyObject_TypeCheck(array, numpy_ndarray)) {
        PyErr_Format(PyExc_TypeError, "expected an ndarray, not a %s", Py_TYPE(array)->tp_name);
        return NULL;
    }
    return PyLong_FromVoidPtr(((struct numpy_array *)array)->data);
}
