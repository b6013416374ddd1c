/* The memory of the latest tensors: see `MemoryRecorder` in compiled.pyi. When the Python object of
 * a tensor is allocated, the tensor has no memory yet. So it is looked at later: when the next
 * tensor is made on any thread, when a scope is left, and when somebody asks. Then its memory is
 * recorded in the log of births, and the listeners are told. */
#include "compiled.h"

#include <stdlib.h>
#include <string.h>

#include "../../../scopes/src/shared/raised.h"

static PyObject *name_base, *name_born, *name_cdata, *name_grad, *name_grad_fn, *name_is_cpu, *name_is_shared,
    *name_nbytes, *name_requires_grad, *name_resizable, *name_torch;

/* A tensor that is to be looked at: an entry or another weak reference, the place of its birth or
 * NULL, both owned. */
struct look {
    PyObject *reference, *place;
    enum manner manner;
};

/* Whether this thread is looking at a tensor. Tensors that are made meanwhile are not recorded. */
static _Thread_local bool looking;

bool memory_is_wanted(const MemoryRecorder *recorder)
{
    return recorder->log != NULL && !looking && recorder->log->is_open();
}

PyObject *memory_place(const MemoryRecorder *recorder) { return recorder->log->remember_origin(); }

bool memory_is_urgent(const MemoryRecorder *recorder, PyObject *place)
{
    return recorder->log->is_recorded_soon(place);
}

void memory_begin_backward(MemoryRecorder *recorder)
{
    PyObject *place = memory_is_wanted(recorder) ? memory_place(recorder) : NULL;
    Py_XSETREF(recorder->backward, Py_XNewRef(place));
    if (thread_remember_backward(place == NULL ? Py_None : place) < 0) {
        error_raise_later(take_raised());
    }
    Py_XDECREF(place);
}

PyObject *memory_place_of_gradient(const MemoryRecorder *recorder)
{
    PyObject *place = thread_backward();
    if (place == NULL) {
        PyErr_Clear();
    }
    if (place == NULL || place == Py_None || !recorder->log->is_recent(place)) {
        /* No pass on this thread: a hook may run on a thread of the engine, and a gradient may be
         * read on another thread than that of its pass. */
        place = recorder->backward;
    }
    return place != NULL && recorder->log->is_recent(place) ? Py_NewRef(place) : memory_place(recorder);
}

int memory_add(MemoryRecorder *recorder, PyObject *reference, PyObject *place, enum manner manner)
{
    if (recorder->count == recorder->room) {
        size_t wanted = recorder->room == 0 ? 16 : recorder->room * 2;
        struct look *fresh = realloc(recorder->looks, wanted * sizeof *fresh);
        if (fresh == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        recorder->looks = fresh;
        recorder->room = wanted;
    }
    recorder->looks[recorder->count++] = (struct look){Py_NewRef(reference), Py_XNewRef(place), manner};
    return 0;
}

/* ------------------------------------------------------------------ recording the memory of a tensor */

/* The referent of a weak reference, a new reference; NULL if it is gone, and with an error set. */
static PyObject *referent(PyObject *reference)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    return PyWeakref_GetRef(reference, &found) < 0 ? NULL : found;
#else
    PyObject *found = PyWeakref_GET_OBJECT(reference);
    return found == Py_None ? NULL : Py_NewRef(found);
#endif
}

/* The value of a number, whose reference is taken over; -1 with an error set, also if `number` is
 * NULL after a failed call. */
static size_t size_of(PyObject *number)
{
    size_t size = number == NULL ? (size_t)-1 : PyLong_AsSize_t(number);
    Py_XDECREF(number);
    return size;
}

/* Whether memory on the CPU was allocated by others than PyTorch, and is not shared between
 * processes: that of an array, for example. -1 with an error set. */
static int is_foreign(PyObject *storage)
{
    int resizable = take_truth(PyObject_CallMethodNoArgs(storage, name_resizable));
    int shared = resizable != 0 ? 1 : take_truth(PyObject_CallMethodNoArgs(storage, name_is_shared));
    return resizable < 0 || shared < 0 ? -1 : !shared;
}

/* Records the memory of a storage that the log does not know; foreign memory only if it `is_whole`.
 * -1 with an error set. */
