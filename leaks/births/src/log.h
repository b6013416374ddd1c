/* The birth log: what is known of every resource and every piece of memory that was seen to be born and is there still.
 *
 * One log for the process. What is known of one birth is a row of 24 bytes: everything in it that repeats (the line, the
 * call, the kind, the device, the scope) is an interned number. Rows stand in two places: in a table by address, for entries of
 * the identity set (which it holds a reference to) and for blocks of the arena; and inside a weak reference, for objects that
 * stand for memory, such as a storage of PyTorch: the reference goes with the memory, and the row with it.
 *
 * Everything here is called with the GIL held. No function that says so runs Python code; the others may run the garbage
 * collector, and with it any of these functions again.
 *
 * Read births.c first; then places.c and sites.c, where a birth happens and what a line made; tables.c, where rows stand; rows.c,
 * what Python gets of them; names.c; and module.c.
 */
#ifndef DISPOSESCOPE_BIRTHLOG_H
#define DISPOSESCOPE_BIRTHLOG_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* The state of the log. */
struct birth_log {
    bool is_open;     /* births are recorded */
    bool is_clearing; /* everything is being forgotten */
    bool samples;     /* not every birth is kept */
    uint32_t frames;  /* how many frames of user code are kept for a birth */
    uint32_t marks, closings;
    uint64_t births;     /* the number of the last birth */
    uint64_t cleared_at; /* what that was when everything was forgotten last */
    uint64_t era;        /* changes when everything is forgotten */
    uint64_t escapes;
    double loaded_at; /* as `log_now` */
    PyObject *disposals; /* dict by entry, in which Python keeps what it knows of disposals: what has died is taken out */
};

extern struct birth_log birth_log;

/* By the monotonic clock, in seconds: now, to a few milliseconds. */
double log_now(void);
/* What a module of Python has under a name, a new reference. It is kept for the life of the process: there are births while the
 * interpreter goes down. */
PyObject *log_import(const char *module, const char *name);

/* ------------------------------------------------------------------ rows */

enum row_flag {
    ROW_SAMPLED = 1,  /* stands for others that were not kept: see births_weight */
    ROW_EXCLUDED = 2, /* is not reported: it belongs to a model */
    ROW_ENTRY = 4,    /* its key is an entry, of which the table has a reference */
    ROW_BACKED = 8,   /* its bytes are those of memory that has a row of its own */
    ROW_MEMBER = 16,  /* stands for a member of a composite, which is counted in its place */
    ROW_ESCAPED = 32, /* memory whose tensor was disposed: what still uses it was not to */
    ROW_LET_OUT = 64, /* memory that was moved out under another name than that of its tensor */
};

#define NBYTES_BITS 41
#define ORDER_BITS 42
#define SITE_BITS 22
#define NBYTES_AT_MOST ((UINT64_C(1) << NBYTES_BITS) - 1)
/* What has a birth but no site is not remembered. */
#define SITES_AT_MOST ((UINT32_C(1) << SITE_BITS) - 1)

struct row {
    uint64_t nbytes : NBYTES_BITS, flags : 7, scope : 16;
    uint64_t order : ORDER_BITS, site : SITE_BITS; /* the number of the birth, and that of its site */
    uint32_t closings;                             /* scopes closed until then */
    uint32_t at_ms;                                /* since the log was loaded */
};

/* ------------------------------------------------------------------ names.c: interned objects, and the current scope */

/* Strings (and None), each once. */
struct names {
    PyObject *numbers; /* dict: object -> its number */
    PyObject *objects; /* list */
};

extern struct names op_names, kind_names, device_names, scope_names, pass_names;

int names_make(struct names *names);
/* The number of a hashable object, at most 65,534; 65,535 for all that came too late or could not be remembered. Keeps an
 * exception that is set. */
uint16_t names_number(struct names *names, PyObject *object);
/* The object of a number; borrowed, None for 65,535. */
PyObject *names_object(const struct names *names, uint16_t number);

/* The number of the name of a scope, of None outside of every scope; and of the current one. Raise nothing. */
uint16_t scopes_number(PyObject *scope);
uint16_t scopes_current(void);
int scopes_make(void);

/* ------------------------------------------------------------------ places.c: where a birth happens */

/* An instruction of a code object; a site holds the code. */
struct place {
    PyCodeObject *code;
    intptr_t instruction;
};

#define PLACES_AT_MOST 64

static inline uint64_t hash_mixed(uint64_t hash, uint64_t word)
{
    hash ^= word;
    hash *= UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ (hash >> 29);
}

/* The places of user code of the calling thread, innermost first, or those that were remembered and are in use; where there is
 * none, generated code or the outermost frame. `called` gets the code of the library that the innermost one called, or NULL. The
 * codes are borrowed from their frames. Returns how many, or -1 where nothing is to be recorded: the code keeps what it makes for
 * itself, or there is no memory. May run Python code; keeps an exception that is set. */
int places_of_birth(struct place *places, uint32_t wanted, PyCodeObject **called);
/* The place in user code of the calling thread, innermost; returns whether there is one. The code is borrowed from its frame. */
bool places_innermost(struct place *place);
/* Let go of all codes; sites hold theirs. What is let go may take anything with it. */
void places_forget(void);
int places_make(void);

/* What a birth here and now would be recorded with: a new reference, or NULL, without an exception, where there is no memory. May
 * run Python code. */
