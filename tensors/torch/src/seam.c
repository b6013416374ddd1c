#include "seam.h"

#include <stdbool.h>
#include <stdint.h>

#include "../../../scopes/src/slots.h"
#include "births.h"
#include "bound.h"
#include "looks.h"

/* ================================================================== births that a budget is still to be asked about */

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

/* Takes the entries of what is dead out of a list, where they are many, each time that it has become twice as long: what no call ends
 * with, as that which functions without a seam make in a loop, shall not pile up. -1 with an error set. */
static int pending_forget_dead(PyObject *pending)
{
    Py_ssize_t number = PyList_GET_SIZE(pending), dead = 0, kept = 0;
    if (number < 1024 || (number & (number - 1)) != 0) {
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
    /* What goes with the entries can run other code, which puts another list in the place of this one. */
    Py_INCREF(pending);
    int failed = PyList_SetSlice(pending, kept, number, NULL);
    Py_DECREF(pending);
    return failed;
}

/* ================================================================== the seam */

enum object { LOCAL, MODE, PUSH, POP, DEPTH, PENDING, ENTERED, LEFT, OBJECTS };

static const char *const object_names[OBJECTS] = {
    [LOCAL] = "LOCAL",   [MODE] = "MODE",     [PUSH] = "push",       [POP] = "pop",
    [DEPTH] = "depth",   [PENDING] = "PENDING", [ENTERED] = "entered", [LEFT] = "left",
};

/* Slots of the state of a thread, and of a scope. */
enum slot { HERE_COMPILED, HERE_MODES, HERE_SCOPES, HERE_STEPPING, HERE_PENDING, HERE_WATCHED, SCOPE_BUDGET, SCOPE_STATE, SLOTS };

static const char *const slot_names[SLOTS] = {
    [HERE_COMPILED] = "compiled", [HERE_MODES] = "modes",   [HERE_SCOPES] = "scopes", [HERE_STEPPING] = "stepping",
    [HERE_PENDING] = "pending",     [HERE_WATCHED] = "watched", [SCOPE_BUDGET] = "budget", [SCOPE_STATE] = "_state",
};

static PyObject *bound[OBJECTS];
static Py_ssize_t offsets[SLOTS];
static PyTypeObject *here_type, *scope_type;
/* The only mode there is, the modes of a thread without one, what `_len_torch_function_stack` returns, a state. */
static PyObject *modes_on, *modes_off, *zero, *one, *state_closed, *name_here;

/* A weak reference to the state of the thread that asked last: its own storage holds it. */
static PyObject *remembered_here;
static uint64_t remembered_thread;

static inline PyObject *get(PyObject *object, enum slot slot) { return read_slot(object, offsets[slot]); }

static inline void put(PyObject *object, enum slot slot, PyObject *value) { write_slot(object, offsets[slot], value); }

static int find_slots(PyTypeObject *type, enum slot first, enum slot last)
{
    for (enum slot slot = first; slot <= last; slot++) {
        if ((offsets[slot] = offset_of_slot(type, slot_names[slot])) < 0) {
            return -1;
        }
    }
    return 0;
}

PyObject *seam_bind(PyObject *module, PyObject *things)
{
    (void)module;
    if (!may_bind(things, bound[LOCAL])) {
        return NULL;
    }
    PyObject *here = PyDict_GetItemString(things, "ThreadState"), *scope = PyDict_GetItemString(things, "DisposeScope");
    PyObject *pending = PyDict_GetItemString(things, "PENDING");
    if (here == NULL || !PyType_Check(here) || scope == NULL || !PyType_Check(scope) || pending == NULL ||
        !PyList_CheckExact(pending)) {
        PyErr_SetString(PyExc_TypeError, "bind_seam() was given something else than it wants");
        return NULL;
    }
    if (find_slots((PyTypeObject *)here, HERE_COMPILED, HERE_WATCHED) < 0 ||
        find_slots((PyTypeObject *)scope, SCOPE_BUDGET, SCOPE_STATE) < 0 ||
        (modes_off = PyTuple_New(0)) == NULL || (zero = PyLong_FromLong(0)) == NULL ||
        (one = PyLong_FromLong(1)) == NULL || (state_closed = PyLong_FromLong(2)) == NULL ||
        (name_here = PyUnicode_InternFromString("here")) == NULL || take(things, object_names, OBJECTS, bound) < 0 ||
        (modes_on = PyTuple_Pack(1, bound[MODE])) == NULL) {
        return NULL;
    }
    here_type = (PyTypeObject *)Py_NewRef(here);
    scope_type = (PyTypeObject *)Py_NewRef(scope);
    Py_RETURN_NONE;
}

/* The state of the calling thread, a new reference; NULL with an error set. */
static PyObject *state_here(void)
{
    uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (remembered_here != NULL && thread == remembered_thread) {
#if PY_VERSION_HEX >= 0x030D0000
        PyObject *known;
        if (PyWeakref_GetRef(remembered_here, &known) < 0) {
            return NULL;
        }
        if (known != NULL) {
            return known;
        }
#else
        PyObject *known = PyWeakref_GET_OBJECT(remembered_here);
        if (known != Py_None) {
            return Py_NewRef(known);
        }
#endif
    }
    PyObject *here = PyObject_GetAttr(bound[LOCAL], name_here);
    if (here == NULL) {
        return NULL;
    }
    PyObject *reference = Py_TYPE(here) == here_type ? PyWeakref_NewRef(here, NULL) : NULL;
    if (reference == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "the state of this thread is none");
        }
        Py_DECREF(here);
        return NULL;
    }
    PyObject *before = remembered_here;
    remembered_here = reference;
    remembered_thread = thread;
    Py_XDECREF(before);
    return here;
}

