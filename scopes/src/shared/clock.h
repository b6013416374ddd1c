/* A monotonic clock in milliseconds: the coarse clock of the system, which is the cheapest one. */
#ifndef DISPOSESCOPE_SCOPES_CLOCK_H
#define DISPOSESCOPE_SCOPES_CLOCK_H

#include <stdint.h>
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <time.h>
#endif

static inline uint64_t clock_ms(void)
{
#ifdef _WIN32
    return GetTickCount64();
#else
    struct timespec now;
#ifdef CLOCK_MONOTONIC_COARSE
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
#endif
}

#endif
