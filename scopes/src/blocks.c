#include "blocks.h"

#include "raised.h"

/* ================================================================== the release of a resource */

/* The resource behind an entry, a new reference, or NULL where it is gone, and where an error is set. That of a tuple is made by
 * Python code. */
static PyObject *resource_of(PyObject *entry)
{
    if (Py_TYPE(entry) == strong_type) {
        PyObject *held = get(entry, STRONG_HELD);
        return held == Py_None ? NULL : Py_NewRef(held);
    }
    if (Py_TYPE(entry) != entry_type) {
        PyObject *resource = PyObject_CallNoArgs(entry);
        if (resource == Py_None) {
            Py_CLEAR(resource);
        }
        return resource;
    }
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *resource;
    if (PyWeakref_GetRef(entry, &resource) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return resource;
#else
    PyObject *resource = PyWeakref_GET_OBJECT(entry);
    return resource == Py_None ? NULL : Py_NewRef(resource);
#endif
}

/* Takes an entry out of LIVE: 1, or 0 where it is not there. -1 with an error set. One step for every other thread. */
static int leave_live(PyObject *entry)
{
    PyObject *key = get(entry, ENTRY_KEY), *taken = NULL;
#if PY_VERSION_HEX >= 0x030D0000
    if (PyDict_Pop(bound[LIVE], key, &taken) < 0) {
        return -1;
    }
#else
    /* The one lookup of a large table is what this costs. */
    if ((taken = _PyDict_Pop(bound[LIVE], key, Py_None)) == NULL) {
        return -1;
    }
#endif
    int there = taken == entry;
    if (!there && taken != NULL && taken != Py_None && PyDict_SetItem(bound[LIVE], key, taken) < 0) {
        there = -1;
    }
    Py_XDECREF(taken);
    return there;
}

/* Puts an entry into DEAD: 1, or 0 where another entry of its resource was released, which is all then. Two threads may each have
 * made one, the second after the first had left LIVE: `identity.track_once` looks into DEAD after it has put its own into LIVE, so
 * that the second one was never in use. -1 with an error set. Runs no Python code. */
static int enter_dead(PyObject *entry, PyObject *resource)
{
    PyObject *key = get(entry, ENTRY_KEY);
    PyObject *there = PyDict_SetDefault(bound[DEAD], key, entry);
    if (there == NULL) {
        return -1;
    }
    if (there == entry) {
        return 1;
    }
    PyObject *other = Py_TYPE(there) == entry_type && Py_TYPE(entry) == entry_type ? resource_of(there) : NULL;
    Py_XDECREF(other);
    if (other == resource) {
        return 0;
    }
    return PyDict_SetItem(bound[DEAD], key, entry) < 0 ? -1 : 1;
}

/* Out of LIVE, into DEAD, out of the list of its owner unless it is `taken` out of that: 1, or 0 where somebody else has released
 * it. One step for every other thread, because no Python code runs. -1 with an error set. */
static int claim(PyObject *entry, PyObject *resource, PyObject *ledger, PyObject *owner, PyObject *taken)
{
    int claimed = leave_live(entry);
    if (claimed > 0 && resource != NULL) {
        claimed = enter_dead(entry, resource);
        if (claimed < 0) {
            /* No memory: it stays what it was. */
            PyObject *error, *value, *traceback;
            PyErr_Fetch(&error, &value, &traceback);
            if (PyDict_SetItem(bound[LIVE], get(entry, ENTRY_KEY), entry) < 0) {
                PyErr_Clear();
            }
            PyErr_Restore(error, value, traceback);
        }
    }
    if (claimed <= 0 || get(entry, ENTRY_UNIT) != Py_None) {
        return claimed;
    }
    if (owner != Py_None && get(owner, SCOPE_ENTRIES) != taken && disown(owner, entry) < 0) {
        return -1;
    }
    count(ledger, owner == Py_None ? DISPOSED_UNSCOPED : DISPOSED_IN_SCOPE);
    return 1;
}

/* Puts the exception that is set into a list, which is made where there is none. -1 without memory. */
static int collect(PyObject **failures)
{
    PyObject *raised = take_raised();
    if (*failures == NULL) {
        *failures = PyList_New(0);
    }
    int failed = *failures == NULL ? -1 : PyList_Append(*failures, raised);
    Py_DECREF(raised);
    return failed;
}

/* What follows on a release that raised, and on that of a composite: `identity.finish_release`, once more where it was
 * interrupted. Gives up the list. */
static PyObject *finish(PyObject *entry, PyObject *resource, PyObject *failures, PyObject *with_members, PyObject *owner,
                        bool lives)
{
    PyObject *result = NULL;
    if (failures != NULL || (failures = PyList_New(0)) != NULL) {
        PyObject *arguments[] = {
            entry, resource == NULL ? Py_None : resource, failures, with_members, owner, lives ? Py_True : Py_False};
        result = PyObject_Vectorcall(bound[FINISH_RELEASE], arguments, 6, NULL);
        if (result == NULL && collect(&failures) == 0) {
            result = PyObject_Vectorcall(bound[FINISH_RELEASE], arguments, 6, NULL);
        }
        Py_DECREF(failures);
    }
    return result;
}

/* None, or what the release raised; NULL with an error set where it has not begun. `taken` is the list, if any, that the caller
 * took the entry out of. */
static PyObject *release_entry(PyObject *entry, PyObject *taken, PyObject *with_members)
{
    PyObject *ledger = ledger_here();
    if (ledger == NULL) {
        return NULL;
    }
    PyObject *resource = resource_of(entry);
    if (resource == NULL && PyErr_Occurred()) {
        Py_DECREF(ledger);
        return NULL;
    }
    bool is_held = Py_TYPE(entry) == strong_type;
    PyObject *owner = Py_NewRef(get(entry, ENTRY_OWNER));
    PyObject *result = NULL, *failures = NULL;
    int claimed = claim(entry, is_held ? NULL : resource, ledger, owner, taken);
    if (claimed == 0) {
        result = Py_NewRef(Py_None);
    }
    else if (claimed > 0) {
        int failed = 0;
        bool lives = false;
        put(entry, ENTRY_OWNER, Py_None);
        if (is_held) {
            put(entry, STRONG_HELD, Py_None);
        }
        if (resource != NULL) {
            if (PyList_GET_SIZE(bound[LISTENERS]) != 0 && tell(bound[LISTENERS], name_disposed, entry, owner) < 0) {
                failed = collect(&failures);
            }
            PyObject *kind = Py_NewRef(get(entry, ENTRY_KIND));
            PyObject *done = PyObject_CallOneArg(get(kind, KIND_RELEASE), resource);
            Py_DECREF(kind);
            if (done == NULL) {
                lives = true;
                failed |= collect(&failures);
            }
            Py_XDECREF(done);
        }
        PyObject *members = get(entry, ENTRY_MEMBERS);
        bool is_whole = PyTuple_CheckExact(members) && PyTuple_GET_SIZE(members) != 0 && with_members == Py_True;
        if (failed < 0) {
            Py_XDECREF(failures);
        }
        else if (failures == NULL && !is_whole) {
            result = Py_NewRef(Py_None);
        }
        else {
            result = finish(entry, resource, failures, with_members, owner, lives);
        }
    }
    Py_DECREF(owner);
    Py_DECREF(ledger);
    Py_XDECREF(resource);
    return result;
}

PyObject *compiled_release(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number < 1 || number > 2 || !is_bound() || !PyObject_TypeCheck(arguments[0], entry_type)) {
        PyErr_SetString(PyExc_TypeError, "release() takes an entry");
        return NULL;
    }
    return release_entry(arguments[0], NULL, number == 2 ? arguments[1] : Py_True);
}

PyObject *compiled_release_newest(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 2 || !is_bound() || !PyDict_Check(arguments[0]) || !PyList_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "release_newest() takes a dict of entries and a list");
        return NULL;
    }
    PyObject *entries = arguments[0];
    while (PyDict_GET_SIZE(entries) != 0) {
        PyObject *item = PyObject_CallMethodNoArgs(entries, name_popitem);
        if (item == NULL) {
            return NULL;
        }
        PyObject *entry = Py_NewRef(PyTuple_GET_ITEM(item, 0));
        Py_DECREF(item);
        PyObject *failure = release_entry(entry, entries, Py_True);
        Py_DECREF(entry);
        if (failure == NULL) {
            return NULL;
        }
        if (failure != Py_None && PyList_Append(arguments[1], failure) < 0) {
            Py_DECREF(failure);
            return NULL;
        }
        Py_DECREF(failure);
    }
    Py_RETURN_NONE;
}

/* ================================================================== the ways into and out of a scope */

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
