/* The types of compiled.pyi, and the functions that the C files of this folder share. A file calls
 * only functions of the files above it here. Every function is called with the GIL held. */
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

/* An argument and the type that it must have. */
struct argument {
    const char *name;
    PyObject *value;
    PyTypeObject *type; /* NULL: any callable */
};

/* Whether arguments have their types. False with a TypeError set that names the first wrong one. */
bool arguments_fit(const char *function, const struct argument *arguments, size_t number);

/* For functions that cannot raise: raise an exception in the Python code of this thread as soon as
 * it runs on. On other threads than the main one, a new exception of its class is raised. Takes
 * over the reference. Runs no Python code, unless the interpreter shuts down. */
void error_raise_later(PyObject *error);

/* ------------------------------------------------------------------ threads.c: the state of a thread */

/* See compiled.pyi. Held by the dict of its thread. No field is NULL. */
typedef struct {
    PyObject_HEAD
    PyObject *scopes, *pending; /* lists */
    PyObject *modes;            /* a tuple */
    PyObject *compiled;         /* a tuple or None */
    PyObject *backward;         /* the place where the last backward pass was called, or None */
    unsigned long long stepping;
    bool watched;
} ThreadState;

/* Makes the type ready and adds it to the module. -1 with an error set. */
int threads_make(PyObject *module);

PyObject *compiled_thread_state(PyObject *module, PyObject *ignored);

/* The functions below act on the calling thread. */

/* What makes tensors on the thread that are no births. STEP: an optimizer steps. TRACE: PyTorch
 * traces code or does similar work. COMPILED: a compiled function runs that has entered no scope.
 * -1 with an error set. */
enum { AT_WORK_STEP = 1, AT_WORK_COMPILED = 2, AT_WORK_TRACE = 4 };
int thread_at_work(void);
/* Whether a mode is the topmost in `modes`. -1 with an error set. */
int thread_has_mode(PyObject *mode);
/* Sets the place where the last backward pass was called, or None; -1 with an error set. The other
 * returns it, borrowed; NULL with an error set. */
int thread_remember_backward(PyObject *place);
PyObject *thread_backward(void);
/* Adds the entry of a birth to `pending`. -1 with an error set. */
int thread_add_pending(PyObject *entry);
/* Removes entries of dead resources from `pending`, once in a while. -1 with an error set. */
int thread_forget_dead(void);

/* -------------------------------------------------------- libtorch.c: the state of PyTorch on the calling thread */

/* Finds PyTorch's C++ functions in its libraries, which are loaded already, given their paths.
 * `key` is the number of the dispatch key of transforms. -1 with an error set; 0 if a function is
 * missing; 1 if all were found. Only then may the other functions of libtorch.c be called. */
int libtorch_find(PyObject *paths, unsigned long key);

/* Whether a tensor that is made now is no birth: in a backward pass, in a transform, or while torch
 * functions are disabled. */
bool libtorch_makes_no_births(void);

/* Whether torch functions are disabled: modes and subclasses do not see calls
 * (``DisableTorchFunction``). */
bool libtorch_functions_are_disabled(void);

/* Disables torch functions. Returns the state before, for `libtorch_enable_functions`. */
int libtorch_disable_functions(void);
void libtorch_enable_functions(int before);

/* ------------------------------------------------------------------ memory.c: the memory of the latest tensors */

/* A tensor whose memory is still to be recorded. */
struct look;

typedef struct {
    PyObject_HEAD
    PyTypeObject *tensor; /* torch.Tensor */
    PyObject *storage_of; /* its method untyped_storage */
    /* NULL before `record_into`, and so are the three objects below. */
    const struct birth_log_api *log;
    PyObject *log_capsule, *device_of, *look_at_other;
    /* The place where the last backward pass of the process was called, or NULL. */
    PyObject *backward;
    /* The log's numbers for the kind "torch.Tensor" and the device "cpu:0". */
    uint16_t kind, cpu;
    /* An array, the oldest first; `room` is its capacity. */
    struct look *looks;
    size_t count, room;
} MemoryRecorder;

extern PyTypeObject memory_recorder_type;

/* The API of the compiled module of scopes. */
extern const struct scopes_api *scopes_api;

/* Finds the API of scopes, makes the type ready and adds it to the module. -1 with an error set. */
int memory_make(PyObject *module);

/* Whether a leak detector is open and records tensors that are made on this thread now. */
bool memory_is_wanted(const MemoryRecorder *recorder);
/* The present place for the log (`remember_origin`): a new reference, or NULL without an error. Can
 * run any code. */
PyObject *memory_place(const MemoryRecorder *recorder);
/* Whether the memory of a tensor with this place is to be looked at soon: `is_recorded_soon` in
 * birth_log.h. Can run any code. */
