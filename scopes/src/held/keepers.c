/* Which of the resources that a scope owns when its block ends belong to a keeper: an object that
 * keeps what it holds, such as a model. The search begins at the variables of running frames. */
#include "holding.h"

/* ------------------------------------------------------------------ which objects keep what they hold */

/* What the search does with the instances of a class, or with a module: look into it, treat it as a
 * keeper, or leave it out. UNKNOWN: `judge` has not been asked yet. The first three have the
 * numbers of `_LOOK_INTO`, `_KEEPER` and `_LOOK_PAST` in tree_walk.py. */
enum look { LOOK_INTO, LOOK_KEEPER, LOOK_PAST, LOOK_UNKNOWN };

/* The arguments `looks` and `judge` of `kept_entries` (see compiled.pyi): a cache of the answers,
 * and the function that gives them. Borrowed. */
struct judgements {
    PyObject *looks; /* a dict */
    PyObject *judge; /* a function */
};

/* The cache is emptied when it has so many answers: it keeps the names of modules and dead weak
 * references alive. */
enum { MAX_REMEMBERED = 4096 };

/* The cached answer for a class. The key is the address of the class, because a metaclass may
 * define its hash. The weak reference to the class tells whether the address is another class's by
 * now. Borrowed; NULL if there is no answer, and with an error set. */
static PyObject *look_remembered(const struct judgements *judgements, PyTypeObject *type)
{
    PyObject *key = PyLong_FromVoidPtr(type);
    PyObject *pair = key == NULL ? NULL : PyDict_GetItemWithError(judgements->looks, key);
    PyObject *now = pair == NULL ? NULL : referent_of(PyTuple_GET_ITEM(pair, 0));
    Py_XDECREF(key);
    /* The caller keeps `type` alive, and `now` is only compared with it. */
    Py_XDECREF(now);
    return now == (PyObject *)type ? PyTuple_GET_ITEM(pair, 1) : NULL;
}

/* The cached `enum look` of a class, or LOOK_UNKNOWN. -1 with an error set. Runs no Python code. */
static int look_known(const struct judgements *judgements, PyTypeObject *type)
{
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
        return LOOK_INTO;
    }
    PyObject *found = look_remembered(judgements, type);
    return found != NULL ? (int)PyLong_AsLong(found) : PyErr_Occurred() ? -1 : LOOK_UNKNOWN;
}

/* The `enum look` of a class, which is asked for if it is not cached. Runs Python code. -1 with an
 * error set. */
static int look_at(const struct judgements *judgements, PyTypeObject *type)
{
    int known = look_known(judgements, type);
    if (known != LOOK_UNKNOWN) {
        return known;
    }
    PyObject *found = PyObject_CallOneArg(judgements->judge, (PyObject *)type);
    if (found == NULL) {
        return -1;
    }
    long look = PyLong_AsLong(found);
    PyObject *reference = look < 0 ? NULL : PyWeakref_NewRef((PyObject *)type, NULL);
    PyObject *key = reference == NULL ? NULL : PyLong_FromVoidPtr(type);
    PyObject *pair = key == NULL ? NULL : PyTuple_Pack(2, reference, found);
    if (PyDict_GET_SIZE(judgements->looks) >= MAX_REMEMBERED) {
        PyDict_Clear(judgements->looks);
    }
    if (pair == NULL || PyDict_SetItem(judgements->looks, key, pair) < 0) {
        look = -1;
    }
    Py_XDECREF(pair);
    Py_XDECREF(key);
    Py_XDECREF(reference);
    Py_DECREF(found);
    return (int)look;
}

/* Whether the variables of a module and of its classes are searched, given the module's name. -1
 * with an error set. */
