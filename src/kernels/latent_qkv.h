/*
 * kernels/latent_qkv.h: q, k and v of multi-head latent attention (DeepSeek-V2, DeepSeek-AI 2024) from what its linears
 * make; and its backward. A head of q and k has N columns that do not turn and R that do (Su et al. 2021), one of v V.
 *
 * Forward, per head h:
 *     q   = [y, turned y]              of y = g z + bias, [tokens, heads, N + R]
 *     k   = [y, turned shared]         of y = g z + bias, [tokens, heads, N + V], and shared [tokens, R], which all
 *                                      heads have in common
 *     v   = the other V columns of that y
 * g NULL: 1; bias NULL: 0. The turn is that of rope_qkv.h: pairs (i, i + R/2), or with `neighbours` (2i, 2i + 1).
 *
 * Backward: dq, dk, dv -> the gradients of both y and of shared, dshared = the sum over heads of dk's last R columns,
 * turned back; in fp32 or better.
 *
 * Cost     tokens heads (2 (N + R) + (N + V) + (N + R) + V) elements each way.
 */
#ifndef TSR_KERNELS_LATENT_QKV_H
#define TSR_KERNELS_LATENT_QKV_H

#include "kernels/types.h"

#define TSR_LATENT_MOST_ROPE 512

/* What both directions are told. */
typedef struct {
    const float *cosine, *sine; /* [position_count, R / 2] */
    const int32_t *positions;   /* [tokens]; outside the table: TSR_EINTERNAL when it runs */
    int64_t tokens;
    int32_t heads, nope_dim, rope_dim, v_dim, position_count; /* N, R, V; R even */
    bool neighbours;
    tsr_dtype dtype;
} tsr_latent_shape;

typedef struct {
    const void *q_z;            /* [tokens, heads, N + R] */
    const void *kv_z;           /* [tokens, heads, N + V] */
    const void *shared;         /* [tokens, R] */
    const float *q_g, *kv_g;    /* [heads (N + R)], [heads (N + V)], optional */
    tsr_frozen q_bias, kv_bias; /* the same, optional */
    void *q, *k, *v;            /* [tokens, heads, N + R] twice, [tokens, heads, V]; q may be q_z */
    tsr_latent_shape shape;
} tsr_latent_qkv_args;

typedef struct {
    const void *dq, *dk, *dv;      /* as q, k, v */
    void *q_dy, *kv_dy, *d_shared; /* as q_z, kv_z, shared; written; q_dy may be dq */
    tsr_latent_shape shape;
} tsr_latent_qkv_backward_args;

tsr_status tsr_latent_qkv_check(const tsr_latent_qkv_args *args);
tsr_status tsr_latent_qkv_ref(const tsr_latent_qkv_args *args, tsr_pool *pool);
tsr_status tsr_latent_qkv_backward_check(const tsr_latent_qkv_backward_args *args);
tsr_status tsr_latent_qkv_backward_ref(const tsr_latent_qkv_backward_args *args, tsr_pool *pool);

#endif
