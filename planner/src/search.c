/* Lower plans, by a search in depth for one that fits under a given height.
 *
 * After M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
 * Learning", ASPLOS 2023. Buffers are placed from low to high, each as low as the placed buffers
 * allow; every plan in which no buffer can be lowered is found in this way. A branch of the search
 * is given up as soon as a section has no room for its buffers that are not placed yet. If these
 * buffers fall into parts that share no section, each part is searched by itself. Several buffers
 * may be able to lie equally low, and which one should come first cannot be known. Therefore
 * several orders are tried in turn, for several heights, with a limited number of steps each; then
 * again with twice as many steps. */
#include "planner.h"

#include <stdlib.h>
#include <string.h>

/* A buffer that may be placed next, the lowest offset that it can have, and its place in the
 * order. */
struct candidate {
    int64_t offset;
    int32_t buffer, rank;
};

/* A former value of `lowest`, to be put back. */
struct change {
    int64_t lowest;
    int32_t buffer;
};

struct search {
    const struct problem *problem;
    struct clock *clock;
    const char *letters; /* the order of the buffers: see problem_order */
    int64_t height; /* the plan has to fit under this */
    int64_t steps;  /* how many steps are left */
    /* The buffers that live at the same time as buffer i: from `neighbours_at[i]` to
     * `neighbours_at[i + 1]`, the latter excluded. */
    int32_t *neighbours, *neighbours_at;
    /* The buffers that live in section i: from `members_at[i]` to `members_at[i + 1]`. */
    int32_t *members, *members_at;
    int32_t *crossing; /* by section: how many unplaced buffers live both in it and in the next one */
    int64_t *floors;   /* by section: the lowest offset that an unplaced buffer in it can have */
    int64_t *totals;   /* by section: the bytes of the unplaced buffers in it */
    int64_t *lowest;   /* by unplaced buffer: the lowest offset that it can have */
    int64_t *offsets;  /* by buffer: its offset, or -1 while it is not placed */
    int64_t *found;    /* by buffer: the offset where it was placed last; in the end, the plan */
};

static enum outcome search_part(struct search *search, int32_t first, int32_t until, int32_t *buffers, int32_t count);
static enum outcome search_on(struct search *search, int32_t first, int32_t until, const int32_t *order, int32_t count,
                              int64_t at_least, int32_t rank_at_least);

static int compare_candidates(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    return a->offset != b->offset ? (a->offset > b->offset) - (a->offset < b->offset)
                                  : (a->rank > b->rank) - (a->rank < b->rank);
}

/* Search on after a buffer was placed. If only that buffer connected parts of the problem, each
 * part is searched by itself. */
static enum outcome search_around(struct search *search, int32_t first, int32_t until, const int32_t *order,
                                  int32_t count, struct candidate placed)
{
    const struct buffer *buffer = &search->problem->buffers[placed.buffer];
    int32_t parts = 0;
    int32_t *ends = malloc(((size_t)(buffer->until - buffer->first) + 2) * sizeof *ends);
    int32_t *rest = malloc(((size_t)count + 1) * sizeof *rest);
    enum outcome outcome = ends == NULL || rest == NULL ? NO_MEMORY : DONE;
    search->found[placed.buffer] = placed.offset;
    for (int32_t section = buffer->first; section + 1 < buffer->until; section++) {
        if (--search->crossing[section] == 0 && ends != NULL) {
            ends[parts++] = section + 1;
        }
    }
    if (outcome == DONE && parts == 0) {
        outcome = search_on(search, first, until, order, count, placed.offset, placed.rank);
    }
    else if (outcome == DONE) {
        ends[parts++] = until;
        int32_t begin = first;
        for (int32_t part = 0; outcome == DONE && part < parts; part++) {
            int32_t left = 0;
            for (int32_t i = 0; i < count; i++) {
                const struct buffer *other = &search->problem->buffers[order[i]];
                if (search->offsets[order[i]] < 0 && other->first >= begin && other->until <= ends[part]) {
                    rest[left++] = order[i];
                }
            }
            if (left > 0) {
                outcome = search_part(search, begin, ends[part], rest, left);
            }
            begin = ends[part];
        }
    }
    for (int32_t section = buffer->first; section + 1 < buffer->until; section++) {
        search->crossing[section]++;
    }
    free(ends);
    free(rest);
    return outcome;
}

