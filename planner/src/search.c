/* Lower plans, by a search in depth for one that fits under a given height.
 *
 * After M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
 * Learning", ASPLOS 2023. A plan in which no buffer can sink is found by placing buffers from low
 * to high, each as low as those allow that are placed already. That is given up where a section can
 * no longer take what is left to be placed in it. Where what is left falls apart into parts that
 * share no section, each is searched by itself. Which buffer comes first among those that could lie
 * equally low is a matter of luck, so several orders take turns, and heights too: each with so many
 * steps, and then with twice as many. */
#include "planner.h"

#include <stdlib.h>
#include <string.h>

/* What a buffer may come next, with the lowest offset that it could have. */
struct candidate {
    int64_t offset;
    int32_t buffer, rank;
};

struct change {
    int64_t lowest;
    int32_t buffer;
};

struct search {
    const struct problem *problem;
    struct clock *clock;
    const char *letters;
    int64_t height;
    int64_t steps;          /* that are left */
    int32_t *neighbours;    /* of each buffer: those that live while it does */
    int32_t *neighbours_at; /* where those of a buffer begin; those of the next one end them */
    int32_t *members;       /* of each section: the buffers that live in it */
    int32_t *members_at;
    int32_t *crossing;      /* of each section: how many buffers, not placed yet, live on in the next one */
    int64_t *floors;        /* of each section: how low what is left can lie at best */
    int64_t *totals;        /* of each section: the bytes of what is left */
    int64_t *lowest;        /* of each buffer that is left: the lowest offset that it could have */
    int64_t *offsets;       /* of each buffer; -1 while it is not placed */
    int64_t *found;
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

/* Go on after a buffer has been placed; in parts, where it was all that held them together. */
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

/* Place a buffer: raise what others could have, and the floors. Returns the number of changes that
 * were noted. */
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

/* Whether each section can still take what is left, where nothing lies lower than an offset any
 * more. */
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

/* Place the next of the buffers of an order that are not placed yet, and search on. */
static enum outcome search_on(struct search *search, int32_t first, int32_t until, const int32_t *order, int32_t count,
                              int64_t at_least, int32_t rank_at_least)
{
    if (search->steps-- <= 0 || ((search->steps & 63) == 0 && is_over(search->clock))) {
        return STOPPED;
    }
    const struct buffer *buffers = search->problem->buffers;
    size_t width = (size_t)(until - first);
    /* What lies at this height or above leaves room for a buffer below: it could sink, or another
     * takes that room first. */
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
        /* Others were tried where the one before was placed. */
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
            /* Nothing lies on it: elsewhere it would be in the way. */
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

/* Search for a plan that fits under a height, with an order and so many steps. */
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

/* ------------------------------------------------------------------ what is searched */

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

/* False where there is no memory. */
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
    /* Which orders, and how far from the bound to the best plan: tight heights end hopeless ways
     * soon. */
    static const char *const letters[] = {"WAT", "TAW", "TWA"};
    static const int thirty_seconds[] = {0, 4, 12, 24};
    enum { ORDERS = 3, HEIGHTS = 4 };
    struct search search;
    enum outcome outcome = search_make(&search, problem, clock) ? DONE : NO_MEMORY;
    int64_t best = problem_height(problem, offsets), steps = 2 * (int64_t)problem->count;
    while (outcome == DONE && best > problem->bound) {
        /* NONE: neither was a lower plan found, nor is it known that there is none. */
        outcome = NONE;
        for (int at = 0; outcome == NONE && at < HEIGHTS; at++) {
            int64_t height = problem->bound + (best - 1 - problem->bound) * thirty_seconds[at] / 32;
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
                    /* All was searched. */
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
