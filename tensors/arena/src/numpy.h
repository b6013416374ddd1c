/* The part of NumPy's C interface that the arena uses, written down here so that the package is built without NumPy's
 * headers and one build serves every NumPy 2: NEP 49 (https://numpy.org/neps/nep-0049.html) and numpy/ndarraytypes.h.
 * The positions in the table of functions and the members of an array are fixed by NumPy's ABI version, which
 * numpy_install() checks, and a trial of the whole before the arena is used.
 */
#ifndef DISPOSESCOPE_ARENA_NUMPY_H
#define DISPOSESCOPE_ARENA_NUMPY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* PyDataMem_Handler. NumPy reads it, from any thread, as long as an array exists that it serves. */
struct numpy_handler {
    char name[127];
    uint8_t version;
    struct {
        void *ctx;
        void *(*malloc)(void *ctx, size_t size);
        void *(*calloc)(void *ctx, size_t nelem, size_t elsize);
        void *(*realloc)(void *ctx, void *ptr, size_t new_size);
        void (*free)(void *ctx, void *ptr, size_t size);
    } allocator;
};

/* PyArrayObject_fields, of NumPy 1.22 and later. */
struct numpy_array {
    PyObject_HEAD
    char *data;
    int nd;
    Py_ssize_t *dimensions;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *descr;
    int flags;
    PyObject *weakreflist;
    void *buffer_info;
    PyObject *mem_handler; /* NULL where the array does not own its memory */
};

#define NUMPY_OWNDATA 0x0004

/* Set the handler of this context, NULL for NumPy's own; returns the handler before, a new reference, or NULL on error. */
extern PyObject *(*numpy_set_handler)(PyObject *handler);
/* The handler of this context, a new reference, or NULL on error. */
extern PyObject *(*numpy_get_handler)(void);
/* numpy.ndarray; borrowed. */
extern PyTypeObject *numpy_ndarray;

/* Find all this. Returns 0, or -1 with ImportError where this NumPy is another one than the arena knows. */
int numpy_install(void);

/* Give NumPy's error state in this context the value that it has there by default, where it has no other. Nothing changes by
 * it; but a variable without a value is searched for by every ufunc in a context that has some, as that of a scope does, and
 * the value of one that has it is at hand: 15 ns a call. Returns 0, or -1 with an exception. */
int numpy_settle(void);

#endif