static int record_storage(const MemoryRecorder *recorder, PyObject *tensor, PyObject *storage, bool is_whole)
{
    size_t nbytes = size_of(PyObject_CallMethodNoArgs(storage, name_nbytes));
    if (nbytes == 0 || nbytes == (size_t)-1) {
        return nbytes == 0 ? 0 : -1;
    }
    int is_cpu = take_truth(PyObject_GetAttr(tensor, name_is_cpu));
    if (is_cpu < 0) {
        return -1;
    }
    if (is_cpu) {
        int foreign = is_whole ? 0 : is_foreign(storage);
        return foreign != 0 ? (foreign < 0 ? -1 : 0)
                            : recorder->log->memory_born(storage, NULL, nbytes, recorder->kind, recorder->cpu);
    }
    PyObject *name = PyObject_CallOneArg(recorder->device_of, storage);
    int failed = name == NULL ? -1 : 0;
    if (failed == 0 && name != Py_None) {
        failed = recorder->log->memory_born(storage, NULL, nbytes, recorder->kind, recorder->log->device_number(name));
    }
    Py_XDECREF(name);
    return failed;
}

/* The storage of a tensor, a new reference. NULL, without an error, for a tensor without one:
 * inside of a transform, sparse, or opaque. */
static PyObject *storage_of(const MemoryRecorder *recorder, PyObject *tensor)
{
    PyObject *storage = PyObject_CallOneArg(recorder->storage_of, tensor);
    if (storage == NULL) {
        PyErr_Clear();
    }
    return storage;
}

/* Calls the Python function for a tensor of a subclass, or without a storage. -1 with an error set
 * that is no Exception, such as an interrupt. */
