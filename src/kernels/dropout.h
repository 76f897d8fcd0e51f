/*
 * kernels/dropout.h: dropout whose mask depends on (seed, epoch, sample, module, position in the
 * sample, column) and on nothing else: not on the rank, the micro-batch or the packing. It is
 * computed where it is needed (forward, recompute, backward) and never stored.
 *
 * Philox key: mix of seed, epoch and module. Counter: sample in the high half; position and
 * column / 8 in the low half, so one call yields eight columns: column 8 c + 2 w is the lower half of
 * word w, column 8 c + 2 w + 1 the upper. A column is dropped where its 16 bits are below p 2^16,
 * rounded; kept values are multiplied by RN(1 / (1 - p')) in fp32, as PyTorch does on a GPU.
 *
 * p' = round(p 2^16) / 2^16 is what is dropped in fact, within 2^-17 = 7.7e-6 of p (0.05: 3.1e-6,
 * 0.1: 6.1e-6), and 1 / (1 - p') is of p', so that the mean is x whatever the rounding. A finer p
 * would need more of Philox, which is most of what dropout computes; the share that is kept differs
 * from row to row by hundreds of times as much (0.05, 4096 columns: by 3.4e-3).
 */
#ifndef TSR_KERNELS_DROPOUT_H
#define TSR_KERNELS_DROPOUT_H

#include "kernels/types.h"

/* `p` in [0, 1). */
typedef struct {
    uint64_t key;
    uint32_t threshold; /* of 2^16: numbers of 16 bits below it are dropped; 65535 at most */
    float scale;        /* of what is kept: 1 / (1 - threshold / 2^16) */
} tsr_dropout;

tsr_dropout tsr_dropout_make(double p, uint64_t seed, uint64_t epoch, uint64_t module_key);

/* out = scale mask o x for the row of one token: `columns` values; out may be x. `position`
 * counts from the start of the sample. */
void tsr_dropout_row(float *out, const float *x, uint64_t columns, const tsr_dropout *dropout,
                     uint64_t sample, uint32_t position);

/* out += scale mask o x: the backward of the row above, added to a gradient. */
void tsr_dropout_add_row(float *out, const float *x, uint64_t columns, const tsr_dropout *dropout,
                         uint64_t sample, uint32_t position);

/* mask[j] = 1 where column j is kept. */
void tsr_dropout_mask_row(uint8_t *mask, uint64_t columns, const tsr_dropout *dropout,
                          uint64_t sample, uint32_t position);

/* The op: every row of x [tokens, columns], each by its own sample and position. In fp32:
 *
 *     out  = scale mask o x, or out += that
 *     left = x - out, of the out that is written: of x what is not in it. For p up to 1/2 exact: out is
 *            0 or within a factor of 2 of x (Sterbenz 1974).
 */
typedef struct {
    void *out;                /* [tokens, columns]; may be x */
    const void *x;            /* [tokens, columns] */
    void *left;               /* [tokens, columns], without add; or NULL */
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
