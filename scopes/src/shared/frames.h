/* A walk over the frames of the calling thread, innermost first. On Python 3.11 it makes no frame
 * objects:
 *
 *     for (walk_begin(&walk); !walk_ended(&walk); walk_out(&walk)) { ... }
 *     walk_end(&walk);
 */
#ifndef DISPOSESCOPE_SCOPES_FRAMES_H
#define DISPOSESCOPE_SCOPES_FRAMES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030C0000

/* The layout of a frame is internal, and the same in every release of 3.11. */
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

/* `frame` is borrowed. */
struct walk {
    _PyInterpreterFrame *frame;
};

/* Skips frames that have not executed their first instruction. */
static inline void walk_settle(struct walk *walk)
{
    while (walk->frame != NULL && _PyFrame_IsIncomplete(walk->frame)) {
        walk->frame = walk->frame->previous;
    }
}

static inline void walk_begin(struct walk *walk)
{
    walk->frame = PyThreadState_Get()->cframe->current_frame;
    walk_settle(walk);
}

static inline bool walk_ended(const struct walk *walk) { return walk->frame == NULL; }
static inline PyCodeObject *walk_code(const struct walk *walk) { return walk->frame->f_code; }
static inline int walk_instruction(const struct walk *walk)
{
    return _PyInterpreterFrame_LASTI(walk->frame) * (int)sizeof(_Py_CODEUNIT);
}
static inline PyObject *walk_globals(const struct walk *walk) { return Py_NewRef(walk->frame->f_globals); }
static inline void walk_out(struct walk *walk)
{
    walk->frame = walk->frame->previous;
    walk_settle(walk);
}
static inline void walk_end(struct walk *walk) { walk->frame = NULL; }

#else

/* `frame` is owned, `code` is borrowed from it. */
struct walk {
    PyFrameObject *frame;
    PyCodeObject *code;
};

/* Makes `frame`, whose reference is taken over, the current one. */
static inline void walk_enter(struct walk *walk, PyFrameObject *frame)
{
    Py_XDECREF(walk->frame);
    walk->frame = frame;
    walk->code = NULL;
    if (frame != NULL) {
        walk->code = PyFrame_GetCode(frame);
        /* The frame keeps the code alive. */
        Py_DECREF(walk->code);
    }
}

static inline void walk_begin(struct walk *walk)
{
    walk->frame = NULL;
    walk_enter(walk, PyThreadState_GetFrame(PyThreadState_Get()));
}

static inline bool walk_ended(const struct walk *walk) { return walk->frame == NULL; }
static inline PyCodeObject *walk_code(const struct walk *walk) { return walk->code; }
static inline int walk_instruction(const struct walk *walk) { return PyFrame_GetLasti(walk->frame); }
static inline PyObject *walk_globals(const struct walk *walk) { return PyFrame_GetGlobals(walk->frame); }
static inline void walk_out(struct walk *walk) { walk_enter(walk, PyFrame_GetBack(walk->frame)); }
static inline void walk_end(struct walk *walk) { walk_enter(walk, NULL); }

#endif

#endif
