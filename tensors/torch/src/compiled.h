/* What the compiled files of this room share: the types of compiled.pyi, and what they call in each
 * other, each only what stands before it here. All of it is used with the GIL held. */
#ifndef DISPOSESCOPE_TORCH_COMPILED_H
#define DISPOSESCOPE_TORCH_COMPILED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../../scopes/src/shared/birth_log.h"
#include "../../../scopes/src/shared/types.h"

/* ------------------------------------------------------------------ errors.c */

/* -1 with an error set. */
int errors_make(void);

struct argument {
    const char *name;
    PyObject *value;
    PyTypeObject *type; /* NULL for what can be called */
};

/* Whether the arguments of a function are what they must be. With a TypeError set where not, which
 * names the first that is not. */
bool arguments_fit(const char *function, const struct argument *arguments, size_t number);

/* Has an error raised in the code of this thread as soon as that goes on, where whoever called
 * looks for none; on other threads than the main one a new one of its class. Steals it. Runs no
 * Python code before the interpreter goes down. */
void error_raise_later(PyObject *error);

/* ------------------------------------------------------------------ threads.c: the state of a thread */

/* Held by its thread; a field is never NULL. */
typedef struct {
    PyObject_HEAD
    PyObject *scopes, *pending; /* lists */
    PyObject *modes;            /* a tuple */
    PyObject *compiled;         /* a tuple or None */
    PyObject *backward;         /* where the last backward pass was, or None */
    unsigned long long stepping;
    bool watched;
} ThreadState;

/* Makes the type ready and adds it to the module. -1 with an error set. */
int threads_make(PyObject *module);

PyObject *compiled_thread_state(PyObject *module, PyObject *ignored);

/* What goes on on the calling thread, the flags together: an optimizer steps, or other code of
 * PyTorch's makes what is its own; a compiled function runs that has entered no scope. -1 with an
 * error set. */
enum { AT_WORK_STEP = 1, AT_WORK_COMPILED = 2, AT_WORK_TRACE = 4 };
int thread_at_work(void);
/* Whether a mode is the upmost of those that belong onto its stack. -1 with an error set. */
int thread_has_mode(PyObject *mode);
/* Remembers where a backward pass on it was, None for nowhere; -1 with an error set. And where the
 * last one was, borrowed; NULL with an error set. */
int thread_remember_backward(PyObject *place);
PyObject *thread_backward(void);
/* Adds the entry of a birth on it that a budget is still to be asked about. -1 with an error
 * set. */
int thread_add_pending(PyObject *entry);
/* Forgets those of them, once in a while, that are of what is dead. -1 with an error set. */
int thread_forget_dead(void);

/* -------------------------------------------------------- libtorch.c: what PyTorch is doing on the calling thread */

/* Takes the paths of PyTorch's libraries, which are loaded, and the number of the dispatch key of
 * transforms. -1 with an error set; 0 where a function is missing; 1 where all were found. The
 * other functions of libtorch.c may be called only then. */
int libtorch_find(PyObject *paths, unsigned long key);

/* Whether what is made now is no birth: in a backward pass, in a transform, or where calls of
 * functions are hidden from modes and classes (``DisableTorchFunction``). */
bool libtorch_makes_no_births(void);

/* One reason for that: calls of functions are hidden from modes and classes. */
bool libtorch_functions_are_disabled(void);

/* Hides calls of functions from modes and classes; returns the state before, for
 * `libtorch_enable_functions`. */
int libtorch_disable_functions(void);
void libtorch_enable_functions(int before);

/* ------------------------------------------------------------------ memory.c: the memory of what was made last */

/* A tensor that waits to be looked at. */
struct look;

typedef struct {
    PyObject_HEAD
    PyTypeObject *tensor; /* torch.Tensor */
    PyObject *storage_of; /* its method for the storage */
    /* NULL before `record_into`. */
    const struct birth_log_api *log;
    PyObject *log_capsule, *device_of, *look_at_other;
    /* Where the last backward pass of the process was; NULL for nowhere. */
    PyObject *backward;
    uint16_t kind, cpu;
    /* In the order in which they were added. */
    struct look *looks;
    size_t count, room;
} MemoryRecorder;

extern PyTypeObject memory_recorder_type;

/* The types, tables and functions of scopes. */
extern const struct scopes_api *scopes_api;

/* Finds those of scopes, makes the type ready and adds it to the module. -1 with an error set. */
int memory_make(PyObject *module);

