#include "guards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTE 0xFD
#define FREED_BYTE 0xDD
#define BORN_BYTE 0xCD

bool guards_wanted;

static void corrupt(const char *what, const void *address)
{
    fprintf(stderr, "disposescope: %s block %p of the arena\n", what, address);
    abort();
}

void guards_dress(void *address, size_t nbytes)
{
    memset(address, BORN_BYTE, nbytes);
    guards_move(address, nbytes);
}

void guards_move(void *address, size_t nbytes) { memset((char *)address + nbytes, GUARD_BYTE, GUARD_NBYTES); }

void guards_undress(void *address, size_t nbytes)
{
    const unsigned char *guard = (const unsigned char *)address + nbytes;
    for (size_t i = 0; i < GUARD_NBYTES; i++) {
        if (guard[i] != GUARD_BYTE) {
            corrupt("written past the end of", address);
        }
    }
    memset(address, FREED_BYTE, nbytes);
}

void guards_check(const void *address, size_t nbytes)
{
    const unsigned char *bytes = address;
    for (size_t i = 0; i < nbytes; i++) {
        if (bytes[i] != FREED_BYTE) {
            corrupt("written after it was freed, the", address);
        }
    }
}