static int look_at_other(const MemoryRecorder *recorder, PyObject *tensor)
{
    PyObject *done = PyObject_CallOneArg(recorder->look_at_other, tensor);
    Py_XDECREF(done);
    if (done == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        /* Another thread has disposed the tensor, or its class raises. The code of this thread has
         * not asked for it, so it gets no exception. */
        PyErr_Clear();
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* Records the memory of a tensor that the log does not know. -1 with an error set that is no
 * Exception. */
static int record_memory_of(const MemoryRecorder *recorder, PyObject *tensor, bool is_whole)
{
    if (recorder->log->samples()) {
        /* Asked for views as well, although they are not recorded below: so each birth keeps its
         * probability to be in the sample. */
        size_t nbytes = size_of(PyObject_GetAttr(tensor, name_nbytes));
        if (nbytes == (size_t)-1) {
            /* A sparse tensor: the sample is asked for each of its parts. */
            PyErr_Clear();
        }
        else if (!recorder->log->is_kept(nbytes)) {
            return 0;
        }
    }
    PyObject *storage = storage_of(recorder, tensor);
    int failed = 0;
    if (storage == NULL) {
        failed = look_at_other(recorder, tensor);
    }
    else if (!recorder->log->has_memory(storage)) {
        failed = record_storage(recorder, tensor, storage, is_whole);
    }
    Py_XDECREF(storage);
    if (failed < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        failed = 0;
    }
    return failed;
}

/* Excludes the memory of a tensor from reports. -1 with an error set. */
static int know(const MemoryRecorder *recorder, PyObject *tensor)
{
    PyObject *storage = storage_of(recorder, tensor);
    int failed = storage == NULL ? 0 : recorder->log->exclude_memory(storage);
    Py_XDECREF(storage);
    return failed;
}

/* The entry in LIVE with the key of an entry, borrowed; NULL if there is none, and with an error
 * set. */
static PyObject *live_at(PyObject *entry) { return PyDict_GetItemWithError(scopes_api->live, ((Entry *)entry)->key); }

/* Tells the listeners of a birth, if the resource is still alive. -1 with an error set. */
static int tell_listeners(PyObject *entry)
{
    if (live_at(entry) != entry) {
        return PyErr_Occurred() ? -1 : 0;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(scopes_api->listeners); i++) {
        PyObject *listener = Py_NewRef(PyList_GET_ITEM(scopes_api->listeners, i));
        PyObject *returned = PyObject_VectorcallMethod(name_born, (PyObject *[]){listener, entry}, 2, NULL);
        Py_DECREF(listener);
        if (returned == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
            PyObject *type, *value, *traceback;
            PyErr_Fetch(&type, &value, &traceback);
            if (live_at(entry) != entry) {
                /* Another thread has disposed the tensor meanwhile, which explains the error. */
                Py_XDECREF(type);
                Py_XDECREF(value);
                Py_XDECREF(traceback);
                return PyErr_Occurred() ? -1 : 0;
            }
            PyErr_Restore(type, value, traceback);
        }
        if (returned == NULL) {
            return -1;
        }
        Py_DECREF(returned);
    }
    return 0;
}

/* Records the memory of a tensor in the log, and tells the listeners of its birth. -1 with an error
 * set. */
static int report(const MemoryRecorder *recorder, const struct look *look, PyObject *tensor)
{
    PyObject *entry = PyObject_TypeCheck(look->reference, scopes_api->entry) ? look->reference : NULL;
    if (entry != NULL && (is_open_birth((Entry *)entry) || ((Entry *)entry)->unit != Py_None)) {
        /* It is, or may become, a member of a composite: listeners are told of that only. */
        entry = NULL;
    }
    int failed = 0;
    /* With a sample, the log itself asks about resources: it is a listener. */
    if (recorder->log != NULL && recorder->log->is_open() && !(entry != NULL && recorder->log->samples())) {
        if (Py_IS_TYPE(tensor, recorder->tensor)) {
            failed = record_memory_of(recorder, tensor, look->manner == LOOK_WHOLE);
        }
        else {
            failed = look_at_other(recorder, tensor);
        }
    }
    return failed == 0 && entry != NULL ? tell_listeners(entry) : failed;
}

/* Does what a `struct look` says, with torch functions disabled. Errors are raised later. */
static void look_at(const MemoryRecorder *recorder, const struct look *look)
{
    PyObject *tensor = referent(look->reference);
    int failed = tensor == NULL && PyErr_Occurred() ? -1 : 0;
    if (tensor == NULL && !failed && look->manner != LOOK_KNOWN && recorder->log != NULL) {
        recorder->log->passed_unseen();
    }
    if (tensor != NULL) {
        int before = libtorch_disable_functions();
        if (look->manner == LOOK_KNOWN) {
            failed = recorder->log->is_open() ? know(recorder, tensor) : 0;
        }
        else {
            if (look->place != NULL) {
                recorder->log->use_origin(look->place);
            }
            failed = report(recorder, look, tensor);
            if (look->place != NULL) {
                recorder->log->use_origin(NULL);
            }
        }
        libtorch_enable_functions(before);
        Py_DECREF(tensor);
    }
    if (failed < 0) {
        error_raise_later(take_raised());
    }
}

void memory_look(MemoryRecorder *recorder)
{
    if (recorder->count == 0 || looking) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    looking = true;
    while (recorder->count != 0) {
        struct look look = recorder->looks[0];
        memmove(recorder->looks, recorder->looks + 1, --recorder->count * sizeof look);
        look_at(recorder, &look);
        Py_DECREF(look.reference);
        Py_XDECREF(look.place);
    }
    looking = false;
    PyErr_Restore(type, value, traceback);
}

/* Whether the interpreter was asked to call `look_now`. */
static bool is_asked;

/* Called by the interpreter between two instructions of the main thread. */
static int look_now(void *recorder)
{
    is_asked = false;
    /* Python 3.11 waits for ever at the start of a traced function that is called from here while
     * another call is pending. */
    PyThreadState *thread = PyThreadState_Get();
    PyThreadState_EnterTracing(thread);
    memory_look(recorder);
    PyThreadState_LeaveTracing(thread);
    return 0;
}

void memory_look_soon(MemoryRecorder *recorder)
{
    is_asked = is_asked || Py_AddPendingCall(look_now, recorder) == 0;
}

static void forget_looks(MemoryRecorder *recorder)
{
    while (recorder->count != 0) {
        struct look look = recorder->looks[--recorder->count];
        Py_DECREF(look.reference);
        Py_XDECREF(look.place);
    }
}

/* ------------------------------------------------------------------ MemoryRecorder */

static PyObject *new_recorder(PyTypeObject *type, PyObject *arguments, PyObject *options)
{
    static char *names[] = {"tensor", "storage_of", NULL};
    PyObject *tensor, *storage_of;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "$OO:MemoryRecorder", names, &tensor, &storage_of)) {
        return NULL;
    }
    const struct argument given[] = {{"tensor", tensor, &PyType_Type}, {"storage_of", storage_of, NULL}};
    MemoryRecorder *recorder = arguments_fit("MemoryRecorder", given, sizeof given / sizeof given[0])
                                   ? (MemoryRecorder *)type->tp_alloc(type, 0)
                                   : NULL;
    if (recorder != NULL) {
        recorder->tensor = (PyTypeObject *)Py_NewRef(tensor);
        recorder->storage_of = Py_NewRef(storage_of);
    }
    return (PyObject *)recorder;
}

