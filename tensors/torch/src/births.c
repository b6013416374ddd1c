#include "births.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "../../../leaks/births/src/frames.h"
#include "../../../scopes/src/raised.h"
#include "../../../scopes/src/slots.h"
#include "bound.h"
#include "looks.h"
#include "seam.h"
#include "state.h"

/* ================================================================== errors that are raised later */

static PyObject *threading;

void errors_bind(PyObject *module) { threading = Py_NewRef(module); }

/* What the interpreter calls on the main thread, between two steps of its code. */
static int raise_now(void *error)
{
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)error), error);
    Py_DECREF((PyObject *)error);
    return -1;
}

static bool is_main_thread(void)
{
    PyObject *thread = PyObject_GetAttrString(threading, "_main_thread");
    PyObject *ident = thread == NULL ? NULL : PyObject_GetAttrString(thread, "_ident");
    unsigned long number = ident == NULL ? 0 : PyLong_AsUnsignedLong(ident);
    bool is_main = !PyErr_Occurred() && number == PyThread_get_thread_ident();
    PyErr_Clear();
    Py_XDECREF(thread);
    Py_XDECREF(ident);
    return is_main;
}

static bool goes_down(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

void error_raise_later(PyObject *error)
{
    if (goes_down()) {
        /* No code goes on. */
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        PyErr_WriteUnraisable(NULL);
    }
    else if (is_main_thread() && Py_AddPendingCall(raise_now, error) == 0) {
        return;
    }
    else {
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), (PyObject *)Py_TYPE(error));
    }
    Py_DECREF(error);
}

/* ================================================================== attributes that are no births */

enum { AT_MOST = 8 };

struct attribute {
    /* What the descriptor refers to from now on, and what it referred to. */
    PyGetSetDef definition;
    const PyGetSetDef *before;
};

static struct attribute attributes[AT_MOST];
static PyMethodDef method;
static PyCFunctionWithKeywords numpy_before;
static PyObject *assigned_function, *names_of_passing;
/* How many functions that make no births run on this thread. */
static _Thread_local int depth;
/* The frame that reads an attribute on this thread, alive meanwhile. */
static _Thread_local const void *reading;

bool attributes_make_unborn(void) { return depth != 0; }

bool attributes_are_read(void)
{
    if (reading == NULL) {
        return false;
    }
    struct walk walk;
    walk_begin(&walk);
    bool directly = walk_ended(&walk) || walk.frame == reading;
    if (!directly) {
        PyObject *names = walk_globals(&walk);
        directly = names == names_of_passing;
        Py_XDECREF(names);
    }
    walk_end(&walk);
    return directly;
}

static PyObject *read_attribute(PyObject *tensor, void *closure)
{
    const PyGetSetDef *definition = ((struct attribute *)closure)->before;
    const void *before = reading;
    struct walk walk;
    walk_begin(&walk);
    reading = walk.frame;
    PyObject *value = definition->get(tensor, definition->closure);
    reading = before;
    walk_end(&walk);
    return value;
}

static int assign_attribute(PyObject *tensor, PyObject *value, void *closure)
{
    const PyGetSetDef *before = ((struct attribute *)closure)->before;
    if (before->set(tensor, value, before->closure) < 0) {
        return -1;
    }
    if (value == NULL || value == Py_None) {
        return 0;
    }
    PyObject *done = PyObject_CallOneArg(assigned_function, value);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *call_numpy(PyObject *tensor, PyObject *args, PyObject *kwargs)
{
    const void *before = reading;
    struct walk walk;
    walk_begin(&walk);
    reading = walk.frame;
    PyObject *array = numpy_before(tensor, args, kwargs);
    reading = before;
    walk_end(&walk);
    return array;
}

PyObject *attributes_unborn(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 2) {
        PyErr_SetString(PyExc_TypeError, "unborn() takes a function and its argument");
        return NULL;
    }
    depth++;
    PyObject *result = PyObject_CallOneArg(arguments[0], arguments[1]);
    depth--;
    return result;
}

