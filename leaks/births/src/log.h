/* The log of births: what is known of every resource and every piece of memory that was seen to be
 * born and is there still.
 *
 * All of it is one object, a `Log`; there is one in a process, which lives as long as that. What is
 * known of one birth takes 32 bytes: everything in it that repeats (the line, the call, the kind,
 * the device, the scope) is a number. A birth is found by the address of what was born: of the
 * entry of a resource, of a block of the arena, or of a weak reference to the object that stands
 * for memory, such as a storage of PyTorch. The log has a reference to that entry, or to that weak
 * reference.
 *
 * Everything here is called with the GIL held. Functions whose comment says "runs no Python code"
 * run none. The others may run the garbage collector, and with it any of these functions again.
 *
 * Read births.c first; then places.c and sites.c, where a birth happens and what a line made;
 * rows.c, what Python gets of births; names.c; and module.c, the type of the log and the functions
 * for other compiled parts. Each calls only what stands below it: module, rows, births, sites,
 * places, names. */
#ifndef DISPOSESCOPE_BIRTHS_LOG_H
#define DISPOSESCOPE_BIRTHS_LOG_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../../scopes/src/shared/clock.h"
#include "../../../scopes/src/shared/types.h"
#include "hash_index.h"

/* ------------------------------------------------------------------ births */

enum birth_flag {
    BIRTH_SAMPLED = 1,    /* stands for others that were not kept: see birth_weight */
    BIRTH_UNCOUNTED = 2,  /* its site does not count it: a member of a composite, or memory that belongs to a model */
    BIRTH_OF_ENTRY = 4,   /* its key is an entry */
    BIRTH_OF_MEMORY = 8,  /* its key is a weak reference to what stands for memory; else the address of a block */
    BIRTH_BACKED = 16,    /* its bytes are those of memory whose birth is known by itself */
    BIRTH_ESCAPED = 32,   /* memory whose tensor was disposed, which something still uses */
    BIRTH_MOVED_OUT = 64, /* memory that was moved out under another name than that of its tensor */
};

#define NBYTES_BITS 41
#define NUMBER_BITS 42
#define SITE_BITS 22
#define NBYTES_AT_MOST ((UINT64_C(1) << NBYTES_BITS) - 1)
#define SITES_AT_MOST ((UINT32_C(1) << SITE_BITS) - 1)
/* The site of what is not recorded: nobody asked for it, or there are SITES_AT_MOST already. */
#define NO_SITE UINT32_MAX

struct birth {
    void *key; /* with a reference where it is an object */
    uint64_t nbytes : NBYTES_BITS, flags : 7, scope : 16;
    uint64_t number : NUMBER_BITS, site : SITE_BITS; /* births are numbered in their order */
    uint32_t closings;                               /* scopes closed until then */
    uint32_t at_ms;                                  /* since the log was made */
};

/* The births of what is alive, in no order. */
struct births {
    struct birth *all;
    uint32_t count, room;
    struct hash_index index; /* by key */
};

/* Which births are kept, where not all are. */
struct sampling {
    bool is_on;
    double mean_nbytes; /* from one birth that is kept to the next */
    double next_nbytes; /* until the next one */
    uint64_t random_state;
};

/* What is known of a kind, as `describe_kind` in compiled.pyi. It has references, which it
 * keeps. */
struct kind {
    PyObject *kind;
    PyObject *weigh;  /* resource -> bytes, or None */
    PyObject *memory; /* resource -> what stands for its memory, or None */
    uint16_t name, device;
    bool is_backed;
};

#define KINDS_AT_MOST 64

/* ------------------------------------------------------------------ names, places, sites */

/* Strings (and None), each once; by number. */
struct names {
    PyObject *numbers; /* dict: object -> its number */
    PyObject *objects; /* list */
};

#define NO_NUMBER UINT16_MAX

/* An instruction of a code object. */
struct place {
    PyCodeObject *code;
    intptr_t instruction;
};

