/* The module `compiled`: copies rows of contiguous CPU memory between sequences, padded batches and
 * packed batches. Documented in compiled.pyi. It imports neither NumPy nor PyTorch. A block of
 * memory is an object with the buffer protocol, or a tensor with PyTorch's methods.
 *
 * Everything is checked before a byte is moved. A block holds a reference to its object, and a
 * buffer stays exported, until the call returns. The address of a tensor is read in the same call:
 * a thread that disposes the tensor meanwhile waits until this thread has left the call. The GIL is
 * released while many bytes are moved. */
#include "../../scopes/src/shared/module.h"

#include <stdint.h>
#include <string.h>

/* From so many bytes on the GIL is released; so many steps of each sequence are moved at a time. */
enum { RELEASE_GIL_NBYTES = 64 << 10, TILE_STEPS = 32 };

/* The attributes and methods of a tensor that are used. The first four say whether its memory is
 * its value; IS_CPU is an attribute, the other three are methods. */
enum { IS_CPU, IS_CONTIGUOUS, IS_CONJ, IS_NEG, NBYTES, DATA_PTR, NAMES };
static const char *const texts_of_names[NAMES] = {"is_cpu", "is_contiguous", "is_conj", "is_neg", "nbytes", "data_ptr"};
static PyObject *names[NAMES];

/* The source or the target of a move: row `starts[i] + steps[t]` of its block is step t of sequence
 * i. Owns its buffers. */
struct side {
    /* The number of blocks: one for each sequence, or one for all. */
    Py_ssize_t count;
    Py_buffer *blocks;
    Py_buffer starts, steps;
    /* Whether the steps are 0, 1, 2, ... */
    bool is_contiguous;
};

/* Fill a zeroed buffer with the memory of an object, and a reference to it. False with an error
 * set; the buffer is to be released in both cases. */