static int may_hold_keepers(const struct judgements *judgements, PyObject *name)
{
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(judgements->looks, name));
    if (found == NULL && !PyErr_Occurred() && (found = PyObject_CallOneArg(judgements->judge, name)) != NULL) {
        if (PyDict_GET_SIZE(judgements->looks) >= MAX_REMEMBERED) {
            PyDict_Clear(judgements->looks);
        }
        if (PyDict_SetItem(judgements->looks, name, found) < 0) {
            Py_CLEAR(found);
        }
    }
    long look = found == NULL ? -1 : PyLong_AsLong(found);
    Py_XDECREF(found);
    return look < 0 ? -1 : look == LOOK_INTO;
}

/* The bounds of the search, which keep the end of a block fast. */
enum {
    /* So many of the innermost running frames are searched. */
    MAX_FRAMES = 16,
    /* Of so many of them, the variables of their modules are searched too. */
    MAX_GLOBALS = 8,
    /* Of so many of them, references are followed through what only a variable refers to. */
    MAX_FOLLOWED_FRAMES = 4,
    /* Objects that are looked into from one frame, module or class, in a first round. */
    OBJECTS_AT_FIRST = 200,
    /* Objects that are looked into from all frames together, in a second round. */
    OBJECTS_AFTERWARDS = 2000,
    /* Objects that are looked into from all modules and classes that are met on the way. */
    OBJECTS_FROM_NAMESPACES = 1000,
    /* Objects that are looked into inside of one keeper. */
    OBJECTS_INSIDE_KEEPER = 20000,
    /* Elements of one container that are looked at outside of keepers. */
    MAX_ELEMENTS = 1000,
    /* Modules and classes that are remembered for the search. */
    MAX_NAMESPACES = 1000,
};

/* Where an object was met: outside of keepers, or inside of one. */
enum state { MET = 1, MET_INSIDE };

struct search {
    struct count *count;
    const struct judgements *judgements;
    /* By object, its `enum state`. Owns references to the objects. */
    struct table met;
    /* Objects that were met and are still to be looked into: outside of keepers, and inside of the
     * present keeper. The table `met` keeps them alive. `room` is the capacity of the array. */
    struct queue {
        PyObject **objects;
        Py_ssize_t first, end, room;
    } outside, inside;
    /* Classes, and the dicts of modules, that were met outside of keepers, each once: the code that
     * runs may call their functions, and so reach their variables. The table owns references. */
    struct queue namespaces;
    struct table namespaces_met;
    const PyObject *last_namespace;
    /* How many elements of the present container were looked at. */
    Py_ssize_t elements;
    /* How many resources have not been reached through a keeper yet, and those that have. */
    Py_ssize_t sought;
    struct table kept;
    bool is_inside, failed;
};

