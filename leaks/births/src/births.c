/* Births and deaths: of blocks of the arena by address, of what an object stands for, and of resources by their entries. */
#include "log.h"

#include "../../../scopes/src/raised.h"

#include <math.h>

/* ------------------------------------------------------------------ sampling: which births are kept, where not all are */

static double rate; /* the mean number of bytes from one sampled birth to the next */
static double until_sample;
static uint64_t random_state;

double births_weight(const struct row *row)
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

/* The points at which a birth is kept lie apart by exponentially distributed numbers of bytes, which makes the sums of
 * births_weight unbiased: https://github.com/google/tcmalloc/blob/master/docs/sampling.md */
bool births_keep(size_t nbytes)
{
    if (!birth_log.samples) {
        return true;
    }
    until_sample -= (double)nbytes;
    if (until_sample > 0) {
        return false;
    }
    until_sample = next_interval();
    return true;
}

void births_sample(uint64_t nbytes)
{
    birth_log.samples = nbytes != 0;
    if (birth_log.samples) {
        if (random_state == 0) {
            random_state = (uint64_t)(birth_log.loaded_at * 1e9) | 1;
        }
        rate = (double)nbytes;
        until_sample = next_interval();
    }
}

static uint64_t bounded(size_t nbytes) { return nbytes < NBYTES_AT_MOST ? nbytes : NBYTES_AT_MOST; }

/* Fill in what is the same for all births. Runs no Python code: the numbers of the site and of the scope, which may, come first. */
static void fill_row(struct row *row, size_t nbytes, uint32_t site, uint16_t scope)
{
    double at = (log_now() - birth_log.loaded_at) * 1000;
    row->nbytes = bounded(nbytes);
    row->order = ++birth_log.births;
    row->site = site;
    row->scope = scope;
    row->closings = birth_log.closings;
    row->at_ms = at < (double)UINT32_MAX ? (uint32_t)at : UINT32_MAX;
}

/* ------------------------------------------------------------------ what the log knows of kinds */

/* A kind of resources, as `describe_kind` in compiled.pyi. */
struct kind {
    PyObject *kind;
    PyObject *weigh;  /* resource -> bytes, or None */
    PyObject *memory; /* resource -> what stands for its memory, or None */
    uint16_t name, device;
    bool backed;
};

#define KINDS_AT_MOST 64

/* What it refers to is never let go: a kind lives as long as the process. */
static struct kind kinds[KINDS_AT_MOST];
static int count_of_kinds;

static PyObject *kind_name, *owner_name, *members_name, *name_name;
static PyObject *storages_function, *device_function;

int births_make(void)
{
    kind_name = PyUnicode_InternFromString("kind");
    owner_name = PyUnicode_InternFromString("owner");
    members_name = PyUnicode_InternFromString("members");
    name_name = PyUnicode_InternFromString("name");
    storages_function = log_import("disposescope.scopes.identity", "storages_of");
    device_function = log_import("disposescope.scopes.identity", "device_of_entry");
    return kind_name == NULL || owner_name == NULL || members_name == NULL || name_name == NULL ||
                   storages_function == NULL || device_function == NULL
               ? -1
               : 0;
}

/* The place of a kind, or that of the first unused one; NULL where there is none left. */
static struct kind *kind_slot(PyObject *kind)
{
    for (int i = 0; i < count_of_kinds; i++) {
        if (kinds[i].kind == kind) {
            return &kinds[i];
        }
    }
    return count_of_kinds == KINDS_AT_MOST ? NULL : &kinds[count_of_kinds];
}

static void keep_kind(struct kind *slot, const struct kind *kind)
{
    count_of_kinds += slot->kind == NULL;
    *slot = *kind;
    Py_INCREF(kind->kind);
    Py_INCREF(kind->weigh);
    Py_INCREF(kind->memory);
}

PyObject *births_describe_kind(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *name, *device;
    int backed;
    struct kind kind;
    if (!PyArg_ParseTuple(arguments, "OUOOUp:describe_kind", &kind.kind, &name, &kind.weigh, &kind.memory, &device,
                          &backed)) {
        return NULL;
    }
    kind.name = names_number(&kind_names, name);
    kind.device = names_number(&device_names, device);
    kind.backed = backed;
    struct kind *slot = kind_slot(kind.kind);
    if (slot == NULL) {
        PyErr_Format(PyExc_RuntimeError, "internal error: the birth log has room for %d kinds", KINDS_AT_MOST);
        return NULL;
    }
    keep_kind(slot, &kind);
    Py_RETURN_NONE;
}

