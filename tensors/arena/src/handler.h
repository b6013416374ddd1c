/* The handler that NumPy asks for memory (NEP 49): one for the process, whose blocks are charged to
 * the scope that is current at the birth.
 *
 * Which thread calls its four functions, and what it has. NumPy 2.0 to 2.6 allocates and frees with
 * the GIL held: the arrays themselves, the buffers of sort, argsort and partition, and those of the
 * comparison of records, for which it keeps the GIL. It reallocates with the GIL for
 * ndarray.resize, np.fromiter and np.loadtxt, and *without* it in array_from_text(), which parses
 * for np.fromstring(sep=) and np.fromfile(sep=): there it grows and at last shrinks the array, and
 * frees it where tracemalloc has no memory to track it.
 *
 * Each of the four may therefore be called by any thread in any state, also by one that Python has
 * never seen. One that is not attached waits for the GIL, which it gives up again before it
 * returns; NumPy holds no lock where it calls. Below the four functions everything has the GIL and
 * may call Python. Once the interpreter has ended such a thread gets no memory, and what it frees
 * is left to the end of the process. */
#ifndef DISPOSESCOPE_ARENA_HANDLER_H
#define DISPOSESCOPE_ARENA_HANDLER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "accounts.h"

/* The capsule that NumPy keeps in its context variable and with each array; never freed, like the
 * handler in it. */
extern PyObject *handler_capsule;

/* Make the capsule. Returns 0, or -1 with an exception. */
int handler_make(void);

/* Whether births of blocks are recorded in the log of a leak detector; and whether that of a block
 * was, in the one given last. */
bool handler_logs_births(void);
bool handler_has_logged(void *address);

/* The part of NumPy's C interface that the arena uses, written down here so that the package is
 * built without NumPy's headers and one build serves every NumPy 2: NEP 49
 * (https://numpy.org/neps/nep-0049.html) and numpy/ndarraytypes.h. The positions in the table of
 * functions and the members of an array are fixed by NumPy's ABI version, which numpy_install()
 * checks, and a trial of the whole before the arena is used. */

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

/* Set the handler of this context, NULL for NumPy's own; returns the handler before, a new
 * reference, or NULL on error. */
extern PyObject *(*numpy_set_handler)(PyObject *handler);
/* The handler of this context, a new reference, or NULL on error. */
extern PyObject *(*numpy_get_handler)(void);
/* numpy.ndarray; borrowed. */
extern PyTypeObject *numpy_ndarray;

/* Find all this. Returns 0, or -1 with ImportError where this NumPy is another one than the arena
 * knows. */
int numpy_install(void);

/* Give NumPy's error state in this context the value that it has there by default, where it has no
 * other. Nothing changes by it; but a variable without a value is searched for by every ufunc in a
 * context that has some, as that of a scope does, and the value of one that has it is at hand: 15
 * ns a call. Returns 0, or -1 with an exception. */
int numpy_settle(void);

/* Which block of the arena an array has its memory in. */

/* The array that owns the memory of an array as a block of the arena; borrowed, NULL where the
 * memory is not the arena's. Follows views through memoryviews and the bases of aliases (see
 * set_base_types() in compiled.pyi). */
PyObject *arrays_owner_of(PyObject *array);

/* The beginning of that block, or NULL. In the place of an array an address will do, of memory that
 * is not freed meanwhile. */
void *arrays_block_of(PyObject *array);

/* The block as a storage: (address, bytes), 0 bytes where its array has no elements. A new
 * reference, NULL with an exception. */
PyObject *arrays_storage(PyObject *owner);

/* Whether nothing but an array refers to its memory, and nothing but so many references to that
 * array. */
bool arrays_is_unshared(PyObject *array, Py_ssize_t references);

/* Move the block of an array that is charged to `source` now to another account. Returns whether it
 * was. */
bool arrays_move(void *address, struct account *source, struct account *target);

#endif
