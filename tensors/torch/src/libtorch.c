/* The state of PyTorch on the calling thread. PyTorch's own C++ functions tell it; they are found
 * by their names in its libraries. */
#include "compiled.h"

#ifndef _WIN32
#include <dlfcn.h>
#endif

/* ``torch::autograd::get_current_graph_task_id()``, ``at::impl::torch_function_all_disabled()``,
 * ``c10::impl::tls_is_dispatch_key_included(c10::DispatchKey)``, and the ``disabled_state`` of
 * ``at::impl::PythonTorchFunctionTLS``: part of what PyTorch exports to extensions. */
static int (*graph_task)(void);
static bool (*all_disabled)(void);
static bool (*is_included)(uint16_t);
static int8_t (*disabled_state)(void);
static void (*set_disabled_state)(int8_t);
static uint16_t transforms_key; /* the number of the dispatch key of transforms */

#ifndef _WIN32
/* A function of one of the libraries; NULL if there is none, and with an error set. */
static void *find(PyObject *paths, const char *name)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(paths); i++) {
        const struct argument given = {"libraries", PyTuple_GET_ITEM(paths, i), &PyUnicode_Type};
        const char *path = arguments_fit("BirthWatch.start", &given, 1) ? PyUnicode_AsUTF8(given.value) : NULL;
        if (path == NULL) {
            return NULL;
        }
        /* RTLD_NOLOAD: only a library that PyTorch has loaded. It is never unloaded. */
        void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        void *function = library == NULL ? NULL : dlsym(library, name);
        if (function != NULL) {
            return function;
        }
    }
    return NULL;
}
#endif

int libtorch_find(PyObject *paths, unsigned long key)
{
#ifdef _WIN32
    (void)paths;
    (void)key;
    return 0;
#else
    enum { GRAPH_TASK, ALL_DISABLED, IS_INCLUDED, DISABLED_STATE, SET_DISABLED_STATE, FUNCTIONS };
    static const char *const names[FUNCTIONS] = {
        [GRAPH_TASK] = "_ZN5torch8autograd25get_current_graph_task_idEv",
        [ALL_DISABLED] = "_ZN2at4impl27torch_function_all_disabledEv",
        [IS_INCLUDED] = "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
        [DISABLED_STATE] = "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv",
        [SET_DISABLED_STATE] =
            "_ZN2at4impl22PythonTorchFunctionTLS18set_disabled_stateENS0_26TorchFunctionDisabledStateE",
    };
    void *found[FUNCTIONS];
    for (int i = 0; i < FUNCTIONS; i++) {
        if ((found[i] = find(paths, names[i])) == NULL) {
            return PyErr_Occurred() ? -1 : 0;
        }
    }
    /* POSIX allows a data pointer to be used as a function pointer; ISO C has no cast for it. */
    *(void **)&graph_task = found[GRAPH_TASK];
    *(void **)&all_disabled = found[ALL_DISABLED];
    *(void **)&is_included = found[IS_INCLUDED];
    *(void **)&disabled_state = found[DISABLED_STATE];
    *(void **)&set_disabled_state = found[SET_DISABLED_STATE];
    transforms_key = (uint16_t)key;
    return 1;
#endif
}

bool libtorch_functions_are_disabled(void) { return all_disabled(); }
bool libtorch_makes_no_births(void) { return graph_task() != -1 || all_disabled() || is_included(transforms_key); }

int libtorch_disable_functions(void)
{
    enum { STATE_ALL_DISABLED = 2 }; /* TorchFunctionDisabledState::ALL_DISABLED */
    int before = disabled_state();
    if (before != STATE_ALL_DISABLED) {
        set_disabled_state(STATE_ALL_DISABLED);
    }
    return before;
}

void libtorch_enable_functions(int before) { set_disabled_state((int8_t)before); }
