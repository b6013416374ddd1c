#include "_hot_blocks.h"

static PyTypeObject *block_type;
static PyObject *enter_in_python, *exit_in_python;
static initproc init_in_python;

/* ------------------------------------------------------------------ __init__ */

static int init(PyObject *self, PyObject *arguments, PyObject *options)
{
    Py_ssize_t number = PyTuple_GET_SIZE(arguments);
    PyObject *name = number == 0 ? Py_None : PyTuple_GET_ITEM(arguments, 0);
    if (Py_TYPE(self) != block_type || number > 1 || (options != NULL && PyDict_GET_SIZE(options) != 0) ||
        (name != Py_None && !PyUnicode_CheckExact(name)) || get(self, SCOPE_STATE) != Py_None) {
        return init_in_python(self, arguments, options);
    }
    PyObject *entries = PyDict_New();
    if (entries == NULL) {
        return -1;
    }
    put(self, SCOPE_NAME, name);
    put(self, SCOPE_STRICT, Py_False);
    put(self, SCOPE_GRAPH, name_keep);
    put(self, SCOPE_KEEP_PAGES, Py_False);
    put(self, SCOPE_BUDGET, Py_None);
    put(self, SCOPE_ARENA, Py_True);
    put(self, SCOPE_PARTICULAR, Py_False);
    put(self, SCOPE_ACCOUNT, Py_None);
    put(self, SCOPE_SERVED, Py_None);
    put(self, SCOPE_ENTRIES, entries);
    put(self, SCOPE_STATE, state_unopened);
    put(self, SCOPE_DIRECT, Py_False);
    put(self, SCOPE_FRAME, Py_None);
    put(self, SCOPE_PASSED_OVER, empty_tuple);
    Py_DECREF(entries);
    return 0;
}

/* ------------------------------------------------------------------ __enter__ */

/* Whether the code that enters is a plain function's: no generator, and nothing that enters on behalf of one. */
static bool entered_plainly(void)
{
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == NULL) {
        return false;
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool plain = !(code->co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR));
    if (plain) {
        int entering = PySet_Contains(bound[ENTERING], code->co_name);
        plain = entering == 0;
        if (entering < 0) {
            PyErr_Clear();
        }
    }
    Py_DECREF(code);
    return plain;
}

/* Whether a module has been imported that some kind waits for, or may have been. */
static bool somebody_arrived(void)
{
    if (PyDict_GET_SIZE(bound[AWAITED]) == 0) {
        return false;
    }
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *seen = PyList_GET_SIZE(bound[MODULES_SEEN]) == 0 ? NULL : PyList_GET_ITEM(bound[MODULES_SEEN], 0);
    if (modules == NULL || !PyDict_CheckExact(modules) || seen == NULL || !PyLong_CheckExact(seen)) {
        return true;
    }
    Py_ssize_t known = PyLong_AsSsize_t(seen);
    if (known == -1 && PyErr_Occurred()) {
        PyErr_Clear();
    }
    return known != PyDict_GET_SIZE(modules);
}

