/* Accounts: the blocks and bytes that each scope has in use.
 *
 * Every block in use is charged to one account. An account is made when the first block is born in
 * its scope, and closed with the scope. A closed account forwards to the account of the outer
 * scope, which owns its blocks from then on; so closing takes the same time however many blocks
 * there are. A block finds its present owner by following the forwards, which are shortened on the
 * way. The account `account_of_nobody` is for unowned blocks.
 *
 * An account lives as long as something refers to it: its scope, a block, an account that forwards
 * to it or that has it as its limit. Blocks may be freed on any thread, long after the scope is
 * gone.
 *
 * Every function here is called with the GIL held. */
#ifndef DISPOSESCOPE_ARENA_ACCOUNTS_H
#define DISPOSESCOPE_ARENA_ACCOUNTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../../scopes/src/shared/types.h"

/* Make the type and the tables of accounts, and import the API of scopes. Returns 0, or -1 with an
 * exception. */
int accounts_make(void);

/* The beginning of a `struct pass`, which is allocated by malloc: what accounts need of it. */
struct pass_head {
    size_t references; /* from accounts, and from the Python object */
    bool is_open;
};

/* The number of open passes. */
extern size_t passes_open;

/* Drop a reference to a pass, which may be NULL. */
void pass_release(struct pass_head *pass);

/* Whether a pass, which may be NULL, records births. */
static inline bool pass_is_open(const struct pass_head *pass) { return pass != NULL && pass->is_open; }

struct account {
    size_t references;
    size_t live_blocks, live_nbytes;       /* in use now, as requested; 0 once it is closed */
    size_t peak_nbytes;                    /* the most live_nbytes so far */
    uint64_t births;                       /* blocks born in its scope */
    uint64_t misses;                       /* births for which the system was asked for memory */
    size_t escaped_blocks, escaped_nbytes; /* what was in use when it was closed */
    size_t elsewhere_nbytes;               /* memory of other libraries: see account_charge */
    size_t budget;                         /* in bytes; SIZE_MAX: none */
    size_t charged_nbytes;                 /* with a budget: live and elsewhere bytes, inner accounts included */
    struct account *limits;                /* the account of the nearest outer scope with a budget, or NULL; owned */
    struct account *forward;               /* closed: the account that owns its blocks; owned. NULL while open */
    bool keeps;                            /* closed: the scope had escapes="keep", so that nothing escaped from it */
    bool records;                          /* the birth site of every block is recorded */
    uint64_t serial;                       /* with a budget: a number that is never used again; otherwise 0 */
    struct account *next_limited;          /* with a budget: the next account in the list of all with a budget */
    void *owner;                           /* the `struct account_object` that holds it, borrowed; or NULL */
    struct pass_head *pass;                /* records births while it is open; owned, or NULL */
};

/* Totals over all accounts. */
struct account_figures {
    size_t live_blocks, live_nbytes, peak_nbytes;
    uint64_t births, misses, escapes;
    size_t budgets; /* open accounts with a budget */
};

extern struct account account_of_nobody;
extern struct account_figures account_totals;

/* A new account with one reference; NULL without memory. `outer` is the account whose limits hold
 * for it as well. */
struct account *account_new(size_t budget, struct account *outer);

/* The account with a budget that has a serial number: borrowed, NULL if it is gone. */
struct account *account_limited(uint64_t serial);

/* Drop a reference. */
void account_release(struct account *account);

/* The account that owns what was charged to this one: itself, or the end of its forwards.
 * Borrowed. `account_now` is the same. */
struct account *account_at_the_end(struct account *account);

static inline struct account *account_now(struct account *account)
{
    return account->forward == NULL ? account : account_at_the_end(account);
}

/* Whether blocks of an account outlived a scope that does not keep what is held. */
static inline bool account_has_escaped(const struct account *account)
{
    while (account->forward != NULL && account->keeps) {
        account = account->forward;
    }
    return account->forward != NULL;
}

/* The account whose budget `nbytes` more would exceed, or NULL: borrowed. */
static inline struct account *account_refusing(struct account *account, size_t nbytes);

/* `account_add` charges a block to an account; the block has a reference to the account already.
 * `account_drop` takes the block off again, and drops the reference. If the account was closed
 * meanwhile, both change the account that it forwards to. */
static inline void account_add(struct account *account, size_t nbytes);
static inline void account_drop(struct account *account, size_t nbytes);

/* Change the size of a block. */
void account_resize(struct account *account, size_t before, size_t after);

/* Move a block from one account to another, which is open. The block's reference to `source` is
 * replaced by one to `target`. */
void account_move(struct account *source, struct account *target, size_t nbytes);

/* Count bytes that are no block of the arena against the budgets, or take them off again. */
void account_charge(struct account *account, size_t nbytes);
void account_discharge(struct account *account, size_t nbytes);

/* Close an account. What it owns belongs to `successor`, which is open, from now on. */
void account_close(struct account *account, struct account *successor);

/* ------------------------------------------------------------------ called for every array */

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

/* ------------------------------------------------------------------ the account of a scope */

/* It is made when the first block is born in the scope, held by the scope's field `account`, and
 * closed with the scope at the latest. */

/* An object as a scope, borrowed; NULL with a TypeError set if it is none. */
ScopeState *scope_argument(PyObject *object);

/* The account of a scope, borrowed from the scope. If it has none yet: NULL without an error, or,
 * with `make`, a new account, NULL with an exception. */
struct account *account_of(ScopeState *scope, bool make);

/* Set `account` to what `account_of` returns. False with an exception if the object is no scope, or
 * without memory. */
bool account_of_argument(PyObject *object, bool make, struct account **account);

/* The account of the scope that is current in this context, to which a new block is charged:
 * borrowed, never NULL. Raises nothing, and keeps an exception that is set. */
struct account *account_current(void);

/* The scope of an account, a new reference; None for `account_of_nobody` and if the scope is
 * gone. */
PyObject *account_scope(const struct account *account);

/* Remember, as the last refusal on this thread, that the budget of an account refused memory. */
void account_refuse(struct account *limit, size_t nbytes);

/* ------------------------------------------------------------------ birth sites of blocks */

/* A table of birth sites besides the log of a leak detector. It has only what is needed without a
 * detector: strict scopes name the sites of blocks that escape, and a refused budget names the
 * largest live sites. */

/* Whether the site of a birth in an account is recorded. */
bool sites_wanted(const struct account *account, size_t nbytes);

/* Record the site of a birth. Returns whether it could. Keeps an exception that is set. */
bool sites_record(void *address);

/* Forget the site of a block, before the block is given back. Keeps an exception that is set. */
void sites_forget(void *address);

#endif
