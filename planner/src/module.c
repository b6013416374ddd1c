/* The module `compiled`: plans of memory, as compiled.pyi describes them. It has no state. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "planner.h"

#include <stdlib.h>
#include <string.h>

/* With more buffers there is no search: it recurses once for each buffer, on the thread's stack. */
enum { MAX_SEARCHED_BUFFERS = 1024 };
/* How often Python handles its signals while a plan is made, in seconds. */
#define SIGNALS_EVERY_S 0.05

/* A clock that lets Python handle its signals now and then, without the GIL in between. */
struct python_clock {
    struct clock clock;
    double signals_at_s;   /* when signals are handled next */
    PyThreadState *thread; /* saved by PyEval_SaveThread() */
};

static bool is_interrupted(struct clock *given)
{
    struct python_clock *clock = (struct python_clock *)given;
    double now = now_s();
    if (now < clock->signals_at_s) {
        return false;
    }
    clock->signals_at_s = now + SIGNALS_EVERY_S;
    PyEval_RestoreThread(clock->thread);
    bool interrupted = PyErr_CheckSignals() < 0;
    clock->thread = PyEval_SaveThread();
    return interrupted;
}

/* Copies the plan `offsets` to `best` if it was found and is lower. Returns `outcome`. */
static enum outcome keep_lower(const struct problem *problem, int64_t *best, int64_t *offsets, enum outcome outcome)
{
    if (outcome == DONE && problem_height(problem, offsets) < problem_height(problem, best)) {
        memcpy(best, offsets, (size_t)problem->count * sizeof *best);
    }
    return outcome;
}

/* For so long the second greedy plan may go on where the time is over: mostly it is much lower. */
#define PATIENCE_S 0.5

/* Makes a plan without the GIL: the greedy plan by size always, others while there is time. */
static enum outcome make_plan(struct problem *problem, int64_t *best, struct clock *clock)
{
    typedef enum outcome (*placing)(const struct problem *, const int32_t *, int64_t *, struct clock *);
    /* Further greedy plans: how the buffers are placed, and in which order. See `problem_order`. */
    static const struct {
        placing place;
        const char *letters;
    } further[] = {
        {place_lowest, "TWA"}, {place_lowest, "TA"},   {place_lowest, "WA"},
        {place_by_order, "A"}, {place_by_order, "W"},
    };
    size_t count = (size_t)problem->count;
    int32_t *order = malloc((count + 1) * sizeof *order);
    int64_t *offsets = malloc((count + 1) * sizeof *offsets);
    enum outcome outcome = order == NULL || offsets == NULL ? NO_MEMORY : DONE;
    for (int32_t i = 0; outcome == DONE && i < problem->count; i++) {
        order[i] = i;
    }
    if (outcome == DONE) {
        outcome = problem_order(problem, problem->totals, "Z", order, problem->count)
                      ? place_by_order(problem, order, best, NULL)
                      : NO_MEMORY;
    }
    for (size_t i = 0; outcome == DONE && i < sizeof further / sizeof further[0]; i++) {
        if ((i > 0 && is_over(clock)) || problem_height(problem, best) <= problem->bound) {
            break;
        }
        double end_s = clock->end_s, patient_end_s = now_s() + PATIENCE_S;
        if (i == 0 && end_s < patient_end_s) {
            clock->end_s = patient_end_s;
        }
        outcome = problem_order(problem, problem->totals, further[i].letters, order, problem->count)
                      ? further[i].place(problem, order, offsets, clock)
                      : NO_MEMORY;
        clock->end_s = end_s;
        outcome = keep_lower(problem, best, offsets, outcome);
    }
    free(order);
    free(offsets);
    if (outcome == DONE && problem->count <= MAX_SEARCHED_BUFFERS && !is_over(clock)) {
        outcome = search_lower(problem, best, clock);
    }
    return outcome == STOPPED || outcome == NONE ? DONE : outcome;
}

static bool is_column(const Py_buffer *column, Py_ssize_t count)
{
    return column->len == count * (Py_ssize_t)sizeof(int64_t) && column->itemsize == sizeof(int64_t);
}

static PyObject *plan(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer lower, upper, sizes, offsets;
    double seconds;
    if (!PyArg_ParseTuple(arguments, "y*y*y*w*d:plan", &lower, &upper, &sizes, &offsets, &seconds)) {
        return NULL;
    }
    Py_ssize_t count = lower.len / (Py_ssize_t)sizeof(int64_t);
    PyObject *result = NULL;
    if (count > INT32_MAX / 4 || !is_column(&lower, count) || !is_column(&upper, count) || !is_column(&sizes, count) ||
        !is_column(&offsets, count)) {
        PyErr_SetString(PyExc_ValueError, "internal error: plan() takes columns of as many 64-bit integers each");
    }
    else {
        double now = now_s();
        struct python_clock clock = {
            .clock = {.end_s = now + seconds, .is_interrupted = is_interrupted},
            .signals_at_s = now + SIGNALS_EVERY_S,
            .thread = PyEval_SaveThread(),
        };
        struct problem problem;
        enum outcome outcome =
            problem_make(&problem, lower.buf, upper.buf, sizes.buf, (int32_t)count) ? DONE : NO_MEMORY;
        outcome = outcome == DONE ? make_plan(&problem, offsets.buf, &clock.clock) : outcome;
        bool overlaps = outcome == DONE && problem_overlaps(&problem, offsets.buf);
        long long height = outcome == DONE ? problem_height(&problem, offsets.buf) : 0, bound = problem.bound;
        problem_clear(&problem);
        PyEval_RestoreThread(clock.thread);
        if (clock.clock.interrupted) {
            /* The signal handler has raised an exception. */
        }
        else if (outcome == NO_MEMORY) {
            PyErr_NoMemory();
        }
        else if (overlaps) {
            PyErr_SetString(PyExc_RuntimeError, "internal error: two buffers of the plan overlap");
        }
        else {
            result = Py_BuildValue("LL", height, bound);
        }
    }
    PyBuffer_Release(&lower);
    PyBuffer_Release(&upper);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&offsets);
    return result;
}

static PyMethodDef functions[] = {
    {"plan", plan, METH_VARARGS, NULL},
    {0},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
