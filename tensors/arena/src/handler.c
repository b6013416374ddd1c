/* NumPy's C API, the blocks behind arrays, the log of births, and the four functions of the memory
 * handler: see handler.h. */
#include "handler.h"

#include <string.h>

#include "../../../scopes/src/shared/birth_log.h"
#include "../../../scopes/src/shared/collector.h"
#include "accounts.h"
#include "compiler.h"
#include "functions.h"
#include "passes.h"

/* ================================================================== NumPy */

/* The version that is expected, and indexes into NumPy's table of functions (_ARRAY_API). */
#define ABI_VERSION 0x02000000u
#define GET_ND_ARRAY_C_VERSION 0
#define ARRAY_TYPE 2
#define SET_HANDLER 304
#define GET_HANDLER 305

static PyObject *(*set_handler)(PyObject *handler);
PyObject *(*numpy_get_handler)(void);
PyTypeObject *numpy_ndarray;
static PyObject *error_state; /* the context variable that np.errstate sets; NULL if NumPy renamed it */

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
    set_handler = (PyObject * (*)(PyObject *)) functions[SET_HANDLER];
    numpy_get_handler = (PyObject * (*)(void)) functions[GET_HANDLER];
    return 0;
}

PyObject *numpy_set_handler(PyObject *handler)
{
    /* NumPy keeps it in a context variable. */
    int collects = hold_collector();
    PyObject *before = set_handler(handler);
    let_collect(collects);
    return before;
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
    int collects = hold_collector();
    PyObject *token = held == NULL ? NULL : PyContextVar_Set(error_state, held);
    let_collect(collects);
    bool failed = held != NULL && token == NULL;
    Py_XDECREF(held);
    Py_XDECREF(token);
    return failed ? -1 : 0;
}

/* ================================================================== arrays */

/* Types of objects between an array and the array whose memory it shares: see set_base_types(). */
static PyObject *base_types;

PyObject *arena_set_base_types(PyObject *module, PyObject *types)
{
    (void)module;
    if (!PyTuple_CheckExact(types)) {
        PyErr_SetString(PyExc_TypeError, "set_base_types() takes a tuple of types");
        return NULL;
    }
    Py_XSETREF(base_types, Py_NewRef(types));
    Py_RETURN_NONE;
}

static bool is_base_between(PyObject *object)
{
    for (Py_ssize_t i = 0; base_types != NULL && i < PyTuple_GET_SIZE(base_types); i++) {
        if ((PyObject *)Py_TYPE(object) == PyTuple_GET_ITEM(base_types, i)) {
            return true;
        }
    }
    return false;
}

