#include "looks.h"

#include <stdlib.h>
#include <string.h>

#include "../../../leaks/births/src/api.h"
#include "../../../scopes/src/raised.h"
#include "../../../scopes/src/slots.h"
#include "births.h"
#include "bound.h"
#include "state.h"

enum object { LISTENERS, LIVE, STORAGE_OF, OBJECTS };

static const char *const names[OBJECTS] = {
    [LISTENERS] = "LISTENERS", [LIVE] = "LIVE", [STORAGE_OF] = "storage_of",
};

/* What is known once a leak detector has been used. */
enum log_object { NBYTES_OF, DEVICE_OF, LOOK_AT_OTHER, LOG_OBJECTS };

static const char *const log_names[LOG_OBJECTS] = {
    [NBYTES_OF] = "nbytes_of", [DEVICE_OF] = "device_of", [LOOK_AT_OTHER] = "look_at_other",
};

static PyObject *log_bound[LOG_OBJECTS];
static PyObject *bound[OBJECTS], *name_born, *name_is_cpu, *name_nbytes, *name_resizable, *name_is_shared;
static PyTypeObject *entry_type, *tensor_type;
static Py_ssize_t key_offset;
static const struct birthlog_api *births_log;
static uint16_t kind, cpu;

struct look {
    PyObject *reference, *place;
    enum manner manner;
};

static struct look *looks;
static size_t count, room;
/* Whether this thread looks at one: what is made meanwhile is of no interest. */
static _Thread_local bool looking;

int looks_bind(PyObject *things)
{
    PyObject *entry = PyDict_GetItemString(things, "Entry"), *tensor = PyDict_GetItemString(things, "Tensor");
    if (entry == NULL || !PyType_Check(entry) || tensor == NULL || !PyType_Check(tensor)) {
        PyErr_SetString(PyExc_TypeError, "bind_births() was given something else than it wants");
        return -1;
    }
    if ((key_offset = offset_of_slot((PyTypeObject *)entry, "key")) < 0 ||
        (name_born = PyUnicode_InternFromString("born")) == NULL ||
        (name_is_cpu = PyUnicode_InternFromString("is_cpu")) == NULL ||
        (name_nbytes = PyUnicode_InternFromString("nbytes")) == NULL ||
        (name_resizable = PyUnicode_InternFromString("resizable")) == NULL ||
        (name_is_shared = PyUnicode_InternFromString("is_shared")) == NULL || take(things, names, OBJECTS, bound) < 0) {
        return -1;
    }
    entry_type = (PyTypeObject *)Py_NewRef(entry);
    tensor_type = (PyTypeObject *)Py_NewRef(tensor);
    return 0;
}

PyObject *looks_bind_log(PyObject *module, PyObject *things)
{
    (void)module;
    if (!may_bind(things, log_bound[NBYTES_OF])) {
        return NULL;
    }
    PyObject *capsule = PyDict_GetItemString(things, "log"), *function = PyDict_GetItemString(things, "name_of_call");
    if (capsule == NULL || function == NULL || tensor_type == NULL) {
        PyErr_SetString(PyExc_TypeError, "bind_log() was given something else than it wants, or before bind_births()");
        return NULL;
    }
    const struct birthlog_api *api = PyCapsule_GetPointer(capsule, BIRTHLOG_CAPSULE);
    PyObject *kind_name = api == NULL ? NULL : PyUnicode_InternFromString("torch.Tensor");
    PyObject *cpu_name = kind_name == NULL ? NULL : PyUnicode_InternFromString("cpu:0");
    if (cpu_name == NULL || take(things, log_names, LOG_OBJECTS, log_bound) < 0) {
        Py_XDECREF(kind_name);
        Py_XDECREF(cpu_name);
        return NULL;
    }
    kind = api->kind_number(kind_name);
    cpu = api->device_number(cpu_name);
    Py_DECREF(kind_name);
    Py_DECREF(cpu_name);
    api->name_calls_by(function);
    /* Kept for the life of the process. */
    Py_INCREF(capsule);
    births_log = api;
    Py_RETURN_NONE;
}

bool looks_are_wanted(void) { return births_log != NULL && !looking && births_log->is_open(); }

