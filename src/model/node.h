/*
 * model/node.h: the kinds of nodes that a block is made of: what each does, forward and backward, what its
 * backward reads, and what both cost. Each kind is one file, node_<kind>.c, and is written there once.
 *
 *     norm        in    x, pending (either or none)                  weight  the norm's
 *                 out   sum x + scale (g z + bias); h = norm(sum); rstd
 *     linear      in    x                                            weight  up to four matrices
 *                 out   the result of each
 *     rope        in    q, k, v as linears leave them, or one of     weight  norms of the heads of q and k
 *                       which they are columns one behind the other
 *                 out   q, k, v as attention reads them
 *     columns     in    z                                            of a linear
 *                 out   its first columns, with everything; the rest
 *     latent      in    q, the keys' shared part, keys and values    as the linears of latent attention leave them
 *                 out   q, k, v as attention reads them (kernels/latent_qkv.h)
 *     attention   in    q, k, v
 *                 out   o; lse
 *     glu         in    gate, up; or one of which they are halves; of experts p, routes
 *                 out   act
 *     sum         in    x, z
 *                 out   y
 *     gain        in    x                                            weight  one factor
 *                 out   it times the factor
 *     route       in    x                                            weight  the router's, its bias,
 *                 out   p, the weights of a token's experts;                 that of the choice, scales
 *                       routes; logits
 *     experts     in    x, routes                                    weight  a stack
 *                 out   a row for each expert of a token
 *     combine     in    such rows, p, routes                         weight  a stack
 *                 out   y, the sum over the experts of a token
 *     inputs      in    z                                            weight  the norm's
 *                 out   what every layer takes of the tokens (kernels/layer_inputs.h)
 *     convolution in  z                                            weight  one of taps for each column
 *                 out   it convolved over time, with SiLU (kernels/convolution.h)
 *     delta_rule  in  mixed q, k and v; beta; decay                weight  a_log, dt_bias
 *                 out   o (kernels/delta_rule.h)
 *     gated_norm  in  x; z                                         weight  the norm's
 *                 out   norm(x) silu(z) (kernels/gated_norm.h)
 *     split       in  z
 *                 out   the halves of its heads (kernels/gate.h)
 *     gate        in  x; z
 *                 out   x sigmoid(z) (kernels/gate.h)
 *
 * A linear's result lacks its magnitude g and its bias, which whoever reads it applies. The backward of rope and
 * glu gives the gradient of the bare result, dz = g dy, and sums dm; after any other the linear does so itself, in a pass
 * of its own (`scales`).
 */
#ifndef TSR_MODEL_NODE_H
#define TSR_MODEL_NODE_H

#include "adapters/linear.h"
#include "model/arch/config.h"
#include "model/block.h"
#include "shard/context.h"

#define TSR_MODEL_ONES 512 /* the widest head */

enum { TSR_NORM_X, TSR_NORM_PENDING };
enum { TSR_NORM_SUM, TSR_NORM_H, TSR_NORM_RSTD };
enum { TSR_ATTENTION_O, TSR_ATTENTION_LSE };
enum { TSR_LATENT_Q, TSR_LATENT_SHARED, TSR_LATENT_KV };
enum { TSR_ROUTE_P, TSR_ROUTE_ROUTES, TSR_ROUTE_LOGITS };
enum { TSR_ROUTE_WEIGHT, TSR_ROUTE_BIAS, TSR_ROUTE_CORRECTION, TSR_ROUTE_SCALE };
enum { TSR_EXPERTS_X, TSR_EXPERTS_ROUTES };
enum { TSR_GLU_GATE, TSR_GLU_UP, TSR_GLU_P, TSR_GLU_ROUTES };
enum { TSR_COMBINE_ROWS, TSR_COMBINE_P, TSR_COMBINE_ROUTES };

#define TSR_NODE_ALL_PORTS ((1u << TSR_NODE_PORTS) - 1)

/* What the linear of a matrix has beside its weight, as far as the work of a layer depends on it. */
typedef struct {
    uint64_t r; /* of its adapter in memory; 0: none */
    bool dora;
    bool composes; /* DoRA with dropout */
    uint64_t low;  /* columns of x A^T, where every forward makes it (adapters/graph.h); else 0 */
    bool fp8;      /* of a stack: multiplied in e4m3 */
} tsr_matrix_traits;

