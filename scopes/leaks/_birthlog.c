/* The module `_birthlog`: see _birthlog.h for what it keeps, and _birthlog.pyi for what Python asks of it. */
#include "_birthlog.h"
#include "_birthlog_api.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static bool is_open, is_clearing;
static uint64_t births; /* the number of the last one */
static uint32_t marks, closings;
static uint64_t era; /* changes when everything is forgotten */
static double rate;  /* the mean number of bytes from one sampled birth to the next; 0 where every one is kept */
static bool samples;
static double until_sample;
static uint64_t random_state;
static double loaded_at;
static PyObject *kind_row_function, *measure_function, *current_variable, *resolve_function, *thread_name_function, *disposals;
static PyObject *name_kind, *name_owner, *name_name, *name_members, *name_direct;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time); /* what is kept are milliseconds */
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ------------------------------------------------------------------ sampling */

double log_weight(const struct row *row)
{
    if (!(row->flags & ROW_SAMPLED) || rate <= 0) {
        return 1.0;
    }
    /* A birth of so many bytes is kept with the probability 1 - exp(-nbytes / rate). */
    double kept = -expm1(-(double)row->nbytes / rate);
    return kept <= 0 ? 1.0 : 1.0 / kept;
}

static double next_interval(void)
{
    /* xorshift64*, of our own: the program's random numbers stay as they are. */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    double uniform = (double)((random_state * UINT64_C(0x2545F4914F6CDD1D)) >> 11) * 0x1.0p-53;
    return -log1p(-uniform) * rate;
}

/* Whether a birth is to be kept. The points at which one is lie apart by exponentially distributed numbers of bytes, which makes
 * the sums of log_weight unbiased: https://github.com/google/tcmalloc/blob/master/docs/sampling.md */
static inline bool is_kept(size_t nbytes)
{
    if (!samples) {
        return true;
    }
    until_sample -= (double)nbytes;
    if (until_sample > 0) {
        return false;
    }
    until_sample = next_interval();
    return true;
}

/* ------------------------------------------------------------------ what is known of a birth */

static uint16_t scope_number(PyObject *scope)
{
    if (scope == Py_None) {
        static uint16_t number;
        static uint64_t known_in;
        if (known_in != era + 1) {
            number = names_number(&scope_names, Py_None);
            known_in = era + 1;
        }
        return number;
    }
    static PyObject *unnamed;
    if (unnamed == NULL && (unnamed = PyUnicode_FromString("")) == NULL) {
        PyErr_Clear();
        return UINT16_MAX;
    }
    PyObject *name = PyObject_GetAttr(scope, name_name);
    if (name == NULL) {
        PyErr_Clear();
        return UINT16_MAX;
    }
    uint16_t number = names_number(&scope_names, name == Py_None ? unnamed : name);
    Py_DECREF(name);
    return number;
}

/* Of the innermost scope that was entered, a reference, the one that is current; a new reference, None where there is none. Raises
 * nothing. */
static PyObject *current_scope(PyObject *scope)
{
    PyObject *direct = PyObject_GetAttr(scope, name_direct);
    bool is_plain = direct == Py_True;
    Py_XDECREF(direct);
    if (!is_plain) {
        PyErr_Clear();
        PyObject *resolved = PyObject_CallOneArg(resolve_function, scope);
        Py_DECREF(scope);
        scope = resolved == NULL ? Py_NewRef(Py_None) : resolved;
    }
    PyErr_Clear();
    return scope;
}

