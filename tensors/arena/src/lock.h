/* The one lock of the arena: over the pool and the accounts alike.
 *
 * It is the GIL, which the arena never gives up while it holds what the two functions below enclose: two atomic operations for
 * each small array would be a tenth of what the array costs. A thread that comes without the GIL waits for it: see handler.h.
 * What is enclosed takes tens of nanoseconds, makes no system call that maps or unmaps memory, and does not call Python.
 *
 * Who takes it finds the tally settled, and may count on the figures of accounts from then on. It is not recursive.
 */
#ifndef DISPOSESCOPE_ARENA_LOCK_H
#define DISPOSESCOPE_ARENA_LOCK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "tally.h"


static inline void arena_lock(void) { tally_settle(); }
static inline void arena_unlock(void) {}


#if PY_VERSION_HEX < 0x030C0000

#ifdef __GLIBC__
/* Found without a call; other C libraries may refuse it to a library that is loaded later. */
#define FOUND_FAST __attribute__((tls_model("initial-exec")))
#else
#define FOUND_FAST
#endif

/* The thread state with which this thread was attached last, perhaps gone, and its number, of which there is no second. */
extern FOUND_FAST _Thread_local struct attached_last {
    const PyThreadState *thread;
    uint64_t id;
} attached_last;

/* See attached_thread(); given the state of whichever thread has the GIL. */
const PyThreadState *attached_thread_by_check(const PyThreadState *thread);

#endif

/* The thread state of this thread where it has the GIL, otherwise NULL. Called by any thread, in any state. */
static inline const PyThreadState *attached_thread(void)
{
    const PyThreadState *thread = _PyThreadState_UncheckedGet();
#if PY_VERSION_HEX < 0x030C0000
    /* Before 3.12 that is the state of whichever thread has the GIL. PyGILState_Check() twice for each small array would be a
     * tenth of what the array costs: what it said last is kept. The number tells a new state at the address of an old one. */
    if (__builtin_expect(thread == NULL || thread != attached_last.thread || thread->id != attached_last.id, 0)) {
        return attached_thread_by_check(thread);
    }
#endif
    return thread;
}

#endif
