/* What the code that makes a tensor is to births. */
#ifndef DISPOSESCOPE_TORCH_CODE_H
#define DISPOSESCOPE_TORCH_CODE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

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

#endif
