/* Births of arrays over foreign memory, which NumPy did not allocate: bytes, a bytearray, an mmap,
 * memory of another library.
 *
 * NumPy makes such arrays in a few functions of its C module, in ndarray.__new__, which
 * numpy.memmap calls, and in ndarray.__setstate__, which takes over the bytes of a pickle. While a
 * detector is open, the C functions in NumPy's method tables are replaced, not the names in its
 * modules. So functions that a program has imported before are seen too, and making a view costs
 * nothing. Every function is called with the GIL held. */
#include "functions.h"

#include "handler.h"

/* The function that is called with each such array; NULL while no detector is open. */
static PyObject *recorder;

/* ------------------------------------------------------------------ recording a result */

static bool is_over_foreign_memory(PyObject *object)
{
    if (!PyObject_TypeCheck(object, numpy_ndarray)) {
        return false;
    }
    const struct numpy_array *array = (struct numpy_array *)object;
    return !(array->flags & NUMPY_OWNDATA) && array->base != NULL && !PyObject_TypeCheck(array->base, numpy_ndarray);
}

/* Calls the recorder with an array. 0, or -1 with an exception. */
static int record(PyObject *array)
{
    PyObject *function = Py_NewRef(recorder);
    PyObject *returned = PyObject_CallOneArg(function, array);
    Py_DECREF(function);
    Py_XDECREF(returned);
    return returned == NULL ? -1 : 0;
}

/* Records the result of a function if it is a new array over foreign memory. Takes over the
 * reference and returns it; NULL with an exception. */
static PyObject *recorded(PyObject *result)
{
    if (result != NULL && recorder != NULL && Py_REFCNT(result) == 1 && is_over_foreign_memory(result) &&
        record(result) < 0) {
        Py_CLEAR(result);
    }
    return result;
}

/* ------------------------------------------------------------------ the functions of the module */

enum {
    ARRAY,
    ASARRAY,
    ASANYARRAY,
    ASCONTIGUOUSARRAY,
    ASFORTRANARRAY,
    FROM_DLPACK,
    FROM_DLPACK_OF_ONE, /* from_dlpack of NumPy 2.0, with one argument */
    FROMBUFFER,
    SETSTATE,
    REPLACED
};

/* The entries in NumPy's method tables, and their original functions. NULL before they have been
 * found. One of the two entries for from_dlpack stays NULL. */
static PyMethodDef *entries[REPLACED];
static PyCFunction originals[REPLACED];

#define FAST_WITH_NAMES(name, number)                                                                                  \
    static PyObject *name(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names)               \
    {                                                                                                                  \
        _PyCFunctionFastWithKeywords original = (_PyCFunctionFastWithKeywords)(void (*)(void))originals[number];       \
        return recorded(original(self, arguments, count, names));                                                      \
    }

FAST_WITH_NAMES(array, ARRAY)
FAST_WITH_NAMES(asarray, ASARRAY)
FAST_WITH_NAMES(asanyarray, ASANYARRAY)
FAST_WITH_NAMES(ascontiguousarray, ASCONTIGUOUSARRAY)
FAST_WITH_NAMES(asfortranarray, ASFORTRANARRAY)
FAST_WITH_NAMES(from_dlpack, FROM_DLPACK)

static PyObject *from_dlpack_of_one(PyObject *self, PyObject *given)
{
    return recorded(originals[FROM_DLPACK_OF_ONE](self, given));
}

static PyObject *frombuffer(PyObject *self, PyObject *arguments, PyObject *names)
{
    return recorded(((PyCFunctionWithKeywords)(void (*)(void))originals[FROMBUFFER])(self, arguments, names));
}

/* Records `self`, an existing array that gets new memory. */
static PyObject *set_state(PyObject *self, PyObject *arguments)
{
    PyObject *none = originals[SETSTATE](self, arguments);
    if (none != NULL && recorder != NULL && is_over_foreign_memory(self) && record(self) < 0) {
        Py_CLEAR(none);
    }
    return none;
}

#define PLAIN(function) ((PyCFunction)(void (*)(void))(function))

