/* The check that every compiled module makes before it initialises itself. The modules keep state
 * per process, for one copy of the package in the main interpreter. Further copies and other
 * interpreters are refused. */
#ifndef DISPOSESCOPE_SCOPES_MODULE_H
#define DISPOSESCOPE_SCOPES_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Whether a module may be initialised. Its Py_mod_exec function calls this first. `is_made` says
 * that the module was initialised before. False with an error set. */
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
