/* What the arena says to the compiler beyond C11: for GCC and Clang, and for Microsoft's compiler. */
#ifndef DISPOSESCOPE_COMPILER_H
#define DISPOSESCOPE_COMPILER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_MSC_VER) && !defined(__clang__)

#include <intrin.h>

#define UNLIKELY(condition) (condition)
#define NEVER_INLINE __declspec(noinline)
#define RARELY_CALLED __declspec(noinline)

/* The number of the highest bit of n, which is not 0. */
static inline unsigned highest_bit(uint64_t n)
{
    unsigned long bit;
    _BitScanReverse64(&bit, n);
    return (unsigned)bit;
}

/* Sets a product; true if it does not fit. */
static inline bool product_overflows(size_t a, size_t b, size_t *product)
{
    *product = a * b;
    return a != 0 && b > SIZE_MAX / a;
}

#else

#define UNLIKELY(condition) __builtin_expect(condition, 0)
#define NEVER_INLINE __attribute__((noinline))
#define RARELY_CALLED __attribute__((noinline, cold))

/* The number of the highest bit of n, which is not 0. */
static inline unsigned highest_bit(uint64_t n) { return 63 - (unsigned)__builtin_clzll(n); }

/* Sets a product; true if it does not fit. */
static inline bool product_overflows(size_t a, size_t b, size_t *product)
{
    return __builtin_mul_overflow(a, b, product);
}

#endif
#endif
