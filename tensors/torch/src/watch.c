/* The type `BirthWatch` of compiled.pyi. While it watches, it replaces the allocation of tensor
 * classes, the initialisation of new tensor classes, and some descriptors of PyTorch. */
#include "compiled.h"

#include <structmember.h>

/* ------------------------------------------------------------------ new classes of tensors */

/* Whether `birth_watch` watches now. */
static bool is_watching;
/* The original tp_init of the metaclass of tensors. */
static initproc init_of_classes;
/* The descriptor `__init__` of that metaclass, borrowed from it. */
static PyWrapperDescrObject *watched_descriptor;

/* Replaces tp_init of metaclasses of tensors: watches each new class. */
static int init_class(PyObject *type, PyObject *args, PyObject *kwargs)
{
    int failed = init_of_classes(type, args, kwargs);
    if (failed == 0 && PyType_Check(type)) {
        births_watch_class((PyTypeObject *)type);
    }
    return failed;
}

/* The descriptor of a compiled `__init__` that a metaclass itself defines: borrowed. NULL, without
 * an error, if it defines none. */
static PyWrapperDescrObject *init_descriptor(PyTypeObject *metatype)
{
    PyObject *descriptor = PyObject_GetAttrString((PyObject *)metatype, "__init__");
    bool fits = descriptor != NULL && metatype != &PyType_Type && Py_IS_TYPE(descriptor, &PyWrapperDescr_Type) &&
                PyDescr_TYPE(descriptor) == metatype &&
                *(initproc *)&((PyWrapperDescrObject *)descriptor)->d_wrapped == metatype->tp_init;
    PyErr_Clear();
    /* The metaclass keeps it alive. */
    Py_XDECREF(descriptor);
    return fits ? (PyWrapperDescrObject *)descriptor : NULL;
}

/* Replaces tp_init of the metaclasses of tensors. The descriptor is changed, too, because
 * metaclasses that are derived later inherit from it. A metaclass with its own `__init__` may call
 * this one; if it does not, its classes are not watched. */
static void watch_metatypes(PyObject *metatypes, PyWrapperDescrObject *descriptor)
{
    watched_descriptor = descriptor;
    init_of_classes = *(initproc *)&descriptor->d_wrapped;
    *(initproc *)&descriptor->d_wrapped = init_class;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(metatypes); i++) {
        PyTypeObject *metatype = (PyTypeObject *)PyTuple_GET_ITEM(metatypes, i);
        if (metatype->tp_init == init_of_classes) {
            metatype->tp_init = init_class;
        }
    }
}

/* ------------------------------------------------------------------ the type */

static PyObject *new_watch(PyTypeObject *type, PyObject *arguments, PyObject *options)
{
    static char *names[] = {"memory",  "kind",  "mode",         "budgeted", "waiting",   "passing", "settle",
                            "is_born", "is_overridden", "judge", "judge_frames", "give_up",  "push_mode", NULL};
    PyObject *memory, *kind, *mode, *budgeted, *waiting, *passing, *settle, *is_born, *is_overridden, *judge,
        *judge_frames, *give_up, *push_mode;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "$OOOOOOOOOOOOO:BirthWatch", names, &memory, &kind, &mode,
                                     &budgeted, &waiting, &passing, &settle, &is_born, &is_overridden, &judge,
                                     &judge_frames, &give_up, &push_mode)) {
        return NULL;
    }
    const struct argument given[] = {
        {"memory", memory, &memory_recorder_type},
        {"budgeted", budgeted, &PyDict_Type},
        {"waiting", waiting, &PyList_Type},
        {"passing", passing, &PyDict_Type},
        {"settle", settle, NULL},
        {"is_born", is_born, NULL},
        {"is_overridden", is_overridden, NULL},
        {"judge", judge, NULL},
        {"judge_frames", judge_frames, NULL},
        {"give_up", give_up, NULL},
        {"push_mode", push_mode, NULL},
    };
    BirthWatch *watch = arguments_fit("BirthWatch", given, sizeof given / sizeof given[0])
                            ? (BirthWatch *)type->tp_alloc(type, 0)
                            : NULL;
    if (watch != NULL) {
        watch->memory = (MemoryRecorder *)Py_NewRef(memory);
        watch->kind = Py_NewRef(kind);
        watch->mode = Py_NewRef(mode);
        watch->budgeted = Py_NewRef(budgeted);
        watch->waiting = Py_NewRef(waiting);
        watch->passing = Py_NewRef(passing);
        watch->settle = Py_NewRef(settle);
        watch->is_born = Py_NewRef(is_born);
        watch->is_overridden = Py_NewRef(is_overridden);
        watch->judge = Py_NewRef(judge);
        watch->judge_frames = Py_NewRef(judge_frames);
        watch->give_up = Py_NewRef(give_up);
        watch->push_mode = Py_NewRef(push_mode);
    }
    return (PyObject *)watch;
}

