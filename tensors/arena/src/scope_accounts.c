/* The account of a scope: made when the first block is born in it, held by its slot, and closed with the scope at the latest. */
#include "scopes.h"

#include "lock.h"

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