/* What is known of a kind; -1 with an exception. `found` gets borrowed references. */
static int kinds_find(PyObject *kind, struct kind *found)
{
    struct kind *slot = kind_slot(kind);
    if (slot != NULL && slot->kind == kind) {
        *found = *slot;
        return 0;
    }
    PyObject *name = PyObject_GetAttr(kind, name_name);
    PyObject *members = name == NULL ? NULL : PyObject_GetAttr(kind, members_name);
    if (members != NULL) {
        /* A composite has the bytes of its members, which were born before it. */
        *found = (struct kind){.kind = kind,
                               .weigh = Py_None,
                               .memory = Py_None,
                               .name = names_number(&kind_names, name),
                               .backed = members != Py_None};
    }
    Py_XDECREF(name);
    Py_XDECREF(members);
    slot = members == NULL ? NULL : kind_slot(kind);
    if (slot != NULL && slot->kind == NULL) {
        keep_kind(slot, found);
    }
    return members == NULL ? -1 : 0;
}

/* The bytes of the storages of a resource, and its device; -1 with an exception. */
static int measure(PyObject *entry, size_t *nbytes, uint16_t *device)
{
    PyObject *storages = PyDict_New();
    PyObject *none = storages == NULL ? NULL : PyObject_CallFunctionObjArgs(storages_function, entry, storages, NULL);
    PyObject *name = none == NULL ? NULL : PyObject_CallOneArg(device_function, entry);
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
        *device = names_number(&device_names, name);
    }
    Py_XDECREF(sizes);
    Py_XDECREF(name);
    Py_XDECREF(none);
    Py_XDECREF(storages);
    return failed;
}

/* ------------------------------------------------------------------ memory that an object stands for */

int births_sight_memory(PyObject *object, PyObject *op, size_t nbytes, uint16_t kind, uint16_t device)
{
    if (!birth_log.is_open || birth_log.is_clearing || sightings_of(object) != NULL) {
        return 0;
    }
    /* All that may run the garbage collector first, and with it anything; then what runs nothing. */
    struct sighting *sighting = sightings_add(object);
    if (sighting == NULL) {
        return -1;
    }
    uint16_t scope = scopes_current();
    uint32_t site = sites_here(op, kind, device);
    if (site != UINT32_MAX && sighting_is_listed(sighting)) {
        fill_row(&sighting->row, nbytes, site, scope);
        sighting->row.flags = birth_log.samples ? ROW_SAMPLED : 0;
        sites_born(&sighting->row);
    }
    Py_DECREF((PyObject *)sighting);
    return 0;
}

PyObject *births_sight(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
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
    if (sightings_of(arguments[0]) == NULL && birth_log.is_open && births_keep(nbytes) &&
        births_sight_memory(arguments[0], arguments[1] == Py_None ? NULL : arguments[1], nbytes,
                            names_number(&kind_names, arguments[3]), names_number(&device_names, arguments[4])) < 0) {
        return NULL;
    }
    return PyBool_FromLong(sightings_of(arguments[0]) != NULL);
}

PyObject *births_exclude(PyObject *module, PyObject *object)
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

/* ------------------------------------------------------------------ blocks of the arena */

bool births_of_block(void *address, size_t nbytes, uint16_t kind, uint16_t device)
{
    if (!birth_log.is_open || birth_log.is_clearing || !births_keep(nbytes)) {
        return false;
    }
    uint64_t began_in = birth_log.era;
    uint16_t scope = scopes_current();
    uint32_t site = sites_here(NULL, kind, device);
    if (site == UINT32_MAX || birth_log.era != began_in) {
        return false;
    }
    struct row row = {.flags = birth_log.samples ? ROW_SAMPLED : 0};
    fill_row(&row, nbytes, site, scope);
    if (table_put(address, &row) < 0) {
        return false;
    }
    sites_born(&row);
    return true;
}

void births_block_died(void *address)
{
    struct row row;
    if (table_take(address, &row)) {
        sites_died(&row);
    }
}

