/* Where records are made: what is the same for those of resources and those of memory. */
#ifndef DISPOSESCOPE_BIRTHLOG_STUDIO_H
#define DISPOSESCOPE_BIRTHLOG_STUDIO_H

#include "module.h"
#include "slots.h"

/* What is the same for all births of a site: a tuple; see log.py. */
enum fact { FACT_SITE, FACT_FRAMES, FACT_KIND, FACT_DEVICE, FACT_OP, FACTS };

/* Asked for once for each site. Has the references to what it knows. */
struct facts {
    PyObject *function;
    PyObject **known;
    uint32_t room;
};

/* A tuple, borrowed; NULL with an exception. */
PyObject *facts_of(struct facts *facts, uint32_t site);
void facts_forget(struct facts *facts);

enum record_slot {
    KIND, SHAPE, DTYPE, NBYTES, USED_NBYTES, STORAGES, SITE, DISPOSAL, SCOPE, AGE_S, GENERATION, STATE, FRAMES, DEVICE, OP,
    RECORD_SLOTS,
};

/* What makes the records of one snapshot. All but the facts and what it makes itself is borrowed. */
struct record_builder {
    PyTypeObject *type;
    Py_ssize_t slots[RECORD_SLOTS];
    PyObject *numbers; /* dict: identity of a storage -> its number in the snapshot */
    struct facts facts;
    double now_s;
    unsigned int closings;
    PyObject *alive;
    /* Of the last record: when it was born, and what that makes. */
    uint32_t at_ms, born_at;
    PyObject *age, *generation;
};

/* Learn the class of records; -1 with an exception. */
int record_builder_make(struct record_builder *record_builder, PyObject *type);
void record_builder_close(struct record_builder *record_builder);
/* The one storage of something, by its number, with its bytes; a new reference. */
PyObject *record_builder_storages(struct record_builder *record_builder, PyObject *identity, PyObject *nbytes);
/* Have the garbage collector leave a new object alone, which refers only to what cannot refer to it: the next collection would go
 * through millions of them otherwise, and each full one after that. */
void left_alone(PyObject *object);

/* What a record tells of the thing itself; borrowed. */
struct likeness {
    PyObject *kind, *shape, *dtype, *nbytes, *used_nbytes, *storages;
};

/* The record of something that is alive; a new reference. */
PyObject *record_builder_record(struct record_builder *record_builder, const struct row *row, const struct likeness *likeness);

#endif
