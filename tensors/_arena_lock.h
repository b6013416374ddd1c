/* The one lock of the arena: over the pool and the accounts alike.
 *
 * It is held for tens of nanoseconds, never during a system call that maps or unmaps memory, and never while Python is
 * called.
 *
 * In a build of Python with a GIL, the GIL is this lock: NumPy allocates and frees with it (it asks its context variable for
 * the handler at every birth, and an array dies by Py_DECREF), the arena never gives it up, and two atomic operations for
 * each small array would be a tenth of what the array costs. With DISPOSESCOPE_ARENA_DEBUG=1 a thread that comes without the
 * GIL ends the process with a message. In a free-threaded build it is a spinning lock that any thread may take.
 *
 * Who takes it finds the tally settled, and may count on the figures of accounts from then on.
 *
 * It is not recursive. A fork takes it first, so that the child finds pool and accounts whole.
 */
#ifndef DISPOSESCOPE_ARENA_LOCK_H
#define DISPOSESCOPE_ARENA_LOCK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_arena_tally.h"

#ifdef Py_GIL_DISABLED

#include <sched.h>
#include <stdatomic.h>

extern atomic_flag arena_locked;

static inline void arena_lock(void)
{
    unsigned spins = 0;
    while (atomic_flag_test_and_set_explicit(&arena_locked, memory_order_acquire)) {
        if (++spins > 100) {
            sched_yield();
        }
    }
}

static inline void arena_unlock(void)
{
    atomic_flag_clear_explicit(&arena_locked, memory_order_release);
}

#else

static inline void arena_lock(void) { tally_settle(); }
static inline void arena_unlock(void) {}

#endif

/* Let fork() find the lock free on both sides. Called once. Returns 0, or -1 where the C library has no memory for it. */
int arena_lock_survives_fork(void);

#endif