#define PLACES_AT_MOST 64

/* One fact of a code object: a question, such as the role of the code, and the answer. See
 * places.c. */
struct code_fact {
    PyCodeObject *code;
    intptr_t about, value;
};

/* What is known of codes. It has a reference to each of them. */
struct code_facts {
    struct code_fact *all;
    uint32_t count, room, codes;
    struct hash_index index; /* by code and `about` */
};

/* What one line, with those that led to it, made of one kind on one device. It has references to
 * the codes. */
struct site {
    const struct place *places; /* innermost first */
    uint32_t places_count;
    uint32_t hash;
    uint16_t op, kind, device;
    uint64_t births;
    double live; /* of sampled births an estimate, as the two below */
    int64_t live_nbytes, peak_nbytes;
    uint64_t latest_birth, latest_death; /* the numbers of the last births before these were counted */
    struct series *series;
};

#define DEVICES 64

/* Passes of a loop by one name. */
struct passes {
    uint32_t count;
    uint32_t before; /* how many of them there were before births began to be recorded the last time */
    uint32_t stride; /* of those since, only the ones whose number is a multiple of it are kept */
};

struct sites {
    struct site *all; /* by number */
    uint32_t count, room;
    struct hash_index index; /* by everything that distinguishes one site from another */
    struct passes *passes;   /* by the number of their name */
    uint32_t passes_count;
    struct passes births; /* each is a pass */
    int64_t live_nbytes[DEVICES]; /* by the number of the device */
};

/* ------------------------------------------------------------------ the log */

/* When somebody looks at what lives: at births 6, 7, 8, 10 and so on from now, each a quarter
 * further on, from some 16,000 on at twice as many, as a look takes longer then; and where a device
 * has a quarter more bytes than at any look before, and some megabytes, as a program may load much
 * first and begin then. The main thread looks as soon as it runs Python code. Where another thread
 * makes the next birth before that, as the main thread may be waiting for it, a thread that does
 * nothing else is woken, and whichever of the two comes first looks. */
struct looks {
    PyObject *look;      /* called with `has_grown`, returns whether it looked; NULL for nobody */
    uint64_t after;      /* the number of the last birth before */
    uint64_t next;       /* at which birth since then it is called */
    int64_t next_nbytes; /* at how many bytes that live */
    bool has_grown;      /* a device had so many since the last look */
    bool is_due;         /* the interpreter has been asked to call it */
    bool is_running;     /* it is being called */
    bool is_woken;       /* the other thread has been woken */
    PyObject *wake;      /* releases the lock for which that thread waits; NULL for none */
    unsigned long main;  /* the thread that asked for looks */
};

typedef struct {
    PyObject_HEAD
    bool is_open;        /* births are recorded */
    bool is_clearing;    /* everything is being forgotten */
    uint32_t frames;     /* how many frames of user code are kept for a birth */
    uint32_t marks;      /* passes that are over */
    uint32_t closings;   /* scopes that were closed */
    uint64_t last_birth; /* its number */
    uint64_t cleared_at; /* the last birth that was forgotten with everything else */
    uint64_t clearings;  /* how often everything was forgotten */
    uint64_t openings;   /* how often births began to be recorded */
    uint64_t escapes;
    struct looks looks;
    double made_at; /* as `seconds_now` */
    struct births births;
    struct sampling sampling;
    struct sites sites;
    struct code_facts code_facts;
    struct names ops, kind_names, devices, scope_names, pass_names;
    struct kind kinds[KINDS_AT_MOST];
    int kinds_count;
    PyObject *disposals; /* a dict by entry, Python's: the log takes out what has died */
    PyObject *api;       /* a capsule: see ../../../scopes/src/shared/birth_log.h */
    PyObject *memory_died; /* the callback of weak references to memory */
    const struct scopes_api *scopes;
    /* Functions of Python: of a code and its globals, of an entry and a dict, of an entry, of a
     * code and an instruction. The last one is NULL until it is given. */
    PyObject *rank_of, *storages_of, *device_of_entry, *name_of_call;
} Log;

