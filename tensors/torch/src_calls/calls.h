/* The functions of PyTorch that make tensors, called through this library for a while: it learns what each call returned.
 *
 * Python calls a compiled method by an entry of a table, and a compiled function by a pointer in its object, which is empty for
 * functions that want their arguments as a tuple and a dict. These are changed, and changed back. Not the entries of functions:
 * they are hashed by them, and programs look things up by functions of PyTorch. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_CALLS_H
#define DISPOSESCOPE_TORCH_CALLS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* A call that is over; all is borrowed. */
struct call {
    /* What was called; NULL for what makes views alone. */
    PyObject *name;
    /* What the function was bound to, which may be NULL, and its arguments: a tuple, the only one, or NULL; a dict, or NULL. */
    PyObject *self, *arguments, *named;
};

/* Told of each call that returned something. -1 with an exception, which is raised then. */
typedef int (*told_of_call)(const struct call *call, PyObject *result);

/* Told of what is assigned to an attribute. -1 with an exception. */
typedef int (*told_of_assignment)(PyObject *name, PyObject *tensor, PyObject *value);

/* Take a list of pairs, of a function or method and what it is called, a string or None for one that makes views alone, a list of attributes, and what `slots_find` takes: once in
 * a process. 1; 0 where one of them is not as it should be, and -1 with an exception. */
int calls_find(PyObject *functions, PyObject *attributes, PyObject *items, PyObject *constructors, told_of_call call,
               told_of_assignment assignment);

/* A call begins: `calls_over` ends it. */
void calls_begun(void);
/* One is over that there is nothing to tell of; returns the result. */
PyObject *calls_ended(PyObject *result);
/* Tells of a call that is over, if it returned something; takes the reference to that, and returns it or NULL. */
PyObject *calls_over(const struct call *call, PyObject *result);

/* From now on, and no longer. Raise nothing. */
void calls_begin(void);
void calls_end(void);
bool calls_are_watched(void);
/* Whether one runs on the calling thread. */
bool calls_are_running(void);

#endif