static uint16_t current_scope_number(void)
{
    PyObject *scope;
    if (PyContextVar_Get(current_variable, Py_None, &scope) < 0) {
        PyErr_Clear();
        return UINT16_MAX;
    }
    if (scope == Py_None) {
        Py_DECREF(scope);
        return scope_number(Py_None);
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    scope = current_scope(scope);
    uint16_t number = scope_number(scope);
    Py_DECREF(scope);
    PyErr_Restore(type, value, traceback);
    return number;
}

static uint16_t thread_number(void)
{
    static _Thread_local uint16_t number;
    static _Thread_local uint64_t known_in;
    if (known_in == era + 1) {
        return number;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *name = PyObject_CallNoArgs(thread_name_function);
    number = name == NULL ? UINT16_MAX : names_number(&thread_names, name);
    known_in = era + 1;
    Py_XDECREF(name);
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    return number;
}

/* Fill in what is the same for all births. The number of the scope and of the thread, which may run Python code, come first; what
 * follows runs none. */
static void fill(struct row *row, size_t nbytes, uint16_t scope, uint16_t thread)
{
    uint64_t number = ++births;
    double at = (now() - loaded_at) * 1000;
    row->nbytes = nbytes < ROW_NBYTES_MOST ? nbytes : ROW_NBYTES_MOST;
    row->order_high = (number >> 32) & 0xFFFF;
    row->order_low = (uint32_t)number;
    row->passes = marks;
    row->closings = closings;
    row->at_ms = at < (double)UINT32_MAX ? (uint32_t)at : UINT32_MAX;
    row->scope = scope;
    row->thread = thread;
}

/* ------------------------------------------------------------------ kinds of resources */

struct kind {
    PyObject *kind;
    PyObject *weigh;  /* resource -> bytes, or None: then the general function tells bytes and device */
    PyObject *memory; /* resource -> what stands for its memory, or None */
    uint16_t name, device;
    bool backed;
};

#define KINDS_AT_MOST 64
static struct kind kinds[KINDS_AT_MOST];
static int count_of_kinds;

static uint16_t number_of_string(struct names *names, PyObject *tuple, Py_ssize_t position)
{
    return names_number(names, PyTuple_GET_ITEM(tuple, position));
}

/* What is known of a kind; -1 with an exception. `found` gets borrowed references, which the kind row or `held` holds. */
static int find_kind(PyObject *kind, struct kind *found, PyObject **held)
{
    *held = NULL;
    for (int i = 0; i < count_of_kinds; i++) {
        if (kinds[i].kind == kind) {
            *found = kinds[i];
            return 0;
        }
    }
    PyObject *row = PyObject_CallOneArg(kind_row_function, kind);
    if (row == NULL) {
        return -1;
    }
    if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 5) {
        Py_DECREF(row);
        PyErr_SetString(PyExc_TypeError, "the row of a kind is a tuple of five");
        return -1;
    }
    *found = (struct kind){
        .kind = kind,
        .name = number_of_string(&kind_names, row, 0),
        .weigh = PyTuple_GET_ITEM(row, 1),
        .memory = PyTuple_GET_ITEM(row, 2),
        .device = number_of_string(&device_names, row, 3),
        .backed = PyTuple_GET_ITEM(row, 4) == Py_True,
    };
    if (count_of_kinds < KINDS_AT_MOST) {
        Py_INCREF(kind);
        Py_INCREF(found->weigh);
        Py_INCREF(found->memory);
        kinds[count_of_kinds++] = *found;
    }
    *held = row;
    return 0;
}

/* ------------------------------------------------------------------ births */

static int sight(PyObject *object, PyObject *op, size_t nbytes, uint16_t kind, uint16_t device)
{
    if (!is_open || is_clearing || sightings_of(object) != NULL) {
        return 0;
    }
    /* All that may run the garbage collector first, and with it anything; then what runs nothing. */
    struct sighting *sighting = sightings_add(object);
    if (sighting == NULL) {
        return -1;
    }
    uint16_t scope = current_scope_number(), thread = thread_number();
    uint32_t site = sites_here(op, kind, device);
    if (site != UINT32_MAX && sighting_is_listed(sighting)) {
        fill(&sighting->row, nbytes, scope, thread);
        sighting->row.site = site;
        sighting->row.flags = samples ? ROW_SAMPLED : 0;
        sites_born(&sighting->row);
    }
    Py_DECREF((PyObject *)sighting);
    return 0;
}

static bool block_born(void *address, size_t nbytes, uint16_t kind, uint16_t device)
{
    if (!is_open || is_clearing || !is_kept(nbytes)) {
        return false;
    }
    uint64_t began_in = era;
    uint16_t scope = current_scope_number(), thread = thread_number();
    uint32_t site = sites_here(NULL, kind, device);
    if (site == UINT32_MAX || era != began_in) {
        return false;
    }
    struct row row = {.site = site, .flags = samples ? ROW_SAMPLED : 0};
    fill(&row, nbytes, scope, thread);
    if (table_put(address, &row) < 0) {
        return false;
    }
    sites_born(&row);
    return true;
}

static void block_died(void *address)
{
    struct row row;
    if (table_take(address, &row)) {
        sites_died(&row);
    }
}

static void block_moved(void *before, void *after, size_t nbytes)
{
    struct row row;
    if (!table_take(before, &row)) {
        return;
    }
    sites_died(&row);
    row.nbytes = nbytes < ROW_NBYTES_MOST ? nbytes : ROW_NBYTES_MOST;
    if (table_put(after, &row) == 0) {
        sites_born(&row);
        sites[row.site].births--;
    }
}

static int put_entry(PyObject *entry, const struct row *row)
{
    struct row before;
    if (table_take(entry, &before)) {
        if (!(before.flags & ROW_MEMBER)) {
            sites_died(&before);
        }
    }
    else {
        Py_INCREF(entry);
    }
    if (table_put(entry, row) < 0) {
        Py_DECREF(entry);
        PyErr_NoMemory();
        return -1;
    }
    if (!(row->flags & ROW_MEMBER)) {
        sites_born(row);
    }
    return 0;
}

static int put_members(PyObject *entry, const struct row *row)
{
    PyObject *members = PyObject_GetAttr(entry, name_members);
    if (members == NULL) {
        return -1;
    }
    int failed = 0;
    if (PyTuple_CheckExact(members)) {
        struct row member = *row;
        member.flags |= ROW_MEMBER;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members) && !failed; i++) {
            if (table_find(PyTuple_GET_ITEM(members, i)) == NULL) {
                failed = put_entry(PyTuple_GET_ITEM(members, i), &member);
            }
        }
    }
    Py_DECREF(members);
    return failed;
}

