#include "accounts.h"

#include <stdlib.h>

#include "tally.h"

/* Its reference is never dropped. */
struct account account_of_nobody = {.references = 1, .budget = SIZE_MAX};
struct account_figures account_totals;

static struct account *limited; /* all with a budget, the latest first */
static uint64_t last_serial;

struct account *account_limited(uint64_t serial)
{
    struct account *account = limited;
    while (account != NULL && account->serial != serial) {
        account = account->next_limited;
    }
    return account;
}

static void forget_limited(const struct account *account)
{
    struct account **place = &limited;
    while (*place != account) {
        place = &(*place)->next_limited;
    }
    *place = account->next_limited;
}

struct account *account_new(size_t budget, struct account *outer)
{
    struct account *account = calloc(1, sizeof *account);
    if (account == NULL) {
        return NULL;
    }
    account->references = 1;
    account->budget = budget;
    account->limits = outer == NULL ? NULL : account_first_limit(outer);
    if (account->limits != NULL) {
        account->limits->references++;
    }
    if (budget != SIZE_MAX) {
        account_totals.budgets++;
        account->serial = ++last_serial;
        account->next_limited = limited;
        limited = account;
    }
    account->plain = account_first_limit(account) == NULL;
    return account;
}

void account_release(struct account *account)
{
    /* A closed account can be the last reference of the one it forwards to, and so on: a loop, for there may be thousands.
     * Each has two references to drop, so that those which are due are kept in a list, through `owner`, unused by then. */
    struct account *due = NULL;
    while (account != NULL) {
        if (--account->references == 0) {
            account->owner = due;
            due = account;
        }
        account = NULL;
        while (due != NULL && account == NULL) {
            if (due->forward != NULL) {
                account = due->forward;
                due->forward = NULL;
            }
            else if (due->limits != NULL) {
                account = due->limits;
                due->limits = NULL;
            }
            else {
                struct account *dead = due;
                due = dead->owner;
                if (dead->serial != 0) {
                    forget_limited(dead);
                }
                free(dead);
            }
        }
    }
}

struct account *account_at_the_end(struct account *account)
{
    while (account->forward != NULL) {
        struct account *next = account->forward;
        if (next->forward != NULL) {
            /* Shorten the way by every second account. `next` lives on in the reference taken here until it is dropped. */
            struct account *after = next->forward;
            after->references++;
            account->forward = after;
            account_release(next);
            next = after;
        }
        account = next;
    }
    return account;
}

static void charge_limits(struct account *account, size_t nbytes)
{
    for (struct account *limit = account_first_limit(account); limit != NULL; limit = limit->limits) {
        limit->charged_nbytes += nbytes;
    }
}

static void discharge_limits(struct account *account, size_t nbytes)
{
    for (struct account *limit = account_first_limit(account); limit != NULL; limit = limit->limits) {
        limit->charged_nbytes -= nbytes;
    }
}

void account_resize(struct account *account, size_t before, size_t after)
{
    struct account *owner = account_now(account);
    account_shrink(owner, before);
    account_totals.live_nbytes -= before;
    account_grow(owner, after);
    account_grow_totals(after);
}

void account_move(struct account *source, struct account *target, size_t nbytes)
{
    struct account *owner = account_now(source);
    owner->live_blocks--;
    account_shrink(owner, nbytes);
    target->references++;
    target->live_blocks++;
    account_grow(target, nbytes);
    account_release(source);
}

void account_charge(struct account *account, size_t nbytes)
{
    struct account *owner = account_now(account);
    owner->elsewhere_nbytes += nbytes;
    charge_limits(owner, nbytes);
}

void account_discharge(struct account *account, size_t nbytes)
{
    struct account *owner = account_now(account);
    owner->elsewhere_nbytes -= nbytes;
    discharge_limits(owner, nbytes);
}

void account_close(struct account *account, struct account *successor)
{
    if (account->forward != NULL) {
        return;
    }
    if (account == tally.account) {
        tally_forget();
    }
    size_t nbytes = account->live_nbytes, elsewhere = account->elsewhere_nbytes;
    account->escaped_blocks = account->live_blocks;
    account->escaped_nbytes = nbytes;
    account_totals.escapes += account->live_blocks;
    if (account->budget != SIZE_MAX) {
        account_totals.budgets--;
    }
    discharge_limits(account, nbytes + elsewhere);
    successor->references++;
    successor->live_blocks += account->live_blocks;
    successor->elsewhere_nbytes += elsewhere;
    charge_limits(successor, elsewhere);
    account_grow(successor, nbytes);
    account->live_blocks = account->live_nbytes = account->elsewhere_nbytes = 0;
    account->forward = successor;
    account->plain = false;
}