extern PyTypeObject log_type, row_type, memory_reference_type;

/* By the monotonic clock, in seconds: now, to a few milliseconds. */
static inline double seconds_now(void) { return (double)clock_ms() * 1e-3; }

static inline bool log_records(const Log *log) { return log->is_open && !log->is_clearing; }

/* ------------------------------------------------------------------ births.c */

/* Sets up what births need of a log. -1 with an exception. */
int births_make(Log *log);
/* Keep one birth for so many bytes from now on; all of them where it is 0. */
void births_sample(Log *log, uint64_t nbytes);
/* Whether a birth of so many bytes is to be kept; to be asked once for each. */
bool births_keep(Log *log, size_t nbytes);
/* The birth of a key, or of what an object stands for; NULL where none is known. Good until the
 * next birth or death. */
struct birth *birth_of(const Log *log, const void *key);
struct birth *birth_of_memory(const Log *log, PyObject *object);
void births_clear(Log *log);
/* See `count_elsewhere` in ../compiled.pyi. */
PyObject *births_count_elsewhere(Log *log, PyObject *const *arguments, Py_ssize_t count);
/* Call a function of Python at births; NULL for nobody. See `looks`. */
void births_look(Log *log, PyObject *look);
/* From now on call a function that runs no Python code where a look is due and the main thread does
 * not run; NULL for none. */
void births_wake(Log *log, PyObject *wake);
/* A look on another thread, by this function, where one is due. -1 with an exception. */
int births_look_here(Log *log, PyObject *look);

/* The functions of the interface to other compiled parts: see
 * ../../../scopes/src/shared/birth_log.h. Blocks run no Python code but for a birth, which keeps an
 * exception that is set. */
int memory_born(Log *log, PyObject *object, PyObject *op, size_t nbytes, uint16_t kind, uint16_t device);
int memory_exclude(Log *log, PyObject *object);
bool block_born(Log *log, void *address, size_t nbytes, uint16_t kind, uint16_t device);
void block_died(Log *log, void *address);
void block_moved(Log *log, void *before, void *after, size_t nbytes);

/* Methods of the log: see compiled.pyi. */
PyObject *births_born(Log *log, PyObject *entry);
PyObject *births_died(Log *log, PyObject *entry);
PyObject *births_released(Log *log, PyObject *entry);
PyObject *births_record_memory(Log *log, PyObject *const *arguments, Py_ssize_t count);
PyObject *births_record_owner(Log *log, PyObject *const *arguments, Py_ssize_t count);
PyObject *births_exclude(Log *log, PyObject *object);
PyObject *births_escape(Log *log, PyObject *key);
PyObject *births_let_out(Log *log, PyObject *key);
PyObject *births_has_escaped(Log *log, PyObject *key);
PyObject *births_describe_kind(Log *log, PyObject *arguments);

/* ------------------------------------------------------------------ names.c */

/* Forgets all names. -1 with an exception. */
int names_make(struct names *names);
int scope_names_make(struct names *names);
/* The number of an object; NO_NUMBER for all that came too late or could not be remembered. Runs no
 * Python code; keeps an exception that is set. */
uint16_t names_number(struct names *names, PyObject *object);
/* The object of a number; borrowed, None for NO_NUMBER. */
PyObject *names_object(const struct names *names, uint16_t number);
/* The number of the name of a scope, of None outside of every scope; and of the current one. Keep
 * an exception that is set. */
uint16_t scope_number(Log *log, PyObject *scope);
uint16_t scope_number_here(Log *log);
/* From now on take this number for that of the current scope of the thread; NULL ends that. The
 * pointer is kept: what it points to must live until another one, or NULL, is given. */
void scope_number_use(const uint16_t *number);
/* The number that is taken so; false where none is. */
bool scope_number_in_use(uint16_t *number);

/* ------------------------------------------------------------------ places.c */