static const struct replacement {
    const char *name;
    int flags;
    PyCFunction function;
} replacements[REPLACED] = {
    [ARRAY] = {"array", METH_FASTCALL | METH_KEYWORDS, PLAIN(array)},
    [ASARRAY] = {"asarray", METH_FASTCALL | METH_KEYWORDS, PLAIN(asarray)},
    [ASANYARRAY] = {"asanyarray", METH_FASTCALL | METH_KEYWORDS, PLAIN(asanyarray)},
    [ASCONTIGUOUSARRAY] = {"ascontiguousarray", METH_FASTCALL | METH_KEYWORDS, PLAIN(ascontiguousarray)},
    [ASFORTRANARRAY] = {"asfortranarray", METH_FASTCALL | METH_KEYWORDS, PLAIN(asfortranarray)},
    [FROM_DLPACK] = {"from_dlpack", METH_FASTCALL | METH_KEYWORDS, PLAIN(from_dlpack)},
    [FROM_DLPACK_OF_ONE] = {"from_dlpack", METH_O, from_dlpack_of_one},
    [FROMBUFFER] = {"frombuffer", METH_VARARGS | METH_KEYWORDS, PLAIN(frombuffer)},
    [SETSTATE] = {"__setstate__", METH_VARARGS, set_state},
};

/* The entry of a function in NumPy's method table. NULL, with an exception or without, if it is not
 * there or has other flags. */
static PyMethodDef *find_entry(PyObject *module, const struct replacement *wanted)
{
    bool is_method = wanted == &replacements[SETSTATE];
    PyObject *found = PyObject_GetAttrString(is_method ? (PyObject *)numpy_ndarray : module, wanted->name);
    PyMethodDef *entry = NULL;
    if (found != NULL && is_method && Py_IS_TYPE(found, &PyMethodDescr_Type)) {
        entry = ((PyMethodDescrObject *)found)->d_method;
    }
    else if (found != NULL && !is_method && PyCFunction_CheckExact(found)) {
        entry = ((PyCFunctionObject *)found)->m_ml;
    }
    /* The table is static in NumPy, which stays loaded. */
    Py_XDECREF(found);
    return entry != NULL && entry->ml_flags == wanted->flags ? entry : NULL;
}

/* Finds all entries: 1, or 0 if this NumPy is not as expected. */
static int find_entries(void)
{
    if (entries[0] != NULL) {
        return 1;
    }
    PyObject *module = PyImport_ImportModule("numpy._core._multiarray_umath");
    PyMethodDef *found[REPLACED];
    int is_found = module != NULL;
    for (int i = 0; i < REPLACED && is_found; i++) {
        found[i] = find_entry(module, &replacements[i]);
        is_found = found[i] != NULL || i == FROM_DLPACK || (i == FROM_DLPACK_OF_ONE && found[FROM_DLPACK] != NULL);
    }
    Py_XDECREF(module);
    PyErr_Clear();
    for (int i = 0; i < REPLACED && is_found; i++) {
        entries[i] = found[i];
        originals[i] = found[i] == NULL ? NULL : found[i]->ml_meth;
    }
    return is_found;
}

/* ------------------------------------------------------------------ ndarray.__new__ */

static newfunc original_new;

static PyObject *new_array(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    return recorded(original_new(type, arguments, names));
}

/* Replace tp_new in a class and in all its subclasses that have inherited it. They must stay the
 * same, because Python compares tp_new of a class with that of its base. 0, or -1 with an
 * exception. */
static int replace_new(PyTypeObject *type, newfunc before, newfunc after)
{
    if (type->tp_new == before) {
        type->tp_new = after;
    }
    /* The method of `type`, because a metaclass may define another one of this name. */
    PyObject *subclasses = PyObject_CallMethod((PyObject *)&PyType_Type, "__subclasses__", "O", type);
    int failed = subclasses == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(subclasses); i++) {
        failed = replace_new((PyTypeObject *)PyList_GET_ITEM(subclasses, i), before, after);
    }
    Py_XDECREF(subclasses);
    return failed;
}

/* ------------------------------------------------------------------ the function of the module */

PyObject *arena_record_buffers(PyObject *module, PyObject *function)
{
    (void)module;
    if (!find_entries()) {
        Py_RETURN_FALSE;
    }
    if (original_new == NULL) {
        original_new = numpy_ndarray->tp_new;
    }
    bool starts = function != Py_None;
    if (replace_new(numpy_ndarray, starts ? original_new : new_array, starts ? new_array : original_new) < 0) {
        return NULL;
    }
    for (int i = 0; i < REPLACED; i++) {
        if (entries[i] != NULL) {
            entries[i]->ml_meth = starts ? replacements[i].function : originals[i];
        }
    }
    Py_XSETREF(recorder, starts ? Py_NewRef(function) : NULL);
    Py_RETURN_TRUE;
}
