/*
 * kernels/fp8_quantize.h: rows of activations or gradients to e4m3, each with a scale of its own
 * (kernels/fp8.h has the rule).
 *
 *     out[t, j] = e4m3(v * RN(1 / scale[t])),  v = x[t, j], or RN_fp32(x[t, j] * column_factor[j])
 *
 * column_factor is how the scale of a weight's row, which dX = dY W sums over, moves into dY. x / scale
 * of the plain formula is a product with the reciprocal: the same bytes on every backend.
 *
 * Cost     per element: x read once, 1 byte written; 4 bytes of scale a row.
 */
#ifndef TSR_KERNELS_FP8_QUANTIZE_H
#define TSR_KERNELS_FP8_QUANTIZE_H

#include "kernels/types.h"

typedef struct {
    uint8_t *out;               /* [tokens, d] e4m3 */
    float *scale;               /* [tokens] */
    const void *x;              /* [tokens, d] of dtype */
    const float *column_factor; /* [d], optional */
    int64_t tokens, d;
    tsr_dtype dtype; /* of x: F32 or BF16 */
} tsr_fp8_quantize_args;

/* Where an op that makes rows puts them in e4m3 beside: what fp8_quantize makes of the rows as they are
 * stored. out NULL: nowhere, and nothing of this is used. A GPU makes it in the same pass where rows are
 * bf16, on vectors and not too wide for it, and in a second one otherwise. */
typedef struct {
    uint8_t *out;               /* [tokens, d] e4m3 */
    float *scale;               /* [tokens] */
    const float *column_factor; /* [d], optional */
} tsr_fp8_rows;

/* TSR_EINVAL: F16, which no model computes in, or a NULL. */
tsr_status tsr_fp8_quantize_check(const tsr_fp8_quantize_args *args);
tsr_status tsr_fp8_quantize_ref(const tsr_fp8_quantize_args *args, tsr_pool *pool);

/* For the ops that have rows: whether they are as fp8_quantize wants them, `op` is for the message; and the
 * second pass over rows x [tokens, d], which does nothing where out is NULL. */
tsr_status tsr_fp8_rows_check(const char *op, tsr_fp8_rows rows, tsr_dtype dtype);
tsr_fp8_quantize_args tsr_fp8_rows_pass(tsr_fp8_rows rows, const void *x, int64_t tokens, int64_t d,
                                        tsr_dtype dtype);
tsr_status tsr_fp8_rows_ref(tsr_fp8_rows rows, const void *x, int64_t tokens, int64_t d,
                            tsr_pool *pool);

#endif