/* Whether a leak detector is open that shall hear of what is made on this thread now. */
bool memory_is_wanted(const MemoryRecorder *recorder);
/* Where it is made: a new reference, or NULL without an error. Can run any code. */
PyObject *memory_place(const MemoryRecorder *recorder);
/* A backward pass begins that makes gradients: here each of them is made that nobody has seen
 * before the next one begins. */
void memory_begin_backward(MemoryRecorder *recorder);
/* Where a gradient was made that is seen now: where the last backward pass began, or the place of
 * `memory_place` where no pass is known. As for that, a new reference, or NULL without an error. */
PyObject *memory_place_of_gradient(const MemoryRecorder *recorder);
/* What is reported of the memory of a tensor that is looked at. */
enum manner {
    LOOK_KNOWN,   /* nothing */
    LOOK_UNOWNED, /* all, unless an array or something else has it */
    LOOK_WHOLE,   /* all */
};
/* Adds a tensor, by an entry or another weak reference, with the place, or NULL. Runs no other
 * code. -1 with an error set. */
int memory_add(MemoryRecorder *recorder, PyObject *reference, PyObject *place, enum manner manner);
/* Looks at all that were added. Errors are raised later. */
void memory_look(MemoryRecorder *recorder);

/* ------------------------------------------------------ births.c: births, seen where a Python object is allocated */

typedef struct {
    PyObject_HEAD
    MemoryRecorder *memory;
    PyObject *kind;
    PyObject *mode;
    /* As compiled.pyi describes them. */
    PyObject *budgeted; /* a dict */
    PyObject *waiting;  /* a list */
    PyObject *passing;  /* a dict */
    PyObject *settle, *is_born, *is_overridden, *judge, *judge_frames, *give_up, *push_mode; /* functions */
    unsigned long long allocations;
} BirthWatch;

/* The watch of births that watches, or has watched last: held for the life of the process, since
 * other threads may be in its functions. NULL before the first. */
extern BirthWatch *birth_watch;

/* -1 with an error set. */
int births_make(void);

/* Sees the births of a class of tensors from now on, which a class derived from it takes over; and
 * no longer. */
void births_watch_class(PyTypeObject *type);
void births_leave_class(PyTypeObject *type);

/* Has a detector look at a tensor that was given a storage. No error may be set. Can run any
 * code. */
void births_look_again(PyObject *tensor);

/* A frame reads a descriptor of PyTorch's on this thread: what that makes is no birth, except a
 * gradient for a detector. Returns the state before, which is to be given back at the end. */
uintptr_t births_begin_reading(const void *frame, bool gradient);
/* Returns whether a tensor was born meanwhile in other code than the descriptor's: a mode's, or
 * that of a class. */
bool births_end_reading(uintptr_t before);

/* Calls a function with one argument; what it makes on this thread no scope owns. */
PyObject *compiled_unborn(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

/* ------------------------------------------------------------------ backward.c: backward passes that are running */

struct backward_pass {
    PyObject *roots;    /* what it begins with; borrowed from its caller */
    const void *thread;
    struct backward_pass *before, *after;
};

/* A pass begins and ends on this thread. With the GIL. */
void backward_begin(struct backward_pass *pass, PyObject *roots);
void backward_end(struct backward_pass *pass);

/* Begins a look of this thread: passes of other threads wait before they begin, as long as what is
 * returned lives. None inside of a pass or another look. */
PyObject *compiled_begin_look(PyObject *module, PyObject *ignored);
/* Forgets the passes and looks of other threads: after a fork. */
PyObject *compiled_forget_backward(PyObject *module, PyObject *ignored);
/* How many passes have begun, and the roots of those that are running on other threads. */
PyObject *compiled_backward_elsewhere(PyObject *module, PyObject *ignored);
/* Calls a compiled function with one argument; NotImplemented where a pass that has begun since is
 * running on another thread. */
PyObject *compiled_read_between(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* ------------------------------------------------------------------ descriptors.c: PyTorch's descriptors, replaced */

/* -1 with an error set. */
int descriptors_make(void);
/* Whether there are the descriptors that are to be replaced: a tuple of attributes, the method for
 * arrays, a tuple of `data`, `set_` and `untyped_storage`, and the method of the engine for a
 * backward pass. */
bool descriptors_fit(PyObject *attributes, PyObject *numpy, PyObject *handing, PyObject *backward);
/* Replaces them, for `birth_watch`, and puts them back. */
void descriptors_watch(PyObject *attributes, PyObject *numpy, PyObject *handing, PyObject *backward);
void descriptors_leave(void);

/* ------------------------------------------------------------------ watch.c: the type `BirthWatch` */

/* Makes the type ready and adds it to the module. -1 with an error set. */
int watch_make(PyObject *module);

#endif
