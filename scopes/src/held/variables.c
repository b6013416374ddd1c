/* What the variables of frames refer to: those of the frames that run, those of frames that have
 * ended, and which of a block's were somebody else's when it began. */
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

/* Whether the variables of some code lie in a dict: that of a module or a class. */
static bool lie_in_a_dict(const PyCodeObject *code) { return !(code->co_flags & CO_OPTIMIZED); }

static int visit_dict(PyFrameObject *frame, variable_visitor visit, void *arg)
{
    PyObject *names = PyFrame_GetLocals(frame), *name, *value;
    int result = names == NULL ? -1 : 0;
    if (names != NULL && PyDict_Check(names)) {
        for (Py_ssize_t at = 0; result == 0 && PyDict_Next(names, &at, &name, &value);) {
            /* Others may run code when they are looked up. */
            result = PyUnicode_CheckExact(name) ? visit(value, -1, name, true, 0, arg) : 0;
        }
    }
    Py_XDECREF(names);
    return result;
}

#ifdef FRAMES_ARE_KNOWN

/* What a variable refers to, which may be a cell: borrowed, NULL where it has no value. */
static PyObject *local_of(const PyFrameObject *frame, int number, bool *is_counted)
{
#if PY_VERSION_HEX >= 0x030E0000
    /* The lowest bits are flags. A parameter may borrow what its caller has, and counts no
     * reference then. */
    uintptr_t bits = frame->f_frame->localsplus[number].bits;
    *is_counted = (bits & 3) == 0;
    return (PyObject *)(bits & ~(uintptr_t)3);
#else
    *is_counted = true;
    return frame->f_frame->localsplus[number];
#endif
}

int visit_variables(PyFrameObject *frame, variable_visitor visit, void *arg)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    /* The frame holds it. */
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
            /* One that a function inside refers to as well is not the frame's alone. */
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
        /* Those that a function inside can refer to come last. Whether one does, this Python does
         * not show: in doubt they are held. */
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
                result = visit(value, group == 0 ? i : -1, NULL, is_own, 1, arg);
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
        PyObject *value = (at->bits & 3) == 1 ? (PyObject *)(at->bits & ~(uintptr_t)3) : NULL;
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
    /* This Python does not show it. One of a generator or a coroutine may be suspended: in doubt
     * its variables hold. */
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

/* ------------------------------------------------------------------ what a block's variables were when it began */

static bool is_dead(PyObject *object)
{
    PyObject *key = PyLong_FromVoidPtr(object);
    PyObject *entry = key == NULL ? NULL : PyDict_GetItemWithError(dead_table, key);
    PyObject *resource = entry == NULL || !is_entry(entry) ? NULL : referent_of(entry);
    Py_XDECREF(key);
    Py_XDECREF(resource);
    return resource == object;
}

/* Whether a value is a disposed resource, or a tuple of a kind's around one. */
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

/* A set of the numbers, or the names, of variables that are somebody else's too. */
static int note_variable(PyObject *value, Py_ssize_t number, PyObject *name, bool is_own, int extra, void *noted)
{
    (void)is_own;
    (void)extra;
    if (was_disposed(value) || (name == NULL && number < 0)) {
        return 0;
    }
    PyObject *what = name != NULL ? Py_NewRef(name) : PyLong_FromSsize_t(number);
    int failed = what == NULL ? -1 : PySet_Add(noted, what);
    Py_XDECREF(what);
    return failed;
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