PyObject *looks_place(void) { return births_log->remember(); }

int looks_add(PyObject *reference, PyObject *place, enum manner manner)
{
    if (count == room) {
        size_t wanted = room == 0 ? 16 : room * 2;
        struct look *fresh = realloc(looks, wanted * sizeof *fresh);
        if (fresh == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        looks = fresh;
        room = wanted;
    }
    looks[count++] = (struct look){Py_NewRef(reference), Py_XNewRef(place), manner};
    return 0;
}

/* What a weak reference is of, a new reference; NULL where that is gone, with or without an error set. */
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

/* What a method or an attribute of an object tells: 1, 0, or -1 with an error set. */
static int tells(PyObject *object, PyObject *name, bool is_method)
{
    PyObject *told = is_method ? PyObject_CallMethodNoArgs(object, name) : PyObject_GetAttr(object, name);
    int answer = told == NULL ? -1 : PyObject_IsTrue(told);
    Py_XDECREF(told);
    return answer;
}

/* The size that a call or an attribute told, whose reference is stolen; -1 with an error set. */
static size_t size_of(PyObject *told)
{
    size_t size = told == NULL ? (size_t)-1 : PyLong_AsSize_t(told);
    Py_XDECREF(told);
    return size;
}

/* Whether memory on the CPU is an array's, or somebody else's: neither PyTorch's nor shared between processes. -1 with an error
 * set. */
static int is_foreign(PyObject *storage)
{
    int resizable = tells(storage, name_resizable, true);
    int shared = resizable != 0 ? 1 : tells(storage, name_is_shared, true);
    return resizable < 0 || shared < 0 ? -1 : !shared;
}

/* Records the memory of a storage that the log does not know. -1 with an error set. */
static int sight_storage(PyObject *tensor, PyObject *storage, bool is_whole)
{
    size_t nbytes = size_of(PyObject_CallOneArg(log_bound[NBYTES_OF], storage));
    if (nbytes == 0 || nbytes == (size_t)-1) {
        return nbytes == 0 ? 0 : -1;
    }
    int is_cpu = tells(tensor, name_is_cpu, false);
    if (is_cpu < 0) {
        return -1;
    }
    if (is_cpu) {
        int foreign = is_whole ? 0 : is_foreign(storage);
        return foreign != 0 ? (foreign < 0 ? -1 : 0) : births_log->sight(storage, NULL, nbytes, kind, cpu);
    }
    PyObject *name = PyObject_CallOneArg(log_bound[DEVICE_OF], storage);
    int failed = name == NULL ? -1 : name == Py_None ? 0 : births_log->sight(storage, NULL, nbytes, kind, births_log->device_number(name));
    Py_XDECREF(name);
    return failed;
}

bool looks_know_class(const PyTypeObject *type) { return type == tensor_type; }

PyObject *looks_storage_of(PyObject *tensor)
{
    PyObject *storage = PyObject_CallOneArg(bound[STORAGE_OF], tensor);
    if (storage == NULL) {
        PyErr_Clear();
    }
    return storage;
}

/* Records the memory of a tensor that the log does not know. -1 with an error set that is no Exception. */
static int sight(PyObject *tensor, bool is_whole)
{
    if (births_log->samples()) {
        /* Of views as well: what falls on them is dropped below, and every birth keeps its chance. */
        size_t nbytes = size_of(PyObject_GetAttr(tensor, name_nbytes));
        if (nbytes == (size_t)-1) {
            PyErr_Clear();
            nbytes = 0;
        }
        if (!births_log->is_kept(nbytes)) {
            return 0;
        }
    }
    PyObject *storage = looks_storage_of(tensor);
    int failed = storage == NULL || births_log->is_known(storage) ? 0 : sight_storage(tensor, storage, is_whole);
    Py_XDECREF(storage);
    if (failed < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        failed = 0;
    }
    return failed;
}

static int know(PyObject *tensor)
{
    PyObject *storage = looks_storage_of(tensor);
    int failed = storage == NULL ? 0 : births_log->know(storage);
    Py_XDECREF(storage);
    return failed;
}

/* Tells the listeners of one birth, unless that is over. -1 with an error set. */
static int tell_listeners(PyObject *entry)
{
    if (PyDict_GetItemWithError(bound[LIVE], read_slot(entry, key_offset)) != entry) {
        return PyErr_Occurred() ? -1 : 0;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bound[LISTENERS]); i++) {
        PyObject *listener = Py_NewRef(PyList_GET_ITEM(bound[LISTENERS], i));
        PyObject *told = PyObject_VectorcallMethod(name_born, (PyObject *[]){listener, entry}, 2, NULL);
        Py_DECREF(listener);
        if (told == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
            PyObject *type, *value, *traceback;
            PyErr_Fetch(&type, &value, &traceback);
            PyObject *live = PyDict_GetItemWithError(bound[LIVE], read_slot(entry, key_offset));
            if (live != entry) {
                /* Another thread has disposed it meanwhile: nothing is left to be told. */
                Py_XDECREF(type);
                Py_XDECREF(value);
                Py_XDECREF(traceback);
                return PyErr_Occurred() ? -1 : 0;
            }
            PyErr_Restore(type, value, traceback);
        }
        if (told == NULL) {
            return -1;
        }
        Py_DECREF(told);
    }
    return 0;
}

