/* The module `compiled`: moves rows of contiguous CPU memory between sequences, padded batches and packed batches. Documented in
 * compiled.pyi. It knows neither NumPy nor PyTorch: memory is what the buffer protocol gives, or what an object with
 * PyTorch's `data_ptr()` says of itself.
 *
 * All is checked before a byte is moved. A block holds a reference to its object until the call is over, and a buffer stays
 * exported. A tensor is asked for its address in the call that uses it: a thread that disposes of the tensor meanwhile waits until
 * this thread has left the call. The GIL is released while much is moved. */
#include "../../scopes/src/module.h"

#include <stdint.h>
#include <string.h>

enum layout { SEQUENCES, PACKED, TIME_FIRST, BATCH_FIRST, LEFT = 4 };
enum { RELEASES_GIL_FROM = 64 << 10, TILE = 32 };

/* What a tensor is asked: whether its memory is its value, by an attribute and three methods, then how much memory and where. */
static const char *const asked[] = {"is_cpu", "is_contiguous", "is_conj", "is_neg", "nbytes", "data_ptr"};
enum { IS_CPU, IS_CONTIGUOUS, IS_CONJ, IS_NEG, NBYTES, DATA_PTR, ASKED };
static PyObject *names[ASKED];

/* Memory of one object. Owns a reference to the object, or the exported buffer. */
struct block {
    char *start;
    Py_ssize_t nbytes;
    PyObject *object;
    Py_buffer buffer;
};

/* The memory of one side of a move. Owns its blocks and `rows`. */
struct side {
    int layout;
    bool is_left;
    Py_ssize_t count;
    struct block *blocks;
    /* The steps of a padded batch. */
    Py_ssize_t time;
    /* From a row of a sequence to the next, in bytes; not of a packed batch. */
    Py_ssize_t step;
    /* Where the first row of each sequence is, by rank. */
    char **rows;
};

static void block_drop(struct block *block)
{
    if (block->buffer.obj != NULL) {
        PyBuffer_Release(&block->buffer);
    }
    Py_CLEAR(block->object);
}

/* Fill a zeroed block. False with an error set; the block can be dropped in both cases. */
static bool block_take(PyObject *object, struct block *block, bool is_written)
{
    if (PyObject_CheckBuffer(object)) {
        if (PyObject_GetBuffer(object, &block->buffer, is_written ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) {
            return false;
        }
        block->start = block->buffer.buf;
        block->nbytes = block->buffer.len;
        return true;
    }
    block->object = Py_NewRef(object);
    for (int i = IS_CPU; i <= IS_NEG; i++) {
        PyObject *answer = i == IS_CPU ? PyObject_GetAttr(object, names[i]) : PyObject_CallMethodNoArgs(object, names[i]);
        Py_XDECREF(answer);
        if (answer != (i <= IS_CONTIGUOUS ? Py_True : Py_False)) {
            if (answer != NULL) {
                PyErr_Format(PyExc_ValueError, "the value of this %s is not its memory: see %U", Py_TYPE(object)->tp_name, names[i]);
            }
            return false;
        }
    }
    PyObject *nbytes = PyObject_GetAttr(object, names[NBYTES]), *address = NULL;
    if (nbytes != NULL && (block->nbytes = PyLong_AsSsize_t(nbytes)) >= 0 &&
        (address = PyObject_CallMethodNoArgs(object, names[DATA_PTR])) != NULL &&
        (block->start = PyLong_AsVoidPtr(address)) == NULL && block->nbytes > 0 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "a tensor has no memory");
    }
    Py_XDECREF(nbytes);
    Py_XDECREF(address);
    return !PyErr_Occurred();
}

/* As `block_take`, of numbers of 64 bits. */
static bool numbers_take(PyObject *object, struct block *block, bool is_written)
{
    if (!block_take(object, block, is_written)) {
        return false;
    }
    if (block->nbytes % (Py_ssize_t)sizeof(int64_t) != 0 || (uintptr_t)block->start % sizeof(int64_t) != 0) {
        PyErr_SetString(PyExc_ValueError, "lengths and indices must be aligned numbers of 64 bits");
        return false;
    }
    return true;
}

