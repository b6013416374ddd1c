/* Births, seen where the Python object of a tensor gets its memory: every one of them, and nothing else. */
#ifndef DISPOSESCOPE_TORCH_BIRTHS_H
#define DISPOSESCOPE_TORCH_BIRTHS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Takes a dict of what is needed; see compiled.pyi. None, or NULL with an error set. */
PyObject *births_bind(PyObject *module, PyObject *things);

/* Whether they are seen so on this system, with this PyTorch: None is told otherwise, and a mode has to see them. */
PyObject *births_watch(PyObject *module, PyObject *things);
/* Sees those of the instances of more classes. */
PyObject *births_watch_classes(PyObject *module, PyObject *types);
bool births_are_seen(void);

/* Has a detector look at a tensor that was given a storage. No error may be set. Can run any code. */
void births_look_again(PyObject *tensor);

/* Whether a budget is to be asked, which the mode does when a call is over. */
bool births_need_the_mode(void);

/* The attributes of a tensor that make a Python object which is no birth: that of a tensor which was there before (a gradient, a
 * base), or that under the array which `numpy()` returns. What is assigned to a gradient belongs to the parameter. */

/* Takes a tuple of PyTorch's own descriptors, its method for arrays, the names of the module whose code only hands over what it
 * was given, and the function that is called with what is assigned to an attribute. False, and nothing changed, where one of them
 * is none. */
bool attributes_watch(PyObject *descriptors, PyObject *numpy, PyObject *passing, PyObject *assigned);

/* Calls a function with one argument; what it makes no scope owns. Whether that is so now, on this thread. */
PyObject *attributes_unborn(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
bool attributes_make_unborn(void);

/* Whether one of these is running on this thread, and no other code that it has called: a mode's, or that of a class. */
bool attributes_are_read(void);

/* What the code that makes a tensor is to births. */

/* In the order of the numbers in `births`. */
enum verdict { UNKNOWN, MAKES, KEEPS, PASSES, ASKS, REBUILDS };

/* Takes the function that judges a code by itself and the name of its module, and the one that looks at the frames where the
 * code alone does not tell. Both are kept. */
void code_bind(PyObject *judge, PyObject *ask);

/* Whether the code that runs on this thread makes births. -1 with an error set. Can run Python code. */
int code_makes_births(void);

/* Whether it is only after a look at the frames that it makes none: it copies a module, or traces a graph. Likewise. */
int code_refuses_births(void);

/* Whether it makes a tensor of memory that a file or another process handed over. Likewise. */
int code_rebuilds(void);

/* Errors that come up where none can be raised, because whoever called looks for none. */

/* Takes the module `threading`, which is kept. */
void errors_bind(PyObject *threading);

/* Has an error raised in the code of this thread as soon as that goes on; on other threads than the main one a new one of its
 * class. Steals it. Runs no Python code before the interpreter goes down. */
void error_raise_later(PyObject *error);

#endif
