/* The variables of frames: those of running and of ended frames, and which variables of a block
 * were bound before the block began. */
#include "holding.h"

#include <string.h>

#if PY_VERSION_HEX < 0x030F0000
/* The layout of a frame is internal, and the same in every release of one minor version. */
#define FRAMES_ARE_KNOWN
#define Py_BUILD_CORE 1
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe_structs.h>
#endif
#undef Py_BUILD_CORE
#endif

/* ------------------------------------------------------------------ the variables of a frame */

/* Whether the variables of a code object are in a dict, as those of a module or a class body are. */
static bool lie_in_a_dict(const PyCodeObject *code) { return !(code->co_flags & CO_OPTIMIZED); }

static int visit_dict(PyFrameObject *frame, variable_visitor visit, void *arg)
{
    PyObject *names = PyFrame_GetLocals(frame), *name, *value;
    int result = names == NULL ? -1 : 0;
    if (names != NULL && PyDict_Check(names)) {
        for (Py_ssize_t at = 0; result == 0 && PyDict_Next(names, &at, &name, &value);) {
            /* Looking up a name of another type may run code. */
            result = PyUnicode_CheckExact(name) ? visit(value, -1, name, true, 0, arg) : 0;
        }
    }
    Py_XDECREF(names);
    return result;
}

#ifdef FRAMES_ARE_KNOWN

/* The low bits of a reference in a frame are flags. Of a counted reference both are 0. */
enum { FLAGS_OF_REFERENCE = 3, IS_BORROWED = 1 };

/* The value of a variable, which may be a cell: borrowed. NULL for an unbound one. `is_counted`
 * says whether the frame has a reference of its own to the value. */
static PyObject *local_of(const PyFrameObject *frame, int number, bool *is_counted)
{
#if PY_VERSION_HEX >= 0x030E0000
    /* A parameter may borrow the reference of its caller. */
    uintptr_t bits = frame->f_frame->localsplus[number].bits;
    *is_counted = (bits & FLAGS_OF_REFERENCE) == 0;
    return (PyObject *)(bits & ~(uintptr_t)FLAGS_OF_REFERENCE);
#else
    *is_counted = true;
    return frame->f_frame->localsplus[number];
#endif
}

int visit_variables(PyFrameObject *frame, variable_visitor visit, void *arg)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    /* The frame keeps the code alive. */
    Py_DECREF(code);
    if (lie_in_a_dict(code)) {
        return visit_dict(frame, visit, arg);
    }
    int result = 0;
    for (int i = 0; result == 0 && i < code->co_nlocalsplus; i++) {
        _PyLocals_Kind kind = _PyLocals_GetKind(code->co_localspluskinds, i);
        bool is_own;
        PyObject *value = local_of(frame, i, &is_own);
        if (value != NULL && (kind & (CO_FAST_CELL | CO_FAST_FREE)) && PyCell_Check(value)) {
            /* A cell with more references also belongs to a function defined inside this one. */
            is_own = !(kind & CO_FAST_FREE) && Py_REFCNT(value) == 1;
            value = PyCell_GET(value);
        }
        if (value != NULL) {
            result = visit(value, i, NULL, is_own, 0, arg);
        }
    }
    return result;
}

#else

int visit_variables(PyFrameObject *frame, variable_visitor visit, void *arg)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    int result = 0;
    if (lie_in_a_dict(code)) {
        result = visit_dict(frame, visit, arg);
    }
    else {
        /* Plain variables and free ones. Variables that an inner function can refer to are never
         * the frame's own: this Python does not show whether an inner function does. */
        PyObject *groups[] = {PyCode_GetVarnames(code), PyCode_GetFreevars(code)};
        PyObject *cells = PyCode_GetCellvars(code);
        for (int group = 0; group < 2; group++) {
            PyObject *names = groups[group];
            for (Py_ssize_t i = 0; result == 0 && names != NULL && i < PyTuple_GET_SIZE(names); i++) {
                PyObject *name = PyTuple_GET_ITEM(names, i);
                PyObject *value = PyFrame_GetVar(frame, name);
                if (value == NULL) {
                    PyErr_Clear();
                    continue;
                }
                bool is_own = group == 0 && cells != NULL && PySequence_Contains(cells, name) == 0;
                Py_ssize_t before = group == 0 ? 0 : code->co_nlocalsplus - PyTuple_GET_SIZE(names);
                result = visit(value, before + i, NULL, is_own, 1, arg);
                Py_DECREF(value);
            }
            Py_XDECREF(names);
        }
        Py_XDECREF(cells);
    }
    Py_DECREF(code);
    return result;
}

#endif

int visit_borrowed(PyFrameObject *frame, visitproc visit, void *arg)
{
    int result = 0;
#if PY_VERSION_HEX >= 0x030E0000 && defined(FRAMES_ARE_KNOWN)
    PyCodeObject *code = PyFrame_GetCode(frame);
    const _PyStackRef *at = frame->f_frame->localsplus + code->co_nlocalsplus, *end = frame->f_frame->stackpointer;
    for (; result == 0 && end != NULL && at < end; at++) {
        bool is_borrowed = (at->bits & FLAGS_OF_REFERENCE) == IS_BORROWED;
        PyObject *value = is_borrowed ? (PyObject *)(at->bits & ~(uintptr_t)FLAGS_OF_REFERENCE) : NULL;
        result = value == NULL ? 0 : visit(value, arg);
    }
    Py_DECREF(code);
#else
    (void)frame;
    (void)visit;
    (void)arg;
#endif
    return result;
}

