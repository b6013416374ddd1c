/* The state of a thread: see `ThreadState` in compiled.pyi. It is in the dict of its thread, and
 * dies with it. */
#include "compiled.h"

#include <structmember.h>

#include "../../../scopes/src/shared/fields.h"

static PyTypeObject thread_state_type;
static PyObject *key_of_states;

/* A cache: the state of the thread that asked last, borrowed from its dict, and the id of that
 * thread state. The id of a thread state is never used again. */
static ThreadState *remembered_state;
static uint64_t remembered_thread;

/* ------------------------------------------------------------------ ThreadState */

static ThreadState *make_state(void)
{
    PyObject *scopes = PyList_New(0), *pending = PyList_New(0), *modes = PyTuple_New(0);
    bool failed = scopes == NULL || pending == NULL || modes == NULL;
    ThreadState *state = failed ? NULL : PyObject_GC_New(ThreadState, &thread_state_type);
    if (state == NULL) {
        Py_XDECREF(scopes);
        Py_XDECREF(pending);
        Py_XDECREF(modes);
        return NULL;
    }
    state->scopes = scopes;
    state->pending = pending;
    state->modes = modes;
    state->compiled = Py_NewRef(Py_None);
    state->backward = Py_NewRef(Py_None);
    state->stepping = 0;
    state->watched = false;
    PyObject_GC_Track(state);
    return state;
}

/* No tp_clear is needed: every cycle includes a list or another object that can be cleared. */
static int traverse_state(PyObject *self, visitproc visit, void *arg)
{
    const ThreadState *state = (ThreadState *)self;
    Py_VISIT(state->scopes);
    Py_VISIT(state->pending);
    Py_VISIT(state->modes);
    Py_VISIT(state->compiled);
    Py_VISIT(state->backward);
    return 0;
}

static void dealloc_state(PyObject *self)
{
    ThreadState *state = (ThreadState *)self;
    PyObject_GC_UnTrack(self);
    if (remembered_state == state) {
        remembered_state = NULL;
    }
    Py_DECREF(state->scopes);
    Py_DECREF(state->pending);
    Py_DECREF(state->modes);
    Py_DECREF(state->compiled);
    Py_DECREF(state->backward);
    PyObject_GC_Del(self);
}

static struct field scopes_field = {"scopes", offsetof(ThreadState, scopes), A_LIST, false, NULL};
static struct field pending_field = {"pending", offsetof(ThreadState, pending), A_LIST, false, NULL};
static struct field modes_field = {"modes", offsetof(ThreadState, modes), A_TUPLE, false, NULL};
static struct field compiled_field = {"compiled", offsetof(ThreadState, compiled), A_TUPLE, true, NULL};

/* A getter and a setter, because a T_ULONGLONG member would store -1 for a value that it cannot
 * convert. */
static PyObject *get_stepping(PyObject *self, void *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLongLong(((ThreadState *)self)->stepping);
}

static int set_stepping(PyObject *self, PyObject *value, void *ignored)
{
    (void)ignored;
    if (value == NULL) {
        PyErr_Format(PyExc_AttributeError, "stepping of a %s cannot be deleted", Py_TYPE(self)->tp_name);
        return -1;
    }
    unsigned long long stepping = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) {
        return -1;
    }
    ((ThreadState *)self)->stepping = stepping;
    return 0;
}

/* The index of the field `open_scopes` in a `births.Compiled`. */
enum { OPEN_SCOPES = 1 };

/* Whether a compiled function that has entered no scope runs on a thread; -1 with an error set. */
static int runs_compiled(const ThreadState *state)
{
    if (state->compiled == Py_None) {
        return 0;
    }
    PyObject *before =
        PyTuple_GET_SIZE(state->compiled) <= OPEN_SCOPES ? Py_None : PyTuple_GET_ITEM(state->compiled, OPEN_SCOPES);
    if (!PyLong_Check(before)) {
        PyErr_Format(PyExc_TypeError, "internal error: open_scopes of a compiled call has type %s, expected int",
                     Py_TYPE(before)->tp_name);
        return -1;
    }
    size_t open_scopes = PyLong_AsSize_t(before);
    return open_scopes == (size_t)-1 && PyErr_Occurred() ? -1 : (size_t)PyList_GET_SIZE(state->scopes) <= open_scopes;
}

static PyObject *get_runs_compiled(PyObject *self, void *ignored)
{
    (void)ignored;
    int compiled = runs_compiled((ThreadState *)self);
    return compiled < 0 ? NULL : PyBool_FromLong(compiled);
}

static PyGetSetDef fields_of_states[] = {
    {"scopes", get_field, set_field, NULL, &scopes_field},
    {"pending", get_field, set_field, NULL, &pending_field},
    {"modes", get_field, set_field, NULL, &modes_field},
    {"compiled", get_field, set_field, NULL, &compiled_field},
    {"runs_compiled", get_runs_compiled, NULL, NULL, NULL},
    {"stepping", get_stepping, set_stepping, NULL, NULL},
    {0},
};

