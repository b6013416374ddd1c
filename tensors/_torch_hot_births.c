#include "_torch_hot_births.h"

#include "../scopes/_slots.h"
#include "_torch_hot_attributes.h"
#include "_torch_hot_bound.h"
#include "_torch_hot_code.h"
#include "_torch_hot_mode.h"
#include "_torch_hot_seam.h"
#include "_torch_hot_state.h"

enum object { CURRENT, RESOLVE, BORN, KIND, LISTENERS, BUDGETED, CLASSES, IS_BORN, JUDGE, ASK, GIVE_UP, SUMMON, TELL, OBJECTS };

static const char *const names[OBJECTS] = {
    [CURRENT] = "CURRENT",     [RESOLVE] = "resolve",   [BORN] = "born_untold", [KIND] = "kind",       [LISTENERS] = "LISTENERS",
    [BUDGETED] = "BUDGETED",   [CLASSES] = "classes",   [IS_BORN] = "is_born",  [JUDGE] = "judge",     [ASK] = "ask",
    [GIVE_UP] = "give_up",     [SUMMON] = "summon",     [TELL] = "tell",
};

static PyObject *bound[OBJECTS];
static PyTypeObject *tensor_type, *scope_type;
static Py_ssize_t direct_offset;
static bool seen;
/* The class that a scope had last. */
static PyTypeObject *usual_scope_type;
static initproc init_of_classes;

PyObject *births_bind(PyObject *module, PyObject *things)
{
    (void)module;
    if (!may_bind(things, bound[CURRENT])) {
        return NULL;
    }
    PyObject *tensor = PyDict_GetItemString(things, "Tensor"), *scope = PyDict_GetItemString(things, "ScopeView");
    PyObject *current = PyDict_GetItemString(things, "CURRENT"), *listeners = PyDict_GetItemString(things, "LISTENERS");
    PyObject *budgeted = PyDict_GetItemString(things, "BUDGETED"), *classes = PyDict_GetItemString(things, "classes");
    if (tensor == NULL || !PyType_Check(tensor) || scope == NULL || !PyType_Check(scope) || current == NULL ||
        !PyContextVar_CheckExact(current) || listeners == NULL || !PyList_CheckExact(listeners) || budgeted == NULL ||
        !PyDict_CheckExact(budgeted) || classes == NULL || !PyDict_CheckExact(classes)) {
        PyErr_SetString(PyExc_TypeError, "bind_births() was given something else than it wants");
        return NULL;
    }
    if ((direct_offset = offset_of_slot((PyTypeObject *)scope, "_direct")) < 0 || take(things, names, OBJECTS, bound) < 0) {
        return NULL;
    }
    tensor_type = (PyTypeObject *)Py_NewRef(tensor);
    scope_type = (PyTypeObject *)Py_NewRef(scope);
    code_bind(bound[JUDGE], bound[ASK]);
    mode_bind(bound[TELL]);
    Py_RETURN_NONE;
}

bool births_are_bound(void) { return bound[CURRENT] != NULL; }
bool births_are_seen(void) { return seen; }
bool births_are_told(void) { return PyList_GET_SIZE(bound[LISTENERS]) != 0 || PyDict_GET_SIZE(bound[BUDGETED]) != 0; }

/* Whether a scope may own the instances of a class. -1 with an error set. */
static int is_born(PyTypeObject *type)
{
    if (type == tensor_type) {
        return 1;
    }
    PyObject *known = PyDict_GetItemWithError(bound[CLASSES], (PyObject *)type);
    if (known != NULL) {
        return known == Py_True;
    }
    PyObject *told = PyErr_Occurred() ? NULL : PyObject_CallOneArg(bound[IS_BORN], (PyObject *)type);
    int answer = told == NULL ? -1 : PyObject_IsTrue(told);
    Py_XDECREF(told);
    return answer;
}

/* Has the mode on this thread's stack, that the birth is told of when the call is over. 1, or -1 with an error set. */
static int summon_mode(void)
{
    int there = seam_has_mode();
    if (there != 0) {
        return there;
    }
    PyObject *done = PyObject_CallNoArgs(bound[SUMMON]);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

/* The scope that a tensor which is about to be made belongs to, a new reference, or None. NULL with an error set. */
static PyObject *owner_to_be(PyTypeObject *type)
{
    PyObject *scope;
    if (PyContextVar_Get(bound[CURRENT], Py_None, &scope) < 0 || scope == Py_None) {
        return scope;
    }
    int answer = is_instance(scope, scope_type, &usual_scope_type) && !attributes_are_read() && !state_is_particular();
    answer = answer == 0 ? 0 : is_born(type);
    answer = answer <= 0 ? answer : seam_is_undisturbed();
    answer = answer <= 0 ? answer : code_makes_births();
    if (answer > 0 && births_are_told()) {
        answer = summon_mode();
    }
    if (answer > 0 && read_slot(scope, direct_offset) != Py_True) {
        Py_SETREF(scope, PyObject_CallOneArg(bound[RESOLVE], scope));
        return scope;
    }
    if (answer <= 0) {
        Py_DECREF(scope);
        return answer < 0 ? NULL : Py_NewRef(Py_None);
    }
    return scope;
}

/* An error where none can be raised. An interrupt comes again, when the interpreter looks for the next. */
static void report(void)
{
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        PyErr_Clear();
        PyErr_SetInterrupt();
    }
    else {
        PyErr_WriteUnraisable((PyObject *)tensor_type);
    }
}

