/* How the compiled modules are made. Each keeps state that is the process's, for one copy of the
 * package in one interpreter: every other one is refused before it touches any. */
#ifndef DISPOSESCOPE_SCOPES_MODULE_H
#define DISPOSESCOPE_SCOPES_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* To be asked first by what fills a module. False with an error set. */
static inline bool module_may_be_made(PyObject *module, bool is_made)
{
#ifdef Py_GIL_DISABLED
    PyErr_Format(PyExc_ImportError, "%s: disposescope does not support free-threaded builds of Python",
                 PyModule_GetName(module));
    return false;
#endif
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_Format(PyExc_ImportError, "%s: disposescope works in the main interpreter only",
                     PyModule_GetName(module));
        return false;
    }
    if (is_made) {
        PyErr_Format(PyExc_ImportError,
                     "%s: disposescope has been imported in this process already, and its compiled modules cannot be "
                     "loaded once more; keep it in sys.modules, under one name",
                     PyModule_GetName(module));
        return false;
    }
    return true;
}

#ifdef Py_mod_multiple_interpreters
#define MAIN_INTERPRETER_ONLY {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#else
#define MAIN_INTERPRETER_ONLY
#endif

#endif
