/* Accounts: what each scope has in use.
 *
 * Every block in use is charged to one account. An account is made when the first block is born in its scope, and closed
 * with the scope: then it forwards to the account of the outer scope, which owns its blocks from that moment, however many
 * they are; a block finds its present owner by following the forwards, which are shortened on the way. The account
 * `account_of_nobody` is for blocks that no scope owns.
 *
 * An account lives as long as something refers to it: the scope, a block, an account that forwards to it or has its limits
 * from it. Blocks may be freed on any thread, long after the scope is gone.
 *
 * Every function here is called with the arena's lock held.
 */
#ifndef DISPOSESCOPE_ARENA_ACCOUNTS_H
#define DISPOSESCOPE_ARENA_ACCOUNTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct account {
    size_t references;
    size_t live_blocks, live_nbytes;       /* what its scope owns now; 0 once it is closed */
    size_t peak_nbytes;                    /* the most that it owned at once */
    uint64_t births;                       /* blocks born in its scope */
    uint64_t misses;                       /* of these, by asking the system for memory */
    size_t escaped_blocks, escaped_nbytes; /* what its scope owned when it was closed */
    size_t elsewhere_nbytes;               /* counted against the budget, and not in blocks: see account_charge */
    size_t budget;                         /* SIZE_MAX: none */
    size_t charged_nbytes;                 /* with a budget: live and elsewhere, of this account and of all inside */
    struct account *limits;                /* the account of the nearest outer scope with a budget, or NULL; a reference */
    struct account *forward;               /* closed: the account that owns its blocks; a reference */
    bool records;                          /* the birth site of every block is wanted */
    bool plain;                            /* open, without a limit, and records nothing: nothing to ask on the way */
    uint64_t serial;                       /* with a budget: its number, of which there is no second; otherwise 0 */
    struct account *next_limited;          /* with a budget: the next of those */
    void *owner;                           /* the Python object that stands for it, or NULL */
};

/* Totals over all accounts. */
struct account_figures {
    size_t live_blocks, live_nbytes, peak_nbytes;
    uint64_t births, misses, escapes;
    size_t budgets; /* open accounts with a budget */
};

extern struct account account_of_nobody;
extern struct account_figures account_totals;

/* A new account with one reference, or NULL where there is no memory. outer: where its limits come from, or NULL. */
struct account *account_new(size_t budget, struct account *outer);

/* The account with a budget that has this serial number, NULL where it is gone; no new reference. */
struct account *account_limited(uint64_t serial);

/* Drop a reference. */
void account_release(struct account *account);

/* The account that owns what was charged to this one: itself, or the end of its forwards. No new reference. */
struct account *account_at_the_end(struct account *account);

static inline struct account *account_now(struct account *account)
{
    return account->forward == NULL ? account : account_at_the_end(account);
}

/* The account with a budget that this many bytes more would exceed, or NULL. */
static inline struct account *account_refusing(struct account *account, size_t nbytes);

/* Charge a block to an account, of which it has a reference already; take it off again, and drop the reference. The account
 * may have been closed meanwhile: then the one that owns its blocks now is meant. */
static inline void account_add(struct account *account, size_t nbytes);
static inline void account_drop(struct account *account, size_t nbytes);

/* A block changes its size. */
void account_resize(struct account *account, size_t before, size_t after);

/* A block moves from one account to another, open one; the reference goes with it. */
void account_move(struct account *source, struct account *target, size_t nbytes);

/* Count bytes against the budgets that are no block of the arena, or take them off again. */
void account_charge(struct account *account, size_t nbytes);
void account_discharge(struct account *account, size_t nbytes);

/* Close an account: what it owns belongs to another, open one from now on. */
void account_close(struct account *account, struct account *successor);

/* ------------------------------------------------------------------ on the path of every array */

static inline struct account *account_first_limit(struct account *account)
{
    return account->budget != SIZE_MAX ? account : account->limits;
}

static inline struct account *account_refusing(struct account *account, size_t nbytes)
{
    for (struct account *limit = account_first_limit(account); limit != NULL; limit = limit->limits) {
        if (limit->forward == NULL && (nbytes > limit->budget || limit->charged_nbytes > limit->budget - nbytes)) {
            return limit;
        }
    }
    return NULL;
}

static inline void account_grow(struct account *account, size_t nbytes)
{
    account->live_nbytes += nbytes;
    if (account->live_nbytes > account->peak_nbytes) {
        account->peak_nbytes = account->live_nbytes;
    }
    for (struct account *limit = account_first_limit(account); limit != NULL; limit = limit->limits) {
        limit->charged_nbytes += nbytes;
    }
}

static inline void account_shrink(struct account *account, size_t nbytes)
{
    account->live_nbytes -= nbytes;
    for (struct account *limit = account_first_limit(account); limit != NULL; limit = limit->limits) {
        limit->charged_nbytes -= nbytes;
    }
}

static inline void account_grow_totals(size_t nbytes)
{
    account_totals.live_nbytes += nbytes;
    if (account_totals.live_nbytes > account_totals.peak_nbytes) {
        account_totals.peak_nbytes = account_totals.live_nbytes;
    }
}

static inline void account_add(struct account *account, size_t nbytes)
{
    account->births++;
    account = account_now(account);
    account->live_blocks++;
    account_grow(account, nbytes);
    account_totals.births++;
    account_totals.live_blocks++;
    account_grow_totals(nbytes);
}

/* The same for a plain account, reference included. */
static inline void account_add_plain(struct account *account, size_t nbytes)
{
    account->references++;
    account->births++;
    account->live_blocks++;
    size_t live = account->live_nbytes + nbytes;
    account->live_nbytes = live;
    if (live > account->peak_nbytes) {
        account->peak_nbytes = live;
    }
    account_totals.births++;
    account_totals.live_blocks++;
    account_grow_totals(nbytes);
}

/* The same for a plain account whose last reference this is not. */
static inline void account_drop_plain(struct account *account, size_t nbytes)
{
    account->references--;
    account->live_blocks--;
    account->live_nbytes -= nbytes;
    account_totals.live_blocks--;
    account_totals.live_nbytes -= nbytes;
}

static inline void account_drop(struct account *account, size_t nbytes)
{
    struct account *owner = account_now(account);
    owner->live_blocks--;
    account_shrink(owner, nbytes);
    account_totals.live_blocks--;
    account_totals.live_nbytes -= nbytes;
    if (account->references == 1) {
        account_release(account);
    }
    else {
        account->references--;
    }
}

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

/* The one lock of the arena: over the pool and the accounts alike.
 *
 * It is the GIL, which the arena never gives up while it holds what the two functions below enclose: two atomic operations for
 * each small array would be a tenth of what the array costs. A thread that comes without the GIL waits for it: see handler.h.
 * What is enclosed takes tens of nanoseconds, makes no system call that maps or unmaps memory, and does not call Python.
 *
 * Who takes it finds the tally settled, and may count on the figures of accounts from then on. It is not recursive.
 */

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

/* Where blocks were born: the table of birth sites, for scopes that may have to tell them.
 *
 * Called with the GIL held (attached) and without the arena's lock.
 */

/* Learn the function that tells the mark of user code for a frame. Returns 0, or -1 with an exception. */
int sites_bind(PyObject *mark_of);

/* Whether a birth in an account is to be recorded with its site. */
bool sites_wanted(const struct account *account, size_t nbytes);

/* Record the site of a birth; returns whether it could. Keeps an exception that is set. */
bool sites_record(void *address);

/* Forget it again, before its block is given back. Keeps an exception that is set. */
void sites_forget(void *address);

#endif
