/* Functions of the module that are defined in other files than module.c: `arena_x` implements `x`
 * of compiled.pyi. Called with the GIL held. */
#ifndef DISPOSESCOPE_ARENA_FUNCTIONS_H
#define DISPOSESCOPE_ARENA_FUNCTIONS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* scopes.c */
PyObject *arena_enter(PyObject *module, PyObject *scope);
PyObject *arena_reset(PyObject *module, PyObject *ignored);
PyObject *arena_leave(PyObject *module, PyObject *scope);
PyObject *arena_swap_handler(PyObject *module, PyObject *wanted);
PyObject *arena_served(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names);

PyObject *arena_close_account(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *arena_figures(PyObject *module, PyObject *scope);
PyObject *arena_live_nbytes(PyObject *module, PyObject *scope);
PyObject *arena_owner(PyObject *module, PyObject *array);
PyObject *arena_escaped(PyObject *module, PyObject *address);
PyObject *arena_is_served(PyObject *module, PyObject *array);
PyObject *arena_move(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *arena_move_unshared(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *arena_block(PyObject *module, PyObject *array);
PyObject *arena_address(PyObject *module, PyObject *array);

/* handler.c */
PyObject *arena_set_base_types(PyObject *module, PyObject *types);
PyObject *arena_record_into(PyObject *module, PyObject *capsule);

/* buffers.c */
PyObject *arena_record_buffers(PyObject *module, PyObject *function);

/* accounts.c */
PyObject *arena_charge(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *arena_discharge(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *arena_last_refusal(PyObject *module, PyObject *ignored);
PyObject *arena_sites(PyObject *module, PyObject *scope);

#endif
