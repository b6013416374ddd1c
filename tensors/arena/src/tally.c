#include "tally.h"

struct tally tally;

void tally_fold(void)
{
    struct account *account = tally.account;
    size_t more = tally.births - tally.deaths; /* or fewer: these wrap around like what they are added to */
    size_t nbytes = (size_t)(tally.room_then - tally.room);
    account->references += more;
    account->births += tally.births;
    account->live_blocks += more;
    account->live_nbytes += nbytes;
    account_totals.births += tally.births;
    account_totals.live_blocks += more;
    account_totals.live_nbytes += nbytes;
    tally.births = tally.deaths = 0;
    tally.room_then = tally.room;
}

void *tally_raise(void *born)
{
    tally_fold();
    struct account *account = tally.account;
    if (account->live_nbytes > account->peak_nbytes) {
        account->peak_nbytes = account->live_nbytes;
    }
    if (account_totals.live_nbytes > account_totals.peak_nbytes) {
        account_totals.peak_nbytes = account_totals.live_nbytes;
    }
    size_t room = account->peak_nbytes - account->live_nbytes;
    size_t room_in_all = account_totals.peak_nbytes - account_totals.live_nbytes;
    tally.room = tally.room_then = (intptr_t)(room < room_in_all ? room : room_in_all);
    return born;
}

void tally_remember(struct account *account)
{
#ifdef BIRTHS_ARE_TALLIED
    if (tally.changes != NULL) {
        const PyThreadState *thread = _PyThreadState_UncheckedGet();
        tally.account = account;
        tally.thread = thread->id;
        tally.context = thread->context_ver;
        tally.seen = *tally.changes;
    }
#else
    (void)account;
#endif
}

void tally_forget(void)
{
    tally.account = NULL;
    tally.thread = 0;
}
