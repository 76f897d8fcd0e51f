/*
 * node_delta_rule.c: the gated delta rule within documents (kernels/delta_rule.h). Its backward computes the states
 * again: they are larger than all that it reads.
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

enum { MIXED, BETA, DECAY };
enum { A_LOG, DT_BIAS };

static tsr_delta_rule_inputs inputs_of(const tsr_pass *p, const tsr_node *node)
{
    tsr_output b = tsr_pass_output(p, node->in[BETA]), a = tsr_pass_output(p, node->in[DECAY]);
    return (tsr_delta_rule_inputs){.mixed = p->value[node->in[MIXED]],
                                   .b = b.z,
                                   .a = a.z,
                                   .g_b = b.g,
                                   .g_a = a.g,
                                   .a_log = p->vector[node->weight[A_LOG]],
                                   .dt_bias = p->vector[node->weight[DT_BIAS]]};
}

static tsr_delta_rule_shape shape_of(const tsr_pass *p, const tsr_delta_rule_spec *spec)
{
    return (tsr_delta_rule_shape){.cu_seqlens = p->batch->cu_seqlens,
                                  .workspace = p->workspace,
                                  .workspace_bytes = p->workspace_bytes,
                                  .tokens = p->batch->tokens,
                                  .documents = p->batch->documents,
                                  .key_heads = spec->key_heads,
                                  .value_heads = spec->value_heads,
                                  .key_dim = spec->key_dim,
                                  .value_dim = spec->value_dim,
                                  .dtype = p->context->dtype};
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    return p->context->kernels->delta_rule(
        p->context->stream, &(tsr_delta_rule_args){.in = inputs_of(p, node),
                                                   .o = p->value[node->out[0]],
                                                   .shape = shape_of(p, &node->spec.delta_rule)});
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    return p->context->kernels->delta_rule_backward(
        p->context->stream,
        &(tsr_delta_rule_backward_args){.in = inputs_of(p, node),
                                        .d_o = p->gradient[node->out[0]],
                                        .d_mixed = p->gradient[node->in[MIXED]],
                                        .d_b = p->gradient[node->in[BETA]],
                                        .d_a = p->gradient[node->in[DECAY]],
                                        .shape = shape_of(p, &node->spec.delta_rule)});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    for (int i = 0; i < 3; i++)
        tsr_needs_read(out, node->in[i]);
}

static uint64_t workspace(const tsr_node *node, const tsr_matrix_traits *traits,
                          const tsr_kernels *kernels, tsr_attention_bounds bounds)
{
    (void)traits;
    const tsr_delta_rule_spec *spec = &node->spec.delta_rule;
    return kernels->delta_rule_workspace_bytes(
        &(tsr_delta_rule_bounds){.tokens = tsr_attention_own_tokens(&bounds),
                                 .documents = bounds.documents,
                                 .longest = bounds.longest,
                                 .key_heads = spec->key_heads,
                                 .value_heads = spec->value_heads,
                                 .key_dim = spec->key_dim,
                                 .value_dim = spec->value_dim,
                                 .dtype = bounds.dtype,
                                 .train = bounds.train});
}

/* For each token and value head: what it reads of the state and writes to it, 4 dk dv, and the half of its chunk that it
 * sees, with queries, keys and values. Three times as much back. */
static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    const tsr_delta_rule_spec *s = &node->spec.delta_rule;
    bool backward = pass == TSR_PASS_BACKWARD;
    double dk = (double)s->key_dim, dv = (double)s->value_dim;
    double mixed = tsr_cost_width(c, node->in[MIXED]), o = tsr_cost_width(c, node->out[0]);
    double flops = (double)s->value_heads * (6 * dk * dv + TSR_DELTA_CHUNK * (2 * dk + 2 * dv));
    const tsr_work_amount work = {(backward ? 3 : 1) * flops * c->layer->tokens,
                                  (backward ? 2 : 1) * tsr_cost_column(c) * (mixed + o)};
    (void)step;
    tsr_cost_both(c, backward ? TSR_WORK_ATTENTION_BACKWARD : TSR_WORK_ATTENTION_FORWARD,
                  backward ? TSR_WORK_ATTEND_BACK : TSR_WORK_ATTEND, work, work);
}

const tsr_node_kind tsr_node_delta_rule = {.name = "delta rule",
                                           .rows = TSR_NONE,
                                           .forward = forward,
                                           .backward = backward,
                                           .needs = needs,
                                           .cost = cost,
                                           .workspace = workspace};