/* Where a birth happens: places of user code, innermost first; where there is none, generated code
 * or the outermost frame. The codes are borrowed from their frames. */
struct origin {
    int count; /* of places; -1 where nothing is to be recorded: of a KEEPER, or without memory */
    const struct place *places;
    PyCodeObject *called; /* the code of the library that the innermost place called, or NULL */
    intptr_t instruction; /* that of the innermost place, which itself has the one that stands for its line */
    uint16_t op;          /* the number of the name of the call, where that is known */
};

/* The origin of a birth here and now, or the one that is in use on this thread. Its places may be
 * put into `room`. May run Python code; keeps an exception that is set. */
struct origin origin_of_birth(Log *log, struct place room[PLACES_AT_MOST]);

/* The number of the name of the call that a birth happens in, of which library code runs; NO_NUMBER
 * where it has none. The codes are held. May run Python code; keeps an exception that is set. */
uint16_t origin_op(Log *log, const struct origin *origin);

/* Pass over so many of the innermost frames of this thread from now on. */
void origin_leave_out(uint32_t frames);

/* What a birth here and now would be recorded with, and its use for the next births on this thread:
 * `remember_origin`, `is_recent` and `use_origin` in birth_log.h. */
PyObject *origin_remember(Log *log);
bool origin_is_recent(const Log *log, PyObject *remembered);
void origin_use(Log *log, PyObject *remembered);

/* The innermost place in user code of the calling thread; returns whether there is one. The code is
 * borrowed from its frame. */
bool place_here(Log *log, struct place *place);
/* Let go of all codes; sites hold theirs. What is let go may take anything with it. */
void code_facts_clear(Log *log);

/* ------------------------------------------------------------------ sites.c */

/* Where a birth in the calling thread belongs; NO_SITE where nothing is to be recorded. `op` is
 * what was called, or NULL: then the function of a library that the line called is taken, where it
 * has a frame. May run Python code; keeps an exception that is set. */
uint32_t site_here(Log *log, PyObject *op, uint16_t kind, uint16_t device);
/* 1 for a birth that was kept as it is, how many it stands for where it was sampled. */
double birth_weight(const Log *log, const struct birth *birth);
/* Count a birth at its site with a sign: 1 where it lives from now on, -1 where it does no longer.
 * Runs no Python code. */
void site_count(Log *log, const struct birth *birth, int sign);
/* Whether the bytes of a birth that lives count for its device or, as those of other memory that
 * lies in it, elsewhere. */
void site_count_elsewhere(Log *log, struct birth *birth, bool is_elsewhere);
/* A birth has been counted: record what lives of each site, as at the end of a pass. Runs no Python
 * code. */
void sites_birth(Log *log);
/* Births begin to be recorded again: what lived after earlier passes is forgotten, so that there is
 * room for all that come. */
void sites_begin(Log *log);
/* Adds the type of what `sites_site` returns. -1 with an exception. */
int sites_add_type(PyObject *module);
/* How many passes there were by the name of a number. */
uint32_t sites_passes(const Log *log, uint16_t name);
void sites_clear(Log *log);

/* Methods of the log. */
PyObject *sites_mark(Log *log, PyObject *name);
PyObject *sites_series(Log *log, PyObject *const *arguments, Py_ssize_t count);
PyObject *sites_site(Log *log, PyObject *number);

/* ------------------------------------------------------------------ rows.c: methods of the log */

PyObject *rows_recall(Log *log, PyObject *entry);
PyObject *rows_recall_block(Log *log, PyObject *address);
PyObject *rows_recall_memory(Log *log, PyObject *object);
PyObject *rows_is_in_use(Log *log, PyObject *const *arguments, Py_ssize_t count);
PyObject *rows_entries(Log *log, PyObject *arguments);
PyObject *rows_blocks(Log *log, PyObject *arguments);
PyObject *rows_recorded_memory(Log *log, PyObject *arguments);

#endif
