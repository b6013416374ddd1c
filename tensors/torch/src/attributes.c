#include "attributes.h"

#include "../../../leaks/births/src/frames.h"

enum { AT_MOST = 8 };

struct attribute {
    /* What the descriptor refers to from now on, and what it referred to. */
    PyGetSetDef definition;
    const PyGetSetDef *before;
};

static struct attribute attributes[AT_MOST];
static PyMethodDef method;
static PyCFunctionWithKeywords numpy_before;
static PyObject *assigned_function, *names_of_passing;
/* How many functions that make no births run on this thread. */
static _Thread_local int depth;
/* The frame that reads an attribute on this thread, alive meanwhile. */
static _Thread_local const void *reading;

bool attributes_make_unborn(void) { return depth != 0; }

bool attributes_are_read(void)
{
    if (reading == NULL) {
        return false;
    }
    struct walk walk;
    walk_begin(&walk);
    bool directly = walk_ended(&walk) || walk.frame == reading;
    if (!directly) {
        PyObject *names = walk_globals(&walk);
        directly = names == names_of_passing;
        Py_XDECREF(names);
    }
    walk_end(&walk);
    return directly;
}

static PyObject *read_attribute(PyObject *tensor, void *closure)
{
    const PyGetSetDef *definition = ((struct attribute *)closure)->before;
    const void *before = reading;
    struct walk walk;
    walk_begin(&walk);
    reading = walk.frame;
    PyObject *value = definition->get(tensor, definition->closure);
    reading = before;
    walk_end(&walk);
    return value;
}

static int assign_attribute(PyObject *tensor, PyObject *value, void *closure)
{
    const PyGetSetDef *before = ((struct attribute *)closure)->before;
    if (before->set(tensor, value, before->closure) < 0) {
        return -1;
    }
    if (value == NULL || value == Py_None) {
        return 0;
    }
    PyObject *done = PyObject_CallOneArg(assigned_function, value);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *call_numpy(PyObject *tensor, PyObject *args, PyObject *kwargs)
{
    const void *before = reading;
    struct walk walk;
    walk_begin(&walk);
    reading = walk.frame;
    PyObject *array = numpy_before(tensor, args, kwargs);
    reading = before;
    walk_end(&walk);
    return array;
}

PyObject *attributes_unborn(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 2) {
        PyErr_SetString(PyExc_TypeError, "unborn() takes a function and its argument");
        return NULL;
    }
    depth++;
    PyObject *result = PyObject_CallOneArg(arguments[0], arguments[1]);
    depth--;
    return result;
}

bool attributes_watch(PyObject *descriptors, PyObject *numpy, PyObject *passing, PyObject *assigned)
{
    Py_ssize_t number = PyTuple_GET_SIZE(descriptors);
    bool fit = number <= AT_MOST && Py_IS_TYPE(numpy, &PyMethodDescr_Type) &&
               ((PyMethodDescrObject *)numpy)->d_method->ml_flags == (METH_VARARGS | METH_KEYWORDS);
    for (Py_ssize_t i = 0; fit && i < number; i++) {
        PyObject *descriptor = PyTuple_GET_ITEM(descriptors, i);
        fit = Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) && ((PyGetSetDescrObject *)descriptor)->d_getset->get != NULL;
    }
    if (!fit) {
        return false;
    }
    assigned_function = Py_NewRef(assigned);
    names_of_passing = Py_NewRef(passing);
    for (Py_ssize_t i = 0; i < number; i++) {
        PyGetSetDescrObject *descriptor = (PyGetSetDescrObject *)Py_NewRef(PyTuple_GET_ITEM(descriptors, i));
        struct attribute *attribute = &attributes[i];
        attribute->before = descriptor->d_getset;
        attribute->definition = *attribute->before;
        attribute->definition.get = read_attribute;
        attribute->definition.set = attribute->before->set == NULL ? NULL : assign_attribute;
        attribute->definition.closure = attribute;
        descriptor->d_getset = &attribute->definition;
    }
    PyMethodDescrObject *descriptor = (PyMethodDescrObject *)Py_NewRef(numpy);
    method = *descriptor->d_method;
    numpy_before = (PyCFunctionWithKeywords)(void (*)(void))method.ml_meth;
    method.ml_meth = (PyCFunction)(void (*)(void))call_numpy;
    descriptor->d_method = &method;
    return true;
}
