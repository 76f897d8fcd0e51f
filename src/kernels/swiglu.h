/*
 * kernels/swiglu.h: act = f(y_gate) y_up (Shazeer 2020), with magnitude and bias of the two
 * projections applied on the way: y = g z + bias; and its backward. f is silu, or gelu for GeGLU.
 * TSR_SILU_CLAMPED takes both within limits and y_up + 1; beyond a limit the gradient of what was beyond is 0.
 *
 * Rows of z_gate, z_up, dz_gate and dz_up are `stride` apart: both may be halves of one projection.
 *
 * Backward: dy_gate = dact y_up f'(y_gate), of silu s (1 + y_gate (1 - s)), s = sigmoid(y_gate); dy_up = dact f;
 * dz = g dy; dm[j] = (sum over t of dy[t, j] z[t, j]) / n[j]: the sum rounded once, then divided
 * in fp32.
 *
 * Cost     forward 3 tokens f elements, backward 5; e4m3 1 byte an element of act, dz_gate, dz_up more.
 */
#ifndef TSR_KERNELS_SWIGLU_H
#define TSR_KERNELS_SWIGLU_H

#include "kernels/activation.h"
#include "kernels/fp8_quantize.h"

typedef struct {
    const void *z_gate, *z_up;     /* [tokens, f] */
    const float *g_gate, *g_up;    /* [f], optional */
    tsr_frozen bias_gate, bias_up; /* [f], optional */
    void *act;                     /* [tokens, f]; may be z_gate or z_up of stride f */
    int64_t tokens, f;
    int64_t stride; /* 0: f */
    tsr_activation activation;
    tsr_dtype dtype;
    tsr_fp8_rows act8; /* of act, optional */
} tsr_swiglu_args;

typedef struct {
    const void *dact;              /* [tokens, f] */
    const void *z_gate, *z_up;     /* [tokens, f] */
    const float *g_gate, *g_up;    /* [f], optional */
    tsr_frozen bias_gate, bias_up; /* [f], optional */
    void *dz_gate, *dz_up;         /* [tokens, f]; each may be any of the inputs of its stride */
    const float *n_gate, *n_up;    /* [f], each with its dm */
    float *dm_gate, *dm_up;        /* [f], written; optional */
    int64_t tokens, f;
    int64_t stride; /* 0: f */
    tsr_activation activation;
    tsr_dtype dtype;
    float *partials; /* scratch of both dm (types.h): columns 2 f */
    tsr_fp8_rows dz_gate8,
        dz_up8; /* of dz_gate and dz_up of stride f, optional; both or none for one pass,
                                      and with a dm a GPU makes them in a second */
} tsr_swiglu_backward_args;

tsr_status tsr_swiglu_check(const tsr_swiglu_args *args);
tsr_status tsr_swiglu_ref(const tsr_swiglu_args *args, tsr_pool *pool);
tsr_status tsr_swiglu_backward_check(const tsr_swiglu_backward_args *args);
tsr_status tsr_swiglu_backward_ref(const tsr_swiglu_backward_args *args, tsr_pool *pool);

#endif