static bool block_take(PyObject *object, Py_buffer *block, bool is_written)
{
    if (PyObject_CheckBuffer(object)) {
        return PyObject_GetBuffer(object, block, is_written ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0;
    }
    for (int i = IS_CPU; i <= IS_NEG; i++) {
        PyObject *answer =
            i == IS_CPU ? PyObject_GetAttr(object, names[i]) : PyObject_CallMethodNoArgs(object, names[i]);
        Py_XDECREF(answer);
        if (answer != (i <= IS_CONTIGUOUS ? Py_True : Py_False)) {
            if (answer != NULL) {
                PyErr_Format(PyExc_ValueError, "the value of this %s is not its memory: see %U",
                             Py_TYPE(object)->tp_name, names[i]);
            }
            return false;
        }
    }
    PyObject *nbytes = PyObject_GetAttr(object, names[NBYTES]), *address = NULL;
    Py_ssize_t size = nbytes == NULL ? -1 : PyLong_AsSsize_t(nbytes);
    if (size >= 0 && (address = PyObject_CallMethodNoArgs(object, names[DATA_PTR])) != NULL) {
        void *start = PyLong_AsVoidPtr(address);
        if (start == NULL && size > 0 && !PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a tensor has no memory");
        }
        if (!PyErr_Occurred()) {
            (void)PyBuffer_FillInfo(block, object, start, size, false, PyBUF_SIMPLE);
        }
    }
    Py_XDECREF(nbytes);
    Py_XDECREF(address);
    return !PyErr_Occurred();
}

static void side_drop(struct side *side)
{
    for (Py_ssize_t i = 0; i < side->count; i++) {
        PyBuffer_Release(&side->blocks[i]);
    }
    PyMem_Free(side->blocks);
    PyBuffer_Release(&side->starts);
    PyBuffer_Release(&side->steps);
}

/* Take the blocks of a side that has none yet. False with an error set; the side is to be dropped
 * in both cases. */
static bool side_take(PyObject *objects, struct side *side, bool is_written)
{
    Py_ssize_t count = PyTuple_GET_SIZE(objects);
    side->blocks = PyMem_Calloc((size_t)count, sizeof(Py_buffer));
    if (side->blocks == NULL) {
        PyErr_NoMemory();
        return false;
    }
    while (side->count < count) {
        side->count++;
        if (!block_take(PyTuple_GET_ITEM(objects, side->count - 1), &side->blocks[side->count - 1], is_written)) {
            return false;
        }
    }
    return true;
}

static const int64_t *numbers_in(const Py_buffer *buffer) { return buffer->buf; }

static Py_ssize_t count_in(const Py_buffer *buffer) { return buffer->len / (Py_ssize_t)sizeof(int64_t); }

static bool holds_numbers(const Py_buffer *buffer)
{
    return buffer->itemsize == sizeof(int64_t) && (uintptr_t)buffer->buf % sizeof(int64_t) == 0;
}

static const Py_buffer *block_of(const struct side *side, Py_ssize_t sequence)
{
    return &side->blocks[side->count == 1 ? 0 : sequence];
}

/* The address of the first row of a sequence; `row` is the bytes of a row. */
static char *start_of(const struct side *side, Py_ssize_t sequence, Py_ssize_t row)
{
    return (char *)block_of(side, sequence)->buf + numbers_in(&side->starts)[sequence] * row;
}

/* Whether every row of a side lies in its block. Sets `is_contiguous` of the side. */
static bool side_fits(struct side *side, const int64_t *lengths, Py_ssize_t batch, Py_ssize_t row)
{
    const int64_t *starts = numbers_in(&side->starts), *steps = numbers_in(&side->steps);
    Py_ssize_t longest = count_in(&side->steps);
    if ((side->count != 1 && side->count != batch) || !holds_numbers(&side->starts) || !holds_numbers(&side->steps) ||
        count_in(&side->starts) != batch) {
        return false;
    }
    side->is_contiguous = true;
    for (Py_ssize_t step = 0; step < longest; step++) {
        if (steps[step] < (step > 0 ? steps[step - 1] : 0)) {
            return false;
        }
        side->is_contiguous &= steps[step] == step;
    }
    for (Py_ssize_t i = 0; i < batch; i++) {
        Py_ssize_t rows = block_of(side, i)->len / row;
        if (lengths[i] != 0 && (lengths[i] < 0 || lengths[i] > longest || starts[i] < 0 || starts[i] > rows ||
                                steps[lengths[i] - 1] >= rows - starts[i])) {
            return false;
        }
    }
    return true;
}

static inline void copy_row(char *target, const char *source, Py_ssize_t row)
{
    /* A memcpy() of a constant size is compiled to an instruction without a call. */
    switch (row) {
    case 1: *target = *source; break;
    case 2: memcpy(target, source, 2); break;
    case 4: memcpy(target, source, 4); break;
    case 8: memcpy(target, source, 8); break;
    case 16: memcpy(target, source, 16); break;
    case 32: memcpy(target, source, 32); break;
    default: memcpy(target, source, (size_t)row);
    }
}

/* Copy the rows. TILE_STEPS steps of all sequences are copied at a time, so that neighbouring rows
 * stay in the CPU's caches, whether steps or sequences are neighbours in memory. */
static void move(const struct side *target, const struct side *source, const int64_t *lengths, Py_ssize_t batch,
                 Py_ssize_t row)
{
    const int64_t *target_steps = numbers_in(&target->steps), *source_steps = numbers_in(&source->steps);
    bool is_contiguous = target->is_contiguous && source->is_contiguous;
    int64_t longest = 0;
    for (Py_ssize_t i = 0; i < batch; i++) {
        longest = lengths[i] > longest ? lengths[i] : longest;
        if (is_contiguous && lengths[i] > 0) {
            memcpy(start_of(target, i, row), start_of(source, i, row), (size_t)(lengths[i] * row));
        }
    }
    for (int64_t from = 0; from < longest && !is_contiguous; from += TILE_STEPS) {
        for (Py_ssize_t i = 0; i < batch; i++) {
            if (lengths[i] <= from) {
                continue;
            }
            char *target_start = start_of(target, i, row);
            const char *source_start = start_of(source, i, row);
            int64_t end = lengths[i] < from + TILE_STEPS ? lengths[i] : from + TILE_STEPS;
            for (int64_t step = from; step < end; step++) {
                copy_row(target_start + target_steps[step] * row, source_start + source_steps[step] * row, row);
            }
        }
    }
}

static PyObject *move_rows(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *targets, *sources;
    struct side target = {0}, source = {0};
    Py_buffer lengths;
    Py_ssize_t row, total = 0;
    if (!PyArg_ParseTuple(arguments, "(O!y*y*)(O!y*y*)y*n:move_rows", &PyTuple_Type, &targets, &target.starts,
                          &target.steps, &PyTuple_Type, &sources, &source.starts, &source.steps, &lengths, &row)) {
        return NULL;
    }
    if (side_take(targets, &target, true) && side_take(sources, &source, false)) {
        const int64_t *counts = numbers_in(&lengths);
        Py_ssize_t batch = count_in(&lengths);
        if (row <= 0 || !holds_numbers(&lengths) || !side_fits(&target, counts, batch, row) ||
            !side_fits(&source, counts, batch, row)) {
            PyErr_SetString(PyExc_ValueError, "the memory is not that of sequences of these lengths");
        }
        else {
            for (Py_ssize_t i = 0; i < batch && total < RELEASE_GIL_NBYTES; i++) {
                total += counts[i] * row;
            }
            PyThreadState *thread = total >= RELEASE_GIL_NBYTES ? PyEval_SaveThread() : NULL;
            move(&target, &source, counts, batch, row);
            if (thread != NULL) {
                PyEval_RestoreThread(thread);
            }
        }
    }
    side_drop(&target);
    side_drop(&source);
    PyBuffer_Release(&lengths);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"move_rows", move_rows, METH_VARARGS, NULL},
    {0},
};

static int fill_module(PyObject *module)
{
    (void)module;
    for (int i = 0; i < NAMES; i++) {
        if (names[i] == NULL && (names[i] = PyUnicode_InternFromString(texts_of_names[i])) == NULL) {
            return -1;
        }
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)fill_module},
    MAIN_INTERPRETER_ONLY
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
