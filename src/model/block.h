/*
 * model/block.h: one layer of a model as data: its weights, the values that pass between its nodes, and the
 * nodes, in the order of the forward.
 *
 * An arch file (model/arch/) writes a layer down once, with the calls below. Everything else follows from that
 * description: which tensors the layer has on disk and in memory (model/layout.h), its forward, backward and
 * recomputation (model/layer.h), which values live how long (model/program.h), what a step costs (model/work.h).
 *
 * The residual stream enters a block as a sum that is not added up yet: x and what the block before left pending
 * for it. It leaves the block in the same way, so that the addition is fused into the norm that comes next.
 *
 * Building does not fail call by call: what does not fit is left out, and tsr_block_end reports it.
 */
#ifndef TSR_MODEL_BLOCK_H
#define TSR_MODEL_BLOCK_H

#include "base/status.h"
#include "kernels/activation.h"
#include "kernels/route.h"

#include <stdbool.h>
#include <stdint.h>

#define TSR_BLOCK_NODES    48
#define TSR_BLOCK_VALUES   128
#define TSR_BLOCK_MATRICES 24
#define TSR_BLOCK_VECTORS  24
#define TSR_BLOCK_STACKS   2
#define TSR_BLOCK_WEIGHTS  (TSR_BLOCK_MATRICES + TSR_BLOCK_STACKS) /* that may have adapters */
#define TSR_NODE_PORTS     4
#define TSR_SHARED_SLOTS   8 /* of a model: what layers leave to layers further up */
#define TSR_NONE           (-1)

/* A frozen weight [out, in] with an optional bias; it may have an adapter. */
typedef struct {
    const char *name; /* of the module, below the layer: "self_attn.q_proj" */
    uint64_t out, in;
    bool bias;
    bool of_model; /* the module is the model's: the name is below "model" */
    bool router;   /* it has no adapter */
    int16_t node;  /* that multiplies with it */
    /* Its values: the result, which may still lack magnitude and bias; x A^T; and, where the adapter composes
     * its output (adapters/linear.h), the product before that. */
    int16_t result, low, inner;
} tsr_matrix;

/* The checkpoints' names for the parts of a stack, below the layer; NULL: no checkpoint has them in that form. %d is the
 * expert's number. */
typedef struct {
    const char
        *one[2]; /* each expert's parts: "mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj" */
    const char *fused; /* all in one tensor [experts, out, in]: "mlp.experts.gate_up_proj" */
    bool transposed;   /* which is [experts, in, out], its columns of two parts by turns */
    const char *bias;  /* [experts, out], by turns as well */
} tsr_stack_names;

/* Frozen weights of all experts, [experts, out, in]: a matrix for each expert, or two of the same size, one after the other
 * (gate and up). Each expert may have an adapter. Every matrix is quantized on its own. */
typedef struct {
    const char
        *name; /* of the parameter in Transformers, below the layer: "mlp.experts.gate_up_proj" */
    const tsr_stack_names *files; /* static */
    uint64_t experts, out, in;
    int parts; /* 1 or 2 */
    bool bias;
    int16_t node; /* that multiplies with it */
    int16_t low;  /* the value s x A^T, of each expert of a token; of a combine times its weight */
} tsr_stack;

static inline uint64_t tsr_stack_matrices(const tsr_stack *stack)
{
    return stack->experts * (uint64_t)stack->parts;
}

/* A frozen vector, the tensor "<layer>.<name>.weight"; with `rows` a matrix [rows, count] that is never
 * quantized; with taps [count / taps, 1, taps], of a convolution. */
typedef struct {
    const char *name;
    uint64_t count, rows;
    bool bare;     /* the tensor is "<layer>.<name>" */
    bool wide;     /* kept in fp32, whatever it is stored as */
    float divisor; /* what is used is w / divisor; 0: w */
    bool plus_one; /* what is used is 1 + w (Gemma) */
    bool of_model; /* as of a matrix */
    bool one;      /* the tensor is "<layer>.<name>" and has one element, which stands for all */
    uint64_t taps; /* 0: it is [count] */
} tsr_vector;