/* Bytes and device of a resource, as the general function tells them. */
static int measure(PyObject *entry, size_t *nbytes, uint16_t *device)
{
    PyObject *told = PyObject_CallOneArg(measure_function, entry);
    if (told == NULL) {
        return -1;
    }
    int failed = -1;
    if (PyTuple_CheckExact(told) && PyTuple_GET_SIZE(told) == 2) {
        *nbytes = PyLong_AsSize_t(PyTuple_GET_ITEM(told, 0));
        *device = number_of_string(&device_names, told, 1);
        failed = *nbytes == (size_t)-1 && PyErr_Occurred() ? -1 : 0;
    }
    else {
        PyErr_SetString(PyExc_TypeError, "bytes and device are a tuple of two");
    }
    Py_DECREF(told);
    return failed;
}

/* Whether the memory of a resource was put down as the last birth of all, so that there is no more to say of the resource; it is
 * put down now where nobody saw it. -1 with an exception. */
static int is_told_by_its_memory(PyObject *entry, const struct kind *kind)
{
    PyObject *resource = PyObject_CallNoArgs(entry);
    PyObject *memory = resource == NULL || resource == Py_None ? NULL : PyObject_CallOneArg(kind->memory, resource);
    Py_XDECREF(resource);
    if (memory == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int told = 0;
    if (memory != Py_None) {
        struct sighting *sighting = sightings_of(memory);
        if (sighting == NULL) {
            size_t nbytes;
            uint16_t device;
            if (measure(entry, &nbytes, &device) < 0) {
                told = -1;
            }
            else if (nbytes != 0) {
                told = !is_kept(nbytes) ? 0 : sight(memory, NULL, nbytes, kind->name, device) < 0 ? -1 : 0;
                sighting = told < 0 ? NULL : sightings_of(memory);
            }
        }
        if (sighting != NULL && !(sighting->row.flags & ROW_EXCLUDED) && row_order(&sighting->row) == births) {
            told = 1;
        }
    }
    Py_DECREF(memory);
    return told;
}

static PyObject *born(PyObject *module, PyObject *entry)
{
    (void)module;
    if (!is_open || is_clearing) {
        Py_RETURN_NONE;
    }
    uint64_t began_in = era;
    PyObject *key = PyObject_GetAttr(entry, name_kind);
    if (key == NULL) {
        return NULL;
    }
    struct kind kind;
    PyObject *held;
    int failed = find_kind(key, &kind, &held);
    Py_DECREF(key); /* the entry holds it */
    if (failed) {
        return NULL;
    }
    size_t nbytes = 0;
    uint16_t device = kind.device;
    int told = 0;
    if (kind.memory != Py_None) {
        told = is_told_by_its_memory(entry, &kind);
    }
    else if (kind.weigh != Py_None) {
        PyObject *resource = PyObject_CallNoArgs(entry);
        PyObject *weight = resource == NULL || resource == Py_None ? NULL : PyObject_CallOneArg(kind.weigh, resource);
        Py_XDECREF(resource);
        if (weight != NULL) {
            nbytes = PyLong_AsSize_t(weight);
            Py_DECREF(weight);
        }
        /* It can be released by another thread meanwhile: then it has no bytes. */
        if (PyErr_Occurred()) {
            PyErr_Clear();
            nbytes = 0;
        }
    }
    else {
        told = measure(entry, &nbytes, &device);
    }
    Py_XDECREF(held);
    if (told < 0) {
        return NULL;
    }
    if (told > 0 || !is_kept(nbytes)) {
        Py_RETURN_NONE;
    }
    PyObject *owner = PyObject_GetAttr(entry, name_owner);
    if (owner == NULL) {
        return NULL;
    }
    uint16_t scope = scope_number(owner), thread = thread_number();
    Py_DECREF(owner);
    uint32_t site = sites_here(NULL, kind.name, device);
    if (site == UINT32_MAX || era != began_in || is_clearing) {
        Py_RETURN_NONE;
    }
    struct row row = {.site = site, .flags = ROW_ENTRY | (samples ? ROW_SAMPLED : 0) | (kind.backed ? ROW_BACKED : 0)};
    fill(&row, nbytes, scope, thread);
    if (put_entry(entry, &row) < 0 || put_members(entry, &row) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *died(PyObject *module, PyObject *entry)
{
    (void)module;
    struct row row;
    if (table_take(entry, &row)) {
        if (!(row.flags & ROW_MEMBER)) {
            sites_died(&row);
        }
        Py_DECREF(entry);
    }
    if (disposals != NULL && PyDict_GET_SIZE(disposals) != 0) {
        int known = PyDict_Contains(disposals, entry);
        if (known < 0 || (known && PyDict_DelItem(disposals, entry) < 0)) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *released(PyObject *module, PyObject *entry)
{
    (void)module;
    struct row *row = table_find(entry);
    if (row != NULL) {
        if (!(row->flags & ROW_MEMBER)) {
            uint64_t counted = sites[row->site].births;
            sites_died(row);
            row->nbytes = 0;
            sites_born(row);
            sites[row->site].births = counted;
        }
        Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

static PyObject *sight_object(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "sight() takes an object, what was called, bytes, kind and device");
        return NULL;
    }
    size_t nbytes = PyLong_AsSize_t(arguments[2]);
    if (nbytes == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    if (sightings_of(arguments[0]) == NULL && is_open && is_kept(nbytes) &&
        sight(arguments[0], arguments[1] == Py_None ? NULL : arguments[1], nbytes, names_number(&kind_names, arguments[3]),
              names_number(&device_names, arguments[4])) < 0) {
        return NULL;
    }
    return PyBool_FromLong(sightings_of(arguments[0]) != NULL);
}

static PyObject *exclude(PyObject *module, PyObject *object)
{
    (void)module;
    struct sighting *sighting = sightings_of(object);
    if (sighting == NULL || sighting->row.flags & ROW_EXCLUDED) {
        Py_RETURN_FALSE;
    }
    sites_died(&sighting->row);
    sighting->row.flags |= ROW_EXCLUDED;
    Py_RETURN_TRUE;
}

/* ------------------------------------------------------------------ escapes */

/* The row of memory: of what stands for it, or of a block by its address. NULL where it is not known, or with an exception. */
static struct row *row_of_memory(PyObject *key)
{
    if (PyLong_CheckExact(key)) {
        void *address = PyLong_AsVoidPtr(key);
        return address == NULL ? NULL : table_find(address);
    }
    struct sighting *sighting = sightings_of(key);
    return sighting == NULL ? NULL : &sighting->row;
}

static PyObject *flag_memory(PyObject *key, unsigned flag)
{
    struct row *row = row_of_memory(key);
    if (row != NULL) {
        row->flags |= flag;
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *escape(PyObject *module, PyObject *key)
{
    (void)module;
    return flag_memory(key, ROW_ESCAPED);
}

static PyObject *let_out(PyObject *module, PyObject *key)
{
    (void)module;
    return flag_memory(key, ROW_LET_OUT);
}

static PyObject *has_escaped(PyObject *module, PyObject *key)
{
    (void)module;
    const struct row *row = row_of_memory(key);
    return PyErr_Occurred() ? NULL
                            : PyBool_FromLong(row != NULL && (row->flags & (ROW_ESCAPED | ROW_LET_OUT)) == ROW_ESCAPED);
}

/* ------------------------------------------------------------------ passes */

static PyObject *mark(PyObject *module, PyObject *name)
{
    (void)module;
    uint16_t number = names_number(&pass_names, name);
    if (number == UINT16_MAX) {
        return PyLong_FromLong(0);
    }
    if (sites_mark(number) < 0) {
        return PyErr_NoMemory();
    }
    marks++;
    return PyLong_FromUnsignedLong(sites_passes(number));
}

static PyObject *closing(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromUnsignedLong(++closings);
}

static PyObject *counts(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return Py_BuildValue("KIIn", (unsigned long long)births, marks, closings,
                         (Py_ssize_t)(table_count() + sightings_count()));
}

static PyObject *passes(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PyObject *found = PyDict_New();
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(pass_names.objects); i++) {
        uint32_t count = sites_passes((uint16_t)i);
        PyObject *number = PyLong_FromUnsignedLong(count);
        if (number == NULL ||
            (count != 0 && PyDict_SetItem(found, PyList_GET_ITEM(pass_names.objects, i), number) < 0)) {
            Py_CLEAR(found);
        }
        Py_XDECREF(number);
    }
    return found;
}

static PyObject *series(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "series() takes the number of a site and the name of passes");
        return NULL;
    }
    unsigned long site = PyLong_AsUnsignedLong(arguments[0]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    return sites_series(site < UINT32_MAX ? (uint32_t)site : UINT32_MAX, names_number(&pass_names, arguments[1]));
}

/* ------------------------------------------------------------------ asking */

/* A row as a tuple: site, bytes, number of birth, passes, closings, time, scope, thread, weight. */
static PyObject *told_row(const struct row *row)
{
    return Py_BuildValue("IKKIIdOOd", row->site, (unsigned long long)row->nbytes, (unsigned long long)row_order(row),
                         row->passes, row->closings, loaded_at + row->at_ms * 1e-3,
                         names_object(&scope_names, row->scope), names_object(&thread_names, row->thread),
                         log_weight(row));
}

static PyObject *recall(PyObject *module, PyObject *key)
{
    (void)module;
    struct row *row = table_find(key);
    if (row == NULL) {
        Py_RETURN_NONE;
    }
    struct row copy = *row;
    return told_row(&copy);
}

static PyObject *recall_block(PyObject *module, PyObject *address)
{
    void *key = PyLong_AsVoidPtr(address);
    if (key == NULL && PyErr_Occurred()) {
        return NULL;
    }
    return recall(module, key);
}

static PyObject *recall_memory(PyObject *module, PyObject *object)
{
    (void)module;
    struct sighting *sighting = sightings_of(object);
    if (sighting == NULL || sighting->row.flags & ROW_EXCLUDED) {
        Py_RETURN_NONE;
    }
    struct row copy = sighting->row;
    return told_row(&copy);
}

struct found {
    void *key;
    struct row row;
};

static int by_order(const void *one, const void *other)
{
    uint64_t a = row_order(&((const struct found *)one)->row), b = row_order(&((const struct found *)other)->row);
    return a < b ? -1 : a > b;
}

/* The rows of a window of births that `wants` says, as a list of (key, row) in the order of birth. */
static PyObject *listed(uint64_t low, uint64_t high, bool entries)
{
    size_t count = 0, position = 0;
    struct found *found = malloc((table_count() + 1) * sizeof *found);
    if (found == NULL) {
        return PyErr_NoMemory();
    }
    void *key;
    struct row *row;
    while (table_next(&position, &key, &row)) {
        uint64_t order = row_order(row);
        if (!(row->flags & ROW_ENTRY) == !entries && order > low && order <= high) {
            if (entries) {
                Py_INCREF((PyObject *)key);
            }
            found[count++] = (struct found){key, *row};
        }
    }
    qsort(found, count, sizeof *found, by_order);
    PyObject *list = PyList_New((Py_ssize_t)count);
    size_t done = 0;
    for (; list != NULL && done < count; done++) {
        PyObject *first = entries ? (PyObject *)found[done].key : PyLong_FromVoidPtr(found[done].key);
        PyObject *told = first == NULL ? NULL : told_row(&found[done].row);
        PyObject *pair = told == NULL ? NULL : PyTuple_Pack(2, first, told);
        Py_XDECREF(told);
        Py_XDECREF(first);
        if (pair == NULL) {
            Py_CLEAR(list);
        }
        else {
            PyList_SET_ITEM(list, (Py_ssize_t)done, pair);
        }
    }
    for (; entries && done < count; done++) {
        Py_DECREF((PyObject *)found[done].key);
    }
    free(found);
    return list;
}

static PyObject *entries(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned long long low, high;
    return PyArg_ParseTuple(arguments, "KK:entries", &low, &high) ? listed(low, high, true) : NULL;
}

static PyObject *blocks(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned long long low, high;
    return PyArg_ParseTuple(arguments, "KK:blocks", &low, &high) ? listed(low, high, false) : NULL;
}

static PyObject *sightings(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned long long low, high;
    if (!PyArg_ParseTuple(arguments, "KK:sightings", &low, &high)) {
        return NULL;
    }
    size_t count = 0, room = sightings_count();
    struct found *found = malloc((room + 1) * sizeof *found);
    if (found == NULL) {
        return PyErr_NoMemory();
    }
    for (struct sighting *each = first_sighting; each != NULL && count < room; each = each->next) {
        uint64_t order = row_order(&each->row);
        if (!(each->row.flags & ROW_EXCLUDED) && order > low && order <= high) {
            found[count++] = (struct found){Py_NewRef((PyObject *)each), each->row};
        }
    }
    PyObject *list = PyList_New((Py_ssize_t)count);
    size_t done = 0;
    for (; list != NULL && done < count; done++) {
        PyObject *told = told_row(&found[done].row);
        PyObject *pair = told == NULL ? NULL : PyTuple_Pack(2, (PyObject *)found[done].key, told);
        Py_XDECREF(told);
        Py_DECREF((PyObject *)found[done].key);
        if (pair == NULL) {
            Py_CLEAR(list);
        }
        else {
            PyList_SET_ITEM(list, (Py_ssize_t)done, pair);
        }
    }
    for (; done < count; done++) {
        Py_DECREF((PyObject *)found[done].key);
    }
    free(found);
    return list;
}

static PyObject *site(PyObject *module, PyObject *number)
{
    (void)module;
    unsigned long wanted = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (wanted >= count_of_sites) {
        PyErr_Format(PyExc_IndexError, "there are %u sites, and no number %lu", count_of_sites, wanted);
        return NULL;
    }
    /* What is made here may run the garbage collector, and with it births, which move the sites. */
    uint32_t places_count = sites[wanted].count_of_places;
    PyObject *places = PyTuple_New(places_count);
    for (uint32_t i = 0; places != NULL && i < places_count; i++) {
        PyObject *place = Py_BuildValue("On", (PyObject *)sites[wanted].places[i].code,
                                        (Py_ssize_t)sites[wanted].places[i].instruction);
        if (place == NULL) {
            Py_CLEAR(places);
        }
        else {
            PyTuple_SET_ITEM(places, i, place);
        }
        if (wanted >= count_of_sites) {
            Py_CLEAR(places);
        }
    }
    if (places == NULL) {
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    struct site copy = sites[wanted];
    return Py_BuildValue("OOONKdLL", names_object(&kind_names, copy.kind), names_object(&device_names, copy.device),
                         names_object(&op_names, copy.op), places, (unsigned long long)copy.births, copy.live,
                         (long long)copy.live_nbytes, (long long)copy.peak_nbytes);
}

static PyObject *site_count(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromUnsignedLong(count_of_sites);
}

static PyObject *live_nbytes(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PyObject *found = PyDict_New();
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(device_names.objects) && i < DEVICES; i++) {
        PyObject *nbytes = PyLong_FromLongLong(device_live_nbytes[i]);
        if (nbytes == NULL || (device_live_nbytes[i] != 0 &&
                               PyDict_SetItem(found, PyList_GET_ITEM(device_names.objects, i), nbytes) < 0)) {
            Py_CLEAR(found);
        }
        Py_XDECREF(nbytes);
    }
    return found;
}

static PyObject *place(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    struct place here;
    if (!sites_place_here(&here)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("On", (PyObject *)here.code, (Py_ssize_t)here.instruction);
}

/* ------------------------------------------------------------------ the log as a whole */

static PyObject *open_log(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned int frames;
    unsigned long long nbytes;
    if (!PyArg_ParseTuple(arguments, "IK:open", &frames, &nbytes)) {
        return NULL;
    }
    frames_wanted = frames == 0 ? 1 : frames;
    samples = nbytes != 0;
    if (samples) {
        rate = (double)nbytes;
        until_sample = next_interval();
    }
    is_open = true;
    Py_RETURN_NONE;
}

static PyObject *close_log(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    is_open = false;
    Py_RETURN_NONE;
}

static PyObject *clear(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    if (is_clearing) {
        Py_RETURN_NONE;
    }
    /* What is let go may take anything with it, and births meanwhile are not put down. */
    is_clearing = true;
    era++;
    sightings_clear();
    table_clear();
    sites_clear();
    int failed = names_make(&scope_names) < 0 || names_make(&thread_names) < 0 || names_make(&pass_names) < 0;
    is_clearing = false;
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *bind(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *rank, *kind_row, *measured, *current, *resolve, *thread_name, *disposed;
    if (!PyArg_ParseTuple(arguments, "OOOOOOO!:bind", &rank, &kind_row, &measured, &current, &resolve, &thread_name,
                          &PyDict_Type, &disposed)) {
        return NULL;
    }
    /* Kept for the life of the process: there are births while the interpreter goes down. */
    Py_XSETREF(kind_row_function, Py_NewRef(kind_row));
    Py_XSETREF(measure_function, Py_NewRef(measured));
    Py_XSETREF(current_variable, Py_NewRef(current));
    Py_XSETREF(resolve_function, Py_NewRef(resolve));
    Py_XSETREF(thread_name_function, Py_NewRef(thread_name));
    Py_XSETREF(disposals, Py_NewRef(disposed));
    if (sites_bind(rank) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, NULL},
    {"blocks", blocks, METH_VARARGS, NULL},
    {"born", born, METH_O, NULL},
    {"clear", clear, METH_NOARGS, NULL},
    {"close", close_log, METH_NOARGS, NULL},
    {"closing", closing, METH_NOARGS, NULL},
    {"counts", counts, METH_NOARGS, NULL},
    {"died", died, METH_O, NULL},
    {"entries", entries, METH_VARARGS, NULL},
    {"escape", escape, METH_O, NULL},
    {"exclude", exclude, METH_O, NULL},
    {"has_escaped", has_escaped, METH_O, NULL},
    {"let_out", let_out, METH_O, NULL},
    {"live_nbytes", live_nbytes, METH_NOARGS, NULL},
    {"mark", mark, METH_O, NULL},
    {"open", open_log, METH_VARARGS, NULL},
    {"passes", passes, METH_NOARGS, NULL},
    {"place", place, METH_NOARGS, NULL},
    {"recall", recall, METH_O, NULL},
    {"recall_block", recall_block, METH_O, NULL},
    {"recall_memory", recall_memory, METH_O, NULL},
    {"released", released, METH_O, NULL},
    {"series", (PyCFunction)(void (*)(void))series, METH_FASTCALL, NULL},
    {"sight", (PyCFunction)(void (*)(void))sight_object, METH_FASTCALL, NULL},
    {"sightings", sightings, METH_VARARGS, NULL},
    {"site", site, METH_O, NULL},
    {"site_count", site_count, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static bool api_is_open(void) { return is_open && !is_clearing; }
static bool api_has_block(void *address)
{
    const struct row *row = table_find(address);
    return row != NULL && !(row->flags & ROW_ENTRY);
}
static bool api_samples(void) { return samples; }
static bool api_is_kept(size_t nbytes) { return is_kept(nbytes); }
static bool api_is_known(PyObject *object) { return sightings_of(object) != NULL; }
static uint16_t api_kind_number(PyObject *name) { return names_number(&kind_names, name); }
static uint16_t api_device_number(PyObject *name) { return names_number(&device_names, name); }

static struct birthlog_api api = {
    .is_open = api_is_open,
    .block_born = block_born,
    .block_died = block_died,
    .block_moved = block_moved,
    .has_block = api_has_block,
    .samples = api_samples,
    .is_kept = api_is_kept,
    .sight = sight,
    .is_known = api_is_known,
    .kind_number = api_kind_number,
    .device_number = api_device_number,
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_birthlog", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__birthlog(void)
{
#ifdef Py_GIL_DISABLED
    (void)definition, (void)api;
    PyErr_SetString(PyExc_ImportError, "the compiled birth log relies on the global interpreter lock");
    return NULL;
#else
    loaded_at = now();
    random_state = (uint64_t)(loaded_at * 1e9) | 1;
    name_kind = PyUnicode_InternFromString("kind");
    name_owner = PyUnicode_InternFromString("owner");
    name_name = PyUnicode_InternFromString("name");
    name_members = PyUnicode_InternFromString("members");
    name_direct = PyUnicode_InternFromString("_direct");
    if (name_kind == NULL || name_owner == NULL || name_name == NULL || name_members == NULL || name_direct == NULL ||
        names_make(&op_names) < 0 || names_make(&kind_names) < 0 || names_make(&device_names) < 0 ||
        names_make(&scope_names) < 0 || names_make(&thread_names) < 0 || names_make(&pass_names) < 0 ||
        sightings_make() < 0) {
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(&api, BIRTHLOG_CAPSULE, NULL);
    PyObject *module = capsule == NULL ? NULL : PyModule_Create(&definition);
    if (module != NULL &&
        (PyModule_AddObjectRef(module, "api", capsule) < 0 ||
         PyModule_AddObjectRef(module, "Sighting", (PyObject *)&sighting_type) < 0)) {
        Py_CLEAR(module);
    }
    Py_XDECREF(capsule);
    return module;
#endif
}
