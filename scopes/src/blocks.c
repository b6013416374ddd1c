/* The type of scopes: how a scope is made, entered and left. An interrupt can come up at any call
 * of Python code, and a scope is left all the same: see the comment at the top of scope.py. What is
 * unusual is done by methods in Python. */
#include "scopes.h"

#include <structmember.h>

#include "shared/fields.h"
#include "shared/frames.h"
#include "shared/raised.h"

static PyObject *state_unopened, *state_open, *state_closed, *empty_tuple;
static PyObject *name_opened, *name_entered, *name_left, *name_leaving, *name_keep, *name_dispose;
static PyObject *name_name, *name_package, *name_contextlib;
/* Methods of `DisposeScope`, in Python, that are called where something is unusual. */
static PyObject *name_check_options, *name_prepare, *name_begin, *name_forget_ended_generators,
    *name_refuse_to_leave, *name_explain, *name_end, *name_raise_what_failed;

/* ------------------------------------------------------------------ the object */

static PyObject *new_scope(PyTypeObject *type, PyObject *arguments, PyObject *options)
{
    (void)arguments;
    (void)options;
    PyObject *entries = PyDict_New();
    ScopeState *scope = entries == NULL ? NULL : (ScopeState *)type->tp_alloc(type, 0);
    if (scope == NULL) {
        Py_XDECREF(entries);
        return NULL;
    }
    scope->entries = entries;
    scope->graph = Py_NewRef(name_keep);
    scope->escapes = Py_NewRef(name_dispose);
    scope->state = Py_NewRef(state_unopened);
    scope->arena = Py_NewRef(Py_True);
    scope->strict = Py_NewRef(Py_False);
    scope->direct = Py_NewRef(Py_False);
    scope->suspended = Py_NewRef(empty_tuple);
    scope->escaped = Py_NewRef(empty_tuple);
    PyObject **nothing[] = {&scope->name,    &scope->budget, &scope->outer,     &scope->below, &scope->frame,
                            &scope->account, &scope->served, &scope->variables, &scope->code,  &scope->origin};
    for (size_t i = 0; i < sizeof nothing / sizeof nothing[0]; i++) {
        *nothing[i] = Py_NewRef(Py_None);
    }
    return (PyObject *)scope;
}

static int traverse_scope(PyObject *self, visitproc visit, void *arg)
{
    ScopeState *scope = (ScopeState *)self;
    Py_VISIT(scope->name);
    Py_VISIT(scope->graph);
    Py_VISIT(scope->budget);
    Py_VISIT(scope->entries);
    Py_VISIT(scope->outer);
    Py_VISIT(scope->below);
    Py_VISIT(scope->frame);
    Py_VISIT(scope->suspended);
    Py_VISIT(scope->account);
    Py_VISIT(scope->served);
    Py_VISIT(scope->variables);
    Py_VISIT(scope->escaped);
    Py_VISIT(scope->code);
    Py_VISIT(scope->origin);
    return 0;
}

/* Sets no field to NULL, because code that runs meanwhile may read it. */
static int clear_scope(PyObject *self)
{
    ScopeState *scope = (ScopeState *)self;
    PyObject *entries = PyDict_New();
    if (entries != NULL) {
        Py_SETREF(scope->entries, entries);
    }
    else {
        PyErr_Clear();
    }
    put(&scope->name, Py_None);
    put(&scope->outer, Py_None);
    put(&scope->below, Py_None);
    put(&scope->frame, Py_None);
    put(&scope->suspended, empty_tuple);
    put(&scope->variables, Py_None);
    put(&scope->escaped, empty_tuple);
    return 0;
}

static void dealloc_scope(PyObject *self)
{
    ScopeState *scope = (ScopeState *)self;
    PyObject_GC_UnTrack(self);
    if (scope->weak_references != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    PyObject *held[] = {scope->name,  scope->graph,       scope->budget, scope->strict, scope->entries,
                        scope->outer, scope->below,       scope->frame,  scope->state,  scope->direct,
                        scope->arena, scope->suspended, scope->served, scope->account,
                        scope->escapes, scope->variables, scope->escaped, scope->code,
                        scope->origin};
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) {
        Py_XDECREF(held[i]);
    }
    Py_TYPE(self)->tp_free(self);
}

/* ------------------------------------------------------------------ __init__ */

static void put_bool(PyObject **field, int value) { put(field, value ? Py_True : Py_False); }

