#include "blocks.h"

#include "raised.h"

static PyTypeObject *block_type;
static PyObject *enter_unusually;
static initproc init_with_options;

/* ------------------------------------------------------------------ __init__ */

static int init(PyObject *self, PyObject *arguments, PyObject *options)
{
    Py_ssize_t number = PyTuple_GET_SIZE(arguments);
    PyObject *name = number == 0 ? Py_None : PyTuple_GET_ITEM(arguments, 0);
    if (Py_TYPE(self) != block_type || number > 1 || (options != NULL && PyDict_GET_SIZE(options) != 0) ||
        (name != Py_None && !PyUnicode_CheckExact(name)) || get(self, SCOPE_STATE) != Py_None) {
        return init_with_options(self, arguments, options);
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
static bool modules_were_imported(void)
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

uint64_t compiled_changes;

static int set_current(PyObject *scope)
{
    PyObject *token = PyContextVar_Set(bound[CURRENT], scope);
    /* At once: what goes with the token may ask which scope is current. */
    compiled_changes++;
    Py_XDECREF(token);
    return token == NULL ? -1 : 0;
}

PyObject *compiled_set_current(PyObject *module, PyObject *scope)
{
    (void)module;
    if (!is_bound() || (scope != Py_None && !is_scope(scope))) {
        PyErr_SetString(PyExc_TypeError, "set_current() takes a scope, or None");
        return NULL;
    }
    if (set_current(scope) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *leave_with_room(PyObject *self, PyObject *doing, PyObject *in_flight);

static PyObject *enter(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *below = top();
    if (below == NULL) {
        return NULL;
    }
    if (get(self, SCOPE_STATE) != state_unopened || (below != Py_None && get(below, SCOPE_DIRECT) != Py_True) ||
        get(self, SCOPE_KEEP_PAGES) != Py_False || !entered_plainly() || modules_were_imported()) {
        Py_DECREF(below);
        return PyObject_CallOneArg(enter_unusually, self);
    }
    bool unlike_below =
        below == Py_None || get(below, SCOPE_ARENA) != Py_True || get(self, SCOPE_PARTICULAR) != Py_False;
    put(self, SCOPE_BELOW, below);
    put(self, SCOPE_OUTER, below);
    Py_DECREF(below);
    if (set_current(self) < 0) {
        return NULL;
    }
    put(self, SCOPE_DIRECT, Py_True);
    put(self, SCOPE_STATE, state_open);
    if ((unlike_below && PyList_GET_SIZE(bound[MEMORY]) != 0 && serve(name_entered, self) < 0) ||
        tell(bound[ENTERED], NULL, self, NULL) < 0 || tell(bound[LISTENERS], name_opened, self, NULL) < 0) {
        /* No with statement leaves what could not be entered. */
        PyObject *raised = take_raised();
        PyObject *left = leave_with_room(self, name_leaving, raised);
        if (left != NULL) {
            Py_DECREF(left);
            put_raised(raised);
        }
        Py_DECREF(raised);
        return NULL;
    }
    return Py_NewRef(self);
}

/* ------------------------------------------------------------------ __exit__ and close */

/* So many calls more than the limit of recursion allows are made while a scope is left: a block that has reached the limit
 * is left like any other. */
enum { ROOM = 200 };

static void make_room(int calls)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyThreadState_Get()->py_recursion_remaining += calls;
#else
    PyThreadState_Get()->recursion_remaining += calls;
#endif
}

/* Puts the exception that is set among those that are raised when all is done. */
static void keep_raised(PyObject *failures)
{
    PyObject *raised = take_raised();
    if (PyList_Append(failures, raised) < 0) {
        /* No memory: it is lost, and the scope is left. */
        PyErr_Clear();
    }
    Py_DECREF(raised);
}

/* As `scope.again`: calls a function whose steps can be taken again, once more where it was interrupted. NULL without an
 * error where it was both times; what was raised is among the failures. */
static PyObject *again(PyObject *failures, PyObject *function, PyObject *scope, PyObject *argument)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        PyObject *done = PyObject_CallFunctionObjArgs(function, scope, argument, NULL);
        if (done != NULL) {
            return done;
        }
        keep_raised(failures);
    }
    return NULL;
}

/* Off the context variable, and what served the context before serves it again. Runs no Python code. */
static void step_down(PyObject *self, PyObject *failures)
{
    PyObject *below = Py_NewRef(get(self, SCOPE_BELOW));
    if (set_current(below) < 0) {
        keep_raised(failures);
    }
    /* The outermost scope found the arena in service where a task inherited it from a scope that is closed. */
    if (PyList_GET_SIZE(bound[MEMORY]) != 0 &&
        (get(self, SCOPE_SERVED) != Py_None || (below == Py_None && get(self, SCOPE_ARENA) == Py_True)) &&
        serve(name_left, self) < 0) {
        keep_raised(failures);
    }
    Py_DECREF(below);
}

static void put_closed(PyObject *self)
{
    put(self, SCOPE_STATE, state_closed);
    put(self, SCOPE_DIRECT, Py_False);
    put(self, SCOPE_FRAME, Py_None);
    put(self, SCOPE_PASSED_OVER, empty_tuple);
}

/* Where the end of a scope was interrupted twice: what it owned is nobody's, and lives by reference count. */
static void give_up(PyObject *self)
{
    PyObject *entries = get(self, SCOPE_ENTRIES), *entry;
    put_closed(self);
    if (!PyDict_CheckExact(entries)) {
        return;
    }
    for (Py_ssize_t at = 0; PyDict_Next(entries, &at, &entry, NULL);) {
        put(entry, ENTRY_OWNER, Py_None);
        if (Py_TYPE(entry) == strong_type && PyDict_DelItem(bound[LIVE], get(entry, ENTRY_KEY)) < 0) {
            PyErr_Clear();
        }
    }
    PyDict_Clear(entries);
}

static PyObject *raise_what_failed(PyObject *self, PyObject *doing, PyObject *failures, PyObject *escaped, PyObject *in_flight)
{
    PyObject *done =
        PyObject_CallFunctionObjArgs(bound[RAISE_WHAT_FAILED], self, doing, failures, escaped, in_flight, NULL);
    if (done == NULL) {
        /* Frames that hold the list are reached from the tracebacks in it. */
        PyObject *raised = take_raised();
        if (PyList_SetSlice(failures, 0, PyList_GET_SIZE(failures), NULL) < 0) {
            PyErr_Clear();
        }
        put_raised(raised);
        Py_DECREF(raised);
    }
    return done;
}

/* Whether a scope that is left has nothing to release, and nobody to tell. */
static bool is_bare(PyObject *self)
{
    PyObject *entries = get(self, SCOPE_ENTRIES);
    return PyDict_CheckExact(entries) && PyDict_GET_SIZE(entries) == 0 && get(self, SCOPE_ACCOUNT) == Py_None &&
           get(self, SCOPE_KEEP_PAGES) == Py_False && PyList_GET_SIZE(bound[DEAD_COMPOSITES]) == 0 &&
           PyList_GET_SIZE(bound[LISTENERS]) == 0;
}

/* Off the stack, then `scope.end`, then what was raised is raised. `in_flight` is None where nothing passes through. */
static PyObject *leave_block(PyObject *self, PyObject *doing, PyObject *in_flight)
{
    PyObject *now = top();
    if (now == NULL) {
        return NULL;
    }
    Py_DECREF(now);
    if (get(self, SCOPE_STATE) == state_unopened && doing == name_leaving) {
        return PyObject_CallOneArg(bound[LEAVE_THE_STACK], self);
    }
    PyObject *failures = PyList_New(0), *escaped = NULL, *done;
    if (failures == NULL) {
        return NULL;
    }
    if (now == self) {
        step_down(self, failures);
    }
    else if (doing == name_leaving) {
        Py_XDECREF(again(failures, bound[LEAVE_THE_STACK], self, NULL));
    }
    if (in_flight != Py_None) {
        if ((done = PyObject_CallOneArg(bound[EXPLAIN], in_flight)) == NULL) {
            keep_raised(failures);
        }
        Py_XDECREF(done);
    }
    if (get(self, SCOPE_STATE) != state_closed) {
        if (get(self, SCOPE_STATE) == state_open && get(self, SCOPE_KEEP_PAGES) == Py_False) {
            if (tell(bound[LEFT], NULL, self, NULL) == 0) {
                put_closed(self);
            }
            else {
                keep_raised(failures);
            }
        }
        if (get(self, SCOPE_STATE) != state_closed || !is_bare(self)) {
            escaped = again(failures, bound[END], self, failures);
            if (escaped == NULL) {
                give_up(self);
            }
        }
    }
    if (PyList_GET_SIZE(failures) == 0 && (escaped == NULL || escaped == Py_None)) {
        done = Py_NewRef(Py_None);
    }
    else {
        done = raise_what_failed(self, doing, failures, escaped == NULL ? Py_None : escaped, in_flight);
    }
    Py_XDECREF(escaped);
    Py_DECREF(failures);
    return done;
}

static PyObject *leave_with_room(PyObject *self, PyObject *doing, PyObject *in_flight)
{
    make_room(ROOM);
    PyObject *done = leave_block(self, doing, in_flight);
    make_room(-ROOM);
    return done;
}

PyObject *compiled_leave(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 3 || !is_bound() || !is_scope(arguments[0]) || !PyUnicode_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "leave() takes a scope, what is done, and what is on its way");
        return NULL;
    }
    int leaving = PyUnicode_Compare(arguments[1], name_leaving) == 0;
    return leave_with_room(arguments[0], leaving ? name_leaving : arguments[1], arguments[2]);
}

