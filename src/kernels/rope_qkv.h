/*
 * kernels/rope_qkv.h: what stands between the q, k, v matmuls and attention: magnitude, bias, the
 * heads' RMSNorm (qwen3) and the rotary embedding (Su et al. 2021), in one pass; and its backward.
 *
 * Forward, per projection (0 q, 1 k, 2 v) and head:
 *     y = g z + bias            g NULL: 1; bias NULL: 0
 *     y = y rstd(y) norm        q and k, where norm is given: RMSNorm over the head
 *     q, k: (y_i, y_{i+D/2}) -> (y_i cos - y_{i+D/2} sin, y_{i+D/2} cos + y_i sin)
 * with cos, sin of row positions[t] of the tables: Hugging Face's pairing (i, i + D/2). With a rotary_dim R below
 * D only the first R columns turn, in pairs (i, i + R/2); with `neighbours` the pairs are (2i, 2i + 1). q may have
 * tables of its own. k and v may be missing (kv_heads 0), or v alone (its out or dz NULL). z and dz may be columns of wider rows: `stride` elements apart.
 *
 * Backward: dout -> dy (the derivative before bias and g), dz = g dy, and
 *     dm[j] = (sum over t of dy[t, j] z[t, j]) / n[j]: the sum rounded once, then divided in fp32.
 * z is read only for dm and for the heads' norm. bias and norm are frozen.
 *
 * Cost     2 tokens (Hq + 2 Hkv) D elements each way, 3 where z is read. On GPUs v costs nothing where it is already
 *          where it shall be, without g, bias and dm.
 */
#ifndef TSR_KERNELS_ROPE_QKV_H
#define TSR_KERNELS_ROPE_QKV_H

#include "kernels/rope_tables.h"
#include "kernels/types.h"

typedef struct {
    const void *z;   /* [tokens, heads, D] */
    void *out;       /* [tokens, heads, D]; may be z without stride */
    const float *g;  /* [heads D], optional */
    tsr_frozen bias; /* [heads D], optional */
    tsr_frozen norm; /* [D], optional; q and k only */
} tsr_rope_part;

/* What both directions are told. */
typedef struct {
    const float *cosine, *sine;     /* [position_count, R / 2] */
    const float *q_cosine, *q_sine; /* the same, of q; NULL: those of k */
    const int32_t *positions;       /* [tokens]; outside the table: TSR_EINTERNAL when it runs */
    int64_t tokens;
    int64_t stride; /* of the rows of z and dz; 0: each part's heads D */
    int32_t q_heads, kv_heads, head_dim, position_count;
    int32_t rotary_dim; /* R, even; 0: D */
    bool neighbours;
    float norm_eps;
    tsr_dtype dtype;
} tsr_rope_shape;

typedef struct {
    tsr_rope_part part[3]; /* q, k, v */
    tsr_rope_shape shape;
} tsr_rope_qkv_args;

typedef struct {
    const void *dout;      /* [tokens, heads, D] */
    const void *z;         /* [tokens, heads, D]: the forward's; needed with dm or norm */
    void *dz;              /* [tokens, heads, D]; may be dout or z */
    const float *g;        /* as in the forward */
    const float *n;        /* [heads D], with dm */
    float *dm;             /* [heads D], written; optional */
    tsr_frozen bias, norm; /* as in the forward; bias is read with norm only */
} tsr_rope_backward_part;

typedef struct {
    tsr_rope_backward_part part[3];
    tsr_rope_shape shape;
    float *partials; /* scratch of all dm (types.h): columns (Hq + 2 Hkv) D */
} tsr_rope_qkv_backward_args;

/* Heads of all parts; `v` is v's out or dz. */
static inline int32_t tsr_rope_heads(const tsr_rope_shape *shape, const void *v)
{
    return shape->q_heads + (v ? 2 : 1) * shape->kv_heads;
}

tsr_status tsr_rope_qkv_check(const tsr_rope_qkv_args *args);
tsr_status tsr_rope_qkv_ref(const tsr_rope_qkv_args *args, tsr_pool *pool);
tsr_status tsr_rope_qkv_backward_check(const tsr_rope_qkv_backward_args *args);
tsr_status tsr_rope_qkv_backward_ref(const tsr_rope_qkv_backward_args *args, tsr_pool *pool);

#endif