/* Place a buffer, and raise `lowest` of its neighbours and the floors accordingly. Returns the
 * number of former values that were put into `changes`. Sets `is_last` to whether no unplaced
 * buffer lives at the same time. */
static int32_t put(struct search *search, struct candidate placed, struct change *changes, bool *is_last)
{
    const struct problem *problem = search->problem;
    const struct buffer *buffer = &problem->buffers[placed.buffer];
    int64_t end = placed.offset + buffer->size;
    int32_t noted = 0, from = problem->sections, to = 0;
    *is_last = true;
    search->offsets[placed.buffer] = placed.offset;
    for (int32_t i = search->neighbours_at[placed.buffer]; i < search->neighbours_at[placed.buffer + 1]; i++) {
        int32_t other = search->neighbours[i];
        if (search->offsets[other] >= 0) {
            continue;
        }
        *is_last = false;
        if (search->lowest[other] < end) {
            changes[noted++] = (struct change){search->lowest[other], other};
            search->lowest[other] = end;
            from = problem->buffers[other].first < from ? problem->buffers[other].first : from;
            to = problem->buffers[other].until > to ? problem->buffers[other].until : to;
        }
    }
    for (int32_t section = buffer->first; section < buffer->until; section++) {
        search->floors[section] = end;
        search->totals[section] -= buffer->size;
    }
    for (int32_t section = from; section < to; section++) {
        int64_t lowest = INT64_MAX;
        for (int32_t i = search->members_at[section]; i < search->members_at[section + 1]; i++) {
            int32_t other = search->members[i];
            if (search->offsets[other] < 0 && search->lowest[other] < lowest) {
                lowest = search->lowest[other];
            }
        }
        if (lowest != INT64_MAX && search->floors[section] < lowest) {
            search->floors[section] = lowest;
        }
    }
    return noted;
}

/* Whether each section has room for its unplaced buffers, given that all of them will lie at
 * `offset` or above. */
static bool is_possible(const struct search *search, int32_t first, int32_t until, int64_t offset)
{
    for (int32_t section = first; section < until; section++) {
        int64_t floor = search->floors[section] > offset ? search->floors[section] : offset;
        if (floor + search->totals[section] > search->height) {
            return false;
        }
    }
    return true;
}

/* How often the time is looked at: every 64 steps, a power of 2. */
enum { STEPS_BETWEEN_LOOKS = 64 };