/* Whether a value of the option `graph` limits what a block may record. */
static bool limits_recording(PyObject *graph)
{
    return PyUnicode_Check(graph) && (PyUnicode_CompareWithASCIIString(graph, "none") == 0 ||
                                      PyUnicode_CompareWithASCIIString(graph, "refuse") == 0);
}

static int init(PyObject *self, PyObject *arguments, PyObject *options)
{
    static char *names[] = {"name", "strict", "graph", "keep_pages", "arena", "budget", "escapes", NULL};
    ScopeState *scope = (ScopeState *)self;
    if (scope->state != state_unopened) {
        PyErr_SetString(PyExc_RuntimeError, "a scope is initialized once: make another one with dispose_scope()");
        return -1;
    }
    Py_ssize_t number = PyTuple_GET_SIZE(arguments);
    PyObject *name = number == 0 ? Py_None : PyTuple_GET_ITEM(arguments, 0);
    if (number <= 1 && (options == NULL || PyDict_GET_SIZE(options) == 0) &&
        (name == Py_None || PyUnicode_CheckExact(name))) {
        put(&scope->name, name);
        return 0;
    }
    PyObject *graph = name_keep, *budget = Py_None, *escapes = name_dispose;
    int strict = 0, keep_pages = 0, arena = 1;
    name = Py_None;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "|O$pOppOO:dispose_scope", names, &name, &strict, &graph,
                                     &keep_pages, &arena, &budget, &escapes)) {
        return -1;
    }
    put(&scope->name, name);
    put(&scope->graph, graph);
    put(&scope->budget, budget);
    put(&scope->escapes, escapes);
    put_bool(&scope->strict, strict);
    put_bool(&scope->arena, arena);
    scope->keep_pages = keep_pages;
    scope->has_memory_options = !arena || budget != Py_None;
    scope->limits_recording = limits_recording(graph);
    if (graph == name_keep && escapes == name_dispose && budget == Py_None &&
        (name == Py_None || PyUnicode_CheckExact(name))) {
        return 0;
    }
    PyObject *checked = PyObject_CallMethodNoArgs(self, name_check_options);
    Py_XDECREF(checked);
    return checked == NULL ? -1 : 0;
}

/* ------------------------------------------------------------------ __enter__ */

/* Whether the current frame of a walk is this package's or contextlib's, which enter a scope for
 * another frame. */
static bool enters_for_another(const struct walk *walk)
{
    PyObject *globals = walk_globals(walk), *name = PyDict_GetItemWithError(globals, name_name);
    bool is_forwarder = name != NULL && PyUnicode_Check(name) &&
                        (PyUnicode_Tailmatch(name, name_package, 0, PY_SSIZE_T_MAX, -1) == 1 ||
                         PyUnicode_Compare(name, name_contextlib) == 0);
    if (PyErr_Occurred()) {
        PyErr_Clear();
    }
    Py_DECREF(globals);
    return is_forwarder;
}

/* Notes the code and the instruction that enter a scope. Returns whether the block belongs to a
 * plain function and not to a generator. The block's frame is the innermost one that is a
 * generator's, or whose function is none of `ENTERING`. */
static bool note_where_entered(ScopeState *scope)
{
    bool plain = true, has_met_block = false, is_noted = false;
    struct walk walk;
    for (walk_begin(&walk); !walk_ended(&walk) && !(has_met_block && is_noted); walk_out(&walk)) {
        PyCodeObject *code = walk_code(&walk);
        bool is_generator = code->co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR);
        int entering = is_generator ? 0 : PySet_Contains(entering_names, code->co_name);
        if (entering < 0) {
            PyErr_Clear();
        }
        bool is_block = !has_met_block && entering <= 0;
        if (is_block) {
            plain = !is_generator;
            has_met_block = true;
        }
        /* A generator may be this package's, such as that of scoped_batches(). */
        if (!is_noted && ((is_block && plain) || !enters_for_another(&walk))) {
            put(&scope->code, (PyObject *)code);
            scope->instruction = walk_instruction(&walk);
            is_noted = true;
        }
    }
    walk_end(&walk);
    return plain;
}

PyObject *origin_of(ScopeState *scope)
{
    if (scope->origin == Py_None) {
        PyObject *origin = Py_BuildValue("(OOi)", scope->name, scope->code, scope->instruction);
        if (origin == NULL) {
            return NULL;
        }
        put(&scope->origin, origin);
        Py_DECREF(origin);
    }
    return Py_NewRef(scope->origin);
}

