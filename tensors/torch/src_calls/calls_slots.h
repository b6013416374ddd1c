/* What Python calls by slots of the classes of tensors: taking items, and making instances. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_CALLS_SLOTS_H
#define DISPOSESCOPE_TORCH_CALLS_SLOTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Takes the wrapper of the slot by which a tensor is indexed, and a list of classes whose instances, or what is made in place of
 * them, are tensors: the class of tensors itself, or classes that no other is derived from. Whether they are as they should be. */
bool slots_find(PyObject *items, PyObject *constructors);

/* Call them through here, or no longer, in derived classes too, which have copies. Raise nothing. */
void slots_begin(void);
void slots_end(void);

#endif