/* Appends an object to a queue. -1 with an error set. */
static int put_last(struct queue *queue, PyObject *object)
{
    if (queue->end == queue->room) {
        Py_ssize_t room = queue->room * 2 + 64;
        PyObject **objects = PyMem_Realloc(queue->objects, (size_t)room * sizeof *objects);
        if (objects == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        queue->objects = objects;
        queue->room = room;
    }
    queue->objects[queue->end++] = object;
    return 0;
}

/* Puts a class, or the dict of a module, into the queue of namespaces. Runs no Python code. */
static void meet_namespace(struct search *search, PyObject *namespace)
{
    if (search->is_inside || search->failed || namespace == search->last_namespace ||
        search->namespaces.end >= MAX_NAMESPACES) {
        return;
    }
    search->last_namespace = namespace;
    if (table_find(&search->namespaces_met, namespace) != NULL) {
        return;
    }
    if (table_add(&search->namespaces_met, namespace) == NULL) {
        search->failed = true;
        return;
    }
    Py_INCREF(namespace);
    search->failed = put_last(&search->namespaces, namespace) < 0;
}

/* Puts a class and its base classes into the queue of namespaces. */
static void meet_class(struct search *search, PyTypeObject *type)
{
    for (Py_ssize_t i = 0; !search->is_inside && type->tp_mro != NULL && i < PyTuple_GET_SIZE(type->tp_mro); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(type->tp_mro, i);
        if (base->tp_flags & Py_TPFLAGS_HEAPTYPE) {
            meet_namespace(search, (PyObject *)base);
        }
    }
}

static bool refers_only_to_its_module(const PyFunctionObject *function)
{
    return function->func_closure == NULL && function->func_defaults == NULL && function->func_kwdefaults == NULL &&
           function->func_dict == NULL;
}

/* Handles an object that the object which is looked into refers to: a resource inside of a keeper
 * is kept, and any other object is put into a queue. A visitproc; a non-zero result ends the
 * traversal. Runs no Python code. */
static int meet(PyObject *object, void *arg)
{
    struct search *search = arg;
    const Py_ssize_t *left = table_find(&search->count->left, object);
    if (left != NULL) {
        if (search->is_inside && *left > 0 && table_find(&search->kept, object) == NULL) {
            if (table_add(&search->kept, object) == NULL) {
                search->failed = true;
                return 1;
            }
            search->sought--;
        }
        return search->sought == 0;
    }
    if (!search->is_inside && ++search->elements > MAX_ELEMENTS) {
        return 1;
    }
    /* The queue is longer than what will be looked into. */
    if (search->is_inside && search->inside.end >= OBJECTS_INSIDE_KEEPER) {
        return 0;
    }
    if (PyType_Check(object)) {
        meet_class(search, (PyTypeObject *)object);
        return search->failed;
    }
    if (PyModule_Check(object)) {
        meet_namespace(search, PyModule_GetDict(object));
        return search->failed;
    }
    /* An object that the garbage collector does not track refers to no object that it tracks. */
    if (!PyObject_IS_GC(object) || PyCode_Check(object) || PyFrame_Check(object) || PyCFunction_Check(object) ||
        PyWeakref_Check(object) || Py_IS_TYPE(object, &PyGetSetDescr_Type) || Py_IS_TYPE(object, &PyMemberDescr_Type) ||
        !PyObject_GC_IsTracked(object)) {
        return 0;
    }
    if (PyFunction_Check(object) && refers_only_to_its_module((PyFunctionObject *)object)) {
        meet_namespace(search, ((PyFunctionObject *)object)->func_globals);
        return search->failed;
    }
    Py_ssize_t *state = table_find(&search->met, object), wanted = search->is_inside ? MET_INSIDE : MET;
    if (state != NULL && *state >= wanted) {
        return 0;
    }
    if (state == NULL) {
        if ((state = table_add(&search->met, object)) == NULL) {
            search->failed = true;
            return 1;
        }
        Py_INCREF(object);
    }
    *state = wanted;
    if (put_last(search->is_inside ? &search->inside : &search->outside, object) < 0) {
        search->failed = true;
        return 1;
    }
    return 0;
}

/* The newest first: what a block has added to a long list is at its end. */
static void meet_elements(PyObject *list, struct search *search)
{
    for (Py_ssize_t i = PyList_GET_SIZE(list) - 1; i >= 0 && i < PyList_GET_SIZE(list); i--) {
        if (meet(PyList_GET_ITEM(list, i), search)) {
            return;
        }
    }
}

/* Meets all objects that an object refers to. */
static void look_into(PyObject *object, struct search *search)
{
    search->elements = 0;
    if (PyList_CheckExact(object)) {
        meet_elements(object, search);
    }
    else if (PyFunction_Check(object)) {
        /* The globals of a function are a namespace. What they hold does not belong to a keeper
         * only because the keeper holds the function. */
        PyFunctionObject *function = (PyFunctionObject *)object;
        meet_namespace(search, function->func_globals);
        PyObject *parts[] = {function->func_closure, function->func_defaults, function->func_kwdefaults,
                             function->func_dict};
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            if (parts[i] != NULL && meet(parts[i], search)) {
                return;
            }
        }
    }
    else {
        meet_class(search, Py_TYPE(object));
        Py_TYPE(object)->tp_traverse(object, meet, search);
    }
}

