/* The table of functions of the module `compiled`, its initialisation, and two functions that list
 * objects. compiled.pyi documents all of them. */
#include "shared/module.h"
#include "scopes.h"

#define FAST(FUNCTION) ((PyCFunction)(void (*)(void))FUNCTION)

/* A cache of the answer whether instances of a type are listed: there are many objects of few
 * types. No Python code may run while it is in use, so that the types stay alive. */
struct listed_types {
    PyObject *classes;
    struct {
        PyTypeObject *type;
        bool is_listed;
    } known[256];
};

static bool are_listed(struct listed_types *types, PyTypeObject *type)
{
    size_t at = (uintptr_t)type / 64 % (sizeof types->known / sizeof types->known[0]);
    if (types->known[at].type != type) {
        Py_ssize_t count = PyTuple_GET_SIZE(types->classes);
        bool is_listed = count == 0 && !PyType_HasFeature(type, Py_TPFLAGS_TUPLE_SUBCLASS);
        for (Py_ssize_t i = 0; i < count && !is_listed; i++) {
            is_listed = PyType_IsSubtype(type, (PyTypeObject *)PyTuple_GET_ITEM(types->classes, i));
        }
        types->known[at].type = type;
        types->known[at].is_listed = is_listed;
    }
    return types->known[at].is_listed;
}

/* Whether an item of a tuple is to be added to the list. An item that the garbage collector tracks
 * is in the list anyway. */
static bool is_listed_in_tuple(struct listed_types *types, PyObject *object)
{
    return object != NULL && are_listed(types, Py_TYPE(object)) && !PyLong_CheckExact(object) &&
           !PyUnicode_CheckExact(object) && !PyObject_GC_IsTracked(object);
}

/* See compiled.pyi. No tuple may be in the list when another thread runs: a tuple that a thread is
 * still making must have one reference only. */
static PyObject *tracked_objects(PyObject *module, PyObject *classes)
{
    (void)module;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); i++) {
        PyObject *cls = PyTuple_GET_ITEM(classes, i);
        if (!PyType_Check(cls)) {
            return PyErr_Format(PyExc_TypeError, "internal error: tracked_objects() takes classes, not %s",
                                Py_TYPE(cls)->tp_name);
        }
    }
    struct listed_types types = {.classes = classes};
    PyObject *found = PyList_New(0);
    PyObject *collector = found == NULL ? NULL : PyImport_ImportModule("gc");
    PyObject *objects = collector == NULL ? NULL : PyObject_CallMethod(collector, "get_objects", NULL);
    bool failed = objects == NULL || !PyList_Check(objects);
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(objects); i++) {
        PyObject *object = PyList_GET_ITEM(objects, i);
        if (are_listed(&types, Py_TYPE(object))) {
            failed = object != found && PyList_Append(found, object) < 0;
        }
        for (Py_ssize_t at = 0; PyTuple_Check(object) && !failed && at < PyTuple_GET_SIZE(object); at++) {
            PyObject *item = PyTuple_GET_ITEM(object, at);
            failed = is_listed_in_tuple(&types, item) && PyList_Append(found, item) < 0;
        }
    }
    Py_XDECREF(objects);
    Py_XDECREF(collector);
    if (failed) {
        Py_CLEAR(found);
    }
    return found;
}

/* Whether an object refers to no other one and is left out of `referents`. A new reference would
 * write to its memory, which matters for a list of a million strings in a forked process. */
static bool is_plain(PyObject *object)
{
    return object == Py_None || PyUnicode_CheckExact(object) || PyLong_CheckExact(object) ||
           PyFloat_CheckExact(object) || PyBytes_CheckExact(object) || PyBool_Check(object) ||
           PyComplex_CheckExact(object);
}

static int visit_referent(PyObject *object, void *found)
{
    /* In Python 3.12 the traversal of the asyncio module visits dead objects in its free list. A
     * new reference to such an object would free it a second time, and make the free list
     * circular. */
    return Py_REFCNT(object) == 0 || is_plain(object) ? 0 : PyList_Append(found, object) < 0;
}