bool attributes_watch(PyObject *descriptors, PyObject *numpy, PyObject *passing, PyObject *assigned)
{
    Py_ssize_t number = PyTuple_GET_SIZE(descriptors);
    bool fit = number <= AT_MOST && Py_IS_TYPE(numpy, &PyMethodDescr_Type) &&
               ((PyMethodDescrObject *)numpy)->d_method->ml_flags == (METH_VARARGS | METH_KEYWORDS);
    for (Py_ssize_t i = 0; fit && i < number; i++) {
        PyObject *descriptor = PyTuple_GET_ITEM(descriptors, i);
        fit = Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) && ((PyGetSetDescrObject *)descriptor)->d_getset->get != NULL;
    }
    if (!fit) {
        return false;
    }
    assigned_function = Py_NewRef(assigned);
    names_of_passing = Py_NewRef(passing);
    for (Py_ssize_t i = 0; i < number; i++) {
        PyGetSetDescrObject *descriptor = (PyGetSetDescrObject *)Py_NewRef(PyTuple_GET_ITEM(descriptors, i));
        struct attribute *attribute = &attributes[i];
        attribute->before = descriptor->d_getset;
        attribute->definition = *attribute->before;
        attribute->definition.get = read_attribute;
        attribute->definition.set = attribute->before->set == NULL ? NULL : assign_attribute;
        attribute->definition.closure = attribute;
        descriptor->d_getset = &attribute->definition;
    }
    PyMethodDescrObject *descriptor = (PyMethodDescrObject *)Py_NewRef(numpy);
    method = *descriptor->d_method;
    numpy_before = (PyCFunctionWithKeywords)(void (*)(void))method.ml_meth;
    method.ml_meth = (PyCFunction)(void (*)(void))call_numpy;
    descriptor->d_method = &method;
    return true;
}

/* ================================================================== what the code that runs is to births */

static PyObject *judge, *ask, *name_module;

/* Verdicts by code, which is held, so that an address means one code. A few that fall together stand side by side, the newest
 * first; a code that has lost its place is judged anew. */
enum { PLACES = 512, WAYS = 4 };
static struct known {
    PyObject *code;
    enum verdict verdict;
} known[PLACES][WAYS];

void code_bind(PyObject *judging, PyObject *asking)
{
    judge = Py_NewRef(judging);
    ask = Py_NewRef(asking);
    name_module = PyUnicode_InternFromString("__name__");
}

/* The name of the module whose code a frame runs, a new reference: None where it has none. NULL with an error set. */
static PyObject *module_of(const struct walk *walk)
{
    PyObject *globals = walk_globals(walk);
    PyObject *name = globals != NULL && PyDict_Check(globals) ? PyDict_GetItemWithError(globals, name_module) : NULL;
    Py_XINCREF(name);
    Py_XDECREF(globals);
    return name != NULL || PyErr_Occurred() ? name : Py_NewRef(Py_None);
}

/* UNKNOWN with an error set. */
static enum verdict verdict_on(const struct walk *walk)
{
    PyObject *code = (PyObject *)walk_code(walk);
    struct known *place = known[((uintptr_t)code >> 5) % PLACES];
    for (int way = 0; way < WAYS; way++) {
        if (place[way].code == code) {
            return place[way].verdict;
        }
    }
    PyObject *module = module_of(walk);
    PyObject *told = module == NULL ? NULL : PyObject_CallFunctionObjArgs(judge, code, module, NULL);
    Py_XDECREF(module);
    long verdict = told == NULL ? -1 : PyLong_AsLong(told);
    Py_XDECREF(told);
    if (verdict <= UNKNOWN || verdict > REBUILDS) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "there is no verdict %ld", verdict);
        }
        return UNKNOWN;
    }
    PyObject *before = place[WAYS - 1].code;
    memmove(place + 1, place, (WAYS - 1) * sizeof *place);
    place[0] = (struct known){Py_NewRef(code), (enum verdict)verdict};
    Py_XDECREF(before);
    return (enum verdict)verdict;
}

