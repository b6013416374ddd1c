/* The types of entries: `Entry`, `HeldEntry`, `StrongEntry` and `AnchoredEntry`. How they are made,
 * and how the resource of each is reached. */
#include "scopes.h"

#include <structmember.h>

#include "shared/fields.h"

static PyObject *empty_tuple, *name_anchor, *name_is_anchored, *name_is_held;

/* ------------------------------------------------------------------ Entry */

/* Like calling `weakref.ref`, without its __init__, which only checks the arguments again. */
static PyObject *new_entry(PyTypeObject *type, PyObject *arguments, PyObject *options)
{
    Entry *entry = (Entry *)_PyWeakref_RefType.tp_new(type, arguments, options);
    if (entry != NULL) {
        entry->key = Py_NewRef(Py_None);
        entry->kind = Py_NewRef(Py_None);
        entry->counted = Py_NewRef(Py_False);
        entry->owner = Py_NewRef(Py_None);
        entry->home = Py_NewRef(Py_None);
        entry->unit = Py_NewRef(Py_None);
        entry->members = Py_NewRef(empty_tuple);
        entry->released_by = Py_NewRef(Py_None);
    }
    return (PyObject *)entry;
}

static int traverse_entry(PyObject *self, visitproc visit, void *arg)
{
    Entry *entry = (Entry *)self;
    Py_VISIT(entry->kind);
    Py_VISIT(entry->counted);
    Py_VISIT(entry->owner);
    Py_VISIT(entry->home);
    Py_VISIT(entry->unit);
    Py_VISIT(entry->members);
    Py_VISIT(entry->released_by);
    return _PyWeakref_RefType.tp_traverse(self, visit, arg);
}

/* Sets no field to NULL, because code that runs meanwhile may read it. */
static int clear_entry(PyObject *self)
{
    Entry *entry = (Entry *)self;
    put(&entry->owner, Py_None);
    put(&entry->unit, Py_None);
    put(&entry->members, empty_tuple);
    return _PyWeakref_RefType.tp_clear(self);
}

static void dealloc_entry(PyObject *self)
{
    Entry *entry = (Entry *)self;
    PyObject_GC_UnTrack(self);
    /* First, so that nobody finds a dying entry among the weak references of the resource. */
    _PyWeakref_RefType.tp_clear(self);
    Py_XDECREF(entry->key);
    Py_XDECREF(entry->kind);
    Py_XDECREF(entry->counted);
    Py_XDECREF(entry->owner);
    Py_XDECREF(entry->home);
    Py_XDECREF(entry->unit);
    Py_XDECREF(entry->members);
    Py_XDECREF(entry->released_by);
    _PyWeakref_RefType.tp_dealloc(self);
}

static PyObject *refuse_to_pickle(PyObject *self, PyObject *ignored)
{
    (void)self;
    (void)ignored;
    PyErr_SetString(PyExc_TypeError, "an entry of the identity set belongs to its process and cannot be pickled");
    return NULL;
}

static PyMethodDef methods_of_entries[] = {
    {"__reduce__", refuse_to_pickle, METH_NOARGS, NULL},
    {0},
};

static PyMemberDef members_of_entries[] = {
    {"key", T_OBJECT_EX, offsetof(Entry, key), READONLY, NULL},
    {"kind", T_OBJECT_EX, offsetof(Entry, kind), READONLY, NULL},
    {"released_by", T_OBJECT_EX, offsetof(Entry, released_by), READONLY, NULL},
    {0},
};

static const struct field owner_field = {"owner", offsetof(Entry, owner), OWN_TYPE, true, &scope_state_type},
                          home_field = {"home", offsetof(Entry, home), OWN_TYPE, true, &ledger_type},
                          unit_field = {"unit", offsetof(Entry, unit), OWN_TYPE, true, &entry_type},
                          members_field = {"members", offsetof(Entry, members), A_TUPLE, false, NULL},
                          counted_field = {"counted", offsetof(Entry, counted), AN_OBJECT, false, NULL};

static PyGetSetDef fields_of_entries[] = {
    {"owner", get_field, set_field, NULL, (void *)&owner_field},
    {"home", get_field, NULL, NULL, (void *)&home_field},
    {"unit", get_field, set_field, NULL, (void *)&unit_field},
    {"members", get_field, set_field, NULL, (void *)&members_field},
    {"counted", get_field, set_field, NULL, (void *)&counted_field},
    {0},
};

