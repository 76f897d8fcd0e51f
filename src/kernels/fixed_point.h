/*
 * kernels/fixed_point.h: gradients as 64-bit fixed point, so that their sum over micro-batches and
 * ranks is exact and does not depend on the order or on the number of ranks.
 *
 * A contribution g (fp32, one micro-batch's) becomes RN(g 2^shift), ties to even. Integer sums are
 * exact. The default shift of 44 resolves 2^-44 = 6e-14: Adam divides by sqrt(v) + eps with eps
 * about 1e-8, and a gradient of the size of eps still has 17 bits. The sum of all contributions
 * may reach 2^18 = 262,144; each must stay below 2^18 / contributions, which is 256 per element
 * for 1024 micro-batches, where gradients of a mean loss are below 1. Beyond that (or for a NaN)
 * the conversion says so, writes 0, and the step is skipped or redone with a smaller shift on all
 * ranks.
 *
 * Layout   An owner's part of a tensor is c = ceil(G / N) granules of 64 elements; only the tail is
 *          padded, with zeros. A reduce-scatter buffer is rank-major: rank i's part of every
 *          parameter, one after the other, then rank i + 1's.
 * Threads  Pure.
 */
#ifndef TSR_KERNELS_FIXED_POINT_H
#define TSR_KERNELS_FIXED_POINT_H

#include "kernels/types.h"

#define TSR_GRANULE       64 /* elements */
#define TSR_FIXED_SHIFT   44
#define TSR_FIXED_SUM_LOG 62 /* the sum stays below 2^62 */

/* The largest |g| that one of `contributions` (>= 1) contributions to an element may have. */
float tsr_fixed_limit(int shift, uint64_t contributions);

/* Elements of one rank's part: 64 ceil(ceil(count / 64) / ranks). */
uint64_t tsr_fixed_part_count(uint64_t count, uint64_t ranks);

/* out[i] = RN(g[i] 2^shift). False if an element is not finite or |g| > limit; it becomes 0, the
 * others are right. 0 <= shift <= 62. */
bool tsr_fixed_from_f32(int64_t *out, const float *g, uint64_t count, int shift, float limit);

/* A parameter's whole gradient in tensor order into a reduce-scatter buffer: rank i's part goes to
 * buffer + i * rank_stride + offset, padding is zeroed. `rank_stride` and `offset` in elements.
 * False as above. */
typedef struct {
    uint64_t ranks;
    uint64_t rank_stride; /* elements of one rank's whole part of the buffer */
    int shift;
    float limit;
} tsr_fixed_layout;

bool tsr_fixed_scatter(int64_t *buffer, const tsr_fixed_layout *layout, uint64_t offset,
                       const float *g, uint64_t count);

/* accumulator[i] += part[i]. */
void tsr_fixed_add(int64_t *accumulator, const int64_t *part, uint64_t count);

/* g[i] = RN_fp32(acc[i] 2^-shift), one rounding. */
void tsr_fixed_to_f32(float *g, const int64_t *acc, uint64_t count, int shift);

/* The op: one parameter's gradient into the reduce-scatter buffer of its unit. */
typedef struct {
    int64_t *buffer;
    const float *g;    /* [count] */
    int64_t *overflow; /* one word: `mark` where an element was refused and it has no smaller one */
    int64_t mark;      /* above 0, the caller's name of the parameter; 0: 1 */
    tsr_fixed_layout layout;
    uint64_t offset, count;
} tsr_fixed_scatter_args;

tsr_status tsr_fixed_scatter_check(const tsr_fixed_scatter_args *args);
tsr_status tsr_fixed_scatter_ref(const tsr_fixed_scatter_args *args, tsr_pool *pool);

/* The op: what the owner of a part adds up over micro-batches. */
typedef struct {
    int64_t *accumulator; /* [count] */
    const int64_t *part;  /* [count] */
    uint64_t count;
    bool store; /* accumulator = part, instead of += */
} tsr_fixed_add_args;

tsr_status tsr_fixed_add_check(const tsr_fixed_add_args *args);
tsr_status tsr_fixed_add_ref(const tsr_fixed_add_args *args, tsr_pool *pool);

#endif
