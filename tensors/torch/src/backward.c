/* The backward passes that are running. They run without the GIL and free what the nodes of their
 * graphs saved, which PyTorch lets others read without a lock: a leak report on another thread
 * would read a tensor that is being freed. So whoever reads asks which graphs are in use. */
#include "compiled.h"

/* All of them, the latest first: they lie on the stacks of their threads. Guarded by the GIL. */
static struct backward_pass *running;
/* How many have begun. */
static unsigned long long begun;
/* Its address stands for a thread. */
static _Thread_local char here;

void backward_begin(struct backward_pass *pass, PyObject *roots)
{
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

static bool is_elsewhere(const struct backward_pass *pass) { return pass->thread != &here; }

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
    /* The GIL is kept from here on, as the function is compiled. */
    return has_begun ? Py_NewRef(Py_NotImplemented) : PyObject_CallOneArg(arguments[1], arguments[2]);
}