PyTypeObject entry_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.scopes.compiled.Entry",
    .tp_doc = "A weak reference to a resource, with what the library knows of it.",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = new_entry,
    .tp_traverse = traverse_entry,
    .tp_clear = clear_entry,
    .tp_dealloc = dealloc_entry,
    .tp_methods = methods_of_entries,
    .tp_members = members_of_entries,
    .tp_getset = fields_of_entries,
};

PyObject *referent_of(PyObject *reference)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *referent;
    if (PyWeakref_GetRef(reference, &referent) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return referent;
#else
    PyObject *referent = PyWeakref_GET_OBJECT(reference);
    return referent == Py_None ? NULL : Py_NewRef(referent);
#endif
}

void forget_members(Entry *entry) { put(&entry->members, empty_tuple); }

/* ------------------------------------------------------------------ HeldEntry */

static int traverse_held_entry(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((HeldEntry *)self)->held);
    return traverse_entry(self, visit, arg);
}

static int clear_held_entry(PyObject *self)
{
    put(&((HeldEntry *)self)->held, Py_None);
    return clear_entry(self);
}

static void dealloc_held_entry(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((HeldEntry *)self)->held);
    dealloc_entry(self);
}

static PyObject *let_go(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    stop_holding(self);
    Py_RETURN_NONE;
}

/* The setter of `owner`. An entry that gets an owner holds its resource again, unless the resource
 * has been released. */
static int set_owner_of_held(PyObject *self, PyObject *value, void *closure)
{
    Entry *entry = (Entry *)self;
    if (set_field(self, value, closure) < 0) {
        return -1;
    }
    if (value == Py_None || is_holding(self)) {
        return 0;
    }
    PyObject *known = PyDict_GetItemWithError(live_table, entry->key);
    if (known != self) {
        return known == NULL && PyErr_Occurred() ? -1 : 0;
    }
    PyObject *resource = resource_of(entry);
    if (resource != NULL) {
        put(&((HeldEntry *)self)->held, resource);
        Py_DECREF(resource);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *is_held(PyObject *self, void *ignored)
{
    (void)ignored;
    return PyBool_FromLong(is_holding(self));
}

static PyMethodDef methods_of_held_entries[] = {
    {"let_go", let_go, METH_NOARGS, NULL},
    {0},
};

static PyGetSetDef fields_of_held_entries[] = {
    {"owner", get_field, set_owner_of_held, NULL, (void *)&owner_field},
    {"is_held", is_held, NULL, NULL, NULL},
    {0},
};

PyTypeObject held_entry_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.scopes.compiled.HeldEntry",
    .tp_doc = "The entry of an object that is held until it is released or kept.",
    .tp_basicsize = sizeof(HeldEntry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_base = &entry_type,
    .tp_traverse = traverse_held_entry,
    .tp_clear = clear_held_entry,
    .tp_dealloc = dealloc_held_entry,
    .tp_methods = methods_of_held_entries,
    .tp_getset = fields_of_held_entries,
};

/* ------------------------------------------------------------------ StrongEntry */

/* The object that the weak reference of a strong entry refers to. It lives as long as the entry. */
typedef struct {
    PyObject_HEAD
    PyObject *weak_references;
} Token;

static void dealloc_token(PyObject *self)
{
    if (((Token *)self)->weak_references != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    PyObject_Free(self);
}

static PyTypeObject token_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.scopes.compiled.Token",
    .tp_basicsize = sizeof(Token),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_weaklistoffset = offsetof(Token, weak_references),
    .tp_dealloc = dealloc_token,
};

static void dealloc_strong_entry(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((StrongEntry *)self)->token);
    dealloc_held_entry(self);
}

static PyObject *call_strong_entry(PyObject *self, PyObject *arguments, PyObject *options)
{
    (void)arguments;
    (void)options;
    return Py_NewRef(((HeldEntry *)self)->held);
}

PyTypeObject strong_entry_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.scopes.compiled.StrongEntry",
    .tp_doc = "The entry of an object that cannot be weakly referenced: it is held until it is released or kept.",
    .tp_basicsize = sizeof(StrongEntry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_base = &held_entry_type,
    .tp_traverse = traverse_held_entry,
    .tp_clear = clear_held_entry,
    .tp_dealloc = dealloc_strong_entry,
    .tp_call = call_strong_entry,
};

/* ------------------------------------------------------------------ AnchoredEntry */

static int traverse_anchored_entry(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((AnchoredEntry *)self)->tuples);
    return traverse_entry(self, visit, arg);
}

