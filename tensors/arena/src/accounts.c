#include "accounts.h"

#include <stdlib.h>

#include "../../../scopes/src/raised.h"
#include "functions.h"
#include "handler.h"
#include "pool.h"
#include "scopes.h"

/* Its reference is never dropped. */
struct account account_of_nobody = {.references = 1, .budget = SIZE_MAX};
struct account_figures account_totals;

static struct account *limited; /* all with a budget, the latest first */
static uint64_t last_serial;

struct account *account_limited(uint64_t serial)
{
    struct account *account = limited;
    while (account != NULL && account->serial != serial) {
        account = account->next_limited;
    }
    return account;
}

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
    account->limits = outer == NULL ? NULL : account_first_limit(outer);
    if (account->limits != NULL) {
        account->limits->references++;
    }
    if (budget != SIZE_MAX) {
        account_totals.budgets++;
        account->serial = ++last_serial;
        account->next_limited = limited;
        limited = account;
    }
    account->plain = account_first_limit(account) == NULL;
    return account;
}

void account_release(struct account *account)
{
    /* A closed account can be the last reference of the one it forwards to, and so on: a loop, for there may be thousands.
     * Each has two references to drop, so that those which are due are kept in a list, through `owner`, unused by then. */
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
            /* Shorten the way by every second account. `next` lives on in the reference taken here until it is dropped. */
            struct account *after = next->forward;
            after->references++;
            account->forward = after;
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
    if (account == tally.account) {
        tally_forget();
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
    account->plain = false;
}

/* ================================================================== the tally */

struct tally tally;

void tally_fold(void)
{
    struct account *account = tally.account;
    size_t more = tally.births - tally.deaths; /* or fewer: these wrap around like what they are added to */
    size_t nbytes = (size_t)(tally.room_then - tally.room);
    account->references += more;
    account->births += tally.births;
    account->live_blocks += more;
    account->live_nbytes += nbytes;
    account_totals.births += tally.births;
    account_totals.live_blocks += more;
    account_totals.live_nbytes += nbytes;
    tally.births = tally.deaths = 0;
    tally.room_then = tally.room;
}

void *tally_raise(void *born)
{
    tally_fold();
    struct account *account = tally.account;
    if (account->live_nbytes > account->peak_nbytes) {
        account->peak_nbytes = account->live_nbytes;
    }
    if (account_totals.live_nbytes > account_totals.peak_nbytes) {
        account_totals.peak_nbytes = account_totals.live_nbytes;
    }
    size_t room = account->peak_nbytes - account->live_nbytes;
    size_t room_in_all = account_totals.peak_nbytes - account_totals.live_nbytes;
    tally.room = tally.room_then = (intptr_t)(room < room_in_all ? room : room_in_all);
    return born;
}

void tally_remember(struct account *account)
{
#ifdef BIRTHS_ARE_TALLIED
    if (tally.changes != NULL) {
        const PyThreadState *thread = _PyThreadState_UncheckedGet();
        tally.account = account;
        tally.thread = thread->id;
        tally.context = thread->context_ver;
        tally.seen = *tally.changes;
    }
#else
    (void)account;
#endif
}

void tally_forget(void)
{
    tally.account = NULL;
    tally.thread = 0;
}

/* ================================================================== the lock */

#if PY_VERSION_HEX < 0x030C0000

FOUND_FAST _Thread_local struct attached_last attached_last;

const PyThreadState *attached_thread_by_check(const PyThreadState *thread)
{
    if (thread != NULL && thread == PyGILState_GetThisThreadState()) {
        attached_last = (struct attached_last){.thread = thread, .id = thread->id};
        return thread;
    }
    /* In a process that has had a subinterpreter this says yes to every thread. */
    return PyGILState_Check() ? thread : NULL;
}

#endif

/* ================================================================== sites */

static PyObject *mark_function, *table;

/* A block is in use while its site is in the table: whoever takes it out, before the block is given back, holds the GIL. */

int sites_bind(PyObject *mark_of)
{
    if (table == NULL && (table = PyDict_New()) == NULL) {
        return -1;
    }
    /* Kept for the life of the process: arrays are born and freed while the interpreter goes down. */
    mark_function = Py_NewRef(mark_of);
    return 0;
}

bool sites_wanted(const struct account *account, size_t nbytes)
{
    if (account->records) {
        return true;
    }
    /* Under a budget, what could be among the largest: at most a thousand or so at once. */
    const struct account *limit = account->budget != SIZE_MAX ? account : account->limits;
    return limit != NULL && nbytes >= limit->budget / 1024;
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

/* Whether the block that a row of the table is about counts for an account or one inside it (NULL: every one does), and its
 * bytes. Not where it was freed a moment ago. */
static bool counts(PyObject *key, const struct account *wanted, size_t *nbytes)
{
    bool result = false;
    if (PyDict_Contains(table, key) == 1) {
        struct block *block = pool_block_at(PyLong_AsVoidPtr(key));
        arena_lock();
        *nbytes = block->nbytes;
        struct account *account = account_now(block_account(block));
        result = wanted == NULL || account == wanted;
        for (struct account *limit = account->limits; limit != NULL && !result; limit = limit->limits) {
            result = limit == wanted;
        }
        arena_unlock();
    }
    return result;
}

PyObject *arena_sites(PyObject *module, PyObject *scope)
{
    (void)module;
    struct account *wanted = NULL;
    if (scope != Py_None) {
        if (!scopes_check(scope)) {
            return NULL;
        }
        wanted = scopes_account(scope, false);
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
        if (counts(key, wanted, &nbytes)) {
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

/* Budgets: what Python counts against them, and asks about a refusal. */

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
    if (!scopes_check(arguments[0])) {
        return NULL;
    }
    if (account_totals.budgets == 0) {
        Py_RETURN_NONE;
    }
    struct account *account = scopes_account(arguments[0], true);
    if (account == NULL) {
        return NULL;
    }
    struct region *doomed = NULL;
    arena_lock();
    struct account *limit = account_refusing(account_now(account), nbytes);
    if (limit != NULL) {
        handler_refuse(limit, nbytes);
        doomed = pool_empty();
    }
    else {
        account_charge(account, nbytes);
    }
    arena_unlock();
    regions_unmap(doomed);
    if (limit != NULL) {
        Py_RETURN_FALSE;
    }
    return Py_NewRef(*scopes_slot(arguments[0], SLOT_ACCOUNT));
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
    arena_lock();
    account_discharge(((struct account_object *)arguments[0])->account, nbytes);
    arena_unlock();
    Py_RETURN_NONE;
}

PyObject *arena_last_refusal(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    struct refusal last = handler_last_refusal();
    arena_lock();
    struct account *limit = last.limit == 0 ? NULL : account_limited(last.limit);
    PyObject *reference = NULL;
    size_t budget = 0;
    if (limit != NULL) {
        reference = scopes_reference_of(limit);
        budget = limit->budget;
    }
    arena_unlock();
    if (limit == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("Nnnn", scopes_scope_of(reference), (Py_ssize_t)budget, (Py_ssize_t)last.charged,
                         (Py_ssize_t)last.nbytes);
}
