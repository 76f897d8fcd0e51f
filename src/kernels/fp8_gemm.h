/*
 * kernels/fp8_gemm.h: C[m, n] = alpha scale_a[i] scale_b[j] sum_k A[i, k] B[j, k] + beta C, A and B e4m3.
 *
 * y = x W^T has the weight as it lies for B; dX = dY W has it transposed, and dY quantized with the
 * weight's scales as its column_factor, so that B has none. Dense; both operands lie along k.
 * Sums are fp32, C is rounded once; with beta 1 a GPU may round the product to C's dtype before it adds.
 * k = 0 gives C = beta C; with beta 0, C is not read. A NaN in an operand or a scale shows in its row or
 * column.
 *
 * Sums     Tensor cores of Hopper add e4m3 products with fewer bits than fp32 has (about 14 of mantissa;
 *          DeepSeek-V3, 3.3.2). With `fast` all of k is added so; otherwise each few hundred products go
 *          into an fp32 register (cuBLASLt's FAST_ACCUM off). The CPU's are fp32 either way.
 * CUDA     A card of compute capability 8.9 or newer. On 9.0 by cuBLASLt 12.9 or newer; on others, where that has no scales by
 *          row, by fp8_gemm_mma.cu. k and n are multiples of 16, A, B, C and the scales on 16 bytes, n at most
 *          TSR_FP8_GEMM_MOST_ONES where scale_b is NULL. Else TSR_EUNSUPPORTED.
 * Cost     2 m n k FLOPs, at twice the rate of bf16; m k + k n bytes and (beta == 0 ? 1 : 2) m n elements
 *          of C moved.
 */
#ifndef TSR_KERNELS_FP8_GEMM_H
#define TSR_KERNELS_FP8_GEMM_H

#include "kernels/gemm.h"

#define TSR_FP8_GEMM_MOST_ONES 131072 /* floats that the device keeps for a scale_b that is NULL */

typedef struct {
    int64_t m, n, k;
    const uint8_t *a, *b; /* [m, k], [n, k] */
    const float *scale_a; /* [m] */
    const float *scale_b; /* [n]; NULL: ones */
    void *c;              /* [m, n] of c_dtype */
    float alpha, beta;    /* beta: 0 or 1 */
    tsr_dtype c_dtype;    /* F32 or BF16 */
    bool fast;
} tsr_fp8_gemm_args;

tsr_status tsr_fp8_gemm_check(const tsr_fp8_gemm_args *args);
tsr_status tsr_fp8_gemm_ref(const tsr_fp8_gemm_args *args, tsr_pool *pool);

/* The same matmul without its scales: what stands for it in a list of tsr_prepare_args. Its dtype is
 * TSR_F8_E4M3, which the op gemm refuses. */
tsr_gemm_args tsr_fp8_gemm_shape(const tsr_fp8_gemm_args *args);

#endif
