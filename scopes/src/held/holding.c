/* Who refers to what a scope still owns when its block ends: the block's own variables, or
 * something else. */
#include "holding.h"

/* ------------------------------------------------------------------ the references to what a scope owns */

void count_clear(struct count *count)
{
    for (Py_ssize_t i = 0; i < count->number; i++) {
        Py_DECREF(count->parts[i].resource);
        Py_DECREF(count->parts[i].entry);
    }
    PyMem_Free(count->parts);
    PyMem_Free(count->left.places);
}

/* One reference to an object has been found. */
static bool found_reference(struct count *count, PyObject *object)
{
    Py_ssize_t *left = table_find(&count->left, object);
    if (left != NULL && --*left == 0) {
        count->open--;
    }
    return left != NULL;
}

static int add_part(struct count *count, PyObject *resource, PyObject *entry, Py_ssize_t unit)
{
    if (count->number == count->room) {
        Py_ssize_t room = count->room * 2 + 16;
        struct part *parts = PyMem_Realloc(count->parts, (size_t)room * sizeof *parts);
        if (parts == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        count->parts = parts;
        count->room = room;
    }
    count->parts[count->number++] = (struct part){Py_NewRef(resource), Py_NewRef(entry), unit};
    Py_ssize_t *left = table_find(&count->left, resource);
    if (left == NULL) {
        if ((left = table_add(&count->left, resource)) == NULL) {
            return -1;
        }
        /* The caller has one, and this table. */
        *left = Py_REFCNT(resource) - 2 - is_holding(entry);
        count->open += *left > 0;
    }
    return 0;
}

/* The resource behind an entry, or its members where it is a tuple's, and the members of those. */
static int add_parts(struct count *count, Entry *entry, Py_ssize_t unit, int depth)
{
    int failed = 0;
    /* The tuple behind an anchored one would be another, made for the purpose. */
    if (!is_anchored(entry)) {
        PyObject *resource = resource_of(entry);
        failed = resource == NULL ? -(PyErr_Occurred() != NULL) : add_part(count, resource, (PyObject *)entry, unit);
        Py_XDECREF(resource);
    }
    PyObject *members = Py_NewRef(entry->members);
    for (Py_ssize_t i = 0; failed == 0 && depth < 20 && i < PyTuple_GET_SIZE(members); i++) {
        failed = add_parts(count, (Entry *)PyTuple_GET_ITEM(members, i), unit, depth + 1);
    }
    Py_DECREF(members);
    return failed;
}

enum { LEVELS = 4, ALTOGETHER = 4000, AT_THE_END = 1000 };

/* Finds the references of an object's, and those of what it alone refers to. */
static int follow(PyObject *object, void *arg)
{
    struct through *through = arg;
    if (through->count->open == 0 || through->seen++ >= ALTOGETHER) {
        return 1;
    }
    if (found_reference(through->count, object)) {
        return 0;
    }
    if (through->depth < LEVELS && Py_REFCNT(object) == 1 && PyObject_GC_IsTracked(object) && !PyType_Check(object) &&
        (through->may_enter == NULL || through->may_enter(object, through->arg))) {
        through->depth++;
        follow_all(object, through);
        through->depth--;
    }
    return 0;
}

void follow_all(PyObject *object, struct through *through)
{
    if (!PyList_CheckExact(object)) {
        Py_TYPE(object)->tp_traverse(object, follow, through);
        return;
    }
    Py_ssize_t last = PyList_GET_SIZE(object) - 1;
    for (Py_ssize_t i = last; i >= 0 && i > last - AT_THE_END && follow(PyList_GET_ITEM(object, i), through) == 0;
         i--) {
    }
}

/* The references of the parts among each other, as of a composite to its members: such a one does
 * not hold what it refers to. */
static void follow_parts(struct count *count)
{
    for (Py_ssize_t i = 0; i < count->number; i++) {
        PyObject *resource = count->parts[i].resource;
        if (PyObject_IS_GC(resource)) {
            struct through through = {.count = count};
            follow_all(resource, &through);
        }
    }
}

/* What a held part refers to is held as well. */
static int hold_again(PyObject *object, void *arg)
{
    struct through *through = arg;
    Py_ssize_t *left = table_find(&through->count->left, object);
    if (left != NULL) {
        through->seen += *left <= 0;
        *left = *left <= 0 ? 1 : *left;
    }
    else if (through->depth < LEVELS && Py_REFCNT(object) == 1 && PyObject_GC_IsTracked(object) &&
             !PyType_Check(object)) {
        through->depth++;
        Py_TYPE(object)->tp_traverse(object, hold_again, through);
        through->depth--;
    }
    return 0;
}

static void hold_parts_of_the_held(struct count *count)
{
    struct through through = {.count = count, .seen = 1};
    while (through.seen != 0) {
        through.seen = 0;
        for (Py_ssize_t i = 0; i < count->number; i++) {
            PyObject *resource = count->parts[i].resource;
            const Py_ssize_t *left = table_find(&count->left, resource);
            if (left != NULL && *left > 0 && PyObject_IS_GC(resource)) {
                Py_TYPE(resource)->tp_traverse(resource, hold_again, &through);
            }
        }
    }
}

static bool is_resource_tuple(struct count *count, PyObject *tuple)
{
    for (Py_ssize_t i = 0; PyTuple_Check(tuple) && i < PyTuple_GET_SIZE(count->types); i++) {
        if (PyType_IsSubtype(Py_TYPE(tuple), (PyTypeObject *)PyTuple_GET_ITEM(count->types, i))) {
            return true;
        }
    }
    return false;
}

int find_in_variable(PyObject *value, Py_ssize_t number, PyObject *name, bool is_own, int extra, void *arg)
{
    struct count *count = arg;
    if (!is_own) {
        return 0;
    }
    if (count->before != NULL) {
        PyObject *what = name != NULL ? Py_NewRef(name) : PyLong_FromSsize_t(number);
        int there = what == NULL ? -1 : PySet_Contains(count->before, what);
        Py_XDECREF(what);
        if (there != 0) {
            return there < 0 ? -1 : 0;
        }
    }
    if (!found_reference(count, value) && is_resource_tuple(count, value) && Py_REFCNT(value) - extra == 1) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
            found_reference(count, PyTuple_GET_ITEM(value, i));
        }
    }
    return 0;
}

