/* Births and deaths: of blocks of the arena, of memory that an object stands for, and of resources
 * by their entries. */
#include "log.h"

#include "../../../scopes/src/shared/raised.h"

#include <math.h>

/* ------------------------------------------------------------- sampling: which births are kept, where not all are */

static double next_interval(struct sampling *sampling)
{
    /* xorshift64*, with a state of our own, so that the program's random numbers stay as they are. */
    sampling->random_state ^= sampling->random_state >> 12;
    sampling->random_state ^= sampling->random_state << 25;
    sampling->random_state ^= sampling->random_state >> 27;
    double uniform = (double)((sampling->random_state * UINT64_C(0x2545F4914F6CDD1D)) >> 11) * 0x1.0p-53;
    return -log1p(-uniform) * sampling->mean_nbytes;
}

/* From one kept birth to the next an exponentially distributed number of bytes is born, which makes
 * sums of birth_weight unbiased:
 * https://github.com/google/tcmalloc/blob/master/docs/sampling.md */
bool births_keep(Log *log, size_t nbytes)
{
    if (!log->sampling.is_on) {
        return true;
    }
    log->sampling.next_nbytes -= (double)nbytes;
    if (log->sampling.next_nbytes > 0) {
        return false;
    }
    log->sampling.next_nbytes = next_interval(&log->sampling);
    return true;
}

void births_sample(Log *log, uint64_t nbytes)
{
    struct sampling *sampling = &log->sampling;
    sampling->is_on = nbytes != 0;
    if (sampling->is_on) {
        if (sampling->random_state == 0) {
            sampling->random_state = (uint64_t)(log->made_at * 1e9) | 1;
        }
        sampling->mean_nbytes = (double)nbytes;
        sampling->next_nbytes = next_interval(sampling);
    }
}

/* --------------------------------------------------------------- the births of what is alive; runs no Python code */

static uint32_t hash_of(const void *key)
{
    return hash_folded((uint64_t)(uintptr_t)key * UINT64_C(0x9E3779B97F4A7C15));
}

static uint32_t position_of(const struct births *births, const void *key)
{
    struct hash_search search = hash_search(&births->index, hash_of(key));
    uint32_t at = hash_next(&births->index, &search);
    while (at != NOT_FOUND && births->all[at].key != key) {
        at = hash_next(&births->index, &search);
    }
    return at;
}

struct birth *birth_of(const Log *log, const void *key)
{
    uint32_t at = position_of(&log->births, key);
    return at == NOT_FOUND ? NULL : &log->births.all[at];
}

/* Take out the birth of a key, with the reference that it owns; returns whether there was one. The
 * last birth of the array moves to its position. */
static bool take_out(struct births *births, const void *key, struct birth *birth)
{
    uint32_t at = position_of(births, key);
    if (at == NOT_FOUND) {
        return false;
    }
    *birth = births->all[at];
    hash_remove(&births->index, hash_of(key), at);
    uint32_t last = --births->count;
    if (at != last) {
        births->all[at] = births->all[last];
        hash_move(&births->index, hash_of(births->all[at].key), last, at);
    }
    return true;
}

/* Put in a birth with a key that no other birth has; -1 where there is no memory. */
static int put_in(struct births *births, const struct birth *birth)
{
    struct birth *all = array_grown(births->all, births->count, &births->room, sizeof *all);
    if (all == NULL) {
        return -1;
    }
    births->all = all;
    if (hash_add(&births->index, hash_of(birth->key), births->count) < 0) {
        return -1;
    }
    all[births->count++] = *birth;
    return 0;
}

/* Release the key of a birth that was taken out, where it is an object. May run Python code. */
static void release_key(const struct birth *birth)
{
    if (birth->flags & (BIRTH_OF_ENTRY | BIRTH_OF_MEMORY)) {
        Py_DECREF((PyObject *)birth->key);
    }
}

/* Record that what was born with a key is gone; does nothing where no such birth is known. May run
 * Python code, unless the key is the address of a block. */
static void forget(Log *log, const void *key)
{
    struct birth birth;
    if (take_out(&log->births, key, &birth)) {
        site_count(log, &birth, -1);
        release_key(&birth);
    }
}

