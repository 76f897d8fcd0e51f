/*
 * kernels/rms_norm.h: the residual add and RMSNorm in one pass, and the norm's backward.
 *
 * Forward, per token (Zhang and Sennrich 2019; Hugging Face's LlamaRMSNorm):
 *     x_out = x + scale (g z + bias)           z NULL: x_out = x; x NULL: 0; g NULL: 1; bias NULL: 0
 *     rstd  = 1 / sqrt(mean(x_out^2) + eps)    the mean in fp32 lanes, summed in fp64
 *     h     = (x_out rstd) w
 * x_out rounded to dtype, stored or not: a layer that recomputes h from what is stored has the same.
 * z is what o_proj or down_proj computed (W x + s B A x), g DoRA's magnitude over norm.
 *
 * Backward, with w frozen: dx (+)= rstd (w dh - x rstd^2 mean(w dh x)).
 * The gradient of z and of the magnitude is kernels/compose.h.
 *
 * Cost     forward 4 tokens d elements (with z), backward 4; h8 and dx8 1 byte an element more.
 */
#ifndef TSR_KERNELS_RMS_NORM_H
#define TSR_KERNELS_RMS_NORM_H

#include "kernels/fp8_quantize.h"

typedef struct {
    const void *x;   /* [tokens, d], optional with z */
    const void *z;   /* [tokens, d], optional */
    const float *g;  /* [d], optional, with z only */
    tsr_frozen bias; /* [d], optional, with z only */
    tsr_frozen w;    /* [d] */
    float scale;     /* of what is added; 0: 1 */
    void *x_out;     /* [tokens, d]; may be x or z; NULL: not stored */
    void *h;         /* [tokens, d]; may be z or x (if x_out is not x); NULL with w NULL: only the
                        residual is added and rstd is not touched */
    float *rstd;     /* [tokens]; NULL: not stored */
    int64_t tokens, d;
    float eps;
    tsr_dtype dtype;
    tsr_fp8_rows h8; /* of h, optional */
} tsr_rms_norm_args;

typedef struct {
    const void *dh; /* [tokens, d] */
    const void *x;  /* [tokens, d]: the forward's x_out */
    const float *rstd;
    tsr_frozen w;
    void *dx; /* [tokens, d]; may be dh, or x if overwritten */
    int64_t tokens, d;
    bool overwrite; /* true: dx is written; false: added to */
    tsr_dtype dtype;
    tsr_fp8_rows dx8; /* of dx, optional */
} tsr_rms_norm_backward_args;

tsr_status tsr_rms_norm_check(const tsr_rms_norm_args *args);
tsr_status tsr_rms_norm_ref(const tsr_rms_norm_args *args, tsr_pool *pool);
tsr_status tsr_rms_norm_backward_check(const tsr_rms_norm_backward_args *args);
tsr_status tsr_rms_norm_backward_ref(const tsr_rms_norm_backward_args *args, tsr_pool *pool);

#endif
