/* Where blocks were born: the table of birth sites, for scopes that may have to tell them.
 *
 * Called with the GIL held (attached) and without the arena's lock.
 */
#ifndef DISPOSESCOPE_ARENA_SITES_H
#define DISPOSESCOPE_ARENA_SITES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "accounts.h"

/* Learn the function that tells the mark of user code for a frame. Returns 0, or -1 with an exception. */
int sites_bind(PyObject *mark_of);

/* Whether a birth in an account is to be recorded with its site. */
bool sites_wanted(const struct account *account, size_t nbytes);

/* Record the site of a birth; returns whether it could. Keeps an exception that is set. */
bool sites_record(void *address);

/* Forget it again, before its block is given back. Keeps an exception that is set. */
void sites_forget(void *address);

#endif
