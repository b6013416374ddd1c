/* For AddressSanitizer: mark memory of the arena as in use (SHOW) or not in use (HIDE). */
#ifndef DISPOSESCOPE_ARENA_POISON_H
#define DISPOSESCOPE_ARENA_POISON_H

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define HIDE(address, nbytes) ASAN_POISON_MEMORY_REGION(address, nbytes)
#define SHOW(address, nbytes) ASAN_UNPOISON_MEMORY_REGION(address, nbytes)
#else
#define HIDE(address, nbytes) ((void)(address), (void)(nbytes))
#define SHOW(address, nbytes) ((void)(address), (void)(nbytes))
#endif

#endif
