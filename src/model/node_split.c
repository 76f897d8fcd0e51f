/*
 * node_split.c: the halves of the heads of a linear's result (kernels/gate.h).
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

static int64_t width_of(const tsr_pass *p, const tsr_node *node)
{
    return (int64_t)p->block->value[node->out[0]].width / node->spec.split.heads;
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output y = tsr_pass_output(p, node->in[0]);
    return p->context->kernels->split_heads(
        p->context->stream, &(tsr_split_heads_args){.z = y.z,
                                                    .g = y.g,
                                                    .bias = y.bias,
                                                    .first = p->value[node->out[0]],
                                                    .second = p->value[node->out[1]],
                                                    .tokens = p->context->tokens,
                                                    .heads = node->spec.split.heads,
                                                    .width = width_of(p, node),
                                                    .dtype = p->context->dtype});
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    return p->context->kernels->split_heads_backward(
        p->context->stream, &(tsr_split_heads_backward_args){.first = p->gradient[node->out[0]],
                                                             .second = p->gradient[node->out[1]],
                                                             .dy = p->gradient[node->in[0]],
                                                             .tokens = p->context->tokens,
                                                             .heads = node->spec.split.heads,
                                                             .width = width_of(p, node),
                                                             .dtype = p->context->dtype});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)out;
    (void)block;
    (void)node;
    (void)traits;
}

static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    (void)step;
    tsr_cost_bytes(c,
                   pass == TSR_PASS_BACKWARD ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                   4 * tsr_cost_column(c) * tsr_cost_width(c, node->out[0]));
}

const tsr_node_kind tsr_node_split = {.name = "split",
                                      .row_wise = true,
                                      .rows = TSR_NONE,
                                      .forward = forward,
                                      .backward = backward,
                                      .needs = needs,
                                      .cost = cost};
