/* Which births are kept, where not all are. */
#include "module.h"

#include <math.h>

bool samples_some;
static double rate; /* the mean number of bytes from one sampled birth to the next */
static double until_sample;
static uint64_t random_state;

double log_weight(const struct row *row)
{
    if (!(row->flags & ROW_SAMPLED) || rate <= 0) {
        return 1.0;
    }
    /* A birth of so many bytes is kept with the probability 1 - exp(-nbytes / rate). */
    double kept = -expm1(-(double)row->nbytes / rate);
    return kept <= 0 ? 1.0 : 1.0 / kept;
}

static double next_interval(void)
{
    /* xorshift64*, of our own: the program's random numbers stay as they are. */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    double uniform = (double)((random_state * UINT64_C(0x2545F4914F6CDD1D)) >> 11) * 0x1.0p-53;
    return -log1p(-uniform) * rate;
}

/* The points at which a birth is kept lie apart by exponentially distributed numbers of bytes, which makes the sums of log_weight
 * unbiased: https://github.com/google/tcmalloc/blob/master/docs/sampling.md */
bool samples_keep(size_t nbytes)
{
    if (!samples_some) {
        return true;
    }
    until_sample -= (double)nbytes;
    if (until_sample > 0) {
        return false;
    }
    until_sample = next_interval();
    return true;
}

void samples_begin(uint64_t nbytes)
{
    samples_some = nbytes != 0;
    if (samples_some) {
        if (random_state == 0) {
            random_state = (uint64_t)(log_loaded_at * 1e9) | 1;
        }
        rate = (double)nbytes;
        until_sample = next_interval();
    }
}
