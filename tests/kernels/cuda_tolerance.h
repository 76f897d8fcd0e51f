/*
 * tests/kernels/cuda_tolerance.h: how far a CUDA op may be from the C reference in fp32 on the same
 * inputs: the largest |difference| over the largest |value| of the output. 0 is the same bits.
 *
 * bf16 outputs are rounded once from fp32: half an ulp is at most 2^-8 = 3.9e-3 of an element.
 * What reads its own bf16 intermediate (softmax weights, logits) is a few of them away.
 */
#ifndef TSR_TESTS_KERNELS_CUDA_TOLERANCE_H
#define TSR_TESTS_KERNELS_CUDA_TOLERANCE_H

#include "base/dtype.h"

typedef struct {
    double f32, bf16;
} cuda_tolerance;

/*                                                   f32      bf16 */
static const cuda_tolerance tolerance_gemm = {2e-6, 4e-3};
static const cuda_tolerance tolerance_merge = {2e-6, 4e-3};
static const cuda_tolerance tolerance_low_rank = {2e-6, 5e-5}; /* bf16: the sums, in tensor cores */
static const cuda_tolerance tolerance_grouped = {2e-6,
                                                 5e-5}; /* beside the rounding of each element */
static const cuda_tolerance tolerance_rms_norm = {2e-6, 4e-3};
static const cuda_tolerance tolerance_rope = {2e-6, 4e-3};
static const cuda_tolerance tolerance_swiglu = {2e-6, 4e-3};
static const cuda_tolerance tolerance_elementwise = {1e-6, 4e-3}; /* scale, compose, dropout */
static const cuda_tolerance tolerance_column_sum = {2e-6, 2e-6};  /* dm: fp32, of given inputs */
static const cuda_tolerance tolerance_attention = {5e-6, 6e-3};
static const cuda_tolerance tolerance_attention_backward = {2e-5, 1.2e-2};
static const cuda_tolerance tolerance_head = {5e-6, 4e-3};
static const cuda_tolerance tolerance_route = {1e-5, 5e-5}; /* bf16: as of low_rank */
static const cuda_tolerance tolerance_combine = {2e-6, 4e-3};
static const cuda_tolerance tolerance_norms = {1e-6, 1e-6}; /* row_square_norm, dora_norm */
/* fp8_gemm, which has no fp32 operands: f32 is of sums promoted to fp32, bf16 of `fast` ones, in the 14
 * bits or so that tensor cores add e4m3 products with. */
static const cuda_tolerance tolerance_fp8_gemm = {2e-3, 2e-2};
/* fp8_quantize, fp8_decode, nf4_dequant, widen, rows, fixed point, AdamW, step words: the same bits. */

static inline double tolerance_of(cuda_tolerance t, tsr_dtype dtype)
{
    return dtype == TSR_F32 ? t.f32 : t.bf16;
}

#endif
