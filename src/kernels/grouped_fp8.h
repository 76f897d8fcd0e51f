/*
 * kernels/grouped_fp8.h: grouped_gemm (grouped_gemm.h) with x and W in e4m3: a scale for each row of x, and one for
 * each expert (expert_fp8.h).
 *
 * For row i of expert e, which takes row t of x: z[i, j] = x_scale[t] w_scale[e] sum_k x[t, k] w[e, j, k] + low_i F_e + bias,
 * forward over k < in with w[e] = W_e, backward over k < out with w[e] = W_e^T: both operands lie along k. The adapter's
 * summands are in z's dtype, and not in e4m3.
 *
 * Sums     In fp32, scaled, then low and the factor; rounded once. Tensor cores add e4m3 products with fewer bits:
 *          `fast` as fp8_gemm.h has it.
 * CUDA     bf16 on cards of compute capability 8.9 or newer, in widths that are multiples of 16, the adapter's of 8; others in
 *          fp32, slowly.
 * Cost     2 rows out in FLOPs at twice the rate of bf16, 2 rows r outer in bf16; x and W a byte an element.
 */
#ifndef TSR_KERNELS_GROUPED_FP8_H
#define TSR_KERNELS_GROUPED_FP8_H

#include "kernels/expert_fp8.h"
#include "kernels/grouped_gemm.h"

typedef struct {
    /* x and w are uint8_t, w [count, out, in], backward [count, in, out]; NULL: stored, in NF4, is decoded into
     * scratch, uint8_t [held, ..]. dtype is that of z, low, factor and stored. */
    tsr_grouped_gemm_args gemm;
    const float *x_scale; /* [tokens or rows] */
    float *w_scale;       /* [count]; [held] where stored is decoded: written */
    bool fast;
} tsr_grouped_fp8_args;

tsr_status tsr_grouped_fp8_check(const tsr_grouped_fp8_args *args);
tsr_status tsr_grouped_fp8_ref(const tsr_grouped_fp8_args *args, tsr_pool *pool);

/* Of a call with w NULL: that of the experts from `first` on that scratch holds, and in *weight how they are
 * made. */
tsr_grouped_fp8_args tsr_grouped_fp8_part(tsr_expert_fp8_args *weight,
                                          const tsr_grouped_fp8_args *args, int64_t first);

#endif
