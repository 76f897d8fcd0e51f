/*
 * kernels/fixed_point.h: gradients as 64-bit fixed point, so that their sum over micro-batches and
 * ranks is exact and does not depend on the order or on the number of ranks.
 *
 * A contribution g (fp32, of a micro-batch or of a span of its rows) becomes RN(g 2^shift), ties to
 * even. Integer sums are exact. The default shift of 44 resolves 2^-44 = 6e-14: Adam divides by
 * sqrt(v) + eps with eps about 1e-8, and a gradient of the size of eps still has 17 bits. The sum of
 * all contributions may reach 2^18 = 262,144; each must stay below 2^18 / contributions, which is 256
 * per element for 1024 micro-batches, where gradients of a mean loss are below 1. Beyond that (or for
 * a NaN) the conversion says so, writes 0, and the step is skipped or redone with a smaller shift on
 * all ranks.
 *
 * Gradients go to their owner as fp32, one contribution each, or as sums of several that were added
 * before (`wide`), with TSR_FIXED_LOST where one of them did not fit.
 *
 * Layout   An owner's part of a tensor is c = ceil(G / N) granules of 64 elements; only the tail is
 *          padded. An owner keeps its parts of a unit's tensors one after the other.
 * Threads  Pure.
 */
#ifndef TSR_KERNELS_FIXED_POINT_H
#define TSR_KERNELS_FIXED_POINT_H

#include "kernels/types.h"

#define TSR_GRANULE       64 /* elements */
#define TSR_FIXED_SHIFT   44
#define TSR_FIXED_SUM_LOG 62 /* the sum stays below 2^62 */
#define TSR_FIXED_LOST    INT64_MIN

/* The largest |g| that one of `contributions` (>= 1) contributions to an element may have. */
float tsr_fixed_limit(int shift, uint64_t contributions);

/* Elements of one rank's part: 64 ceil(ceil(count / 64) / ranks). */
uint64_t tsr_fixed_part_count(uint64_t count, uint64_t ranks);

/* out[i] = RN(g[i] 2^shift). False if an element is not finite or |g| > limit; it becomes 0, the
 * others are right. 0 <= shift <= 62. */
bool tsr_fixed_from_f32(int64_t *out, const float *g, uint64_t count, int shift, float limit);

/* accumulator[i] += part[i]. */
void tsr_fixed_add(int64_t *accumulator, const int64_t *part, uint64_t count);

/* g[i] = RN_fp32(acc[i] 2^-shift), one rounding: what AdamW and the norm read of a sum. */
void tsr_fixed_to_f32(float *g, const int64_t *acc, uint64_t count, int shift);

#define TSR_FIXED_PARTS 72 /* tensors of one unit, at most */

/* An owner's part of one tensor. */
typedef struct {
    uint64_t offset, count; /* elements of the accumulator */
    uint64_t real;          /* of these; the rest is padding, which becomes 0 whatever it holds */
    int64_t mark;           /* above 0, the caller's name of the tensor */
} tsr_fixed_part;

/* The op: the gradients that all ranks have of one owner's parts of a unit, converted and summed.
 * accumulator[i] = (store ? 0 : accumulator[i]) + the sum over ranks of RN(g 2^shift); of wide ones + the sum
 * over ranks of g. Sums that no later micro-batch adds to may go to `rounded` as tsr_fixed_to_f32 gives them.
 *
 * A tensor's gradient is padded to whole parts: rank i's is number i. `gradient` holds this rank's
 * gradients, tensor after tensor: a tensor begins at element ranks offset, the owner's part of it at
 * rank count more. `received` holds what the other ranks have of the owner's parts: a tensor begins
 * at element (ranks - 1) offset, the ranks follow one another. Cost: 4 bytes (8 of wide ones) read for each
 * rank and element, 16 for the sum (8 where it is stored, 4 where it is rounded). */
typedef struct {
    int64_t *accumulator;            /* not used with `rounded` */
    float *rounded;                  /* NULL: none; only with `store` */
    const void *gradient, *received; /* float; wide: int64_t. One rank: received may be NULL */
    const tsr_fixed_part *part;      /* [part_count]; borrowed until the op has run */
    int64_t *overflow; /* one word: the mark of a tensor that has an element which is not finite or
                          above the limit, or lost (it counts as 0); the smallest of those met */
    uint64_t ranks, rank;
    int part_count, shift; /* wide: shift and limit are not used */
    float limit;
    bool wide, store;
} tsr_fixed_sum_args;

tsr_status tsr_fixed_sum_check(const tsr_fixed_sum_args *args);
tsr_status tsr_fixed_sum_ref(const tsr_fixed_sum_args *args, tsr_pool *pool);

/* The op: a contribution more to wide gradients. sum[i] = (store ? 0 : sum[i]) + RN(g[i] 2^shift), and
 * TSR_FIXED_LOST where g is not finite or above the limit, or the sum was lost before. Cost: 4 bytes
 * read and 16 for the sum (8 where it is stored) an element. */
typedef struct {
    int64_t *sum;   /* [count] */
    const float *g; /* [count] */
    uint64_t count;
    int shift;
    float limit; /* tsr_fixed_limit of all contributions of a step, from all ranks */
    bool store;
} tsr_fixed_accumulate_args;

tsr_status tsr_fixed_accumulate_check(const tsr_fixed_accumulate_args *args);
tsr_status tsr_fixed_accumulate_ref(const tsr_fixed_accumulate_args *args, tsr_pool *pool);

/* The op: integer sums of an owner added up. */
typedef struct {
    int64_t *accumulator; /* [count] */
    const int64_t *part;  /* [count] */
    uint64_t count;
    bool store; /* accumulator = part, instead of += */
} tsr_fixed_add_args;

tsr_status tsr_fixed_add_check(const tsr_fixed_add_args *args);
tsr_status tsr_fixed_add_ref(const tsr_fixed_add_args *args, tsr_pool *pool);

#endif
