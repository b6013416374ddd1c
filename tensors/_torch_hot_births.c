#include "_torch_hot_births.h"

#include <stdbool.h>

#include "../scopes/_slots.h"
#include "_torch_hot_bound.h"

enum object {
    CURRENT, BORN, KIND, BACKWARD_RUNNING, TRANSFORM_RUNNING, IS_KNOWN, BIRTHS_COUNT, BIRTHS_IN, ASSIGNED, MAKERS, THROUGH,
    BUDGETED, REFUSAL_OF, OBJECTS
};

static const char *const names[OBJECTS] = {
    [CURRENT] = "CURRENT",
    [BORN] = "born",
    [KIND] = "kind",
    [BACKWARD_RUNNING] = "backward_running",
    [TRANSFORM_RUNNING] = "transform_running",
    [IS_KNOWN] = "is_known",
    [BIRTHS_COUNT] = "births_count",
    [BIRTHS_IN] = "births_in",
    [ASSIGNED] = "assigned",
    [MAKERS] = "makers",
    [THROUGH] = "through",
    [BUDGETED] = "budgeted",
    [REFUSAL_OF] = "refusal_of",
};

static PyObject *bound[OBJECTS];
static PyTypeObject *tensor_type, *scope_type, *wrapper_type;
static Py_ssize_t direct_offset;
/* References to a tensor that a call has made and nobody else has; 0 where that tells nothing. */
static Py_ssize_t fresh;
static PyTypeObject *plain_types[16];
static Py_ssize_t plain_count;
static PyObject *no_graph_task, *name_deepcopy;

/* Codes of which it is known that what their calls return is born: held, so that an address means one code. */
enum { MAKERS_KEPT = 1024 };
static PyObject *makers[MAKERS_KEPT];

static inline size_t place_of(PyObject *code) { return ((uintptr_t)code >> 5) % MAKERS_KEPT; }

PyObject *births_bind(PyObject *module, PyObject *things)
{
    (void)module;
    if (!may_bind(things, bound[CURRENT])) {
        return NULL;
    }
    PyObject *tensor = PyDict_GetItemString(things, "Tensor"), *scope = PyDict_GetItemString(things, "ScopeView");
    PyObject *plain = PyDict_GetItemString(things, "plain"), *references = PyDict_GetItemString(things, "fresh");
    PyObject *wrapper = PyDict_GetItemString(things, "MethodWrapperType");
    PyObject *current = PyDict_GetItemString(things, "CURRENT"), *known = PyDict_GetItemString(things, "makers");
    if (tensor == NULL || !PyType_Check(tensor) || scope == NULL || !PyType_Check(scope) || plain == NULL ||
        !PyTuple_CheckExact(plain) || references == NULL || current == NULL || !PyContextVar_CheckExact(current) ||
        known == NULL || !PyDict_CheckExact(known) || wrapper == NULL || !PyType_Check(wrapper)) {
        PyErr_SetString(PyExc_TypeError, "bind_births() was given something else than it wants");
        return NULL;
    }
    Py_ssize_t expected = PyLong_AsSsize_t(references);
    if (expected == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if ((direct_offset = offset_of_slot((PyTypeObject *)scope, "_direct")) < 0) {
        return NULL;
    }
    if ((no_graph_task = PyLong_FromLong(-1)) == NULL ||
        (name_deepcopy = PyUnicode_InternFromString("deepcopy")) == NULL ||
        take(things, names, OBJECTS, bound) < 0) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plain) && plain_count < 16; i++) {
        if (PyType_Check(PyTuple_GET_ITEM(plain, i))) {
            plain_types[plain_count++] = (PyTypeObject *)Py_NewRef(PyTuple_GET_ITEM(plain, i));
        }
    }
    fresh = expected;
    tensor_type = (PyTypeObject *)Py_NewRef(tensor);
    wrapper_type = (PyTypeObject *)Py_NewRef(wrapper);
    scope_type = (PyTypeObject *)Py_NewRef(scope);
    Py_RETURN_NONE;
}

bool births_are_bound(void) { return bound[CURRENT] != NULL; }

