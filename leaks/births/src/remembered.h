/* Where a birth happened of which the log is told only later. */
#ifndef DISPOSESCOPE_BIRTHLOG_REMEMBERED_H
#define DISPOSESCOPE_BIRTHLOG_REMEMBERED_H

#include "sites.h"

/* What a birth here and now would be put down with: a new reference, or NULL, without an exception, where there is no memory. May
 * run Python code. */
PyObject *remembered_here(void);
/* Have the births on this thread put down with that, until it is called with NULL. */
void remembered_use(PyObject *capsule);

/* What is in use, as `places_here` and `scopes_current` tell it; false where nothing is. */
bool remembered_places(struct place *places, uint32_t wanted, PyCodeObject **called, int *count);
bool remembered_scope(uint16_t *scope);
/* The number of the name of its call; UINT16_MAX where it has none, or nothing is in use. */
uint16_t remembered_op(void);

#endif
