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