static void side_drop(struct side *side)
{
    for (Py_ssize_t i = 0; i < side->count; i++) {
        block_drop(&side->blocks[i]);
    }
    PyMem_Free(side->blocks);
    PyMem_Free(side->rows);
}

/* Fill a zeroed side, and check that its memory is that of all rows. False with an error set; it can be dropped in both cases. */
static bool side_take(PyObject *objects, int layout, struct side *side, bool is_written, const int64_t *lengths, const int64_t *order,
                      Py_ssize_t batch, Py_ssize_t row)
{
    side->layout = layout & ~LEFT;
    side->is_left = layout & LEFT;
    if (side->layout < SEQUENCES || side->layout > BATCH_FIRST || (side->is_left && side->layout < TIME_FIRST) ||
        PyTuple_GET_SIZE(objects) != (side->layout == SEQUENCES ? batch : 1)) {
        PyErr_SetString(PyExc_ValueError, "there is no such layout, or not of so many blocks");
        return false;
    }
    side->blocks = PyMem_Calloc((size_t)PyTuple_GET_SIZE(objects), sizeof(struct block));
    side->rows = PyMem_Calloc((size_t)batch, sizeof(char *));
    if (side->blocks == NULL || side->rows == NULL) {
        PyErr_NoMemory();
        return false;
    }
    while (side->count < PyTuple_GET_SIZE(objects)) {
        side->count++;
        if (!block_take(PyTuple_GET_ITEM(objects, side->count - 1), &side->blocks[side->count - 1], is_written)) {
            return false;
        }
    }
    const struct block *whole = side->blocks;
    side->time = whole->nbytes / row / batch;
    side->step = side->layout == TIME_FIRST ? batch * row : row;
    /* The rows of a packed batch that are left. */
    Py_ssize_t rows = whole->nbytes / row;
    bool fits = side->layout < TIME_FIRST || side->time * batch * row == whole->nbytes;
    for (Py_ssize_t rank = 0; fits && rank < batch; rank++) {
        Py_ssize_t length = (Py_ssize_t)lengths[rank], place = (Py_ssize_t)order[rank];
        if (side->layout == SEQUENCES) {
            fits = length == side->blocks[place].nbytes / row && side->blocks[place].nbytes % row == 0;
            side->rows[rank] = side->blocks[place].start;
        } else if (side->layout == PACKED) {
            fits = length <= rows && (rank == 0 || length <= lengths[rank - 1]);
            rows -= length;
            side->rows[rank] = whole->start + (length > 0 ? rank * row : 0);
        } else {
            fits = length <= side->time;
            side->rows[rank] = whole->start + place * (side->layout == TIME_FIRST ? row : side->time * row) +
                               (side->is_left && fits ? (side->time - length) * side->step : 0);
        }
    }
    if (!fits || (side->layout == PACKED && (rows != 0 || whole->nbytes % row != 0))) {
        PyErr_SetString(PyExc_ValueError, "the memory is not that of sequences of these lengths");
        return false;
    }
    return true;
}

