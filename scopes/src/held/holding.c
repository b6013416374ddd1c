/* Whether the resources that a scope owns when its block ends are referenced by the block's own
 * variables only, or by something else too. */
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

/* Subtracts a reference that was found. Returns whether the object is a counted one. */
static bool found_reference(struct count *count, PyObject *object)
{
    Py_ssize_t *left = table_find(&count->left, object);
    if (left != NULL && --*left == 0) {
        count->objects_left--;
    }
    return left != NULL;
}

/* Adds a part, and begins to count the references to its resource. -1 with an error set. */
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
        /* The caller has one reference, and `count->parts` another. */
        *left = Py_REFCNT(resource) - 2 - is_holding(entry);
        count->objects_left += *left > 0;
    }
    return 0;
}

/* The deepest nesting of composites in composites that is looked at. */
enum { MAX_NESTING = 20 };

/* Adds the resource of an entry, and its members with theirs. -1 with an error set. */
static int add_parts(struct count *count, Entry *entry, Py_ssize_t unit, int depth)
{
    int failed = 0;
    /* The tuple of an anchored entry is made anew at each call: its references say nothing. */
    if (!is_anchored(entry)) {
        PyObject *resource = resource_of(entry);
        failed = resource == NULL ? -(PyErr_Occurred() != NULL) : add_part(count, resource, (PyObject *)entry, unit);
        Py_XDECREF(resource);
    }
    PyObject *members = Py_NewRef(entry->members);
    for (Py_ssize_t i = 0; failed == 0 && depth < MAX_NESTING && i < PyTuple_GET_SIZE(members); i++) {
        failed = add_parts(count, (Entry *)PyTuple_GET_ITEM(members, i), unit, depth + 1);
    }
    Py_DECREF(members);
    return failed;
}

/* The bounds of a traversal: how many levels below its start, how many objects altogether, and how
 * many elements of one list. */
enum { MAX_DEPTH = 4, MAX_OBJECTS = 4000, MAX_LIST_ELEMENTS = 1000 };

/* Subtracts a reference to `object`. If the object is none of the counted ones and has no other
 * reference, goes on with what it refers to. */
static int follow(PyObject *object, void *arg)
{
    struct traversal *traversal = arg;
    if (traversal->count->objects_left == 0 || traversal->seen++ >= MAX_OBJECTS) {
        return 1;
    }
    if (found_reference(traversal->count, object)) {
        return 0;
    }
    if (traversal->depth < MAX_DEPTH && Py_REFCNT(object) == 1 && PyObject_GC_IsTracked(object) &&
        !PyType_Check(object) && (traversal->may_enter == NULL || traversal->may_enter(object, traversal->arg))) {
        traversal->depth++;
        follow_all(object, traversal);
        traversal->depth--;
    }
    return 0;
}

void follow_all(PyObject *object, struct traversal *traversal)
{
    if (!PyList_CheckExact(object)) {
        Py_TYPE(object)->tp_traverse(object, follow, traversal);
        return;
    }
    Py_ssize_t last = PyList_GET_SIZE(object) - 1;
    for (Py_ssize_t i = last;
         i >= 0 && i > last - MAX_LIST_ELEMENTS && follow(PyList_GET_ITEM(object, i), traversal) == 0; i--) {
    }
}

/* Subtracts the references from one resource to another, such as from a composite to its members:
 * a resource that nothing else refers to holds nothing. */
static void follow_parts(struct count *count)
{
    for (Py_ssize_t i = 0; i < count->number; i++) {
        PyObject *resource = count->parts[i].resource;
        if (PyObject_IS_GC(resource)) {
            struct traversal traversal = {.count = count};
            follow_all(resource, &traversal);
        }
    }
}

/* Adds the reference from a held resource again, which `follow_parts` has subtracted. `seen` counts
 * the resources that are held by this for the first time. */
static int hold_again(PyObject *object, void *arg)
{
    struct traversal *traversal = arg;
    Py_ssize_t *left = table_find(&traversal->count->left, object);
    if (left != NULL) {
        traversal->seen += *left <= 0;
        *left = *left <= 0 ? 1 : *left;
    }
    else if (traversal->depth < MAX_DEPTH && Py_REFCNT(object) == 1 && PyObject_GC_IsTracked(object) &&
             !PyType_Check(object)) {
        traversal->depth++;
        Py_TYPE(object)->tp_traverse(object, hold_again, traversal);
        traversal->depth--;
    }
    return 0;
}

