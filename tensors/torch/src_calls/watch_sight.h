/* The memory of a tensor, put into the birth log. Used under the GIL. */
#ifndef DISPOSESCOPE_TORCH_WATCH_SIGHT_H
#define DISPOSESCOPE_TORCH_WATCH_SIGHT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "../../../leaks/births/src/api.h"
#include "calls.h"

/* What PyTorch is asked for: all of it is kept for the life of the process. */
struct sight_objects {
    const struct birthlog_api *log;
    PyTypeObject *tensor_type;
    PyObject *storage_of, *nbytes_of, *device_of;
    uint16_t kind, cpu;
};

extern struct sight_objects sight_objects;

int sight_make(void);

/* Whether something may be a tensor, or have some in it. */
bool may_have_tensors(PyObject *result);

/* Put the memory of a tensor down, unless an argument of the call that returned it has it. What was called is `op`, or the function
 * of a library that the line called where it is NULL. -1 with an exception. */
int sight(PyObject *tensor, PyObject *op, const struct call *call);

#endif