/* A reference that is not counted holds like one that is. */
static int add_reference(PyObject *object, void *arg)
{
    struct count *count = arg;
    Py_ssize_t *left = table_find(&count->left, object);
    if (left != NULL) {
        count->open += *left == 0;
        ++*left;
    }
    return 0;
}

/* What frames refer to that have ended: those in the traceback of an exception, and of what it
 * followed on. */
static int find_in_tracebacks(struct count *count, PyObject *error, PyObject *running)
{
    int failed = 0;
    error = Py_NewRef(error);
    for (int steps = 0;
         failed == 0 && error != NULL && error != Py_None && PyExceptionInstance_Check(error) && steps < 20; steps++) {
        PyObject *traceback = PyException_GetTraceback(error);
        for (PyObject *at = traceback; failed == 0 && at != NULL && PyTraceBack_Check(at);
             at = (PyObject *)((PyTracebackObject *)at)->tb_next) {
            PyObject *frame = (PyObject *)((PyTracebackObject *)at)->tb_frame;
            bool runs = false;
            for (Py_ssize_t i = 0; !runs && i < PyList_GET_SIZE(running); i++) {
                runs = PyList_GET_ITEM(running, i) == frame;
            }
            /* An exception that passes a frame twice is in the way twice. */
            if (!runs && has_ended((PyFrameObject *)frame) && table_find(&count->left, frame) == NULL) {
                Py_ssize_t *mark = table_add(&count->left, frame);
                failed = mark == NULL ? -1 : visit_variables((PyFrameObject *)frame, find_in_variable, count);
            }
        }
        Py_XDECREF(traceback);
        PyObject *cause = PyException_GetCause(error);
        Py_SETREF(error, cause != NULL ? cause : PyException_GetContext(error));
    }
    Py_XDECREF(error);
    return failed;
}