static bool is_undisturbed(PyObject *here)
{
    return get(here, HERE_STEPPING) == zero && get(here, HERE_COMPILED) == Py_None;
}

/* Whether a compiled function runs on a thread which has entered no scope: `runs_compiled` of `births`. */
static bool runs_compiled(PyObject *here)
{
    PyObject *compiled = get(here, HERE_COMPILED), *scopes = get(here, HERE_SCOPES);
    if (!PyTuple_Check(compiled) || PyTuple_GET_SIZE(compiled) < 2 || !PyList_CheckExact(scopes)) {
        return compiled != Py_None;
    }
    size_t before = PyLong_AsSize_t(PyTuple_GET_ITEM(compiled, 1));
    return (size_t)PyList_GET_SIZE(scopes) <= before;
}

static bool has_mode(PyObject *here)
{
    PyObject *modes = get(here, HERE_MODES);
    Py_ssize_t number = PyTuple_CheckExact(modes) ? PyTuple_GET_SIZE(modes) : 0;
    return number != 0 && PyTuple_GET_ITEM(modes, number - 1) == bound[MODE];
}

static bool has_pending(PyObject *here)
{
    PyObject *pending = get(here, HERE_PENDING);
    return PyList_CheckExact(pending) && PyList_GET_SIZE(pending) != 0;
}

static int ask_here(bool (*question)(PyObject *))
{
    PyObject *here = state_here();
    int answer = here == NULL ? -1 : question(here);
    Py_XDECREF(here);
    return answer;
}

static bool steps(PyObject *here) { return get(here, HERE_STEPPING) != zero; }

int seam_at_work(void)
{
    PyObject *here = state_here();
    int answer = here == NULL ? -1 : (steps(here) ? AT_WORK_STEP : 0) | (runs_compiled(here) ? AT_WORK_COMPILED : 0);
    Py_XDECREF(here);
    return answer;
}

int seam_has_mode(void) { return ask_here(has_mode); }

int seam_add_pending(PyObject *entry)
{
    PyObject *here = state_here();
    PyObject *pending = here == NULL ? NULL : get(here, HERE_PENDING);
    int failed = pending == NULL ? -1 : PyList_CheckExact(pending) ? PyList_Append(pending, entry) : 0;
    Py_XDECREF(here);
    return failed;
}

int seam_forget_dead(void)
{
    PyObject *here = state_here();
    PyObject *pending = here == NULL ? NULL : get(here, HERE_PENDING);
    int failed = pending == NULL ? -1 : PyList_CheckExact(pending) ? pending_forget_dead(pending) : 0;
    Py_XDECREF(here);
    return failed;
}

/* Whether nothing is going on on a thread, and it has a list of scopes: what follows is about the mode alone. */
static bool is_calm(PyObject *here)
{
    return is_undisturbed(here) && !has_pending(here) && PyList_CheckExact(get(here, HERE_SCOPES)) &&
           PyTuple_CheckExact(get(here, HERE_MODES));
}