/* Change the bytes of a birth, also in the counts of its site. */
static void resize(Log *log, struct birth *birth, size_t nbytes)
{
    site_count(log, birth, -1);
    birth->nbytes = nbytes < NBYTES_AT_MOST ? nbytes : NBYTES_AT_MOST;
    site_count(log, birth, 1);
}

/* ------------------------------------------------------------------ looks while the program runs */

enum {
    FIRST_LOOK = 6,                 /* after so many births */
    MANY_BIRTHS = 16384,            /* from here on births have to double until the next look: looks take longer */
    NBYTES_BETWEEN_LOOKS = 8 << 20, /* so many bytes, and a quarter of what lives, are between two looks by bytes */
};

static void ask_for_look(Log *log);

/* Set at how many live bytes of a device the next look is due. It never sinks, because it counts from
 * the most live bytes at any look before. */
static void wait_for_bytes(Log *log)
{
    int64_t most = 0;
    for (int i = 0; i < DEVICES; i++) {
        most = log->sites.live_nbytes[i] > most ? log->sites.live_nbytes[i] : most;
    }
    int64_t next = most + most / 4 + NBYTES_BETWEEN_LOOKS;
    log->looks.next_nbytes = next > log->looks.next_nbytes ? next : log->looks.next_nbytes;
    log->looks.has_grown = false;
}

/* Call a function that looks. -1 with an exception. */
static int run_look(Log *log, PyObject *look)
{
    uint64_t seen = log->last_birth - log->looks.after;
    log->looks.is_running = true;
    Py_INCREF(look);
    PyObject *looked = PyObject_CallOneArg(look, log->looks.has_grown ? Py_True : Py_False);
    Py_DECREF(look);
    /* A function that could not look here is called again at the next birth. */
    bool is_done = looked != NULL && looked != Py_False;
    while (is_done && log->looks.next <= seen) {
        log->looks.next += log->looks.next < MANY_BIRTHS ? log->looks.next / 4 : log->looks.next;
    }
    log->looks.is_running = log->looks.is_due = log->looks.is_woken = false;
    Py_XDECREF(looked);
    if (is_done) {
        if (log->looks.has_grown || looked == Py_True) {
            wait_for_bytes(log);
        }
        /* Other threads may have made births during the call, and there may be no later birth at
         * which the next look would be asked for. */
        ask_for_look(log);
    }
    return looked == NULL ? -1 : 0;
}

/* Called by the interpreter between two instructions of the main thread. */
static int look_now(void *given)
{
    Log *log = given;
    if (!log->looks.is_due || log->looks.is_running || log->looks.look == NULL) {
        log->looks.is_due = log->looks.is_running;
        return 0;
    }
    /* Python 3.11 waits for ever at the start of a traced function that is called from here while
     * another call is pending. */
    PyThreadState *thread = PyThreadState_Get();
    PyThreadState_EnterTracing(thread);
    int result = run_look(log, log->looks.look);
    PyThreadState_LeaveTracing(thread);
    return result;
}

int births_look_here(Log *log, PyObject *look)
{
    log->looks.is_woken = false;
    return !log->looks.is_due || log->looks.is_running ? 0 : run_look(log, look);
}

/* Ask for a look at the log where one is due. Runs no Python code. */
static void ask_for_look(Log *log)
{
    bool is_wanted = log->looks.has_grown || log->last_birth - log->looks.after >= log->looks.next;
    if (log->looks.look == NULL || !is_wanted || log->looks.is_running) {
        return;
    }
    if (!log->looks.is_due) {
        log->looks.is_due = Py_AddPendingCall(look_now, log) == 0;
    }
    else if (log->looks.wake != NULL && !log->looks.is_woken && PyThread_get_thread_ident() != log->looks.main) {
        log->looks.is_woken = true;
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *done = PyObject_CallNoArgs(log->looks.wake);
        Py_XDECREF(done);
        /* This drops the error of a lock that nobody holds: its thread is awake. */
        PyErr_Restore(type, value, traceback);
    }
}