/* What passes between nodes: [tokens, width] of the compute dtype, or a statistic in fp32. */
typedef struct {
    const char *name, *why; /* as the plan prints it: "h", "the normed input of attention" */
    uint64_t width;
    uint64_t rows;  /* of a token, of width / rows each: one for each of its experts; 0: 1 */
    uint64_t fixed; /* elements beside those of the tokens */
    bool statistic;
    bool index;     /* int32, in a statistic's place: it has no gradient */
    int16_t node;   /* that makes it; TSR_NONE: it enters the block */
    int16_t matrix; /* that it belongs to, or TSR_NONE */
    int16_t stack;  /* whose low it is, or TSR_NONE */
    int16_t slot;   /* shared with other layers in this slot, or TSR_NONE */
    bool of_layer;  /* what is taken from the slot is the part of the layer that takes it */
} tsr_value;

typedef struct tsr_node_kind tsr_node_kind; /* model/node.h */

/* scale: of what is added; 0: 1. head_dim: each head is normed on its own, without a weight; 0: the whole. */
typedef struct {
    float eps, scale;
    int32_t head_dim;
} tsr_norm_spec;

/* As in kernels/layer_inputs.h. */
typedef struct {
    int32_t layers;
    float eps, scale, row_scale, sum_scale;
} tsr_inputs_spec;

/* head_norm_eps: of the norms of q and k, where the node has them. table: of the model's (config.rope). */
typedef struct {
    int32_t q_heads, kv_heads, head_dim; /* kv_heads 0: q alone */
    float head_norm_eps;
    int32_t table;
    bool own_queries; /* q has the table of queries */
    int32_t rotary_dim;
    bool neighbours; /* as in kernels/rope_tables.h */
} tsr_rope_spec;

/* As in kernels/latent_qkv.h; table: of the model's. */
typedef struct {
    int32_t heads, nope_dim, rope_dim, v_dim;
    int32_t table;
    bool neighbours;
} tsr_latent_spec;

/* v_dim: of the heads of values; 0: head_dim. */
typedef struct {
    int32_t q_heads, kv_heads, head_dim;
    int32_t window; /* a token sees itself and window - 1 before it; 0: all before it */
    float scale;    /* of the scores; 0: 1 / sqrt(head_dim) */
    float softcap;  /* c: the scores become c tanh(score / c); 0: they stay */
    bool shared;    /* other layers read its keys and values too; set by tsr_block_attention */
    int32_t v_dim;
} tsr_attention_spec;

typedef struct {
    tsr_activation activation;
    int32_t chosen, experts; /* of experts' rows: of a token; of a layer */
    bool biased;             /* what comes next has biases: it begins the gradient of p */
} tsr_glu_spec;

/* tsr_routing (kernels/route.h) without what it points to. */
typedef struct {
    int32_t experts, chosen; /* E, k */
    tsr_route_scoring scoring;
    bool normalise;
    int32_t groups, chosen_groups; /* 0: no groups */
    float scale;
} tsr_route_spec;

/* Of a stack's node. */
typedef struct {
    int32_t experts, chosen;
    int64_t out, in;
} tsr_experts_spec;

typedef struct {
    int32_t taps;
} tsr_convolution_spec;

typedef struct {
    int32_t key_heads, value_heads, key_dim, value_dim;
} tsr_delta_rule_spec;

typedef struct {
    float eps;
    int32_t head_dim;
} tsr_gated_norm_spec;

typedef struct {
    int32_t heads;
} tsr_split_spec;

/* in, out: values; weight: matrices of a linear node, stacks of one of experts, vectors of any other; TSR_NONE where there is none. Which
 * port is what, each kind says (node.h). */
typedef struct {
    const tsr_node_kind *kind;
    int16_t in[TSR_NODE_PORTS], out[TSR_NODE_PORTS], weight[TSR_NODE_PORTS];
    union {
        tsr_norm_spec norm;
        tsr_rope_spec rope;
        tsr_attention_spec attention;
        tsr_glu_spec glu;
        tsr_inputs_spec inputs;
        tsr_latent_spec latent;
        tsr_route_spec route;
        tsr_experts_spec experts;
        tsr_convolution_spec convolution;
        tsr_delta_rule_spec delta_rule;
        tsr_gated_norm_spec gated_norm;
        tsr_split_spec split;
    } spec;
} tsr_node;

