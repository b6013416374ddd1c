/* Accounts, the accounts of scopes, birth sites of blocks, and budgets: see accounts.h. */
#include "accounts.h"

#include <stdlib.h>

#include "../../../scopes/src/shared/raised.h"
#include "functions.h"
#include "tracked.h"

/* Never freed: it begins with a reference that is never dropped. */
struct account account_of_nobody = {.references = 1, .budget = SIZE_MAX};
struct account_figures account_totals;
size_t passes_open;

static struct account *limited; /* the list of all accounts with a budget, the latest first */
static uint64_t last_serial;

struct account *account_limited(uint64_t serial)
{
    struct account *account = limited;
    while (account != NULL && account->serial != serial) {
        account = account->next_limited;
    }
    return account;
}

void pass_release(struct pass_head *pass)
{
    if (pass != NULL && --pass->references == 0) {
        free(pass);
    }
}

/* Take an account out of the list of accounts with a budget. */
static void forget_limited(const struct account *account)
{
    struct account **place = &limited;
    while (*place != account) {
        place = &(*place)->next_limited;
    }
    *place = account->next_limited;
}

struct account *account_new(size_t budget, struct account *outer)
{
    struct account *account = calloc(1, sizeof *account);
    if (account == NULL) {
        return NULL;
    }
    account->references = 1;
    account->budget = budget;
    account->limits = account_first_limit(outer);
    if (account->limits != NULL) {
        account->limits->references++;
    }
    if (budget != SIZE_MAX) {
        account_totals.budgets++;
        account->serial = ++last_serial;
        account->next_limited = limited;
        limited = account;
    }
    return account;
}

void account_release(struct account *account)
{
    /* An account may hold the last reference to the one it forwards to, and so on, through
     * thousands of accounts: so this is a loop and no recursion. An account has two references to
     * drop, so that accounts to be freed are kept in a list, linked by the field `owner`, which is
     * not used any more. */
    struct account *due = NULL;
    while (account != NULL) {
        if (--account->references == 0) {
            account->owner = due;
            due = account;
        }
        account = NULL;
        while (due != NULL && account == NULL) {
            if (due->forward != NULL) {
                account = due->forward;
                due->forward = NULL;
            }
            else if (due->limits != NULL) {
                account = due->limits;
                due->limits = NULL;
            }
            else {
                struct account *dead = due;
                due = dead->owner;
                if (dead->serial != 0) {
                    forget_limited(dead);
                }
                pass_release(dead->pass);
                free(dead);
            }
        }
    }
}

struct account *account_at_the_end(struct account *account)
{
    while (account->forward != NULL) {
        struct account *next = account->forward;
        if (next->forward != NULL) {
            /* Skip every second account on the way. `account` held the reference to `next`, and
             * drops it here. */
            struct account *after = next->forward;
            after->references++;
            account->forward = after;
            account->keeps = account->keeps && next->keeps;
            account_release(next);
            next = after;
        }
        account = next;
    }
    return account;
}

static void charge_limits(struct account *account, size_t nbytes)
{
    for (struct account *limit = account_first_limit(account); limit != NULL; limit = limit->limits) {
        limit->charged_nbytes += nbytes;
    }
}

static void discharge_limits(struct account *account, size_t nbytes)
{
    for (struct account *limit = account_first_limit(account); limit != NULL; limit = limit->limits) {
        limit->charged_nbytes -= nbytes;
    }
}

void account_resize(struct account *account, size_t before, size_t after)
{
    struct account *owner = account_now(account);
    account_shrink(owner, before);
    account_totals.live_nbytes -= before;
    account_grow(owner, after);
    account_grow_totals(after);
}

void account_move(struct account *source, struct account *target, size_t nbytes)
{
    struct account *owner = account_now(source);
    owner->live_blocks--;
    account_shrink(owner, nbytes);
    target->references++;
    target->live_blocks++;
    account_grow(target, nbytes);
    account_release(source);
}

void account_charge(struct account *account, size_t nbytes)
{
    struct account *owner = account_now(account);
    owner->elsewhere_nbytes += nbytes;
    charge_limits(owner, nbytes);
}

void account_discharge(struct account *account, size_t nbytes)
{
    struct account *owner = account_now(account);
    owner->elsewhere_nbytes -= nbytes;
    discharge_limits(owner, nbytes);
}

