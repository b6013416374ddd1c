/* The module `compiled`: the state of the log, its functions as compiled.pyi describes them, and those for other rooms. */
#include "log.h"

#include "../../../scopes/src/module.h"
#include "api.h"

#include <time.h>

struct birth_log birth_log = {.frames = 1};

double log_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time); /* what is kept are milliseconds */
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

PyObject *log_import(const char *name_of_module, const char *name)
{
    PyObject *module = PyImport_ImportModule(name_of_module);
    PyObject *found = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return found;
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
    birth_log.marks++;
    return PyLong_FromUnsignedLong(sites_passes(number));
}

static PyObject *closing(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromUnsignedLong(++birth_log.closings);
}

static PyObject *counts(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return Py_BuildValue("KIIn", (unsigned long long)birth_log.births, birth_log.marks, birth_log.closings,
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

static PyObject *escapes(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromUnsignedLongLong(birth_log.escapes);
}

static PyObject *place(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    struct place here;
    if (!places_innermost(&here)) {
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
    birth_log.frames = frames == 0 ? 1 : frames;
    births_sample(nbytes);
    birth_log.is_open = true;
    Py_RETURN_NONE;
}

static PyObject *close_log(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    birth_log.is_open = false;
    Py_RETURN_NONE;
}

static PyObject *clear(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    if (birth_log.is_clearing) {
        Py_RETURN_NONE;
    }
    /* What is let go may take anything with it, and births meanwhile are not recorded. */
    birth_log.is_clearing = true;
    birth_log.era++;
    birth_log.cleared_at = birth_log.births;
    sightings_clear();
    table_clear();
    sites_clear();
    int failed = names_make(&scope_names) < 0 || names_make(&pass_names) < 0;
    birth_log.is_clearing = false;
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *cleared_at(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromUnsignedLongLong(birth_log.cleared_at);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef functions[] = {
    {"blocks", rows_blocks, METH_VARARGS, NULL},
    {"born", births_born, METH_O, NULL},
    {"clear", clear, METH_NOARGS, NULL},
    {"cleared_at", cleared_at, METH_NOARGS, NULL},
    {"close", close_log, METH_NOARGS, NULL},
    {"closing", closing, METH_NOARGS, NULL},
    {"counts", counts, METH_NOARGS, NULL},
    {"describe_kind", births_describe_kind, METH_VARARGS, NULL},
    {"died", births_died, METH_O, NULL},
    {"entries", rows_entries, METH_VARARGS, NULL},
    {"escape", births_escape, METH_O, NULL},
    {"escapes", escapes, METH_NOARGS, NULL},
    {"exclude", births_exclude, METH_O, NULL},
    {"has_escaped", births_has_escaped, METH_O, NULL},
    {"is_in_use", FAST(rows_is_in_use), METH_FASTCALL, NULL},
    {"let_out", births_let_out, METH_O, NULL},
    {"live_nbytes", live_nbytes, METH_NOARGS, NULL},
    {"mark", mark, METH_O, NULL},
    {"open", open_log, METH_VARARGS, NULL},
    {"passes", passes, METH_NOARGS, NULL},
    {"place", place, METH_NOARGS, NULL},
    {"recall", rows_recall, METH_O, NULL},
    {"recall_block", rows_recall_block, METH_O, NULL},
    {"recall_memory", rows_recall_memory, METH_O, NULL},
    {"released", births_released, METH_O, NULL},
    {"series", FAST(series), METH_FASTCALL, NULL},
    {"sight", FAST(births_sight), METH_FASTCALL, NULL},
    {"sightings", rows_sightings, METH_VARARGS, NULL},
    {"site", sites_row, METH_O, NULL},
    {"site_count", site_count, METH_NOARGS, NULL},
    {"untrack", rows_untrack, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static bool api_is_open(void) { return birth_log.is_open && !birth_log.is_clearing; }
static bool api_has_block(void *address)
{
    const struct row *row = table_find(address);
    return row != NULL && !(row->flags & ROW_ENTRY);
}
static bool api_samples(void) { return birth_log.samples; }
static bool api_is_known(PyObject *object) { return sightings_of(object) != NULL; }
static int api_know(PyObject *object)
{
    struct sighting *sighting = birth_log.is_clearing || sightings_of(object) != NULL ? NULL : sightings_add(object);
    Py_XDECREF((PyObject *)sighting);
    return PyErr_Occurred() ? -1 : 0;
}
static uint16_t api_kind_number(PyObject *name) { return names_number(&kind_names, name); }
static uint16_t api_device_number(PyObject *name) { return names_number(&device_names, name); }

static struct birthlog_api api = {
    .is_open = api_is_open,
    .block_born = births_of_block,
    .block_died = births_block_died,
    .block_moved = births_block_moved,
    .has_block = api_has_block,
    .samples = api_samples,
    .is_kept = births_keep,
    .sight = births_sight_memory,
    .is_known = api_is_known,
    .know = api_know,
    .remember = remembered_here,
    .use = remembered_use,
    .name_calls_by = places_name_calls_by,
    .kind_number = api_kind_number,
    .device_number = api_device_number,
};

static int fill(PyObject *module)
{
    static bool is_made;
#ifdef Py_GIL_DISABLED
    PyErr_SetString(PyExc_ImportError, "the compiled birth log relies on the global interpreter lock");
    return -1;
#endif
    if (!module_may_be_made(module, is_made)) {
        return -1;
    }
    birth_log.loaded_at = log_now();
    birth_log.disposals = PyDict_New();
    if (birth_log.disposals == NULL || births_make() < 0 || places_make() < 0 || scopes_make() < 0 ||
        names_make(&op_names) < 0 || names_make(&kind_names) < 0 || names_make(&device_names) < 0 ||
        names_make(&scope_names) < 0 || names_make(&pass_names) < 0 || sightings_make() < 0 || PyType_Ready(&row_type) < 0) {
        return -1;
    }
    PyObject *capsule = PyCapsule_New(&api, BIRTHLOG_CAPSULE, NULL);
    is_made = capsule != NULL && PyModule_AddObjectRef(module, "api", capsule) == 0 &&
              PyModule_AddObjectRef(module, "disposals", birth_log.disposals) == 0 &&
              PyModule_AddObjectRef(module, "Sighting", (PyObject *)&sighting_type) == 0 &&
              PyModule_AddObjectRef(module, "Row", (PyObject *)&row_type) == 0;
    Py_XDECREF(capsule);
    return is_made ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, MAIN_INTERPRETER_ONLY {0, NULL}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
