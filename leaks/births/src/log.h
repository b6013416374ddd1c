/* The log of births: what is known of every resource and every piece of memory whose birth was
 * recorded and that is still alive.
 *
 * The log is one object, a `Log`. A process has one log, which lives as long as the process. The
 * record of one birth takes 32 bytes: whatever repeats from birth to birth (the line, the call, the
 * kind, the device, the scope) is stored once, and the record has its number. A birth is found by
 * its key, which is an address: that of the entry of a resource, that of a block of the arena, or
 * that of a weak reference to the object that stands for memory, such as a storage of PyTorch. The
 * log owns a reference to the entry, or to the weak reference.
 *
 * Everything here is called with the GIL held. A function may run the garbage collector, and with
 * it any of these functions again, unless its comment says "runs no Python code".
 *
 * Read births.c first; then places.c (where a birth happens) and sites.c (what a line made);
 * rows.c (what Python gets of births); names.c; and module.c (the type of the log, and the functions
 * for other compiled parts). In the order module, rows, births, sites, places, names, each file
 * calls only the files after it. */
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
    BIRTH_SAMPLED = 1,    /* kept in a sample, and stands for births that were not kept: see birth_weight */
    BIRTH_UNCOUNTED = 2,  /* its site does not count it: a member of a composite, or memory that belongs to a model */
    BIRTH_OF_ENTRY = 4,   /* its key is an entry; with neither this nor the next flag the address of a block */
    BIRTH_OF_MEMORY = 8,  /* its key is a weak reference to what stands for memory */
    BIRTH_BACKED = 16,    /* the log has another birth for the memory that its bytes lie in */
    BIRTH_ESCAPED = 32,   /* memory that is still used although its tensor was disposed */
    BIRTH_MOVED_OUT = 64, /* memory of which an alias, such as an array over a tensor's storage, was moved out */
    BIRTH_SCALAR = 128,   /* it was born with `SCALAR_NBYTES` at most */
};

/* The widths of the fields of `struct birth`, so that they fill two words of 64 bits: births of up
 * to 1 TiB, 4 million millions of births, and 4 million sites. */
#define NBYTES_BITS 40
#define NUMBER_BITS 42
#define SITE_BITS 22
#define NBYTES_AT_MOST ((UINT64_C(1) << NBYTES_BITS) - 1)
#define SITES_AT_MOST ((UINT32_C(1) << SITE_BITS) - 1)
/* NumPy makes an array of so many bytes at most of a number in an expression. */
#define SCALAR_NBYTES 16
/* The site of a birth that is not recorded: nothing of it is to be reported, or there are
 * SITES_AT_MOST sites already. */
#define NO_SITE UINT32_MAX

struct birth {
    void *key; /* a reference that is owned where the key is an object */
    uint64_t nbytes : NBYTES_BITS, flags : 8, scope : 16; /* `scope`: the number of the scope's name */
    uint64_t number : NUMBER_BITS, site : SITE_BITS;      /* births are numbered from 1 in their order */
    uint32_t closings;                                    /* how many scopes had been closed before it */
    uint32_t at_ms;                                       /* milliseconds since the log was made */
};

/* The births of what is alive, in no order. */
struct births {
    struct birth *all;
    uint32_t count, room;
    struct hash_index index; /* by key */
};

/* Which births are kept, where not all are: one after every so many bytes that are born. */
struct sampling {
    bool is_on;
    double mean_nbytes; /* born from one kept birth to the next, on average */
    double next_nbytes; /* that are still to be born before the next birth is kept */
    uint64_t random_state;
};

/* What `describe_kind` in compiled.pyi was told of a kind. It owns references to its objects, and
 * never lets go of them. */
struct kind {
    PyObject *kind;
    PyObject *weigh;  /* called with a resource, returns its bytes; or None */
    PyObject *memory; /* called with a resource, returns what stands for its memory; or None */
    uint16_t name, device;
    bool is_backed;
};

/* How many kinds the log describes. `describe_kind` raises for one more; a kind that was never
 * described is asked for its name at each birth then. */
#define KINDS_AT_MOST 64

/* ------------------------------------------------------------------ names, places, sites */