/* Whether code is known to make births, or is now found to be. */
static bool makes(PyObject *code)
{
    size_t place = place_of(code);
    if (makers[place] == code) {
        return true;
    }
    PyObject *key = PyLong_FromVoidPtr(code);
    PyObject *known = key == NULL ? NULL : PyDict_GetItemWithError(bound[MAKERS], key);
    Py_XDECREF(key);
    if (known == NULL) {
        PyErr_Clear();
    }
    if (known != code) {
        return false;
    }
    PyObject *before = makers[place];
    makers[place] = Py_NewRef(code);
    Py_XDECREF(before);
    return true;
}

/* Whether the code that runs in a frame, or that called a Python function of PyTorch which runs there, makes births. */
static bool made_by(PyFrameObject *frame)
{
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    bool answer = false;
    if (code != bound[THROUGH]) {
        answer = makes(code);
        Py_DECREF(code);
        return answer;
    }
    Py_DECREF(code);
    PyFrameObject *function = PyFrame_GetBack(frame);
    PyFrameObject *caller = function == NULL ? NULL : PyFrame_GetBack(function);
    if (caller != NULL) {
        PyCodeObject *of_caller = PyFrame_GetCode(caller);
        /* A copy may be that of a module: the Python function looks. */
        answer = PyUnicode_Compare(of_caller->co_name, name_deepcopy) != 0 && makes((PyObject *)of_caller);
        Py_DECREF(of_caller);
    }
    Py_XDECREF(caller);
    Py_XDECREF(function);
    return answer;
}

/* Whether neither a backward pass nor a transform is running. -1 with an error set. */
static int undisturbed(void)
{
    PyObject *task = PyObject_CallNoArgs(bound[BACKWARD_RUNNING]);
    if (task == NULL) {
        return -1;
    }
    int none = task == no_graph_task ? 1 : PyObject_RichCompareBool(task, no_graph_task, Py_EQ);
    Py_DECREF(task);
    if (none <= 0) {
        return none;
    }
    PyObject *transform = PyObject_CallNoArgs(bound[TRANSFORM_RUNNING]);
    if (transform == NULL) {
        return -1;
    }
    none = transform == Py_None;
    Py_DECREF(transform);
    return none;
}

/* Raises what a budget has to say. -1 with an error set, also where `refusal` is NULL; takes the reference over. */
static int raise_refusal(PyObject *refusal)
{
    int refused = refusal == NULL || refusal != Py_None;
    if (refusal != NULL && refused) {
        PyErr_SetObject((PyObject *)Py_TYPE(refusal), refusal);
    }
    Py_XDECREF(refusal);
    return refused ? -1 : 0;
}

/* Whether the budgets of the scopes allow what a call has made. -1 with an error set. */
static int within_budget(PyObject *tensor, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t budgets = PyObject_Size(bound[BUDGETED]);
    if (budgets <= 0) {
        return (int)budgets;
    }
    PyObject *made = Py_BuildValue("[O]", tensor), *given = Py_BuildValue("(OO)", args, kwargs);
    PyObject *refusal = made == NULL || given == NULL
                            ? NULL
                            : PyObject_CallFunctionObjArgs(bound[REFUSAL_OF], made, given, NULL);
    Py_XDECREF(made);
    Py_XDECREF(given);
    return raise_refusal(refusal);
}