void births_look(Log *log, PyObject *look)
{
    log->looks.after = log->last_birth;
    log->looks.next = FIRST_LOOK;
    log->looks.next_nbytes = 0;
    log->looks.main = PyThread_get_thread_ident();
    wait_for_bytes(log);
    /* A fork loses the call that its parent asked the interpreter for. */
    log->looks.is_due = log->looks.is_running = log->looks.is_woken = false;
    Py_XINCREF(look);
    Py_XSETREF(log->looks.look, look);
}

void births_wake(Log *log, PyObject *wake)
{
    log->looks.is_woken = false;
    Py_XINCREF(wake);
    Py_XSETREF(log->looks.wake, wake);
}

PyObject *births_count_elsewhere(Log *log, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "count_elsewhere() takes an address and a bool");
        return NULL;
    }
    void *key = PyLong_AsVoidPtr(arguments[0]);
    if (key == NULL && PyErr_Occurred()) {
        return NULL;
    }
    struct birth *birth = birth_of(log, key);
    if (birth != NULL) {
        site_count_elsewhere(log, birth, arguments[1] == Py_True);
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ a birth */

/* Record a birth; an older one with the same key is forgotten. -1 where there is no memory. */
static int record(Log *log, const struct birth *birth)
{
    forget(log, birth->key);
    if (put_in(&log->births, birth) < 0) {
        return -1;
    }
    if (birth->flags & (BIRTH_OF_ENTRY | BIRTH_OF_MEMORY)) {
        Py_INCREF((PyObject *)birth->key);
    }
    site_count(log, birth, 1);
    site_count_birth(log, birth);
    sites_birth(log);
    ask_for_look(log);
    return 0;
}

/* A birth that happens now. Runs no Python code: the caller has found site and scope before, which
 * may run some. */
static struct birth new_birth(Log *log, void *key, unsigned flags, size_t nbytes, uint32_t site, uint16_t scope)
{
    double at_ms = (seconds_now() - log->made_at) * 1000;
    return (struct birth){
        .key = key,
        .nbytes = nbytes < NBYTES_AT_MOST ? nbytes : NBYTES_AT_MOST,
        .flags = flags | (log->sampling.is_on ? BIRTH_SAMPLED : 0) | (nbytes <= SCALAR_NBYTES ? BIRTH_SCALAR : 0),
        .scope = scope,
        .number = ++log->last_birth,
        .site = site,
        .closings = log->closings,
        .at_ms = at_ms < (double)UINT32_MAX ? (uint32_t)at_ms : UINT32_MAX,
    };
}

void births_clear(Log *log)
{
    struct births gone = log->births;
    log->births = (struct births){0};
    for (uint32_t i = 0; i < gone.count; i++) {
        release_key(&gone.all[i]);
    }
    free(gone.all);
    free(gone.index.slots);
}

/* ------------------------------------------------------------------ what the log knows of kinds */

/* The slot of a kind, or the first unused slot; NULL where the kind has none and all are used. */
static struct kind *kind_slot(Log *log, PyObject *kind)
{
    for (int i = 0; i < log->kinds_count; i++) {
        if (log->kinds[i].kind == kind) {
            return &log->kinds[i];
        }
    }
    return log->kinds_count == KINDS_AT_MOST ? NULL : &log->kinds[log->kinds_count];
}

static void keep_kind(Log *log, struct kind *slot, const struct kind *kind)
{
    struct kind before = *slot;
    log->kinds_count += before.kind == NULL;
    *slot = *kind;
    Py_INCREF(kind->kind);
    Py_INCREF(kind->weigh);
    Py_INCREF(kind->memory);
    Py_XDECREF(before.kind);
    Py_XDECREF(before.weigh);
    Py_XDECREF(before.memory);
}

PyObject *births_describe_kind(Log *log, PyObject *arguments)
{
    PyObject *name, *device;
    int is_backed;
    struct kind kind;
    if (!PyArg_ParseTuple(arguments, "OUOOUp:describe_kind", &kind.kind, &name, &kind.weigh, &kind.memory, &device,
                          &is_backed)) {
        return NULL;
    }
    kind.name = names_number(&log->kind_names, name);
    kind.device = names_number(&log->devices, device);
    kind.is_backed = is_backed;
    struct kind *slot = kind_slot(log, kind.kind);
    if (slot == NULL) {
        PyErr_Format(PyExc_RuntimeError, "internal error: the log of births has room for %d kinds, and %R is one more",
                     KINDS_AT_MOST, name);
        return NULL;
    }
    keep_kind(log, slot, &kind);
    Py_RETURN_NONE;
}

/* Get what is known of a kind, which is asked for its name where nobody described it; -1 with an
 * exception. `found` gets borrowed references. */
static int find_kind(Log *log, PyObject *kind, struct kind *found)
{
    struct kind *slot = kind_slot(log, kind);
    if (slot != NULL && slot->kind == kind) {
        *found = *slot;
        return 0;
    }
    PyObject *name = PyObject_GetAttrString(kind, "name");
    PyObject *is_composite = name == NULL ? NULL : PyObject_GetAttrString(kind, "is_composite");
    int failed = is_composite == NULL ? -1 : 0;
    if (!failed) {
        /* The bytes of a composite are those of its members, whose births count them. */
        *found = (struct kind){.kind = kind,
                               .weigh = Py_None,
                               .memory = Py_None,
                               .name = names_number(&log->kind_names, name),
                               .is_backed = is_composite == Py_True};
        slot = kind_slot(log, kind);
        if (slot != NULL && slot->kind == NULL) {
            keep_kind(log, slot, found);
        }
    }
    Py_XDECREF(name);
    Py_XDECREF(is_composite);
    return failed;
}

/* The bytes of the storages of a resource, and its device; -1 with an exception. */
static int measure(Log *log, PyObject *entry, size_t *nbytes, uint16_t *device)
{
    PyObject *storages = PyDict_New();
    PyObject *none = storages == NULL ? NULL : PyObject_CallFunctionObjArgs(log->storages_of, entry, storages, NULL);
    PyObject *name = none == NULL ? NULL : PyObject_CallOneArg(log->device_of_entry, entry);
    PyObject *sizes = name == NULL ? NULL : PyDict_Values(storages);
    *nbytes = 0;
    for (Py_ssize_t i = 0; sizes != NULL && i < PyList_GET_SIZE(sizes); i++) {
        size_t size = PyLong_AsSize_t(PyList_GET_ITEM(sizes, i));
        if (size == (size_t)-1 && PyErr_Occurred()) {
            Py_CLEAR(sizes);
            break;
        }
        *nbytes += size;
    }
    int failed = sizes == NULL ? -1 : 0;
    if (!failed) {
        *device = names_number(&log->devices, name);
    }
    Py_XDECREF(sizes);
    Py_XDECREF(name);
    Py_XDECREF(none);
    Py_XDECREF(storages);
    return failed;
}

/* ------------------------------------------------------------------ memory that an object stands for */

/* Compared and hashed by identity: other weak references ask what they refer to. */
PyTypeObject memory_reference_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.leaks.births.compiled.MemoryReference",
    .tp_doc = "A weak reference to what stands for memory whose birth is known.",
    .tp_basicsize = sizeof(PyWeakReference),
    .tp_flags = Py_TPFLAGS_DEFAULT,
};

