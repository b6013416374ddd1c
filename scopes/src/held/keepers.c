/* What a scope still owns when its block ends and is reached through an object that keeps what it
 * holds, such as a model. */
#include "holding.h"

/* ------------------------------------------------------------------ which objects keep what they hold */

/* How objects are looked into, by their type, and modules, by their name: asked of Python once for
 * each. */
enum look { LOOK_INTO, LOOK_KEEPER, LOOK_PAST, LOOK_UNKNOWN };

/* What Python said of classes, by their addresses, and of modules, by their names, and whom to
 * ask of others. Borrowed. */
struct judgements {
    PyObject *looks; /* a dict */
    PyObject *judge; /* a function */
};

enum { REMEMBERED_AT_MOST = 4096 };

/* By the address of a class: what Python said of it, with a weak reference to it, as the address
 * may be another's by now. The hash of a class itself is for its metaclass to return. Borrowed;
 * NULL for one that is not there, or with an error set. */
static PyObject *look_remembered(const struct judgements *judgements, PyTypeObject *type)
{
    PyObject *key = PyLong_FromVoidPtr(type);
    PyObject *pair = key == NULL ? NULL : PyDict_GetItemWithError(judgements->looks, key);
    PyObject *now = pair == NULL ? NULL : referent_of(PyTuple_GET_ITEM(pair, 0));
    Py_XDECREF(key);
    /* A class that is given to this function is held by its caller. */
    Py_XDECREF(now);
    return now == (PyObject *)type ? PyTuple_GET_ITEM(pair, 1) : NULL;
}

/* UNKNOWN for a class that is met for the first time. -1 with an error set. Runs no Python code. */
static int look_known(const struct judgements *judgements, PyTypeObject *type)
{
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
        return LOOK_INTO;
    }
    PyObject *found = look_remembered(judgements, type);
    return found != NULL ? (int)PyLong_AsLong(found) : PyErr_Occurred() ? -1 : LOOK_UNKNOWN;
}

