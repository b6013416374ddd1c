/* Plans that are made in one go. */
#include "planner.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ one buffer after the other */

/* What is placed in the bytes from `offset` up to `end`, and lives in the sections from `first` up
 * to `until`. */
struct placed {
    int64_t offset, end;
    int32_t first, until;
};

/* What is placed and lives in some sections that follow each other: from low to high, then what was
 * added since it was last put in order. The room for it is a power of two. */
struct window {
    struct placed *all;
    int32_t count, ordered;
};

/* At each level time falls into steps of 2**level sections. Window n has the steps n - 1 and n: a
 * life that begins in step n and is no longer than a step lies within window n + 1. */
enum { LEVELS = 32 };

/* The level at which a buffer finds its place: a step there is not shorter than its life, nor than
 * the mean of all lives, so that a level needs about four entries for each buffer at most. */
static int level_of(const struct buffer *buffer, int64_t mean)
{
    int level = 0;
    while ((int64_t)1 << level < mean || (int64_t)1 << level < buffer->until - buffer->first) {
        level++;
    }
    return level;
}

/* False where there is no memory. */
static bool add(struct window *window, struct placed placed)
{
    int32_t count = window->count;
    if ((count & (count - 1)) == 0) {
        struct placed *all = realloc(window->all, (count > 0 ? 2 * (size_t)count : 1) * sizeof *all);
        if (all == NULL) {
            return false;
        }
        window->all = all;
    }
    window->all[window->count++] = placed;
    return true;
}

