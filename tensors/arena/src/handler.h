/* The memory handler that NumPy calls (NEP 49). There is one for the process. Its blocks are
 * charged to the scope that is current at their birth.
 *
 * Threads and the GIL. NumPy 2.0 to 2.6 allocates and frees with the GIL held: arrays, the buffers
 * of sort, argsort and partition, and the buffers for comparing records. It reallocates with the
 * GIL for ndarray.resize, np.fromiter and np.loadtxt, and *without* it in array_from_text(), which
 * parses for np.fromstring(sep=) and np.fromfile(sep=): that function grows and finally shrinks the
 * array, and frees it if tracemalloc has no memory to track it.
 *
 * Therefore each of the four functions may be called by any thread in any state, also by a thread
 * that Python has never seen. A thread without the GIL waits for it, and releases it before it
 * returns; NumPy holds no lock during the call. All code that the four functions call has the GIL
 * and may call Python. After the interpreter has ended, such a thread gets no memory, and nothing
 * that it frees is given back. */
#ifndef DISPOSESCOPE_ARENA_HANDLER_H
#define DISPOSESCOPE_ARENA_HANDLER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "accounts.h"

/* The capsule with the handler. NumPy keeps it in a context variable and in each array. It is never
 * freed. */
extern PyObject *handler_capsule;

/* Make the capsule. Returns 0, or -1 with an exception. */
int handler_make(void);

/* Whether the log of a leak detector is open; and whether the log that was given last has the block
 * at an address. */
bool handler_logs_births(void);
bool handler_has_logged(void *address);

/* The part of NumPy's C API that the arena uses: NEP 49 (https://numpy.org/neps/nep-0049.html) and
 * numpy/ndarraytypes.h. It is declared here, so that the package is built without NumPy's headers
 * and one build serves every NumPy 2. NumPy's ABI version fixes the indexes of its functions and
 * the members of an array. numpy_install() checks the version, and the module tries out one array
 * when it is imported. */

/* PyDataMem_Handler. NumPy reads it, from any thread, as long as an array of the arena exists. */
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
    PyObject *mem_handler; /* NULL if the array does not own its memory */
};

#define NUMPY_OWNDATA 0x0004

/* Set the handler of this context, NULL for NumPy's own. Returns the handler before, a new
 * reference; NULL with an exception. */
PyObject *numpy_set_handler(PyObject *handler);
/* The handler of this context, a new reference, or NULL on error. */
extern PyObject *(*numpy_get_handler)(void);
/* numpy.ndarray; borrowed. */
extern PyTypeObject *numpy_ndarray;

/* Find the functions of NumPy above. Returns 0, or -1 with an ImportError if the arena does not
 * know this NumPy. */
int numpy_install(void);

/* Set the context variable of NumPy's error state, if it has no value in this context, to its
 * default. That saves every ufunc some 15 ns: in a context with variables, as a scope makes one,
 * looking up a variable without a value takes a search, while a value is cached. Returns 0, or -1
 * with an exception. */
int numpy_settle(void);

/* ------------------------------------------------------------------ the blocks behind arrays */

/* The array that owns the memory behind an array, which is a block of the arena: borrowed, NULL if
 * it is no block. Follows views through memoryviews and the bases of aliases (see set_base_types()
 * in compiled.pyi). */
PyObject *arrays_owner_of(PyObject *array);

/* The address of the block behind an array, or NULL. Instead of an array, an int is accepted: an
 * address in memory that is not freed meanwhile. */
void *arrays_block_of(PyObject *array);

/* The block of an array that owns its memory, as a storage: a tuple of its address and its bytes, 0
 * bytes if the array has no elements. A new reference, NULL with an exception. */
PyObject *arrays_storage(PyObject *owner);

/* Whether an array has exactly `references` references, and its memory is referred to by nothing
 * else. */
bool arrays_is_unshared(PyObject *array, Py_ssize_t references);

/* Move the block at an address from `source`, if it is charged to that account now, to `target`.
 * Returns whether it was moved. */
bool arrays_move(void *address, struct account *source, struct account *target);

#endif
