/* Hold back the garbage collector while a context variable is set. */
#ifndef DISPOSESCOPE_COLLECTOR_H
#define DISPOSESCOPE_COLLECTOR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Setting a context variable, Python 3.11 allocates while it refers to the variables of the context
 * without a reference. If the collector ran there, a finalizer that opens a scope would free them.
 * Since 3.12 it runs between instructions only. Returns what `let_collect` is given afterwards. */
static inline int hold_collector(void)
{
#if PY_VERSION_HEX < 0x030C0000
    return PyGC_Disable();
#else
    return 0;
#endif
}

static inline void let_collect(int collects)
{
    if (collects) {
        PyGC_Enable();
    }
}

#endif