/* Meets the value of a variable. A `variable_visitor`. */
static int meet_variable(PyObject *value, Py_ssize_t number, PyObject *name, bool is_own, int extra, void *arg)
{
    (void)number;
    (void)name;
    (void)is_own;
    (void)extra;
    struct search *search = arg;
    search->elements = 0;
    meet(value, search);
    return search->failed ? -1 : 0;
}

/* Meets the attributes of a keeper's class and its bases, such as a cache. */
static void meet_class_attributes(PyObject *keeper, struct search *search)
{
    PyObject *mro = Py_TYPE(keeper)->tp_mro;
    for (Py_ssize_t i = 0; mro != NULL && i < PyTuple_GET_SIZE(mro); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
        if ((base->tp_flags & Py_TPFLAGS_HEAPTYPE) && base->tp_dict != NULL && meet(base->tp_dict, search)) {
            return;
        }
    }
}

/* Searches a keeper and all that is reached from it. -1 with an error set. */
static int look_inside(struct search *search, PyObject *keeper)
{
    struct queue *queue = &search->inside;
    queue->first = queue->end = 0;
    search->is_inside = true;
    look_into(keeper, search);
    meet_class_attributes(keeper, search);
    for (int looked = 0;
         search->sought > 0 && !search->failed && queue->first < queue->end && looked < OBJECTS_INSIDE_KEEPER;
         looked++) {
        /* The table `met` keeps it alive. */
        PyObject *object = queue->objects[queue->first++];
        int look = look_at(search->judgements, Py_TYPE(object));
        if (look < 0) {
            search->failed = true;
        }
        else if (look != LOOK_PAST) {
            look_into(object, search);
            if (look == LOOK_KEEPER) {
                meet_class_attributes(object, search);
            }
        }
    }
    search->is_inside = false;
    return search->failed ? -1 : 0;
}

/* Looks into at most so many objects of the queue `outside`, and searches the keepers among them.
 * -1 with an error set. */
static int look_on(struct search *search, int at_most)
{
    struct queue *queue = &search->outside;
    for (int looked = 0; search->sought > 0 && queue->first < queue->end && looked < at_most; looked++) {
        PyObject *object = queue->objects[queue->first++];
        int look = look_at(search->judgements, Py_TYPE(object));
        if (look < 0 || (look == LOOK_KEEPER && look_inside(search, object) < 0)) {
            return -1;
        }
        if (look == LOOK_INTO) {
            look_into(object, search);
        }
        if (search->failed) {
            return -1;
        }
    }
    return 0;
}

/* The name of the module of a class, or of the module whose dict is given: borrowed. NULL if there
 * is none, and with an error set. */
static PyObject *module_name(PyObject *namespace)
{
    static PyObject *of_module, *of_class;
    if ((of_module == NULL && (of_module = PyUnicode_InternFromString("__name__")) == NULL) ||
        (of_class == NULL && (of_class = PyUnicode_InternFromString("__module__")) == NULL)) {
        return NULL;
    }
    bool is_class = PyType_Check(namespace);
    PyObject *names = is_class ? ((PyTypeObject *)namespace)->tp_dict : namespace;
    PyObject *name = names == NULL ? NULL : PyDict_GetItemWithError(names, is_class ? of_class : of_module);
    return name != NULL && PyUnicode_CheckExact(name) ? name : NULL;
}

/* Looks for keepers from the variables of the program's modules and classes that were met. -1 with
 * an error set. */