/* Calls a method of the memory service with a scope. -1 with an error set. */
static int serve(PyObject *method, ScopeState *scope)
{
    PyObject *memory = Py_NewRef(memory_service);
    PyObject *done = PyObject_CallMethodOneArg(memory, method, (PyObject *)scope);
    Py_DECREF(memory);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Calls a method of a scope without arguments. False with an error set. */
static bool called(PyObject *scope, PyObject *method)
{
    PyObject *done = PyObject_CallMethodNoArgs(scope, method);
    Py_XDECREF(done);
    return done != NULL;
}

static PyObject *leave_with_room(ScopeState *scope, PyObject *doing, PyObject *in_flight);

static PyObject *enter(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    ScopeState *scope = (ScopeState *)self;
    PyObject *below = top_scope();
    if (below == NULL) {
        return NULL;
    }
    ScopeState *around = below == Py_None ? NULL : (ScopeState *)below;
    if (scope->state == state_unopened && note_where_entered(scope) && (around == NULL || scope_is_direct(around)) &&
        !modules_were_imported()) {
        put(&scope->below, below);
        put(&scope->outer, below);
        put(&scope->direct, Py_True);
    }
    else if (!called(self, name_prepare)) {
        Py_DECREF(below);
        return NULL;
    }
    bool unlike_below = around == NULL || !scope_has_arena(around) || !scope_is_direct(scope) ||
                        scope->has_memory_options;
    bool is_noted = scope->keep_pages || scope->escapes != name_dispose;
    Py_DECREF(below);
    put(&scope->state, state_open);
    if ((is_noted && !called(self, name_begin)) || set_current(self) < 0 ||
        (unlike_below && memory_service != NULL && serve(name_entered, scope) < 0) ||
        call_hooks(entered_hooks, self) < 0 || tell_listeners(name_opened, self, NULL) < 0) {
        /* The with statement does not call __exit__ when __enter__ raises. */
        PyObject *raised = take_raised();
        PyObject *left = leave_with_room(scope, name_leaving, raised);
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

/* By so many calls the recursion limit is raised while a scope is left, so that also a block that
 * has reached the limit can be left. */
enum { EXTRA_CALLS = 200 };

static void raise_recursion_limit(int calls)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyThreadState_Get()->py_recursion_remaining += calls;
#else
    PyThreadState_Get()->recursion_remaining += calls;
#endif
}

/* Moves the exception that is set into the list of failures, which are raised when the scope has
 * been left. */
static void keep_raised(PyObject *failures)
{
    PyObject *raised = take_raised();
    if (PyList_Append(failures, raised) < 0) {
        /* No memory: the exception is lost, but the scope is left. */
        PyErr_Clear();
    }
    Py_DECREF(raised);
}

/* Calls a function that can be repeated, and repeats it once if it raised. Exceptions go to the
 * failures. NULL without an error set if it raised both times. */
static PyObject *again(PyObject *failures, PyObject *step, PyObject *const *arguments, Py_ssize_t number)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        PyObject *done = PyObject_Vectorcall(step, arguments, (size_t)number, NULL);
        if (done != NULL) {
            return done;
        }
        keep_raised(failures);
    }
    return NULL;
}

/* See compiled.pyi. */
PyObject *compiled_again(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number < 2 || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "internal error: again() takes a list of failures, a step and its arguments");
        return NULL;
    }
    PyObject *done = again(arguments[0], arguments[1], arguments + 2, number - 2);
    return done == NULL ? Py_NewRef(Py_None) : done;
}

/* Does what `again` does with a method of a scope. */
static PyObject *again_method(PyObject *failures, ScopeState *scope, PyObject *name, PyObject *const *arguments,
                              Py_ssize_t number)
{
    PyObject *method = PyObject_GetAttr((PyObject *)scope, name);
    if (method == NULL) {
        keep_raised(failures);
        return NULL;
    }
    PyObject *done = again(failures, method, arguments, number);
    Py_DECREF(method);
    return done;
}

/* Calls the hooks in LEFT. */
static void call_left_hooks(ScopeState *scope, PyObject *failures)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(left_hooks); i++) {
        PyObject *hook = Py_NewRef(PyList_GET_ITEM(left_hooks, i)), *self = (PyObject *)scope;
        Py_XDECREF(again(failures, hook, &self, 1));
        Py_DECREF(hook);
    }
}

/* Takes a scope that is the top one off the context variable. The arena puts back what served the
 * context before. Runs no Python code. */