/* x + pending; pending TSR_NONE: nothing is. */
typedef struct {
    int16_t x, pending;
} tsr_residual;

typedef struct {
    tsr_node node[TSR_BLOCK_NODES];
    tsr_value value[TSR_BLOCK_VALUES];
    tsr_matrix matrix[TSR_BLOCK_MATRICES];
    tsr_vector vector[TSR_BLOCK_VECTORS];
    tsr_stack stack[TSR_BLOCK_STACKS];
    int node_count, value_count, matrix_count, vector_count, stack_count;
    uint64_t width; /* of the residual stream */
    bool plus_one;  /* all of its norms multiply by 1 + w */
    tsr_residual in, out;
    int16_t root; /* the first sum of the residual stream: all of the block can be made from it */
    const char *fault; /* what is wrong with it; NULL: nothing */
} tsr_block;

/* ---- building; names and reasons are literals ---- */

/* Begins a block on a residual stream of `width`; *out is written. */
tsr_residual tsr_block_begin(tsr_block *out, uint64_t width);

/* Adds up the residual stream, r becomes the sum, and returns its RMSNorm with the weight `name`. x, h: what the
 * sum and the norm are called. */
typedef struct {
    const char *name, *why;
} tsr_value_name;

int16_t tsr_block_norm(tsr_block *block, tsr_residual *r, const char *name, float eps,
                       tsr_value_name x, tsr_value_name h);

/* The RMSNorm of a linear's result, with the weight `name`. */
int16_t tsr_block_norm_of(tsr_block *block, int16_t value, const char *name, float eps,
                          tsr_value_name h);

/* scale times a linear's result. */
int16_t tsr_block_scale(tsr_block *block, int16_t value, float scale);

/* Adds up the residual stream; returns the sum, which r becomes. */
int16_t tsr_block_sum(tsr_block *block, tsr_residual *r, tsr_value_name x);

/* Up to TSR_NODE_PORTS linears of one input: out[i] is the result of matrix[i], whose values are filled in. */
void tsr_block_linears(tsr_block *block, int16_t out[], int16_t x, const tsr_matrix *matrix,
                       int count);
int16_t tsr_block_linear(tsr_block *block, int16_t x, const char *name, uint64_t out, bool bias);

/* q, k, v in qkv are replaced by what attention reads: with magnitude, bias, the heads' norms q_norm and k_norm (NULL:
 * none) and, of q and k, the rotation. k and v TSR_NONE: they are columns of the first; with spec->kv_heads 0 there are
 * none. v alone TSR_NONE: it is left as it is. */
void tsr_block_rope(tsr_block *block, int16_t qkv[3], const char *q_norm, const char *k_norm,
                    const tsr_rope_spec *spec);

/* A linear's result in two: its first `width` columns, and the rest. */
void tsr_block_columns(tsr_block *block, int16_t out[2], int16_t value, uint64_t width,
                       const tsr_value_name called[2]);

/* qkv: results of linears, queries and keys with values, and between them the part of keys that all heads share, which a
 * columns made; they are replaced by q, k and v. */
void tsr_block_latent(tsr_block *block, int16_t qkv[3], const tsr_latent_spec *spec);

int16_t tsr_block_attention(tsr_block *block, const int16_t qkv[3], const tsr_attention_spec *spec);

/* The attention that made o has a sink for each of its heads (kernels/attention.h), the vector `name` without
 * ".weight". */
void tsr_block_sinks(tsr_block *block, int16_t o, const char *name);

/* f(gate) up; of one linear's result of which up is the second half: up TSR_NONE. */
int16_t tsr_block_glu(tsr_block *block, int16_t gate, int16_t up, tsr_activation activation);

/* A linear's result, convolved over time with the weight `name` [width, 1, taps], and SiLU. */
int16_t tsr_block_convolution(tsr_block *block, int16_t value, const char *name, int32_t taps);

/* The gated delta rule (kernels/delta_rule.h) of queries, keys and values side by side, with what two linears make of
 * beta and of the decay, and the vectors of the decay. */