static PyObject *leave(PyObject *self, PyObject *const *arguments, Py_ssize_t number)
{
    if (number != 3) {
        PyErr_Format(PyExc_TypeError, "__exit__() takes 3 arguments, not %zd", number);
        return NULL;
    }
    PyObject *done = leave_with_room(self, name_leaving, arguments[1]);
    if (done == NULL) {
        return NULL;
    }
    Py_DECREF(done);
    Py_RETURN_FALSE;
}

/* ------------------------------------------------------------------ methods that are undone */

/* Calls a method; where it raises, whatever it has come to, calls another one with what it raised, which then propagates. */
static PyObject *call_or_undo(PyObject *both, PyObject *const *arguments, Py_ssize_t number)
{
    PyObject *done = PyObject_Vectorcall(PyTuple_GET_ITEM(both, 0), arguments, (size_t)number, NULL);
    if (done == NULL && number > 0) {
        PyObject *raised = take_raised();
        PyObject *undone = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(both, 1), arguments[0], raised, NULL);
        if (undone != NULL) {
            Py_DECREF(undone);
            put_raised(raised);
        }
        Py_DECREF(raised);
    }
    return done;
}

PyObject *compiled_with_undo(PyObject *module, PyObject *both)
{
    static PyMethodDef definition = {"method", (PyCFunction)(void (*)(void))call_or_undo, METH_FASTCALL, NULL};
    (void)module;
    if (!PyTuple_CheckExact(both) || PyTuple_GET_SIZE(both) != 2) {
        PyErr_SetString(PyExc_TypeError, "with_undo() takes a pair of methods");
        return NULL;
    }
    PyObject *function = PyCFunction_New(&definition, both);
    PyObject *method = function == NULL ? NULL : PyInstanceMethod_New(function);
    Py_XDECREF(function);
    return method;
}