/* Arrays [TSR_BLOCK_WEIGHTS] hold the matrices', then from here on the stacks'; of a stack's traits only r, low and fp8 count. */
static inline int tsr_stack_weight(int stack)
{
    return TSR_BLOCK_MATRICES + stack;
}

/* Of a stack whose adapter has this rank. */
static inline tsr_matrix_traits tsr_stack_traits(const tsr_block *block, int stack, uint64_t r,
                                                 bool fp8)
{
    const tsr_node *node = &block->node[block->stack[stack].node];
    return (tsr_matrix_traits){.r = r, .low = r * (uint64_t)node->spec.experts.chosen, .fp8 = fp8};
}

/* The weights of a stack that stay decoded: made by the first pass that multiplies by them. */
typedef struct {
    /* [experts, out, in] in the compute dtype, for both directions; or with an fp8 base uint8_t, forward, and
     * [experts, in, out], backward. NULL: decoded for each use. */
    void *whole[2];
    float *scale; /* of an fp8 base: [experts] */
    bool is_made[2];
} tsr_decoded_stack;

/* A stack as it lies in the gathered unit: of kernels/expert_weight.h. Borrowed. */
typedef struct {
    tsr_frozen plain; /* data NULL: NF4 */
    const uint8_t *codes;
    const void *absmax;
    const float *nested_absmax, *nested_map, *level, *offset;
    bool nested;
    bool mxfp4;                 /* codes and absmax are those of kernels/mxfp4_dequant.h */
    tsr_decoded_stack *decoded; /* or NULL */
    tsr_frozen bias;            /* [experts, out] */
    uint64_t r;                 /* 0: no adapter */
    double scale;
    const void *a, *b; /* [experts, r, in], [experts, out, r] */
} tsr_expert_stack;

/* Where a router adds what it did (kernels/route.h: route_stats). */
typedef struct {
    int64_t *count;   /* [experts] */
    int64_t *prob;    /* [experts] of all routers together, or NULL */
    int64_t *dropped; /* [1] */
} tsr_router_counts;

/* The micro-batch on the device, or what this rank has of one that several share: all of that, whatever a pass has of
 * it. Documents are those of the whole micro-batch. */
typedef struct {
    int64_t tokens;
    int64_t all_tokens;             /* of all ranks that share it; 0: tokens */
    tsr_context *shared;            /* NULL: no other rank has rows of it */
    tsr_attention_bounds attention; /* of the run, without heads */
    float gradient_limit;           /* of a tile's gradients (kernels/fixed_point.h) */
    const int32_t *positions;       /* [tokens], in their documents */
    const int32_t *cu_seqlens;      /* [documents + 1] */
    int32_t documents;
    int layer;                       /* that is at work */
    const tsr_router_counts *counts; /* of this layer's router, in a forward; NULL: not wanted */
    const float *aux;                /* of route_backward; NULL: no auxiliary loss */
    const float *correction;         /* of this layer's router; NULL: its vector's */
    const void
        *layer_rows; /* [tokens, layers width]: the rows of a table for each layer, or NULL */
    tsr_dtype layer_rows_dtype;
} tsr_layer_batch;

/* How heads turn by position: [position_count, head_dim / 2]. */
typedef struct {
    const float *cosine, *sine;
    int32_t position_count;
} tsr_rope_table;

/* What does not change from layer to layer. */
typedef struct {
    tsr_rope_table rope[TSR_MODEL_ROPES];
    tsr_rope_table queries; /* of rope[0] with query_beta; else empty */
    const float *ones;      /* [TSR_MODEL_ONES]: the weight of a norm without one */
    double capacity_factor; /* of an expert's rows, over the mean; 0: no limit */
} tsr_model_tables;

/* Where the gradients of one linear's A, B and m go, written whole: [r, in], [out, r], [out]; of a stack's, of all
 * experts. NULL: it has none. Nodes write float; a layer in tiles adds that to int64_t (program.h). */
typedef struct {
    void *a, *b, *m;
} tsr_layer_gradients;

