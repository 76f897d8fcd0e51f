/*
 * kernels/head_weight.h: the gradient of the output projection itself, where it is trained.
 *
 * After head_finish (head.h), whose m, sum and label_logit of every row are still there: with l = h W_c^T made again
 * (and capped), e = exp(label_logit - m), y the label and slope that of the cap (1 without),
 *
 *     p = exp(l - m) / (sum + e);   g = scale slope p, at the label -scale slope sum / (sum + e)
 *     dw [count, d] = g^T h;  or, of columns that are trained alone, g^T z
 *
 * g is rounded to the compute dtype, sums are fp32 in an order that follows from the shape.
 *
 * Cost     4 R count d FLOPs; W_c once, dw once for each block of label rows.
 */
#ifndef TSR_KERNELS_HEAD_WEIGHT_H
#define TSR_KERNELS_HEAD_WEIGHT_H

#include "kernels/head.h"

typedef struct {
    const float *max, *sum, *label_logit; /* [rows] each, of all chunks */
    const void *h;                        /* [rows, d] of dtype */
    const void *w;         /* [count, d] of dtype: vocabulary rows [first, first + count) */
    const int32_t *labels; /* [rows], of the whole vocabulary */
    float *dw;             /* [count, d], or of z's columns; written */
    const void *z;         /* [rows, z_columns] of dtype, z_stride from row to row; NULL: h */
    int64_t z_columns, z_stride;
    void *workspace; /* as of head_chunk */
    uint64_t workspace_bytes;
    int64_t rows, d;
    int64_t first, count;
    float scale, softcap; /* softcap 0: none */
    tsr_dtype dtype;
} tsr_head_weight_args;

tsr_status tsr_head_weight_check(const tsr_head_weight_args *args);
tsr_status tsr_head_weight_ref(const tsr_head_weight_args *args, tsr_pool *pool);

#endif