static int compare_placed(const void *left, const void *right)
{
    const struct placed *a = left, *b = right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* `added` has room for what was added. */
static void put_in_order(struct window *window, struct placed *added)
{
    int32_t below = window->ordered, count = window->count - below;
    for (int32_t i = 0; i < count; i++) {
        added[i] = window->all[below + i];
    }
    qsort(added, (size_t)count, sizeof *added, compare_placed);
    while (count > 0) {
        bool moves_up = below > 0 && window->all[below - 1].offset > added[count - 1].offset;
        struct placed next = moves_up ? window->all[--below] : added[--count];
        window->all[below + count] = next;
    }
    window->ordered = window->count;
}

static int64_t lowest_in(const struct window *window, const struct buffer *buffer)
{
    int64_t lowest = 0;
    for (int32_t i = 0; i < window->count; i++) {
        const struct placed *other = &window->all[i];
        if (other->first < buffer->until && buffer->first < other->until) {
            if (other->offset - lowest >= buffer->size) {
                break;
            }
            lowest = other->end > lowest ? other->end : lowest;
        }
    }
    return lowest;
}

/* Whether a clock says to stop, which is asked at one in so many steps; NULL for no clock. */
static bool is_time_to_stop(struct clock *clock, int64_t *step)
{
    enum { STEPS_BETWEEN = 256 };
    return clock != NULL && ++*step % STEPS_BETWEEN == 0 && is_over(clock);
}

enum outcome place_by_order(const struct problem *problem, const int32_t *order, int64_t *offsets,
                            struct clock *clock)
{
    int64_t step = 0;
    bool is_stopped = false;
    struct window *levels[LEVELS] = {NULL};
    struct placed *added = malloc(((size_t)problem->count + 1) * sizeof *added);
    bool has_memory = added != NULL;
    int64_t mean = 0;
    for (int32_t i = 0; i < problem->count; i++) {
        mean += problem->buffers[i].until - problem->buffers[i].first;
    }
    mean = problem->count > 0 ? mean / problem->count : 0;
    for (int32_t i = 0; has_memory && i < problem->count; i++) {
        int level = level_of(&problem->buffers[i], mean);
        size_t windows = (size_t)(problem->sections >> level) + 2;
        levels[level] = levels[level] != NULL ? levels[level] : calloc(windows, sizeof *levels[level]);
        has_memory = levels[level] != NULL;
    }
    for (int32_t number = 0; has_memory && number < problem->count; number++) {
        if ((is_stopped = is_time_to_stop(clock, &step))) {
            break;
        }
        const struct buffer *buffer = &problem->buffers[order[number]];
        int level = level_of(buffer, mean);
        struct window *window = &levels[level][(buffer->first >> level) + 1];
        put_in_order(window, added);
        int64_t lowest = lowest_in(window, buffer);
        offsets[order[number]] = lowest;
        struct placed placed = {lowest, lowest + buffer->size, buffer->first, buffer->until};
        for (level = 0; level < LEVELS; level++) {
            int32_t last = levels[level] != NULL ? ((buffer->until - 1) >> level) + 1 : -1;
            for (int32_t at = buffer->first >> level; has_memory && at <= last; at++) {
                has_memory = add(&levels[level][at], placed);
            }
        }
    }
    for (int level = 0; level < LEVELS; level++) {
        for (int32_t at = 0; levels[level] != NULL && at < (problem->sections >> level) + 2; at++) {
            free(levels[level][at].all);
        }
        free(levels[level]);
    }
    free(added);
    return !has_memory ? NO_MEMORY : is_stopped ? STOPPED : DONE;
}

/* ------------------------------------------------------------------ the lowest first */

/* A buffer that is not placed yet, with an offset that was once the lowest that it could have. */
struct waiting {
    int64_t offset;
    int32_t rank, buffer;
};

static bool is_before(struct waiting left, struct waiting right)
{
    return left.offset != right.offset ? left.offset < right.offset : left.rank < right.rank;
}

/* Replace the first of a heap. */
static void replace_first(struct waiting *heap, int32_t count, struct waiting waiting)
{
    int32_t at = 0;
    for (int32_t child = 1; child < count; child = 2 * at + 1) {
        child += child + 1 < count && is_before(heap[child + 1], heap[child]);
        if (!is_before(heap[child], waiting)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = waiting;
}

enum outcome place_lowest(const struct problem *problem, const int32_t *order, int64_t *offsets,
                          struct clock *clock)
{
    int64_t step = 0;
    /* How high each section is filled, and the highest of each block of so many. */
    enum { BLOCK = 16 };
    int64_t *tops = calloc((size_t)problem->sections + 1, sizeof *tops);
    int64_t *highest = calloc((size_t)problem->sections / BLOCK + 1, sizeof *highest);
    struct waiting *heap = malloc(((size_t)problem->count + 1) * sizeof *heap);
    bool has_memory = heap != NULL && tops != NULL && highest != NULL;
    int32_t count = problem->count;
    for (int32_t rank = 0; has_memory && rank < count; rank++) {
        heap[rank] = (struct waiting){0, rank, order[rank]};
    }
    while (has_memory && count > 0 && !is_time_to_stop(clock, &step)) {
        struct waiting next = heap[0];
        const struct buffer *buffer = &problem->buffers[next.buffer];
        int64_t lowest = 0;
        for (int32_t section = buffer->first; section < buffer->until;) {
            bool is_block = section % BLOCK == 0 && buffer->until - section >= BLOCK;
            int64_t top = is_block ? highest[section / BLOCK] : tops[section];
            lowest = top > lowest ? top : lowest;
            section += is_block ? BLOCK : 1;
        }
        if (lowest > next.offset) {
            next.offset = lowest;
            replace_first(heap, count, next);
            continue;
        }
        offsets[next.buffer] = lowest;
        for (int32_t section = buffer->first; section < buffer->until; section++) {
            int64_t *block = &highest[section / BLOCK];
            tops[section] = lowest + buffer->size;
            *block = tops[section] > *block ? tops[section] : *block;
        }
        count--;
        replace_first(heap, count, heap[count]);
    }
    free(heap);
    free(tops);
    free(highest);
    return !has_memory ? NO_MEMORY : count > 0 ? STOPPED : DONE;
}