/* No tp_clear is needed: every cycle includes Python objects that can be cleared. */
static int traverse_watch(PyObject *self, visitproc visit, void *arg)
{
    const BirthWatch *watch = (BirthWatch *)self;
    Py_VISIT(watch->memory);
    Py_VISIT(watch->kind);
    Py_VISIT(watch->mode);
    Py_VISIT(watch->budgeted);
    Py_VISIT(watch->waiting);
    Py_VISIT(watch->passing);
    Py_VISIT(watch->settle);
    Py_VISIT(watch->is_born);
    Py_VISIT(watch->is_overridden);
    Py_VISIT(watch->judge);
    Py_VISIT(watch->judge_frames);
    Py_VISIT(watch->give_up);
    Py_VISIT(watch->push_mode);
    return 0;
}

static void dealloc_watch(PyObject *self)
{
    BirthWatch *watch = (BirthWatch *)self;
    PyObject_GC_UnTrack(self);
    Py_DECREF(watch->memory);
    Py_DECREF(watch->kind);
    Py_DECREF(watch->mode);
    Py_DECREF(watch->budgeted);
    Py_DECREF(watch->waiting);
    Py_DECREF(watch->passing);
    Py_DECREF(watch->settle);
    Py_DECREF(watch->is_born);
    Py_DECREF(watch->is_overridden);
    Py_DECREF(watch->judge);
    Py_DECREF(watch->judge_frames);
    Py_DECREF(watch->give_up);
    Py_DECREF(watch->push_mode);
    Py_TYPE(self)->tp_free(self);
}

/* Whether an object is a tuple of classes. False with an error set. */
static bool are_classes(const char *function, const char *name, PyObject *classes)
{
    const struct argument whole = {name, classes, &PyTuple_Type};
    bool fit = arguments_fit(function, &whole, 1);
    for (Py_ssize_t i = 0; fit && i < PyTuple_GET_SIZE(classes); i++) {
        const struct argument item = {name, PyTuple_GET_ITEM(classes, i), &PyType_Type};
        fit = arguments_fit(function, &item, 1);
    }
    return fit;
}

static void watch_classes(PyObject *classes)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); i++) {
        births_watch_class((PyTypeObject *)PyTuple_GET_ITEM(classes, i));
    }
}

