/*
 * model/expert_parts.h: what the nodes of experts share: decoding the stack's weights, some experts at a time, and the
 * matmul of rows. Inside src/model only.
 *
 * Workspace    the weights of some experts, low of an adapter, then what else the node asks for. With an fp8 base the
 *              weights are in e4m3, with a scale of each expert behind them, and behind low are the rows in e4m3 that are
 *              multiplied, and their scales.
 */
#ifndef TSR_MODEL_EXPERT_PARTS_H
#define TSR_MODEL_EXPERT_PARTS_H

#include "model/node_parts.h"
#include "model/work_parts.h"

#define TSR_EXPERT_WEIGHT_BYTES (256ull << 20) /* that are decoded at a time */

/* A node at work. */
typedef struct {
    const tsr_pass *pass;
    const tsr_node *node;
    const tsr_stack *shape;
    const tsr_expert_stack *stack;
    tsr_routes routes;
    int64_t group; /* experts whose weights are there at a time */
    bool fp8;      /* multiplied in e4m3 */
    void *low;     /* [rows, r]: s x A^T where it is not kept; of a backward s dz B */
    void *kept;    /* [rows, r]: the stack's value low; NULL: it is not kept */
    float *weight_scale, *row_scale; /* with fp8 */
    void *row_codes;
    char *rest; /* of the workspace */
} tsr_expert_work;

/* routes: the value that the node reads them from. */
tsr_expert_work tsr_expert_work_begin(const tsr_pass *pass, const tsr_node *node, int16_t routes);

/* Bytes of all of that; and of rows of `width` for each expert of a token. */
uint64_t tsr_expert_taken_bytes(const tsr_node *node, int64_t tokens,
                                const tsr_matrix_traits *traits, tsr_dtype dtype);
uint64_t tsr_expert_rows_bytes(const tsr_node *node, int64_t tokens, int64_t width,
                               tsr_dtype dtype);

/* Rows as ops take them; `gather`: their own are those of the tokens. */
tsr_expert_rows tsr_expert_rows_of(const tsr_expert_work *work, bool gather);

/* z = x W^T with its adapters; with p, x is of rows. dx = dz W with theirs, after tsr_expert_adapters. */
tsr_status tsr_expert_forward(const tsr_expert_work *work, void *z, const void *x, const float *p);
tsr_status tsr_expert_backward(const tsr_expert_work *work, void *dx, const void *dz, bool gather);

/* The gradients of all A and B, in the rest of the workspace, and low for tsr_expert_backward. Without p, x is of tokens and dz of
 * rows; with p, x is of rows and dz of tokens, of which a row has p times. Takes `count` [rows, r]: 1, or with p 2. */
tsr_status tsr_expert_adapters(const tsr_expert_work *work, const void *x, const void *dz,
                               const float *p);
uint64_t tsr_expert_low_bytes(const tsr_node *node, const tsr_matrix_traits *traits,
                              tsr_attention_bounds bounds, int count);

/* What the matmuls cost, one way, with the decoding. */
void tsr_cost_experts(const tsr_costing *c, const tsr_node *node, tsr_pass_kind pass, bool dx);

#endif