/* Strings, and None, each stored once and known by a number. */
struct names {
    PyObject *numbers; /* dict: object -> its number */
    PyObject *objects; /* list */
};

/* The number of what has no number: `struct birth` has 16 bits for the number of a name. */
#define NO_NUMBER UINT16_MAX

/* An instruction of a code object. */
struct place {
    PyCodeObject *code;
    intptr_t instruction;
};

/* How many frames of user code a site has at most, whatever a detector asks for: they stand in an
 * array on the stack of the thread. */
#define PLACES_AT_MOST 64

/* One fact of a code object: what the fact is about, such as the role of the code, and its value.
 * See places.c. */
struct code_fact {
    PyCodeObject *code;
    intptr_t about, value;
};

/* The facts of all code objects, with a reference to each code object. */
struct code_facts {
    struct code_fact *all;
    uint32_t count, room;
    uint32_t codes;          /* how many code objects have facts */
    struct hash_index index; /* by code and `about` */
};

/* What lived of a site before one of its births. */
struct level {
    double live;
    int64_t nbytes;
    uint64_t births; /* how many there had been */
};

/* What one line, reached through the same callers, made of one kind on one device. It has
 * references to the codes. */
struct site {
    const struct place *places; /* innermost first */
    uint32_t places_count;
    uint32_t hash;
    uint16_t op, kind, device; /* the numbers of their names */
    uint64_t births; /* that were kept */
    /* How many were made, and live, and those of scalars; estimates where births are sampled, as the
     * bytes are. */
    double made, made_scalars, live, live_scalars;
    int64_t live_nbytes, peak_nbytes;
    /* The number of the last birth of all when a birth was first counted here; when a birth, or a
     * death, was last counted. */
    uint64_t first_birth, latest_birth, latest_death;
    uint64_t held_since; /* the last birth when the report was begun that may have held what died last; or 0 */
    /* The lowest level in the latest `BIRTHS_OF_A_LOW` births, in as many before them, the highest of
     * all such lows, and the one before that. */
    struct level low, low_before, highest, before_highest;
    bool low_is_unknown;     /* a report holds what it has found */
    /* How many births there had been here, and in all, when half of the highest was gone; or 0. */
    uint64_t births_at_fall, last_birth_before_fall;
    struct series *series; /* what lived of the site after passes: a list, one for each name of passes */
};

/* The live bytes of so many devices are counted; those of further devices are in no sum. */
#define DEVICES 64

/* The passes of loops that have one name. */
struct passes {
    uint32_t count;
    uint32_t before; /* how many there were when births began to be recorded the last time */
    uint32_t stride; /* series keep of the passes since then every so many: each, every second, every fourth */
    uint64_t ends[2]; /* the number of the last birth at the end of the last pass but one, and of the last */
};

struct sites {
    struct site *all; /* by number */
    uint32_t count, room;
    struct hash_index index;      /* by all fields that distinguish one site from another */
    struct passes *passes;        /* by the number of their name */
    uint32_t passes_count;        /* how many names have passes */
    struct passes birth_passes;   /* for programs that name no passes: each birth is a pass */
    int64_t live_nbytes[DEVICES]; /* by the number of the device */
    uint32_t reports; /* how many reports are being made beside the program, which hold what they have found */
    uint64_t reports_since; /* the last birth when the first of these was begun */
};

/* ------------------------------------------------------------------ the log */

/* When the function of `births_look` is called, to look at what lives. By births: at births 6, 7,
 * 8, 10 and so on, each a quarter further on, and from some 16,000 on each at twice as many, as
 * each look takes longer. By bytes: where a device has a quarter and some megabytes more live bytes
 * than at any look before, because a program may load much before its loop begins. The main thread
 * makes the call as soon as it runs Python code. Where another thread makes the next birth before
 * that, as the main thread may be waiting for it, a thread that does nothing else is woken, and
 * whichever of the two comes first looks. */
