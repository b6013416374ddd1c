/* How the modules of the compiled hot paths are made. */
#ifndef DISPOSESCOPE_HOT_MODULE_H
#define DISPOSESCOPE_HOT_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* A module, where its functions can serve: under the GIL, in the main interpreter. NULL with an error set. */
static inline PyObject *hot_module(PyModuleDef *definition)
{
#ifdef Py_GIL_DISABLED
    (void)definition;
    PyErr_SetString(PyExc_ImportError, "the compiled hot paths rely on the global interpreter lock");
    return NULL;
#else
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "the compiled hot paths serve the main interpreter only");
        return NULL;
    }
    return PyModule_Create(definition);
#endif
}

#endif
