/* The handler that NumPy asks for memory (NEP 49): one for the process, whose blocks are charged to the scope that is
 * current at the birth.
 *
 * Which thread calls its four functions, and what it has. NumPy 2.0 to 2.6 allocates and frees with the GIL held: the arrays themselves, the buffers of sort, argsort and partition, and those of
 * the comparison of records, for which it keeps the GIL. It reallocates with the GIL for ndarray.resize, np.fromiter and
 * np.loadtxt, and *without* it in array_from_text(), which parses for np.fromstring(sep=) and np.fromfile(sep=): there it grows
 * and at last shrinks the array, and frees it where tracemalloc has no memory to track it.
 *
 * Each of the four may therefore be called by any thread in any state, also by one that Python has never seen. One that is not
 * attached waits for the GIL, which it gives up again before it returns; nothing of the arena's is locked then, and NumPy holds
 * no lock where it calls. Below the four functions everything has the GIL and may call Python. Once the interpreter has ended
 * such a thread gets no memory, and what it frees is left to the end of the process.
 */
#ifndef DISPOSESCOPE_ARENA_HANDLER_H
#define DISPOSESCOPE_ARENA_HANDLER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "accounts.h"

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
