#include "sites.h"

#include "../../../scopes/src/raised.h"
#include "functions.h"
#include "lock.h"
#include "pool.h"
#include "scopes.h"

static PyObject *mark_function, *table;

/* A block is in use while its site is in the table: whoever takes it out, before the block is given back, holds the GIL. */

int sites_bind(PyObject *mark_of)
{
    if (table == NULL && (table = PyDict_New()) == NULL) {
        return -1;
    }
    /* Kept for the life of the process: arrays are born and freed while the interpreter goes down. */
    mark_function = Py_NewRef(mark_of);
    return 0;
}

bool sites_wanted(const struct account *account, size_t nbytes)
{
    if (account->records) {
        return true;
    }
    /* Under a budget, what could be among the largest: at most a thousand or so at once. */
    const struct account *limit = account->budget != SIZE_MAX ? account : account->limits;
    return limit != NULL && nbytes >= limit->budget / 1024;
}

bool sites_record(void *address)
{
    PyObject *type, *value, *traceback;
    bool recorded = false;
    PyErr_Fetch(&type, &value, &traceback);
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *mark = PyObject_CallOneArg(mark_function, frame == NULL ? Py_None : (PyObject *)frame);
    PyObject *key = mark == NULL ? NULL : PyLong_FromVoidPtr(address);
    if (key != NULL) {
        recorded = PyDict_SetItem(table, key, mark) == 0;
    }
    Py_XDECREF(key);
    Py_XDECREF(mark);
    if (PyErr_Occurred()) {
        put_off_raised();
    }
    PyErr_Restore(type, value, traceback);
    return recorded;
}

void sites_forget(void *address)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *key = PyLong_FromVoidPtr(address), *mark = NULL;
    if (key == NULL) {
        PyErr_Clear();
    }
    else {
        mark = Py_XNewRef(PyDict_GetItemWithError(table, key));
        if (PyDict_DelItem(table, key) < 0) {
            PyErr_Clear();
        }
    }
    Py_XDECREF(mark);
    Py_XDECREF(key);
    PyErr_Restore(type, value, traceback);
}

/* Whether the block that a row of the table is about counts for an account or one inside it (NULL: every one does), and its
 * bytes. Not where it was freed a moment ago. */
static bool counts(PyObject *key, const struct account *wanted, size_t *nbytes)
{
    bool result = false;
    if (PyDict_Contains(table, key) == 1) {
        struct block *block = pool_block_at(PyLong_AsVoidPtr(key));
        arena_lock();
        *nbytes = block->nbytes;
        struct account *account = account_now(block_account(block));
        result = wanted == NULL || account == wanted;
        for (struct account *limit = account->limits; limit != NULL && !result; limit = limit->limits) {
            result = limit == wanted;
        }
        arena_unlock();
    }
    return result;
}

PyObject *arena_sites(PyObject *module, PyObject *scope)
{
    (void)module;
    struct account *wanted = NULL;
    if (scope != Py_None) {
        if (!scopes_check(scope)) {
            return NULL;
        }
        wanted = scopes_account(scope, false);
        if (wanted == NULL) {
            return PyList_New(0);
        }
    }
    PyObject *copy = PyDict_Copy(table);
    PyObject *rows = copy == NULL ? NULL : PyList_New(0);
    Py_ssize_t position = 0;
    PyObject *key, *mark;
    size_t nbytes;
    while (rows != NULL && PyDict_Next(copy, &position, &key, &mark)) {
        if (counts(key, wanted, &nbytes)) {
            PyObject *row = Py_BuildValue("On", mark, (Py_ssize_t)nbytes);
            if (row == NULL || PyList_Append(rows, row) < 0) {
                Py_CLEAR(rows);
            }
            Py_XDECREF(row);
        }
    }
    Py_XDECREF(copy);
    return rows;
}