static PyObject *start(PyObject *self, PyObject *arguments, PyObject *options)
{
    static const char *const function = "BirthWatch.start";
    static char *names[] = {"classes",  "metaclasses", "attributes", "numpy", "handing",
                            "backward", "libraries",   "transforms", NULL};
    PyObject *classes, *metaclasses, *attributes, *numpy, *handing, *backward, *libraries, *transforms;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "$OOOOOOOO:start", names, &classes, &metaclasses, &attributes,
                                     &numpy, &handing, &backward, &libraries, &transforms)) {
        return NULL;
    }
    const struct argument given[] = {
        {"attributes", attributes, &PyTuple_Type},
        {"handing", handing, &PyTuple_Type},
        {"libraries", libraries, &PyTuple_Type},
        {"transforms", transforms, &PyLong_Type},
    };
    if (!are_classes(function, "classes", classes) || !are_classes(function, "metaclasses", metaclasses) ||
        !arguments_fit(function, given, sizeof given / sizeof given[0])) {
        return NULL;
    }
    unsigned long key = PyLong_AsUnsignedLong(transforms);
    if (key == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    if (!is_watching) {
        PyTypeObject *tensor = ((BirthWatch *)self)->memory->tensor;
        PyWrapperDescrObject *descriptor = PyTuple_GET_SIZE(metaclasses) == 0
                                               ? NULL
                                               : init_descriptor((PyTypeObject *)PyTuple_GET_ITEM(metaclasses, 0));
        if (descriptor == NULL || tensor->tp_alloc != PyType_GenericAlloc || !PyType_IS_GC(tensor)) {
            Py_RETURN_FALSE;
        }
        int found = libtorch_find(libraries, key);
        if (found <= 0 || !descriptors_fit(attributes, numpy, handing, backward)) {
            return found < 0 ? NULL : Py_NewRef(Py_False);
        }
        Py_XSETREF(birth_watch, (BirthWatch *)Py_NewRef(self));
        descriptors_watch(attributes, numpy, handing, backward);
        watch_metatypes(metaclasses, descriptor);
        is_watching = true;
    }
    else if (birth_watch != (BirthWatch *)self) {
        /* An interrupt ended the installation that started the other watch. */
        Py_SETREF(birth_watch, (BirthWatch *)Py_NewRef(self));
    }
    watch_classes(classes);
    Py_RETURN_TRUE;
}

static PyObject *add_classes(PyObject *self, PyObject *classes)
{
    if (!are_classes("BirthWatch.add_classes", "classes", classes)) {
        return NULL;
    }
    if (is_watching && birth_watch == (BirthWatch *)self) {
        watch_classes(classes);
    }
    Py_RETURN_NONE;
}

static PyObject *stop(PyObject *self, PyObject *arguments, PyObject *options)
{
    static char *names[] = {"classes", "metaclasses", NULL};
    PyObject *classes, *metaclasses;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "$OO:stop", names, &classes, &metaclasses)) {
        return NULL;
    }
    if (!are_classes("BirthWatch.stop", "classes", classes) ||
        !are_classes("BirthWatch.stop", "metaclasses", metaclasses)) {
        return NULL;
    }
    if (!is_watching || birth_watch != (BirthWatch *)self) {
        Py_RETURN_NONE;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); i++) {
        births_leave_class((PyTypeObject *)PyTuple_GET_ITEM(classes, i));
    }
    *(initproc *)&watched_descriptor->d_wrapped = init_of_classes;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(metaclasses); i++) {
        PyTypeObject *metatype = (PyTypeObject *)PyTuple_GET_ITEM(metaclasses, i);
        if (metatype->tp_init == init_class) {
            metatype->tp_init = init_of_classes;
        }
    }
    descriptors_leave();
    is_watching = false;
    Py_RETURN_NONE;
}

static PyMethodDef methods_of_watches[] = {
    {"add_classes", add_classes, METH_O, NULL},
    {"start", (PyCFunction)(void (*)(void))start, METH_VARARGS | METH_KEYWORDS, NULL},
    {"stop", (PyCFunction)(void (*)(void))stop, METH_VARARGS | METH_KEYWORDS, NULL},
    {0},
};

static PyMemberDef members_of_watches[] = {
    {"allocations", T_ULONGLONG, offsetof(BirthWatch, allocations), READONLY, NULL},
    {0},
};

static PyTypeObject birth_watch_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.tensors.torch.compiled.BirthWatch",
    .tp_doc = "Sees each tensor where its Python object is allocated.",
    .tp_basicsize = sizeof(BirthWatch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = new_watch,
    .tp_dealloc = dealloc_watch,
    .tp_traverse = traverse_watch,
    .tp_methods = methods_of_watches,
    .tp_members = members_of_watches,
};

int watch_make(PyObject *module) { return PyModule_AddType(module, &birth_watch_type); }
