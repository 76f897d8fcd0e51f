/*
 * node_gain.c: the residual stream times one factor of the checkpoint, which lies in memory once for each column.
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

static tsr_status multiply(const tsr_pass *p, const tsr_node *node, const void *in, void *out)
{
    return p->context->kernels->rms_norm(
        p->context->stream, &(tsr_rms_norm_args){.z = in,
                                                 .g = p->vector[node->weight[0]].data,
                                                 .x_out = out,
                                                 .tokens = p->context->tokens,
                                                 .d = (int64_t)p->block->value[node->out[0]].width,
                                                 .dtype = p->context->dtype});
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    return multiply(p, node, p->value[node->in[0]], p->value[node->out[0]]);
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    return multiply(p, node, p->gradient[node->out[0]], p->gradient[node->in[0]]);
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    tsr_needs_over(out, node->out[0], node->in[0]);
    tsr_needs_share(out, node->in[0], node->out[0], true);
}

static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    (void)step;
    tsr_cost_bytes(c,
                   pass == TSR_PASS_BACKWARD ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                   2 * tsr_cost_column(c) * tsr_cost_width(c, node->out[0]));
}

const tsr_node_kind tsr_node_gain = {.name = "gain",
                                     .row_wise = true,
                                     .rows = TSR_NONE,
                                     .forward = forward,
                                     .backward = backward,
                                     .needs = needs,
                                     .cost = cost};
