/* Memory in whole pages from the system. The differences between systems are in this file: on
 * Windows and macOS pages that are in use cannot be cleared by giving them back, and huge pages are
 * not asked for. */
#ifndef DISPOSESCOPE_ARENA_PAGES_H
#define DISPOSESCOPE_ARENA_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <malloc.h>
#include <windows.h>
#else
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#define HUGE_PAGE ((size_t)2 << 20) /* the bytes of a huge page */
#define HUGE_FROM ((size_t)4 << 20) /* huge pages are used from so many bytes on, as NumPy does */

/* The bytes of a page: a power of two, 4 KiB or more. */
static inline size_t page_nbytes(void)
{
    static size_t nbytes;
    if (nbytes == 0) {
#ifdef _WIN32
        SYSTEM_INFO info;
        GetSystemInfo(&info);
        nbytes = info.dwPageSize;
#else
        nbytes = (size_t)sysconf(_SC_PAGESIZE);
#endif
    }
    return nbytes;
}

static inline size_t pages_up(size_t value) { return (value + page_nbytes() - 1) & ~(page_nbytes() - 1); }

/* Map new pages of zeros at a multiple of the alignment, a power of two and at least a page. NULL
 * if the system refuses. */
static inline void *pages_map(size_t nbytes, size_t alignment)
{
    nbytes = pages_up(nbytes);
#ifdef _WIN32
    /* Windows cannot give back a part of a reservation. So a place is found by a larger
     * reservation, which is given back, and then reserved again, unless another thread takes it
     * first. */
    for (int tries = 0; tries < 16; tries++) {
        char *start = VirtualAlloc(NULL, nbytes + alignment, MEM_RESERVE, PAGE_NOACCESS);
        if (start == NULL) {
            return NULL;
        }
        char *begin = (char *)(((uintptr_t)start + alignment - 1) & ~(uintptr_t)(alignment - 1));
        VirtualFree(start, 0, MEM_RELEASE);
        void *pages = VirtualAlloc(begin, nbytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
        if (pages != NULL) {
            return pages;
        }
    }
    return NULL;
#else
    char *start = mmap(NULL, nbytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    char *begin = (char *)(((uintptr_t)start + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (begin > start) {
        munmap(start, (size_t)(begin - start));
    }
    munmap(begin + nbytes, (size_t)(start + alignment - begin));
#ifdef MADV_HUGEPAGE
    if (alignment >= HUGE_PAGE) {
        madvise(begin, nbytes & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
    }
#endif
    return begin;
#endif
}

/* Unmap the pages that pages_map returned for `nbytes`. */
static inline void pages_unmap(void *begin, size_t nbytes)
{
#ifdef _WIN32
    (void)nbytes;
    VirtualFree(begin, 0, MEM_RELEASE);
#else
    munmap(begin, pages_up(nbytes));
#endif
}

/* Memory from the C library at a multiple of the alignment. `nbytes` is a multiple of it, too. */
static inline void *heap_allocate(size_t nbytes, size_t alignment)
{
#ifdef _WIN32
    return _aligned_malloc(nbytes, alignment);
#else
    return aligned_alloc(alignment, nbytes);
#endif
}

static inline void heap_free(void *memory)
{
#ifdef _WIN32
    _aligned_free(memory);
#else
    free(memory);
#endif
}

/* Clear the pages that lie wholly between two addresses by giving them back to the system. *first
 * and *last get the beginning and end of these pages. False, and nothing has changed, if the system
 * cannot do that. */
static inline bool pages_discard(char *begin, char *end, char **first, char **last)
{
    *first = (char *)pages_up((uintptr_t)begin);
    *last = (char *)((uintptr_t)end & ~(uintptr_t)(page_nbytes() - 1));
#ifdef __linux__
    /* Elsewhere MADV_DONTNEED need not clear. */
    return *first < *last && madvise(*first, (size_t)(*last - *first), MADV_DONTNEED) == 0;
#else
    return false;
#endif
}

#endif
