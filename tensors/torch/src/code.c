#include "code.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "../../../leaks/births/src/frames.h"

static PyObject *judge, *ask, *name_module;

/* Verdicts by code, which is held, so that an address means one code. A few that fall together stand side by side, the newest
 * first; a code that has lost its place is judged anew. */
enum { PLACES = 512, WAYS = 4 };
static struct known {
    PyObject *code;
    enum verdict verdict;
} known[PLACES][WAYS];

void code_bind(PyObject *judging, PyObject *asking)
{
    judge = Py_NewRef(judging);
    ask = Py_NewRef(asking);
    name_module = PyUnicode_InternFromString("__name__");
}

/* The name of the module whose code a frame runs, a new reference: None where it has none. NULL with an error set. */
static PyObject *module_of(const struct walk *walk)
{
    PyObject *globals = walk_globals(walk);
    PyObject *name = globals != NULL && PyDict_Check(globals) ? PyDict_GetItemWithError(globals, name_module) : NULL;
    Py_XINCREF(name);
    Py_XDECREF(globals);
    return name != NULL || PyErr_Occurred() ? name : Py_NewRef(Py_None);
}

/* UNKNOWN with an error set. */
static enum verdict verdict_on(const struct walk *walk)
{
    PyObject *code = (PyObject *)walk_code(walk);
    struct known *place = known[((uintptr_t)code >> 5) % PLACES];
    for (int way = 0; way < WAYS; way++) {
        if (place[way].code == code) {
            return place[way].verdict;
        }
    }
    PyObject *module = module_of(walk);
    PyObject *told = module == NULL ? NULL : PyObject_CallFunctionObjArgs(judge, code, module, NULL);
    Py_XDECREF(module);
    long verdict = told == NULL ? -1 : PyLong_AsLong(told);
    Py_XDECREF(told);
    if (verdict <= UNKNOWN || verdict > REBUILDS) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "there is no verdict %ld", verdict);
        }
        return UNKNOWN;
    }
    PyObject *before = place[WAYS - 1].code;
    memmove(place + 1, place, (WAYS - 1) * sizeof *place);
    place[0] = (struct known){Py_NewRef(code), (enum verdict)verdict};
    Py_XDECREF(before);
    return (enum verdict)verdict;
}

/* What the code cannot tell by itself. -1 with an error set. */
static int asked(void)
{
    PyObject *told = PyObject_CallNoArgs(ask);
    int answer = told == NULL ? -1 : PyObject_IsTrue(told);
    Py_XDECREF(told);
    return answer;
}

/* The verdict on the innermost code that is more than passed through. */
static enum verdict verdict_here(void)
{
    struct walk walk;
    enum verdict verdict = MAKES;
    for (walk_begin(&walk); !walk_ended(&walk); walk_out(&walk)) {
        verdict = verdict_on(&walk);
        if (verdict != PASSES && verdict != REBUILDS) {
            break;
        }
    }
    walk_end(&walk);
    return verdict;
}

int code_rebuilds(void)
{
    struct walk walk;
    walk_begin(&walk);
    enum verdict verdict = walk_ended(&walk) ? MAKES : verdict_on(&walk);
    walk_end(&walk);
    return verdict == UNKNOWN ? -1 : verdict == REBUILDS;
}

int code_refuses_births(void)
{
    enum verdict verdict = verdict_here();
    int made = verdict == UNKNOWN ? -1 : verdict == ASKS ? asked() : 1;
    return made < 0 ? -1 : !made;
}

int code_makes_births(void)
{
    switch (verdict_here()) {
    case UNKNOWN:
        return -1;
    case KEEPS:
        return 0;
    case ASKS:
        return asked();
    default:
        /* Also where no code but PyTorch's is there at all. */
        return 1;
    }
}
