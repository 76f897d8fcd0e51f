/*
 * node_attention.c: causal attention within documents (kernels/attention.h). Its weight, where it has one, are the
 * sinks of its heads.
 */
#include "base/checked.h"
#include "model/attention_shared.h"
#include "model/node_parts.h"
#include "model/work_parts.h"

#include <math.h>

static int64_t all_tokens(const tsr_pass *p)
{
    return p->batch->all_tokens ? p->batch->all_tokens : p->batch->tokens;
}

/* Without the first `taken` bytes of the workspace. */
static tsr_attention_shape shape_of(const tsr_pass *p, const tsr_node *node, uint64_t taken)
{
    const tsr_attention_spec *spec = &node->spec.attention;
    tsr_frozen none = {0};
    return (tsr_attention_shape){.cu_seqlens = p->batch->cu_seqlens,
                                 .workspace = (char *)p->workspace + taken,
                                 .workspace_bytes = p->workspace_bytes - taken,
                                 .tokens = all_tokens(p),
                                 .documents = p->batch->documents,
                                 .q_heads = spec->q_heads,
                                 .kv_heads = spec->kv_heads,
                                 .head_dim = spec->head_dim,
                                 .v_dim = spec->v_dim,
                                 .window = spec->window,
                                 .scale = spec->scale,
                                 .sinks = node->weight[0] == TSR_NONE ? none
                                                                      : p->vector[node->weight[0]],
                                 .softcap = spec->softcap,
                                 .spans = tsr_context_spans(p->batch->shared),
                                 .dtype = p->context->dtype};
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    const tsr_attention_args args = {.q = p->value[node->in[0]],
                                     .k = p->value[node->in[1]],
                                     .v = p->value[node->in[2]],
                                     .o = p->value[node->out[TSR_ATTENTION_O]],
                                     .lse = p->value[node->out[TSR_ATTENTION_LSE]],
                                     .shape = shape_of(p, node, 0)};
    return p->batch->shared ? tsr_attention_shared(p, node, &args)
                            : p->context->kernels->attention(p->context->stream, &args);
}

/* Columns of a token of keys, or of values. */
static int64_t width_of(const tsr_attention_spec *spec, bool values)
{
    return (int64_t)spec->kv_heads *
           (values ? tsr_attention_v_dim(spec->v_dim, spec->head_dim) : spec->head_dim);
}

/* Of keys or values that other layers have a gradient of already: one more's, until it is added. */
static uint64_t extra_bytes(const tsr_attention_spec *spec, int64_t tokens, tsr_dtype dtype)
{
    int64_t keys = width_of(spec, false), values = width_of(spec, true);
    uint64_t width = (uint64_t)(keys > values ? keys : values);
    return spec->shared
               ? tsr_align_up((uint64_t)tokens * width * tsr_dtype_bytes(dtype), TSR_ALIGNMENT)
               : 0;
}

static tsr_status add(const tsr_pass *p, int64_t width, void *sum, const void *one)
{
    return p->context->kernels->rms_norm(p->context->stream,
                                         &(tsr_rms_norm_args){.x = sum,
                                                              .z = one,
                                                              .x_out = sum,
                                                              .tokens = p->batch->tokens,
                                                              .d = width,
                                                              .dtype = p->context->dtype});
}

static tsr_attention_backward_args backward_args(const tsr_pass *p, const tsr_node *node,
                                                 void *const d[3], uint64_t taken)
{
    return (tsr_attention_backward_args){.q = p->value[node->in[0]],
                                         .k = p->value[node->in[1]],
                                         .v = p->value[node->in[2]],
                                         .o = p->value[node->out[TSR_ATTENTION_O]],
                                         .d_o = p->gradient[node->out[TSR_ATTENTION_O]],
                                         .lse = p->value[node->out[TSR_ATTENTION_LSE]],
                                         .dq = d[0],
                                         .dk = d[1],
                                         .dv = d[2],
                                         .shape = shape_of(p, node, taken)};
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    const tsr_attention_spec *spec = &node->spec.attention;
    /* Of the longest micro-batch: what follows lies at the same place on all ranks. */
    uint64_t extra =
        extra_bytes(spec, tsr_attention_own_tokens(&p->batch->attention), p->context->dtype);
    void *d[3];
    for (int i = 0; i < 3; i++)
        d[i] = step->adds & 1u << i ? (char *)p->workspace + (uint64_t)(i - 1) * extra
                                    : p->gradient[node->in[i]];
    tsr_attention_backward_args args = backward_args(p, node, d, 2 * extra);
    TSR_TRY(p->batch->shared ? tsr_attention_shared_backward(p, node, &args)
                             : p->context->kernels->attention_backward(p->context->stream, &args));
    for (int i = 1; i < 3; i++)
        if (step->adds & 1u << i)
            TSR_TRY(add(p, width_of(spec, i == 2), p->gradient[node->in[i]], d[i]));
    return TSR_OK;
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    for (int i = 0; i < 3; i++)
        tsr_needs_read(out, node->in[i]);
    tsr_needs_read(out, node->out[TSR_ATTENTION_O]);
    tsr_needs_read(out, node->out[TSR_ATTENTION_LSE]);
}