bool has_ended(PyFrameObject *frame)
{
#ifdef FRAMES_ARE_KNOWN
    return frame->f_frame->owner == FRAME_OWNED_BY_FRAME_OBJECT;
#else
    /* This Python does not show whether a frame has ended. That of a generator or coroutine may be
     * suspended: in doubt it has not ended, and its variables hold. */
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool ended = !(code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR));
    Py_DECREF(code);
    return ended;
#endif
}

/* ------------------------------------------------------------------ the frames that run */

/* Whether a frame runs code of this package. */
static bool is_ours(PyFrameObject *frame)
{
    static const char package[] = "disposescope.";
    PyObject *globals = PyFrame_GetGlobals(frame);
    PyObject *name = PyDict_GetItemString(globals, "__name__");
    const char *text = name == NULL || !PyUnicode_Check(name) ? NULL : PyUnicode_AsUTF8(name);
    bool ours = text != NULL && strncmp(text, package, sizeof package - 1) == 0;
    PyErr_Clear();
    Py_DECREF(globals);
    return ours;
}

PyObject *running_frames(Py_ssize_t at_most)
{
    PyObject *frames = PyList_New(0);
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    while (frames != NULL && frame != NULL && PyList_GET_SIZE(frames) < at_most) {
        if ((PyList_GET_SIZE(frames) != 0 || !is_ours(frame)) && PyList_Append(frames, (PyObject *)frame) < 0) {
            Py_CLEAR(frames);
        }
        PyFrameObject *back = frames == NULL ? NULL : PyFrame_GetBack(frame);
        Py_SETREF(frame, back);
    }
    Py_XDECREF(frame);
    return frames;
}

/* ------------------------------------------------------------------ variables bound when a block begins */

/* Whether an object is a resource that was released. */
static bool is_dead(PyObject *object)
{
    PyObject *key = PyLong_FromVoidPtr(object);
    PyObject *entry = key == NULL ? NULL : PyDict_GetItemWithError(dead_table, key);
    PyObject *resource = entry == NULL || !is_entry(entry) ? NULL : referent_of(entry);
    Py_XDECREF(key);
    Py_XDECREF(resource);
    return resource == object;
}

/* Whether a value is a disposed resource, or an instance of a subclass of tuple with one in it. */
static bool was_disposed(PyObject *value)
{
    if (PyDict_GET_SIZE(dead_table) == 0) {
        return false;
    }
    bool disposed = is_dead(value);
    if (!disposed && PyTuple_Check(value) && !PyTuple_CheckExact(value)) {
        for (Py_ssize_t i = 0; !disposed && i < PyTuple_GET_SIZE(value); i++) {
            disposed = is_dead(PyTuple_GET_ITEM(value, i));
        }
    }
    return disposed;
}

/* Adds the number or the name of a variable to the set `noted`. A `variable_visitor`. */
static int note_variable(PyObject *value, Py_ssize_t number, PyObject *name, bool is_own, int extra, void *noted)
{
    (void)is_own;
    (void)extra;
    if (was_disposed(value) || (name == NULL && number < 0)) {
        return 0;
    }
    PyObject *variable = name != NULL ? Py_NewRef(name) : PyLong_FromSsize_t(number);
    int failed = variable == NULL ? -1 : PySet_Add(noted, variable);
    Py_XDECREF(variable);
    return failed;
}

/* Variables by name, and the code that has the names. */
struct named {
    PyObject *variables;
    PyCodeObject *code;
};

/* Adds a variable to the dict of `named`. A `variable_visitor`. */
static int add_variable(PyObject *value, Py_ssize_t number, PyObject *name, bool is_own, int extra, void *arg)
{
    (void)is_own;
    (void)extra;
    struct named *named = arg;
    PyObject *names = named->code->co_localsplusnames;
    if (name == NULL && (number < 0 || number >= PyTuple_GET_SIZE(names))) {
        return 0;
    }
    return PyDict_SetItem(named->variables, name != NULL ? name : PyTuple_GET_ITEM(names, number), value);
}

PyObject *compiled_variables_of(PyObject *module, PyObject *frame)
{
    (void)module;
    if (!PyFrame_Check(frame)) {
        PyErr_Format(PyExc_TypeError, "internal error: variables_of() was given a %s, expected a frame",
                     Py_TYPE(frame)->tp_name);
        return NULL;
    }
    struct named named = {PyDict_New(), PyFrame_GetCode((PyFrameObject *)frame)};
    if (named.variables != NULL && visit_variables((PyFrameObject *)frame, add_variable, &named) < 0) {
        Py_CLEAR(named.variables);
    }
    Py_DECREF(named.code);
    return named.variables;
}

PyObject *compiled_note_variables(PyObject *module, PyObject *frame)
{
    (void)module;
    if (!PyFrame_Check(frame)) {
        PyErr_Format(PyExc_TypeError, "internal error: note_variables() was given a %s, expected a frame",
                     Py_TYPE(frame)->tp_name);
        return NULL;
    }
    PyObject *noted = PySet_New(NULL), *note = NULL;
    PyCodeObject *code = PyFrame_GetCode((PyFrameObject *)frame);
    if (noted != NULL && visit_variables((PyFrameObject *)frame, note_variable, noted) == 0) {
        note = Py_BuildValue("NOO", PyLong_FromVoidPtr(frame), code, noted);
    }
    Py_DECREF(code);
    Py_XDECREF(noted);
    return note;
}
