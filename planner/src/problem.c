/* The problem: buffers and the sections of time that they live in. The check of a plan, and orders
 * of buffers. */
#include "planner.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

double now_s(void)
{
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

bool is_over(struct clock *clock)
{
    clock->interrupted = clock->interrupted || clock->is_interrupted(clock);
    return clock->interrupted || now_s() >= clock->end_s;
}

static int compare(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* The index of a time among the sorted cuts. */
static int32_t index_of(int64_t time, const int64_t *cuts, int32_t count)
{
    return (int32_t)((const int64_t *)bsearch(&time, cuts, (size_t)count, sizeof *cuts, compare) - cuts);
}

bool problem_make(struct problem *problem, const int64_t *lower, const int64_t *upper, const int64_t *sizes,
                  int32_t count)
{
    *problem = (struct problem){.count = count};
    int64_t *cuts = malloc((2 * (size_t)count + 1) * sizeof *cuts);
    problem->buffers = malloc(((size_t)count + 1) * sizeof *problem->buffers);
    if (cuts == NULL || problem->buffers == NULL) {
        free(cuts);
        problem_clear(problem);
        return false;
    }
    for (int32_t i = 0; i < count; i++) {
        cuts[2 * i] = lower[i];
        cuts[2 * i + 1] = upper[i];
    }
    qsort(cuts, 2 * (size_t)count, sizeof *cuts, compare);
    int32_t distinct = 0;
    for (int32_t i = 0; i < 2 * count; i++) {
        if (distinct == 0 || cuts[distinct - 1] != cuts[i]) {
            cuts[distinct++] = cuts[i];
        }
    }
    problem->sections = distinct > 0 ? distinct - 1 : 0;
    problem->totals = calloc((size_t)problem->sections + 1, sizeof *problem->totals);
    for (int32_t i = 0; problem->totals != NULL && i < count; i++) {
        struct buffer *buffer = &problem->buffers[i];
        *buffer = (struct buffer){
            .size = sizes[i],
            .width = (uint64_t)upper[i] - (uint64_t)lower[i],
            .first = index_of(lower[i], cuts, distinct),
            .until = index_of(upper[i], cuts, distinct),
        };
        for (int32_t section = buffer->first; section < buffer->until; section++) {
            problem->totals[section] += buffer->size;
            if (problem->totals[section] > problem->bound) {
                problem->bound = problem->totals[section];
            }
        }
    }
    free(cuts);
    if (problem->totals == NULL) {
        problem_clear(problem);
        return false;
    }
    return true;
}

void problem_clear(struct problem *problem)
{
    free(problem->buffers);
    free(problem->totals);
    *problem = (struct problem){0};
}

int64_t problem_height(const struct problem *problem, const int64_t *offsets)
{
    int64_t height = 0;
    for (int32_t i = 0; i < problem->count; i++) {
        int64_t end = offsets[i] + problem->buffers[i].size;
        height = end > height ? end : height;
    }
    return height;
}

/* ------------------------------------------------------------------ whether a plan is sound */

struct extent {
    int64_t offset;
    int32_t buffer;
};

static int compare_extents(const void *left, const void *right)
{
    const struct extent *a = left, *b = right;
    int by_offset = (a->offset > b->offset) - (a->offset < b->offset);
    return by_offset != 0 ? by_offset : (a->buffer > b->buffer) - (a->buffer < b->buffer);
}

bool problem_overlaps(const struct problem *problem, const int64_t *offsets)
{
    /* From low to high offsets: in each section, a buffer must begin at or above the end of the one
     * before. */
    struct extent *extents = malloc(((size_t)problem->count + 1) * sizeof *extents);
    int64_t *ends = calloc((size_t)problem->sections + 1, sizeof *ends);
    bool overlaps = extents == NULL || ends == NULL;
    for (int32_t i = 0; !overlaps && i < problem->count; i++) {
        extents[i] = (struct extent){offsets[i], i};
    }
    if (!overlaps) {
        qsort(extents, (size_t)problem->count, sizeof *extents, compare_extents);
    }
    for (int32_t i = 0; !overlaps && i < problem->count; i++) {
        const struct buffer *buffer = &problem->buffers[extents[i].buffer];
        overlaps = extents[i].offset < 0;
        for (int32_t section = buffer->first; buffer->size > 0 && section < buffer->until; section++) {
            overlaps = overlaps || ends[section] > extents[i].offset;
            ends[section] = extents[i].offset + buffer->size;
        }
    }
    free(extents);
    free(ends);
    return overlaps;
}

/* ------------------------------------------------------------------ orders */

enum { MAX_KEYS = 4 };

struct ranked {
    double keys[MAX_KEYS];
    int32_t buffer;
};

static int compare_ranked(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    for (int i = 0; i < MAX_KEYS; i++) {
        if (a->keys[i] != b->keys[i]) {
            return a->keys[i] > b->keys[i] ? -1 : 1;
        }
    }
    return (a->buffer > b->buffer) - (a->buffer < b->buffer);
}

static int64_t largest_total(const struct buffer *buffer, const int64_t *totals)
{
    int64_t largest = 0;
    for (int32_t section = buffer->first; section < buffer->until; section++) {
        largest = totals[section] > largest ? totals[section] : largest;
    }
    return largest;
}

bool problem_order(const struct problem *problem, const int64_t *totals, const char *letters, int32_t *order,
                   int32_t count)
{
    struct ranked *ranked = calloc((size_t)count + 1, sizeof *ranked);
    if (ranked == NULL) {
        return false;
    }
    for (int32_t i = 0; i < count; i++) {
        const struct buffer *buffer = &problem->buffers[order[i]];
        ranked[i].buffer = order[i];
        for (int at = 0; at < MAX_KEYS && letters[at] != '\0'; at++) {
            switch (letters[at]) {
            case 'T': ranked[i].keys[at] = (double)largest_total(buffer, totals); break;
            case 'W': ranked[i].keys[at] = (double)buffer->width; break;
            case 'Z': ranked[i].keys[at] = (double)buffer->size; break;
            case 'A': ranked[i].keys[at] = (double)buffer->width * (double)buffer->size; break;
            }
        }
    }
    qsort(ranked, (size_t)count, sizeof *ranked, compare_ranked);
    for (int32_t i = 0; i < count; i++) {
        order[i] = ranked[i].buffer;
    }
    free(ranked);
    return true;
}
