/*
 * node_gated_norm.c: norm(x) silu(z) of each head (kernels/gated_norm.h).
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

static int32_t heads_of(const tsr_pass *p, const tsr_node *node)
{
    return (int32_t)p->block->value[node->out[0]].width / node->spec.gated_norm.head_dim;
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output gate = tsr_pass_output(p, node->in[1]);
    return p->context->kernels->gated_norm(
        p->context->stream, &(tsr_gated_norm_args){.x = p->value[node->in[0]],
                                                   .z = gate.z,
                                                   .g = gate.g,
                                                   .w = p->vector[node->weight[0]],
                                                   .out = p->value[node->out[0]],
                                                   .tokens = p->context->tokens,
                                                   .heads = heads_of(p, node),
                                                   .width = node->spec.gated_norm.head_dim,
                                                   .eps = node->spec.gated_norm.eps,
                                                   .dtype = p->context->dtype});
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output gate = tsr_pass_output(p, node->in[1]);
    return p->context->kernels->gated_norm_backward(
        p->context->stream, &(tsr_gated_norm_backward_args){.dout = p->gradient[node->out[0]],
                                                            .x = p->value[node->in[0]],
                                                            .z = gate.z,
                                                            .g = gate.g,
                                                            .w = p->vector[node->weight[0]],
                                                            .dx = p->gradient[node->in[0]],
                                                            .dy = p->gradient[node->in[1]],
                                                            .tokens = p->context->tokens,
                                                            .heads = heads_of(p, node),
                                                            .width = node->spec.gated_norm.head_dim,
                                                            .eps = node->spec.gated_norm.eps,
                                                            .dtype = p->context->dtype});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    tsr_needs_read(out, node->in[0]);
    tsr_needs_read(out, node->in[1]);
    tsr_needs_over(out, node->out[0], node->in[0]);
    tsr_needs_share(out, node->in[0], node->out[0], true);
}

/* Three are read or written forward, five back. */
static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    bool backward = pass == TSR_PASS_BACKWARD;
    (void)step;
    tsr_cost_bytes(c, backward ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                   (backward ? 5 : 3) * tsr_cost_column(c) * tsr_cost_width(c, node->out[0]));
}

const tsr_node_kind tsr_node_gated_norm = {.name = "gated norm",
                                           .row_wise = true,
                                           .rows = TSR_NONE,
                                           .forward = forward,
                                           .backward = backward,
                                           .needs = needs,
                                           .cost = cost};
