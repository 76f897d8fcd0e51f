/*
 * kernels/gate.h: a value times the sigmoid of a linear's result: of attention, column by column (Qwen 3.5's
 * attn_output_gate), or of whole rows (a shared expert's gate); and the halves of heads that such a linear makes.
 *
 * gate, for token t and gate i of n, columns j of its group:
 *     out[t, i, j] = x[t, i, j] sigmoid(y[t, i]),  y = g z + bias         g NULL: 1; bias NULL: 0
 * gate_backward: dout -> dx, dy. dy sums over a group, in fp32 and a fixed order, rounded once.
 *
 * split_heads: y = g z + bias of [tokens, heads, 2, width]: the first half of each head and the second one, each
 * [tokens, heads, width]. split_heads_backward: the gradient of y from those of the halves.
 *
 * Cost     gate 3 elements a column forward and 4 to 5 backward; split_heads 4 tokens heads width each way.
 */
#ifndef TSR_KERNELS_GATE_H
#define TSR_KERNELS_GATE_H

#include "kernels/types.h"

typedef struct {
    const void *x;   /* [tokens, gates, group] */
    const void *z;   /* [tokens, gates] */
    const float *g;  /* [gates], optional */
    tsr_frozen bias; /* [gates], optional */
    void *out;       /* [tokens, gates, group]; may be x */
    int64_t tokens, gates, group;
    tsr_dtype dtype;
} tsr_gate_args;

typedef struct {
    const void *dout;  /* [tokens, gates, group] */
    const void *x, *z; /* as in the forward */
    const float *g;
    tsr_frozen bias;
    void *dx; /* [tokens, gates, group]; may be dout or x */
    void *dy; /* [tokens, gates]; may be z */
    int64_t tokens, gates, group;
    tsr_dtype dtype;
} tsr_gate_backward_args;

typedef struct {
    const void *z;        /* [tokens, heads, 2, width] */
    const float *g;       /* [heads, 2, width], optional */
    tsr_frozen bias;      /* [heads, 2, width], optional */
    void *first, *second; /* [tokens, heads, width] */
    int64_t tokens, heads, width;
    tsr_dtype dtype;
} tsr_split_heads_args;

typedef struct {
    const void *first, *second; /* [tokens, heads, width]: gradients */
    void *dy;                   /* [tokens, heads, 2, width] */
    int64_t tokens, heads, width;
    tsr_dtype dtype;
} tsr_split_heads_backward_args;

tsr_status tsr_gate_check(const tsr_gate_args *args);
tsr_status tsr_gate_ref(const tsr_gate_args *args, tsr_pool *pool);
tsr_status tsr_gate_backward_check(const tsr_gate_backward_args *args);
tsr_status tsr_gate_backward_ref(const tsr_gate_backward_args *args, tsr_pool *pool);
tsr_status tsr_split_heads_check(const tsr_split_heads_args *args);
tsr_status tsr_split_heads_ref(const tsr_split_heads_args *args, tsr_pool *pool);
tsr_status tsr_split_heads_backward_check(const tsr_split_heads_backward_args *args);
tsr_status tsr_split_heads_backward_ref(const tsr_split_heads_backward_args *args, tsr_pool *pool);

#endif
