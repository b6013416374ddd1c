/* The tally: the account of the current scope, remembered, and what was born and freed there since the lock was last taken.
 *
 * A small array costs NumPy some thirty instructions of its own cache. To find the current scope in its context variable, and
 * to add to the figures of its account and to those of all, are several times as many. So the account that was found last is
 * remembered together with what it was found by, and what is born and freed there is added up here, in one place; whoever
 * takes the lock finds it settled, that is, added to the account and to the totals.
 *
 * What was found is good as long as no context has got another innermost scope, and the thread is in the same context as
 * then: CPython counts how often a thread has entered or left one, for its own memory of this kind in each context variable.
 * Where that is not so, or there is no GIL, nothing is remembered.
 */
#ifndef DISPOSESCOPE_ARENA_TALLY_H
#define DISPOSESCOPE_ARENA_TALLY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "accounts.h"

#if PY_VERSION_HEX < 0x030F0000
#define BIRTHS_ARE_TALLIED
#endif

struct tally {
    uint64_t thread, context;  /* where it was found; thread is 0, which none is, where nothing is remembered */
    const uint64_t *changes;   /* how often an innermost scope was changed, in all contexts; NULL where nobody counts that */
    uint64_t seen;             /* of these, when it was found */
    const Py_ssize_t *hearers; /* how many want marks: then nothing is tallied */
    struct account *account;   /* plain, see there; NULL where nothing is remembered */
    uint64_t births, deaths;   /* blocks charged to it and freed since it was settled */
    intptr_t room;             /* how much it may grow before a peak is passed; below 0 where that is not known */
    intptr_t room_then;        /* how much that was when it was settled */
};

extern struct tally tally;

/* Whether the remembered account is that of the scope that is current on this thread, given its thread state. Called with the
 * GIL held. */
static inline bool tally_is_current(const PyThreadState *thread)
{
#ifdef BIRTHS_ARE_TALLIED
    return tally.thread == thread->id && tally.context == thread->context_ver && tally.seen == *tally.changes &&
           *tally.hearers == 0;
#else
    (void)thread;
    return false;
#endif
}

/* Add up what was tallied. For the lock; see tally_settle. */
void tally_fold(void);

/* The same with a peak that may have been passed, and find the room. Returns the block whose birth may have passed it. */
void *tally_raise(void *born);

/* Called when the lock is taken: accounts and totals are right from here on, and may be changed. */
static inline void tally_settle(void)
{
    if (tally.births | tally.deaths) {
        tally_fold();
    }
    tally.room = tally.room_then = -1;
}

/* A block is charged to the remembered account, of which it gets a reference by that; returns the block. */
static inline void *tally_birth(void *born, size_t nbytes)
{
    tally.births++;
    tally.room -= (intptr_t)nbytes;
    return tally.room < 0 ? tally_raise(born) : born;
}

/* A block of the remembered account is freed. */
static inline void tally_death(size_t nbytes)
{
    tally.deaths++;
    tally.room += (intptr_t)nbytes;
}

/* Remember the plain account that was found on this thread just now; forget what is remembered. With the lock held. */
void tally_remember(struct account *account);
void tally_forget(void);

#endif
