/* Plans of memory: where in one slab buffers with known lives lie, so that those that live at the
 * same time do not overlap.
 *
 * Read problem.c first, then placing.c (plans that are made in one go), search.c (better ones, by
 * search), and module.c. Nothing here knows Python but module.c; what takes long asks a `struct
 * clock` whether to go on. */
#ifndef DISPOSESCOPE_PLANNER_H
#define DISPOSESCOPE_PLANNER_H

#include <stdbool.h>
#include <stdint.h>

/* A buffer: it lives in the sections from `first` up to `until`, which is outside. */
struct buffer {
    int64_t size;
    uint64_t width; /* of its life, in the units of the caller */
    int32_t first, until;
};

/* The time is cut where a life begins or ends; a section is what lies between two cuts that follow
 * each other. */
struct problem {
    struct buffer *buffers;
    int32_t count, sections;
    int64_t *totals; /* of each section: the bytes that live in it */
    int64_t bound;   /* the largest of these: no plan is lower */
};

/* What says whether to go on. */
struct clock {
    double end_s;                         /* on the clock of `now_s` */
    bool (*is_interrupted)(struct clock *clock); /* asked now and then */
    bool interrupted;
};

enum outcome { DONE, NONE, STOPPED, NO_MEMORY };

double now_s(void);
/* Whether the time is over, or somebody has interrupted. */
bool is_over(struct clock *clock);

/* ------------------------------------------------------------------ problem.c */

/* Make a problem of lives from `lower` up to `upper`, which is outside. False where there is no
 * memory. */
bool problem_make(struct problem *problem, const int64_t *lower, const int64_t *upper, const int64_t *sizes,
                  int32_t count);
void problem_clear(struct problem *problem);
/* How high a plan is. */
int64_t problem_height(const struct problem *problem, const int64_t *offsets);
/* Whether two buffers that live at the same time overlap in a plan, or one lies below 0; also where
 * there is no memory to look. */
bool problem_overlaps(const struct problem *problem, const int64_t *offsets);
/* Order buffers by the letters of a text, each from large to small: T for the largest total of
 * their sections by `totals`, W for the width of their lives, Z for their size, A for width times
 * size. */
bool problem_order(const struct problem *problem, const int64_t *totals, const char *letters, int32_t *order,
                   int32_t count);

/* ------------------------------------------------------------------ placing.c */

/* Put the buffers of an order, one after the other, at the lowest place where each fits. */
enum outcome place_by_order(const struct problem *problem, const int32_t *order, int64_t *offsets);
/* Put at each step the buffer that can lie lowest on those that lie there, and of several the first
 * of the order. */
enum outcome place_lowest(const struct problem *problem, const int32_t *order, int64_t *offsets);

/* ------------------------------------------------------------------ search.c */

/* Search for plans that are lower than the one in `offsets`, until the time is over or none can be
 * lower: then `bound` of the problem is the height. `offsets` always has the lowest plan so far. */
enum outcome search_lower(struct problem *problem, int64_t *offsets, struct clock *clock);

#endif