bool memory_is_urgent(const MemoryRecorder *recorder, PyObject *place);
/* Look at the memory of the latest tensors when the main thread has ended its present call. */
void memory_look_soon(MemoryRecorder *recorder);
/* Notes the present place as the one where gradients are made: a backward pass begins. A gradient
 * is seen only when it is read, and belongs to the last pass that began before. */
void memory_begin_backward(MemoryRecorder *recorder);
/* The place of a gradient that is seen now: where the last backward pass began or, if no pass is
 * known, `memory_place`. A new reference, or NULL without an error. */
PyObject *memory_place_of_gradient(const MemoryRecorder *recorder);
/* What is recorded of the memory of a tensor. */
enum manner {
    LOOK_KNOWN,   /* nothing, now and later */
    LOOK_UNOWNED, /* its memory, unless PyTorch did not allocate it */
    LOOK_WHOLE,   /* its memory */
};
/* Adds a tensor whose memory is to be recorded, by its entry or another weak reference. `place` is
 * that of its birth, or NULL. Runs no other code. -1 with an error set. */
int memory_add(MemoryRecorder *recorder, PyObject *reference, PyObject *place, enum manner manner);
/* Records the memory of all added tensors. Errors are raised later. */
void memory_look(MemoryRecorder *recorder);

/* ------------------------------------------------------ births.c: births, seen where a Python object is allocated */

/* The fields are described in compiled.pyi. */
typedef struct {
    PyObject_HEAD
    MemoryRecorder *memory;
    PyObject *kind;
    PyObject *mode;
    PyObject *budgeted; /* a dict */
    PyObject *waiting;  /* a list */
    PyObject *passing;  /* a dict */
    PyObject *settle, *is_born, *is_overridden, *judge, *judge_frames, *give_up, *push_mode; /* functions */
    unsigned long long allocations;
} BirthWatch;

/* The `BirthWatch` that watches, or that has watched last. NULL before the first one. It is never
 * freed, because other threads may be in functions that use it. */
extern BirthWatch *birth_watch;

/* -1 with an error set. */
int births_make(void);

/* Replaces tp_alloc of a class of tensors, to see its births; and puts it back. Classes that are
 * derived from it later inherit the replacement. */
void births_watch_class(PyTypeObject *type);
void births_leave_class(PyTypeObject *type);

/* Records, for a detector, the memory of an existing tensor that was given a storage. No error may
 * be set. Can run any code. */
void births_look_again(PyObject *tensor);

/* A frame begins to read a descriptor of PyTorch's on this thread. A tensor object that the
 * descriptor makes is no birth, but a detector records it if it is a `gradient`. Returns the state
 * before, for `births_end_reading`. */
uintptr_t births_begin_reading(const void *frame, bool gradient);
/* Ends that. Returns whether a tensor was made meanwhile by other code than the descriptor's, such
 * as that of a mode or a subclass. */
bool births_end_reading(uintptr_t before);

/* Calls a function with one argument. Tensors that it makes on this thread are no births. */
PyObject *compiled_unborn(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

/* ------------------------------------------------------------------ backward.c: backward passes that are running */

/* A running backward pass. It is on the stack of its thread. */
struct backward_pass {
    PyObject *roots;    /* the tensors that it begins with; borrowed from its caller */
    const void *thread; /* an address that stands for its thread */
    struct backward_pass *before, *after; /* the list of running passes */
};

/* A pass begins, or ends, on this thread. */
void backward_begin(struct backward_pass *pass, PyObject *roots);
void backward_end(struct backward_pass *pass);

PyObject *compiled_begin_look(PyObject *module, PyObject *ignored);
PyObject *compiled_forget_backward(PyObject *module, PyObject *ignored);
PyObject *compiled_backward_elsewhere(PyObject *module, PyObject *ignored);
PyObject *compiled_read_between(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* ------------------------------------------------------------------ descriptors.c: PyTorch's descriptors, replaced */

/* -1 with an error set. */
int descriptors_make(void);
/* Whether descriptors are of the expected types. They are: a tuple of attributes, the method
 * `numpy`, a tuple of `data`, `set_` and `untyped_storage`, and the method of the engine that runs
 * a backward pass. */
bool descriptors_fit(PyObject *attributes, PyObject *numpy, PyObject *handing, PyObject *backward);
/* Replaces what these descriptors call; and puts it back. */
void descriptors_watch(PyObject *attributes, PyObject *numpy, PyObject *handing, PyObject *backward);
void descriptors_leave(void);

/* ------------------------------------------------------------------ watch.c: the type `BirthWatch` */

/* Makes the type ready and adds it to the module. -1 with an error set. */
int watch_make(PyObject *module);

#endif
