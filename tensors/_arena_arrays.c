#include "_arena_arrays.h"

#include "_arena_handler.h"
#include "_arena_numpy.h"
#include "_arena_pool.h"
#include "_arena_scopes.h"

void *arrays_block_of(PyObject *array)
{
    /* The references that the chain holds keep each object alive while the array is. */
    PyObject *object = array;
    while (object != NULL) {
        if (PyMemoryView_Check(object)) {
            object = PyMemoryView_GET_BUFFER(object)->obj;
            continue;
        }
        if (!PyObject_TypeCheck(object, numpy_ndarray)) {
            if (!scopes_is_tie(object)) {
                return NULL;
            }
            PyObject *base = PyObject_GetAttrString(object, "base");
            if (base == NULL) {
                PyErr_Clear();
                return NULL;
            }
            /* Its attribute goes on holding it. */
            Py_DECREF(base);
            object = base;
            continue;
        }
        struct numpy_array *fields = (struct numpy_array *)object;
        if (fields->flags & NUMPY_OWNDATA) {
            return fields->mem_handler == handler_capsule ? fields->data : NULL;
        }
        object = fields->base;
    }
    return NULL;
}

bool arrays_move(void *address, struct account *source, struct account *target)
{
    struct block *block = pool_block_at(address);
    struct account *account = block_account(block);
    if (source != NULL && account_now(account) != source) {
        return false;
    }
    block_charge(block, target);
    account_move(account, target, block->nbytes);
    return true;
}
