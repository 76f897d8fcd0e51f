/*
 * kernels/dropout.h: dropout whose mask depends on (seed, epoch, sample, module, position in the
 * sample, column) and on nothing else: not on the rank, the micro-batch or the packing. It is
 * computed where it is needed (forward, recompute, backward) and never stored.
 *
 * Philox key: mix of seed, epoch and module. Counter: sample in the high half; position and
 * column / 4 in the low half, so one call yields four columns. A column is dropped when the upper
 * 24 bits of its word are below p 2^24. Kept values are divided by 1 - p (in fp32).
 */
#ifndef TSR_KERNELS_DROPOUT_H
#define TSR_KERNELS_DROPOUT_H

#include "kernels/types.h"

/* `p` in [0, 1). */
typedef struct {
    uint64_t key;
    uint32_t threshold; /* words below it are dropped */
    float keep;         /* 1 - p */
} tsr_dropout;

tsr_dropout tsr_dropout_make(double p, uint64_t seed, uint64_t epoch, uint64_t module_key);

/* out = mask o x / (1 - p) for the row of one token: `columns` values; out may be x. `position`
 * counts from the start of the sample. */
void tsr_dropout_row(float *out, const float *x, uint64_t columns, const tsr_dropout *dropout,
                     uint64_t sample, uint32_t position);

/* out += mask o x / (1 - p): the backward of the row above, added to a gradient. */
void tsr_dropout_add_row(float *out, const float *x, uint64_t columns, const tsr_dropout *dropout,
                         uint64_t sample, uint32_t position);

/* mask[j] = 1 where column j is kept. */
void tsr_dropout_mask_row(uint8_t *mask, uint64_t columns, const tsr_dropout *dropout,
                          uint64_t sample, uint32_t position);

/* The op: every row of x [tokens, columns], each by its own sample and position. */
typedef struct {
    void *out;                /* [tokens, columns]; may be x */
    const void *x;            /* [tokens, columns] */
    const int64_t *samples;   /* [tokens] */
    const int32_t *positions; /* [tokens], in their samples */
    tsr_dropout dropout;
    int64_t tokens, columns;
    bool add; /* out is added to: the backward */
    tsr_dtype dtype;
} tsr_dropout_args;

tsr_status tsr_dropout_check(const tsr_dropout_args *args);
tsr_status tsr_dropout_ref(const tsr_dropout_args *args, tsr_pool *pool);

#endif
