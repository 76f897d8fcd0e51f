/*
 * base/checked.h: size arithmetic that cannot wrap. Every product or sum of sizes that comes from a
 * file or a configuration goes through here; false means it does not fit and *out is untouched.
 */
#ifndef TSR_BASE_CHECKED_H
#define TSR_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool tsr_mul_u64(uint64_t *out, uint64_t a, uint64_t b)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

static inline bool tsr_add_u64(uint64_t *out, uint64_t a, uint64_t b)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}

/* a / b rounded up; b > 0. */
static inline uint64_t tsr_ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* `value` rounded up to a multiple of `step` (a power of two); the caller keeps it below 2^63. */
static inline uint64_t tsr_align_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) & ~(step - 1);
}

#endif
