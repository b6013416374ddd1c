/* Births, seen where the Python object of a tensor is allocated (tp_alloc). Every tensor object is
 * seen there, once; this file decides which of them are births, and in which scope. */
#include "compiled.h"

#include <string.h>

#include "../../../scopes/src/shared/frames.h"
#include "../../../scopes/src/shared/raised.h"

BirthWatch *birth_watch;

/* ------------------------------------------------------------------ verdicts on code */

/* What a code object is to births. The numbers are those of births.py, which explains them. */
enum verdict { UNKNOWN, MAKES, KEEPS, PASSES, ASKS, REBUILDS, COMPOSES };

static PyObject *name_module;

/* A cache of verdicts by the address of the code. It keeps the code alive, so that the address is
 * not used again. Each set has a few ways, the newest first; a code that was pushed out is judged
 * anew. */
enum { SETS = 512, WAYS = 4 };
static struct known {
    PyObject *code;
    enum verdict verdict;
} known[SETS][WAYS];

/* The name of the module whose code a frame runs, a new reference; None if there is none. NULL with
 * an error set. */
static PyObject *module_of(const struct walk *walk)
{
    PyObject *globals = walk_globals(walk);
    PyObject *name = globals != NULL && PyDict_Check(globals) ? PyDict_GetItemWithError(globals, name_module) : NULL;
    Py_XINCREF(name);
    Py_XDECREF(globals);
    return name != NULL || PyErr_Occurred() ? name : Py_NewRef(Py_None);
}

/* The verdict of the Python function `judge` on a code object. UNKNOWN with an error set. */
static enum verdict judge(PyCodeObject *code, const struct walk *walk)
{
    PyObject *module = module_of(walk);
    PyObject *returned = module == NULL ? NULL : PyObject_CallFunctionObjArgs(birth_watch->judge, code, module, NULL);
    Py_XDECREF(module);
    if (returned == NULL) {
        return UNKNOWN;
    }
    long verdict = PyLong_Check(returned) ? PyLong_AsLong(returned) : UNKNOWN;
    if (verdict <= UNKNOWN || verdict > COMPOSES) {
        PyErr_Format(PyExc_ValueError,
                     "internal error: the verdict on the code of %U is %R, expected a number from %d to %d",
                     code->co_qualname, returned, MAKES, COMPOSES);
        verdict = UNKNOWN;
    }
    Py_DECREF(returned);
    return (enum verdict)verdict;
}

/* The verdict on the code of a frame, cached. UNKNOWN with an error set. */
static enum verdict verdict_on(const struct walk *walk)
{
    PyObject *code = (PyObject *)walk_code(walk);
    struct known *ways = known[((uintptr_t)code >> 5) % SETS];
    for (int way = 0; way < WAYS; way++) {
        if (ways[way].code == code) {
            return ways[way].verdict;
        }
    }
    enum verdict verdict = judge((PyCodeObject *)code, walk);
    if (verdict == UNKNOWN) {
        return UNKNOWN;
    }
    PyObject *dropped = ways[WAYS - 1].code;
    memmove(ways + 1, ways, (WAYS - 1) * sizeof *ways);
    ways[0] = (struct known){Py_NewRef(code), verdict};
    Py_XDECREF(dropped);
    return verdict;
}

/* Whether the running frames make births, for the verdict ASKS: asks `judge_frames`. -1 with an
 * error set. */
static int frames_make_births(void)
{
    return take_truth(PyObject_CallNoArgs(birth_watch->judge_frames));
}

/* The verdict on the innermost frame whose verdict is neither PASSES nor REBUILDS. */
static enum verdict verdict_here(void)
{
    struct walk walk;
    enum verdict verdict = MAKES;
    for (walk_begin(&walk); !walk_ended(&walk); walk_out(&walk)) {
        verdict = verdict_on(&walk);
        if (verdict != PASSES && verdict != REBUILDS) {
            break;
        }
    }
    walk_end(&walk);
    return verdict;
}