void account_close(struct account *account, struct account *successor)
{
    if (account->forward != NULL) {
        return;
    }
    size_t nbytes = account->live_nbytes, elsewhere = account->elsewhere_nbytes;
    account->escaped_blocks = account->live_blocks;
    account->escaped_nbytes = nbytes;
    account_totals.escapes += account->live_blocks;
    if (account->budget != SIZE_MAX) {
        account_totals.budgets--;
    }
    discharge_limits(account, nbytes + elsewhere);
    successor->references++;
    successor->live_blocks += account->live_blocks;
    successor->elsewhere_nbytes += elsewhere;
    charge_limits(successor, elsewhere);
    account_grow(successor, nbytes);
    account->live_blocks = account->live_nbytes = account->elsewhere_nbytes = 0;
    account->forward = successor;
}

/* ================================================================== the account of a scope */

/* The API of the compiled module of scopes. */
static const struct scopes_api *scopes;

static int find_scopes(void)
{
    PyObject *module = PyImport_ImportModule("disposescope.scopes.compiled");
    PyObject *capsule = module == NULL ? NULL : PyObject_GetAttrString(module, "api");
    scopes = capsule == NULL ? NULL : scopes_api_of(capsule);
    Py_XDECREF(capsule);
    Py_XDECREF(module);
    return scopes == NULL ? -1 : 0;
}

ScopeState *scope_argument(PyObject *object)
{
    if (is_scope_of(scopes, object)) {
        return (ScopeState *)object;
    }
    PyErr_Format(PyExc_TypeError, "expected a DisposeScope, not a %s", Py_TYPE(object)->tp_name);
    return NULL;
}

/* ------------------------------------------------------------------ the account object */

/* A Python object around an account. The scope holds it in its field `account`. It holds a
 * reference to the account, and a weak reference to the scope. */
struct account_object {
    PyObject_HEAD
    struct account *account;
    PyObject *scope;
};

static void account_dealloc(struct account_object *self)
{
    struct account *account = self->account;
    if (account != NULL) {
        account->owner = NULL;
        if (account->forward == NULL) {
            /* The scope died open, as a generator's may when the interpreter exits. */
            account_close(account, &account_of_nobody);
        }
        account_release(account);
    }
    Py_XDECREF(self->scope);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject account_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.tensors.arena.compiled.Account",
    .tp_doc = "The blocks and bytes that a scope has in use.",
    .tp_basicsize = sizeof(struct account_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)account_dealloc,
};

/* ------------------------------------------------------------------ making an account */

/* The account to which blocks of the nearest outer scope with an account are charged: borrowed. If
 * there is no such scope, the account of nobody. */
static struct account *account_around(const ScopeState *scope)
{
    PyObject *outer = scope->outer;
    while (outer != Py_None) {
        const ScopeState *around = (const ScopeState *)outer;
        if (around->account != Py_None) {
            return account_now(((struct account_object *)around->account)->account);
        }
        outer = around->outer;
    }
    return &account_of_nobody;
}