/* Place each possible next buffer of an order in turn, and search on. */
static enum outcome search_on(struct search *search, int32_t first, int32_t until, const int32_t *order, int32_t count,
                              int64_t at_least, int32_t rank_at_least)
{
    if (search->steps-- <= 0 || ((search->steps & (STEPS_BETWEEN_LOOKS - 1)) == 0 && is_over(search->clock))) {
        return STOPPED;
    }
    const struct buffer *buffers = search->problem->buffers;
    size_t width = (size_t)(until - first);
    /* A buffer at this offset or above would leave room for another one below it. The other one is
     * placed first instead. */
    int64_t too_high = INT64_MAX;
    for (int32_t rank = 0; rank < count; rank++) {
        int64_t end = search->lowest[order[rank]] + buffers[order[rank]].size;
        too_high = search->offsets[order[rank]] < 0 && end < too_high ? end : too_high;
    }
    if (too_high == INT64_MAX) {
        return DONE;
    }
    struct candidate *candidates = malloc((size_t)count * sizeof *candidates);
    struct change *changes = malloc((size_t)search->problem->count * sizeof *changes);
    int64_t *floors = malloc(width * sizeof *floors);
    enum outcome outcome = candidates == NULL || changes == NULL || floors == NULL ? NO_MEMORY : NONE;
    int32_t left = 0;
    for (int32_t rank = 0; outcome == NONE && rank < count; rank++) {
        int64_t offset = search->lowest[order[rank]];
        /* Candidates below were tried before, in place of the buffer that was placed last. */
        bool is_new = offset > at_least || (offset == at_least && rank >= rank_at_least);
        if (search->offsets[order[rank]] < 0 && offset < too_high && is_new) {
            candidates[left++] = (struct candidate){offset, order[rank], rank};
        }
    }
    if (outcome == NONE) {
        qsort(candidates, (size_t)left, sizeof *candidates, compare_candidates);
    }
    for (int32_t i = 0; outcome == NONE && i < left; i++) {
        struct candidate next = candidates[i];
        memcpy(floors, search->floors + first, width * sizeof *floors);
        bool is_last;
        int32_t noted = put(search, next, changes, &is_last);
        if (is_possible(search, first, until, next.offset)) {
            outcome = search_around(search, first, until, order, count, next);
        }
        while (noted-- > 0) {
            search->lowest[changes[noted].buffer] = changes[noted].lowest;
        }
        for (int32_t section = buffers[next.buffer].first; section < buffers[next.buffer].until; section++) {
            search->totals[section] += buffers[next.buffer].size;
        }
        memcpy(search->floors + first, floors, width * sizeof *floors);
        search->offsets[next.buffer] = -1;
        if (is_last) {
            /* No unplaced buffer shares a section with it, so that no other offset can help. */
            break;
        }
    }
    free(candidates);
    free(changes);
    free(floors);
    return outcome;
}

/* Search buffers that share sections with no others. */
static enum outcome search_part(struct search *search, int32_t first, int32_t until, int32_t *buffers, int32_t count)
{
    if (!problem_order(search->problem, search->totals, search->letters, buffers, count)) {
        return NO_MEMORY;
    }
    return search_on(search, first, until, buffers, count, 0, 0);
}

/* Search for a plan that fits under a height, with one order and a limited number of steps. */
static enum outcome search_under(struct search *search, int64_t height, const char *letters, int64_t steps)
{
    const struct problem *problem = search->problem;
    int32_t *buffers = malloc(((size_t)problem->count + 1) * sizeof *buffers);
    enum outcome outcome = buffers == NULL ? NO_MEMORY : DONE;
    search->height = height;
    search->letters = letters;
    search->steps = steps;
    int32_t until;
    for (int32_t first = 0; outcome == DONE && first < problem->sections; first = until) {
        until = first + 1;
        while (until < problem->sections && search->crossing[until - 1] > 0) {
            until++;
        }
        int32_t count = 0;
        for (int32_t i = 0; i < problem->count; i++) {
            if (problem->buffers[i].first >= first && problem->buffers[i].first < until) {
                buffers[count++] = i;
            }
        }
        if (count > 0) {
            outcome = search_part(search, first, until, buffers, count);
        }
    }
    free(buffers);
    return outcome;
}

/* ------------------------------------------------------------------ the search as a whole */

static void search_clear(struct search *search)
{
    free(search->neighbours);
    free(search->neighbours_at);
    free(search->members);
    free(search->members_at);
    free(search->crossing);
    free(search->floors);
    free(search->totals);
    free(search->lowest);
    free(search->offsets);
    free(search->found);
}

