/* What PyTorch is doing on the calling thread, asked of its own C++ functions, found by name. */
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
static uint16_t transforms;

#ifndef _WIN32
static void *find(PyObject *paths, const char *name)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(paths); i++) {
        const struct argument given = {"libraries", PyTuple_GET_ITEM(paths, i), &PyUnicode_Type};
        const char *path = arguments_fit("BirthWatch.start", &given, 1) ? PyUnicode_AsUTF8(given.value) : NULL;
        if (path == NULL) {
            return NULL;
        }
        /* Only what is loaded already: it is in use, and stays. */
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
    static const char *const names[] = {
        "_ZN5torch8autograd25get_current_graph_task_idEv",
        "_ZN2at4impl27torch_function_all_disabledEv",
        "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
        "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv",
        "_ZN2at4impl22PythonTorchFunctionTLS18set_disabled_stateENS0_26TorchFunctionDisabledStateE",
    };
    void *found[5];
    for (int i = 0; i < 5; i++) {
        if ((found[i] = find(paths, names[i])) == NULL) {
            return PyErr_Occurred() ? -1 : 0;
        }
    }
    /* POSIX lets a pointer to data be one to a function; ISO C wants to be asked in this way. */
    *(void **)&graph_task = found[0];
    *(void **)&all_disabled = found[1];
    *(void **)&is_included = found[2];
    *(void **)&disabled_state = found[3];
    *(void **)&set_disabled_state = found[4];
    transforms = (uint16_t)key;
    return 1;
#endif
}

bool libtorch_functions_are_disabled(void) { return all_disabled(); }
bool libtorch_makes_no_births(void) { return graph_task() != -1 || all_disabled() || is_included(transforms); }

int libtorch_disable_functions(void)
{
    enum { ALL_DISABLED = 2 };
    int before = disabled_state();
    if (before != ALL_DISABLED) {
        set_disabled_state(ALL_DISABLED);
    }
    return before;
}

void libtorch_enable_functions(int before) { set_disabled_state((int8_t)before); }
