/* Births and deaths of memory: of blocks of the arena, by address, and of what an object stands for. */
#include "births.h"

/* ------------------------------------------------------------------ memory that an object stands for */

int births_sight_memory(PyObject *object, PyObject *op, size_t nbytes, uint16_t kind, uint16_t device)
{
    if (!log_is_open || log_is_clearing || sightings_of(object) != NULL) {
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
        births_fill(&sighting->row, nbytes, site, scope);
        sighting->row.flags = samples_some ? ROW_SAMPLED : 0;
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
    if (sightings_of(arguments[0]) == NULL && log_is_open && samples_keep(nbytes) &&
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
    if (!log_is_open || log_is_clearing || !samples_keep(nbytes)) {
        return false;
    }
    uint64_t began_in = log_era;
    uint16_t scope = scopes_current();
    uint32_t site = sites_here(NULL, kind, device);
    if (site == UINT32_MAX || log_era != began_in) {
        return false;
    }
    struct row row = {.flags = samples_some ? ROW_SAMPLED : 0};
    births_fill(&row, nbytes, site, scope);
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
    row.nbytes = births_bounded(nbytes);
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

static uint64_t escapes;

static PyObject *flag_memory(PyObject *key, unsigned flag)
{
    struct row *row = row_of_memory(key);
    if (row != NULL) {
        escapes += flag == ROW_ESCAPED;
        row->flags |= flag;
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyObject *births_escape(PyObject *module, PyObject *key)
{
    (void)module;
    return flag_memory(key, ROW_ESCAPED);
}

PyObject *births_escapes(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromUnsignedLongLong(escapes);
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
