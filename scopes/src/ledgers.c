/* Ledgers: the counters of each thread, such as births, disposals and moves. A thread adds to its
 * own counters without a lock. The sums over all threads are made when somebody asks. */
#include "scopes.h"

#include <structmember.h>

/* Two doubly linked rings: the ledgers of running threads, and the ledgers of ended threads that
 * entries still refer to. */
static Ledger ring = {.previous = &ring, .next = &ring}, ended_ring = {.previous = &ended_ring, .next = &ended_ring};
/* The sums over the threads that have ended. */
static long long retired[COUNTERS];

static PyObject *key_of_holders;

static void enter_ring(Ledger *ledger, Ledger *other)
{
    ledger->previous = other;
    ledger->next = other->next;
    other->next->previous = ledger;
    other->next = ledger;
}

static void leave_ring(Ledger *ledger)
{
    if (ledger->next != NULL) {
        ledger->previous->next = ledger->next;
        ledger->next->previous = ledger->previous;
        ledger->previous = ledger->next = NULL;
    }
}

/* ------------------------------------------------------------------ Ledger */

/* Sets the counters to zero and begins new periods. -1 with an error set, and nothing changed. */
static int clear_counts(Ledger *ledger)
{
    PyObject *period = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    PyObject *unscoped_period = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    if (period == NULL || unscoped_period == NULL) {
        Py_XDECREF(period);
        Py_XDECREF(unscoped_period);
        return -1;
    }
    for (int which = 0; which < COUNTERS; which++) {
        ledger->counts[which] = 0;
    }
    Py_XSETREF(ledger->period, period);
    Py_XSETREF(ledger->unscoped_period, unscoped_period);
    return 0;
}

static Ledger *make_ledger(void)
{
    Ledger *ledger = PyObject_New(Ledger, &ledger_type);
    if (ledger == NULL) {
        return NULL;
    }
    ledger->period = ledger->unscoped_period = NULL;
    ledger->previous = ledger->next = NULL;
    ledger->has_ended = false;
    if (clear_counts(ledger) < 0) {
        Py_DECREF(ledger);
        return NULL;
    }
    enter_ring(ledger, &ring);
    return ledger;
}

static void dealloc_ledger(PyObject *self)
{
    leave_ring((Ledger *)self);
    Py_XDECREF(((Ledger *)self)->period);
    Py_XDECREF(((Ledger *)self)->unscoped_period);
    PyObject_Free(self);
}

static PyObject *tuple_of(const long long *counts)
{
    PyObject *tuple = PyTuple_New(COUNTERS);
    for (int which = 0; tuple != NULL && which < COUNTERS; which++) {
        PyObject *count = PyLong_FromLongLong(counts[which]);
        if (count == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, which, count);
    }
    return tuple;
}

static PyObject *counts(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    long long now[COUNTERS];
    memcpy(now, ((Ledger *)self)->counts, sizeof now);
    return tuple_of(now);
}