static PyMemberDef members_of_states[] = {
    {"watched", T_BOOL, offsetof(ThreadState, watched), 0, NULL},
    {0},
};

static PyTypeObject thread_state_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.tensors.torch.compiled.ThreadState",
    .tp_doc = "The state of one thread.",
    .tp_basicsize = sizeof(ThreadState),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = dealloc_state,
    .tp_traverse = traverse_state,
    .tp_getset = fields_of_states,
    .tp_members = members_of_states,
};

int threads_make(PyObject *module)
{
    key_of_states = PyUnicode_InternFromString("disposescope.torch");
    return key_of_states == NULL ? -1 : PyModule_AddType(module, &thread_state_type);
}

/* ------------------------------------------------------------------ the state of the calling thread */

/* The state in the dict of the thread, made if there is none: borrowed. NULL with an error set. */
static ThreadState *find_state(void)
{
    PyObject *dict = PyThreadState_GetDict();
    if (dict == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    PyObject *held = PyDict_GetItemWithError(dict, key_of_states);
    if (held != NULL && Py_TYPE(held) != &thread_state_type) {
        PyErr_Format(PyExc_TypeError, "internal error: the state of this thread has type %s, expected %s",
                     Py_TYPE(held)->tp_name, thread_state_type.tp_name);
        return NULL;
    }
    if (held != NULL || PyErr_Occurred()) {
        return (ThreadState *)held;
    }
    ThreadState *state = make_state();
    int failed = state == NULL ? -1 : PyDict_SetItem(dict, key_of_states, (PyObject *)state);
    Py_XDECREF(state);
    return failed < 0 ? NULL : state;
}

/* The state of the calling thread, borrowed; NULL with an error set. */
static ThreadState *state_here(void)
{
    uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (thread != remembered_thread || remembered_state == NULL) {
        ThreadState *state = find_state();
        if (state == NULL) {
            return NULL;
        }
        remembered_state = state;
        remembered_thread = thread;
    }
    return remembered_state;
}

PyObject *compiled_thread_state(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return Py_XNewRef((PyObject *)state_here());
}

int thread_at_work(void)
{
    const ThreadState *state = state_here();
    int compiled = state == NULL ? -1 : runs_compiled(state);
    if (compiled < 0) {
        return -1;
    }
    /* The id of a frame is even. Other work than a step is marked by an odd number. */
    int stepping = state->stepping == 0 ? 0 : state->stepping & 1 ? AT_WORK_TRACE : AT_WORK_STEP;
    return stepping | (compiled ? AT_WORK_COMPILED : 0);
}

int thread_has_mode(PyObject *mode)
{
    const ThreadState *state = state_here();
    Py_ssize_t number = state == NULL ? -1 : PyTuple_GET_SIZE(state->modes);
    return number <= 0 ? (int)number : PyTuple_GET_ITEM(state->modes, number - 1) == mode;
}

int thread_remember_backward(PyObject *place)
{
    ThreadState *state = state_here();
    if (state == NULL) {
        return -1;
    }
    Py_SETREF(state->backward, Py_NewRef(place));
    return 0;
}

PyObject *thread_backward(void)
{
    const ThreadState *state = state_here();
    return state == NULL ? NULL : state->backward;
}

/* ------------------------------------------------------------------ births of which no budget was asked yet */

int thread_add_pending(PyObject *entry)
{
    const ThreadState *state = state_here();
    return state == NULL ? -1 : PyList_Append(state->pending, entry);
}

static bool is_dead(PyObject *entry)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    int alive = PyWeakref_GetRef(entry, &found);
    Py_XDECREF(found);
    return alive == 0;
#else
    return PyWeakref_GET_OBJECT(entry) == Py_None;
#endif
}

/* The list is looked through from this length on, at each power of two. */
enum { LOOK_FROM = 1024 };

/* Entries are normally removed at the end of the call that made them. This removes dead entries of
 * code that makes tensors in a loop without such a call. */
int thread_forget_dead(void)
{
    const ThreadState *state = state_here();
    if (state == NULL) {
        return -1;
    }
    PyObject *pending = state->pending;
    Py_ssize_t number = PyList_GET_SIZE(pending), dead = 0, kept = 0;
    if (number < LOOK_FROM || (number & (number - 1)) != 0) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < number; i++) {
        dead += is_dead(PyList_GET_ITEM(pending, i));
    }
    if (dead < number / 4) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < number; i++) {
        PyObject *entry = PyList_GET_ITEM(pending, i);
        if (!is_dead(entry)) {
            PyList_SET_ITEM(pending, i, PyList_GET_ITEM(pending, kept));
            PyList_SET_ITEM(pending, kept++, entry);
        }
    }
    /* The deaths of entries can run other code, which may replace the list of the state. */
    Py_INCREF(pending);
    int failed = PyList_SetSlice(pending, kept, number, NULL);
    Py_DECREF(pending);
    return failed;
}
