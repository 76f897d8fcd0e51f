/*
 * kernels/expert_fp8.h: the NF4 weights of a range of experts to e4m3, with one scale for each expert
 * (kernels/fp8.h), as they lie or transposed, which is what dX = dZ W multiplies by.
 *
 * The stored weights are those of expert_weight.h: an expert has `parts` matrices, each with blocks, an offset and
 * a granule of its own, one below the other in what is written. v = RN_fp32(level[code] * absmax), as
 * nf4_dequant gives it. An expert's amax is bounded without looking at its codes: the largest |absmax| of all
 * blocks of all its parts times the largest |level|. scale = tsr_e4m3_scale(amax),
 * code = tsr_f32_to_e4m3(RN(v * RN(1 / scale))). Both layouts have the same scales and the same codes. An expert with an
 * absmax that is not finite is NaN throughout; the others are as they would be without it.
 *
 * Why one  e4m3 is a floating point: every value down to 2^-14 of the expert's largest has all 3 bits of mantissa, so
 *          rows of small values lose nothing. And in dX = dZ W, a sum over W's rows, one scale comes out of the sum,
 *          where scales by row have to be multiplied into dZ before it (fp8_decode.h).
 *
 * Cost     per element: 1/2 + 1/64 bytes of codes and nested scales read, and these scales once more (1/2 + 1/16 with
 *          fp32 scales), 1 written.
 */
#ifndef TSR_KERNELS_EXPERT_FP8_H
#define TSR_KERNELS_EXPERT_FP8_H

#include "kernels/expert_weight.h"

typedef struct {
    /* format TSR_EXPERTS_NF4, dtype TSR_F8_E4M3, out uint8_t [count, rows, columns], or transposed
     * [count, columns, rows] */
    tsr_expert_weight_args weight;
    float *scale; /* [count]: of experts first, first + 1, .. */
    bool transposed;
} tsr_expert_fp8_args;

tsr_status tsr_expert_fp8_check(const tsr_expert_fp8_args *args);
tsr_status tsr_expert_fp8_ref(const tsr_expert_fp8_args *args, tsr_pool *pool);

#endif