static int clear_anchored_entry(PyObject *self)
{
    put(&((AnchoredEntry *)self)->tuples, empty_tuple);
    return clear_entry(self);
}

static void dealloc_anchored_entry(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((AnchoredEntry *)self)->tuples);
    dealloc_entry(self);
}

/* A tuple of weak references, without callbacks, to the elements of a tuple; None for an element
 * that is None. NULL with an error set. */
static PyObject *references_to(PyObject *tuple)
{
    Py_ssize_t number = PyTuple_GET_SIZE(tuple);
    PyObject *references = PyTuple_New(number);
    for (Py_ssize_t i = 0; references != NULL && i < number; i++) {
        PyObject *element = PyTuple_GET_ITEM(tuple, i);
        PyObject *reference = element == Py_None ? Py_NewRef(Py_None) : PyWeakref_NewRef(element, NULL);
        if (reference == NULL) {
            Py_CLEAR(references);
            break;
        }
        PyTuple_SET_ITEM(references, i, reference);
    }
    return references;
}

/* The elements that the result of `references_to` refers to, a new tuple. NULL if one of them is
 * gone, and with an error set. */
static PyObject *elements_of(PyObject *references)
{
    Py_ssize_t number = PyTuple_GET_SIZE(references);
    PyObject *elements = PyTuple_New(number);
    for (Py_ssize_t i = 0; elements != NULL && i < number; i++) {
        PyObject *reference = PyTuple_GET_ITEM(references, i);
        PyObject *element = reference == Py_None ? Py_NewRef(Py_None) : referent_of(reference);
        if (element == NULL) {
            Py_CLEAR(elements);
            break;
        }
        PyTuple_SET_ITEM(elements, i, element);
    }
    return elements;
}

/* The first of an entry's tuples whose elements are all alive, made anew; None if there is no such
 * tuple. NULL with an error set. */
