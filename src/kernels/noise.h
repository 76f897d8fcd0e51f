/*
 * kernels/noise.h: uniform noise on embedded rows (NEFTune: Jain et al. 2023, and Transformers'
 * integrations/neftune.py), whose numbers depend on (seed, epoch, sample, position in the sample, column) and on
 * nothing else, as dropout's masks do (dropout.h).
 *
 *     x += size u,    u in [-1, 1): the upper 24 bits of a word of Philox as a signed number, times 2^-23
 *
 * Philox key: mix of seed and epoch. Counter: sample in the high half; position and column / 4 in the low half, so one
 * call yields the words of four columns. Product and sum are rounded in fp32, then to dtype.
 *
 * Cost     2 tokens columns elements moved, and Philox for every fourth.
 */
#ifndef TSR_KERNELS_NOISE_H
#define TSR_KERNELS_NOISE_H

#include "kernels/types.h"

uint64_t tsr_noise_key(uint64_t seed, uint64_t epoch);

typedef struct {
    void *x;                  /* [tokens, columns] */
    const int64_t *samples;   /* [tokens] */
    const int32_t *positions; /* [tokens], in their samples */
    uint64_t key;
    float size;
    int64_t tokens, columns;
    tsr_dtype dtype;
} tsr_noise_args;

tsr_status tsr_noise_check(const tsr_noise_args *args);
tsr_status tsr_noise_ref(const tsr_noise_args *args, tsr_pool *pool);

#endif