static int look_from_namespaces(struct search *search)
{
    struct queue *namespaces = &search->namespaces, *queue = &search->outside;
    int failed = 0;
    Py_ssize_t looked = 0;
    while (failed == 0 && search->sought > 0 && namespaces->first < namespaces->end &&
           looked < OBJECTS_FROM_NAMESPACES) {
        /* The table `namespaces_met` keeps it alive. */
        PyObject *namespace = namespaces->objects[namespaces->first++], *name = module_name(namespace);
        int may_hold = name == NULL ? -(PyErr_Occurred() != NULL) : may_hold_keepers(search->judgements, name);
        if (may_hold <= 0) {
            failed = may_hold;
            continue;
        }
        Py_ssize_t from = queue->first = queue->end;
        search->elements = 0;
        meet(PyType_Check(namespace) ? ((PyTypeObject *)namespace)->tp_dict : namespace, search);
        failed = search->failed ? -1 : look_on(search, OBJECTS_AT_FIRST);
        looked += queue->first - from;
    }
    return failed;
}

/* Looks for keepers from the variables of frames, the innermost first, and of their modules: at
 * first a little way from each, then from the modules and classes that were met, and in the end
 * further from all frames and modules. -1 with an error set. */
static int look_from_frames(struct search *search, PyObject *frames)
{
    struct queue *queue = &search->outside;
    /* The part of the queue that was left over from each frame or module. */
    struct {
        Py_ssize_t first, end;
    } left[MAX_FRAMES + MAX_GLOBALS];
    Py_ssize_t number = PyList_GET_SIZE(frames);
    int failed = 0, sources = 0;
    for (Py_ssize_t i = 0; failed == 0 && search->sought > 0 && i < number + MAX_GLOBALS; i++) {
        if (i >= number && i - number >= number) {
            break;
        }
        queue->first = queue->end;
        if (i < number) {
            failed = visit_variables((PyFrameObject *)PyList_GET_ITEM(frames, i), meet_variable, search);
        }
        else {
            PyObject *names = PyFrame_GetGlobals((PyFrameObject *)PyList_GET_ITEM(frames, i - number));
            failed = meet_variable(names, -1, NULL, false, 0, search);
            Py_DECREF(names);
        }
        failed = failed == 0 ? look_on(search, OBJECTS_AT_FIRST) : -1;
        left[sources].first = queue->first;
        left[sources++].end = queue->end;
    }
    failed = failed == 0 ? look_from_namespaces(search) : -1;
    Py_ssize_t met = queue->end;
    for (int source = 0; failed == 0 && source < sources; source++) {
        for (Py_ssize_t at = left[source].first; failed == 0 && at < left[source].end; at++) {
            failed = put_last(queue, queue->objects[at]);
        }
    }
    queue->first = met;
    return failed == 0 ? look_on(search, OBJECTS_AFTERWARDS) : -1;
}

/* Searches the dicts of modules that are keepers themselves. -1 with an error set. */
static int look_into_modules(struct search *search, PyObject *variables)
{
    for (Py_ssize_t i = 0; search->sought > 0 && i < PyTuple_GET_SIZE(variables); i++) {
        if (look_inside(search, PyTuple_GET_ITEM(variables, i)) < 0) {
            return -1;
        }
    }
    return 0;
}

static void search_clear(struct search *search)
{
    for (size_t at = 0; search->met.places != NULL && at <= search->met.mask; at++) {
        Py_XDECREF(search->met.places[at].object);
    }
    for (size_t at = 0; search->namespaces_met.places != NULL && at <= search->namespaces_met.mask; at++) {
        Py_XDECREF(search->namespaces_met.places[at].object);
    }
    PyMem_Free(search->met.places);
    PyMem_Free(search->namespaces_met.places);
    PyMem_Free(search->kept.places);
    PyMem_Free(search->namespaces.objects);
    PyMem_Free(search->outside.objects);
    PyMem_Free(search->inside.objects);
}

/* The `may_enter` of traversals from variables: whether an object is certainly no keeper. An object
 * of a class that is not known yet is not entered; the search that follows asks about it. */
static bool is_no_keeper(PyObject *object, const void *judgements)
{
    return !PyFunction_Check(object) && !PyModule_Check(object) && look_known(judgements, Py_TYPE(object)) == LOOK_INTO;
}