static int report(const struct look *look, PyObject *tensor)
{
    PyObject *entry = PyObject_TypeCheck(look->reference, entry_type) ? look->reference : NULL;
    int failed = 0;
    /* Of a resource that is sampled the log asks by itself. */
    if (births_log != NULL && births_log->is_open() && !(entry != NULL && births_log->samples())) {
        if (Py_IS_TYPE(tensor, tensor_type)) {
            failed = sight(tensor, look->manner == LOOK_WHOLE);
        }
        else {
            PyObject *done = PyObject_CallOneArg(log_bound[LOOK_AT_OTHER], tensor);
            Py_XDECREF(done);
            if (done == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
                /* Another thread has disposed it, or its class refuses: none of what this thread does. */
                PyErr_Clear();
            }
            failed = PyErr_Occurred() ? -1 : 0;
        }
    }
    return failed == 0 && entry != NULL ? tell_listeners(entry) : failed;
}

static void look_at(const struct look *look)
{
    PyObject *tensor = referent(look->reference);
    int failed = tensor == NULL && PyErr_Occurred() ? -1 : 0;
    if (tensor != NULL) {
        bool disabled;
        int before = state_disable(&disabled);
        if (look->manner == LOOK_KNOWN) {
            failed = births_log->is_open() ? know(tensor) : 0;
        }
        else {
            if (look->place != NULL) {
                births_log->use(look->place);
            }
            failed = report(look, tensor);
            if (look->place != NULL) {
                births_log->use(NULL);
            }
        }
        state_enable(before);
        Py_DECREF(tensor);
    }
    if (failed < 0) {
        error_raise_later(take_raised());
    }
}

void looks_do(void)
{
    if (count == 0 || looking) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    looking = true;
    while (count != 0) {
        struct look look = looks[0];
        memmove(looks, looks + 1, --count * sizeof *looks);
        look_at(&look);
        Py_DECREF(look.reference);
        Py_XDECREF(look.place);
    }
    looking = false;
    PyErr_Restore(type, value, traceback);
}

/* ================================================================== memory that is handed on
 *
 * A tensor that gives its memory to another one, or to an object for the storage, may be gone before the next one is made. */

static PyGetSetDef data;
static const PyGetSetDef *data_before;
static PyMethodDef set_method, storage_method;
static PyCFunctionWithKeywords set_before;
static PyCFunction storage_before;

static PyObject *get_data(PyObject *tensor, void *closure)
{
    (void)closure;
    return data_before->get(tensor, data_before->closure);
}

static int set_data(PyObject *tensor, PyObject *value, void *closure)
{
    (void)closure;
    looks_do();
    return data_before->set(tensor, value, data_before->closure);
}

static PyObject *call_set(PyObject *tensor, PyObject *args, PyObject *kwargs)
{
    bool takes_a_tensor = PyTuple_GET_SIZE(args) != 0 && PyObject_TypeCheck(PyTuple_GET_ITEM(args, 0), tensor_type);
    if (takes_a_tensor) {
        looks_do();
    }
    PyObject *result = set_before(tensor, args, kwargs);
    if (result != NULL && !takes_a_tensor) {
        births_look_again(tensor);
    }
    return result;
}

