/* What the files about births share: see compiled.h for what the others use of them. */
#ifndef DISPOSESCOPE_BIRTHLOG_BIRTHS_H
#define DISPOSESCOPE_BIRTHLOG_BIRTHS_H

#include "module.h"

static inline uint64_t births_bounded(size_t nbytes) { return nbytes < NBYTES_AT_MOST ? nbytes : NBYTES_AT_MOST; }

/* Fill in what is the same for all births. Runs no Python code: the numbers of the site and of the scope, which may, come first. */
static inline void births_fill(struct row *row, size_t nbytes, uint32_t site, uint16_t scope)
{
    double at = (log_now() - log_loaded_at) * 1000;
    row->nbytes = births_bounded(nbytes);
    row->order = ++log_births;
    row->site = site;
    row->scope = scope;
    row->closings = log_closings;
    row->at_ms = at < (double)UINT32_MAX ? (uint32_t)at : UINT32_MAX;
}

/* What is known of a kind of resources. */
struct kind {
    PyObject *kind;
    PyObject *weigh;  /* resource -> bytes, or None: then the general function tells bytes and device */
    PyObject *memory; /* resource -> what stands for its memory, or None */
    uint16_t name, device;
    bool backed;
};

/* What is known of a kind; -1 with an exception. `found` gets borrowed references, which the kind row or `held` holds. */
int kinds_find(PyObject *kind, struct kind *found, PyObject **held);
/* Bytes and device of a resource, as the general function tells them; -1 with an exception. */
int kinds_measure(PyObject *entry, size_t *nbytes, uint16_t *device);

#endif