tsr_attention_bounds tsr_attention_bounds_of(const tsr_node *node, tsr_attention_bounds bounds)
{
    bounds.q_heads = node->spec.attention.q_heads;
    bounds.kv_heads = node->spec.attention.kv_heads;
    bounds.head_dim = node->spec.attention.head_dim;
    bounds.v_dim = node->spec.attention.v_dim;
    bounds.softcap = node->spec.attention.softcap;
    return bounds;
}

static uint64_t workspace(const tsr_node *node, const tsr_matrix_traits *traits,
                          const tsr_kernels *kernels, tsr_attention_bounds bounds)
{
    (void)traits;
    uint64_t extra =
        extra_bytes(&node->spec.attention, tsr_attention_own_tokens(&bounds), bounds.dtype);
    bounds = tsr_attention_bounds_of(node, bounds);
    /* A run has short micro-batches too, which are not shared. */
    uint64_t alone = kernels->attention_workspace_bytes(&bounds);
    uint64_t shared = tsr_attention_shared_bytes(kernels, &bounds);
    return (bounds.train ? 2 * extra : 0) + (shared > alone ? shared : alone);
}

/* Columns of a token in the exchange of a shared micro-batch. */
typedef struct {
    double arrive; /* of every row that is another rank's, for each group of heads */
    double leave;  /* after it: results, or sums of dq, of which each part arrives twice */
    double copied; /* of own rows, to be sent and where they have come */
} shared_columns;

/* Of both ways (model/attention_shared.h). q, k, v, o: all columns, the rest are those of lse or delta, and of sums of dq. */
static shared_columns sharing_of(const tsr_work_layer *l, bool backward, double q, double k,
                                 double v, double o, double heads, double sums)
{
    double results = backward ? q + k + v : o, ranks = l->head_ranks;
    double rows = backward ? q + k + v + o + 2 * heads : k + v;
    double turns = backward ? q + k + v + o + heads : q + k + v;
    if (ranks > 0)
        return (shared_columns){turns / ranks, results / ranks, turns + results};
    return (shared_columns){rows, backward ? 2 * sums : 0, rows + (backward ? results : q + o)};
}

/* For each group of heads what arrives and what leaves, beside the attention of other groups. */
static void cost_sharing(const tsr_costing *c, shared_columns columns, const tsr_work_op *attention)
{
    const tsr_work_layer *l = c->layer;
    const tsr_work_amount none = {0, 0};
    /* Of own heads even a rank without rows gets those of others. */
    double rows = l->head_ranks > 0 ? l->all_tokens / l->head_ranks : l->tokens;
    double others = (l->all_tokens - rows) * l->element;
    tsr_cost_both(c, attention->term, TSR_WORK_STREAM, none,
                  (tsr_work_amount){0, 2 * tsr_cost_column(c) * columns.copied});
    const tsr_work_op op = {.term = c->again ? TSR_WORK_RECOMPUTE : attention->term,
                            .kind = TSR_WORK_EXCHANGE,
                            .here = {0, others * (columns.arrive + columns.leave)},
                            .calls = l->head_groups * (columns.leave > 0 ? 2 : 1),
                            .beside = attention,
                            .parts = l->head_groups};
    c->call(c->user, &op);
}

/* Two matmuls of the visible pairs forward, five backward; q, k, v and o once, and their gradients. */
static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    bool backward = pass == TSR_PASS_BACKWARD;
    double q = tsr_cost_width(c, node->in[0]), k = tsr_cost_width(c, node->in[1]);
    double v = tsr_cost_width(c, node->in[2]), o = tsr_cost_width(c, node->out[TSR_ATTENTION_O]);
    double pair = 2 * (backward ? 3 * q + 2 * o : q + o),
           bytes = (backward ? 2 : 1) * tsr_cost_column(c) * (q + k + v + o);
    double here = c->layer->pairs_here > 0 ? c->layer->pairs_here : c->layer->pairs;
    tsr_work_term term = backward ? TSR_WORK_ATTENTION_BACKWARD : TSR_WORK_ATTENTION_FORWARD;
    double lse = node->spec.attention.q_heads * sizeof(float) / c->layer->element;
    (void)step;
    if (backward && c->layer->pairs_back > 0)
        here = c->layer->pairs_back;
    const tsr_work_op attention = {.term = term,
                                   .kind = backward ? TSR_WORK_ATTEND_BACK : TSR_WORK_ATTEND,
                                   .least = {pair * c->layer->pairs, bytes},
                                   .here = {pair * here, bytes}};
    /* delta and lse are one fp32 a head, sums of dq one an element. */
    double sums = c->layer->adds_dq ? q * sizeof(float) / c->layer->element : 0;
    if (c->layer->all_tokens > 0)
        cost_sharing(c, sharing_of(c->layer, backward, q, k, v, o, lse, sums), &attention);
    tsr_cost_both(c, term, attention.kind, attention.least, attention.here);
}

const tsr_node_kind tsr_node_attention = {.name = "attention",
                                          .adds = TSR_NODE_ALL_PORTS,
                                          .rows = TSR_NONE,
                                          .forward = forward,
                                          .backward = backward,
                                          .needs = needs,
                                          .cost = cost,
                                          .workspace = workspace};
