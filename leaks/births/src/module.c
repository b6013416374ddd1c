/* The module `compiled`: the type of the log and the one instance, as compiled.pyi describes them,
 * and what other compiled parts call. */
#include "log.h"

#include "../../../scopes/src/shared/birth_log.h"
#include "../../../scopes/src/shared/module.h"

#include <stddef.h>
#include <structmember.h>

/* ------------------------------------------------------------------ the log as a whole */

static PyObject *open_log(Log *log, PyObject *arguments)
{
    unsigned int frames;
    unsigned long long nbytes;
    if (!PyArg_ParseTuple(arguments, "IK:open", &frames, &nbytes)) {
        return NULL;
    }
    if (!log->is_open) {
        log->openings++;
        sites_begin(log);
    }
    log->frames = frames == 0 ? 1 : frames;
    births_sample(log, nbytes);
    log->is_open = true;
    Py_RETURN_NONE;
}

static PyObject *close_log(Log *log, PyObject *ignored)
{
    (void)ignored;
    log->is_open = false;
    Py_RETURN_NONE;
}

static PyObject *clear(Log *log, PyObject *ignored)
{
    (void)ignored;
    if (log->is_clearing) {
        Py_RETURN_NONE;
    }
    /* What is freed here may run any Python code; births in it are not recorded. */
    log->is_clearing = true;
    log->clearings++;
    log->cleared_at = log->last_birth;
    births_clear(log);
    sites_clear(log);
    int failed = scope_names_make(&log->scope_names) < 0 || names_make(&log->pass_names) < 0;
    log->is_clearing = false;
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *cleared_at(Log *log, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLongLong(log->cleared_at);
}

static PyObject *report_begins(Log *log, PyObject *ignored)
{
    (void)ignored;
    sites_report(log, true);
    Py_RETURN_NONE;
}

static PyObject *report_ends(Log *log, PyObject *ignored)
{
    (void)ignored;
    sites_report(log, false);
    Py_RETURN_NONE;
}

static PyObject *openings(Log *log, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLongLong(log->openings);
}

static PyObject *counts(Log *log, PyObject *ignored)
{
    (void)ignored;
    return Py_BuildValue("KIII", (unsigned long long)log->last_birth, log->marks, log->closings, log->births.count);
}

static PyObject *look_at_births(Log *log, PyObject *look)
{
    births_look(log, look == Py_None ? NULL : look);
    Py_RETURN_NONE;
}

static PyObject *wake_for_looks(Log *log, PyObject *wake)
{
    births_wake(log, wake == Py_None ? NULL : wake);
    Py_RETURN_NONE;
}

static PyObject *look_here(Log *log, PyObject *look)
{
    if (births_look_here(log, look) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *closing(Log *log, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLong(++log->closings);
}

static PyObject *escapes(Log *log, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLongLong(log->escapes);
}

static PyObject *site_count_of(Log *log, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLong(log->sites.count);
}

/* Add a number to a dict under a name, unless it is 0. -1 with an exception. */
static int add_number(PyObject *found, PyObject *name, long long number)
{
    PyObject *object = number == 0 ? NULL : PyLong_FromLongLong(number);
    int failed = number == 0 ? 0 : object == NULL ? -1 : PyDict_SetItem(found, name, object);
    Py_XDECREF(object);
    return failed;
}

static PyObject *passes(Log *log, PyObject *ignored)
{
    (void)ignored;
    PyObject *found = PyDict_New();
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(log->pass_names.objects); i++) {
        if (add_number(found, PyList_GET_ITEM(log->pass_names.objects, i), sites_passes(log, (uint16_t)i)) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

static PyObject *record_soon(Log *log, PyObject *names)
{
    PyObject *all = PySequence_Fast(names, "record_soon() takes an iterable of names");
    for (Py_ssize_t i = 0; all != NULL && i < PySequence_Fast_GET_SIZE(all); i++) {
        uint16_t number = names_number(&log->ops, PySequence_Fast_GET_ITEM(all, i));
        if (number == NO_NUMBER) {
            PyErr_SetString(PyExc_TypeError, "record_soon() takes names");
            Py_CLEAR(all);
            break;
        }
        log->recorded_soon[number / 64] |= UINT64_C(1) << (number % 64);
    }
    Py_XDECREF(all);
    return all == NULL ? NULL : Py_NewRef(Py_None);
}

static PyObject *live_nbytes(Log *log, PyObject *ignored)
{
    (void)ignored;
    PyObject *found = PyDict_New();
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(log->devices.objects) && i < DEVICES; i++) {
        if (add_number(found, PyList_GET_ITEM(log->devices.objects, i), log->sites.live_nbytes[i]) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

static PyObject *place(Log *log, PyObject *ignored)
{
    (void)ignored;
    struct place here;
    if (!place_here(log, &here)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("On", (PyObject *)here.code, (Py_ssize_t)here.instruction);
}

/* ------------------------------------------------------------------ the type */

#define METHOD(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef methods[] = {
    {"blocks", METHOD(rows_blocks), METH_VARARGS, NULL},
    {"born", METHOD(births_born), METH_O, NULL},
    {"clear", METHOD(clear), METH_NOARGS, NULL},
    {"cleared_at", METHOD(cleared_at), METH_NOARGS, NULL},
    {"openings", METHOD(openings), METH_NOARGS, NULL},
    {"close", METHOD(close_log), METH_NOARGS, NULL},
    {"closing", METHOD(closing), METH_NOARGS, NULL},
    {"counts", METHOD(counts), METH_NOARGS, NULL},
    {"describe_kind", METHOD(births_describe_kind), METH_VARARGS, NULL},
    {"died", METHOD(births_died), METH_O, NULL},
    {"entries", METHOD(rows_entries), METH_VARARGS, NULL},
    {"escape", METHOD(births_escape), METH_O, NULL},
    {"escapes", METHOD(escapes), METH_NOARGS, NULL},
    {"exclude", METHOD(births_exclude), METH_O, NULL},
    {"has_escaped", METHOD(births_has_escaped), METH_O, NULL},
    {"is_in_use", METHOD(rows_is_in_use), METH_FASTCALL, NULL},
    {"count_elsewhere", METHOD(births_count_elsewhere), METH_FASTCALL, NULL},
    {"let_out", METHOD(births_let_out), METH_O, NULL},
    {"live_nbytes", METHOD(live_nbytes), METH_NOARGS, NULL},
    {"look_at_births", METHOD(look_at_births), METH_O, NULL},
    {"look_here", METHOD(look_here), METH_O, NULL},
    {"wake_for_looks", METHOD(wake_for_looks), METH_O, NULL},
    {"mark", METHOD(sites_mark), METH_O, NULL},
    {"open", METHOD(open_log), METH_VARARGS, NULL},
    {"passes", METHOD(passes), METH_NOARGS, NULL},
    {"last_pass", METHOD(sites_last_pass), METH_O, NULL},
    {"report_begins", METHOD(report_begins), METH_NOARGS, NULL},
    {"report_ends", METHOD(report_ends), METH_NOARGS, NULL},
    {"place", METHOD(place), METH_NOARGS, NULL},
    {"recall", METHOD(rows_recall), METH_O, NULL},
    {"recall_block", METHOD(rows_recall_block), METH_O, NULL},
    {"recall_memory", METHOD(rows_recall_memory), METH_O, NULL},
    {"record_memory", METHOD(births_record_memory), METH_FASTCALL, NULL},
    {"record_owner", METHOD(births_record_owner), METH_FASTCALL, NULL},
    {"recorded_memory", METHOD(rows_recorded_memory), METH_VARARGS, NULL},
    {"released", METHOD(births_released), METH_O, NULL},
    {"record_soon", METHOD(record_soon), METH_O, NULL},
    {"series", METHOD(sites_series), METH_FASTCALL, NULL},
    {"site", METHOD(sites_site), METH_O, NULL},
    {"site_count", METHOD(site_count_of), METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"c_api", T_OBJECT_EX, offsetof(Log, api), READONLY, NULL},
    {"disposals", T_OBJECT_EX, offsetof(Log, disposals), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* The instance is never freed: resources are born and die while the interpreter shuts down. */
PyTypeObject log_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "disposescope.leaks.births.compiled.Log",
    .tp_doc = "What is known of everything that was seen to be born and is there still.",
    .tp_basicsize = sizeof(Log),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_methods = methods,
    .tp_members = members,
};

/* ------------------------------------------------------------------ what other compiled parts call */

/* The one instance, which the functions of the interface act on; a reference that is never released. */
static Log *the_log;

static bool api_is_open(void) { return log_records(the_log); }
static bool api_block_born(void *address, size_t nbytes, uint16_t kind, uint16_t device)
{
    return block_born(the_log, address, nbytes, kind, device);
}
static void api_block_died(void *address) { block_died(the_log, address); }
static void api_block_moved(void *before, void *after, size_t nbytes) { block_moved(the_log, before, after, nbytes); }
static bool api_has_block(void *address)
{
    const struct birth *birth = birth_of(the_log, address);
    return birth != NULL && !(birth->flags & (BIRTH_OF_ENTRY | BIRTH_OF_MEMORY));
}
static bool api_samples(void) { return the_log->sampling.is_on; }
static bool api_is_kept(size_t nbytes) { return births_keep(the_log, nbytes); }
static int api_memory_born(PyObject *object, PyObject *op, size_t nbytes, uint16_t kind, uint16_t device)
{
    return memory_born(the_log, object, op, nbytes, kind, device);
}
static void api_passed_unseen(void)
{
    /* Where births are sampled, births that are not kept get no number either. */
    if (log_records(the_log) && !the_log->sampling.is_on) {
        the_log->last_birth++;
        sites_birth(the_log);
    }
}
static bool api_has_memory(PyObject *object) { return birth_of_memory(the_log, object) != NULL; }
static int api_exclude_memory(PyObject *object) { return memory_exclude(the_log, object); }
static PyObject *api_remember_origin(void) { return origin_remember(the_log); }
static bool api_is_recorded_soon(PyObject *remembered) { return origin_is_recorded_soon(the_log, remembered); }
static bool api_is_recent(PyObject *remembered) { return origin_is_recent(the_log, remembered); }
static void api_use_origin(PyObject *remembered) { origin_use(the_log, remembered); }
static uint16_t api_kind_number(PyObject *name) { return names_number(&the_log->kind_names, name); }
static uint16_t api_device_number(PyObject *name) { return names_number(&the_log->devices, name); }

static struct birth_log_api api = {
    .is_open = api_is_open,
    .block_born = api_block_born,
    .block_died = api_block_died,
    .block_moved = api_block_moved,
    .has_block = api_has_block,
    .samples = api_samples,
    .is_kept = api_is_kept,
    .memory_born = api_memory_born,
    .passed_unseen = api_passed_unseen,
    .has_memory = api_has_memory,
    .exclude_memory = api_exclude_memory,
    .remember_origin = api_remember_origin,
    .is_recorded_soon = api_is_recorded_soon,
    .is_recent = api_is_recent,
    .use_origin = api_use_origin,
    .kind_number = api_kind_number,
    .device_number = api_device_number,
};

/* ------------------------------------------------------------------ the module */

/* What a Python module has under a name: a new reference, or NULL with an exception. The log never
 * releases what it got so: there are births while the interpreter shuts down. */
static PyObject *import_name(const char *name_of_module, const char *name)
{
    PyObject *module = PyImport_ImportModule(name_of_module);
    PyObject *found = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return found;
}

/* Set up a log that is all zeros; -1 with an exception. */
static int make_log(Log *log)
{
    log->frames = 1;
    log->made_at = seconds_now();
    if (births_make(log) < 0 || names_make(&log->ops) < 0 || names_make(&log->kind_names) < 0 ||
        names_make(&log->devices) < 0 || scope_names_make(&log->scope_names) < 0 || names_make(&log->pass_names) < 0 ||
        (log->disposals = PyDict_New()) == NULL || (log->api = PyCapsule_New(&api, BIRTH_LOG_CAPSULE, NULL)) == NULL ||
        (log->rank_of = import_name("disposescope.scopes.base.sites", "rank_of")) == NULL ||
        (log->name_of_call = import_name("disposescope.scopes.base.sites", "name_of_call")) == NULL ||
        (log->storages_of = import_name("disposescope.scopes.identity", "storages_of")) == NULL ||
        (log->device_of_entry = import_name("disposescope.scopes.identity", "device_of_entry")) == NULL) {
        return -1;
    }
    PyObject *capsule = import_name("disposescope.scopes.compiled", "api");
    log->scopes = capsule == NULL ? NULL : scopes_api_of(capsule);
    Py_XDECREF(capsule);
    return log->scopes == NULL ? -1 : 0;
}

/* Have the garbage collector pass over the objects of a list: see `untrack` in compiled.pyi. */
static PyObject *untrack(PyObject *module, PyObject *objects)
{
    (void)module;
    if (!PyList_CheckExact(objects)) {
        PyErr_Format(PyExc_TypeError, "untrack() takes a list, not a %s", Py_TYPE(objects)->tp_name);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); i++) {
        if (PyObject_IS_GC(PyList_GET_ITEM(objects, i))) {
            PyObject_GC_UnTrack(PyList_GET_ITEM(objects, i));
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"untrack", untrack, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
    static bool is_made;
    if (!module_may_be_made(module, is_made)) {
        return -1;
    }
    if (PyType_Ready(&log_type) < 0 || PyType_Ready(&row_type) < 0) {
        return -1;
    }
    the_log = (Log *)log_type.tp_alloc(&log_type, 0);
    if (the_log == NULL || make_log(the_log) < 0) {
        return -1;
    }
    is_made = PyModule_AddObjectRef(module, "LOG", (PyObject *)the_log) == 0 &&
              PyModule_AddType(module, &log_type) == 0 && PyModule_AddType(module, &memory_reference_type) == 0 &&
              PyModule_AddType(module, &row_type) == 0 && sites_add_type(module) == 0;
    return is_made ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)fill}, MAIN_INTERPRETER_ONLY {0, NULL}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