/* Calls a method of what serves plain memory. -1 with an error set. */
static int serve(PyObject *method, PyObject *scope)
{
    PyObject *memory = Py_NewRef(PyList_GET_ITEM(bound[MEMORY], 0));
    PyObject *function = PyObject_GetAttr(memory, method);
    PyObject *done = function == NULL ? NULL : PyObject_CallOneArg(function, scope);
    Py_DECREF(memory);
    Py_XDECREF(function);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

uint64_t hot_changes;

PyObject *hot_changed(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    hot_changes++;
    Py_RETURN_NONE;
}

static int set_current(PyObject *scope)
{
    PyObject *token = PyContextVar_Set(bound[CURRENT], scope);
    /* At once: what goes with the token may ask which scope is current. */
    hot_changes++;
    Py_XDECREF(token);
    return token == NULL ? -1 : 0;
}

static PyObject *enter(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *below = top();
    if (below == NULL) {
        return NULL;
    }
    if (get(self, SCOPE_STATE) != state_unopened || (below != Py_None && get(below, SCOPE_DIRECT) != Py_True) ||
        get(self, SCOPE_KEEP_PAGES) != Py_False || !entered_plainly() || somebody_arrived()) {
        Py_DECREF(below);
        return PyObject_CallOneArg(enter_in_python, self);
    }
    bool unlike_below =
        below == Py_None || get(below, SCOPE_ARENA) != Py_True || get(self, SCOPE_PARTICULAR) != Py_False;
    put(self, SCOPE_BELOW, below);
    put(self, SCOPE_OUTER, below);
    Py_DECREF(below);
    put(self, SCOPE_DIRECT, Py_True);
    put(self, SCOPE_STATE, state_open);
    if (set_current(self) < 0 || (unlike_below && PyList_GET_SIZE(bound[MEMORY]) != 0 && serve(name_entered, self) < 0) ||
        tell(bound[ENTERED], NULL, self, NULL) < 0 || tell(bound[LISTENERS], name_opened, self, NULL) < 0) {
        return NULL;
    }
    return Py_NewRef(self);
}

/* ------------------------------------------------------------------ __exit__ */

static PyObject *leave(PyObject *self, PyObject *const *arguments, Py_ssize_t number)
{
    PyObject *now = top();
    if (now == NULL) {
        return NULL;
    }
    Py_DECREF(now);
    if (number != 3 || arguments[1] != Py_None || now != self || get(self, SCOPE_STATE) != state_open) {
        PyObject *all[4] = {self};
        if (number > 3) {
            PyErr_Format(PyExc_TypeError, "__exit__() takes 3 arguments, not %zd", number);
            return NULL;
        }
        for (Py_ssize_t i = 0; i < number; i++) {
            all[i + 1] = arguments[i];
        }
        return PyObject_Vectorcall(exit_in_python, all, (size_t)number + 1, NULL);
    }
    PyObject *below = Py_NewRef(get(self, SCOPE_BELOW));
    int failed = set_current(below);
    bool outermost = below == Py_None;
    Py_DECREF(below);
    /* The outermost scope found the arena in service where a task inherited it from a scope that is closed. */
    if (failed == 0 && PyList_GET_SIZE(bound[MEMORY]) != 0 &&
        (get(self, SCOPE_SERVED) != Py_None || (outermost && get(self, SCOPE_ARENA) == Py_True))) {
        failed = serve(name_left, self);
    }
    if (failed < 0 || tell(bound[LEFT], NULL, self, NULL) < 0) {
        return NULL;
    }
    PyObject *entries = get(self, SCOPE_ENTRIES);
    if (get(self, SCOPE_DIRECT) == Py_True && PyDict_CheckExact(entries) && PyDict_GET_SIZE(entries) == 0 &&
        get(self, SCOPE_ACCOUNT) == Py_None && PyList_GET_SIZE(bound[ESTATES]) == 0 &&
        PyList_GET_SIZE(bound[LISTENERS]) == 0 && get(self, SCOPE_KEEP_PAGES) == Py_False) {
        put(self, SCOPE_STATE, state_closed);
        put(self, SCOPE_DIRECT, Py_False);
        Py_RETURN_FALSE;
    }
    PyObject *done = PyObject_CallMethodOneArg(self, name_end, Py_None);
    if (done == NULL) {
        return NULL;
    }
    Py_DECREF(done);
    Py_RETURN_FALSE;
}

/* ------------------------------------------------------------------ putting them in place */

static PyMethodDef methods[] = {
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, NULL},
    {0},
};

PyObject *hot_quicken(PyObject *module, PyObject *given)
{
    (void)module;
    if (!is_bound() || !PyType_Check(given) || !PyType_IsSubtype((PyTypeObject *)given, scope_type) || block_type != NULL) {
        PyErr_SetString(PyExc_TypeError, "quicken() takes the class of scopes, once");
        return NULL;
    }
    PyTypeObject *type = (PyTypeObject *)given;
    PyObject *before[2], *after[2] = {NULL, NULL};
    before[0] = PyObject_GetAttrString(given, "__enter__");
    before[1] = PyObject_GetAttrString(given, "__exit__");
    if (before[0] != NULL && before[1] != NULL) {
        after[0] = PyDescr_NewMethod(type, &methods[0]);
        after[1] = PyDescr_NewMethod(type, &methods[1]);
    }
    if (after[0] == NULL || after[1] == NULL || PyObject_SetAttrString(given, "__enter__", after[0]) < 0 ||
        PyObject_SetAttrString(given, "__exit__", after[1]) < 0) {
        Py_XDECREF(before[0]);
        Py_XDECREF(before[1]);
        Py_XDECREF(after[0]);
        Py_XDECREF(after[1]);
        return NULL;
    }
    Py_DECREF(after[0]);
    Py_DECREF(after[1]);
    enter_in_python = before[0];
    exit_in_python = before[1];
    block_type = (PyTypeObject *)Py_NewRef(given);
    /* The slot alone: the class keeps its `__init__`, whose signature people read. Should anybody change the class,
     * Python fills the slot anew, with the same but slower. */
    init_in_python = type->tp_init;
    type->tp_init = init;
    Py_RETURN_NONE;
}
