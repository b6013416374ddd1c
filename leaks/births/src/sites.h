/* What the files about sites share: see compiled.h for what the others use of them. */
#ifndef DISPOSESCOPE_BIRTHLOG_SITES_H
#define DISPOSESCOPE_BIRTHLOG_SITES_H

#include "module.h"

static inline uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash ^= word;
    hash *= UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ (hash >> 29);
}

#define PLACES_AT_MOST 64

/* The places of user code, innermost first; where there is none, generated code or the outermost frame. `called` gets the code
 * of the library that the innermost one called, or NULL, and `exact` the innermost one's own instruction, where the place has one
 * that stands for all of its line. Returns how many, or -1 where nothing is to be remembered. */
int places_here(struct place *places, uint32_t wanted, PyCodeObject **called, intptr_t *exact);
/* The number of the name of the call that an instruction makes; UINT16_MAX where it has none. Runs Python code. The code is held by
 * the caller. */
uint16_t places_op(PyCodeObject *code, intptr_t instruction);
void places_name_calls_by(PyObject *function);
/* Let go of all codes; sites hold theirs. What is let go may take anything with it. */
void places_forget(void);

void series_clear(struct series *series);
void series_forget_passes(void);

#endif
