/* Descriptors of PyTorch whose functions are replaced while births are watched:
 *
 * - Some make a Python object for a tensor that existed before (a gradient, a base), or for the
 *   tensor under the array that `numpy()` returns. These are no births.
 * - A tensor that is assigned to a gradient belongs to the parameter from then on.
 * - `data`, `set_` and `untyped_storage` hand memory on to another tensor or object. The tensor
 *   that gives it may be gone before the next one is made, so the latest tensors are looked at
 *   before.
 * - A backward pass makes gradients, which nobody sees before they are read. The place of the call
 *   is remembered for them, and that the graphs are in use meanwhile. */
#include "compiled.h"

#include <string.h>

#include "../../../scopes/src/shared/frames.h"
#include "../../../scopes/src/shared/raised.h"

/* So many attributes can be replaced. */
enum { MAX_ATTRIBUTES = 8 };

struct attribute {
    /* The new definition of the descriptor, and the original one. */
    PyGetSetDef definition;
    PyGetSetDef *before;
    /* Owned while it is replaced; NULL otherwise. */
    PyGetSetDescrObject *descriptor;
};

/* The same for a method. */
struct method {
    PyMethodDef definition;
    PyMethodDef *before;
    PyMethodDescrObject *descriptor;
};

static struct attribute read_attributes[MAX_ATTRIBUTES], data_attribute;
static struct method numpy_method, set_method, storage_method, backward_method;

static PyObject *name_is_leaf, *name_retains_grad;

int descriptors_make(void)
{
    name_is_leaf = PyUnicode_InternFromString("is_leaf");
    name_retains_grad = PyUnicode_InternFromString("retains_grad");
    return name_is_leaf == NULL || name_retains_grad == NULL ? -1 : 0;
}

/* Calls the original function of a method. */
static PyObject *call_before(const struct method *method, PyObject *self, PyObject *args, PyObject *kwargs)
{
    return ((PyCFunctionWithKeywords)(void (*)(void))method->before->ml_meth)(self, args, kwargs);
}

/* ------------------------------------------------------------------ attributes of gradients, and `numpy` */

static PyObject *read_attribute(PyObject *tensor, void *closure)
{
    const PyGetSetDef *definition = ((struct attribute *)closure)->before;
    struct walk walk;
    walk_begin(&walk);
    uintptr_t before = births_begin_reading(walk.frame, strcmp(definition->name, "_base") != 0);
    PyObject *value = definition->get(tensor, definition->closure);
    births_end_reading(before);
    walk_end(&walk);
    return value;
}

/* Whether the gradient of a tensor can be read without side effects: no ``__torch_function__`` is
 * called, and PyTorch does not warn that the tensor has none. -1 with an error set. */
static int may_be_read(PyObject *tensor)
{
    PyObject *tensors = PyTuple_Pack(1, tensor);
    PyObject *overridden = tensors == NULL ? NULL : PyObject_CallOneArg(birth_watch->is_overridden, tensors);
    Py_XDECREF(tensors);
    int answer = overridden == NULL ? -1 : overridden == Py_False;
    Py_XDECREF(overridden);
    if (answer > 0 && (answer = take_truth(PyObject_GetAttr(tensor, name_is_leaf))) == 0) {
        answer = take_truth(PyObject_GetAttr(tensor, name_retains_grad));
    }
    return answer;
}

/* If None is assigned, the old gradient is kept alive until PyTorch has removed it. Otherwise it
 * would die while the tensor still refers to it and other threads run; a report on another thread
 * that reads the gradient then would crash. */