static void leave_as_top(ScopeState *scope, PyObject *failures)
{
    PyObject *below = Py_NewRef(scope->below);
    if (set_current(below) < 0) {
        keep_raised(failures);
    }
    /* An outermost scope has no `served` if the arena was in service already when it was entered: a
     * task inherited that from a scope that is closed. */
    if (memory_service != NULL &&
        (scope->served != Py_None || (below == Py_None && scope_has_arena(scope))) && serve(name_left, scope) < 0) {
        keep_raised(failures);
    }
    Py_DECREF(below);
}

/* Takes a scope out from under other scopes, of which `top` is the topmost: the scope is misnested,
 * or left in another context than the one it was entered in. Runs no Python code. */
static void leave_from_below(ScopeState *scope, PyObject *top, PyObject *failures)
{
    if (top == Py_None && scope->served != Py_None && serve(name_left, scope) < 0) {
        keep_raised(failures);
    }
    for (PyObject *at = top; at != Py_None; at = ((ScopeState *)at)->below) {
        ScopeState *over = (ScopeState *)at;
        if (over->below == (PyObject *)scope) {
            if (scope->served != Py_None && over->served == Py_None) {
                put(&over->served, scope->served);
                put(&scope->served, Py_None);
            }
            put(&over->below, scope->below);
            break;
        }
    }
}

/* Takes a scope out of the stack of this context, wherever it is. */
static void leave_the_stack(ScopeState *scope, PyObject *failures)
{
#if PY_VERSION_HEX >= 0x030E0000
    Py_XDECREF(again_method(failures, scope, name_forget_ended_generators, NULL, 0));
#endif
    PyObject *top = top_scope();
    if (top == NULL) {
        keep_raised(failures);
    }
    else if (top == (PyObject *)scope) {
        /* The scopes over it have just been closed. */
        leave_as_top(scope, failures);
    }
    else {
        leave_from_below(scope, top, failures);
    }
    Py_XDECREF(top);
}

static void put_closed(ScopeState *scope)
{
    put(&scope->state, state_closed);
    put(&scope->direct, Py_False);
    put(&scope->frame, Py_None);
    put(&scope->suspended, empty_tuple);
}

/* Makes all that a scope owned unowned, after its end was interrupted twice. The resources live by
 * reference count. */
static void give_up(ScopeState *scope)
{
    PyObject *entries = scope->entries, *entry;
    if (!PyDict_CheckExact(entries)) {
        return;
    }
    for (Py_ssize_t at = 0; PyDict_Next(entries, &at, &entry, NULL);) {
        if (!is_entry(entry)) {
            continue;
        }
        put(&((Entry *)entry)->owner, Py_None);
        stop_holding(entry);
        if (Py_TYPE(entry) == &strong_entry_type && PyDict_DelItem(live_table, ((Entry *)entry)->key) < 0) {
            PyErr_Clear();
        }
    }
    PyDict_Clear(entries);
}

static PyObject *raise_what_failed(ScopeState *scope, PyObject *doing, PyObject *failures, PyObject *escaped,
                                   PyObject *in_flight)
{
    PyObject *done = PyObject_CallMethodObjArgs((PyObject *)scope, name_raise_what_failed, doing, failures, escaped,
                                                in_flight, NULL);
    if (done == NULL) {
        /* The tracebacks of the failures lead to frames that hold this list, which would be a
         * cycle. */
        PyObject *raised = take_raised();
        if (PyList_SetSlice(failures, 0, PyList_GET_SIZE(failures), NULL) < 0) {
            PyErr_Clear();
        }
        put_raised(raised);
        Py_DECREF(raised);
    }
    return done;
}

/* Whether the end of a scope has nothing to do: it owns nothing, and nobody listens. */
static bool has_nothing_to_end(const ScopeState *scope)
{
    return PyDict_CheckExact(scope->entries) && PyDict_GET_SIZE(scope->entries) == 0 && scope->account == Py_None &&
           !scope->keep_pages && PyList_GET_SIZE(dead_composites) == 0 && !anybody_listens();
}

/* Leaves a scope: takes it off the stack, closes it, calls `_end`, and raises the failures.
 * `in_flight` is the exception that passes through, or None. `doing` is "leaving" or "closing". */