static PyObject *memory_died(PyObject *log, PyObject *reference)
{
    forget((Log *)log, reference);
    Py_RETURN_NONE;
}

static PyMethodDef memory_died_definition = {"memory_died", memory_died, METH_O, NULL};

int births_make(Log *log)
{
    memory_reference_type.tp_base = &_PyWeakref_RefType;
    memory_reference_type.tp_hash = PyBaseObject_Type.tp_hash;
    memory_reference_type.tp_richcompare = PyBaseObject_Type.tp_richcompare;
    log->memory_died = PyCFunction_New(&memory_died_definition, (PyObject *)log);
    return log->memory_died == NULL ? -1 : PyType_Ready(&memory_reference_type);
}

/* A new weak reference to what stands for memory, or NULL with an exception. May run the garbage
 * collector. */
static PyObject *make_memory_reference(const Log *log, PyObject *object)
{
    PyObject *arguments = PyTuple_Pack(2, object, log->memory_died);
    if (arguments == NULL) {
        return NULL;
    }
    PyObject *reference = _PyWeakref_RefType.tp_new(&memory_reference_type, arguments, NULL);
    Py_DECREF(arguments);
    if (reference != NULL && !PyObject_IS_GC(object)) {
        /* It cannot be part of a cycle: it refers only to its callback, which refers to no garbage.
         * So the collector need not visit it. Where `object` itself is tracked the reference has to
         * stay tracked: the collector moves the weak references to what it finds in a garbage cycle
         * between its lists. */
        PyObject_GC_UnTrack(reference);
    }
    return reference;
}