static PyObject *call_storage(PyObject *tensor, PyObject *ignored)
{
    looks_do();
    return storage_before(tensor, ignored);
}

static bool is_method(PyObject *descriptor, int flags)
{
    return Py_IS_TYPE(descriptor, &PyMethodDescr_Type) && ((PyMethodDescrObject *)descriptor)->d_method->ml_flags == flags;
}

bool looks_fit(PyObject *handing)
{
    if (PyTuple_GET_SIZE(handing) != 3) {
        return false;
    }
    PyObject *attribute = PyTuple_GET_ITEM(handing, 0);
    if (!Py_IS_TYPE(attribute, &PyGetSetDescr_Type)) {
        return false;
    }
    const PyGetSetDef *definition = ((PyGetSetDescrObject *)attribute)->d_getset;
    return definition->get != NULL && definition->set != NULL &&
           is_method(PyTuple_GET_ITEM(handing, 1), METH_VARARGS | METH_KEYWORDS) &&
           is_method(PyTuple_GET_ITEM(handing, 2), METH_NOARGS);
}

void looks_watch(PyObject *handing)
{
    PyGetSetDescrObject *attribute = (PyGetSetDescrObject *)Py_NewRef(PyTuple_GET_ITEM(handing, 0));
    data_before = attribute->d_getset;
    data = *data_before;
    data.get = get_data;
    data.set = set_data;
    attribute->d_getset = &data;
    PyMethodDescrObject *set = (PyMethodDescrObject *)Py_NewRef(PyTuple_GET_ITEM(handing, 1));
    set_method = *set->d_method;
    set_before = (PyCFunctionWithKeywords)(void (*)(void))set_method.ml_meth;
    set_method.ml_meth = (PyCFunction)(void (*)(void))call_set;
    set->d_method = &set_method;
    PyMethodDescrObject *storage = (PyMethodDescrObject *)Py_NewRef(PyTuple_GET_ITEM(handing, 2));
    storage_method = *storage->d_method;
    storage_before = storage_method.ml_meth;
    storage_method.ml_meth = call_storage;
    storage->d_method = &storage_method;
}

PyObject *looks_look(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    looks_do();
    Py_RETURN_NONE;
}

PyObject *looks_look_at(PyObject *module, PyObject *tensor)
{
    (void)module;
    if (births_log == NULL || !PyObject_TypeCheck(tensor, tensor_type)) {
        PyErr_SetString(PyExc_TypeError, "look_at() takes a tensor, after bind_log()");
        return NULL;
    }
    return births_log->is_open() && sight(tensor, false) < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *looks_know(PyObject *module, PyObject *get_objects)
{
    (void)module;
    if (births_log == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "know() comes after bind_log()");
        return NULL;
    }
    /* No other thread runs while there is a list of all objects: a tuple that one is making must have one reference. */
    PyObject *tensors = PyList_New(0);
    PyObject *objects = tensors == NULL ? NULL : PyObject_CallNoArgs(get_objects);
    if (objects != NULL && !PyList_CheckExact(objects)) {
        PyErr_SetString(PyExc_TypeError, "know() takes a function that returns a list");
        Py_CLEAR(objects);
    }
    int failed = objects == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; failed == 0 && i < PyList_GET_SIZE(objects); i++) {
        PyObject *object = PyList_GET_ITEM(objects, i);
        failed = PyObject_TypeCheck(object, tensor_type) ? PyList_Append(tensors, object) : 0;
    }
    Py_XDECREF(objects);
    for (Py_ssize_t i = 0; failed == 0 && i < PyList_GET_SIZE(tensors); i++) {
        failed = know(PyList_GET_ITEM(tensors, i));
    }
    Py_XDECREF(tensors);
    return failed < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *looks_forget(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    while (count != 0) {
        struct look look = looks[--count];
        Py_DECREF(look.reference);
        Py_XDECREF(look.place);
    }
    Py_RETURN_NONE;
}
