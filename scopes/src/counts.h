/* The counters of one thread that the compiled paths add to. */
#ifndef DISPOSESCOPE_SCOPES_COUNTS_H
#define DISPOSESCOPE_SCOPES_COUNTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* In the order of the first fields of a ledger. */
enum counter { CREATED_IN_SCOPE, CREATED_UNSCOPED, DISPOSED_IN_SCOPE, DISPOSED_UNSCOPED, COUNTERS };

typedef struct {
    PyObject_HEAD
    long long values[COUNTERS];
} Counts;

extern PyTypeObject counts_type;

#endif