static PyObject *clear(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    if (clear_counts((Ledger *)self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *count_birth(PyObject *self, PyObject *arguments, PyObject *options)
{
    static char *names[] = {"in_scope", NULL};
    int in_scope;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "$p:count_birth", names, &in_scope)) {
        return NULL;
    }
    Ledger *ledger = (Ledger *)self;
    ledger->counts[in_scope ? CREATED_IN_SCOPE : CREATED_UNSCOPED]++;
    return Py_NewRef(in_scope ? ledger->period : ledger->unscoped_period);
}

#define COUNTER(NAME, WHICH) {NAME, T_LONGLONG, offsetof(Ledger, counts) + (WHICH) * sizeof(long long), 0, NULL}

static PyMemberDef members_of_ledgers[] = {
    COUNTER("created_in_scope", CREATED_IN_SCOPE),
    COUNTER("created_unscoped", CREATED_UNSCOPED),
    COUNTER("disposed_in_scope", DISPOSED_IN_SCOPE),
    COUNTER("disposed_unscoped", DISPOSED_UNSCOPED),
    COUNTER("attached", ATTACHED),
    COUNTER("detached", DETACHED),
    COUNTER("moved", MOVED),
    COUNTER("graphs_kept", GRAPHS_KEPT),
    COUNTER("escaped", ESCAPED),
    {0},
};

static PyMethodDef methods_of_ledgers[] = {
    {"clear", clear, METH_NOARGS, NULL},
    {"count_birth", (PyCFunction)(void (*)(void))count_birth, METH_VARARGS | METH_KEYWORDS, NULL},
    {"counts", counts, METH_NOARGS, NULL},
    {0},
};

/* Not tracked by the garbage collector: a ledger refers to its two periods only, which refer to
 * nothing. */
PyTypeObject ledger_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.scopes.compiled.Ledger",
    .tp_doc = "The counters of one thread.",
    .tp_basicsize = sizeof(Ledger),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = dealloc_ledger,
    .tp_members = members_of_ledgers,
    .tp_methods = methods_of_ledgers,
};

/* ------------------------------------------------------------------ the ledger of a thread */

/* An object in the dict of a thread state. It dies with the thread, and then adds the thread's
 * counts to `retired`. */
typedef struct {
    PyObject_HEAD
    Ledger *ledger;
    uint64_t thread;
} Holder;

/* The ledger for all threads whose dict is gone already, but whose context and other thread locals
 * are still being freed. It is shared, because a new dict for such a thread would never be freed. */
static Ledger *ledger_of_ends;
/* The id of the thread state of this thread that has lost its dict; 0 for none. */
static _Thread_local uint64_t ended_thread;

/* A cache: the ledger of the thread that asked last, borrowed from its holder, and the id of that
 * thread state. The id of a thread state is never used again. */
static Ledger *remembered_ledger;
static uint64_t remembered_thread;

static uint64_t number_of_this_thread(void) { return PyThreadState_GetID(PyThreadState_Get()); }

/* Runs while a thread ends, or when a forked child drops the threads of its parent. No Python code
 * may run. */
static void dealloc_holder(PyObject *self)
{
    Ledger *ledger = ((Holder *)self)->ledger;
    if (remembered_ledger == ledger) {
        remembered_ledger = NULL;
        remembered_thread = 0;
    }
    if (number_of_this_thread() == ((Holder *)self)->thread) {
        ended_thread = ((Holder *)self)->thread;
    }
    leave_ring(ledger);
    for (int which = 0; which < COUNTERS; which++) {
        retired[which] += ledger->counts[which];
    }
    ledger->has_ended = true;
    enter_ring(ledger, &ended_ring);
    Py_DECREF(ledger);
    PyObject_Free(self);
}

static PyTypeObject holder_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.scopes.compiled.LedgerHolder",
    .tp_basicsize = sizeof(Holder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = dealloc_holder,
};

