/* Accounts: what each scope has in use.
 *
 * Every block in use is charged to one account. An account is made when the first block is born in
 * its scope, and closed with the scope: then it forwards to the account of the outer scope, which
 * owns its blocks from that moment, however many they are; a block finds its present owner by
 * following the forwards, which are shortened on the way. The account `account_of_nobody` is for
 * blocks that no scope owns.
 *
 * An account lives as long as something refers to it: the scope, a block, an account that forwards
 * to it or has its limits from it. Blocks may be freed on any thread, long after the scope is gone.
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

/* Make the types and tables of accounts, and find what they need of scopes. Returns 0, or -1 with
 * an exception. */
int accounts_make(void);

/* What an account knows of the pass that records its births: the head of a `struct pass`, from
 * malloc. */
struct pass_head {
    size_t references; /* of accounts, and of the object in Python */
    bool is_open;
};

/* How many passes are open. */
extern size_t passes_open;

/* Drop a reference; of NULL there is none. */
void pass_release(struct pass_head *pass);

/* Whether births are recorded for an account with this pass; NULL is none. */
static inline bool pass_is_open(const struct pass_head *pass) { return pass != NULL && pass->is_open; }

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
    struct account *limits;                /* of the nearest outer scope with a budget, or NULL; a reference */
    struct account *forward;               /* closed: the account that owns its blocks; a reference */
    bool keeps;                            /* closed: its scope keeps what is held, so that nothing escaped from it */
    bool records;                          /* the birth site of every block is wanted */
    uint64_t serial;                       /* with a budget: its number, of which there is no second; otherwise 0 */
    struct account *next_limited;          /* with a budget: the next of those */
    void *owner;                           /* the Python object that stands for it, or NULL */
    struct pass_head *pass;                /* records its births while it is open; a reference, or NULL */
};

/* Totals over all accounts. */
struct account_figures {
    size_t live_blocks, live_nbytes, peak_nbytes;
    uint64_t births, misses, escapes;
    size_t budgets; /* open accounts with a budget */
};

extern struct account account_of_nobody;
extern struct account_figures account_totals;

/* A new account with one reference, or NULL where there is no memory. outer: where its limits come
 * from. */
struct account *account_new(size_t budget, struct account *outer);

/* The account with a budget that has this serial number, NULL where it is gone; no new
 * reference. */
struct account *account_limited(uint64_t serial);

/* Drop a reference. */
void account_release(struct account *account);

/* The account that owns what was charged to this one: itself, or the end of its forwards. No new
 * reference. */
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

/* The account with a budget that this many bytes more would exceed, or NULL. */
static inline struct account *account_refusing(struct account *account, size_t nbytes);

/* Charge a block to an account, of which it has a reference already; take it off again, and drop
 * the reference. The account may have been closed meanwhile: then the one that owns its blocks now
 * is meant. */
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

/* The account of a scope: made when the first block is born in it, held by its field `account`, and
 * closed with the scope at the latest. */

/* The scope that an object is, borrowed; NULL with TypeError where it is none. */
ScopeState *scope_argument(PyObject *object);

/* The account of a scope, or NULL where it has none yet; made where `make` is true, and then NULL
 * with an exception where that fails. No new reference: the scope holds it. */
struct account *account_of(ScopeState *scope, bool make);

/* Find the account of a scope in the same way. Returns false with an exception where the object is
 * no scope, or there is no memory. */
bool account_of_argument(PyObject *object, bool make, struct account **account);

/* The account that a block born now is charged to: the one of the scope that is current in this
 * context. Never NULL, raises nothing, keeps an exception that is set. */
struct account *account_current(void);

/* The scope that an account stands for, a new reference; None where it is nobody's or the scope is
 * gone. */
PyObject *account_scope(const struct account *account);

/* Remember as the last refusal on this thread that an account with a budget refused memory, of the
 * arena or from elsewhere. */
void account_refuse(struct account *limit, size_t nbytes);

/* Where blocks were born: the table of birth sites, for scopes that may have to name them.
 *
 * It is a second one beside the log of a leak detector, and kept only as far as it serves without a
 * detector: strict scopes say where what escapes was born, and a refused budget names the largest
 * live sites. */

/* Whether a birth in an account is to be recorded with its site. */
bool sites_wanted(const struct account *account, size_t nbytes);

/* Record the site of a birth; returns whether it could. Keeps an exception that is set. */
bool sites_record(void *address);

/* Forget it again, before its block is given back. Keeps an exception that is set. */
void sites_forget(void *address);

#endif
