#include "calls.h"

#include "calls_slots.h"
#include "trampolines.h"

enum { ATTRIBUTES = 8, PLACES = 4096 };

/* An entry of a table of methods, and what it says by itself. */
struct method {
    PyMethodDef *entry;
    PyCFunction before;
    PyObject *name;
};

struct function {
    PyCFunctionObject *function;
    PyObject *name;
};

/* An attribute: what its descriptor refers to while calls are watched, and what by itself. */
struct attribute {
    PyGetSetDef definition;
    PyGetSetDescrObject *descriptor;
    PyGetSetDef *before;
};

static struct method methods[TRAMPOLINES];
static int count_of_methods;
/* By address. */
static struct function functions[PLACES];
static int count_of_functions;
static struct attribute attributes[ATTRIBUTES];
static int count_of_attributes;
static told_of_call tell_call;
static told_of_assignment tell_assignment;
static bool watched;
/* How many of them run on this thread, one inside of the other. */
static _Thread_local int running;

/* ------------------------------------------------------------------ calls */

void calls_begun(void) { running++; }

PyObject *calls_ended(PyObject *result)
{
    running--;
    return result;
}

PyObject *calls_over(const struct call *call, PyObject *result)
{
    running--;
    if (result != NULL && tell_call(call, result) < 0) {
        Py_CLEAR(result);
    }
    return result;
}

PyObject *call_of_two(int number, PyObject *self, PyObject *argument)
{
    const struct call call = {methods[number].name, self, argument, NULL};
    calls_begun();
    return calls_over(&call, methods[number].before(self, argument));
}

PyObject *call_of_three(int number, PyObject *self, PyObject *arguments, PyObject *named)
{
    const struct call call = {methods[number].name, self, arguments, named};
    calls_begun();
    return calls_over(&call, ((PyCFunctionWithKeywords)(void (*)(void))methods[number].before)(self, arguments, named));
}

/* The place of a function among those that were found, or the one where it is missing. */
static struct function *place_of(const PyObject *function)
{
    size_t at = ((size_t)(uintptr_t)function >> 4) * 0x9E3779B1u % PLACES;
    while (functions[at].function != NULL && (PyObject *)functions[at].function != function) {
        at = (at + 1) % PLACES;
    }
    return &functions[at];
}

/* What Python does by itself for a function that wants a tuple and a dict. */
static PyObject *call_function(PyObject *callable, PyObject *const *given, size_t flags, PyObject *names)
{
    Py_ssize_t count = PyVectorcall_NARGS(flags), count_of_names = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    PyObject *arguments = PyTuple_New(count), *named = count_of_names == 0 ? NULL : PyDict_New(), *result = NULL;
    if (arguments != NULL && (count_of_names == 0 || named != NULL)) {
        for (Py_ssize_t i = 0; i < count; i++) {
            PyTuple_SET_ITEM(arguments, i, Py_NewRef(given[i]));
        }
        int failed = 0;
        for (Py_ssize_t i = 0; failed == 0 && i < count_of_names; i++) {
            failed = PyDict_SetItem(named, PyTuple_GET_ITEM(names, i), given[count + i]);
        }
        if (failed == 0 && Py_EnterRecursiveCall(" while calling a Python object") == 0) {
            PyObject *self = PyCFunction_GET_SELF(callable);
            PyCFunction function = PyCFunction_GET_FUNCTION(callable);
            const struct call call = {place_of(callable)->name, self, arguments, named};
            calls_begun();
            result = calls_over(&call, ((PyCFunctionWithKeywords)(void (*)(void))function)(self, arguments, named));
            Py_LeaveRecursiveCall();
        }
    }
    Py_XDECREF(arguments);
    Py_XDECREF(named);
    return result;
}

static PyObject *read_attribute(PyObject *tensor, void *closure)
{
    const PyGetSetDef *before = ((struct attribute *)closure)->before;
    return before->get(tensor, before->closure);
}

static int assign_attribute(PyObject *tensor, PyObject *value, void *closure)
{
    const struct attribute *attribute = closure;
    if (attribute->before->set(tensor, value, attribute->before->closure) < 0) {
        return -1;
    }
    return value == NULL ? 0 : tell_assignment(PyDescr_NAME(attribute->descriptor), tensor, value);
}

/* ------------------------------------------------------------------ finding */

static bool is_found(const PyMethodDef *entry)
{
    for (int i = 0; i < count_of_methods; i++) {
        if (methods[i].entry == entry) {
            return true;
        }
    }
    return false;
}