static PyObject *leave_block(ScopeState *scope, PyObject *doing, PyObject *in_flight)
{
    PyObject *self = (PyObject *)scope, *now = top_scope();
    if (now == NULL) {
        return NULL;
    }
    Py_DECREF(now);
    if (scope->state == state_unopened && doing == name_leaving) {
        return PyObject_CallMethodNoArgs(self, name_refuse_to_leave);
    }
    PyObject *failures = PyList_New(0), *escaped = NULL, *done;
    if (failures == NULL) {
        return NULL;
    }
    if (now == self) {
        leave_as_top(scope, failures);
    }
    else if (doing == name_leaving) {
        leave_the_stack(scope, failures);
    }
    if (in_flight != Py_None) {
        if ((done = PyObject_CallMethodOneArg(self, name_explain, in_flight)) == NULL) {
            keep_raised(failures);
        }
        Py_XDECREF(done);
    }
    if (scope->state != state_closed) {
        if (scope->state == state_open) {
            call_left_hooks(scope, failures);
        }
        put_closed(scope);
        if (!has_nothing_to_end(scope)) {
            PyObject *arguments[] = {failures, in_flight};
            if ((escaped = again_method(failures, scope, name_end, arguments, 2)) == NULL) {
                give_up(scope);
            }
        }
    }
    else if (doing == name_leaving && scope->limits_recording) {
        /* Closed earlier, but the limit on recording holds until the block is left. */
        call_left_hooks(scope, failures);
    }
    if (PyList_GET_SIZE(failures) == 0 && (escaped == NULL || escaped == Py_None)) {
        done = Py_NewRef(Py_None);
    }
    else {
        done = raise_what_failed(scope, doing, failures, escaped == NULL ? Py_None : escaped, in_flight);
    }
    Py_XDECREF(escaped);
    Py_DECREF(failures);
    return done;
}

static PyObject *leave_with_room(ScopeState *scope, PyObject *doing, PyObject *in_flight)
{
    raise_recursion_limit(EXTRA_CALLS);
    PyObject *done = leave_block(scope, doing, in_flight);
    raise_recursion_limit(-EXTRA_CALLS);
    return done;
}

static PyObject *leave_as(PyObject *self, PyObject *const *arguments, Py_ssize_t number)
{
    if (number != 2 || !PyUnicode_CheckExact(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "_leave() takes what is done, and what is on its way");
        return NULL;
    }
    int leaving = PyUnicode_Compare(arguments[0], name_leaving) == 0;
    return leave_with_room((ScopeState *)self, leaving ? name_leaving : arguments[0], arguments[1]);
}

static PyObject *leave(PyObject *self, PyObject *const *arguments, Py_ssize_t number)
{
    if (number != 3) {
        PyErr_Format(PyExc_TypeError, "__exit__() takes 3 arguments, not %zd", number);
        return NULL;
    }
    PyObject *done = leave_with_room((ScopeState *)self, name_leaving, arguments[1]);
    if (done == NULL) {
        return NULL;
    }
    Py_DECREF(done);
    Py_RETURN_FALSE;
}

/* ------------------------------------------------------------------ methods that are undone */

/* Calls the first of two functions. If it raises, calls the second with the object and the
 * exception, which then propagates. */
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

/* ------------------------------------------------------------------ the type */

static PyMethodDef methods[] = {
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, NULL},
    {"_leave", (PyCFunction)(void (*)(void))leave_as, METH_FASTCALL, NULL},
    {0},
};

static PyMemberDef members[] = {
    {"keep_pages", T_BOOL, offsetof(ScopeState, keep_pages), READONLY, NULL},
    {"_account", T_OBJECT_EX, offsetof(ScopeState, account), READONLY, NULL},
    {"_arena", T_OBJECT_EX, offsetof(ScopeState, arena), READONLY, NULL},
    {"_has_memory_options", T_BOOL, offsetof(ScopeState, has_memory_options), READONLY, NULL},
    {"_limits_recording", T_BOOL, offsetof(ScopeState, limits_recording), READONLY, NULL},
    {0},
};

static const struct field name_field = {"name", offsetof(ScopeState, name), AN_OBJECT, true, NULL},
                          graph_field = {"graph", offsetof(ScopeState, graph), A_STR, false, NULL},
                          escapes_field = {"escapes", offsetof(ScopeState, escapes), A_STR, false, NULL},
                          variables_field = {"_variables", offsetof(ScopeState, variables), A_TUPLE, true, NULL},
                          escaped_field = {"_escaped", offsetof(ScopeState, escaped), A_TUPLE, false, NULL},
                          budget_field = {"budget", offsetof(ScopeState, budget), AN_INT, true, NULL},
                          strict_field = {"strict", offsetof(ScopeState, strict), A_BOOL, false, NULL},
                          entries_field = {"_entries", offsetof(ScopeState, entries), A_DICT, false, NULL},
                          outer_field = {"_outer", offsetof(ScopeState, outer), OWN_TYPE, true, &scope_state_type},
                          below_field = {"_below", offsetof(ScopeState, below), OWN_TYPE, true, &scope_state_type},
                          frame_field = {"_frame", offsetof(ScopeState, frame), A_FRAME, true, NULL},
                          suspended_field = {"_suspended", offsetof(ScopeState, suspended), A_TUPLE, false, NULL},
                          state_field = {"_state", offsetof(ScopeState, state), AN_INT, false, NULL},
                          direct_field = {"_direct", offsetof(ScopeState, direct), A_BOOL, false, NULL},
                          served_field = {"_served", offsetof(ScopeState, served), AN_OBJECT, true, NULL},
                          origin_field = {"_origin", offsetof(ScopeState, origin), A_TUPLE, true, NULL};

