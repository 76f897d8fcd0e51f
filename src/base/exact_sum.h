/*
 * base/exact_sum.h: a sum of doubles without rounding, so that it depends on the set of summands
 * alone, not on their order or on how they were spread over ranks.
 *
 * A superaccumulator: limb i holds a signed multiple of 2^(32 i - 1088). Adding a double touches
 * three limbs. Sums are merged by adding limbs (an all-reduce of int64), exact while a sum has seen
 * fewer than 2^30 additions. Infinities and NaNs are counted apart and make the result non-finite.
 */
#ifndef TSR_BASE_EXACT_SUM_H
#define TSR_BASE_EXACT_SUM_H

#include <stdint.h>

#define TSR_EXACT_LIMBS 68 /* 2^-1088 .. 2^1088 */

/* All int64: an array of these can be summed by an integer all-reduce of TSR_EXACT_WORDS words. */
typedef struct {
    int64_t limb[TSR_EXACT_LIMBS];
    int64_t nonfinite_count;
} tsr_exact_sum;

#define TSR_EXACT_WORDS (TSR_EXACT_LIMBS + 1)

void tsr_exact_clear(tsr_exact_sum *sum);
void tsr_exact_add(tsr_exact_sum *sum, double value);
void tsr_exact_merge(tsr_exact_sum *sum, const tsr_exact_sum *other);

/* The sum rounded once to double (NaN if a summand was not finite). */
double tsr_exact_round(const tsr_exact_sum *sum);

/* RN_fp32(sum / count), rounded once; count in 1 .. 2^32. The mean of absmax, for instance. */
float tsr_exact_mean_f32(const tsr_exact_sum *sum, uint64_t count);

#endif