/* Whether so many modes are on the stack of this thread. -1 with an error set. */
static int depth_is(PyObject *expected)
{
    PyObject *depth = PyObject_CallNoArgs(bound[DEPTH]);
    if (depth == NULL) {
        return -1;
    }
    int same = PyObject_RichCompareBool(depth, expected, Py_EQ);
    Py_DECREF(depth);
    return same;
}

/* Done here, or to be done in Python, or failed with an error set. */
enum outcome { FAILED = -1, UNUSUAL, DONE };

static enum outcome enter(PyObject *here, PyObject *scope)
{
    if (Py_TYPE(scope) != scope_type || get(scope, SCOPE_BUDGET) != Py_None || !is_calm(here) ||
        PyList_GET_SIZE(bound[PENDING]) != 0) {
        return UNUSUAL;
    }
    bool put_on = !has_mode(here) && (!births_are_seen() || births_need_the_mode());
    if (put_on) {
        int bare = PyTuple_GET_SIZE(get(here, HERE_MODES)) != 0 ? 0 : depth_is(zero);
        if (bare <= 0) {
            return bare < 0 ? FAILED : UNUSUAL;
        }
    }
    if (PyList_Append(get(here, HERE_SCOPES), scope) < 0) {
        return FAILED;
    }
    if (put_on) {
        put(here, HERE_MODES, modes_on);
        put(here, HERE_WATCHED, Py_True);
        PyObject *done = PyObject_CallOneArg(bound[PUSH], bound[MODE]);
        Py_XDECREF(done);
        return done == NULL ? FAILED : DONE;
    }
    return DONE;
}

static enum outcome leave(PyObject *here, PyObject *scope)
{
    if (Py_TYPE(scope) != scope_type || get(scope, SCOPE_BUDGET) != Py_None || !is_calm(here) ||
        PyList_GET_SIZE(bound[PENDING]) != 0) {
        return UNUSUAL;
    }
    PyObject *scopes = get(here, HERE_SCOPES);
    Py_ssize_t number = PyList_GET_SIZE(scopes);
    if (number == 0 || PyList_GET_ITEM(scopes, number - 1) != scope) {
        return UNUSUAL;
    }
    if (number > 1) {
        PyObject *below = PyList_GET_ITEM(scopes, number - 2);
        if (Py_TYPE(below) != scope_type || get(below, SCOPE_STATE) == state_closed) {
            return UNUSUAL;
        }
    }
    bool take_off = number == 1 && has_mode(here);
    if (take_off) {
        if (PyTuple_GET_SIZE(get(here, HERE_MODES)) != 1) {
            return UNUSUAL;
        }
        int alone = depth_is(one);
        if (alone <= 0) {
            return alone < 0 ? FAILED : UNUSUAL;
        }
    }
    if (PyList_SetSlice(scopes, number - 1, number, NULL) < 0) {
        return FAILED;
    }
    if (take_off) {
        put(here, HERE_MODES, modes_off);
        put(here, HERE_WATCHED, Py_False);
        PyObject *mode = PyObject_CallNoArgs(bound[POP]);
        Py_XDECREF(mode);
        return mode == NULL ? FAILED : DONE;
    }
    return DONE;
}

static PyObject *pass(PyObject *scope, enum outcome (*way)(PyObject *, PyObject *), enum object otherwise)
{
    if (bound[otherwise] == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the seam has not been bound");
        return NULL;
    }
    PyObject *here = state_here();
    if (here == NULL) {
        return NULL;
    }
    enum outcome outcome = way(here, scope);
    Py_DECREF(here);
    if (outcome == UNUSUAL) {
        return PyObject_CallOneArg(bound[otherwise], scope);
    }
    return outcome == FAILED ? NULL : Py_NewRef(Py_None);
}

PyObject *seam_entered(PyObject *module, PyObject *scope)
{
    (void)module;
    return pass(scope, enter, ENTERED);
}

PyObject *seam_left(PyObject *module, PyObject *scope)
{
    (void)module;
    /* What was born in it is looked at before it is released. */
    looks_do();
    return pass(scope, leave, LEFT);
}
