#include "adapters/init.h"

#include "base/hash.h"
#include "base/philox.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* They set these numbers apart from dropout's with the same seed, and from each other. */
#define INIT_TAG   0x41u
#define INIT_B_TAG 0x42u
#define NORMAL_TAG 0x4eu

uint64_t tsr_adapter_module_key(const char *path)
{
    return tsr_hash(TSR_HASH_START, path, strlen(path));
}

uint64_t tsr_adapter_expert_key(uint64_t module_key, uint64_t expert)
{
    return tsr_hash(module_key, &expert, sizeof expert);
}

static void draw_uniform(float *out, uint64_t first, uint64_t count, float bound, uint64_t key,
                         uint64_t tag)
{
    for (uint64_t i = 0; i < count;) {
        uint64_t e = first + i;
        tsr_philox four = tsr_philox_at(key, tag, e / 4);
        for (uint64_t k = e % 4; k < 4 && i < count; k++)
            out[i++] = (2 * tsr_philox_uniform(four.word[k]) - 1) * bound;
    }
}

void tsr_adapter_init_a(float *out, uint64_t first, uint64_t count, uint64_t in_features,
                        uint64_t seed, uint64_t module_key)
{
    uint64_t key = tsr_mix(tsr_mix(seed) ^ module_key);
    draw_uniform(out, first, count, (float)(1 / sqrt((double)in_features)), key, INIT_TAG);
}

void tsr_adapter_init_b(float *out, uint64_t first, uint64_t count, uint64_t r, uint64_t seed,
                        uint64_t module_key)
{
    uint64_t key = tsr_mix(tsr_mix(seed) ^ module_key);
    draw_uniform(out, first, count, (float)(1 / sqrt((double)r)), key, INIT_B_TAG);
}

/* Box and Muller's transform of two words: the first of the pair, or the second. */
static double normal_of(const uint32_t word[2], bool second)
{
    double radius = sqrt(-2 * log(((double)word[0] + 0.5) * 0x1p-32));
    double angle = 2 * acos(-1.0) * ((double)word[1] * 0x1p-32);
    return radius * (second ? sin(angle) : cos(angle));
}

void tsr_adapter_init_normal(float *out, uint64_t first, uint64_t count, double deviation,
                             uint64_t seed, uint64_t module_key)
{
    uint64_t key = tsr_mix(tsr_mix(seed) ^ module_key);
    for (uint64_t i = 0; i < count;) {
        uint64_t e = first + i;
        tsr_philox four = tsr_philox_at(key, NORMAL_TAG, e / 4);
        for (uint64_t k = e % 4; k < 4 && i < count; k++)
            out[i++] = (float)(deviation * normal_of(four.word + (k & 2), k & 1));
    }
}
