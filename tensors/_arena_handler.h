/* The handler that NumPy asks for memory (NEP 49): one for the process, whose blocks are charged to the scope that is
 * current at the birth.
 *
 * NumPy calls its functions with the GIL held (attached to the interpreter, in a free-threaded build).
 */
#ifndef DISPOSESCOPE_ARENA_HANDLER_H
#define DISPOSESCOPE_ARENA_HANDLER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_arena_accounts.h"

/* The capsule that NumPy keeps in its context variable and with each array; never freed, like the handler in it. */
extern PyObject *handler_capsule;

/* Make the capsule. Returns 0, or -1 with an exception. */
int handler_make(void);

/* An allocation that a budget refused, on this thread. It holds no account: a thread may end with it. */
struct refusal {
    uint64_t limit; /* the serial number of the account, 0 where none was refused */
    size_t nbytes;  /* requested */
    size_t charged; /* live then */
};

/* The last refusal on this thread, which is forgotten with this. */
struct refusal handler_last_refusal(void);

/* Refuse on behalf of memory from elsewhere: remember it as the last refusal. With the lock held. */
void handler_refuse(struct account *limit, size_t nbytes);

#endif
