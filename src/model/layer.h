/*
 * model/layer.h: forward and backward of one decoder layer on a gathered unit, written out op by
 * op.
 *
 *     x     = x_mid' + g z_down'     of the layer before: its residual is added here
 *     h     = norm(x)
 *     q,k,v = rope(W h)              o = attention(q, k, v)
 *     x_mid = x + g z_o
 *     h2    = norm(x_mid)
 *     act   = silu(gate) up          z_down = W act, added by the next layer
 *
 * What the backward needs is kept in tsr_layer_buffers. Which of them have memory of their own and
 * which share a scratch that a recompute fills again is the activation plan's choice
 * (model/activation.h): the same ops run on the same values, so the bits are the same.
 */
#ifndef TSR_MODEL_LAYER_H
#define TSR_MODEL_LAYER_H

#include "adapters/linear.h"

typedef enum {
    TSR_Q,
    TSR_K,
    TSR_V,
    TSR_O,
    TSR_GATE,
    TSR_UP,
    TSR_DOWN,
    TSR_LINEAR_COUNT
} tsr_linear_kind;

/* "self_attn.q_proj" ... "mlp.down_proj" */
extern const char *const tsr_linear_name[TSR_LINEAR_COUNT];

/* What does not change from layer to layer. */
typedef struct {
    int64_t d, f;
    int32_t q_heads, kv_heads, head_dim, window, position_count;
    float eps;
    const float *cosine, *sine; /* [position_count, head_dim / 2] */
    void *attention_workspace;
    uint64_t attention_workspace_bytes;
} tsr_layer_shape;

/* The gathered unit: every pointer resolved. */
typedef struct {
    tsr_linear linear[TSR_LINEAR_COUNT];
    tsr_frozen input_norm, post_norm, q_norm, k_norm;
    tsr_frozen final_norm; /* of the model; in the last layer's unit, else NULL data */
} tsr_layer;

/* The micro-batch on the device. */
typedef struct {
    int64_t tokens;
    const int32_t *positions;  /* [tokens], in their documents */
    const int32_t *cu_seqlens; /* [documents + 1] */
    int32_t documents;
} tsr_layer_batch;

/* Activations of one layer. z of q, k, v may be the same memory as q, k, v; y only where composed; low,
 * x A^T, only where it is kept (adapters/linear.h), else NULL. */
typedef struct {
    void *x, *h, *q, *k, *v, *o, *x_mid, *h2, *act;
    void *z[TSR_LINEAR_COUNT], *y[TSR_LINEAR_COUNT], *low[TSR_LINEAR_COUNT];
    float *rstd, *lse, *rstd2;
} tsr_layer_buffers;

/* What the layer before left for this one's x = x + g z. */
typedef struct {
    const void *x;  /* [T, d]: x_mid of the layer before, or the embedding */
    const void *z;  /* [T, d]: its z of down_proj (composed: its y); NULL for the embedding */
    const float *g; /* of its down_proj, or NULL */
} tsr_layer_input;

/* The input of the next layer, from what this one computed. */
tsr_layer_input tsr_layer_output(const tsr_layer *layer, const tsr_layer_buffers *buffers);

tsr_status tsr_layer_forward(const tsr_linear_context *context, const tsr_layer_shape *shape,
                             const tsr_layer *layer, const tsr_layer_batch *batch,
                             const tsr_layer_buffers *buffers, const tsr_layer_input *input);

/* Which part of a layer's forward is run again in its backward. */
typedef enum { TSR_RECOMPUTE_NONE, TSR_RECOMPUTE_SELECTIVE, TSR_RECOMPUTE_FULL } tsr_recompute;

/* Selective: h, h2 and act from what was kept. Full: everything from x, but what down_proj computed
 * only where it is read again, for dm. */
tsr_status tsr_layer_recompute(const tsr_linear_context *context, const tsr_layer_shape *shape,
                               const tsr_layer *layer, const tsr_layer_batch *batch,
                               const tsr_layer_buffers *buffers, tsr_recompute recompute);

/* Scratch of a backward, [T, .] of the compute dtype unless said. */
typedef struct {
    void *d_act;           /* f */
    void *d_h;             /* d */
    void *d_z;             /* d: of o_proj and down_proj */
    void *d_o;             /* q_heads * head_dim */
    void *d_q, *d_k, *d_v; /* gradients of the rotated heads, then of z */
} tsr_layer_scratch;

/* Where the gradients of one linear's A, B and m go, written whole: [r, in], [out, r], [out]. NULL:
 * it has none. */
typedef struct {
    float *a, *b, *m;
} tsr_layer_gradients;

/* dx [T, d]: in, the gradient of the layer's output x'; out, of its input x. The activations are
 * consumed. first: nothing below trains, so the gradient of x is not wanted. */
tsr_status tsr_layer_backward(const tsr_linear_context *context, const tsr_layer_shape *shape,
                              const tsr_layer *layer, const tsr_layer_batch *batch,
                              const tsr_layer_buffers *buffers, const tsr_layer_scratch *scratch,
                              void *dx, bool first,
                              const tsr_layer_gradients gradients[TSR_LINEAR_COUNT]);

#endif