/* A tensor came out of a call while a scope is entered. -1 with an error set. */
static int consider(PyObject *tensor, PyObject *scope, PyObject *func, PyObject *args, PyObject *kwargs)
{
    if (Py_REFCNT(tensor) != fresh) {
        PyObject *known = PyObject_CallFunctionObjArgs(bound[IS_KNOWN], tensor, func, args, kwargs, NULL);
        int answer = known == NULL ? -1 : PyObject_IsTrue(known);
        Py_XDECREF(known);
        if (answer != 0) {
            return answer < 0 ? -1 : 0;
        }
    }
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *direct = *(PyObject **)((char *)scope + direct_offset);
    int counts = 0;
    if (direct == Py_True && frame != NULL && made_by(frame)) {
        counts = undisturbed();
    }
    else {
        PyObject *told = PyObject_CallOneArg(bound[BIRTHS_COUNT], frame == NULL ? Py_None : (PyObject *)frame);
        counts = told == NULL ? -1 : PyObject_IsTrue(told);
        Py_XDECREF(told);
    }
    if (counts <= 0) {
        return counts;
    }
    if (within_budget(tensor, args, kwargs) < 0) {
        return -1;
    }
    /* The compiled `born` need not find the scope again. */
    PyObject *arguments[] = {tensor, bound[KIND], scope};
    bool knows_it = direct == Py_True && PyCFunction_CheckExact(bound[BORN]);
    PyObject *entry = PyObject_Vectorcall(bound[BORN], arguments, knows_it ? 3 : 2, NULL);
    Py_XDECREF(entry);
    return entry == NULL ? -1 : 0;
}

/* The class that a scope had last. */
static PyTypeObject *usual_scope_type;

static bool is_scope(PyObject *object) { return is_instance(object, scope_type, &usual_scope_type); }

static bool is_plain(PyTypeObject *type)
{
    for (Py_ssize_t i = 0; i < plain_count; i++) {
        if (plain_types[i] == type) {
            return true;
        }
    }
    return false;
}

/* `BirthMode.__torch_function__`: func, types, args, kwargs. */
static PyObject *handle(PyObject *mode, PyObject *const *arguments, Py_ssize_t number)
{
    (void)mode;
    if (number < 2 || number > 4 || scope_type == NULL || (number > 2 && !PyTuple_Check(arguments[2])) ||
        (number > 3 && arguments[3] != Py_None && !PyDict_Check(arguments[3]))) {
        PyErr_SetString(PyExc_TypeError, "__torch_function__() takes a function, types, a tuple and a dict");
        return NULL;
    }
    PyObject *func = arguments[0], *kwargs = number > 3 ? arguments[3] : Py_None;
    PyObject *args = number > 2 ? Py_NewRef(arguments[2]) : PyTuple_New(0);
    PyObject *result = args == NULL ? NULL : PyObject_Call(func, args, kwargs == Py_None ? NULL : kwargs);
    if (result == NULL) {
        Py_XDECREF(args);
        return NULL;
    }
    PyTypeObject *type = Py_TYPE(result);
    int failed = 0;
    if (type == tensor_type || (result != Py_None && !is_plain(type))) {
        PyObject *scope;
        failed = PyContextVar_Get(bound[CURRENT], Py_None, &scope);
        if (failed == 0) {
            if (scope != Py_None && !is_scope(scope)) {
                PyErr_SetString(PyExc_TypeError, "the current scope is none");
                failed = -1;
            }
            else if (scope != Py_None && type == tensor_type) {
                failed = consider(result, scope, func, args, kwargs);
            }
            else if (scope != Py_None) {
                PyFrameObject *frame = PyEval_GetFrame();
                failed = raise_refusal(PyObject_CallFunctionObjArgs(
                    bound[BIRTHS_IN], result, func, args, kwargs, frame == NULL ? Py_None : (PyObject *)frame, NULL));
            }
            Py_DECREF(scope);
        }
    }
    else if (result == Py_None && Py_TYPE(func) == wrapper_type) {
        PyObject *done = PyObject_CallFunctionObjArgs(bound[ASSIGNED], func, args, NULL);
        failed = done == NULL ? -1 : 0;
        Py_XDECREF(done);
    }
    Py_DECREF(args);
    if (failed < 0) {
        PyObject *error, *value, *traceback;
        PyErr_Fetch(&error, &value, &traceback);
        Py_CLEAR(result);
        PyErr_Restore(error, value, traceback);
    }
    return result;
}

static PyMethodDef handler = {"__torch_function__", (PyCFunction)(void (*)(void))handle, METH_FASTCALL, NULL};

PyObject *births_handler_of(PyObject *module, PyObject *mode)
{
    (void)module;
    return PyCFunction_New(&handler, mode);
}