static PyObject *tuple_behind(AnchoredEntry *entry)
{
    PyObject *tuples = Py_NewRef(entry->tuples), *found = NULL;
    for (Py_ssize_t i = 0; found == NULL && !PyErr_Occurred() && i < PyTuple_GET_SIZE(tuples); i++) {
        PyObject *pair = PyTuple_GET_ITEM(tuples, i);
        PyObject *elements = elements_of(PyTuple_GET_ITEM(pair, 1));
        PyObject *arguments = elements == NULL ? NULL : PyTuple_Pack(1, elements);
        if (arguments != NULL) {
            /* Not the type's own __new__, which may take its elements one by one. */
            found = PyTuple_Type.tp_new((PyTypeObject *)PyTuple_GET_ITEM(pair, 0), arguments, NULL);
        }
        Py_XDECREF(arguments);
        Py_XDECREF(elements);
    }
    Py_DECREF(tuples);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

static PyObject *call_anchored_entry(PyObject *self, PyObject *arguments, PyObject *options)
{
    (void)arguments;
    (void)options;
    return tuple_behind((AnchoredEntry *)self);
}

static PyObject *anchor(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *found = referent_of(self);
    return found != NULL ? found : Py_NewRef(Py_None);
}

/* Whether two tuples of references have the very same elements. */
static bool are_the_same(PyObject *references, PyObject *others)
{
    if (PyTuple_GET_SIZE(references) != PyTuple_GET_SIZE(others)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(references); i++) {
        if (PyTuple_GET_ITEM(references, i) != PyTuple_GET_ITEM(others, i)) {
            return false;
        }
    }
    return true;
}

static PyObject *remember(PyObject *self, PyObject *tuple)
{
    AnchoredEntry *entry = (AnchoredEntry *)self;
    if (!PyTuple_Check(tuple)) {
        PyErr_Format(PyExc_TypeError, "internal error: remember() was given a %s, expected a tuple",
                     Py_TYPE(tuple)->tp_name);
        return NULL;
    }
    /* All weak references to one element without a callback are the same object, so that
     * `are_the_same` can compare them by identity. */
    PyObject *references = references_to(tuple), *before = Py_NewRef(entry->tuples);
    PyObject *kept = references == NULL ? NULL : PyList_New(0), *after = NULL;
    bool is_known = false, failed = kept == NULL;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(before); i++) {
        PyObject *pair = PyTuple_GET_ITEM(before, i), *others = PyTuple_GET_ITEM(pair, 1);
        PyObject *elements = elements_of(others);
        if (elements == NULL) {
            failed = PyErr_Occurred() != NULL;
            continue;
        }
        Py_DECREF(elements);
        bool is_same = !is_known && are_the_same(references, others);
        PyObject *row = is_same ? PyTuple_Pack(2, Py_TYPE(tuple), others) : Py_NewRef(pair);
        is_known |= is_same;
        failed = row == NULL || PyList_Append(kept, row) < 0;
        Py_XDECREF(row);
    }
    if (!failed && !is_known) {
        PyObject *row = PyTuple_Pack(2, Py_TYPE(tuple), references);
        failed = row == NULL || PyList_Append(kept, row) < 0;
        Py_XDECREF(row);
    }
    if (!failed && (after = PyList_AsTuple(kept)) != NULL) {
        put(&entry->tuples, after);
        Py_DECREF(after);
    }
    Py_XDECREF(kept);
    Py_XDECREF(references);
    Py_DECREF(before);
    if (after == NULL) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods_of_anchored_entries[] = {
    {"anchor", anchor, METH_NOARGS, NULL},
    {"remember", remember, METH_O, NULL},
    {0},
};

PyTypeObject anchored_entry_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "disposescope.scopes.compiled.AnchoredEntry",
    .tp_doc = "The entry of a tuple: a weak reference to its anchor, and one to each element.",
    .tp_basicsize = sizeof(AnchoredEntry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_base = &entry_type,
    .tp_traverse = traverse_anchored_entry,
    .tp_clear = clear_anchored_entry,
    .tp_dealloc = dealloc_anchored_entry,
    .tp_call = call_anchored_entry,
    .tp_methods = methods_of_anchored_entries,
};

/* ------------------------------------------------------------------ making an entry */

/* The argument tuple (resource, died) of the last call. Nobody else has a reference to it, so that
 * it is used again. NULL while it is in use. */
static PyObject *spare_arguments;

static PyObject *take_arguments(PyObject *resource)
{
    PyObject *arguments = spare_arguments;
    if (arguments == NULL) {
        return PyTuple_Pack(2, resource, died_function);
    }
    spare_arguments = NULL;
    PyTuple_SET_ITEM(arguments, 0, Py_NewRef(resource));
    return arguments;
}

static void give_back(PyObject *arguments)
{
    if (spare_arguments != NULL || Py_REFCNT(arguments) != 1) {
        Py_DECREF(arguments);
        return;
    }
    PyObject *resource = PyTuple_GET_ITEM(arguments, 0);
    PyTuple_SET_ITEM(arguments, 0, Py_NewRef(Py_None));
    spare_arguments = arguments;
    Py_DECREF(resource);
}

/* Gives an entry its key, kind and home. Takes over the reference to `key`, and to `made` if it
 * fails. NULL with an error set. */
static Entry *filled(PyObject *made, PyObject *key, PyObject *kind)
{
    Ledger *ledger = made == NULL || key == NULL ? NULL : ledger_here();
    if (ledger == NULL) {
        Py_XDECREF(made);
        Py_XDECREF(key);
        return NULL;
    }
    Entry *entry = (Entry *)made;
    Py_SETREF(entry->key, key);
    put(&entry->kind, kind);
    put(&entry->home, (PyObject *)ledger);
    return entry;
}

static Entry *make_entry_of(PyTypeObject *type, PyObject *resource, PyObject *kind)
{
    PyObject *arguments = take_arguments(resource);
    if (arguments == NULL) {
        return NULL;
    }
    PyObject *made = new_entry(type, arguments, NULL);
    if (made != NULL && type == &held_entry_type) {
        ((HeldEntry *)made)->held = Py_NewRef(resource);
    }
    give_back(arguments);
    return filled(made, made == NULL ? NULL : PyLong_FromVoidPtr(resource), kind);
}

Entry *make_entry(PyObject *resource, PyObject *kind) { return make_entry_of(&entry_type, resource, kind); }

Entry *make_anchored_entry(PyObject *tuple, PyObject *anchor, PyObject *kind)
{
    PyObject *references = references_to(tuple);
    PyObject *tuples = references == NULL ? NULL : Py_BuildValue("((OO))", (PyObject *)Py_TYPE(tuple), references);
    PyObject *arguments = tuples == NULL ? NULL : PyTuple_Pack(2, anchor, anchor_died_function);
    PyObject *made = arguments == NULL ? NULL : new_entry(&anchored_entry_type, arguments, NULL);
    if (made != NULL) {
        ((AnchoredEntry *)made)->tuples = Py_NewRef(tuples);
    }
    Py_XDECREF(arguments);
    Py_XDECREF(tuples);
    Py_XDECREF(references);
    /* The inverted address, because the anchor's own entry has the address as its key. */
    return filled(made, made == NULL ? NULL : PyLong_FromLongLong(-(long long)(uintptr_t)anchor - 1), kind);
}

static Entry *make_strong_entry(PyObject *resource, PyObject *kind)
{
    Token *token = PyObject_New(Token, &token_type);
    if (token == NULL) {
        return NULL;
    }
    token->weak_references = NULL;
    PyObject *arguments = PyTuple_Pack(1, (PyObject *)token);
    PyObject *made = arguments == NULL ? NULL : new_entry(&strong_entry_type, arguments, NULL);
    Py_XDECREF(arguments);
    if (made == NULL) {
        Py_DECREF(token);
        return NULL;
    }
    ((HeldEntry *)made)->held = Py_NewRef(resource);
    ((StrongEntry *)made)->token = (PyObject *)token;
    return filled(made, PyLong_FromVoidPtr(resource), kind);
}

/* Whether an object cannot be weakly referenced. */
static bool refuses_references(PyObject *resource) { return Py_TYPE(resource)->tp_weaklistoffset == 0; }

Entry *make_any_entry(PyObject *resource, PyObject *kind)
{
    int is_anchored = take_truth(PyObject_GetAttr(kind, name_is_anchored));
    int is_held = is_anchored != 0 ? is_anchored : take_truth(PyObject_GetAttr(kind, name_is_held));
    if (is_held < 0) {
        return NULL;
    }
    if (!is_anchored) {
        return refuses_references(resource) ? make_strong_entry(resource, kind)
                                            : make_entry_of(is_held ? &held_entry_type : &entry_type, resource, kind);
    }
    if (!PyTuple_Check(resource)) {
        PyErr_Format(PyExc_TypeError, "internal error: a kind with an anchor is one of tuples, not of %.100s",
                     Py_TYPE(resource)->tp_name);
        return NULL;
    }
    PyObject *anchor = PyObject_CallMethodOneArg(kind, name_anchor, resource);
    Entry *entry = anchor == NULL ? NULL : make_anchored_entry(resource, anchor, kind);
    Py_XDECREF(anchor);
    return entry;
}

PyObject *compiled_make_entry(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 2) {
        PyErr_Format(PyExc_TypeError, "make_entry() takes a resource and its kind, not %zd arguments", number);
        return NULL;
    }
    return (PyObject *)make_any_entry(arguments[0], arguments[1]);
}