struct looks {
    PyObject *look;      /* called with `has_grown`, returns whether it looked; NULL for no function */
    uint64_t after;      /* the number of the last birth before the function was given */
    uint64_t next;       /* the next look is at this birth, counted from `after` */
    int64_t next_nbytes; /* the next look is at so many live bytes of one device */
    bool has_grown;      /* a device has had `next_nbytes` since the last look */
    bool is_due;         /* the interpreter has been asked to make the call */
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
    uint32_t marks;      /* how many passes ended, whatever their name */
    uint32_t closings;   /* how many scopes were closed */
    uint64_t last_birth; /* the number of the last birth */
    uint64_t cleared_at; /* the number of the last birth before everything was forgotten */
    uint64_t clearings;  /* how often everything was forgotten */
    uint64_t openings;   /* how often births began to be recorded */
    uint64_t escapes;    /* how often memory was flagged BIRTH_ESCAPED */
    struct looks looks;
    double made_at; /* by seconds_now() */
    struct births births;
    struct sampling sampling;
    struct sites sites;
    struct code_facts code_facts;
    struct names ops, kind_names, devices, scope_names, pass_names;
    uint64_t recorded_soon[NO_NUMBER / 64 + 1]; /* a bit for each number of `ops`: see `record_soon` in compiled.pyi */
    struct kind kinds[KINDS_AT_MOST];
    int kinds_count;
    PyObject *disposals;   /* a dict by entry, filled by Python code; the log takes out entries that have died */
    PyObject *api;         /* a capsule: see ../../../scopes/src/shared/birth_log.h */
    PyObject *memory_died; /* the callback of weak references to memory */
    const struct scopes_api *scopes;
    /* Python functions that the log calls: rank_of(code, globals), storages_of(entry, dict),
     * device_of_entry(entry), name_of_call(code, instruction). */
    PyObject *rank_of, *storages_of, *device_of_entry, *name_of_call;
} Log;

extern PyTypeObject log_type, row_type, memory_reference_type;

/* The time of the monotonic clock in seconds, to a few milliseconds. */
static inline double seconds_now(void) { return (double)clock_ms() * 1e-3; }

static inline bool log_records(const Log *log) { return log->is_open && !log->is_clearing; }

/* ------------------------------------------------------------------ births.c */

/* Set up the parts of a log that this file uses. -1 with an exception. */
int births_make(Log *log);
/* From now on keep one birth for every `nbytes` bytes that are born; every birth where it is 0. */
void births_sample(Log *log, uint64_t nbytes);
/* Whether a birth of so many bytes is to be kept. The answer counts the bytes: ask once a birth. */
bool births_keep(Log *log, size_t nbytes);
/* The birth with a key, or of the memory that an object stands for; NULL where none is known. The
 * pointer is valid until the next birth or death. */
struct birth *birth_of(const Log *log, const void *key);
struct birth *birth_of_memory(const Log *log, PyObject *object);
void births_clear(Log *log);
/* See `count_elsewhere` in ../compiled.pyi. */
PyObject *births_count_elsewhere(Log *log, PyObject *const *arguments, Py_ssize_t count);
/* Call a Python function at the births that `struct looks` names; NULL ends the calls. */
void births_look(Log *log, PyObject *look);
/* From now on call a function that runs no Python code where a look is due and the main thread does
 * not run; NULL for none. */
void births_wake(Log *log, PyObject *wake);
/* A look on another thread, by this function, where one is due. -1 with an exception. */
int births_look_here(Log *log, PyObject *look);

/* The functions of the interface to other compiled parts: see
 * ../../../scopes/src/shared/birth_log.h. Of those for blocks only `block_born` may run Python code;
 * it keeps an exception that is set. */
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

/* Make names empty, or empty them. -1 with an exception. */
int names_make(struct names *names);
int scope_names_make(struct names *names);
/* The number of an object, which is given one where it has none; NO_NUMBER where all numbers are
 * taken, or there is no memory. Runs no Python code; keeps an exception that is set. */
uint16_t names_number(struct names *names, PyObject *object);
/* The object with a number; borrowed, None for NO_NUMBER. */
PyObject *names_object(const struct names *names, uint16_t number);
/* The number of the name of a scope (None stands for "outside every scope"), and of the name of the
 * current scope. Keep an exception that is set. */
uint16_t scope_number(Log *log, PyObject *scope);
uint16_t scope_number_here(Log *log);
/* From now on `scope_number_here` returns this number on this thread; NULL ends that. The pointer is
 * kept: what it points to must live until another one, or NULL, is given. */