/* Whether a method could be put among those that are called through here, or is already. */
static bool find_method(PyObject *descriptor, PyObject *name)
{
    PyMethodDef *entry = ((PyMethodDescrObject *)descriptor)->d_method;
    int flags = entry->ml_flags & ~METH_CLASS;
    bool fits = flags == (METH_VARARGS | METH_KEYWORDS) || flags == METH_VARARGS || flags == METH_NOARGS || flags == METH_O;
    if (!fits || is_found(entry)) {
        return fits;
    }
    if (count_of_methods == TRAMPOLINES) {
        return false;
    }
    /* The table lives as long as the descriptor. */
    Py_INCREF(descriptor);
    methods[count_of_methods++] = (struct method){entry, entry->ml_meth, Py_XNewRef(name)};
    return true;
}

/* The same for a function; one that wants its arguments otherwise returns no tensor of its own. */
static bool find_function(PyObject *function, PyObject *name)
{
    struct function *place = place_of(function);
    int flags = PyCFunction_GET_FLAGS(function) & ~METH_STATIC;
    if (flags != (METH_VARARGS | METH_KEYWORDS) || ((PyCFunctionObject *)function)->vectorcall != NULL ||
        place->function != NULL) {
        return true;
    }
    if (count_of_functions == PLACES / 2) {
        return false;
    }
    *place = (struct function){(PyCFunctionObject *)Py_NewRef(function), Py_XNewRef(name)};
    count_of_functions++;
    return true;
}

static int find_functions(PyObject *pairs)
{
    bool fit = true;
    for (Py_ssize_t i = 0; fit && i < PyList_GET_SIZE(pairs); i++) {
        PyObject *function, *name;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(pairs, i), "OO", &function, &name)) {
            return -1;
        }
        name = name == Py_None ? NULL : name;
        if (PyCFunction_CheckExact(function)) {
            fit = find_function(function, name);
        }
        else {
            fit = (Py_IS_TYPE(function, &PyMethodDescr_Type) || Py_IS_TYPE(function, &PyClassMethodDescr_Type)) &&
                  find_method(function, name);
        }
    }
    return fit;
}

static bool find_attributes(PyObject *descriptors)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(descriptors); i++) {
        PyObject *descriptor = PyList_GET_ITEM(descriptors, i);
        if (i == ATTRIBUTES || !Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) ||
            ((PyGetSetDescrObject *)descriptor)->d_getset->get == NULL ||
            ((PyGetSetDescrObject *)descriptor)->d_getset->set == NULL) {
            return false;
        }
        attributes[count_of_attributes++].descriptor = (PyGetSetDescrObject *)Py_NewRef(descriptor);
    }
    return true;
}

int calls_find(PyObject *pairs, PyObject *descriptors, PyObject *items, PyObject *constructors, told_of_call call,
               told_of_assignment assignment)
{
    tell_call = call;
    tell_assignment = assignment;
    int found = find_functions(pairs);
    return found <= 0 ? found : find_attributes(descriptors) && slots_find(items, constructors);
}

/* ------------------------------------------------------------------ beginning and ending */

static void change_functions(vectorcallfunc from, vectorcallfunc to)
{
    for (size_t at = 0; at < PLACES; at++) {
        PyCFunctionObject *function = functions[at].function;
        if (function != NULL && function->vectorcall == from) {
            function->vectorcall = to;
        }
    }
}

static PyCFunction trampoline_of(int number)
{
    bool of_three = methods[number].entry->ml_flags & METH_KEYWORDS;
    return of_three ? (PyCFunction)(void (*)(void))trampolines_of_three[number] : trampolines_of_two[number];
}

void calls_begin(void)
{
    if (watched) {
        return;
    }
    watched = true;
    for (int i = 0; i < count_of_methods; i++) {
        if (methods[i].entry->ml_meth == methods[i].before) {
            methods[i].entry->ml_meth = trampoline_of(i);
        }
    }
    change_functions(NULL, call_function);
    slots_begin();
    for (int i = 0; i < count_of_attributes; i++) {
        struct attribute *attribute = &attributes[i];
        attribute->before = attribute->descriptor->d_getset;
        attribute->definition = *attribute->before;
        attribute->definition.get = read_attribute;
        attribute->definition.set = assign_attribute;
        attribute->definition.closure = attribute;
        attribute->descriptor->d_getset = &attribute->definition;
    }
}

void calls_end(void)
{
    if (!watched) {
        return;
    }
    watched = false;
    change_functions(call_function, NULL);
    for (int i = 0; i < count_of_methods; i++) {
        /* Who else has changed it may call what was there, now or later: that goes on calling what was there before. */
        if (methods[i].entry->ml_meth == trampoline_of(i)) {
            methods[i].entry->ml_meth = methods[i].before;
        }
    }
    slots_end();
    for (int i = 0; i < count_of_attributes; i++) {
        attributes[i].descriptor->d_getset = attributes[i].before;
    }
}

bool calls_are_watched(void) { return watched; }
bool calls_are_running(void) { return running != 0; }