int find_in_libraries(struct count *count)
{
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("library_references")) == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count->number; i++) {
        struct part *part = &count->parts[i];
        Py_ssize_t *left = table_find(&count->left, part->resource);
        if (left == NULL || *left <= 0) {
            continue;
        }
        PyObject *returned = PyObject_CallMethodOneArg(((Entry *)part->entry)->kind, name, part->resource);
        Py_ssize_t number = returned == NULL ? -1 : PyLong_AsSsize_t(returned);
        Py_XDECREF(returned);
        if (number < 0) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "library_references() of a kind returned less than 0");
            }
            return -1;
        }
        if ((left = table_find(&count->left, part->resource)) != NULL) {
            count->open -= *left > 0 && *left <= number;
            *left -= number;
        }
    }
    return 0;
}

/* The entries of which a part has references that were not found: a list, or NULL with an error
 * set. */
static PyObject *entries_left(struct count *count, PyObject *entries)
{
    PyObject *found = PyList_New(0);
    Py_ssize_t last = -1;
    for (Py_ssize_t i = 0; found != NULL && i < count->number; i++) {
        const struct part *part = &count->parts[i];
        Py_ssize_t *left = table_find(&count->left, part->resource);
        if (part->unit != last && left != NULL && *left > 0) {
            last = part->unit;
            if (PyList_Append(found, PyList_GET_ITEM(entries, part->unit)) < 0) {
                Py_CLEAR(found);
            }
        }
    }
    return found;
}

int count_all(struct count *count, PyObject *entries, const char *function)
{
    if (!PyList_CheckExact(entries)) {
        PyErr_Format(PyExc_TypeError, "internal error: %s() was given a %s, expected a list of entries", function,
                     Py_TYPE(entries)->tp_name);
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries); i++) {
        PyObject *entry = PyList_GET_ITEM(entries, i);
        if (!entry_check(entry, function) || add_parts(count, (Entry *)entry, i, 0) < 0) {
            return -1;
        }
    }
    follow_parts(count);
    return 0;
}

/* Whether it is what `note_variables` returned. */
static bool is_note(PyObject *note)
{
    return PyTuple_CheckExact(note) && PyTuple_GET_SIZE(note) == 3 && PyLong_Check(PyTuple_GET_ITEM(note, 0)) &&
           PyAnySet_Check(PyTuple_GET_ITEM(note, 2));
}

PyObject *compiled_held_entries(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 4 || !PyTuple_CheckExact(arguments[1]) || !(arguments[2] == Py_None || is_note(arguments[2]))) {
        PyErr_SetString(PyExc_TypeError,
                        "held_entries() takes a list of entries, a tuple of types, what note_variables() "
                        "returned, and an exception");
        return NULL;
    }
    PyObject *note = arguments[2], *error = arguments[3];
    struct count count = {.types = arguments[1]};
    PyObject *held = NULL, *running = NULL;
    if (count_all(&count, arguments[0], "held_entries") == 0 && (running = running_frames(1000)) != NULL) {
        int failed = 0;
        if (note != Py_None) {
            void *block = PyLong_AsVoidPtr(PyTuple_GET_ITEM(note, 0));
            for (Py_ssize_t i = 0; failed == 0 && i < PyList_GET_SIZE(running); i++) {
                PyFrameObject *frame = (PyFrameObject *)PyList_GET_ITEM(running, i);
                PyCodeObject *code = PyFrame_GetCode(frame);
                if ((void *)frame == block && (PyObject *)code == PyTuple_GET_ITEM(note, 1)) {
                    count.before = PyTuple_GET_ITEM(note, 2);
                    visit_borrowed(frame, add_reference, &count);
                    failed = visit_variables(frame, find_in_variable, &count);
                    count.before = NULL;
                }
                Py_DECREF(code);
            }
        }
        if (failed == 0 && error != Py_None) {
            failed = find_in_tracebacks(&count, error, running);
        }
        if (failed == 0 && find_in_libraries(&count) == 0) {
            hold_parts_of_the_held(&count);
            held = entries_left(&count, arguments[0]);
        }
    }
    Py_XDECREF(running);
    count_clear(&count);
    return held;
}