/* Makes the entry of a tensor that has an address and nothing else: no code but this may run before PyTorch has filled it, and
 * the collector of garbage must not look at it. */
static void record(PyObject *tensor, PyObject *scope)
{
    int collects = PyGC_Disable();
    PyObject *arguments[] = {tensor, bound[KIND], scope};
    PyObject *entry = PyObject_Vectorcall(bound[BORN], arguments, 3, NULL);
    if (entry == NULL || (births_are_told() && seam_add_untold(entry) < 0)) {
        report();
    }
    Py_XDECREF(entry);
    if (collects) {
        PyGC_Enable();
    }
}

/* What the classes of tensors get their instances' memory from. */
static PyObject *allocate(PyTypeObject *type, Py_ssize_t items)
{
    /* A caller may hold an exception: it is none of this. */
    PyObject *error, *value, *traceback;
    PyErr_Fetch(&error, &value, &traceback);
    PyObject *scope = owner_to_be(type);
    if (scope == NULL) {
        report();
    }
    PyErr_Restore(error, value, traceback);
    PyObject *tensor = PyType_GenericAlloc(type, items);
    if (tensor != NULL && scope != NULL && scope != Py_None) {
        record(tensor, scope);
    }
    Py_XDECREF(scope);
    return tensor;
}

static void watch_class(PyTypeObject *type)
{
    if (type->tp_alloc == PyType_GenericAlloc) {
        type->tp_alloc = allocate;
    }
}

/* `__init__` of the class of tensor classes: of each new one. */
static int init_class(PyObject *type, PyObject *args, PyObject *kwargs)
{
    int failed = init_of_classes(type, args, kwargs);
    if (failed == 0 && PyType_Check(type)) {
        watch_class((PyTypeObject *)type);
    }
    return failed;
}

/* Takes the place of `__init__` in a class of tensor classes, and in those that will be derived from it, which take it from
 * its descriptor. */
static int watch_metatype(PyTypeObject *metatype)
{
    if (metatype->tp_init != init_of_classes) {
        return 0;
    }
    PyObject *descriptor = PyObject_GetAttrString((PyObject *)metatype, "__init__");
    if (descriptor == NULL) {
        return -1;
    }
    metatype->tp_init = init_class;
    if (Py_IS_TYPE(descriptor, &PyWrapperDescr_Type) &&
        *(initproc *)&((PyWrapperDescrObject *)descriptor)->d_wrapped == init_of_classes) {
        *(initproc *)&((PyWrapperDescrObject *)descriptor)->d_wrapped = init_class;
    }
    Py_DECREF(descriptor);
    return 0;
}

static bool are_types(PyObject *tuple)
{
    bool fit = tuple != NULL && PyTuple_CheckExact(tuple) && PyTuple_GET_SIZE(tuple) != 0;
    for (Py_ssize_t i = 0; fit && i < PyTuple_GET_SIZE(tuple); i++) {
        fit = PyType_Check(PyTuple_GET_ITEM(tuple, i));
    }
    return fit;
}

PyObject *births_watch(PyObject *module, PyObject *things)
{
    (void)module;
    PyObject *types, *metatypes, *attributes, *numpy, *paths;
    unsigned long key;
    if (!PyArg_ParseTuple(things, "O!O!O!OO!k:watch_births", &PyTuple_Type, &types, &PyTuple_Type, &metatypes, &PyTuple_Type,
                          &attributes, &numpy, &PyTuple_Type, &paths, &key)) {
        return NULL;
    }
    if (!births_are_bound() || seen || !are_types(types) || !are_types(metatypes)) {
        PyErr_SetString(PyExc_RuntimeError, "watch_births() takes types, after bind_births() and once in a process");
        return NULL;
    }
    if (tensor_type->tp_alloc != PyType_GenericAlloc) {
        Py_RETURN_FALSE;
    }
    int found = state_find(paths, key);
    if (found <= 0) {
        return found < 0 ? NULL : Py_NewRef(Py_False);
    }
    if (attributes_watch(attributes, numpy, bound[GIVE_UP]) < 0) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); i++) {
        watch_class((PyTypeObject *)PyTuple_GET_ITEM(types, i));
    }
    init_of_classes = ((PyTypeObject *)PyTuple_GET_ITEM(metatypes, 0))->tp_init;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(metatypes); i++) {
        if (watch_metatype((PyTypeObject *)PyTuple_GET_ITEM(metatypes, i)) < 0) {
            return NULL;
        }
    }
    seen = true;
    Py_RETURN_TRUE;
}
