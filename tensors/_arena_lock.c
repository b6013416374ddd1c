#include "_arena_lock.h"

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