/* Make the account of a scope that has none: borrowed from the scope. NULL with an exception. */
static struct account *make_account(ScopeState *scope)
{
    size_t budget = SIZE_MAX;
    if (scope->budget != Py_None) {
        budget = PyLong_AsSize_t(scope->budget);
        if (budget == (size_t)-1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    struct account_object *held = PyObject_New(struct account_object, &account_type);
    if (held == NULL) {
        return NULL;
    }
    held->account = NULL;
    held->scope = PyWeakref_NewRef((PyObject *)scope, NULL);
    if (held->scope == NULL) {
        Py_DECREF(held);
        return NULL;
    }
    if (scope->account != Py_None) {
        /* Making these objects can run the garbage collector, and with it code that makes the
         * scope's account. */
        Py_DECREF(held);
        return ((struct account_object *)scope->account)->account;
    }
    /* The account of outer scopes gives it limits and a pass, if there are any. */
    struct account *outer =
        account_totals.budgets == 0 && passes_open == 0 ? &account_of_nobody : account_around(scope);
    struct account *account = account_new(budget, outer);
    if (account == NULL) {
        Py_DECREF(held);
        PyErr_NoMemory();
        return NULL;
    }
    account->records = scope_is_strict(scope);
    if (pass_is_open(outer->pass)) {
        outer->pass->references++;
        account->pass = outer->pass;
    }
    account->owner = held;
    held->account = account;
    Py_SETREF(scope->account, (PyObject *)held);
    return account;
}

struct account *account_of(ScopeState *scope, bool make)
{
    if (scope->account != Py_None) {
        return ((struct account_object *)scope->account)->account;
    }
    return make ? make_account(scope) : NULL;
}

bool account_of_argument(PyObject *object, bool make, struct account **account)
{
    ScopeState *scope = scope_argument(object);
    *account = scope == NULL ? NULL : account_of(scope, make);
    return *account != NULL || !PyErr_Occurred();
}

/* ------------------------------------------------------------------ from an account to its scope */

PyObject *account_scope(const struct account *account)
{
    PyObject *scope = NULL;
    if (account->owner != NULL) {
        PyObject *reference = ((struct account_object *)account->owner)->scope;
#if PY_VERSION_HEX >= 0x030D0000
        PyWeakref_GetRef(reference, &scope);
#else
        scope = Py_NewRef(PyWeakref_GET_OBJECT(reference));
#endif
    }
    return scope == NULL ? Py_NewRef(Py_None) : scope;
}

/* ------------------------------------------------------------------ the current account */

/* Whether a scope that a generator opened is certainly the current one: the generator runs, and no
 * scope was suspended when it was opened. `resolve`, in Python, finds the current scope in all
 * cases; called at each birth, it would cost a generator of small batches a fifth of its time (see
 * benchmarks/bench_scopes.py). */
static bool runs_plainly(const ScopeState *scope)
{
    if (!PyFrame_Check(scope->frame) || PyTuple_GET_SIZE(scope->suspended) != 0 || !scope_is_open(scope)) {
        return false;
    }
    PyObject *back = (PyObject *)PyFrame_GetBack((PyFrameObject *)scope->frame);
    Py_XDECREF(back);
    return back != NULL;
}

/* The account of the current scope, found the slow way, given the scope in the context variable:
 * borrowed. Keeps an exception that is set. */
static struct account *resolve_account(ScopeState *top)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    struct account *account = NULL;
    PyObject *scope =
        scope_is_direct(top) || runs_plainly(top) ? Py_NewRef((PyObject *)top) : scopes->resolve((PyObject *)top);
    if (scope != NULL && scope != Py_None) {
        account = account_of((ScopeState *)scope, true);
    }
    /* The scope is current, so that somebody else holds it, and it holds the account. */
    Py_XDECREF(scope);
    if (PyErr_Occurred()) {
        /* An interrupt, no memory, or the interpreter shuts down: the block will be unowned. */
        put_off_raised();
    }
    PyErr_Restore(type, value, traceback);
    return account == NULL ? &account_of_nobody : account;
}

struct account *account_current(void)
{
    PyObject *top;
    if (PyContextVar_Get(scopes->current, Py_None, &top) < 0) {
        PyErr_Clear();
        return &account_of_nobody;
    }
    struct account *account = &account_of_nobody;
    if (top != Py_None) {
        ScopeState *scope = (ScopeState *)top;
        account = scope->account != Py_None && scope_is_direct(scope)
                      ? ((struct account_object *)scope->account)->account
                      : resolve_account(scope);
    }
    Py_DECREF(top);
    return account;
}

/* ================================================================== birth sites of blocks */

/* `sites.mark_of`; and the table, a dict from addresses to the marks that it returned. A block is
 * in use while its address is in the table: it is taken out before the block is given back. */
static PyObject *mark_function, *table;

static int make_sites(void)
{
    /* Never freed: arrays are born and freed while the interpreter shuts down. */
    table = PyDict_New();
    PyObject *module = table == NULL ? NULL : PyImport_ImportModule("disposescope.scopes.base.sites");
    mark_function = module == NULL ? NULL : PyObject_GetAttrString(module, "mark_of");
    Py_XDECREF(module);
    return mark_function == NULL ? -1 : 0;
}

bool sites_wanted(const struct account *account, size_t nbytes)
{
    if (account->records) {
        return true;
    }
    /* Under a budget, only blocks of at least 1/1024 of it: they may be among the largest, and at
     * most some thousand of them are in use at once. */
    enum { SMALLEST_SHARE = 1024 };
    const struct account *limit = account->budget != SIZE_MAX ? account : account->limits;
    return limit != NULL && nbytes >= limit->budget / SMALLEST_SHARE;
}

bool sites_record(void *address)
{
    PyObject *type, *value, *traceback;
    bool recorded = false;
    PyErr_Fetch(&type, &value, &traceback);
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *mark = PyObject_CallOneArg(mark_function, frame == NULL ? Py_None : (PyObject *)frame);
    PyObject *key = mark == NULL ? NULL : PyLong_FromVoidPtr(address);
    if (key != NULL) {
        recorded = PyDict_SetItem(table, key, mark) == 0;
    }
    Py_XDECREF(key);
    Py_XDECREF(mark);
    if (PyErr_Occurred()) {
        put_off_raised();
    }
    PyErr_Restore(type, value, traceback);
    return recorded;
}

void sites_forget(void *address)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *key = PyLong_FromVoidPtr(address), *mark = NULL;
    if (key == NULL) {
        PyErr_Clear();
    }
    else {
        mark = Py_XNewRef(PyDict_GetItemWithError(table, key));
        if (PyDict_DelItem(table, key) < 0) {
            PyErr_Clear();
        }
    }
    Py_XDECREF(mark);
    Py_XDECREF(key);
    PyErr_Restore(type, value, traceback);
}