void births_block_moved(void *before, void *after, size_t nbytes)
{
    struct row row;
    if (!table_take(before, &row)) {
        return;
    }
    sites_died(&row);
    row.nbytes = bounded(nbytes);
    if (table_put(after, &row) == 0) {
        sites_born(&row);
        sites[row.site].births--;
    }
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
        birth_log.escapes += flag == ROW_ESCAPED;
        row->flags |= flag;
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyObject *births_escape(PyObject *module, PyObject *key)
{
    (void)module;
    return flag_memory(key, ROW_ESCAPED);
}

PyObject *births_let_out(PyObject *module, PyObject *key)
{
    (void)module;
    return flag_memory(key, ROW_LET_OUT);
}

PyObject *births_has_escaped(PyObject *module, PyObject *key)
{
    (void)module;
    const struct row *row = row_of_memory(key);
    return PyErr_Occurred() ? NULL
                            : PyBool_FromLong(row != NULL && (row->flags & (ROW_ESCAPED | ROW_LET_OUT)) == ROW_ESCAPED);
}

/* ------------------------------------------------------------------ resources, each by its entry of the identity set */

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
    PyObject *members = PyObject_GetAttr(entry, members_name);
    if (members == NULL) {
        return -1;
    }
    int failed = 0;
    struct row member = *row;
    member.flags |= ROW_MEMBER;
    for (Py_ssize_t i = 0; PyTuple_CheckExact(members) && i < PyTuple_GET_SIZE(members) && !failed; i++) {
        if (table_find(PyTuple_GET_ITEM(members, i)) == NULL) {
            failed = put_entry(PyTuple_GET_ITEM(members, i), &member);
        }
    }
    Py_DECREF(members);
    return failed;
}

/* Whether the birth of the memory of a resource is the last birth of all, so that the resource needs no row; it is recorded now
 * where nobody saw it. -1 with an exception. */
static int is_known_by_its_memory(PyObject *entry, const struct kind *kind)
{
    PyObject *resource = PyObject_CallNoArgs(entry);
    PyObject *memory = resource == NULL || resource == Py_None ? NULL : PyObject_CallOneArg(kind->memory, resource);
    Py_XDECREF(resource);
    if (memory == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int is_known = 0;
    if (memory != Py_None) {
        struct sighting *sighting = sightings_of(memory);
        if (sighting == NULL) {
            size_t nbytes;
            uint16_t device;
            if (measure(entry, &nbytes, &device) < 0) {
                is_known = -1;
            }
            else if (nbytes != 0 && births_keep(nbytes)) {
                is_known = births_sight_memory(memory, NULL, nbytes, kind->name, device) < 0 ? -1 : 0;
                sighting = is_known < 0 ? NULL : sightings_of(memory);
            }
        }
        if (sighting != NULL && !(sighting->row.flags & ROW_EXCLUDED) && sighting->row.order == birth_log.births) {
            is_known = 1;
        }
    }
    Py_DECREF(memory);
    return is_known;
}

/* The bytes of a resource; 0 where another thread released it meanwhile. */
static size_t weighed(PyObject *entry, PyObject *weigh)
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

PyObject *births_born(PyObject *module, PyObject *entry)
{
    (void)module;
    if (!birth_log.is_open || birth_log.is_clearing) {
        Py_RETURN_NONE;
    }
    uint64_t began_in = birth_log.era;
    PyObject *its_kind = PyObject_GetAttr(entry, kind_name);
    if (its_kind == NULL) {
        return NULL;
    }
    struct kind kind;
    int failed = kinds_find(its_kind, &kind);
    Py_DECREF(its_kind);
    if (failed) {
        return NULL;
    }
    size_t nbytes = 0;
    uint16_t device = kind.device;
    int is_known = 0;
    if (kind.memory != Py_None) {
        is_known = is_known_by_its_memory(entry, &kind);
    }
    else if (kind.weigh != Py_None) {
        nbytes = weighed(entry, kind.weigh);
    }
    else {
        is_known = measure(entry, &nbytes, &device);
    }
    if (is_known < 0) {
        return NULL;
    }
    if (is_known > 0 || !births_keep(nbytes)) {
        Py_RETURN_NONE;
    }
    PyObject *owner = PyObject_GetAttr(entry, owner_name);
    if (owner == NULL) {
        return NULL;
    }
    uint16_t scope;
    if (!remembered_scope(&scope)) {
        scope = scopes_number(owner);
    }
    Py_DECREF(owner);
    uint32_t site = sites_here(NULL, kind.name, device);
    if (site == UINT32_MAX || birth_log.era != began_in || birth_log.is_clearing) {
        Py_RETURN_NONE;
    }
    struct row row = {.flags = ROW_ENTRY | (birth_log.samples ? ROW_SAMPLED : 0) | (kind.backed ? ROW_BACKED : 0)};
    fill_row(&row, nbytes, site, scope);
    if (put_entry(entry, &row) < 0 || put_members(entry, &row) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *births_died(PyObject *module, PyObject *entry)
{
    (void)module;
    struct row row;
    if (table_take(entry, &row)) {
        if (!(row.flags & ROW_MEMBER)) {
            sites_died(&row);
        }
        Py_DECREF(entry);
    }
    if (PyDict_GET_SIZE(birth_log.disposals) != 0) {
        int known = PyDict_Contains(birth_log.disposals, entry);
        if (known < 0 || (known && PyDict_DelItem(birth_log.disposals, entry) < 0)) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

PyObject *births_released(PyObject *module, PyObject *entry)
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
