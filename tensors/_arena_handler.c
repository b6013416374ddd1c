#include "_arena_handler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "_arena_guards.h"
#include "_arena_lock.h"
#include "_arena_numpy.h"
#include "_arena_pool.h"
#include "_arena_scopes.h"
#include "_arena_sites.h"
#include "_arena_slabs.h"

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

static void check_attached(const char *what)
{
    if (!PyGILState_Check()) {
        fprintf(stderr, "disposescope: memory of the arena is %s without the GIL\n", what);
        abort();
    }
}

/* The way of most small arrays: the latest freed block of the class, for a scope about which nothing is to be asked. NULL where
 * it is not as plain as that. A class parks nothing with guards. */
static inline void *serve_parked(size_t nbytes)
{
    nbytes += nbytes == 0;
    if (nbytes > LARGEST_IN_SLAB) {
        return NULL;
    }
    struct account *account = scopes_plain_account();
    if (account == NULL) {
        return NULL;
    }
    struct block *block;
    arena_lock();
#ifdef Py_GIL_DISABLED
    if (!account->plain) {
        /* Closed a moment ago by another thread. */
        arena_unlock();
        return NULL;
    }
#endif
    void *address = slabs_unpark(slab_class(nbytes), &block);
    if (address != NULL) {
        account_add_plain(account, nbytes);
        *block = (struct block){.as.account = account, .nbytes = nbytes};
    }
    arena_unlock();
    if (address != NULL) {
        SHOW(address, nbytes);
    }
    return address;
}

/* The way back; whether it could be taken. */
static inline bool free_parked(void *address)
{
    struct region *region = region_of(address);
    if (region->kind != SLAB) {
        return false;
    }
    struct block *block = &blocks_of(region)[index_in(region, address)];
    if (block->recorded) {
        return false;
    }
    if (block->logged) {
        block->logged = false;
        scopes_log->block_died(address);
    }
    arena_lock();
    struct account *account = block->as.account;
    bool parked = account->plain && account->references > 1 && slabs_park(region->class, address, block);
    if (parked) {
        account_drop_plain(account, block->nbytes);
        HIDE(address, region->block_nbytes);
    }
    arena_unlock();
    return parked;
}

static __attribute__((noinline)) void *serve(size_t nbytes, bool zeroed)
{
    if (guards_wanted) {
        check_attached("asked for");
    }
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
        block->as.account = account;
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
        block->recorded = sites_record(address);
    }
    if (scopes_log != NULL && scopes_log->is_open()) {
        block->logged = scopes_log->block_born(address, nbytes, scopes_log_kind, scopes_log_device);
    }
    return address;
}

static void *serve_malloc(void *ctx, size_t size)
{
    (void)ctx;
    void *address = serve_parked(size);
    return address != NULL ? address : serve(size, false);
}

static void *serve_calloc(void *ctx, size_t nelem, size_t elsize)
{
    (void)ctx;
    size_t nbytes;
    if (__builtin_mul_overflow(nelem, elsize, &nbytes)) {
        return NULL;
    }
    void *address = serve_parked(nbytes);
    return address != NULL ? memset(address, 0, nbytes) : serve(nbytes, true);
}

static __attribute__((noinline)) void give(void *ptr)
{
    if (guards_wanted) {
        check_attached("freed");
    }
    struct block *block = pool_block_at(ptr);
    if (block->recorded) {
        sites_forget(ptr);
    }
    if (block->logged) {
        scopes_log->block_died(ptr);
    }
    arena_lock();
    account_drop(block->as.account, block->nbytes);
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
    if (ptr != NULL && !free_parked(ptr)) {
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
    bool recorded = block->recorded, logged = block->logged;
    /* First: the tables know addresses, and another thread may get this one. */
    if (recorded) {
        sites_forget(ptr);
    }
    if (logged) {
        scopes_log->block_moved(ptr, address, after);
    }
    arena_lock();
    fresh->as.account = block->as.account;
    account_resize(fresh->as.account, before, after);
    doomed = pool_give(ptr);
    arena_unlock();
    regions_unmap(doomed);
    fresh->logged = logged;
    if (recorded) {
        fresh->recorded = sites_record(address);
    }
    return address;
}

static void *serve_realloc(void *ctx, void *ptr, size_t new_size)
{
    (void)ctx;
    if (ptr == NULL) {
        return serve(new_size, false);
    }
    new_size += new_size == 0;
    struct region *doomed = NULL;
    arena_lock();
    struct block *block = pool_block_at(ptr);
    size_t before = block->nbytes, room = pool_room(ptr);
    struct account *account = block->as.account;
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
        if (block->logged) {
            scopes_log->block_moved(ptr, ptr, new_size);
        }
        return ptr;
    }
    void *address = serve_elsewhere(ptr, before, new_size);
    if (address == NULL && new_size <= room) {
        /* Memory is short, and what shrinks can stay where it is. */
        arena_lock();
        account_resize(block->as.account, before, new_size);
        pool_resize(ptr, new_size);
        arena_unlock();
        address = ptr;
    }
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
