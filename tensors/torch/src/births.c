/* Births, seen where the Python object of a tensor gets its memory: every one of them, and nothing
 * else. */
#include "compiled.h"

#include <string.h>

#include "../../../scopes/src/shared/frames.h"
#include "../../../scopes/src/shared/raised.h"

BirthWatch *birth_watch;

/* ------------------------------------------------------------------ what the code that runs is to births */

/* In the order of the numbers in `births`. */
enum verdict { UNKNOWN, MAKES, KEEPS, PASSES, ASKS, REBUILDS, COMPOSES };

static PyObject *name_module;

/* Verdicts by code, which is held, so that an address means one code. A few that fall together
 * stand side by side, the newest first; a code that has lost its place is judged anew. */
enum { PLACES = 512, WAYS = 4 };
static struct known {
    PyObject *code;
    enum verdict verdict;
} known[PLACES][WAYS];

/* The name of the module whose code a frame runs, a new reference: None where it has none. NULL
 * with an error set. */
static PyObject *module_of(const struct walk *walk)
{
    PyObject *globals = walk_globals(walk);
    PyObject *name = globals != NULL && PyDict_Check(globals) ? PyDict_GetItemWithError(globals, name_module) : NULL;
    Py_XINCREF(name);
    Py_XDECREF(globals);
    return name != NULL || PyErr_Occurred() ? name : Py_NewRef(Py_None);
}

/* The verdict of the Python part about a code object. UNKNOWN with an error set. */
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

/* UNKNOWN with an error set. */
static enum verdict verdict_on(const struct walk *walk)
{
    PyObject *code = (PyObject *)walk_code(walk);
    struct known *place = known[((uintptr_t)code >> 5) % PLACES];
    for (int way = 0; way < WAYS; way++) {
        if (place[way].code == code) {
            return place[way].verdict;
        }
    }
    enum verdict verdict = judge((PyCodeObject *)code, walk);
    if (verdict == UNKNOWN) {
        return UNKNOWN;
    }
    PyObject *before = place[WAYS - 1].code;
    memmove(place + 1, place, (WAYS - 1) * sizeof *place);
    place[0] = (struct known){Py_NewRef(code), verdict};
    Py_XDECREF(before);
    return verdict;
}

/* Whether calls make births where the code alone does not decide it. -1 with an error set. */
static int asked(void)
{
    return take_truth(PyObject_CallNoArgs(birth_watch->judge_frames));
}

/* The verdict on the innermost code that is more than passed through. */
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

/* Whether it makes a tensor of memory that a file or another process handed over. -1 with an error
 * set. Can run Python code. */
static int code_rebuilds(void)
{
    struct walk walk;
    walk_begin(&walk);
    enum verdict verdict = walk_ended(&walk) ? MAKES : verdict_on(&walk);
    walk_end(&walk);
    return verdict == UNKNOWN ? -1 : verdict == REBUILDS;
}

/* Whether it is only after a look at the frames that it makes none: it copies a module, or traces a
 * graph. Likewise. */
static int code_refuses_births(void)
{
    enum verdict verdict = verdict_here();
    int made = verdict == UNKNOWN ? -1 : verdict == ASKS ? asked() : 1;
    return made < 0 ? -1 : !made;
}

/* What a tensor is that is made now: no birth, one, or one that is left open, since the code puts a
 * composite together. */
enum birth { NO_BIRTH, BIRTH, OPEN_BIRTH };

/* Which of these the code that runs on this thread makes. -1 with an error set. Can run Python
 * code. */
static int code_makes_births(void)
{
    switch (verdict_here()) {
    case UNKNOWN:
        return -1;
    case KEEPS:
        return NO_BIRTH;
    case ASKS:
        return asked();
    case COMPOSES:
        return OPEN_BIRTH;
    default:
        /* Also where no code but PyTorch's is there at all. */
        return BIRTH;
    }
}

/* ------------------------------------------------------------------ what makes no births on this thread */

/* How many functions that make no births run on this thread. */
static _Thread_local int depth;
/* The frame that reads a descriptor of PyTorch's on this thread, alive meanwhile, by its address;
 * the lowest bit says that the descriptor is that of a gradient. */
static _Thread_local uintptr_t reading;
/* Whether other code has made a tensor since. */
static _Thread_local bool others_made;
#define OF_A_GRADIENT ((uintptr_t)1)

/* Whether what a descriptor makes now is a gradient. */
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
    /* A descriptor that is read around this one has called other code. */
    others_made = before != 0;
    return made;
}

/* Whether a descriptor makes a Python object on this thread that is no birth, and no other code
 * runs that it has called: a mode's, or that of a class. */
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

