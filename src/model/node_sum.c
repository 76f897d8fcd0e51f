/*
 * node_sum.c: y = x + g z + bias, beside the residual stream. Both have the gradient of y, where it lies: a linear that
 * made z scales it itself.
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output z = tsr_pass_output(p, node->in[1]);
    return p->context->kernels->rms_norm(
        p->context->stream, &(tsr_rms_norm_args){.x = p->value[node->in[0]],
                                                 .z = z.z,
                                                 .g = z.g,
                                                 .bias = z.bias,
                                                 .x_out = p->value[node->out[0]],
                                                 .tokens = p->context->tokens,
                                                 .d = (int64_t)p->block->value[node->out[0]].width,
                                                 .dtype = p->context->dtype});
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    for (int i = 0; i < 2; i++)
        if (step->inputs & 1u << i && p->gradient[node->in[i]] != p->gradient[node->out[0]])
            return tsr_fail(TSR_EINTERNAL, "the gradient of a sum lies elsewhere than its terms'");
    return TSR_OK;
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    for (int i = 0; i < 2; i++)
        tsr_needs_share(out, node->in[i], node->out[0], true);
    tsr_needs_over(out, node->out[0], node->in[0]);
}

static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    (void)step;
    if (pass != TSR_PASS_BACKWARD)
        tsr_cost_bytes(c, TSR_WORK_MEMORY_FORWARD,
                       3 * tsr_cost_column(c) * tsr_cost_width(c, node->out[0]));
}

const tsr_node_kind tsr_node_sum = {.name = "sum",
                                    .row_wise = true,
                                    .rows = TSR_NONE,
                                    .forward = forward,
                                    .backward = backward,
                                    .needs = needs,
                                    .cost = cost};