/* The ledger of the calling thread, made if there is none: borrowed. NULL with an error set. */
static Ledger *find_ledger(uint64_t thread)
{
    if (thread == ended_thread) {
        return ledger_of_ends;
    }
    PyObject *dict = PyThreadState_GetDict();
    if (dict == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    PyObject *held = PyDict_GetItemWithError(dict, key_of_holders);
    if (held != NULL) {
        if (Py_TYPE(held) != &holder_type) {
            PyErr_Format(PyExc_TypeError, "internal error: this thread's counters have type %s, expected %s",
                         Py_TYPE(held)->tp_name, holder_type.tp_name);
            return NULL;
        }
        return ((Holder *)held)->ledger;
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    Ledger *ledger = make_ledger();
    Holder *holder = ledger == NULL ? NULL : PyObject_New(Holder, &holder_type);
    if (holder == NULL) {
        Py_XDECREF(ledger);
        return NULL;
    }
    holder->ledger = ledger;
    holder->thread = thread;
    int failed = PyDict_SetItem(dict, key_of_holders, (PyObject *)holder);
    Py_DECREF(holder);
    return failed < 0 ? NULL : ledger;
}

Ledger *ledger_here(void)
{
    uint64_t thread = number_of_this_thread();
    if (thread != remembered_thread || remembered_ledger == NULL) {
        Ledger *ledger = find_ledger(thread);
        if (ledger == NULL) {
            return NULL;
        }
        remembered_ledger = ledger;
        remembered_thread = thread;
    }
    return remembered_ledger;
}

/* ------------------------------------------------------------------ births that are counted later, or not at all */

/* The counters of the thread on which an entry's resource was born. */
static long long *counts_at_home(const Entry *entry)
{
    Ledger *home = (Ledger *)entry->home;
    return home->has_ended ? retired : home->counts;
}

void take_back_birth(Entry *entry)
{
    if (entry->home == Py_None) {
        /* The entry is still being made. */
        return;
    }
    const Ledger *home = (Ledger *)entry->home;
    bool in_scope = entry->counted == home->period;
    if (in_scope || entry->counted == home->unscoped_period) {
        counts_at_home(entry)[in_scope ? CREATED_IN_SCOPE : CREATED_UNSCOPED]--;
        put(&entry->counted, Py_False);
    }
}

void leave_birth_open(Entry *entry)
{
    take_back_birth(entry);
    if (entry->counted == Py_False) {
        put(&entry->counted, Py_None);
    }
}

void count_open_birth(Entry *entry)
{
    if (is_open_birth(entry) && entry->home != Py_None) {
        counts_at_home(entry)[CREATED_IN_SCOPE]++;
        put(&entry->counted, ((Ledger *)entry->home)->period);
    }
}

/* Calls one of the three functions above for Python. */
static PyObject *call_for(PyObject *entry, const char *name, void (*function)(Entry *entry))
{
    if (!entry_check(entry, name)) {
        return NULL;
    }
    function((Entry *)entry);
    Py_RETURN_NONE;
}

PyObject *compiled_take_back_birth(PyObject *module, PyObject *entry)
{
    (void)module;
    return call_for(entry, "take_back_birth", take_back_birth);
}

PyObject *compiled_leave_birth_open(PyObject *module, PyObject *entry)
{
    (void)module;
    return call_for(entry, "leave_birth_open", leave_birth_open);
}

PyObject *compiled_count_open_birth(PyObject *module, PyObject *entry)
{
    (void)module;
    return call_for(entry, "count_open_birth", count_open_birth);
}

/* ------------------------------------------------------------------ functions of the module */

PyObject *compiled_thread_ledger(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return Py_XNewRef((PyObject *)ledger_here());
}

PyObject *compiled_counts_of_process(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    long long sums[COUNTERS];
    memcpy(sums, retired, sizeof sums);
    for (const Ledger *ledger = ring.next; ledger != &ring; ledger = ledger->next) {
        for (int which = 0; which < COUNTERS; which++) {
            sums[which] += ledger->counts[which];
        }
    }
    return tuple_of(sums);
}

PyObject *compiled_clear_process(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    memset(retired, 0, sizeof retired);
    for (Ledger *ledger = ring.next; ledger != &ring; ledger = ledger->next) {
        if (clear_counts(ledger) < 0) {
            return NULL;
        }
    }
    for (Ledger *ledger = ended_ring.next; ledger != &ended_ring; ledger = ledger->next) {
        if (clear_counts(ledger) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

int ledgers_make(PyObject *module)
{
    key_of_holders = PyUnicode_InternFromString("disposescope.ledger");
    if (key_of_holders == NULL || PyType_Ready(&holder_type) < 0 || PyModule_AddType(module, &ledger_type) < 0 ||
        (ledger_of_ends = make_ledger()) == NULL) {
        return -1;
    }
    return 0;
}