/* What the code cannot tell by itself. -1 with an error set. */
static int asked(void)
{
    PyObject *told = PyObject_CallNoArgs(ask);
    int answer = told == NULL ? -1 : PyObject_IsTrue(told);
    Py_XDECREF(told);
    return answer;
}

/* The verdict on the innermost code that is more than passed through. */
static enum verdict verdict_here(void)
{
    struct walk walk;
    enum verdict verdict = MAKES;
    for (walk_begin(&walk); !walk_ended(&walk); walk_out(&walk)) {
        verdict = verdict_on(&walk);
        if (verdict != PASSES && verdict != REBUILDS) {
            break;
        }
    }
    walk_end(&walk);
    return verdict;
}

int code_rebuilds(void)
{
    struct walk walk;
    walk_begin(&walk);
    enum verdict verdict = walk_ended(&walk) ? MAKES : verdict_on(&walk);
    walk_end(&walk);
    return verdict == UNKNOWN ? -1 : verdict == REBUILDS;
}

int code_refuses_births(void)
{
    enum verdict verdict = verdict_here();
    int made = verdict == UNKNOWN ? -1 : verdict == ASKS ? asked() : 1;
    return made < 0 ? -1 : !made;
}

int code_makes_births(void)
{
    switch (verdict_here()) {
    case UNKNOWN:
        return -1;
    case KEEPS:
        return 0;
    case ASKS:
        return asked();
    default:
        /* Also where no code but PyTorch's is there at all. */
        return 1;
    }
}

/* ================================================================== births */

enum object { CURRENT, RESOLVE, BORN, KIND, LISTENERS, BUDGETED, IS_BORN, JUDGE, ASK, GIVE_UP, SUMMON, PENDING, SETTLE, OBJECTS };

static const char *const names[OBJECTS] = {
    [CURRENT] = "CURRENT",     [RESOLVE] = "resolve",   [BORN] = "born_pending", [KIND] = "kind",       [LISTENERS] = "LISTENERS",
    [BUDGETED] = "BUDGETED",   [IS_BORN] = "is_born",   [JUDGE] = "judge",      [ASK] = "ask",       [GIVE_UP] = "give_up",
    [SUMMON] = "summon",   [PENDING] = "PENDING",     [SETTLE] = "settle",
};

static PyObject *bound[OBJECTS];
static PyTypeObject *tensor_type, *scope_type;
static Py_ssize_t direct_offset, state_offset;
static PyObject *state_closed;
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
    PyObject *budgeted = PyDict_GetItemString(things, "BUDGETED"), *threading = PyDict_GetItemString(things, "threading");
    PyObject *pending = PyDict_GetItemString(things, "PENDING");
    if (tensor == NULL || !PyType_Check(tensor) || scope == NULL || !PyType_Check(scope) || current == NULL ||
        !PyContextVar_CheckExact(current) || listeners == NULL || !PyList_CheckExact(listeners) || budgeted == NULL ||
        !PyDict_CheckExact(budgeted) || threading == NULL || pending == NULL || !PyList_CheckExact(pending)) {
        PyErr_SetString(PyExc_TypeError, "bind_births() was given something else than it wants");
        return NULL;
    }
    if ((direct_offset = offset_of_slot((PyTypeObject *)scope, "_direct")) < 0 ||
        (state_offset = offset_of_slot((PyTypeObject *)scope, "_state")) < 0 ||
        (state_closed = PyLong_FromLong(2)) == NULL || take(things, names, OBJECTS, bound) < 0) {
        return NULL;
    }
    tensor_type = (PyTypeObject *)Py_NewRef(tensor);
    scope_type = (PyTypeObject *)Py_NewRef(scope);
    code_bind(bound[JUDGE], bound[ASK]);
    errors_bind(threading);
    return looks_bind(things) < 0 ? NULL : Py_NewRef(Py_None);
}

