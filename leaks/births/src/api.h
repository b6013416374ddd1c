/* What the compiled parts of other rooms ask of the birth log: the arena, and the mode for PyTorch. With the GIL held. */
#ifndef DISPOSESCOPE_BIRTHLOG_API_H
#define DISPOSESCOPE_BIRTHLOG_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* Behind the capsule `api` of the module; it lives as long as the process. */
struct birthlog_api {
    /* Whether births are being recorded. */
    bool (*is_open)(void);
    /* A block was born at an address, of a kind and on a device by their numbers; whether it is in the log now. Keeps an
     * exception that is set. */
    bool (*block_born)(void *address, size_t nbytes, uint16_t kind, uint16_t device);
    /* It is freed, or was moved in memory and changed its size. */
    void (*block_died)(void *address);
    void (*block_moved)(void *before, void *after, size_t nbytes);
    /* Whether the log has a block at an address: then that block is in use. */
    bool (*has_block)(void *address);
    /* Whether births are sampled; whether one of so many bytes is to be kept: to be asked once for each. */
    bool (*samples)(void);
    bool (*is_kept)(size_t nbytes);
    /* An object that stands for memory was born, and is to be kept; does nothing where it is known. 0, or -1 with an
     * exception. */
    int (*sight)(PyObject *object, PyObject *op, size_t nbytes, uint16_t kind, uint16_t device);
    /* Whether an object is known to stand for memory. */
    bool (*is_known)(PyObject *object);
    /* An object stands for memory of which nothing is to be reported; does nothing where it is known. 0, or -1 with an exception. */
    int (*know)(PyObject *object);
    /* What a birth here and now would be recorded with, for one that is recorded later: a new reference, or NULL without an
     * exception. May run Python code. And have the births on this thread recorded with that, until it is called with NULL: with the
     * name of the call as well, which the function tells that was given last, by a code and an instruction; None for no name. */
    PyObject *(*remember)(void);
    void (*use)(PyObject *remembered);
    void (*name_calls_by)(PyObject *function);
    /* The number of the name of a kind, and of a device. */
    uint16_t (*kind_number)(PyObject *name);
    uint16_t (*device_number)(PyObject *name);
};

#define BIRTHLOG_CAPSULE "disposescope.leaks.births.compiled.api"

#endif