/* No tp_clear is needed: every cycle includes Python objects that can be cleared. */
static int traverse_recorder(PyObject *self, visitproc visit, void *arg)
{
    const MemoryRecorder *recorder = (MemoryRecorder *)self;
    Py_VISIT(recorder->tensor);
    Py_VISIT(recorder->storage_of);
    Py_VISIT(recorder->device_of);
    Py_VISIT(recorder->look_at_other);
    Py_VISIT(recorder->backward);
    for (size_t i = 0; i < recorder->count; i++) {
        Py_VISIT(recorder->looks[i].reference);
        Py_VISIT(recorder->looks[i].place);
    }
    return 0;
}

static void dealloc_recorder(PyObject *self)
{
    MemoryRecorder *recorder = (MemoryRecorder *)self;
    PyObject_GC_UnTrack(self);
    forget_looks(recorder);
    free(recorder->looks);
    Py_XDECREF(recorder->tensor);
    Py_XDECREF(recorder->storage_of);
    Py_XDECREF(recorder->log_capsule);
    Py_XDECREF(recorder->device_of);
    Py_XDECREF(recorder->look_at_other);
    Py_XDECREF(recorder->backward);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *record_into(PyObject *self, PyObject *arguments, PyObject *options)
{
    MemoryRecorder *recorder = (MemoryRecorder *)self;
    static char *names[] = {"", "device_of", "look_at_other", NULL};
    PyObject *capsule, *device_of, *look_at_other;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "O$OO:record_into", names, &capsule, &device_of,
                                     &look_at_other)) {
        return NULL;
    }
    const struct argument given[] = {
        {"log", capsule, &PyCapsule_Type},
        {"device_of", device_of, NULL},
        {"look_at_other", look_at_other, NULL},
    };
    if (!arguments_fit("MemoryRecorder.record_into", given, sizeof given / sizeof given[0])) {
        return NULL;
    }
    const struct birth_log_api *log = PyCapsule_GetPointer(capsule, BIRTH_LOG_CAPSULE);
    PyObject *kind = log == NULL ? NULL : PyUnicode_InternFromString("torch.Tensor");
    PyObject *cpu = kind == NULL ? NULL : PyUnicode_InternFromString("cpu:0");
    if (cpu != NULL) {
        recorder->kind = log->kind_number(kind);
        recorder->cpu = log->device_number(cpu);
        Py_XSETREF(recorder->log_capsule, Py_NewRef(capsule));
        Py_XSETREF(recorder->device_of, Py_NewRef(device_of));
        Py_XSETREF(recorder->look_at_other, Py_NewRef(look_at_other));
        recorder->log = log;
    }
    Py_XDECREF(kind);
    Py_XDECREF(cpu);
    return cpu == NULL ? NULL : Py_NewRef(Py_None);
}

/* Whether there is a log. False with an error set. */
static bool has_log(const MemoryRecorder *recorder, const char *method)
{
    if (recorder->log == NULL) {
        PyErr_Format(PyExc_RuntimeError, "internal error: MemoryRecorder.%s() was called before record_into()", method);
    }
    return recorder->log != NULL;
}

static PyObject *look(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    memory_look((MemoryRecorder *)self);
    Py_RETURN_NONE;
}

static PyObject *forget(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    forget_looks((MemoryRecorder *)self);
    /* A fork loses the call that its parent asked the interpreter for. */
    is_asked = false;
    Py_RETURN_NONE;
}

static PyObject *look_at_now(PyObject *self, PyObject *const *arguments, Py_ssize_t number)
{
    const MemoryRecorder *recorder = (MemoryRecorder *)self;
    if (number < 1 || number > 2) {
        PyErr_SetString(PyExc_TypeError, "MemoryRecorder.look_at() takes a tensor, and whether it is whole");
        return NULL;
    }
    const struct argument given = {"tensor", arguments[0], recorder->tensor};
    if (!has_log(recorder, "look_at") || !arguments_fit("MemoryRecorder.look_at", &given, 1)) {
        return NULL;
    }
    bool is_whole = number == 2 && arguments[1] == Py_True;
    return recorder->log->is_open() && record_memory_of(recorder, arguments[0], is_whole) < 0 ? NULL
                                                                                              : Py_NewRef(Py_None);
}

static PyObject *know_objects(PyObject *self, PyObject *objects)
{
    const MemoryRecorder *recorder = (MemoryRecorder *)self;
    const struct argument given = {"objects", objects, &PyList_Type};
    if (!has_log(recorder, "know") || !arguments_fit("MemoryRecorder.know", &given, 1)) {
        return NULL;
    }
    int failed = 0;
    for (Py_ssize_t i = 0; failed == 0 && i < PyList_GET_SIZE(objects); i++) {
        PyObject *object = PyList_GET_ITEM(objects, i);
        failed = PyObject_TypeCheck(object, recorder->tensor) ? know(recorder, object) : 0;
    }
    return failed < 0 ? NULL : Py_NewRef(Py_None);
}