static int assign_attribute(PyObject *tensor, PyObject *value, void *closure)
{
    const PyGetSetDef *before = ((struct attribute *)closure)->before;
    int readable = value == NULL || value == Py_None ? may_be_read(tensor) : 0;
    PyObject *earlier = readable < 0 ? NULL : readable ? read_attribute(tensor, closure) : Py_NewRef(Py_None);
    if (earlier == NULL) {
        return -1;
    }
    int failed = before->set(tensor, value, before->closure);
    Py_DECREF(earlier);
    if (failed < 0) {
        return -1;
    }
    if (value == NULL || value == Py_None) {
        return 0;
    }
    PyObject *done = PyObject_CallOneArg(birth_watch->give_up, value);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Make the tensor under an array unowned, which a dispatch mode may have made: its disposal would
 * take the array's memory. False with an exception. */
static bool keep_base(PyObject *array, const PyObject *tensor)
{
    PyObject *base = PyObject_GetAttrString(array, "base");
    if (base == NULL) {
        return false;
    }
    PyObject *done = base != tensor && PyObject_TypeCheck(base, birth_watch->memory->tensor)
                         ? PyObject_CallOneArg(birth_watch->give_up, base)
                         : Py_NewRef(Py_None);
    Py_DECREF(base);
    Py_XDECREF(done);
    return done != NULL;
}

static PyObject *call_numpy(PyObject *tensor, PyObject *args, PyObject *kwargs)
{
    struct walk walk;
    walk_begin(&walk);
    uintptr_t before = births_begin_reading(walk.frame, false);
    PyObject *array = call_before(&numpy_method, tensor, args, kwargs);
    bool made = births_end_reading(before);
    walk_end(&walk);
    if (made && array != NULL && !keep_base(array, tensor)) {
        Py_CLEAR(array);
    }
    return array;
}

/* ------------------------------------------------------------------ `data`, `set_` and `untyped_storage` */

static int set_data(PyObject *tensor, PyObject *value, void *closure)
{
    memory_look(birth_watch->memory);
    int result = data_attribute.before->set(tensor, value, closure);
    if (result < 0 && value != NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        /* For a disposed `value`, PyTorch's message speaks of another type of tensor. Reading an
         * attribute of it raises the `DisposedError` instead. */
        PyObject *raised = take_raised();
        PyObject *shape = PyObject_GetAttrString(value, "shape");
        if (shape != NULL) {
            put_raised(raised);
            Py_DECREF(shape);
        }
        Py_XDECREF(raised);
    }
    return result;
}

static PyObject *call_set(PyObject *tensor, PyObject *args, PyObject *kwargs)
{
    bool takes_a_tensor =
        PyTuple_GET_SIZE(args) != 0 && PyObject_TypeCheck(PyTuple_GET_ITEM(args, 0), birth_watch->memory->tensor);
    if (takes_a_tensor) {
        memory_look(birth_watch->memory);
    }
    PyObject *result = call_before(&set_method, tensor, args, kwargs);
    if (result != NULL && !takes_a_tensor) {
        births_look_again(tensor);
    }
    return result;
}

static PyObject *call_storage(PyObject *tensor, PyObject *ignored)
{
    memory_look(birth_watch->memory);
    return storage_method.before->ml_meth(tensor, ignored);
}

/* ------------------------------------------------------------------ backward passes */

/* Only a pass that accumulates makes gradients; `torch.autograd.grad` returns its results. */
static PyObject *call_backward(PyObject *engine, PyObject *args, PyObject *kwargs)
{
    PyObject *accumulates = kwargs == NULL ? NULL : PyDict_GetItemString(kwargs, "accumulate_grad");
    if (accumulates == Py_True) {
        memory_begin_backward(birth_watch->memory);
    }
    PyObject *roots = PyTuple_GET_SIZE(args) != 0 ? PyTuple_GET_ITEM(args, 0)
                      : kwargs == NULL           ? NULL
                                                 : PyDict_GetItemString(kwargs, "tensors");
    struct backward_pass pass;
    backward_begin(&pass, roots == NULL ? Py_None : roots);
    PyObject *result = call_before(&backward_method, engine, args, kwargs);
    backward_end(&pass);
    return result;
}

/* ------------------------------------------------------------------ replacing the descriptors' functions */

static bool is_attribute(PyObject *descriptor)
{
    return Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) && ((PyGetSetDescrObject *)descriptor)->d_getset->get != NULL;
}

