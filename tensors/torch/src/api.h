/* What the compiled part that watches for leaks asks of that for births. With the GIL held. */
#ifndef DISPOSESCOPE_TORCH_API_H
#define DISPOSESCOPE_TORCH_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* What sees calls of PyTorch, for births of which listeners are told when a call is over. */
struct torch_calls {
    /* Whether one runs on the calling thread that will be seen to be over. */
    bool (*are_running)(void);
    /* What is to be remembered of a birth in none, as `remember` and `use` of the birth log do. */
    PyObject *(*remember)(void);
    void (*use)(PyObject *remembered);
};

/* Behind the capsule `api` of the module; it lives as long as the process. */
struct torch_births_api {
    /* Whether births are seen at the allocation: without that none of the others may be called. */
    bool (*births_are_seen)(void);
    /* Whether a backward pass runs on the calling thread. */
    bool (*runs_backward)(void);
    /* Lets nobody there see functions called, and gives back what was so before; whether nobody was to see them then, either. */
    int (*disable)(bool *disabled_before);
    void (*enable)(int before);
    /* Whether neither an optimizer steps on it nor a compiled function runs. -1 with an error set. */
    int (*is_undisturbed)(void);
    /* Whether there may be births on any thread to tell of. */
    bool (*are_births_pending)(void);
    /* Tells of the births on it, unless that is left to the mode. -1 with an error set. */
    int (*tell_of_births)(void);
    /* Who calls that after each call of PyTorch's from now on; NULL for nobody. */
    void (*tell_by_calls)(const struct torch_calls *calls);
};

#define TORCH_BIRTHS_CAPSULE "disposescope.tensors.torch.compiled.api"

#endif