static bool births_are_bound(void) { return bound[CURRENT] != NULL; }
bool births_are_seen(void) { return seen; }
bool births_need_the_mode(void) { return PyDict_GET_SIZE(bound[BUDGETED]) != 0; }

static PyObject *allocate(PyTypeObject *type, Py_ssize_t items);
static PyObject *allocate_born(PyTypeObject *type, Py_ssize_t items);

/* Whether a scope may own the instances of a class, which remembers it by where they get their memory from. -1 with an error
 * set. */
static int is_born(PyTypeObject *type)
{
    if (type->tp_alloc == allocate_born) {
        return 1;
    }
    PyObject *told = PyObject_CallOneArg(bound[IS_BORN], (PyObject *)type);
    int answer = told == NULL ? -1 : PyObject_IsTrue(told);
    Py_XDECREF(told);
    if (answer >= 0 && type->tp_alloc == allocate) {
        type->tp_alloc = answer ? allocate_born : PyType_GenericAlloc;
    }
    return answer;
}

/* Has the mode on this thread's stack, which asks the budgets when the call is over. 1, or -1 with an error set. */
static int summon_mode(void)
{
    if (seam_forget_dead() < 0) {
        return -1;
    }
    int there = seam_has_mode();
    if (there != 0) {
        return there;
    }
    PyObject *done = PyObject_CallNoArgs(bound[SUMMON]);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

/* Whether a tensor that is made now would be born in a scope. -1 with an error set. */
static int is_birth(PyTypeObject *type)
{
    if (attributes_make_unborn() || attributes_are_read() || state_is_particular()) {
        return 0;
    }
    int answer = is_born(type);
    if (answer > 0) {
        int at_work = seam_at_work();
        answer = at_work < 0 ? -1 : at_work == 0;
    }
    answer = answer <= 0 ? answer : code_makes_births();
    return answer > 0 && births_need_the_mode() ? summon_mode() : answer;
}

/* The scope that a tensor belongs to which is being made, a new reference; NULL for none, with or without an error set. Can run
 * any code, but none between a last look at the scope and the return. */
static PyObject *owner(PyTypeObject *type)
{
    PyObject *scope;
    if (PyContextVar_Get(bound[CURRENT], Py_None, &scope) < 0) {
        return NULL;
    }
    if (scope == Py_None || !is_instance(scope, scope_type, &usual_scope_type) || is_birth(type) <= 0) {
        Py_DECREF(scope);
        return NULL;
    }
    if (read_slot(scope, direct_offset) == Py_True && read_slot(scope, state_offset) != state_closed) {
        return scope;
    }
    do {
        Py_SETREF(scope, PyObject_CallOneArg(bound[RESOLVE], scope));
        if (scope == NULL || !is_instance(scope, scope_type, &usual_scope_type)) {
            Py_XDECREF(scope);
            return NULL;
        }
        /* Another thread may have closed it. */
    } while (read_slot(scope, state_offset) == state_closed);
    return scope;
}

/* The same; an error is raised later. */
static PyObject *owner_in_any_case(PyTypeObject *type)
{
    PyObject *scope = owner(type);
    if (scope != NULL || !PyErr_Occurred()) {
        return scope;
    }
    /* An interrupt is nothing of the tensor's: the second time it does not come. */
    PyObject *error = take_raised();
    scope = owner(type);
    if (scope == NULL && PyErr_Occurred()) {
        PyObject *again = take_raised();
        PyException_SetContext(again, error);
        error = again;
    }
    error_raise_later(error);
    return scope;
}

/* Makes the entry of a tensor that has an address and nothing else. No other code runs meanwhile: all it asks for is there, and
 * the collector of garbage waits. */
static void record(PyObject *tensor, PyObject *scope, PyObject *place)
{
    int collects = PyGC_Disable();
    PyObject *arguments[] = {tensor, bound[KIND], scope};
    PyObject *entry = PyObject_Vectorcall(bound[BORN], arguments, 3, NULL);
    if (entry == NULL || (births_need_the_mode() && seam_add_pending(entry) < 0) ||
        (PyList_GET_SIZE(bound[LISTENERS]) != 0 && looks_add(entry, place, LOOK_WHOLE) < 0)) {
        error_raise_later(take_raised());
    }
    Py_XDECREF(entry);
    if (collects) {
        PyGC_Enable();
    }
}

/* What a detector does with a tensor that no scope owns. */
enum watch { UNWATCHED, KNOWN, REPORTED, REBUILT };

/* Whether a detector is to hear of a tensor that is made now: what an attribute shows was there, what a backward pass, an optimizer
 * or the copy of a module makes is the model's, and a compiled function hands over its result. Can run any code. */
static enum watch watch_of(PyTypeObject *type)
{
    int answer = is_born(type);
    int at_work = answer <= 0 ? 0 : seam_at_work();
    enum watch watch = answer <= 0 || (at_work & AT_WORK_COMPILED) ? UNWATCHED : REPORTED;
    if (watch == REPORTED && at_work >= 0) {
        int refused = at_work == 0 && !attributes_are_read() && !state_runs_backward() ? code_refuses_births() : 1;
        int rebuilt = refused ? 0 : code_rebuilds();
        watch = refused ? KNOWN : rebuilt ? REBUILT : REPORTED;
        at_work = refused < 0 || rebuilt < 0 ? -1 : at_work;
    }
    if (answer < 0 || at_work < 0) {
        error_raise_later(take_raised());
        return UNWATCHED;
    }
    return watch;
}

/* Has a detector look at a tensor that no scope owns. No other code runs meanwhile: the tensor is not filled. */
static void watch_unowned(PyObject *tensor, PyObject *place, enum watch watch)
{
    int collects = PyGC_Disable();
    PyObject *reference = PyWeakref_NewRef(tensor, NULL);
    if (reference == NULL || looks_add(reference, place, watch == KNOWN ? LOOK_KNOWN : watch == REBUILT ? LOOK_WHOLE : LOOK_UNOWNED) < 0) {
        error_raise_later(take_raised());
    }
    Py_XDECREF(reference);
    if (collects) {
        PyGC_Enable();
    }
}

void births_look_again(PyObject *tensor)
{
    enum watch watch = looks_are_wanted() ? watch_of(Py_TYPE(tensor)) : UNWATCHED;
    PyObject *place = watch >= REPORTED ? looks_place() : NULL;
    if (watch == KNOWN || place != NULL) {
        watch_unowned(tensor, place, watch);
    }
    Py_XDECREF(place);
}

/* Has disposals looked at that wait for other threads: at the first, second, fourth, eighth birth, and so on, since something
 * waits, lest births beside a thread that computes for long are all slower. */
static void settle_disposals(void)
{
    static unsigned births;
    if (PyList_GET_SIZE(bound[PENDING]) == 0) {
        births = 0;
        return;
    }
    births++;
    if ((births & (births - 1)) == 0) {
        PyObject *done = PyObject_CallNoArgs(bound[SETTLE]);
        if (done == NULL) {
            error_raise_later(take_raised());
        }
        Py_XDECREF(done);
    }
}

/* What the classes of tensors get their instances' memory from, those of which it is not known whether a scope may own them. */
static PyObject *allocate(PyTypeObject *type, Py_ssize_t items)
{
    PyObject *tensor = PyType_GenericAlloc(type, items);
    if (tensor == NULL) {
        return NULL;
    }
    /* A caller may hold an exception: it is none of this. */
    PyObject *error, *value, *traceback;
    PyErr_Fetch(&error, &value, &traceback);
    /* Code that runs before PyTorch has filled the object cannot find it: nothing refers to it, and the collector, which others
     * ask for objects, does not know it. */
    PyObject_GC_UnTrack(tensor);
    if (type == tensor_type) {
        settle_disposals();
    }
    looks_do();
    enum watch watch = looks_are_wanted() ? watch_of(type) : UNWATCHED;
    PyObject *place = watch >= REPORTED ? looks_place() : NULL;
    PyObject *scope = owner_in_any_case(type);
    if (scope != NULL) {
        record(tensor, scope, place);
        Py_DECREF(scope);
    }
    else if (watch == KNOWN || place != NULL) {
        watch_unowned(tensor, place, watch);
    }
    Py_XDECREF(place);
    PyObject_GC_Track(tensor);
    PyErr_Restore(error, value, traceback);
    return tensor;
}

/* The same, and what those get it from that a scope may own. */
static PyObject *allocate_born(PyTypeObject *type, Py_ssize_t items) { return allocate(type, items); }

static void watch_class(PyTypeObject *type)
{
    if (type->tp_alloc == PyType_GenericAlloc && PyType_IS_GC(type)) {
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

/* The descriptor of `__init__` that a class of tensor classes has of its own, compiled; borrowed, and NULL without an error where
 * it has none. */
static PyWrapperDescrObject *init_descriptor(PyTypeObject *metatype)
{
    PyObject *descriptor = PyObject_GetAttrString((PyObject *)metatype, "__init__");
    bool fits = descriptor != NULL && metatype != &PyType_Type && Py_IS_TYPE(descriptor, &PyWrapperDescr_Type) &&
                PyDescr_TYPE(descriptor) == metatype &&
                *(initproc *)&((PyWrapperDescrObject *)descriptor)->d_wrapped == metatype->tp_init;
    PyErr_Clear();
    /* The class holds it. */
    Py_XDECREF(descriptor);
    return fits ? (PyWrapperDescrObject *)descriptor : NULL;
}

/* Takes the place of `__init__` in the classes of tensor classes, and in those that will be derived from the first of them,
 * which take it from its descriptor. One with an `__init__` of its own calls this one, or does without. */
static void watch_metatypes(PyObject *metatypes, PyWrapperDescrObject *descriptor)
{
    init_of_classes = *(initproc *)&descriptor->d_wrapped;
    *(initproc *)&descriptor->d_wrapped = init_class;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(metatypes); i++) {
        PyTypeObject *metatype = (PyTypeObject *)PyTuple_GET_ITEM(metatypes, i);
        if (metatype->tp_init == init_of_classes) {
            metatype->tp_init = init_class;
        }
    }
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
    PyObject *types, *metatypes, *attributes, *numpy, *handing, *passing, *paths;
    unsigned long key;
    if (!PyArg_ParseTuple(things, "O!O!O!OO!O!O!k:watch_births", &PyTuple_Type, &types, &PyTuple_Type, &metatypes, &PyTuple_Type,
                          &attributes, &numpy, &PyTuple_Type, &handing, &PyDict_Type, &passing, &PyTuple_Type, &paths, &key)) {
        return NULL;
    }
    if (!births_are_bound() || seen || !are_types(types) || !are_types(metatypes)) {
        PyErr_SetString(PyExc_RuntimeError, "watch_births() takes types, after bind_births() and once in a process");
        return NULL;
    }
    PyWrapperDescrObject *descriptor = init_descriptor((PyTypeObject *)PyTuple_GET_ITEM(metatypes, 0));
    if (descriptor == NULL || tensor_type->tp_alloc != PyType_GenericAlloc || !PyType_IS_GC(tensor_type)) {
        Py_RETURN_FALSE;
    }
    int found = state_find(paths, key);
    if (found <= 0 || !looks_fit(handing) || !attributes_watch(attributes, numpy, passing, bound[GIVE_UP])) {
        return found < 0 ? NULL : Py_NewRef(Py_False);
    }
    looks_watch(handing);
    watch_metatypes(metatypes, descriptor);
    seen = true;
    return births_watch_classes(module, types);
}

PyObject *births_watch_classes(PyObject *module, PyObject *types)
{
    (void)module;
    if (!seen || !are_types(types)) {
        PyErr_SetString(PyExc_TypeError, "watch_classes() takes a tuple of types, where births are seen");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); i++) {
        watch_class((PyTypeObject *)PyTuple_GET_ITEM(types, i));
    }
    Py_RETURN_TRUE;
}