void scope_number_use(const uint16_t *number);
/* Whether a number was given to `scope_number_use`; `number` gets it. */
bool scope_number_in_use(uint16_t *number);

/* ------------------------------------------------------------------ places.c */

/* Where a birth happens: places of user code, innermost first. Where there is no user code: one
 * place, of generated code or of the outermost frame. The codes are borrowed from their frames. */
struct origin {
    int count; /* of places; -1 where nothing is to be recorded: code with the role KEEPER runs, or memory is short */
    const struct place *places;
    PyCodeObject *called; /* the code of the library that the innermost place called, or NULL */
    /* The call that names the operation: that of the innermost place, whose `instruction` is the
     * first that was seen on its line, or the innermost one in code with the role LAYERS. */
    struct place call;
    uint16_t op; /* the number of the name of the call; NO_NUMBER where it has none or was not asked for */
};

/* The origin of a birth here and now, or the one that was given to `origin_use` on this thread. Its
 * places may be put into `room`. May run Python code; keeps an exception that is set. */
struct origin origin_of_birth(Log *log, struct place room[PLACES_AT_MOST]);

/* The number of the name of the call that a birth happens in, for an origin with `called`;
 * NO_NUMBER where the call has no name. The caller holds the codes. May run Python code; keeps an
 * exception that is set. */
uint16_t origin_op(Log *log, const struct origin *origin);

/* Pass over so many of the innermost frames of this thread from now on. */
void origin_leave_out(uint32_t frames);

/* The origin of a birth here and now as an object, and its use for the next births on this thread:
 * `remember_origin`, `is_recorded_soon`, `is_recent` and `use_origin` in birth_log.h. */
PyObject *origin_remember(Log *log);
bool origin_is_recorded_soon(Log *log, PyObject *remembered);
bool origin_is_recent(const Log *log, PyObject *remembered);
void origin_use(Log *log, PyObject *remembered);

/* Whether user code runs on this thread; `place` gets its innermost place. The code is borrowed from
 * its frame. */
bool place_here(Log *log, struct place *place);
/* Forget all facts, with the references to codes; sites have references of their own. A code that
 * is freed may run any Python code. */
void code_facts_clear(Log *log);

/* ------------------------------------------------------------------ sites.c */

/* The number of the site of a birth that happens in this thread now; NO_SITE where nothing is to be
 * recorded. `op` is the name of the call; NULL stands for the function of a library that the line
 * called, where that has a frame. May run Python code; keeps an exception that is set. */
uint32_t site_here(Log *log, PyObject *op, uint16_t kind, uint16_t device);
/* How many births a birth stands for: 1 unless births are sampled. */
double birth_weight(const Log *log, const struct birth *birth);
/* Count a birth, which has just been recorded, among those that its site had. Runs no Python code. */
void site_count_birth(Log *log, const struct birth *birth);
/* Count what lives at the site of a birth: with sign 1 when it is recorded, or its bytes have changed;
 * with -1 when it is dead, or they are to change. Runs no Python code. */
void site_count(Log *log, const struct birth *birth, int sign);
/* Leave the bytes of a living block out of the sum of its device, or count them again: while other
 * memory that has a birth of its own lies in the block, they would be counted twice. */
void site_count_elsewhere(Log *log, struct birth *birth, bool is_elsewhere);
/* A birth has been counted: record what lives of each site, for each birth is a pass without a
 * name. Runs no Python code. */
void sites_birth(Log *log);
/* Births begin to be recorded again: forget the series of earlier passes, so that there is room for
 * those of the passes to come. */
void sites_begin(Log *log);
/* Add to the module the type that `sites_site` returns. -1 with an exception. */
int sites_add_type(PyObject *module);
/* How many passes there were with a name, which is given by its number. */
uint32_t sites_passes(const Log *log, uint16_t name);
void sites_clear(Log *log);

/* Methods of the log. */
PyObject *sites_mark(Log *log, PyObject *name);
PyObject *sites_last_pass(Log *log, PyObject *name);

/* A report is begun, or ended, on a thread beside those of the program. */
void sites_report(Log *log, bool begins);
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
