#include "handler.h"

#include <string.h>

#include "accounts.h"
#include "pool.h"
#include "scopes.h"
#include "shortcuts.h"

/* ================================================================== NumPy */

#define ABI_VERSION 0x02000000u
#define GET_ND_ARRAY_C_VERSION 0
#define ARRAY_TYPE 2
#define SET_HANDLER 304
#define GET_HANDLER 305

PyObject *(*numpy_set_handler)(PyObject *handler);
PyObject *(*numpy_get_handler)(void);
PyTypeObject *numpy_ndarray;
static PyObject *error_state; /* NumPy's context variable of what np.errstate sets; NULL where it has another name */

int numpy_install(void)
{
    PyObject *module = PyImport_ImportModule("numpy._core._multiarray_umath");
    if (module == NULL) {
        return -1;
    }
    PyObject *capsule = PyObject_GetAttrString(module, "_ARRAY_API");
    error_state = PyObject_GetAttrString(module, "_extobj_contextvar");
    if (error_state == NULL || !PyContextVar_CheckExact(error_state)) {
        PyErr_Clear();
        Py_CLEAR(error_state);
    }
    Py_DECREF(module);
    if (capsule == NULL) {
        return -1;
    }
    void **functions = PyCapsule_GetPointer(capsule, NULL);
    /* The table is static in NumPy, which stays loaded. */
    Py_DECREF(capsule);
    if (functions == NULL) {
        return -1;
    }
    unsigned version = ((unsigned (*)(void))functions[GET_ND_ARRAY_C_VERSION])();
    if (version != ABI_VERSION) {
        PyErr_Format(PyExc_ImportError, "the arena knows NumPy's ABI version %x, and this is %x", ABI_VERSION, version);
        return -1;
    }
    numpy_ndarray = (PyTypeObject *)functions[ARRAY_TYPE];
    numpy_set_handler = (PyObject * (*)(PyObject *)) functions[SET_HANDLER];
    numpy_get_handler = (PyObject * (*)(void)) functions[GET_HANDLER];
    return 0;
}

int numpy_settle(void)
{
    PyObject *held;
    if (error_state == NULL) {
        return 0;
    }
    if (PyContextVar_Get(error_state, Py_None, &held) < 0) {
        return -1;
    }
    bool is_set = held != Py_None;
    Py_DECREF(held);
    if (is_set) {
        return 0;
    }
    if (PyContextVar_Get(error_state, NULL, &held) < 0) {
        return -1;
    }
    PyObject *token = held == NULL ? NULL : PyContextVar_Set(error_state, held);
    bool failed = held != NULL && token == NULL;
    Py_XDECREF(held);
    Py_XDECREF(token);
    return failed ? -1 : 0;
}

/* ================================================================== arrays */

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

/* ================================================================== the handler */

PyObject *handler_capsule;
static _Thread_local struct refusal last_refusal;

void handler_refuse(struct account *limit, size_t nbytes)
{
    last_refusal = (struct refusal){.limit = limit->serial, .nbytes = nbytes, .charged = limit->charged_nbytes};
}

struct refusal handler_last_refusal(void)
{
    struct refusal last = last_refusal;
    last_refusal.limit = 0;
    return last;
}

static __attribute__((noinline)) void *serve(size_t nbytes, bool zeroed)
{
    struct account *account = scopes_current_account();
    struct block *block;
    struct region *doomed = NULL;
    bool dirty;
    nbytes += nbytes == 0;
    bool wants_site = sites_wanted(account, nbytes);
    arena_lock();
    account = account_now(account);
    struct account *limit = account_refusing(account, nbytes);
    if (limit != NULL) {
        handler_refuse(limit, nbytes);
        doomed = pool_empty();
        arena_unlock();
        regions_unmap(doomed);
        return NULL;
    }
    /* The reference of the block, taken before the lock is given up to map memory. */
    account->references++;
    uint64_t misses = regions_misses;
    void *address = pool_take(nbytes, &block, &dirty, &doomed);
    if (address == NULL) {
        account_release(account);
    }
    else {
        block_charge(block, account);
        account_add(account, nbytes);
        if (regions_misses != misses) {
            account->misses++;
            account_totals.misses++;
        }
    }
    arena_unlock();
    if (doomed != NULL) {
        regions_unmap(doomed);
    }
    if (address == NULL) {
        return NULL;
    }
    if (zeroed && dirty) {
        pool_clear(address, nbytes);
    }
    if (wants_site) {
        block_note(block, RECORDED, sites_record(address));
    }
    if (scopes_log != NULL && scopes_log->is_open()) {
        block_note(block, LOGGED, scopes_log->block_born(address, nbytes, scopes_log_kind, scopes_log_device));
    }
    return address;
}

enum request { MALLOC, CALLOC, REALLOC, FREE };

/* For a thread that is not attached: attach it, and do what was asked for. NULL where the interpreter has ended. */
static __attribute__((noinline, cold)) void *serve_unattached(enum request request, void *ptr, size_t nbytes);

/* Where the tally is not that of the current scope, or nothing is parked. */
static __attribute__((noinline)) void *serve_otherwise(size_t nbytes, bool zeroed)
{
    void *address = NULL;
    if (is_small(nbytes)) {
        address = tally_is_current(_PyThreadState_UncheckedGet()) ? shortcut_unparked(nbytes, zeroed) : shortcut_found(nbytes, zeroed);
    }
    return address != NULL ? address : serve(nbytes, zeroed);
}

