/*
 * kernels/delta_rule.h: the gated delta rule inside packed documents, forward and backward, in chunks of 64 tokens (Yang
 * et al. 2024, Gated Delta Networks; the chunked form of Yang et al. 2024, Parallelizing Linear Transformers with the
 * Delta Rule). As Transformers' Qwen3_5GatedDeltaNet has it, but that a document sees nothing of those before it.
 *
 * `mixed` has for each token queries [Hk, dk], keys [Hk, dk] and values [Hv, dv]. Value head h reads key head
 * h / (Hv / Hk). q and k of a head are divided by sqrt(sum of squares + 1e-6), q also by sqrt(dk). For a token of a head
 *     beta = sigmoid(g_b b),  decay = -exp(a_log) softplus(g_a a + dt_bias)
 *     S = exp(decay) S;  u = beta (v - S^T k);  S += k u^T;  o = S^T q
 * where S [dk, dv] is 0 before a document's first token. S is fp32 throughout.
 *
 * In a chunk that S enters, with c_i the sum of decays up to token i of it, E_ij = exp(c_i - c_j), A_ij = beta_i E_ij k_i.k_j
 * for j < i and P_ij = E_ij q_i.k_j for j <= i:
 *     (1 + A) U = diag(beta) (V - diag(exp c) K S),  O = diag(exp c) Q S + P U,
 *     S leaves as exp(c_last) S + sum over j of exp(c_last - c_j) k_j u_j^T.
 *
 * Tokens from cu_seqlens[documents] up to `tokens` are padding: o and all gradients are 0 there.
 *
 * Backward: d_o -> the gradients of mixed, of g_b b and of g_a a. What the forward computed is computed again. Those of q
 * and k are summed over the value heads of a key head in the order of heads.
 *
 * Cost     of a chunk of L tokens and a value head forward 4 L dk dv + 2 L^2 (dk + dv) FLOPs and the products of queries and
 *          keys, backward about three times as much; mixed and o once.
 */
#ifndef TSR_KERNELS_DELTA_RULE_H
#define TSR_KERNELS_DELTA_RULE_H

#include "kernels/types.h"

#define TSR_DELTA_CHUNK 64
#define TSR_DELTA_MOST  128 /* columns of a head */

/* What both directions are told. */
typedef struct {
    const int32_t *cu_seqlens; /* [documents + 1], from 0, not decreasing, the last <= tokens */
    void *workspace;           /* as the table's delta_rule_workspace_bytes says */
    uint64_t workspace_bytes;
    int64_t tokens;
    int32_t documents, key_heads, value_heads, key_dim, value_dim;
    tsr_dtype dtype;
} tsr_delta_rule_shape;

typedef struct {
    const void *mixed;         /* [tokens, 2 Hk dk + Hv dv] */
    const void *b, *a;         /* [tokens, Hv] */
    const float *g_b, *g_a;    /* [Hv], optional */
    tsr_frozen a_log, dt_bias; /* [Hv] */
} tsr_delta_rule_inputs;

typedef struct {
    tsr_delta_rule_inputs in;
    void *o; /* [tokens, Hv, dv] */
    tsr_delta_rule_shape shape;
} tsr_delta_rule_args;

typedef struct {
    tsr_delta_rule_inputs in;
    const void *d_o; /* [tokens, Hv, dv] */
    void *d_mixed;   /* as mixed; written; none may alias an input */
    void *d_b, *d_a; /* [tokens, Hv] */
    tsr_delta_rule_shape shape;
} tsr_delta_rule_backward_args;

/* The largest micro-batch of a run. */
typedef struct {
    int64_t tokens, documents, longest; /* longest: tokens of one document */
    int32_t key_heads, value_heads, key_dim, value_dim;
    tsr_dtype dtype;
    bool train;
} tsr_delta_rule_bounds;

/* Columns of mixed. */
static inline int64_t tsr_delta_rule_columns(const tsr_delta_rule_shape *s)
{
    return 2 * (int64_t)s->key_heads * s->key_dim + (int64_t)s->value_heads * s->value_dim;
}

/* What the CPU needs, for both directions; without `train` for the forward alone. */
uint64_t tsr_delta_rule_workspace_bytes(const tsr_delta_rule_bounds *bounds);

tsr_status tsr_delta_rule_check(const tsr_delta_rule_args *args);
tsr_status tsr_delta_rule_ref(const tsr_delta_rule_args *args, tsr_pool *pool);
tsr_status tsr_delta_rule_backward_check(const tsr_delta_rule_backward_args *args);
tsr_status tsr_delta_rule_backward_ref(const tsr_delta_rule_backward_args *args, tsr_pool *pool);

#endif