/* Whether the innermost frame makes a tensor of memory from a file or another process. -1 with an
 * error set. Can run Python code. */
static int code_rebuilds(void)
{
    struct walk walk;
    walk_begin(&walk);
    enum verdict verdict = walk_ended(&walk) ? MAKES : verdict_on(&walk);
    walk_end(&walk);
    return verdict == UNKNOWN ? -1 : verdict == REBUILDS;
}

/* Whether the running code makes no births although its verdict is ASKS: it copies a module, or
 * traces a graph. -1 with an error set. Can run Python code. */
static int code_refuses_births(void)
{
    enum verdict verdict = verdict_here();
    int made = verdict == UNKNOWN ? -1 : verdict == ASKS ? frames_make_births() : 1;
    return made < 0 ? -1 : !made;
}

/* What a new tensor is: no birth; a birth; or an open birth, because the code puts a composite
 * together (see `Entry.counted` in scopes/compiled.pyi). */
enum birth { NO_BIRTH, BIRTH, OPEN_BIRTH };

/* Which `enum birth` the code that runs on this thread makes. -1 with an error set. Can run Python
 * code. */
static int code_makes_births(void)
{
    switch (verdict_here()) {
    case UNKNOWN:
        return -1;
    case KEEPS:
        return NO_BIRTH;
    case ASKS:
        return frames_make_births();
    case COMPOSES:
        return OPEN_BIRTH;
    default:
        /* Also for PASSES, if there are no other frames. */
        return BIRTH;
    }
}

/* ------------------------------------------------------------------ functions and descriptors without births */

/* How many calls of `unborn()` are running on this thread. */
static _Thread_local int depth;
/* The address of the frame that reads a descriptor of PyTorch's on this thread, or 0. The frame is
 * alive meanwhile. The lowest bit says that the descriptor is that of a gradient. */
static _Thread_local uintptr_t reading;
/* Whether other code than the descriptor's has made a tensor since the reading began. */
static _Thread_local bool others_made;
#define OF_A_GRADIENT ((uintptr_t)1)

/* Whether the descriptor that is read is that of a gradient. */
static bool gradient_is_read(void) { return (reading & OF_A_GRADIENT) != 0; }

static bool runs_unborn(void) { return depth != 0; }

PyObject *compiled_unborn(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 2) {
        PyErr_Format(PyExc_TypeError, "internal error: unborn() takes a function and its argument, not %zd arguments",
                     number);
        return NULL;
    }
    depth++;
    PyObject *result = PyObject_CallOneArg(arguments[0], arguments[1]);
    depth--;
    return result;
}

uintptr_t births_begin_reading(const void *frame, bool gradient)
{
    uintptr_t before = reading;
    reading = (uintptr_t)frame | (gradient ? OF_A_GRADIENT : 0);
    others_made = false;
    return before;
}

bool births_end_reading(uintptr_t before)
{
    bool made = others_made;
    reading = before;
    /* If another descriptor is being read around this one, it has called other code. */
    others_made = before != 0;
    return made;
}

/* Whether a descriptor itself makes a tensor object now, and not other code that it has called,
 * such as that of a mode or a subclass. */
static bool descriptors_are_read(void)
{
    if (reading == 0) {
        return false;
    }
    struct walk walk;
    walk_begin(&walk);
    bool directly = walk_ended(&walk) || (uintptr_t)walk.frame == (reading & ~OF_A_GRADIENT);
    if (!directly) {
        PyObject *names = walk_globals(&walk);
        directly = names == birth_watch->passing;
        Py_XDECREF(names);
    }
    walk_end(&walk);
    others_made |= !directly;
    return directly;
}

/* ------------------------------------------------------------------ the scope of a birth */

/* Whether a scope with a budget is open. Then the mode asks the budgets at the end of a call. */
static bool budgets_are_asked(void) { return PyDict_GET_SIZE(birth_watch->budgeted) != 0; }