static void *serve_malloc(void *ctx, size_t size)
{
    (void)ctx;
    const PyThreadState *thread = attached_thread();
    if (__builtin_expect(thread == NULL, 0)) {
        return serve_unattached(MALLOC, NULL, size);
    }
    void *address = shortcut_tallied(thread, size);
    return address != NULL ? address : serve_otherwise(size, false);
}

static void *serve_calloc(void *ctx, size_t nelem, size_t elsize)
{
    (void)ctx;
    size_t nbytes;
    if (__builtin_mul_overflow(nelem, elsize, &nbytes)) {
        return NULL;
    }
    const PyThreadState *thread = attached_thread();
    if (__builtin_expect(thread == NULL, 0)) {
        return serve_unattached(CALLOC, NULL, nbytes);
    }
    void *address = shortcut_tallied(thread, nbytes);
    return address != NULL ? memset(address, 0, nbytes) : serve_otherwise(nbytes, true);
}

static __attribute__((noinline)) void give(void *ptr)
{
    if (shortcut_back_unparked(ptr) || shortcut_back(ptr)) {
        return;
    }
    struct block *block = pool_block_at(ptr);
    if (block_is(block, RECORDED)) {
        sites_forget(ptr);
    }
    if (block_is(block, LOGGED)) {
        scopes_log->block_died(ptr);
    }
    arena_lock();
    account_drop(block_account(block), block->nbytes);
    struct region *doomed = pool_give(ptr);
    arena_unlock();
    if (doomed != NULL) {
        regions_unmap(doomed);
    }
}

static void serve_free(void *ctx, void *ptr, size_t size)
{
    (void)ctx;
    (void)size; /* NumPy's idea of it, which an array can change (its dtype can be assigned); the block knows better */
    if (__builtin_expect(attached_thread() == NULL, 0)) {
        serve_unattached(FREE, ptr, 0);
        return;
    }
    if (ptr != NULL && !shortcut_back_tallied(ptr)) {
        give(ptr);
    }
}

/* A block elsewhere for the contents of one that grows beyond its room, or leaves most of it. NULL where there is no memory. */
static void *serve_elsewhere(void *ptr, size_t before, size_t after)
{
    struct block *block, *fresh;
    struct region *doomed = NULL;
    bool dirty;
    arena_lock();
    void *address = pool_take(after, &fresh, &dirty, &doomed);
    arena_unlock();
    regions_unmap(doomed);
    if (address == NULL) {
        return NULL;
    }
    memcpy(address, ptr, after < before ? after : before);
    block = pool_block_at(ptr);
    bool recorded = block_is(block, RECORDED), logged = block_is(block, LOGGED);
    /* First: the tables know addresses, and another thread may get this one. */
    if (recorded) {
        sites_forget(ptr);
    }
    if (logged) {
        scopes_log->block_moved(ptr, address, after);
    }
    arena_lock();
    block_charge(fresh, block_account(block));
    account_resize(block_account(fresh), before, after);
    doomed = pool_give(ptr);
    arena_unlock();
    regions_unmap(doomed);
    block_note(fresh, LOGGED, logged);
    if (recorded) {
        block_note(fresh, RECORDED, sites_record(address));
    }
    return address;
}

static void *serve_realloc(void *ctx, void *ptr, size_t new_size)
{
    (void)ctx;
    if (attached_thread() == NULL) {
        return serve_unattached(REALLOC, ptr, new_size);
    }
    if (ptr == NULL) {
        return serve(new_size, false);
    }
    new_size += new_size == 0;
    struct region *doomed = NULL;
    arena_lock();
    struct block *block = pool_block_at(ptr);
    size_t before = block->nbytes, room = pool_room(ptr);
    struct account *account = block_account(block);
    struct account *limit = new_size > before ? account_refusing(account_now(account), new_size - before) : NULL;
    bool fits = limit == NULL && new_size <= room && new_size >= room / 2;
    if (limit != NULL) {
        handler_refuse(limit, new_size);
        doomed = pool_empty();
    }
    else if (fits) {
        account_resize(account, before, new_size);
        pool_resize(ptr, new_size);
    }
    arena_unlock();
    regions_unmap(doomed);
    if (limit != NULL) {
        return NULL;
    }
    if (fits) {
        if (block_is(block, LOGGED)) {
            scopes_log->block_moved(ptr, ptr, new_size);
        }
        return ptr;
    }
    void *address = serve_elsewhere(ptr, before, new_size);
    if (address == NULL && new_size <= room) {
        /* Memory is short, and what shrinks can stay where it is. */
        arena_lock();
        account_resize(block_account(block), before, new_size);
        pool_resize(ptr, new_size);
        arena_unlock();
        address = ptr;
    }
    return address;
}

static void *serve_unattached(enum request request, void *ptr, size_t nbytes)
{
    if (!Py_IsInitialized()) {
        return NULL;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    void *address = NULL;
    switch (request) {
    case MALLOC:
        address = serve_malloc(NULL, nbytes);
        break;
    case CALLOC:
        address = serve_calloc(NULL, 1, nbytes);
        break;
    case REALLOC:
        address = serve_realloc(NULL, ptr, nbytes);
        break;
    case FREE:
        serve_free(NULL, ptr, 0);
        break;
    }
    PyGILState_Release(state);
    return address;
}

static struct numpy_handler handler = {
    .name = "disposescope_arena",
    .version = 1,
    .allocator = {.malloc = serve_malloc, .calloc = serve_calloc, .realloc = serve_realloc, .free = serve_free},
};

int handler_make(void)
{
    handler_capsule = PyCapsule_New(&handler, "mem_handler", NULL);
    return handler_capsule == NULL ? -1 : 0;
}