struct birth *birth_of_memory(const Log *log, PyObject *object)
{
    struct birth *birth = NULL;
    if (PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) {
        PyWeakReference *found = (PyWeakReference *)*PyObject_GET_WEAKREFS_LISTPTR(object);
        for (; found != NULL && birth == NULL; found = found->wr_next) {
            birth = Py_TYPE(found) == &memory_reference_type ? birth_of(log, found) : NULL;
        }
    }
    return birth;
}

static bool is_reported(const struct birth *birth) { return birth != NULL && !(birth->flags & BIRTH_UNCOUNTED); }

/* Record the birth of the memory that `object` stands for. With NO_SITE the memory is known from now
 * on, and no report shows it. Does nothing where the memory is known, or where the log was cleared
 * after `clearings` was read (the number of the site is void then). -1 with an exception. */
static int record_memory(Log *log, PyObject *object, uint64_t clearings, size_t nbytes, uint32_t site, uint16_t scope)
{
    PyObject *reference = make_memory_reference(log, object);
    if (reference == NULL) {
        return -1;
    }
    int failed = 0;
    if (log->clearings == clearings && birth_of_memory(log, object) == NULL) {
        struct birth birth = {.key = reference, .flags = BIRTH_OF_MEMORY | BIRTH_UNCOUNTED};
        if (site != NO_SITE) {
            birth = new_birth(log, reference, BIRTH_OF_MEMORY, nbytes, site, scope);
        }
        failed = record(log, &birth);
    }
    Py_DECREF(reference);
    if (failed) {
        PyErr_NoMemory();
    }
    return failed;
}

int memory_exclude(Log *log, PyObject *object)
{
    if (log->is_clearing || birth_of_memory(log, object) != NULL) {
        return 0;
    }
    return record_memory(log, object, log->clearings, 0, NO_SITE, NO_NUMBER);
}

int memory_born(Log *log, PyObject *object, PyObject *op, size_t nbytes, uint16_t kind, uint16_t device)
{
    if (!log_records(log) || birth_of_memory(log, object) != NULL) {
        return 0;
    }
    uint64_t clearings = log->clearings;
    uint16_t scope = scope_number_here(log);
    uint32_t site = site_here(log, op, kind, device);
    return record_memory(log, object, clearings, nbytes, site, scope);
}

PyObject *births_record_memory(Log *log, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "record_memory() takes an object, what was called, bytes, kind and device");
        return NULL;
    }
    size_t nbytes = PyLong_AsSize_t(arguments[2]);
    if (nbytes == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    if (birth_of_memory(log, arguments[0]) == NULL && log->is_open && births_keep(log, nbytes) &&
        memory_born(log, arguments[0], arguments[1] == Py_None ? NULL : arguments[1], nbytes,
                    names_number(&log->kind_names, arguments[3]), names_number(&log->devices, arguments[4])) < 0) {
        return NULL;
    }
    return PyBool_FromLong(birth_of_memory(log, arguments[0]) != NULL);
}

