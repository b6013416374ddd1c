#include "_torch_hot_attributes.h"

enum { AT_MOST = 8 };

struct attribute {
    /* What the descriptor refers to from now on, and what it referred to. */
    PyGetSetDef definition;
    const PyGetSetDef *before;
};

static struct attribute attributes[AT_MOST];
static PyMethodDef method;
static PyCFunctionWithKeywords numpy_before;
static PyObject *assigned_function;
static _Thread_local int depth;

bool attributes_are_read(void) { return depth != 0; }

static PyObject *read_attribute(PyObject *tensor, void *closure)
{
    const PyGetSetDef *before = ((struct attribute *)closure)->before;
    depth++;
    PyObject *value = before->get(tensor, before->closure);
    depth--;
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
    depth++;
    PyObject *array = numpy_before(tensor, args, kwargs);
    depth--;
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

int attributes_watch(PyObject *descriptors, PyObject *numpy, PyObject *assigned)
{
    Py_ssize_t number = PyTuple_GET_SIZE(descriptors);
    bool fit = number <= AT_MOST && Py_IS_TYPE(numpy, &PyMethodDescr_Type) &&
               ((PyMethodDescrObject *)numpy)->d_method->ml_flags == (METH_VARARGS | METH_KEYWORDS);
    for (Py_ssize_t i = 0; fit && i < number; i++) {
        PyObject *descriptor = PyTuple_GET_ITEM(descriptors, i);
        fit = Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) && ((PyGetSetDescrObject *)descriptor)->d_getset->get != NULL;
    }
    if (!fit) {
        PyErr_SetString(PyExc_TypeError, "an attribute of PyTorch's is none");
        return -1;
    }
    assigned_function = Py_NewRef(assigned);
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
    return 0;
}
