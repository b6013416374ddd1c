#include "arrays.h"

#include "handler.h"
#include "numpy.h"
#include "pool.h"
#include "scopes.h"

PyObject *arrays_owner_of(PyObject *array)
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
            return fields->mem_handler == handler_capsule ? object : NULL;
        }
        object = fields->base;
    }
    return NULL;
}

void *arrays_block_of(PyObject *array)
{
    PyObject *owner = arrays_owner_of(array);
    return owner == NULL ? NULL : ((struct numpy_array *)owner)->data;
}

PyObject *arrays_storage(PyObject *owner)
{
    void *address = ((struct numpy_array *)owner)->data;
    size_t nbytes = pool_block_at(address)->nbytes;
    if (nbytes == 1) {
        /* NumPy asks for one byte where there are no elements. */
        PyObject *told = PyObject_GetAttrString(owner, "nbytes");
        nbytes = told == NULL ? (size_t)-1 : PyLong_AsSize_t(told);
        Py_XDECREF(told);
        if (nbytes == (size_t)-1) {
            return NULL;
        }
    }
    return Py_BuildValue("Nn", PyLong_FromVoidPtr(address), (Py_ssize_t)nbytes);
}

bool arrays_holds_alone(PyObject *array, Py_ssize_t references)
{
    PyObject *object = array;
    while (object != NULL && PyObject_TypeCheck(object, numpy_ndarray) && Py_REFCNT(object) == references) {
        struct numpy_array *fields = (struct numpy_array *)object;
        if (fields->flags & NUMPY_OWNDATA) {
            return true;
        }
        object = fields->base;
        references = 1;
    }
    return false;
}

bool arrays_move(void *address, struct account *source, struct account *target)
{
    struct block *block = pool_block_at(address);
    struct account *account = block_account(block);
    if (account_now(account) != source) {
        return false;
    }
    block_charge(block, target);
    account_move(account, target, block->nbytes);
    return true;
}