PyObject *births_record_owner(Log *log, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError,
                        "record_owner() takes an object, what was called, kind, device and a number of frames");
        return NULL;
    }
    long frames = PyLong_AsLong(arguments[4]);
    if (frames < 0 || frames > INT32_MAX) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "record_owner() takes a number of frames from 0 on, not %ld", frames);
        }
        return NULL;
    }
    /* Owners are few, so all of them are kept, also where births are sampled. */
    origin_leave_out((uint32_t)frames);
    int failed = memory_born(log, arguments[0], arguments[1] == Py_None ? NULL : arguments[1], 0,
                             names_number(&log->kind_names, arguments[2]), names_number(&log->devices, arguments[3]));
    origin_leave_out(0);
    return failed ? NULL : PyBool_FromLong(birth_of_memory(log, arguments[0]) != NULL);
}

PyObject *births_exclude(Log *log, PyObject *object)
{
    struct birth *birth = birth_of_memory(log, object);
    if (!is_reported(birth)) {
        Py_RETURN_FALSE;
    }
    site_count(log, birth, -1);
    birth->flags |= BIRTH_UNCOUNTED;
    Py_RETURN_TRUE;
}

/* ------------------------------------------------------------------ blocks of the arena */

bool block_born(Log *log, void *address, size_t nbytes, uint16_t kind, uint16_t device)
{
    if (!log_records(log) || !births_keep(log, nbytes)) {
        return false;
    }
    uint64_t clearings = log->clearings;
    uint16_t scope = scope_number_here(log);
    uint32_t site = site_here(log, NULL, kind, device);
    if (site == NO_SITE || log->clearings != clearings) {
        return false;
    }
    struct birth birth = new_birth(log, address, 0, nbytes, site, scope);
    return record(log, &birth) == 0;
}

void block_died(Log *log, void *address) { forget(log, address); }

void block_moved(Log *log, void *before, void *after, size_t nbytes)
{
    struct birth birth;
    if (take_out(&log->births, before, &birth)) {
        resize(log, &birth, nbytes);
        birth.key = after;
        if (put_in(&log->births, &birth) < 0) {
            site_count(log, &birth, -1);
        }
    }
}

/* ------------------------------------------------------------------ escapes */

/* The birth of some memory, given by the object that stands for it or by the address of a block.
 * NULL where it is not known, or with an exception. */
static struct birth *birth_by_key(const Log *log, PyObject *key)
{
    if (!PyLong_CheckExact(key)) {
        return birth_of_memory(log, key);
    }
    void *address = PyLong_AsVoidPtr(key);
    return address == NULL ? NULL : birth_of(log, address);
}

/* Add a flag to the birth of some memory; None, or NULL with an exception. */
static PyObject *flag_memory(Log *log, PyObject *key, unsigned flag)
{
    struct birth *birth = birth_by_key(log, key);
    if (birth != NULL) {
        log->escapes += flag == BIRTH_ESCAPED;
        birth->flags |= flag;
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyObject *births_escape(Log *log, PyObject *key) { return flag_memory(log, key, BIRTH_ESCAPED); }

PyObject *births_let_out(Log *log, PyObject *key) { return flag_memory(log, key, BIRTH_MOVED_OUT); }

PyObject *births_has_escaped(Log *log, PyObject *key)
{
    const struct birth *birth = birth_by_key(log, key);
    return PyErr_Occurred() ? NULL
                            : PyBool_FromLong(birth != NULL &&
                                              (birth->flags & (BIRTH_ESCAPED | BIRTH_MOVED_OUT)) == BIRTH_ESCAPED);
}

/* ------------------------------------------------------------------ resources, each by its entry */

/* Record the birth of a resource; and of its members, where it is a composite, without counting
 * them: the composite counts for all. Members whose birth is known are left as they are. -1 with
 * an exception. */
static int record_resource(Log *log, PyObject *entry, struct birth birth)
{
    PyObject *members = Py_NewRef(((Entry *)entry)->members);
    int failed = record(log, &birth);
    birth.flags |= BIRTH_UNCOUNTED;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members) && !failed; i++) {
        birth.key = PyTuple_GET_ITEM(members, i);
        failed = birth_of(log, birth.key) == NULL ? record(log, &birth) : 0;
    }
    Py_DECREF(members);
    if (failed) {
        PyErr_NoMemory();
    }
    return failed;
}

/* Whether the memory of a resource was born with it: its birth is the last of all then, and the
 * resource needs no birth of its own. Memory whose birth is not known is recorded now. -1 with an
 * exception. */
