/*
 * base/philox.h: Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers:
 * as easy as 1, 2, 3", SC 2011). Four 32-bit words for each (key, counter): no state, so a value
 * depends on what it is for and never on the rank, the thread or the order of calls.
 */
#ifndef TSR_BASE_PHILOX_H
#define TSR_BASE_PHILOX_H

#include <stdint.h>

typedef struct {
    uint32_t word[4];
} tsr_philox;

static inline tsr_philox tsr_philox_at(uint64_t key, uint64_t counter_high, uint64_t counter_low)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    tsr_philox c = {{(uint32_t)counter_low, (uint32_t)(counter_low >> 32), (uint32_t)counter_high,
                     (uint32_t)(counter_high >> 32)}};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c.word[0], p1 = (uint64_t)0xCD9E8D57u * c.word[2];
        c = (tsr_philox){{(uint32_t)(p1 >> 32) ^ c.word[1] ^ k0, (uint32_t)p1,
                          (uint32_t)(p0 >> 32) ^ c.word[3] ^ k1, (uint32_t)p0}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* [0, 1): the upper 24 bits of a word. */
static inline float tsr_philox_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

/* SplitMix64's finalizer: folds several numbers into a key, tsr_mix(tsr_mix(seed) ^ epoch) and so
 * on. */
static inline uint64_t tsr_mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

#endif