/* ------------------------------------------------------------------ tensors that refer to nothing else */

/* A visitproc that stops at any object but the class of the tensor. */
static int is_no_class(PyObject *thing, void *type) { return thing != (PyObject *)type; }

/* Whether an attribute of a tensor is None; -1 with an exception. */
static int is_none(PyObject *tensor, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(tensor, name);
    Py_XDECREF(value);
    return value == NULL ? -1 : value == Py_None;
}

/* Most tensors have no graph, base or gradient; for these this is quick. `_grad` is read only if
 * the tensor requires none: a backward pass on another thread could just be adding to it. */
static PyObject *lone_storage(PyObject *self, PyObject *tensor)
{
    const MemoryRecorder *recorder = (MemoryRecorder *)self;
    PyTypeObject *type = Py_TYPE(tensor);
    if (type != recorder->tensor || type->tp_traverse == NULL || type->tp_traverse(tensor, is_no_class, type) != 0) {
        Py_RETURN_NONE;
    }
    int can_have_gradient = take_truth(PyObject_GetAttr(tensor, name_requires_grad));
    if (can_have_gradient != 0) {
        return can_have_gradient < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *names_of_edges[] = {name_grad_fn, name_base, name_grad};
    for (size_t i = 0; i < sizeof names_of_edges / sizeof names_of_edges[0]; i++) {
        int none = is_none(tensor, names_of_edges[i]);
        if (none <= 0) {
            return none < 0 ? NULL : Py_NewRef(Py_None);
        }
    }
    PyObject *storage = storage_of(recorder, tensor);
    if (storage == NULL) {
        Py_RETURN_NONE;
    }
    /* Memory that PyTorch has not allocated may belong to an array. */
    PyObject *resizable = PyObject_CallMethodNoArgs(storage, name_resizable);
    Py_XDECREF(resizable);
    if (resizable != Py_True) {
        Py_DECREF(storage);
        return resizable == NULL ? NULL : Py_NewRef(Py_None);
    }
    PyObject *address = PyObject_GetAttr(storage, name_cdata);
    Py_DECREF(storage);
    PyObject *identity = address == NULL ? NULL : PyTuple_Pack(2, name_torch, address);
    Py_XDECREF(address);
    return identity;
}

static PyMethodDef methods_of_recorders[] = {
    {"forget", forget, METH_NOARGS, NULL},
    {"lone_storage", lone_storage, METH_O, NULL},
    {"know", know_objects, METH_O, NULL},
    {"look", look, METH_NOARGS, NULL},
    {"look_at", (PyCFunction)(void (*)(void))look_at_now, METH_FASTCALL, NULL},
    {"record_into", (PyCFunction)(void (*)(void))record_into, METH_VARARGS | METH_KEYWORDS, NULL},
    {0},
};

PyTypeObject memory_recorder_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.tensors.torch.compiled.MemoryRecorder",
    .tp_doc = "Records the memory of tensors a moment after they were made.",
    .tp_basicsize = sizeof(MemoryRecorder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = new_recorder,
    .tp_dealloc = dealloc_recorder,
    .tp_traverse = traverse_recorder,
    .tp_methods = methods_of_recorders,
};

const struct scopes_api *scopes_api;

/* -1 with an error set. */
static int find_scopes(void)
{
    PyObject *scopes = PyImport_ImportModule("disposescope.scopes.compiled");
    PyObject *capsule = scopes == NULL ? NULL : PyObject_GetAttrString(scopes, "api");
    Py_XDECREF(scopes);
    scopes_api = capsule == NULL ? NULL : scopes_api_of(capsule);
    Py_XDECREF(capsule);
    return scopes_api == NULL ? -1 : 0;
}

int memory_make(PyObject *module)
{
    const struct {
        PyObject **place;
        const char *name;
    } names[] = {
        {&name_base, "_base"},          {&name_born, "born"},       {&name_cdata, "_cdata"},
        {&name_grad, "_grad"},          {&name_grad_fn, "grad_fn"}, {&name_is_cpu, "is_cpu"},
        {&name_is_shared, "is_shared"}, {&name_nbytes, "nbytes"},   {&name_resizable, "resizable"},
        {&name_torch, "torch"},         {&name_requires_grad, "requires_grad"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if ((*names[i].place = PyUnicode_InternFromString(names[i].name)) == NULL) {
            return -1;
        }
    }
    return find_scopes() < 0 ? -1 : PyModule_AddType(module, &memory_recorder_type);
}