PyObject *resource_of(Entry *entry)
{
    PyObject *resource;
    if (Py_TYPE(entry) == &strong_entry_type) {
        resource = Py_NewRef(((HeldEntry *)entry)->held);
    }
    else if (Py_TYPE(entry) == &anchored_entry_type) {
        resource = tuple_behind((AnchoredEntry *)entry);
    }
    else {
        return referent_of((PyObject *)entry);
    }
    if (resource == Py_None) {
        Py_CLEAR(resource);
    }
    return resource;
}

int entries_make(PyObject *module)
{
    if ((empty_tuple = PyTuple_New(0)) == NULL || (name_anchor = PyUnicode_InternFromString("anchor")) == NULL ||
        (name_is_anchored = PyUnicode_InternFromString("is_anchored")) == NULL ||
        (name_is_held = PyUnicode_InternFromString("is_held")) == NULL) {
        return -1;
    }
    entry_type.tp_base = &_PyWeakref_RefType;
    /* Entries are compared by identity, unlike other weak references. */
    entry_type.tp_hash = PyBaseObject_Type.tp_hash;
    entry_type.tp_richcompare = PyBaseObject_Type.tp_richcompare;
    return PyType_Ready(&token_type) < 0 || PyModule_AddType(module, &entry_type) < 0 ||
                   PyModule_AddType(module, &held_entry_type) < 0 || PyModule_AddType(module, &strong_entry_type) < 0 ||
                   PyModule_AddType(module, &anchored_entry_type) < 0
               ? -1
               : 0;
}