/* One node in one pass over a layer. */
typedef struct {
    int16_t node;
    uint8_t outputs; /* which of its outputs are made, or have a gradient */
    uint8_t inputs;  /* whose gradients are wanted */
    uint8_t adds;    /* which of these are added to, not written */
    bool has_sum;    /* norm: the sum is there already */
    /* With an fp8 base: what is made is put into e4m3 on the way, for the linears that come next; or, of a
     * linear, nobody has done so with its input. */
    bool makes_rows, needs_rows;
} tsr_step;

/* What a layer was left with by the one before it: x + g z. */
typedef struct {
    const void *x;  /* [T, d] */
    const void *z;  /* [T, d]; NULL: nothing is pending */
    const float *g; /* its magnitude, or NULL */
} tsr_layer_input;

/* What a pass over a layer hands to its nodes. Addresses by value; NULL where there is none. Of a tile all of it is that
 * of the tile's rows, but for the batch. */
typedef struct {
    const tsr_linear_context *context;
    const tsr_model_tables *tables;
    const tsr_layer_batch *batch;
    const tsr_block *block;
    const tsr_matrix_traits *traits;      /* [TSR_BLOCK_WEIGHTS] */
    const tsr_linear *linear;             /* [matrix_count], resolved */
    const tsr_expert_stack *stack;        /* [stack_count] */
    const tsr_frozen *vector;             /* [vector_count] */
    const tsr_layer_gradients *gradients; /* [TSR_BLOCK_WEIGHTS]; of a backward */
    const tsr_layer_input *input;         /* of a forward */
    const int32_t *positions;             /* of its tokens, in their documents */
    void *value[TSR_BLOCK_VALUES], *gradient[TSR_BLOCK_VALUES];
    void *workspace; /* of the node at work */
    uint64_t workspace_bytes;
    void *codes;         /* of the node at work: where its backward puts gradients in e4m3 */
    tsr_fp8_rows *made8; /* [matrix_count]: gradients of results that are in e4m3 already */
} tsr_pass;

/* What a node asks of the memory of its values. */
typedef struct {
    int16_t read[3 * TSR_NODE_PORTS + 1]; /* by its backward */
    int read_count;
    /* An output may be made where an input lies that nobody reads afterwards. */
    struct {
        int16_t output, input; /* values */
    } over[TSR_NODE_PORTS];
    int over_count;
    /* The gradient of an input may lie where a value does that nobody reads afterwards, or where the gradient of
     * an output does. Tried in this order. */
    struct {
        int16_t input, with; /* values */
        bool gradient;       /* with's gradient, not itself */
    } share[2 * TSR_NODE_PORTS];
    int share_count;
} tsr_needs;

typedef enum { TSR_PASS_FORWARD, TSR_PASS_REMADE, TSR_PASS_BACKWARD, TSR_PASSES } tsr_pass_kind;

typedef struct tsr_costing tsr_costing; /* model/work_parts.h */

struct tsr_node_kind {
    const char *name;
    bool
        row_wise; /* a row of what it makes, and of its gradients, comes of the same row of all else */
    uint8_t adds; /* inputs to whose gradients its backward can add, a bit each */
    bool scales;  /* its backward gives dz and dm of the linears' results that it reads */
    int8_t rows;  /* the output that it can put into e4m3 as it makes it; TSR_NONE */
    tsr_status (*forward)(const tsr_pass *pass, const tsr_step *step);
    tsr_status (*backward)(const tsr_pass *pass, const tsr_step *step);
    void (*needs)(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits);
    void (*cost)(const tsr_costing *costing, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass);
    /* Bytes for the largest micro-batch, either way; NULL: none. */
    uint64_t (*workspace)(const tsr_node *node, const tsr_matrix_traits *traits,
                          const tsr_kernels *kernels, tsr_attention_bounds bounds);
};

/* The bounds of a run with the heads of an attention node. */
tsr_attention_bounds tsr_attention_bounds_of(const tsr_node *node, tsr_attention_bounds bounds);

extern const tsr_node_kind tsr_node_norm, tsr_node_linear, tsr_node_rope, tsr_node_attention,
    tsr_node_glu, tsr_node_gain, tsr_node_inputs, tsr_node_route, tsr_node_experts,
    tsr_node_combine, tsr_node_sum, tsr_node_convolution, tsr_node_delta_rule, tsr_node_gated_norm,
    tsr_node_split, tsr_node_gate, tsr_node_columns, tsr_node_latent;
#endif
