/* Births that listeners and the log hear of a moment later. Where the Python object of a tensor is allocated it has an address and no
 * memory yet: its storage is looked at when the next tensor is made on any thread, when a scope is left, and when somebody asks. Used
 * under the GIL. */
#ifndef DISPOSESCOPE_TORCH_LOOKS_H
#define DISPOSESCOPE_TORCH_LOOKS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Takes what listeners need out of a dict; -1 with an error set. And what the log of births needs: see compiled.pyi. */
int looks_bind(PyObject *things);
PyObject *looks_bind_log(PyObject *module, PyObject *things);

/* Whether a leak detector is open that shall hear of what is made on this thread now. */
bool looks_are_wanted(void);
/* Where it is made: a new reference, or NULL without an error. Can run any code. */
PyObject *looks_place(void);
/* How a tensor is looked at: nothing is reported of its memory; it is reported unless it is an array's, or somebody else's; it is
 * reported in any case. */
enum manner { LOOK_KNOWN, LOOK_UNOWNED, LOOK_WHOLE };
/* Adds a tensor, by an entry or another weak reference, with the place, or NULL. Runs no other code. -1 with an error set. */
int looks_add(PyObject *reference, PyObject *place, enum manner manner);
/* Looks at all that were added. Errors are raised later. */
void looks_do(void);
/* Whether a tuple has the descriptors of `data`, `set_` and `untyped_storage`. Then has that done before they hand memory on. */
bool looks_fit(PyObject *handing);
void looks_watch(PyObject *handing);

/* Whether a class is that of plain tensors; false before `looks_bind`. And the storage of one, a new reference; NULL, without an
 * error, for one inside of a transform, a sparse one, an opaque one. */
bool looks_know_class(const PyTypeObject *type);
PyObject *looks_storage_of(PyObject *tensor);

/* See compiled.pyi. */
PyObject *looks_look(PyObject *module, PyObject *ignored);
PyObject *looks_look_at(PyObject *module, PyObject *tensor);
PyObject *looks_know(PyObject *module, PyObject *objects);
PyObject *looks_forget(PyObject *module, PyObject *ignored);

#endif