/* Make a search, to be cleared by the caller. False without memory. */
static bool search_make(struct search *search, const struct problem *problem, struct clock *clock)
{
    size_t count = (size_t)problem->count, sections = (size_t)problem->sections, lives = 0;
    for (size_t i = 0; i < count; i++) {
        lives += (size_t)(problem->buffers[i].until - problem->buffers[i].first);
    }
    *search = (struct search){
        .problem = problem,
        .clock = clock,
        .neighbours = malloc((count * count + 1) * sizeof *search->neighbours),
        .neighbours_at = malloc((count + 1) * sizeof *search->neighbours_at),
        .members = malloc((lives + 1) * sizeof *search->members),
        .members_at = malloc((sections + 1) * sizeof *search->members_at),
        .crossing = calloc(sections + 1, sizeof *search->crossing),
        .floors = calloc(sections + 1, sizeof *search->floors),
        .totals = malloc((sections + 1) * sizeof *search->totals),
        .lowest = calloc(count + 1, sizeof *search->lowest),
        .offsets = malloc((count + 1) * sizeof *search->offsets),
        .found = malloc((count + 1) * sizeof *search->found),
    };
    if (search->neighbours == NULL || search->neighbours_at == NULL || search->members == NULL ||
        search->members_at == NULL || search->crossing == NULL || search->floors == NULL || search->totals == NULL ||
        search->lowest == NULL || search->offsets == NULL || search->found == NULL) {
        return false;
    }
    memcpy(search->totals, problem->totals, sections * sizeof *search->totals);
    int32_t at = 0;
    for (int32_t i = 0; i < problem->count; i++) {
        const struct buffer *buffer = &problem->buffers[i];
        search->neighbours_at[i] = at;
        for (int32_t j = 0; j < problem->count; j++) {
            if (j != i && buffer->first < problem->buffers[j].until && problem->buffers[j].first < buffer->until) {
                search->neighbours[at++] = j;
            }
        }
        for (int32_t section = buffer->first; section + 1 < buffer->until; section++) {
            search->crossing[section]++;
        }
        search->offsets[i] = -1;
    }
    search->neighbours_at[problem->count] = at;
    at = 0;
    for (int32_t section = 0; section < problem->sections; section++) {
        search->members_at[section] = at;
        for (int32_t i = 0; i < problem->count; i++) {
            if (problem->buffers[i].first <= section && section < problem->buffers[i].until) {
                search->members[at++] = i;
            }
        }
    }
    search->members_at[problem->sections] = at;
    return true;
}

enum outcome search_lower(struct problem *problem, int64_t *offsets, struct clock *clock)
{
    /* The orders, and the heights to be searched, as fractions of the way from the bound to the
     * best plan. Under low heights, hopeless branches end soon. */
    enum { ORDERS = 3, HEIGHTS = 4, DENOMINATOR = 32 };
    static const char *const letters[ORDERS] = {"WAT", "TAW", "TWA"};
    static const int numerators[HEIGHTS] = {0, 4, 12, 24};
    struct search search;
    enum outcome outcome = search_make(&search, problem, clock) ? DONE : NO_MEMORY;
    int64_t best = problem_height(problem, offsets), steps = 2 * (int64_t)problem->count;
    while (outcome == DONE && best > problem->bound) {
        /* It stays NONE if neither a lower plan nor a higher bound is found. */
        outcome = NONE;
        for (int at = 0; outcome == NONE && at < HEIGHTS; at++) {
            int64_t height = problem->bound + (best - 1 - problem->bound) * numerators[at] / DENOMINATOR;
            for (int order = 0; outcome == NONE && order < ORDERS; order++) {
                enum outcome found = search_under(&search, height, letters[order], steps);
                if (found == NO_MEMORY || (found == STOPPED && is_over(clock))) {
                    outcome = found;
                }
                else if (found == DONE) {
                    memcpy(offsets, search.found, (size_t)problem->count * sizeof *offsets);
                    best = problem_height(problem, offsets);
                    outcome = DONE;
                }
                else if (found == NONE) {
                    /* The whole search space was searched: there is no plan under this height. */
                    problem->bound = height + 1;
                    outcome = DONE;
                }
            }
        }
        if (outcome == NONE) {
            steps *= 2;
            outcome = DONE;
        }
    }
    search_clear(&search);
    return outcome;
}