/* Marks the resources that held resources refer to as held, and so on, until nothing changes. */
static void hold_parts_of_the_held(struct count *count)
{
    struct traversal traversal = {.count = count, .seen = 1};
    while (traversal.seen != 0) {
        traversal.seen = 0;
        for (Py_ssize_t i = 0; i < count->number; i++) {
            PyObject *resource = count->parts[i].resource;
            const Py_ssize_t *left = table_find(&count->left, resource);
            if (left != NULL && *left > 0 && PyObject_IS_GC(resource)) {
                Py_TYPE(resource)->tp_traverse(resource, hold_again, &traversal);
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
        PyObject *variable = name != NULL ? Py_NewRef(name) : PyLong_FromSsize_t(number);
        int was_bound = variable == NULL ? -1 : PySet_Contains(count->before, variable);
        Py_XDECREF(variable);
        if (was_bound != 0) {
            return was_bound < 0 ? -1 : 0;
        }
    }
    if (!found_reference(count, value) && is_resource_tuple(count, value) && Py_REFCNT(value) - extra == 1) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
            found_reference(count, PyTuple_GET_ITEM(value, i));
        }
    }
    return 0;
}

/* Adds a borrowed reference, which the reference count does not include, to those to be found. */
static int add_reference(PyObject *object, void *arg)
{
    struct count *count = arg;
    Py_ssize_t *left = table_find(&count->left, object);
    if (left != NULL) {
        count->objects_left += *left == 0;
        ++*left;
    }
    return 0;
}

/* So many exceptions are followed along a chain of causes and contexts, which may be circular. */
enum { MAX_CHAINED = 20 };

/* Subtracts the references of variables of ended frames, which tracebacks keep: the traceback of an
 * exception, and those of its causes and contexts. -1 with an error set. */
static int find_in_tracebacks(struct count *count, PyObject *error, PyObject *running)
{
    int failed = 0;
    error = Py_NewRef(error);
    for (int steps = 0;
         failed == 0 && error != NULL && error != Py_None && PyExceptionInstance_Check(error) && steps < MAX_CHAINED;
         steps++) {
        PyObject *traceback = PyException_GetTraceback(error);
        for (PyObject *at = traceback; failed == 0 && at != NULL && PyTraceBack_Check(at);
             at = (PyObject *)((PyTracebackObject *)at)->tb_next) {
            PyObject *frame = (PyObject *)((PyTracebackObject *)at)->tb_frame;
            bool runs = false;
            for (Py_ssize_t i = 0; !runs && i < PyList_GET_SIZE(running); i++) {
                runs = PyList_GET_ITEM(running, i) == frame;
            }
            /* A frame that an exception has passed twice is in its traceback twice. */
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
            count->objects_left -= *left > 0 && *left <= number;
            *left -= number;
        }
    }
    return 0;
}

/* A new list of the entries with a part that has references which were not found. NULL with an
 * error set. */
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

/* The fields of the tuple that `note_variables` returns: see compiled.pyi. */
enum { NOTE_FRAME, NOTE_CODE, NOTE_BOUND, NOTE_FIELDS };

/* Whether an object is a tuple that `note_variables` returned. */
static bool is_note(PyObject *note)
{
    return PyTuple_CheckExact(note) && PyTuple_GET_SIZE(note) == NOTE_FIELDS &&
           PyLong_Check(PyTuple_GET_ITEM(note, NOTE_FRAME)) && PyAnySet_Check(PyTuple_GET_ITEM(note, NOTE_BOUND));
}

/* So many running frames are searched for the frame of the block. */
enum { MAX_RUNNING_FRAMES = 1000 };

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
    if (count_all(&count, arguments[0], "held_entries") == 0 &&
        (running = running_frames(MAX_RUNNING_FRAMES)) != NULL) {
        int failed = 0;
        if (note != Py_None) {
            void *block = PyLong_AsVoidPtr(PyTuple_GET_ITEM(note, NOTE_FRAME));
            for (Py_ssize_t i = 0; failed == 0 && i < PyList_GET_SIZE(running); i++) {
                PyFrameObject *frame = (PyFrameObject *)PyList_GET_ITEM(running, i);
                PyCodeObject *code = PyFrame_GetCode(frame);
                if ((void *)frame == block && (PyObject *)code == PyTuple_GET_ITEM(note, NOTE_CODE)) {
                    count.before = PyTuple_GET_ITEM(note, NOTE_BOUND);
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