/* Whether a block, given the key of its site, belongs to an account or to an account inside it, and
 * is still in use. Every block belongs to NULL. Sets its bytes. */
static bool belongs_to(PyObject *key, const struct account *wanted, size_t *nbytes)
{
    bool result = false;
    if (PyDict_Contains(table, key) == 1) {
        struct block *block = block_at(PyLong_AsVoidPtr(key));
        *nbytes = block->nbytes;
        struct account *account = account_now(block_account(block));
        result = wanted == NULL || account == wanted;
        for (struct account *limit = account->limits; limit != NULL && !result; limit = limit->limits) {
            result = limit == wanted;
        }
    }
    return result;
}

PyObject *arena_sites(PyObject *module, PyObject *scope)
{
    (void)module;
    struct account *wanted = NULL;
    if (scope != Py_None) {
        if (!account_of_argument(scope, false, &wanted)) {
            return NULL;
        }
        if (wanted == NULL) {
            return PyList_New(0);
        }
    }
    PyObject *copy = PyDict_Copy(table);
    PyObject *rows = copy == NULL ? NULL : PyList_New(0);
    Py_ssize_t position = 0;
    PyObject *key, *mark;
    size_t nbytes;
    while (rows != NULL && PyDict_Next(copy, &position, &key, &mark)) {
        if (belongs_to(key, wanted, &nbytes)) {
            PyObject *row = Py_BuildValue("On", mark, (Py_ssize_t)nbytes);
            if (row == NULL || PyList_Append(rows, row) < 0) {
                Py_CLEAR(rows);
            }
            Py_XDECREF(row);
        }
    }
    Py_XDECREF(copy);
    return rows;
}

/* ================================================================== budgets */

/* A refused allocation. It holds no reference to the account, because it is never freed if its
 * thread ends. */
struct refusal {
    uint64_t limit; /* the serial number of the account whose budget refused; 0 for no refusal */
    size_t nbytes;  /* the bytes requested */
    size_t charged; /* the bytes that were charged to the account then */
};

static _Thread_local struct refusal last_refusal;

void account_refuse(struct account *limit, size_t nbytes)
{
    last_refusal = (struct refusal){.limit = limit->serial, .nbytes = nbytes, .charged = limit->charged_nbytes};
}

PyObject *arena_charge(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "charge() takes a scope and a number of bytes");
        return NULL;
    }
    size_t nbytes = PyLong_AsSize_t(arguments[1]);
    if (nbytes == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    struct account *account;
    if (!account_of_argument(arguments[0], account_totals.budgets != 0, &account)) {
        return NULL;
    }
    if (account_totals.budgets == 0) {
        Py_RETURN_NONE;
    }
    struct account *limit = account_refusing(account_now(account), nbytes);
    if (limit != NULL) {
        account_refuse(limit, nbytes);
        pool_empty();
        Py_RETURN_FALSE;
    }
    account_charge(account, nbytes);
    return Py_NewRef(((ScopeState *)arguments[0])->account);
}

PyObject *arena_discharge(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || Py_TYPE(arguments[0]) != &account_type) {
        PyErr_SetString(PyExc_TypeError, "discharge() takes what charge() returned and a number of bytes");
        return NULL;
    }
    size_t nbytes = PyLong_AsSize_t(arguments[1]);
    if (nbytes == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    account_discharge(((struct account_object *)arguments[0])->account, nbytes);
    Py_RETURN_NONE;
}

PyObject *arena_last_refusal(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    struct refusal last = last_refusal;
    last_refusal.limit = 0;
    struct account *limit = last.limit == 0 ? NULL : account_limited(last.limit);
    if (limit == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("Nnnn", account_scope(limit), (Py_ssize_t)limit->budget, (Py_ssize_t)last.charged,
                         (Py_ssize_t)last.nbytes);
}


int accounts_make(void) { return PyType_Ready(&account_type) < 0 || find_scopes() < 0 || make_sites() < 0 ? -1 : 0; }
