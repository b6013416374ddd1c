#include "numpy.h"

#define ABI_VERSION 0x02000000u
#define GET_ND_ARRAY_C_VERSION 0
#define ARRAY_TYPE 2
#define SET_HANDLER 304
#define GET_HANDLER 305

PyObject *(*numpy_set_handler)(PyObject *handler);
PyObject *(*numpy_get_handler)(void);
PyTypeObject *numpy_ndarray;
static PyObject *error_state; /* NumPy's context variable of what np.errstate sets; NULL where it has another name */

int numpy_install(void)
{
    PyObject *module = PyImport_ImportModule("numpy._core._multiarray_umath");
    if (module == NULL) {
        return -1;
    }
    PyObject *capsule = PyObject_GetAttrString(module, "_ARRAY_API");
    error_state = PyObject_GetAttrString(module, "_extobj_contextvar");
    if (error_state == NULL || !PyContextVar_CheckExact(error_state)) {
        PyErr_Clear();
        Py_CLEAR(error_state);
    }
    Py_DECREF(module);
    if (capsule == NULL) {
        return -1;
    }
    void **functions = PyCapsule_GetPointer(capsule, NULL);
    /* The table is static in NumPy, which stays loaded. */
    Py_DECREF(capsule);
    if (functions == NULL) {
        return -1;
    }
    unsigned version = ((unsigned (*)(void))functions[GET_ND_ARRAY_C_VERSION])();
    if (version != ABI_VERSION) {
        PyErr_Format(PyExc_ImportError, "the arena knows NumPy's ABI version %x, and this is %x", ABI_VERSION, version);
        return -1;
    }
    numpy_ndarray = (PyTypeObject *)functions[ARRAY_TYPE];
    numpy_set_handler = (PyObject * (*)(PyObject *)) functions[SET_HANDLER];
    numpy_get_handler = (PyObject * (*)(void)) functions[GET_HANDLER];
    return 0;
}

int numpy_settle(void)
{
    PyObject *held;
    if (error_state == NULL) {
        return 0;
    }
    if (PyContextVar_Get(error_state, Py_None, &held) < 0) {
        return -1;
    }
    bool is_set = held != Py_None;
    Py_DECREF(held);
    if (is_set) {
        return 0;
    }
    if (PyContextVar_Get(error_state, NULL, &held) < 0) {
        return -1;
    }
    PyObject *token = held == NULL ? NULL : PyContextVar_Set(error_state, held);
    bool failed = held != NULL && token == NULL;
    Py_XDECREF(held);
    Py_XDECREF(token);
    return failed ? -1 : 0;
}
