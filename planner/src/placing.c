/* Plans that are made in one go. */
#include "planner.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ one buffer after the other */

/* When something that is placed lives: in the sections from `first` up to `until`. */
struct life {
    int32_t first, until;
};

/* Where it lies, in bytes. */
struct extent {
    int64_t offset, end;
};

enum outcome place_by_order(const struct problem *problem, const int32_t *order, int64_t *offsets)
{
    /* What is placed, from low to high. */
    struct life *lives = malloc(((size_t)problem->count + 1) * sizeof *lives);
    struct extent *extents = malloc(((size_t)problem->count + 1) * sizeof *extents);
    bool has_memory = lives != NULL && extents != NULL;
    for (int32_t number = 0; has_memory && number < problem->count; number++) {
        const struct buffer *buffer = &problem->buffers[order[number]];
        int64_t lowest = 0;
        int32_t at = number;
        for (int32_t i = 0; i < number; i++) {
            if (lives[i].first < buffer->until && buffer->first < lives[i].until) {
                if (extents[i].offset - lowest >= buffer->size) {
                    at = i;
                    break;
                }
                lowest = extents[i].end > lowest ? extents[i].end : lowest;
            }
        }
        offsets[order[number]] = lowest;
        while (at > 0 && extents[at - 1].offset > lowest) {
            at--;
        }
        memmove(&lives[at + 1], &lives[at], (size_t)(number - at) * sizeof *lives);
        memmove(&extents[at + 1], &extents[at], (size_t)(number - at) * sizeof *extents);
        lives[at] = (struct life){buffer->first, buffer->until};
        extents[at] = (struct extent){lowest, lowest + buffer->size};
    }
    free(lives);
    free(extents);
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
