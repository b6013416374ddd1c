/* What a log of births is for compiled code that records births: implemented by the leak detector,
 * used by frameworks, which are given its capsule when a detector opens. Every function is called
 * with the GIL held. */
#ifndef DISPOSESCOPE_SCOPES_BIRTH_LOG_H
#define DISPOSESCOPE_SCOPES_BIRTH_LOG_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* Behind a capsule. There is one log in a process, which lives as long as that. */
struct birth_log_api {
    /* Whether births are being recorded. */
    bool (*is_open)(void);
    /* A block was born at an address, of a kind and on a device by their numbers; whether it is in
     * the log now. Keeps an exception that is set. */
    bool (*block_born)(void *address, size_t nbytes, uint16_t kind, uint16_t device);
    /* It is freed, or was moved in memory and changed its size. */
    void (*block_died)(void *address);
    void (*block_moved)(void *before, void *after, size_t nbytes);
    /* Whether the log has a block at an address: then that block is in use. */
    bool (*has_block)(void *address);
    /* Whether births are sampled; whether one of so many bytes is to be kept: to be asked once for
     * each. */
    bool (*samples)(void);
    bool (*is_kept)(size_t nbytes);
    /* Memory was born, and is to be kept: `object` stands for it, and `op` is the name of the call
     * or NULL. Does nothing where it is known. 0, or -1 with an exception. */
    int (*memory_born)(PyObject *object, PyObject *op, size_t nbytes, uint16_t kind, uint16_t device);
    /* Something was born, and died before anybody could look at it: the births after it are later. */
    void (*passed_unseen)(void);
    /* Whether an object is known to stand for memory. */
    bool (*has_memory)(PyObject *object);
    /* An object stands for memory of which nothing is to be reported; does nothing where it is
     * known. 0, or -1 with an exception. */
    int (*exclude_memory)(PyObject *object);
    /* For a birth that is recorded later: what it would be recorded with here and now, its line and
     * its scope; a new reference, or NULL without an exception. May run Python code. */
    PyObject *(*remember_origin)(void);
    /* Whether it was remembered since the log was opened last: the names of scopes are others after
     * that. */
    bool (*is_recent)(PyObject *remembered);
    /* Record the births on this thread with that, until it is called with NULL. */
    void (*use_origin)(PyObject *remembered);
    /* The number of the name of a kind, and of a device. */
    uint16_t (*kind_number)(PyObject *name);
    uint16_t (*device_number)(PyObject *name);
};

#define BIRTH_LOG_CAPSULE "disposescope.birth_log"

#endif