static bool is_method(PyObject *descriptor, int flags)
{
    return Py_IS_TYPE(descriptor, &PyMethodDescr_Type) &&
           ((PyMethodDescrObject *)descriptor)->d_method->ml_flags == flags;
}

/* The indexes of the descriptors that hand memory on, in the tuple `handing`. */
enum { DATA, SET, UNTYPED_STORAGE, HANDING };

bool descriptors_fit(PyObject *attributes, PyObject *numpy, PyObject *handing, PyObject *backward)
{
    Py_ssize_t number = PyTuple_GET_SIZE(attributes);
    bool fit = number <= MAX_ATTRIBUTES && is_method(numpy, METH_VARARGS | METH_KEYWORDS) &&
               PyTuple_GET_SIZE(handing) == HANDING && is_method(backward, METH_VARARGS | METH_KEYWORDS);
    for (Py_ssize_t i = 0; fit && i < number; i++) {
        fit = is_attribute(PyTuple_GET_ITEM(attributes, i));
    }
    return fit && is_attribute(PyTuple_GET_ITEM(handing, DATA)) &&
           ((PyGetSetDescrObject *)PyTuple_GET_ITEM(handing, DATA))->d_getset->set != NULL &&
           is_method(PyTuple_GET_ITEM(handing, SET), METH_VARARGS | METH_KEYWORDS) &&
           is_method(PyTuple_GET_ITEM(handing, UNTYPED_STORAGE), METH_NOARGS);
}

/* Copies the definition of a descriptor, for the caller to change it and to install it. */
static PyGetSetDef *take_attribute(struct attribute *attribute, PyObject *descriptor)
{
    attribute->descriptor = (PyGetSetDescrObject *)Py_NewRef(descriptor);
    attribute->before = attribute->descriptor->d_getset;
    attribute->definition = *attribute->before;
    return &attribute->definition;
}

static void replace_method(struct method *method, PyObject *descriptor, PyCFunction replacement)
{
    method->descriptor = (PyMethodDescrObject *)Py_NewRef(descriptor);
    method->before = method->descriptor->d_method;
    method->definition = *method->before;
    method->definition.ml_meth = replacement;
    method->descriptor->d_method = &method->definition;
}

void descriptors_watch(PyObject *attributes, PyObject *numpy, PyObject *handing, PyObject *backward)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(attributes); i++) {
        struct attribute *attribute = &read_attributes[i];
        PyGetSetDef *definition = take_attribute(attribute, PyTuple_GET_ITEM(attributes, i));
        definition->get = read_attribute;
        definition->set = definition->set == NULL ? NULL : assign_attribute;
        definition->closure = attribute;
        attribute->descriptor->d_getset = definition;
    }
    PyGetSetDef *data = take_attribute(&data_attribute, PyTuple_GET_ITEM(handing, DATA));
    data->set = set_data;
    data_attribute.descriptor->d_getset = data;
    replace_method(&numpy_method, numpy, (PyCFunction)(void (*)(void))call_numpy);
    replace_method(&set_method, PyTuple_GET_ITEM(handing, SET), (PyCFunction)(void (*)(void))call_set);
    replace_method(&storage_method, PyTuple_GET_ITEM(handing, UNTYPED_STORAGE), call_storage);
    replace_method(&backward_method, backward, (PyCFunction)(void (*)(void))call_backward);
}

/* `before` stays set, because another thread may be in a replacement that still calls it. */
static void put_attribute_back(struct attribute *attribute)
{
    if (attribute->descriptor != NULL) {
        attribute->descriptor->d_getset = attribute->before;
        Py_CLEAR(attribute->descriptor);
    }
}

static void put_method_back(struct method *method)
{
    method->descriptor->d_method = method->before;
    Py_CLEAR(method->descriptor);
}

void descriptors_leave(void)
{
    for (size_t i = 0; i < MAX_ATTRIBUTES; i++) {
        put_attribute_back(&read_attributes[i]);
    }
    put_attribute_back(&data_attribute);
    put_method_back(&numpy_method);
    put_method_back(&set_method);
    put_method_back(&storage_method);
    put_method_back(&backward_method);
}