PyObject *arrays_owner_of(PyObject *array)
{
    /* Borrowed references are enough: each object in the chain keeps the next one alive. */
    PyObject *object = array;
    while (object != NULL) {
        if (PyMemoryView_Check(object)) {
            object = PyMemoryView_GET_BUFFER(object)->obj;
            continue;
        }
        if (!PyObject_TypeCheck(object, numpy_ndarray)) {
            if (!is_base_between(object)) {
                return NULL;
            }
            PyObject *base = PyObject_GetAttrString(object, "base");
            if (base == NULL) {
                PyErr_Clear();
                return NULL;
            }
            /* The attribute keeps it alive. */
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
    if (PyLong_Check(array)) {
        void *place = PyLong_AsVoidPtr(array);
        if (place == NULL) {
            PyErr_Clear();
        }
        return block_find(place);
    }
    PyObject *owner = arrays_owner_of(array);
    return owner == NULL ? NULL : ((struct numpy_array *)owner)->data;
}

PyObject *arrays_storage(PyObject *owner)
{
    void *address = ((struct numpy_array *)owner)->data;
    size_t nbytes = block_at(address)->nbytes;
    if (nbytes == 1) {
        /* NumPy requests one byte for an array without elements. */
        PyObject *value = PyObject_GetAttrString(owner, "nbytes");
        nbytes = value == NULL ? (size_t)-1 : PyLong_AsSize_t(value);
        Py_XDECREF(value);
        if (nbytes == (size_t)-1) {
            return NULL;
        }
    }
    return Py_BuildValue("Nn", PyLong_FromVoidPtr(address), (Py_ssize_t)nbytes);
}

bool arrays_is_unshared(PyObject *array, Py_ssize_t references)
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
    struct block *block = block_at(address);
    struct account *account = block_account(block);
    if (account_now(account) != source) {
        return false;
    }
    block_charge(block, target);
    account_move(account, target, block->nbytes);
    return true;
}

/* ================================================================== the log of births */

/* The log of births while a leak detector is open; otherwise NULL. */
static const struct birth_log_api *open_log;
/* The log that was given last, also after it was closed. Blocks with the note LOGGED are in it. */
static const struct birth_log_api *log_of_blocks;
/* Its numbers for the kind "numpy.ndarray" and the device "cpu:0". */
static uint16_t log_kind, log_device;

PyObject *arena_record_into(PyObject *module, PyObject *capsule)
{
    (void)module;
    if (capsule == Py_None) {
        open_log = NULL;
        Py_RETURN_NONE;
    }
    const struct birth_log_api *log = PyCapsule_GetPointer(capsule, BIRTH_LOG_CAPSULE);
    if (log == NULL) {
        return NULL;
    }
    if (log_of_blocks == NULL) {
        PyObject *kind = PyUnicode_FromString("numpy.ndarray");
        PyObject *device = kind == NULL ? NULL : PyUnicode_FromString("cpu:0");
        if (device != NULL) {
            log_kind = log->kind_number(kind);
            log_device = log->device_number(device);
            /* Never dropped: blocks may be freed after the module of the log is gone. */
            Py_INCREF(capsule);
            log_of_blocks = log;
        }
        Py_XDECREF(kind);
        Py_XDECREF(device);
        if (log_of_blocks == NULL) {
            return NULL;
        }
    }
    open_log = log_of_blocks;
    Py_RETURN_NONE;
}

bool handler_logs_births(void) { return open_log != NULL; }

bool handler_has_logged(void *address) { return log_of_blocks != NULL && log_of_blocks->has_block(address); }

/* ================================================================== the handler */

PyObject *handler_capsule;

/* Whether this thread has the GIL. Called by any thread, in any state. */
static inline bool is_attached(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    const PyThreadState *thread = PyThreadState_GetUnchecked();
#else
    const PyThreadState *thread = _PyThreadState_UncheckedGet();
#endif
#if PY_VERSION_HEX < 0x030C0000
    /* Before 3.12 `thread` is the state of whichever thread has the GIL. PyGILState_Check() alone
     * does not do: in a process that has had a subinterpreter it returns 1 for every thread. */
    return thread != NULL && (thread == PyGILState_GetThisThreadState() || PyGILState_Check());
#else
    return thread != NULL;
#endif
}

/* Memory for a block of `nbytes`, from the slab of a pass or from the pool; NULL without memory.
 * `resized` says that the block replaces another one that is reallocated. */
static inline void *take(struct pass *pass, size_t nbytes, bool resized, struct block **block, bool *dirty)
{
    if (!UNLIKELY(pass_is_open((struct pass_head *)pass))) {
        return pool_take(nbytes, block, dirty);
    }
    struct tracked *planned;
    uint32_t birth = pass_born(pass, nbytes, resized, &planned);
    if (planned != NULL) {
        *block = &planned->block;
        *dirty = true;
        return planned->address;
    }
    void *address = pool_take(nbytes, block, dirty);
    if (address == NULL) {
        pass_take_back(pass, birth);
    }
    else {
        pass_track(pass, birth, address, *block);
    }
    return address;
}

/* Give back the memory of a block whose account has been dropped. */
static inline void give(void *ptr, struct block *block)
{
    if (UNLIKELY(block_is(block, TRACKED))) {
        bool is_planned = slab_of(ptr) != NULL;
        pass_block_died(is_planned ? tracked_of(block) : tracked_find(ptr));
        if (is_planned) {
            return;
        }
    }
    pool_give(ptr);
}

/* A new block of `nbytes`, charged to the current scope; NULL if a budget or the system refuses. */
static void *serve(size_t nbytes, bool zeroed)
{
    struct account *account = account_now(account_current());
    struct block *block;
    bool dirty;
    nbytes += nbytes == 0;
    struct account *limit = account_refusing(account, nbytes);
    if (UNLIKELY(limit != NULL)) {
        account_refuse(limit, nbytes);
        pool_empty();
        return NULL;
    }
    uint64_t misses = pool_misses;
    void *address = take((struct pass *)account->pass, nbytes, false, &block, &dirty);
    if (address == NULL) {
        return NULL;
    }
    account->references++; /* the block's */
    block_charge(block, account);
    account_add(account, nbytes);
    if (pool_misses != misses) {
        account->misses++;
        account_totals.misses++;
    }
    if (zeroed && dirty) {
        pool_clear(address, nbytes);
    }
    /* In addition to the log, which forgets birth sites when its detector is closed: the scope may
     * stay open, with its budget, for longer. */
    if (sites_wanted(account, nbytes)) {
        block_note(block, RECORDED, sites_record(address));
    }
    if (open_log != NULL) {
        block_note(block, LOGGED, open_log->block_born(address, nbytes, log_kind, log_device));
    }
    return address;
}

enum request { MALLOC, CALLOC, REALLOC, FREE };

/* Serve a request of a thread without the GIL: acquires the GIL for it. NULL after the interpreter
 * has ended. */
RARELY_CALLED static void *serve_unattached(enum request request, void *ptr, size_t nbytes);

static void *serve_malloc(void *ctx, size_t size)
{
    (void)ctx;
    return is_attached() ? serve(size, false) : serve_unattached(MALLOC, NULL, size);
}

static void *serve_calloc(void *ctx, size_t nelem, size_t elsize)
{
    (void)ctx;
    size_t nbytes;
    if (product_overflows(nelem, elsize, &nbytes)) {
        return NULL;
    }
    return is_attached() ? serve(nbytes, true) : serve_unattached(CALLOC, NULL, nbytes);
}

static void serve_free(void *ctx, void *ptr, size_t size)
{
    (void)ctx;
    (void)size; /* not the block's if the dtype of the array was assigned meanwhile */
    if (!is_attached()) {
        serve_unattached(FREE, ptr, 0);
        return;
    }
    if (ptr == NULL) {
        return;
    }
    struct block *block = block_at(ptr);
    if (block_is(block, RECORDED)) {
        sites_forget(ptr);
    }
    if (block_is(block, LOGGED)) {
        log_of_blocks->block_died(ptr);
    }
    account_drop(block_account(block), block->nbytes);
    give(ptr, block);
}

/* Reallocate a block at another address, with its contents, account and notes. NULL without
 * memory. */
static void *serve_elsewhere(void *ptr, size_t before, size_t after)
{
    struct block *block = block_at(ptr), *fresh;
    bool dirty;
    const struct tracked *tracked = block_is(block, TRACKED) ? tracked_find(ptr) : NULL;
    void *address = take(tracked == NULL ? NULL : tracked->pass, after, true, &fresh, &dirty);
    if (address == NULL) {
        return NULL;
    }
    memcpy(address, ptr, after < before ? after : before);
    bool recorded = block_is(block, RECORDED), logged = block_is(block, LOGGED);
    /* Before the block is given back, because the tables know blocks by their address, and another
     * thread may get this one. */
    if (recorded) {
        sites_forget(ptr);
    }
    if (logged) {
        log_of_blocks->block_moved(ptr, address, after);
    }
    block_charge(fresh, block_account(block));
    account_resize(block_account(fresh), before, after);
    give(ptr, block);
    block_note(fresh, LOGGED, logged);
    if (recorded) {
        block_note(fresh, RECORDED, sites_record(address));
    }
    return address;
}

static void *serve_realloc(void *ctx, void *ptr, size_t new_size)
{
    (void)ctx;
    if (!is_attached()) {
        return serve_unattached(REALLOC, ptr, new_size);
    }
    if (ptr == NULL) {
        return serve(new_size, false);
    }
    new_size += new_size == 0;
    struct block *block = block_at(ptr);
    size_t before = block->nbytes, room = block_room(ptr);
    struct account *account = block_account(block);
    struct account *limit = new_size > before ? account_refusing(account_now(account), new_size - before) : NULL;
    bool fits = new_size <= room && new_size >= room / 2;
    if (limit != NULL) {
        account_refuse(limit, new_size);
        pool_empty();
        return NULL;
    }
    if (fits) {
        account_resize(account, before, new_size);
        block_resize(ptr, new_size);
        if (block_is(block, TRACKED)) {
            pass_block_resized(tracked_find(ptr), new_size);
        }
        if (block_is(block, LOGGED)) {
            log_of_blocks->block_moved(ptr, ptr, new_size);
        }
        return ptr;
    }
    void *address = serve_elsewhere(ptr, before, new_size);
    if (address == NULL && new_size <= room) {
        /* Without memory, a block that shrinks stays where it is. */
        account_resize(block_account(block), before, new_size);
        block_resize(ptr, new_size);
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