/* See compiled.pyi. */
static PyObject *referents(PyObject *module, PyObject *object)
{
    (void)module;
    PyObject *found = PyList_New(0);
    traverseproc traverse = Py_TYPE(object)->tp_traverse;
    if (found != NULL && PyObject_IS_GC(object) && traverse != NULL && traverse(object, visit_referent, found) != 0) {
        Py_CLEAR(found);
    }
    return found;
}

static PyMethodDef functions[] = {
    {"again", FAST(compiled_again), METH_FASTCALL, NULL},
    {"anchor_died", compiled_anchor_died, METH_O, NULL},
    {"born", FAST(compiled_born), METH_FASTCALL, NULL},
    {"born_tuple", FAST(compiled_born_tuple), METH_FASTCALL, NULL},
    {"change_owner", FAST(compiled_change_owner), METH_FASTCALL, NULL},
    {"clear_process", compiled_clear_process, METH_NOARGS, NULL},
    {"count_open_birth", compiled_count_open_birth, METH_O, NULL},
    {"counts_of_process", compiled_counts_of_process, METH_NOARGS, NULL},
    {"died", compiled_died, METH_O, NULL},
    {"held_entries", FAST(compiled_held_entries), METH_FASTCALL, NULL},
    {"kept_entries", FAST(compiled_kept_entries), METH_FASTCALL, NULL},
    {"leave_birth_open", compiled_leave_birth_open, METH_O, NULL},
    {"make_entry", FAST(compiled_make_entry), METH_FASTCALL, NULL},
    {"modules_were_imported", compiled_modules_were_imported, METH_NOARGS, NULL},
    {"note_modules_seen", compiled_note_modules_seen, METH_O, NULL},
    {"note_variables", compiled_note_variables, METH_O, NULL},
    {"variables_of", compiled_variables_of, METH_O, NULL},
    {"referents", referents, METH_O, NULL},
    {"release", FAST(compiled_release), METH_FASTCALL, NULL},
    {"release_newest", FAST(compiled_release_newest), METH_FASTCALL, NULL},
    {"set_callbacks", FAST(compiled_set_callbacks), METH_VARARGS | METH_KEYWORDS, NULL},
    {"set_current", compiled_set_current, METH_O, NULL},
    {"set_memory_service", compiled_set_memory_service, METH_O, NULL},
    {"sweep", compiled_sweep, METH_NOARGS, NULL},
    {"take_back_birth", compiled_take_back_birth, METH_O, NULL},
    {"thread_ledger", compiled_thread_ledger, METH_NOARGS, NULL},
    {"tracked_objects", tracked_objects, METH_VARARGS, NULL},
    {"with_undo", compiled_with_undo, METH_O, NULL},
    {0},
};

static struct scopes_api api;

static int add_api(PyObject *module)
{
    PyObject *current = PyObject_GetAttrString(module, "CURRENT");
    if (current == NULL) {
        return -1;
    }
    api = (struct scopes_api){
        .scope_state = &scope_state_type,
        .entry = &entry_type,
        .strong_entry = &strong_entry_type,
        .anchored_entry = &anchored_entry_type,
        .current = current,
        .live = live_table,
        .listeners = listeners,
        .resolve = resolve_scope,
        .born_pending = born_pending,
        .leave_birth_open = leave_birth_open,
    };
    PyObject *capsule = PyCapsule_New(&api, SCOPES_API, NULL);
    int failed = capsule == NULL ? -1 : PyModule_AddObjectRef(module, "api", capsule);
    Py_XDECREF(capsule);
    return failed;
}

static int fill(PyObject *module)
{
    static bool is_made;
    if (!module_may_be_made(module, is_made)) {
        return -1;
    }
    if (tables_make(module) < 0 || ledgers_make(module) < 0 || blocks_make(module) < 0 || entries_make(module) < 0 ||
        births_make(module) < 0 || releases_make() < 0 || add_api(module) < 0) {
        return -1;
    }
    is_made = true;
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)fill}, MAIN_INTERPRETER_ONLY {0, NULL}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