/* ------------------------------------------------------------------ putting them in place */

static PyMethodDef methods[] = {
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, NULL},
    {0},
};

PyObject *compiled_install(PyObject *module, PyObject *given)
{
    (void)module;
    if (!is_bound() || !PyType_Check(given) || !PyType_IsSubtype((PyTypeObject *)given, scope_type) || block_type != NULL) {
        PyErr_SetString(PyExc_TypeError, "install_compiled() takes the class of scopes, once");
        return NULL;
    }
    PyTypeObject *type = (PyTypeObject *)given;
    PyObject *before = PyObject_GetAttrString(given, "_enter"), *after[2] = {NULL, NULL};
    if (before != NULL) {
        after[0] = PyDescr_NewMethod(type, &methods[0]);
        after[1] = PyDescr_NewMethod(type, &methods[1]);
    }
    if (after[0] == NULL || after[1] == NULL || PyObject_SetAttrString(given, "__enter__", after[0]) < 0 ||
        PyObject_SetAttrString(given, "__exit__", after[1]) < 0) {
        Py_XDECREF(before);
        Py_XDECREF(after[0]);
        Py_XDECREF(after[1]);
        return NULL;
    }
    Py_DECREF(after[0]);
    Py_DECREF(after[1]);
    enter_unusually = before;
    block_type = (PyTypeObject *)Py_NewRef(given);
    /* The slot alone: the class keeps its `__init__`, whose signature people read. Should anybody change the class,
     * Python fills the slot anew, with the same but slower. */
    init_with_options = type->tp_init;
    type->tp_init = init;
    Py_RETURN_NONE;
}
