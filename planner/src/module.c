/* The module `compiled`: plans of memory, as compiled.pyi describes them. It has no state. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "planner.h"

#include <stdlib.h>
#include <string.h>

/* More are not searched: a search goes as deep as there are buffers, on the stack of the thread. */
enum { SEARCHED_AT_MOST = 1024 };
#define ASKS_EVERY_S 0.05

/* A clock that lets other threads run, and Python handle its signals now and then. */
struct python_clock {
    struct clock clock;
    double asks_at_s;
    PyThreadState *thread;
};

static bool is_interrupted(struct clock *given)
{
    struct python_clock *clock = (struct python_clock *)given;
    double now = now_s();
    if (now < clock->asks_at_s) {
        return false;
    }
    clock->asks_at_s = now + ASKS_EVERY_S;
    PyEval_RestoreThread(clock->thread);
    bool interrupted = PyErr_CheckSignals() < 0;
    clock->thread = PyEval_SaveThread();
    return interrupted;
}

static enum outcome lower_of_two(const struct problem *problem, int64_t *best, int64_t *offsets, enum outcome outcome)
{
    if (outcome == DONE && problem_height(problem, offsets) < problem_height(problem, best)) {
        memcpy(best, offsets, (size_t)problem->count * sizeof *best);
    }
    return outcome;
}

/* Plan, without Python: the greedy plan by size always, others while there is time. */
static enum outcome make_plan(struct problem *problem, int64_t *best, struct clock *clock)
{
    static const char *const lowest_first[] = {"TWA", "TA", "WA"};
    static const char *const one_by_one[] = {"A", "W"};
    size_t count = (size_t)problem->count;
    int32_t *order = malloc((count + 1) * sizeof *order);
    int64_t *offsets = malloc((count + 1) * sizeof *offsets);
    enum outcome outcome = order == NULL || offsets == NULL ? NO_MEMORY : DONE;
    for (int32_t i = 0; outcome == DONE && i < problem->count; i++) {
        order[i] = i;
    }
    if (outcome == DONE) {
        outcome = problem_order(problem, problem->totals, "Z", order, problem->count)
                      ? place_by_order(problem, order, best)
                      : NO_MEMORY;
    }
    for (int i = 0; outcome == DONE && i < 5; i++) {
        if ((i > 0 && is_over(clock)) || problem_height(problem, best) <= problem->bound) {
            break;
        }
        const char *letters = i < 3 ? lowest_first[i] : one_by_one[i - 3];
        outcome = !problem_order(problem, problem->totals, letters, order, problem->count) ? NO_MEMORY
                  : i < 3 ? place_lowest(problem, order, offsets)
                          : place_by_order(problem, order, offsets);
        outcome = lower_of_two(problem, best, offsets, outcome);
    }
    free(order);
    free(offsets);
    if (outcome == DONE && problem->count <= SEARCHED_AT_MOST && !is_over(clock)) {
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
            .asks_at_s = now + ASKS_EVERY_S,
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
            /* With the exception of the handler. */
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