/* Follows the references of an object that only a variable refers to. A `variable_visitor`. */
static int follow_variable(PyObject *value, Py_ssize_t number, PyObject *name, bool is_own, int extra, void *arg)
{
    (void)number;
    (void)name;
    struct traversal *traversal = arg;
    if (is_own && table_find(&traversal->count->left, value) == NULL && Py_REFCNT(value) - extra == 1 &&
        PyObject_GC_IsTracked(value) && !PyType_Check(value) && traversal->may_enter(value, traversal->arg)) {
        follow_all(value, traversal);
    }
    return PyErr_Occurred() ? -1 : traversal->count->objects_left == 0;
}

/* Subtracts the references of variables, and of containers that only variables refer to. Most
 * resources that are left at the end of a block have no other references, so that no keeper needs
 * to be looked for. -1 with an error set. */
static int find_from_variables(struct count *count, const struct judgements *judgements, PyObject *frames)
{
    Py_ssize_t number = PyList_GET_SIZE(frames);
    Py_ssize_t innermost = number < MAX_FOLLOWED_FRAMES ? number : MAX_FOLLOWED_FRAMES;
    int failed = 0;
    for (Py_ssize_t i = 0; failed == 0 && count->objects_left > 0 && i < innermost; i++) {
        failed = visit_variables((PyFrameObject *)PyList_GET_ITEM(frames, i), find_in_variable, count);
    }
    if (failed == 0 && count->objects_left > 0) {
        failed = find_in_libraries(count);
    }
    for (Py_ssize_t i = 0; failed == 0 && count->objects_left > 0 && i < innermost; i++) {
        struct traversal traversal = {.count = count, .may_enter = is_no_keeper, .arg = judgements};
        /* The garbage collector could run other code while objects are traversed. */
        int collects = PyGC_Disable();
        failed = visit_variables((PyFrameObject *)PyList_GET_ITEM(frames, i), follow_variable, &traversal);
        failed = failed < 0 ? -1 : 0;
        if (collects) {
            PyGC_Enable();
        }
    }
    return failed;
}

PyObject *compiled_kept_entries(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 5 || !PyTuple_CheckExact(arguments[1]) || !PyTuple_CheckExact(arguments[2]) ||
        !PyDict_CheckExact(arguments[4])) {
        PyErr_SetString(PyExc_TypeError,
                        "kept_entries() takes a list of entries, a tuple of types, a tuple of dicts, a function, "
                        "and a dict");
        return NULL;
    }
    const struct judgements judgements = {.judge = arguments[3], .looks = arguments[4]};
    struct count count = {.types = arguments[1]};
    PyObject *kept = NULL, *running = NULL;
    int failed = count_all(&count, arguments[0], "kept_entries");
    if (failed == 0 && (running = running_frames(MAX_FRAMES)) == NULL) {
        failed = -1;
    }
    failed = failed == 0 ? find_from_variables(&count, &judgements, running) : -1;
    struct search search = {.count = &count, .judgements = &judgements, .sought = count.objects_left};
    if (failed == 0 && search.sought == 0) {
        kept = PyList_New(0);
    }
    else if (failed == 0) {
        failed = look_from_frames(&search, running) < 0 || look_into_modules(&search, arguments[2]) < 0 ? -1 : 0;
        kept = failed == 0 ? PyList_New(0) : NULL;
        Py_ssize_t last = -1;
        for (Py_ssize_t i = 0; kept != NULL && i < count.number; i++) {
            const struct part *part = &count.parts[i];
            if (part->unit != last && table_find(&search.kept, part->resource) != NULL) {
                last = part->unit;
                if (PyList_Append(kept, PyList_GET_ITEM(arguments[0], part->unit)) < 0) {
                    Py_CLEAR(kept);
                }
            }
        }
    }
    search_clear(&search);
    Py_XDECREF(running);
    count_clear(&count);
    return kept;
}
