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

enum outcome place_by_order(const struct problem *problem, const int32_t *order, int64_t *offsets)
{
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
    return has_memory ? DONE : NO_MEMORY;
}

/* ------------------------------------------------------------------ the lowest first */

/* A buffer that is not placed yet, with an offset that was once the lowest that it could have. */
struct waiting {
    int64_t offset;
    int32_t rank, buffer;
};

struct heap {
    struct waiting *all;
    int32_t count;
};

static bool is_before(struct waiting left, struct waiting right)
{
    return left.offset != right.offset ? left.offset < right.offset : left.rank < right.rank;
}

static void push(struct heap *heap, struct waiting waiting)
{
    int32_t at = heap->count++;
    while (at > 0 && is_before(waiting, heap->all[(at - 1) / 2])) {
        heap->all[at] = heap->all[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->all[at] = waiting;
}

static struct waiting pop(struct heap *heap)
{
    struct waiting first = heap->all[0], last = heap->all[--heap->count];
    int32_t at = 0;
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child + 1 < heap->count && is_before(heap->all[child + 1], heap->all[child])) {
            child++;
        }
        if (child >= heap->count || !is_before(heap->all[child], last)) {
            break;
        }
        heap->all[at] = heap->all[child];
        at = child;
    }
    heap->all[at] = last;
    return first;
}

enum outcome place_lowest(const struct problem *problem, const int32_t *order, int64_t *offsets)
{
    struct heap heap = {.all = malloc(((size_t)problem->count + 1) * sizeof *heap.all)};
    int64_t *tops = calloc((size_t)problem->sections + 1, sizeof *tops);
    bool has_memory = heap.all != NULL && tops != NULL;
    for (int32_t rank = 0; has_memory && rank < problem->count; rank++) {
        push(&heap, (struct waiting){0, rank, order[rank]});
    }
    while (has_memory && heap.count > 0) {
        struct waiting next = pop(&heap);
        const struct buffer *buffer = &problem->buffers[next.buffer];
        int64_t lowest = 0;
        for (int32_t section = buffer->first; section < buffer->until; section++) {
            lowest = tops[section] > lowest ? tops[section] : lowest;
        }
        if (lowest > next.offset) {
            next.offset = lowest;
            push(&heap, next);
            continue;
        }
        offsets[next.buffer] = lowest;
        for (int32_t section = buffer->first; section < buffer->until; section++) {
            tops[section] = lowest + buffer->size;
        }
    }
    free(heap.all);
    free(tops);
    return has_memory ? DONE : NO_MEMORY;
}