static PyObject *allocate(PyTypeObject *type, Py_ssize_t items);
static PyObject *allocate_born(PyTypeObject *type, Py_ssize_t items);
static PyObject *allocate_other(PyTypeObject *type, Py_ssize_t items);

/* Whether a scope may own the instances of a class. The answer is cached in tp_alloc of the class.
 * -1 with an error set. */
static int is_born(PyTypeObject *type)
{
    if (type->tp_alloc == allocate_born) {
        return 1;
    }
    int answer = take_truth(PyObject_CallOneArg(birth_watch->is_born, (PyObject *)type));
    if (answer >= 0 && type->tp_alloc == allocate) {
        type->tp_alloc = answer ? allocate_born : allocate_other;
    }
    return answer;
}

/* Puts the mode that asks the budgets on this thread's stack, if it is not there. 1, or -1 with an
 * error set. */
static int push_mode_once(void)
{
    if (thread_forget_dead() < 0) {
        return -1;
    }
    int there = thread_has_mode(birth_watch->mode);
    if (there != 0) {
        return there;
    }
    PyObject *done = PyObject_CallNoArgs(birth_watch->push_mode);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

/* The `enum birth` of a tensor that is made now, if a scope is open. -1 with an error set. */
static int birth_of(PyTypeObject *type)
{
    if (runs_unborn() || descriptors_are_read() || libtorch_makes_no_births()) {
        return NO_BIRTH;
    }
    int answer = is_born(type);
    if (answer > 0) {
        int at_work = thread_at_work();
        answer = at_work < 0 ? -1 : at_work == 0;
    }
    answer = answer <= 0 ? answer : code_makes_births();
    return answer > 0 && budgets_are_asked() && push_mode_once() < 0 ? -1 : answer;
}

/* The scope that owns a tensor which is being made: a new reference; NULL for none, and with an
 * error set. Sets `is_open` for an open birth. Can run any code, but none after its last check that
 * the scope is not closed. */
static PyObject *owner(PyTypeObject *type, bool *is_open)
{
    PyObject *scope;
    if (PyContextVar_Get(scopes_api->current, Py_None, &scope) < 0) {
        return NULL;
    }
    if (scope != Py_None && !is_scope_of(scopes_api, scope)) {
        PyErr_Format(PyExc_TypeError, "internal error: the current scope has type %s, expected DisposeScope or None",
                     Py_TYPE(scope)->tp_name);
        Py_DECREF(scope);
        return NULL;
    }
    int birth = scope == Py_None ? NO_BIRTH : birth_of(type);
    if (birth <= 0) {
        Py_DECREF(scope);
        return NULL;
    }
    *is_open = birth == OPEN_BIRTH;
    if (scope_is_direct((ScopeState *)scope) && !scope_is_closed((ScopeState *)scope)) {
        return scope;
    }
    do {
        Py_SETREF(scope, scopes_api->resolve(scope));
        if (scope == NULL || scope == Py_None) {
            Py_XDECREF(scope);
            return NULL;
        }
        /* Another thread may have closed it. */
    } while (scope_is_closed((ScopeState *)scope));
    return scope;
}

/* Like `owner`, but tries again after an error, and raises the error later. */
static PyObject *owner_in_any_case(PyTypeObject *type, bool *is_open)
{
    PyObject *scope = owner(type, is_open);
    if (scope != NULL || !PyErr_Occurred()) {
        return scope;
    }
    /* The error may be an interrupt, which does not come a second time. */
    PyObject *error = take_raised();
    scope = owner(type, is_open);
    if (scope == NULL && PyErr_Occurred()) {
        PyObject *again = take_raised();
        PyException_SetContext(again, error);
        error = again;
    }
    error_raise_later(error);
    return scope;
}

/* Makes the entry of a tensor object that is not initialised yet. No other code may run meanwhile,
 * so the garbage collector is paused. */
static void record(PyObject *tensor, PyObject *scope, bool is_open, PyObject *place)
{
    int collects = PyGC_Disable();
    PyObject *entry = scopes_api->born_pending(tensor, birth_watch->kind, scope);
    if (entry != NULL && is_open) {
        scopes_api->leave_birth_open((Entry *)entry);
    }
    if (entry == NULL || (budgets_are_asked() && thread_add_pending(entry) < 0) ||
        (PyList_GET_SIZE(scopes_api->listeners) != 0 &&
         memory_add(birth_watch->memory, entry, place, LOOK_WHOLE) < 0)) {
        error_raise_later(take_raised());
    }
    Py_XDECREF(entry);
    if (collects) {
        PyGC_Enable();
    }
}

/* What a detector does with a new tensor: nothing; note that its memory is not reported (KNOWN); or
 * report it, also as one whose memory came from a file or another process (REBUILT), or as a
 * gradient. */
enum watch { UNWATCHED, KNOWN, REPORTED, REBUILT, GRADIENT };

/* The `enum watch` of a tensor that is made now. Can run any code.
 *
 * - A tensor that a descriptor returns existed before, except a gradient, which nobody has seen.
 * - Tensors that are made while a graph is traced or a module is copied belong to graph or module.
 * - The result of a compiled function is seen elsewhere, when the function returns.
 * - Other tensors that this package itself reads, with torch functions disabled, are left for later.
 *   A gradient gets its Python object only once. */
static enum watch watch_of(PyTypeObject *type)
{
    int answer = is_born(type);
    int at_work = answer <= 0 ? 0 : thread_at_work();
    enum watch watch = answer <= 0 || (at_work & AT_WORK_COMPILED) ? UNWATCHED : REPORTED;
    if (watch == REPORTED && at_work >= 0) {
        bool is_read = descriptors_are_read();
        if (libtorch_functions_are_disabled() && !(is_read && gradient_is_read())) {
            return UNWATCHED;
        }
        bool is_known = (is_read && !gradient_is_read()) || (at_work & AT_WORK_TRACE);
        int refused = is_known ? 1 : code_refuses_births();
        int rebuilt = refused ? 0 : code_rebuilds();
        watch = refused ? KNOWN : rebuilt ? REBUILT : is_read ? GRADIENT : REPORTED;
        at_work = refused < 0 || rebuilt < 0 ? -1 : at_work;
    }
    if (answer < 0 || at_work < 0) {
        error_raise_later(take_raised());
        return UNWATCHED;
    }
    return watch;
}

/* The place of a tensor's birth for a detector: a new reference; NULL, without an error, if it is
 * not reported. Can run any code. */
static PyObject *place_of(enum watch watch)
{
    return watch < REPORTED ? NULL
           : watch == GRADIENT ? memory_place_of_gradient(birth_watch->memory)
                               : memory_place(birth_watch->memory);
}

/* Adds an unowned tensor for the detector. No other code may run meanwhile, because the tensor
 * object is not initialised yet. */
static void watch_unowned(PyObject *tensor, PyObject *place, enum watch watch)
{
    int collects = PyGC_Disable();
    PyObject *reference = PyWeakref_NewRef(tensor, NULL);
    enum manner manner = watch == KNOWN ? LOOK_KNOWN : watch == REBUILT ? LOOK_WHOLE : LOOK_UNOWNED;
    if (reference == NULL || memory_add(birth_watch->memory, reference, place, manner) < 0) {
        error_raise_later(take_raised());
    }
    Py_XDECREF(reference);
    if (collects) {
        PyGC_Enable();
    }
}

void births_look_again(PyObject *tensor)
{
    enum watch watch = memory_is_wanted(birth_watch->memory) ? watch_of(Py_TYPE(tensor)) : UNWATCHED;
    PyObject *place = place_of(watch);
    if (watch == KNOWN || place != NULL) {
        watch_unowned(tensor, place, watch);
    }
    Py_XDECREF(place);
}

/* Calls `settle` for disposals that wait for other threads: at the first, second, fourth, eighth
 * birth and so on since the first one waits. At every birth it would make all births slow while
 * another thread computes for long. */
static void settle_disposals(void)
{
    static unsigned births;
    if (PyList_GET_SIZE(birth_watch->waiting) == 0) {
        births = 0;
        return;
    }
    births++;
    if ((births & (births - 1)) == 0) {
        PyObject *done = PyObject_CallNoArgs(birth_watch->settle);
        if (done == NULL) {
            error_raise_later(take_raised());
        }
        Py_XDECREF(done);
    }
}

/* ------------------------------------------------------------------ the allocation of tensor objects */

/* Hides a new object from the garbage collector, so that no code can find it before PyTorch has
 * initialised it. A debug build of Python would traverse the object when it is tracked again, which
 * fails for an uninitialised tensor; there the collector is paused instead. */
static bool hide(PyObject *tensor)
{
#ifdef Py_DEBUG
    (void)tensor;
    return PyGC_Disable();
#else
    PyObject_GC_UnTrack(tensor);
    return true;
#endif
}

static void show(PyObject *tensor, bool hidden)
{
#ifdef Py_DEBUG
    (void)tensor;
    if (hidden) {
        PyGC_Enable();
    }
#else
    (void)hidden;
    PyObject_GC_Track(tensor);
#endif
}

/* The tp_alloc of classes of tensors; first of those for which `is_born` was not asked yet. */
static PyObject *allocate(PyTypeObject *type, Py_ssize_t items)
{
    PyObject *tensor = PyType_GenericAlloc(type, items);
    if (tensor == NULL) {
        return NULL;
    }
    birth_watch->allocations++;
    /* An exception that is set stays set. */
    PyObject *error, *value, *traceback;
    PyErr_Fetch(&error, &value, &traceback);
    bool hidden = hide(tensor);
    if (type == birth_watch->memory->tensor) {
        settle_disposals();
    }
    memory_look(birth_watch->memory);
    enum watch watch = memory_is_wanted(birth_watch->memory) ? watch_of(type) : UNWATCHED;
    PyObject *place = place_of(watch);
    bool is_urgent = place != NULL && memory_is_urgent(birth_watch->memory, place);
    bool is_open = false;
    PyObject *scope = owner_in_any_case(type, &is_open);
    if (scope != NULL) {
        record(tensor, scope, is_open, place);
        Py_DECREF(scope);
    }
    else if (watch == KNOWN || place != NULL) {
        watch_unowned(tensor, place, watch);
    }
    Py_XDECREF(place);
    if (is_urgent) {
        memory_look_soon(birth_watch->memory);
    }
    show(tensor, hidden);
    PyErr_Restore(error, value, traceback);
    return tensor;
}

/* The tp_alloc of classes whose instances a scope may own. */
static PyObject *allocate_born(PyTypeObject *type, Py_ssize_t items) { return allocate(type, items); }

/* The tp_alloc of classes whose instances no scope may own, such as parameters. The memory of
 * earlier tensors is recorded first: a parameter may be made of one of them, which is gone
 * afterwards. */
static PyObject *allocate_other(PyTypeObject *type, Py_ssize_t items)
{
    memory_look(birth_watch->memory);
    return PyType_GenericAlloc(type, items);
}

void births_watch_class(PyTypeObject *type)
{
    if (type->tp_alloc == PyType_GenericAlloc && PyType_IS_GC(type)) {
        type->tp_alloc = allocate;
    }
}

void births_leave_class(PyTypeObject *type)
{
    if (type->tp_alloc == allocate || type->tp_alloc == allocate_born || type->tp_alloc == allocate_other) {
        type->tp_alloc = PyType_GenericAlloc;
    }
}

int births_make(void)
{
    name_module = PyUnicode_InternFromString("__name__");
    return name_module == NULL ? -1 : 0;
}
