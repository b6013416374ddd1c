#include "lock.h"

#if PY_VERSION_HEX < 0x030C0000

FOUND_FAST _Thread_local struct attached_last attached_last;

const PyThreadState *attached_thread_by_check(const PyThreadState *thread)
{
    if (thread != NULL && thread == PyGILState_GetThisThreadState()) {
        attached_last = (struct attached_last){.thread = thread, .id = thread->id};
        return thread;
    }
    /* In a process that has had a subinterpreter this says yes to every thread. */
    return PyGILState_Check() ? thread : NULL;
}

#endif

#ifdef Py_GIL_DISABLED

#include <pthread.h>

atomic_flag arena_locked = ATOMIC_FLAG_INIT;

int arena_lock_survives_fork(void)
{
    return pthread_atfork(arena_lock, arena_unlock, arena_unlock) == 0 ? 0 : -1;
}

#else

int arena_lock_survives_fork(void) { return 0; }

#endif
