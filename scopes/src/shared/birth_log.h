/* The interface of the birth log for compiled code. The leak detector implements it. Frameworks
 * get its capsule when a detector opens. Every function is called with the GIL held. */
#ifndef DISPOSESCOPE_SCOPES_BIRTH_LOG_H
#define DISPOSESCOPE_SCOPES_BIRTH_LOG_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* What the capsule points to. A process has one log, which lives as long as the process. */
struct birth_log_api {
    /* Whether births are being recorded. */
    bool (*is_open)(void);
    /* Record a memory block that was allocated at `address`. `kind` and `device` are numbers from
     * `kind_number` and `device_number`. Returns whether the log has the block now. An exception
     * that is set stays set. */
    bool (*block_born)(void *address, size_t nbytes, uint16_t kind, uint16_t device);
    /* Record that the block at an address is freed, or was reallocated elsewhere. */
    void (*block_died)(void *address);
    void (*block_moved)(void *before, void *after, size_t nbytes);
    /* Whether the log has a block at `address`, which means that the block is in use. */
    bool (*has_block)(void *address);
    /* Whether only a sample of births is recorded. */
    bool (*samples)(void);
    /* Whether the sample includes a birth of `nbytes`. To be called once for each birth. */
    bool (*is_kept)(size_t nbytes);
    /* Record a birth that the sample includes. `object` stands for the memory, `op` is the name of
     * the call that made it, or NULL. Does nothing if the log knows the object. 0, or -1 with an
     * exception. */
    int (*memory_born)(PyObject *object, PyObject *op, size_t nbytes, uint16_t kind, uint16_t device);
    /* Count a birth whose object died before anybody could look at it, so that later births get
     * later numbers. */
    void (*passed_unseen)(void);
    /* Whether the log knows an object that stands for memory. */
    bool (*has_memory)(PyObject *object);
    /* Leave the memory that `object` stands for out of all reports. Does nothing if the log knows
     * the object. 0, or -1 with an exception. */
    int (*exclude_memory)(PyObject *object);
    /* The line and the scope of a birth that happens now and is recorded later: a new reference,
     * or NULL without an exception. May run Python code. */
    PyObject *(*remember_origin)(void);
    /* Whether what is born with a remembered origin shall be recorded as soon as its call has
     * returned: see `record_soon` in leaks/births/compiled.pyi. May run Python code. */
    bool (*is_recorded_soon)(PyObject *remembered);
    /* Whether an origin was remembered since the log was opened last. Older origins refer to scope
     * names that the log no longer has. */
    bool (*is_recent)(PyObject *remembered);
    /* Record the births on this thread with a remembered origin, until called with NULL. */
    void (*use_origin)(PyObject *remembered);
    /* The number that stands for the name of a kind, or of a device. */
    uint16_t (*kind_number)(PyObject *name);
    uint16_t (*device_number)(PyObject *name);
};

#define BIRTH_LOG_CAPSULE "disposescope.birth_log"

#endif
