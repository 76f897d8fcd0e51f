/*
 * node_combine.c: the experts' down, and the sum over the experts of each token with their weights (kernels/combine.h).
 *
 * What down makes is not kept: the gradient of the weights is <act, W^T dy>. The backward leaves dact = W^T dy without the weights,
 * and of their gradient what the biases make; the unit below does the rest (node_glu.c).
 */
#include "base/checked.h"
#include "model/expert_parts.h"

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_expert_work work = tsr_expert_work_begin(p, node, node->in[TSR_COMBINE_ROUTES]);
    TSR_TRY(tsr_expert_forward(&work, work.rest, p->value[node->in[TSR_COMBINE_ROWS]],
                               p->value[node->in[TSR_COMBINE_P]]));
    return p->context->kernels->combine(p->context->stream,
                                        &(tsr_combine_args){.y = p->value[node->out[0]],
                                                            .z = work.rest,
                                                            .p = p->value[node->in[TSR_COMBINE_P]],
                                                            .row = work.routes.row,
                                                            .tokens = p->context->tokens,
                                                            .k = node->spec.experts.chosen,
                                                            .h = node->spec.experts.out,
                                                            .dtype = p->context->dtype});
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    const tsr_experts_spec *spec = &node->spec.experts;
    tsr_expert_work work = tsr_expert_work_begin(p, node, node->in[TSR_COMBINE_ROUTES]);
    const void *dy = p->gradient[node->out[0]];
    void *dact = p->gradient[node->in[TSR_COMBINE_ROWS]];
    if (work.stack->r)
        TSR_TRY(tsr_expert_adapters(&work, p->value[node->in[TSR_COMBINE_ROWS]], dy,
                                    p->value[node->in[TSR_COMBINE_P]]));
    if (!(step->inputs & 1u << TSR_COMBINE_ROWS))
        return TSR_OK;
    TSR_TRY(tsr_expert_backward(&work, dact, dy, true));
    if (!work.stack->bias.data)
        return TSR_OK;
    return p->context->kernels->combine_backward(
        p->context->stream, &(tsr_combine_backward_args){.dp = p->gradient[node->in[TSR_COMBINE_P]],
                                                         .id = work.routes.id,
                                                         .row = work.routes.row,
                                                         .bias = work.stack->bias,
                                                         .dy = dy,
                                                         .tokens = p->context->tokens,
                                                         .k = spec->chosen,
                                                         .h = spec->out,
                                                         .dtype = p->context->dtype});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    tsr_needs_read(out, node->in[TSR_COMBINE_ROUTES]);
    if (!traits[tsr_stack_weight(node->weight[0])].r)
        return;
    tsr_needs_read(out, node->in[TSR_COMBINE_ROWS]);
    tsr_needs_read(out, node->in[TSR_COMBINE_P]);
    tsr_needs_read(out, block->stack[node->weight[0]].low);
}

static uint64_t workspace(const tsr_node *node, const tsr_matrix_traits *traits,
                          const tsr_kernels *kernels, tsr_attention_bounds bounds)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    uint64_t rows =
        tsr_expert_rows_bytes(node, tsr_attention_own_tokens(&bounds), spec->out, bounds.dtype);
    uint64_t low = tsr_expert_low_bytes(node, traits, bounds, 2);
    (void)kernels;
    return tsr_expert_taken_bytes(node, tsr_attention_own_tokens(&bounds), traits, bounds.dtype) +
           (rows > low ? rows : low);
}

static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    double rows = tsr_cost_column(c) * spec->chosen;
    tsr_cost_experts(c, node, pass, step->inputs & 1u << TSR_COMBINE_ROWS);
    if (pass != TSR_PASS_BACKWARD)
        tsr_cost_both(c, TSR_WORK_MEMORY_FORWARD, TSR_WORK_STREAM,
                      (tsr_work_amount){0, tsr_cost_column(c) * (double)spec->out},
                      (tsr_work_amount){0, (rows + tsr_cost_column(c)) * (double)spec->out});
}

const tsr_node_kind tsr_node_combine = {.name = "combine",
                                        .row_wise = true,
                                        .rows = TSR_NONE,
                                        .forward = forward,
                                        .backward = backward,
                                        .needs = needs,
                                        .cost = cost,
                                        .workspace = workspace};
