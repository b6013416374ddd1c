/* Plans of memory: the offsets in one slab of buffers with known lives, such that buffers that live
 * at the same time do not overlap.
 *
 * Read problem.c first, then placing.c (greedy plans), search.c (lower plans, by search), and
 * module.c. Only module.c knows Python. Functions that may take long ask a `struct clock` whether
 * to go on. */
#ifndef DISPOSESCOPE_PLANNER_H
#define DISPOSESCOPE_PLANNER_H

#include <stdbool.h>
#include <stdint.h>

/* A buffer. It lives in the sections from `first` to `until`, the latter excluded. */
struct buffer {
    int64_t size;   /* bytes */
    uint64_t width; /* the length of its life, in the caller's unit of time */
    int32_t first, until;
};

/* Time is cut wherever a life begins or ends. A section is the time between two neighbouring cuts.
 * Owns its arrays. */
struct problem {
    struct buffer *buffers;
    int32_t count, sections;
    int64_t *totals; /* by section: the sum of the sizes of the buffers that live in it */
    int64_t bound;   /* no plan is lower than this: the largest of `totals`, or more after a search */
};

/* Says whether to go on. */
struct clock {
    double end_s;                                /* when to stop, on the clock of `now_s` */
    bool (*is_interrupted)(struct clock *clock); /* called by every `is_over` */
    bool interrupted;                            /* whether it has ever returned true */
};

/* DONE: a plan was found. NONE: there is no such plan. STOPPED: neither, when time or steps were
 * over. */
enum outcome { DONE, NONE, STOPPED, NO_MEMORY };

double now_s(void);
/* Whether the time is over or the clock was interrupted. */
bool is_over(struct clock *clock);

/* ------------------------------------------------------------------ problem.c */

/* Make a problem of `count` buffers with lives from `lower` to `upper`, the latter excluded. To be
 * cleared by the caller. False without memory. */
bool problem_make(struct problem *problem, const int64_t *lower, const int64_t *upper, const int64_t *sizes,
                  int32_t count);
void problem_clear(struct problem *problem);
/* The height of a plan: the largest offset plus size. */
int64_t problem_height(const struct problem *problem, const int64_t *offsets);
/* Whether two buffers that live at the same time overlap in a plan, or an offset is negative. True
 * also without memory to find out. */
bool problem_overlaps(const struct problem *problem, const int64_t *offsets);
/* Sort the `count` buffers in `order`, the largest first, by up to 4 keys. Each letter of `letters`
 * is a key: T is the largest of `totals` in the buffer's sections, W its width, Z its size, A its
 * width times its size. False without memory. */
bool problem_order(const struct problem *problem, const int64_t *totals, const char *letters, int32_t *order,
                   int32_t count);

/* ------------------------------------------------------------------ placing.c */

/* Both are STOPPED where a clock says so; NULL for none. */

/* Place the buffers in an order, each at the lowest offset where it fits. */
enum outcome place_by_order(const struct problem *problem, const int32_t *order, int64_t *offsets,
                            struct clock *clock);
/* Place, at each step, the buffer that can lie lowest on top of those placed before; of several,
 * the first of the order. */
enum outcome place_lowest(const struct problem *problem, const int32_t *order, int64_t *offsets,
                          struct clock *clock);

/* ------------------------------------------------------------------ search.c */

/* Search for plans that are lower than the one in `offsets`, until the time is over or no plan can
 * be lower. In the latter case `bound` of the problem is set to the height. `offsets` always has
 * the lowest plan so far. */
enum outcome search_lower(struct problem *problem, int64_t *offsets, struct clock *clock);

#endif
