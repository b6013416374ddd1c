#include "state.h"

#include <stdint.h>

#include "births.h"
#include "bound.h"

#ifndef _WIN32
#include <dlfcn.h>
#endif

/* ``torch::autograd::get_current_graph_task_id()``, ``at::impl::torch_function_all_disabled()``,
 * ``at::impl::torch_function_mode_enabled()``, ``c10::impl::tls_is_dispatch_key_included(c10::DispatchKey)``, and the
 * ``disabled_state`` of ``at::impl::PythonTorchFunctionTLS``: part of what PyTorch exports to extensions. */
static int (*graph_task)(void);
static bool (*all_disabled)(void);
static bool (*mode_enabled)(void);
static bool (*is_included)(uint16_t);
static int8_t (*disabled_state)(void);
static void (*set_disabled_state)(int8_t);
static uint16_t transforms;

#ifndef _WIN32
static void *find(PyObject *paths, const char *name)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(paths); i++) {
        const char *path = PyUnicode_AsUTF8(PyTuple_GET_ITEM(paths, i));
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

int state_find(PyObject *paths, unsigned long key)
{
#ifdef _WIN32
    (void)paths;
    (void)key;
    return 0;
#else
    static const char *const names[] = {
        "_ZN5torch8autograd25get_current_graph_task_idEv",
        "_ZN2at4impl27torch_function_all_disabledEv",
        "_ZN2at4impl27torch_function_mode_enabledEv",
        "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
        "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv",
        "_ZN2at4impl22PythonTorchFunctionTLS18set_disabled_stateENS0_26TorchFunctionDisabledStateE",
    };
    void *found[6];
    for (int i = 0; i < 6; i++) {
        if ((found[i] = find(paths, names[i])) == NULL) {
            return PyErr_Occurred() ? -1 : 0;
        }
    }
    /* POSIX lets a pointer to data be one to a function; ISO C wants to be asked in this way. */
    *(void **)&graph_task = found[0];
    *(void **)&all_disabled = found[1];
    *(void **)&mode_enabled = found[2];
    *(void **)&is_included = found[3];
    *(void **)&disabled_state = found[4];
    *(void **)&set_disabled_state = found[5];
    transforms = (uint16_t)key;
    return 1;
#endif
}

bool state_runs_backward(void) { return graph_task() != -1; }
bool state_is_particular(void) { return graph_task() != -1 || all_disabled() || is_included(transforms); }

int state_disable(bool *disabled_before)
{
    enum { ALL_DISABLED = 2 };
    int before = disabled_state();
    *disabled_before = before == ALL_DISABLED;
    if (!*disabled_before) {
        set_disabled_state(ALL_DISABLED);
    }
    return before;
}

void state_enable(int before) { set_disabled_state((int8_t)before); }

int state_modes_are_on(void) { return mode_enabled == NULL ? -1 : mode_enabled(); }