static inline void copy_row(char *target, const char *source, Py_ssize_t row)
{
    /* Sizes that the compiler knows take no call. */
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

/* Where a row lies is the sum of what its sequence and its step say. Some steps of all sequences are moved at a time, so that
 * neighbours stay in the caches whichever of the two comes first in memory. */
static void move(const struct side *target, const struct side *source, const int64_t *lengths, Py_ssize_t batch, Py_ssize_t row)
{
    /* With a packed side lengths descend, and what follows one that is over is over as well. */
    bool descend = target->layout == PACKED || source->layout == PACKED;
    bool is_contiguous = !descend && target->step == row && source->step == row;
    Py_ssize_t longest = 0, packed = 0, written[TILE], read[TILE];
    for (Py_ssize_t rank = 0; rank < batch; rank++) {
        longest = lengths[rank] > longest ? (Py_ssize_t)lengths[rank] : longest;
        if (is_contiguous && lengths[rank] > 0) {
            memcpy(target->rows[rank], source->rows[rank], (size_t)(lengths[rank] * row));
        }
    }
    for (Py_ssize_t from = 0, active = batch; from < longest && !is_contiguous; from += TILE) {
        for (Py_ssize_t step = 0; step < TILE; step++, packed += active * row) {
            while (active > 0 && lengths[active - 1] <= from + step) {
                active--;
            }
            written[step] = target->layout == PACKED ? packed : (from + step) * target->step;
            read[step] = source->layout == PACKED ? packed : (from + step) * source->step;
        }
        for (Py_ssize_t rank = 0; rank < batch && (!descend || lengths[rank] > from); rank++) {
            for (Py_ssize_t step = 0; step < TILE && from + step < lengths[rank]; step++) {
                copy_row(target->rows[rank] + written[step], source->rows[rank] + read[step], row);
            }
        }
    }
}

/* The rows of a padded side that no sequence reaches. Zeros where there is no `fill`. */
static void pad(const struct side *target, const char *fill, const int64_t *lengths, Py_ssize_t batch, Py_ssize_t row)
{
    for (Py_ssize_t rank = 0; rank < batch; rank++) {
        Py_ssize_t rows = target->time - (Py_ssize_t)lengths[rank];
        char *written = target->rows[rank] + (target->is_left ? -rows : (Py_ssize_t)lengths[rank]) * target->step;
        if (fill == NULL && target->step == row) {
            memset(written, 0, (size_t)(rows * row));
            continue;
        }
        for (; rows > 0; rows--, written += target->step) {
            if (fill == NULL) {
                memset(written, 0, (size_t)row);
            } else {
                copy_row(written, fill, row);
            }
        }
    }
}

/* Set an error where the numbers are no permutation; `inverse` gets its inverse. */
static bool invert(int64_t *inverse, Py_ssize_t number, const int64_t *permutation, Py_ssize_t size)
{
    bool is_one = number == size;
    for (Py_ssize_t i = 0; is_one && i < size; i++) {
        inverse[i] = -1;
    }
    for (Py_ssize_t i = 0; is_one && i < size; i++) {
        is_one = permutation[i] >= 0 && permutation[i] < size && inverse[permutation[i]] == -1;
        if (is_one) {
            inverse[permutation[i]] = i;
        }
    }
    if (!is_one) {
        PyErr_SetString(PyExc_ValueError, "the indices are no permutation");
    }
    return is_one;
}

/* Set an error where the numbers are negative or not in descending order; `counts` gets how many are greater than 0, 1, ... */
static bool count(int64_t *counts, Py_ssize_t number, const int64_t *numbers, Py_ssize_t size)
{
    bool fits = number == (size == 0 ? 0 : numbers[0]) && (size == 0 || numbers[size - 1] >= 0);
    for (Py_ssize_t i = 1; fits && i < size; i++) {
        fits = numbers[i] <= numbers[i - 1];
    }
    for (Py_ssize_t i = 0; fits && i < number; i++) {
        while (size > 0 && numbers[size - 1] <= i) {
            size--;
        }
        counts[i] = size;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the numbers are negative, not in descending order, or the first is not the size of the target");
    }
    return fits;
}

/* Lengths, order and room for its inverse, as own copies that nobody changes meanwhile. NULL with an error set. */
static int64_t *copy_numbers(PyObject *given_lengths, PyObject *given_order, Py_ssize_t *batch)
{
    struct block lengths = {0}, order = {0};
    int64_t *copies = NULL;
    if (numbers_take(given_lengths, &lengths, false) && (given_order == Py_None || numbers_take(given_order, &order, false))) {
        Py_ssize_t size = lengths.nbytes / (Py_ssize_t)sizeof(int64_t);
        if (size == 0 || (given_order != Py_None && order.nbytes != lengths.nbytes)) {
            PyErr_SetString(PyExc_ValueError, "there must be lengths, and as many indices");
        } else if ((copies = PyMem_Calloc((size_t)size * 3, sizeof(int64_t))) == NULL) {
            PyErr_NoMemory();
        } else {
            *batch = size;
            memcpy(copies, lengths.start, (size_t)lengths.nbytes);
            for (Py_ssize_t i = 0; i < size; i++) {
                copies[size + i] = order.start == NULL ? i : ((const int64_t *)(const void *)order.start)[i];
                if (copies[i] < 0) {
                    PyErr_SetString(PyExc_ValueError, "a length is negative");
                }
            }
            invert(copies + 2 * size, size, copies + size, size);
        }
    }
    block_drop(&lengths);
    block_drop(&order);
    if (PyErr_Occurred()) {
        PyMem_Free(copies);
        return NULL;
    }
    return copies;
}

static PyObject *move_rows(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *targets, *sources, *given_lengths, *given_order, *given_fill;
    int to, from;
    Py_ssize_t row, batch = 0, total = 0;
    if (!PyArg_ParseTuple(arguments, "O!iO!iOOnO:move_rows", &PyTuple_Type, &targets, &to, &PyTuple_Type, &sources, &from,
                          &given_lengths, &given_order, &row, &given_fill)) {
        return NULL;
    }
    if (row <= 0 || (to == PACKED && from == PACKED)) {
        return PyErr_Format(PyExc_ValueError, "rows of %zd bytes cannot be moved from layout %d to %d", row, from, to);
    }
    int64_t *lengths = copy_numbers(given_lengths, given_order, &batch);
    if (lengths == NULL) {
        return NULL;
    }
    struct block fill = {0};
    struct side target = {0}, source = {0};
    if (given_fill != Py_None && block_take(given_fill, &fill, false) && fill.nbytes != row) {
        PyErr_SetString(PyExc_ValueError, "the fill must be one row");
    }
    if (!PyErr_Occurred() && side_take(targets, to, &target, true, lengths, lengths + batch, batch, row) &&
        side_take(sources, from, &source, false, lengths, lengths + batch, batch, row)) {
        for (Py_ssize_t i = 0; i < target.count; i++) {
            total += target.blocks[i].nbytes;
        }
        PyThreadState *thread = total >= RELEASES_GIL_FROM ? PyEval_SaveThread() : NULL;
        move(&target, &source, lengths, batch, row);
        if (target.layout >= TIME_FIRST) {
            pad(&target, fill.start, lengths, batch, row);
        }
        if (thread != NULL) {
            PyEval_RestoreThread(thread);
        }
    }
    side_drop(&target);
    side_drop(&source);
    block_drop(&fill);
    PyMem_Free(lengths);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *fill_numbers(PyObject *arguments, bool (*function)(int64_t *, Py_ssize_t, const int64_t *, Py_ssize_t))
{
    PyObject *written, *read;
    if (!PyArg_UnpackTuple(arguments, "target and source", 2, 2, &written, &read)) {
        return NULL;
    }
    struct block target = {0}, source = {0};
    if (numbers_take(written, &target, true) && numbers_take(read, &source, false)) {
        function((int64_t *)(void *)target.start, target.nbytes / (Py_ssize_t)sizeof(int64_t),
                 (const int64_t *)(const void *)source.start, source.nbytes / (Py_ssize_t)sizeof(int64_t));
    }
    block_drop(&target);
    block_drop(&source);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *count_above(PyObject *module, PyObject *arguments)
{
    (void)module;
    return fill_numbers(arguments, count);
}

static PyObject *invert_permutation(PyObject *module, PyObject *arguments)
{
    (void)module;
    return fill_numbers(arguments, invert);
}

static PyMethodDef functions[] = {
    {"count_above", count_above, METH_VARARGS, NULL},
    {"invert_permutation", invert_permutation, METH_VARARGS, NULL},
    {"move_rows", move_rows, METH_VARARGS, NULL},
    {0},
};

static int fill_module(PyObject *module)
{
    for (int i = 0; i < ASKED; i++) {
        if (names[i] == NULL && (names[i] = PyUnicode_InternFromString(asked[i])) == NULL) {
            return -1;
        }
    }
    bool made = PyModule_AddIntMacro(module, SEQUENCES) == 0 && PyModule_AddIntMacro(module, PACKED) == 0 &&
                PyModule_AddIntMacro(module, TIME_FIRST) == 0 && PyModule_AddIntMacro(module, BATCH_FIRST) == 0 &&
                PyModule_AddIntMacro(module, LEFT) == 0;
    return made ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill_module},
    MAIN_INTERPRETER_ONLY
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