/* ------------------------------------------------------------------ whose birth it is */

/* Whether a budget is to be asked, which the mode does when a call is over. */
static bool budgets_are_asked(void) { return PyDict_GET_SIZE(birth_watch->budgeted) != 0; }

static PyObject *allocate(PyTypeObject *type, Py_ssize_t items);
static PyObject *allocate_born(PyTypeObject *type, Py_ssize_t items);
static PyObject *allocate_other(PyTypeObject *type, Py_ssize_t items);

/* Whether a scope may own the instances of a class, which remembers it by where they get their
 * memory from. -1 with an error set. */
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

/* Has the mode on this thread's stack, which asks the budgets when the call is over. 1, or -1 with
 * an error set. */
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

/* What a tensor that is made now would be in a scope: see `enum birth`. -1 with an error set. */
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

/* The scope that a tensor belongs to which is being made, a new reference, and whether that birth
 * is left open; NULL for none, with or without an error set. Can run any code, but none between a
 * last look at the scope and the return. */
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

/* The same; an error is raised later. */
static PyObject *owner_in_any_case(PyTypeObject *type, bool *is_open)
{
    PyObject *scope = owner(type, is_open);
    if (scope != NULL || !PyErr_Occurred()) {
        return scope;
    }
    /* An interrupt says nothing about the tensor, and does not come a second time. */
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

/* Makes the entry of a tensor that has an address and nothing else. No other code runs meanwhile:
 * all it asks for is there, and the collector of garbage waits. */
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

/* What a detector does with a tensor that no scope owns. */
enum watch { UNWATCHED, KNOWN, REPORTED, REBUILT, GRADIENT };

/* Whether a detector is to hear of a tensor that is made now: what an attribute shows was there,
 * but for a gradient, which nobody has seen before; what is made while a graph is traced, or a
 * module is copied, is that one's; and a compiled function hands over its result. What this
 * library itself looks at, such as a gradient or what a graph saved, is left for others to see.
 * Can run any code. */
static enum watch watch_of(PyTypeObject *type)
{
    int answer = is_born(type);
    int at_work = answer <= 0 ? 0 : thread_at_work();
    enum watch watch = answer <= 0 || (at_work & AT_WORK_COMPILED) ? UNWATCHED : REPORTED;
    if (watch == REPORTED && at_work >= 0) {
        if (libtorch_functions_are_disabled()) {
            return UNWATCHED;
        }
        bool is_read = descriptors_are_read();
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

/* Where a tensor was made, as a detector reports it: a new reference; NULL, without an error, for
 * nowhere. Can run any code. */
static PyObject *place_of(enum watch watch)
{
    return watch < REPORTED ? NULL
           : watch == GRADIENT ? memory_place_of_gradient(birth_watch->memory)
                               : memory_place(birth_watch->memory);
}

/* Has a detector look at a tensor that no scope owns. No other code runs meanwhile: the tensor is
 * not filled. */
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

/* Has disposals looked at that wait for other threads: at the first, second, fourth, eighth birth,
 * and so on, since something waits, lest births beside a thread that computes for long are all
 * slower. */
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

/* ------------------------------------------------------------------ where tensors are allocated */

/* Code that runs before PyTorch has filled the object cannot find it: nothing refers to it, and the
 * collector, which others ask for objects, does not know it. A debug build of Python would go
 * through the object where it is given to the collector again, which PyTorch's are not made for;
 * there the collector does not run by itself meanwhile. */
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

/* What the classes of tensors get their instances' memory from, those of which it is not known
 * whether a scope may own them. */
static PyObject *allocate(PyTypeObject *type, Py_ssize_t items)
{
    PyObject *tensor = PyType_GenericAlloc(type, items);
    if (tensor == NULL) {
        return NULL;
    }
    birth_watch->allocations++;
    /* A caller may hold an exception, which stays. */
    PyObject *error, *value, *traceback;
    PyErr_Fetch(&error, &value, &traceback);
    bool hidden = hide(tensor);
    if (type == birth_watch->memory->tensor) {
        settle_disposals();
    }
    memory_look(birth_watch->memory);
    enum watch watch = memory_is_wanted(birth_watch->memory) ? watch_of(type) : UNWATCHED;
    PyObject *place = place_of(watch);
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
    show(tensor, hidden);
    PyErr_Restore(error, value, traceback);
    return tensor;
}

/* The same, and what those get it from that a scope may own. */
static PyObject *allocate_born(PyTypeObject *type, Py_ssize_t items) { return allocate(type, items); }

/* The same of those that it may not own, such as parameters. What was made before is looked at: it
 * may be what a parameter is made of, and gone afterwards, when its memory is the parameter's. */
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