/* The same, of any class. Runs Python code. -1 with an error set. */
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
    if (PyDict_GET_SIZE(judgements->looks) >= REMEMBERED_AT_MOST) {
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

/* Whether a module may hold a keeper of the program's, given its name. -1 with an error set. */
static int may_hold_keepers(const struct judgements *judgements, PyObject *name)
{
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(judgements->looks, name));
    if (found == NULL && !PyErr_Occurred() && (found = PyObject_CallOneArg(judgements->judge, name)) != NULL) {
        if (PyDict_GET_SIZE(judgements->looks) >= REMEMBERED_AT_MOST) {
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

/* How far the search goes. Of how many frames the variables are looked at, of how many those of
 * their modules, and how many are looked through for what they alone refer to. How many objects
 * are looked into from the variables of one frame, module or class at first, of all frames
 * afterwards, of the modules and classes that are met besides altogether, and inside of one
 * keeper; and how many elements of one container outside of keepers. */
enum { FRAMES = 16, GLOBALS = 8, INNERMOST = 4 };
enum { AT_FIRST = 200, AFTERWARDS = 2000, OF_NAMESPACES = 1000, INSIDE = 20000, ELEMENTS = 1000 };
enum { NAMESPACES_MET = 1000 };

enum state { MET = 1, MET_INSIDE };

struct search {
    struct count *count;
    const struct judgements *judgements;
    /* By object, its state. Holds the objects. */
    struct table met;
    /* What was met and has not been looked into: outside of keepers, and inside of the one that is
     * looked into. */
    struct queue {
        PyObject **objects;
        Py_ssize_t first, end, room;
    } outside, inside;
    /* Modules, as their variables, and classes: what the running code may call, and the
     * variables of that. Of those that were met outside of keepers, each once. The table holds
     * them. */
    struct queue namespaces;
    struct table namespaces_met;
    const PyObject *last_namespace;
    Py_ssize_t elements;
    /* Of what is sought: what was not found through a keeper yet, and what was, by object. */
    Py_ssize_t sought;
    struct table kept;
    bool is_inside, failed;
};

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

/* A class, or the variables of a module. Runs no Python code. */
static void meet_namespace(struct search *search, PyObject *namespace)
{
    if (search->is_inside || search->failed || namespace == search->last_namespace ||
        search->namespaces.end >= NAMESPACES_MET) {
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

/* A class, with those that it is derived from. */
static void meet_class(struct search *search, PyTypeObject *type)
{
    for (Py_ssize_t i = 0; !search->is_inside && type->tp_mro != NULL && i < PyTuple_GET_SIZE(type->tp_mro); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(type->tp_mro, i);
        if (base->tp_flags & Py_TPFLAGS_HEAPTYPE) {
            meet_namespace(search, (PyObject *)base);
        }
    }
}

static bool refers_to_its_module_alone(const PyFunctionObject *function)
{
    return function->func_closure == NULL && function->func_defaults == NULL && function->func_kwdefaults == NULL &&
           function->func_dict == NULL;
}

/* An object that is referred to from what is being looked into. Runs no Python code. */
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
    if (!search->is_inside && ++search->elements > ELEMENTS) {
        return 1;
    }
    /* No more of them will be looked into. */
    if (search->is_inside && search->inside.end >= INSIDE) {
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
    /* What the collector does not know refers to nothing that it knows. */
    if (!PyObject_IS_GC(object) || PyCode_Check(object) || PyFrame_Check(object) || PyCFunction_Check(object) ||
        PyWeakref_Check(object) || Py_IS_TYPE(object, &PyGetSetDescr_Type) || Py_IS_TYPE(object, &PyMemberDescr_Type) ||
        !PyObject_GC_IsTracked(object)) {
        return 0;
    }
    if (PyFunction_Check(object) && refers_to_its_module_alone((PyFunctionObject *)object)) {
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

static void look_into(PyObject *object, struct search *search)
{
    search->elements = 0;
    if (PyList_CheckExact(object)) {
        meet_elements(object, search);
    }
    else if (PyFunction_Check(object)) {
        /* A function is not the owner of its module: what that holds is no keeper's because the
         * function is. */
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

/* What the class of a keeper holds for all its instances, such as a cache. */
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

/* Looks into an object and all that is reached from it: it keeps what it holds. -1 with an error
 * set. */
static int look_inside(struct search *search, PyObject *keeper)
{
    struct queue *queue = &search->inside;
    queue->first = queue->end = 0;
    search->is_inside = true;
    look_into(keeper, search);
    meet_class_attributes(keeper, search);
    for (int looked = 0; search->sought > 0 && !search->failed && queue->first < queue->end && looked < INSIDE;
         looked++) {
        /* Held by the table. */
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

/* Looks into what was met, from one place of the queue on. -1 with an error set. */
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

/* The name of the module of a class, or of the module whose variables are given: borrowed, NULL
 * with an error set or not. */
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

/* Looks for keepers from the variables of modules and classes of the program that were met: what
 * the running code can call has them. -1 with an error set. */
static int look_from_namespaces(struct search *search)
{
    struct queue *namespaces = &search->namespaces, *queue = &search->outside;
    int failed = 0;
    Py_ssize_t looked = 0;
    while (failed == 0 && search->sought > 0 && namespaces->first < namespaces->end && looked < OF_NAMESPACES) {
        /* Held by the table. */
        PyObject *namespace = namespaces->objects[namespaces->first++], *name = module_name(namespace);
        int may_hold = name == NULL ? -(PyErr_Occurred() != NULL) : may_hold_keepers(search->judgements, name);
        if (may_hold <= 0) {
            failed = may_hold;
            continue;
        }
        Py_ssize_t from = queue->first = queue->end;
        search->elements = 0;
        meet(PyType_Check(namespace) ? ((PyTypeObject *)namespace)->tp_dict : namespace, search);
        failed = search->failed ? -1 : look_on(search, AT_FIRST);
        looked += queue->first - from;
    }
    return failed;
}

/* Looks for keepers from the variables of frames, the innermost first, and of their modules:
 * each a little way, then from the modules and classes that were met, and then from all of them
 * further. -1 with an error set. */
static int look_from_frames(struct search *search, PyObject *frames)
{
    struct queue *queue = &search->outside;
    Py_ssize_t number = PyList_GET_SIZE(frames), left[FRAMES + GLOBALS][2];
    int failed = 0, sources = 0;
    for (Py_ssize_t i = 0; failed == 0 && search->sought > 0 && i < number + GLOBALS; i++) {
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
        failed = failed == 0 ? look_on(search, AT_FIRST) : -1;
        left[sources][0] = queue->first;
        left[sources++][1] = queue->end;
    }
    failed = failed == 0 ? look_from_namespaces(search) : -1;
    Py_ssize_t met = queue->end;
    for (int source = 0; failed == 0 && source < sources; source++) {
        for (Py_ssize_t at = left[source][0]; failed == 0 && at < left[source][1]; at++) {
            failed = put_last(queue, queue->objects[at]);
        }
    }
    queue->first = met;
    return failed == 0 ? look_on(search, AFTERWARDS) : -1;
}

/* Looks into the variables of modules that keep what is in them. -1 with an error set. */
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

/* Whether an object may be looked into on the way to what only the running code refers to. Of a
 * class that is not known yet it may not: the search that follows asks. */
static bool is_no_keeper(PyObject *object, const void *judgements)
{
    return !PyFunction_Check(object) && !PyModule_Check(object) && look_known(judgements, Py_TYPE(object)) == LOOK_INTO;
}

static int follow_variable(PyObject *value, Py_ssize_t number, PyObject *name, bool is_own, int extra, void *arg)
{
    (void)number;
    (void)name;
    struct through *through = arg;
    if (is_own && table_find(&through->count->left, value) == NULL && Py_REFCNT(value) - extra == 1 &&
        PyObject_GC_IsTracked(value) && !PyType_Check(value) && through->may_enter(value, through->arg)) {
        follow_all(value, through);
    }
    return PyErr_Occurred() ? -1 : through->count->open == 0;
}

/* Finds the references of variables, and then those of containers that variables alone refer to:
 * most of what is left at the end of a block has no others. -1 with an error set. */
static int find_from_variables(struct count *count, const struct judgements *judgements, PyObject *frames)
{
    Py_ssize_t innermost = PyList_GET_SIZE(frames) < INNERMOST ? PyList_GET_SIZE(frames) : INNERMOST;
    int failed = 0;
    for (Py_ssize_t i = 0; failed == 0 && count->open > 0 && i < innermost; i++) {
        failed = visit_variables((PyFrameObject *)PyList_GET_ITEM(frames, i), find_in_variable, count);
    }
    if (failed == 0 && count->open > 0) {
        failed = find_in_libraries(count);
    }
    for (Py_ssize_t i = 0; failed == 0 && count->open > 0 && i < innermost; i++) {
        struct through through = {.count = count, .may_enter = is_no_keeper, .arg = judgements};
        /* No other code may run while objects are looked into. */
        int collects = PyGC_Disable();
        failed = visit_variables((PyFrameObject *)PyList_GET_ITEM(frames, i), follow_variable, &through);
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
    if (failed == 0 && (running = running_frames(FRAMES)) == NULL) {
        failed = -1;
    }
    failed = failed == 0 ? find_from_variables(&count, &judgements, running) : -1;
    struct search search = {.count = &count, .judgements = &judgements, .sought = count.open};
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
