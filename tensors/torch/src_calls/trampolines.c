#include "trampolines.h"

/* Four digits each, and a one before them, lest they be octal. */
#define NUMBER(digits) (1##digits - 10000)

#define TEN(what, digits)                                                                                                     \
    what(digits##0) what(digits##1) what(digits##2) what(digits##3) what(digits##4) what(digits##5) what(digits##6)         \
        what(digits##7) what(digits##8) what(digits##9)
#define HUNDRED(what, digits)                                                                                                 \
    TEN(what, digits##0)                                                                                                      \
    TEN(what, digits##1)                                                                                                      \
    TEN(what, digits##2)                                                                                                      \
    TEN(what, digits##3)                                                                                                      \
    TEN(what, digits##4)                                                                                                      \
    TEN(what, digits##5)                                                                                                      \
    TEN(what, digits##6)                                                                                                      \
    TEN(what, digits##7)                                                                                                      \
    TEN(what, digits##8)                                                                                                      \
    TEN(what, digits##9)
#define THOUSAND(what, digits)                                                                                                \
    HUNDRED(what, digits##0)                                                                                                  \
    HUNDRED(what, digits##1)                                                                                                  \
    HUNDRED(what, digits##2)                                                                                                  \
    HUNDRED(what, digits##3)                                                                                                  \
    HUNDRED(what, digits##4)                                                                                                  \
    HUNDRED(what, digits##5)                                                                                                  \
    HUNDRED(what, digits##6)                                                                                                  \
    HUNDRED(what, digits##7)                                                                                                  \
    HUNDRED(what, digits##8)                                                                                                  \
    HUNDRED(what, digits##9)
#define ALL(what) THOUSAND(what, 0)

#define DEFINE(digits)                                                                                                        \
    static PyObject *two_##digits(PyObject *self, PyObject *argument)                                                        \
    {                                                                                                                         \
        return call_of_two(NUMBER(digits), self, argument);                                                                  \
    }                                                                                                                         \
    static PyObject *three_##digits(PyObject *self, PyObject *arguments, PyObject *named)                                   \
    {                                                                                                                         \
        return call_of_three(NUMBER(digits), self, arguments, named);                                                        \
    }
#define TWO(digits) two_##digits,
#define THREE(digits) three_##digits,

ALL(DEFINE)

const PyCFunction trampolines_of_two[TRAMPOLINES] = {ALL(TWO)};
const PyCFunctionWithKeywords trampolines_of_three[TRAMPOLINES] = {ALL(THREE)};