PyObject *remembered_here(void);
/* Have the births on this thread recorded with that, until it is called with NULL. */
void remembered_use(PyObject *capsule);
/* The number of the scope that is in use; false where nothing is. And that of the name of the call; UINT16_MAX where it has none. */
bool remembered_scope(uint16_t *scope);
uint16_t remembered_op(void);
/* What tells the name of the call of a code's instruction. */
void places_name_calls_by(PyObject *function);

/* ------------------------------------------------------------------ sites.c: what a line made */

/* What one line, with those that led to it, made of one kind on one device. */
struct site {
    uint64_t hash;
    struct place *places; /* innermost first */
    uint32_t count_of_places;
    uint16_t op, kind, device;
    uint64_t births;
    double live; /* of sampled births an estimate, as the two below */
    int64_t live_nbytes, peak_nbytes;
    struct series *series;
};

extern struct site *sites;
extern uint32_t count_of_sites;

/* The live bytes by device, by its number. */
#define DEVICES 64
extern int64_t device_live_nbytes[DEVICES];

/* Find what is to be recorded of a birth in the calling thread: the site, or UINT32_MAX where nothing is. `op` is what was called,
 * borrowed, or NULL: then the function of a library that the line called is taken, where it has a frame. May run Python code;
 * keeps an exception that is set. */
uint32_t sites_here(PyObject *op, uint16_t kind, uint16_t device);

/* Count a birth and a death. Run no Python code. */
void sites_born(const struct row *row);
void sites_died(const struct row *row);

/* A pass by the name of a number is over: record what lives of each site. Runs no Python code. */
int sites_mark(uint16_t name);
/* How many passes of a name there were. */
uint32_t sites_passes(uint16_t name);
/* list of (pass, count, nbytes) of a site over the passes of a name, with what lives now as the last; a new reference. */
PyObject *sites_series(uint32_t site, uint16_t name);
void sites_clear(void);

PyObject *sites_row(PyObject *module, PyObject *number);

/* ------------------------------------------------------------------ tables.c: where rows stand */

/* Keep a row for a key; an older one goes. Returns 0, or -1 where there is no memory (no exception is set). Runs no Python
 * code. */
int table_put(void *key, const struct row *row);
/* Take the row of a key out; returns whether there was one. Runs no Python code. */
bool table_take(void *key, struct row *row);
/* The row of a key or NULL; good until the next change of the table. */
struct row *table_find(void *key);
/* Step through the table: start with 0; false at its end. */
bool table_next(size_t *position, void **key, struct row **row);
size_t table_count(void);
void table_clear(void);

/* A weak reference that stands in the list of all, and holds a row. Its place in the list stands where other weak references
 * remember their hash: it is hashed by identity, and has none to remember. */
struct sighting {
    PyWeakReference reference;
    struct row row;
};

extern PyTypeObject sighting_type;
/* All of them, in no order; the list has a reference to each. */
extern struct sighting **all_sightings;

#define NOT_LISTED ((Py_hash_t)-1)

static inline bool sighting_is_listed(const struct sighting *sighting) { return sighting->reference.hash != NOT_LISTED; }

int sightings_make(void);
/* The sighting of an object, borrowed, or NULL. Runs no Python code. */
struct sighting *sightings_of(PyObject *object);
/* Add one, whose row is excluded and is for the caller to fill in. Returns it, a new reference, or NULL with an exception. */
struct sighting *sightings_add(PyObject *object);
void sightings_clear(void);
size_t sightings_count(void);

/* ------------------------------------------------------------------ births.c: births and deaths */

/* Keep one birth for so many bytes from now on; all of them where it is 0. */
void births_sample(uint64_t nbytes);
/* Whether a birth of so many bytes is to be kept; to be asked once for each. */
bool births_keep(size_t nbytes);
/* 1 for a birth that was kept as it is, how many it stands for where it was sampled. */
double births_weight(const struct row *row);

/* The functions of the interface to other rooms: see api.h. */
int births_sight_memory(PyObject *object, PyObject *op, size_t nbytes, uint16_t kind, uint16_t device);
bool births_of_block(void *address, size_t nbytes, uint16_t kind, uint16_t device);
void births_block_died(void *address);
void births_block_moved(void *before, void *after, size_t nbytes);

/* The functions of the module: see compiled.pyi. */
PyObject *births_born(PyObject *module, PyObject *entry);
PyObject *births_died(PyObject *module, PyObject *entry);
PyObject *births_released(PyObject *module, PyObject *entry);
PyObject *births_sight(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *births_exclude(PyObject *module, PyObject *object);
PyObject *births_escape(PyObject *module, PyObject *key);
PyObject *births_let_out(PyObject *module, PyObject *key);
PyObject *births_has_escaped(PyObject *module, PyObject *key);
PyObject *births_describe_kind(PyObject *module, PyObject *arguments);
int births_make(void);

/* ------------------------------------------------------------------ rows.c: what Python gets of rows */

extern PyTypeObject row_type;

PyObject *rows_recall(PyObject *module, PyObject *entry);
PyObject *rows_recall_block(PyObject *module, PyObject *address);
PyObject *rows_recall_memory(PyObject *module, PyObject *object);
PyObject *rows_is_in_use(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *rows_entries(PyObject *module, PyObject *arguments);
PyObject *rows_blocks(PyObject *module, PyObject *arguments);
PyObject *rows_sightings(PyObject *module, PyObject *arguments);
PyObject *rows_untrack(PyObject *module, PyObject *objects);

#endif