static int is_known_by_its_memory(Log *log, PyObject *entry, const struct kind *kind)
{
    PyObject *resource = PyObject_CallNoArgs(entry);
    PyObject *memory = resource == NULL || resource == Py_None ? NULL : PyObject_CallOneArg(kind->memory, resource);
    Py_XDECREF(resource);
    if (memory == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int failed = 0;
    if (memory != Py_None && birth_of_memory(log, memory) == NULL) {
        size_t nbytes;
        uint16_t device;
        failed = measure(log, entry, &nbytes, &device);
        if (!failed && nbytes != 0 && births_keep(log, nbytes)) {
            failed = memory_born(log, memory, NULL, nbytes, kind->name, device);
        }
    }
    const struct birth *birth = failed || memory == Py_None ? NULL : birth_of_memory(log, memory);
    bool is_known = is_reported(birth) && birth->number == log->last_birth;
    Py_DECREF(memory);
    return failed ? -1 : is_known;
}

/* The bytes of a resource; 0 where another thread released it meanwhile. */
static size_t weigh_resource(PyObject *entry, PyObject *weigh)
{
    PyObject *resource = PyObject_CallNoArgs(entry);
    PyObject *weight = resource == NULL || resource == Py_None ? NULL : PyObject_CallOneArg(weigh, resource);
    Py_XDECREF(resource);
    size_t nbytes = 0;
    if (weight != NULL) {
        nbytes = PyLong_AsSize_t(weight);
        Py_DECREF(weight);
    }
    if (PyErr_Occurred()) {
        put_off_raised();
        nbytes = 0;
    }
    return nbytes;
}

PyObject *births_born(Log *log, PyObject *entry)
{
    if (!log_records(log)) {
        Py_RETURN_NONE;
    }
    uint64_t clearings = log->clearings;
    if (!PyObject_TypeCheck(entry, log->scopes->entry)) {
        PyErr_Format(PyExc_TypeError, "born() takes an entry, not a %s", Py_TYPE(entry)->tp_name);
        return NULL;
    }
    PyObject *kind_of_entry = Py_NewRef(((Entry *)entry)->kind);
    struct kind kind;
    int failed = find_kind(log, kind_of_entry, &kind);
    Py_DECREF(kind_of_entry);
    if (failed) {
        return NULL;
    }
    size_t nbytes = 0;
    uint16_t device = kind.device;
    int is_known = 0;
    if (kind.memory != Py_None) {
        is_known = is_known_by_its_memory(log, entry, &kind);
    }
    else if (kind.weigh != Py_None) {
        nbytes = weigh_resource(entry, kind.weigh);
    }
    else {
        is_known = measure(log, entry, &nbytes, &device);
    }
    if (is_known < 0) {
        return NULL;
    }
    if (is_known > 0 || !births_keep(log, nbytes)) {
        Py_RETURN_NONE;
    }
    uint16_t scope;
    if (!scope_number_in_use(&scope)) {
        scope = scope_number(log, ((Entry *)entry)->owner);
    }
    uint32_t site = site_here(log, NULL, kind.name, device);
    if (site == NO_SITE || log->clearings != clearings) {
        Py_RETURN_NONE;
    }
    unsigned flags = BIRTH_OF_ENTRY | (kind.is_backed ? BIRTH_BACKED : 0);
    if (record_resource(log, entry, new_birth(log, entry, flags, nbytes, site, scope)) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *births_died(Log *log, PyObject *entry)
{
    forget(log, entry);
    if (PyDict_GET_SIZE(log->disposals) != 0) {
        int known = PyDict_Contains(log->disposals, entry);
        if (known < 0 || (known && PyDict_DelItem(log->disposals, entry) < 0)) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

PyObject *births_released(Log *log, PyObject *entry)
{
    struct birth *birth = birth_of(log, entry);
    if (birth == NULL) {
        Py_RETURN_FALSE;
    }
    if (!(birth->flags & BIRTH_UNCOUNTED)) {
        resize(log, birth, 0);
    }
    Py_RETURN_TRUE;
}
