/* The backward passes that are running. A pass runs without the GIL and frees tensors that the
 * nodes of its graph saved. PyTorch lets other threads read these without a lock, so that a leak
 * report on another thread could read a tensor that is being freed. Therefore a report asks which
 * graphs are in use.
 *
 * Before PyTorch 2.13 that is not enough. A Python object that the report made or found loses its
 * node when the pass drops the node; before 2.10 it loses its tensor. There, a pass waits before it
 * begins while another thread is in a look, that is, reads graphs. */
#include "compiled.h"

/* The running passes, the latest first. Guarded by the GIL. */
static struct backward_pass *running;
/* How many passes have begun. */
static unsigned long long begun;
/* Its address stands for a thread. */
static _Thread_local char here;
/* Whether this thread is in a look. */
static _Thread_local bool looks;
/* Held by the thread that is in a look. NULL before the first look. */
static PyThread_type_lock look;

static bool is_elsewhere(const struct backward_pass *pass) { return pass->thread != &here; }

static bool runs_here(void)
{
    const struct backward_pass *pass = running;
    while (pass != NULL && is_elsewhere(pass)) {
        pass = pass->before;
    }
    return pass != NULL;
}

static void take_look(void)
{
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(look, WAIT_LOCK);
    Py_END_ALLOW_THREADS
}

void backward_begin(struct backward_pass *pass, PyObject *roots)
{
    /* Inside of a look or of another pass, this thread would wait for itself. */
    if (look != NULL && !looks && !runs_here()) {
        take_look();
        PyThread_release_lock(look);
    }
    *pass = (struct backward_pass){.roots = roots, .thread = &here, .before = running};
    if (running != NULL) {
        running->after = pass;
    }
    running = pass;
    begun++;
}

void backward_end(struct backward_pass *pass)
{
    if (pass->after != NULL) {
        pass->after->before = pass->before;
    }
    else {
        running = pass->before;
    }
    if (pass->before != NULL) {
        pass->before->after = pass->after;
    }
}

/* Ends a look when its capsule dies, so that an interrupt ends it too. */
static void end_look(PyObject *capsule)
{
    if (PyCapsule_GetPointer(capsule, NULL) == &here && looks) {
        looks = false;
        PyThread_release_lock(look);
    }
}

PyObject *compiled_begin_look(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    if (looks || runs_here()) {
        Py_RETURN_NONE;
    }
    if (look == NULL && (look = PyThread_allocate_lock()) == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(&here, NULL, end_look);
    if (capsule != NULL) {
        take_look();
        looks = true;
    }
    return capsule;
}

PyObject *compiled_forget_backward(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    struct backward_pass *pass = running;
    while (pass != NULL) {
        struct backward_pass *before = pass->before;
        if (is_elsewhere(pass)) {
            backward_end(pass);
        }
        pass = before;
    }
    /* Another thread of the parent may have been in a look. Its lock is leaked, because a lock
     * cannot be freed while it is held. */
    if (look != NULL && !looks && (look = PyThread_allocate_lock()) == NULL) {
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

PyObject *compiled_backward_elsewhere(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PyObject *roots = PyList_New(0);
    unsigned long long number = begun;
    for (struct backward_pass *pass = running; pass != NULL && roots != NULL; pass = pass->before) {
        if (is_elsewhere(pass) && PyList_Append(roots, pass->roots) < 0) {
            Py_CLEAR(roots);
        }
    }
    return roots == NULL ? NULL : Py_BuildValue("KN", number, roots);
}

PyObject *compiled_read_between(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "read_between() takes a number, a function and its argument, not %zd", count);
        return NULL;
    }
    unsigned long long number = PyLong_AsUnsignedLongLong(arguments[0]);
    if (number == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    bool has_begun = false;
    for (struct backward_pass *pass = begun == number ? NULL : running; pass != NULL; pass = pass->before) {
        has_begun = has_begun || is_elsewhere(pass);
    }
    /* The function is compiled and keeps the GIL, so that no pass begins in between. */
    return has_begun ? Py_NewRef(Py_NotImplemented) : PyObject_CallOneArg(arguments[1], arguments[2]);
}
