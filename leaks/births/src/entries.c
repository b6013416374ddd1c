/* Births and deaths of resources, each by its entry of the identity set. */
#include "births.h"
#include "../../../scopes/src/raised.h"
#include "remembered.h"
#include "slots.h"

PyObject *log_disposals;
static PyTypeObject *entry_type;
static Py_ssize_t kind_slot, owner_slot, members_slot;

/* An attribute of an entry, a new reference; NULL with an exception where it has none. */
static inline PyObject *attribute(PyObject *entry, Py_ssize_t slot)
{
    PyObject *value = slot_value(entry, slot);
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "this entry is not complete");
    }
    return Py_XNewRef(value);
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
    PyObject *members = slot_value(entry, members_slot);
    if (members == NULL || !PyTuple_CheckExact(members) || PyTuple_GET_SIZE(members) == 0) {
        return 0;
    }
    Py_INCREF(members);
    int failed = 0;
    struct row member = *row;
    member.flags |= ROW_MEMBER;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members) && !failed; i++) {
        if (table_find(PyTuple_GET_ITEM(members, i)) == NULL) {
            failed = put_entry(PyTuple_GET_ITEM(members, i), &member);
        }
    }
    Py_DECREF(members);
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
            if (kinds_measure(entry, &nbytes, &device) < 0) {
                told = -1;
            }
            else if (nbytes != 0 && samples_keep(nbytes)) {
                told = births_sight_memory(memory, NULL, nbytes, kind->name, device) < 0 ? -1 : 0;
                sighting = told < 0 ? NULL : sightings_of(memory);
            }
        }
        if (sighting != NULL && !(sighting->row.flags & ROW_EXCLUDED) && sighting->row.order == log_births) {
            told = 1;
        }
    }
    Py_DECREF(memory);
    return told;
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
    if (!log_is_open || log_is_clearing) {
        Py_RETURN_NONE;
    }
    if (!PyObject_TypeCheck(entry, entry_type)) {
        PyErr_Format(PyExc_TypeError, "born() takes an entry, not a %s", Py_TYPE(entry)->tp_name);
        return NULL;
    }
    uint64_t began_in = log_era;
    PyObject *key = attribute(entry, kind_slot);
    if (key == NULL) {
        return NULL;
    }
    struct kind kind;
    PyObject *held;
    int failed = kinds_find(key, &kind, &held);
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
        nbytes = weighed(entry, kind.weigh);
    }
    else {
        told = kinds_measure(entry, &nbytes, &device);
    }
    Py_XDECREF(held);
    if (told < 0) {
        return NULL;
    }
    if (told > 0 || !samples_keep(nbytes)) {
        Py_RETURN_NONE;
    }
    PyObject *owner = attribute(entry, owner_slot);
    if (owner == NULL) {
        return NULL;
    }
    uint16_t scope;
    if (!remembered_scope(&scope)) {
        scope = scopes_number(owner);
    }
    Py_DECREF(owner);
    uint32_t site = sites_here(NULL, kind.name, device);
    if (site == UINT32_MAX || log_era != began_in || log_is_clearing) {
        Py_RETURN_NONE;
    }
    struct row row = {.flags = ROW_ENTRY | (samples_some ? ROW_SAMPLED : 0) | (kind.backed ? ROW_BACKED : 0)};
    births_fill(&row, nbytes, site, scope);
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
    if (log_disposals != NULL && PyDict_GET_SIZE(log_disposals) != 0) {
        int known = PyDict_Contains(log_disposals, entry);
        if (known < 0 || (known && PyDict_DelItem(log_disposals, entry) < 0)) {
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

int entries_bind(PyTypeObject *entry, PyObject *disposals)
{
    if (find_slot(entry, "kind", &kind_slot) < 0 || find_slot(entry, "owner", &owner_slot) < 0 ||
        find_slot(entry, "members", &members_slot) < 0) {
        return -1;
    }
    Py_XSETREF(log_disposals, Py_NewRef(disposals));
    Py_INCREF(entry);
    Py_XSETREF(entry_type, entry);
    return 0;
}