/* The setter of `graph`. A scope whose block was limited when it was entered stays a limited one,
 * so that what was switched off is switched on again. */
static int set_graph(PyObject *self, PyObject *value, void *closure)
{
    if (set_field(self, value, closure) < 0) {
        return -1;
    }
    ScopeState *scope = (ScopeState *)self;
    scope->limits_recording = scope->limits_recording || limits_recording(scope->graph);
    return 0;
}

static PyGetSetDef fields[] = {
    {"name", get_field, set_field, NULL, (void *)&name_field},
    {"graph", get_field, set_graph, NULL, (void *)&graph_field},
    {"escapes", get_field, set_field, NULL, (void *)&escapes_field},
    {"_variables", get_field, set_field, NULL, (void *)&variables_field},
    {"_escaped", get_field, set_field, NULL, (void *)&escaped_field},
    {"budget", get_field, set_field, NULL, (void *)&budget_field},
    {"strict", get_field, set_field, NULL, (void *)&strict_field},
    {"_entries", get_field, set_field, NULL, (void *)&entries_field},
    {"_outer", get_field, set_field, NULL, (void *)&outer_field},
    {"_below", get_field, set_field, NULL, (void *)&below_field},
    {"_frame", get_field, set_field, NULL, (void *)&frame_field},
    {"_suspended", get_field, set_field, NULL, (void *)&suspended_field},
    {"_state", get_field, set_field, NULL, (void *)&state_field},
    {"_direct", get_field, set_field, NULL, (void *)&direct_field},
    {"_served", get_field, set_field, NULL, (void *)&served_field},
    {"_origin", get_field, set_field, NULL, (void *)&origin_field},
    {0},
};

PyTypeObject scope_state_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.scopes.compiled.ScopeState",
    .tp_doc = "ScopeState(name=None, *, strict=False, graph='keep', keep_pages=False, arena=True, budget=None,\n"
              "           escapes='dispose')\n--\n\n"
              "The state of a scope, and how it is entered and left.",
    .tp_basicsize = sizeof(ScopeState),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = new_scope,
    .tp_init = init,
    .tp_traverse = traverse_scope,
    .tp_clear = clear_scope,
    .tp_dealloc = dealloc_scope,
    .tp_weaklistoffset = offsetof(ScopeState, weak_references),
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = fields,
};

int blocks_make(PyObject *module)
{
    static const struct {
        PyObject **place;
        const char *text;
    } names[] = {
        {&name_opened, "opened"},
        {&name_entered, "entered"},
        {&name_left, "left"},
        {&name_leaving, "leaving"},
        {&name_keep, "keep"},
        {&name_dispose, "dispose"},
        {&name_check_options, "_check_options"},
        {&name_prepare, "_prepare"},
        {&name_begin, "_begin"},
        {&name_forget_ended_generators, "_forget_ended_generators"},
        {&name_refuse_to_leave, "_refuse_to_leave"},
        {&name_explain, "_explain"},
        {&name_end, "_end"},
        {&name_raise_what_failed, "_raise_what_failed"},
        {&name_name, "__name__"},
        {&name_package, "disposescope."},
        {&name_contextlib, "contextlib"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if ((*names[i].place = PyUnicode_InternFromString(names[i].text)) == NULL) {
            return -1;
        }
    }
    if ((empty_tuple = PyTuple_New(0)) == NULL || (state_unopened = PyLong_FromLong(SCOPE_UNOPENED)) == NULL ||
        (state_open = PyLong_FromLong(SCOPE_OPEN)) == NULL ||
        (state_closed = PyLong_FromLong(SCOPE_CLOSED)) == NULL) {
        return -1;
    }
    return PyModule_AddType(module, &scope_state_type);
}