int16_t tsr_block_delta_rule(tsr_block *block, const int16_t mixed_beta_decay[3], const char *a_log,
                             const char *dt_bias, const tsr_delta_rule_spec *spec);

/* The RMSNorm of each head with the weight `name`, times SiLU of a linear's result. */
int16_t tsr_block_gated_norm(tsr_block *block, int16_t value, int16_t gate, const char *name,
                             const tsr_gated_norm_spec *spec);

/* The first and second half of each head of a linear's result. */
void tsr_block_split(tsr_block *block, int16_t half[2], int16_t value, int32_t heads,
                     const tsr_value_name called[2]);

/* A value times the sigmoid of another, which has as many columns, or one for each group of columns. */
int16_t tsr_block_gate(tsr_block *block, int16_t value, int16_t gate, tsr_value_name called);

/* The RMSNorm of each head of head_dim columns of a value that no linear made, without a weight. */
int16_t tsr_block_norm_heads(tsr_block *block, int16_t value, uint64_t head_dim, float eps,
                             tsr_value_name h);

/* What all layers take of the tokens beside the residual stream, of each `width` columns one behind the other: a
 * linear's result, normed with the weight `name` of the model, and the rows of a table for each layer
 * (kernels/layer_inputs.h). */
int16_t tsr_block_layer_inputs(tsr_block *block, int16_t value, const char *name,
                               const tsr_inputs_spec *spec);

/* Adds up the residual stream and multiplies it by the vector `name` of one element. */
void tsr_block_gain(tsr_block *block, tsr_residual *r, const char *name);

/* The sum of a value that no linear made and any other, beside the residual stream. */
int16_t tsr_block_plus(tsr_block *block, int16_t value, int16_t other, tsr_value_name y);

/* Puts a value that no linear made into a slot, where layers further up find it; its gradient is the sum of theirs. */
void tsr_block_give(tsr_block *block, int16_t value, int slot);

/* What a layer further down, or a node further up in this one, put into the slot, `width` columns of it: all, or with
 * of_layer those of this layer, where every layer has as many. */
int16_t tsr_block_take(tsr_block *block, int slot, uint64_t width, bool of_layer,
                       tsr_value_name called);

/* Which experts a token of x goes to, and with which weights. */
typedef struct {
    int16_t weights, routes; /* p and what kernels/routes.h has */
} tsr_block_routes;

/* Names of vectors, NULL: none. weight: the router's [experts, width of x]; bias and correction [experts], the latter
 * of the choice alone; expert_scale: factors of the weights. */
typedef struct {
    const char *weight, *bias, *correction, *expert_scale;
} tsr_router_names; /* weight NULL: x are the logits */

tsr_block_routes tsr_block_route(tsr_block *block, int16_t x, const tsr_router_names *names,
                                 const tsr_route_spec *spec);

/* The rows of x of each expert times its matrix of the stack: a row for each expert of each token, sorted by expert. */
int16_t tsr_block_experts(tsr_block *block, int16_t x, const tsr_block_routes *routes,
                          const tsr_stack *stack);

/* f(gate) up of the experts' rows, of which up is the second half, for `down` (tsr_block_combine). */
int16_t tsr_block_routed_glu(tsr_block *block, int16_t rows, const tsr_block_routes *routes,
                             const tsr_stack *down, tsr_activation activation);

/* The same of such rows, summed over the experts of each token with their weights. */
int16_t tsr_block_combine(tsr_block *block, int16_t rows, const tsr_block_routes *routes,
                          const tsr_stack *stack);

/* The residual stream becomes r + value. */
void tsr_block_add(tsr_block *block, tsr_residual *r, int16_t value);

/* TSR_EINTERNAL: the description is not one that can be run; `who` is named. */
tsr_status tsr_block_end(tsr_block *block, tsr_residual r, const char *who);

/* ---- reading ---- */

/* Whether two blocks describe the same layer. */
bool tsr_block_same(const tsr_block *a, const tsr_block *b);

/* Parameters of the experts that a token does not go to. */
uint64_t tsr_block_idle_parameters(const tsr_block *block);

/* What is printed for a value: "q", or "z self_attn.q_proj". */
void tsr_value_print(char *out, uint64_t bytes, const tsr_block *block, int value);

#endif
