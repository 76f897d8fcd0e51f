/*
 * node_inputs.c: what every layer takes of the tokens beside the residual stream (kernels/layer_inputs.h).
 */
#include "base/dtype.h"
#include "model/node_parts.h"
#include "model/work_parts.h"

static int64_t width_of(const tsr_pass *p, const tsr_node *node)
{
    return (int64_t)p->block->value[node->out[0]].width / node->spec.inputs.layers;
}

/* As Transformers has it: a number of the weights' dtype. */
static float row_scale(const tsr_pass *p, const tsr_node *node)
{
    float scale = node->spec.inputs.row_scale;
    return p->context->dtype == TSR_BF16 ? tsr_bf16_to_f32(tsr_f32_to_bf16(scale)) : scale;
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output y = tsr_pass_output(p, node->in[0]);
    return p->context->kernels->layer_inputs(
        p->context->stream, &(tsr_layer_inputs_args){.z = y.z,
                                                     .g = y.g,
                                                     .bias = y.bias,
                                                     .w = p->vector[node->weight[0]],
                                                     .rows = p->batch->layer_rows,
                                                     .out = p->value[node->out[0]],
                                                     .tokens = p->batch->tokens,
                                                     .width = width_of(p, node),
                                                     .layers = node->spec.inputs.layers,
                                                     .eps = node->spec.inputs.eps,
                                                     .scale = node->spec.inputs.scale,
                                                     .row_scale = row_scale(p, node),
                                                     .sum_scale = node->spec.inputs.sum_scale,
                                                     .rows_dtype = p->batch->layer_rows_dtype,
                                                     .dtype = p->context->dtype});
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output y = tsr_pass_output(p, node->in[0]);
    return p->context->kernels->layer_inputs_backward(
        p->context->stream,
        &(tsr_layer_inputs_backward_args){.dout = p->gradient[node->out[0]],
                                          .z = y.z,
                                          .g = y.g,
                                          .bias = y.bias,
                                          .w = p->vector[node->weight[0]],
                                          .dy = p->gradient[node->in[0]],
                                          .tokens = p->batch->tokens,
                                          .width = width_of(p, node),
                                          .layers = node->spec.inputs.layers,
                                          .eps = node->spec.inputs.eps,
                                          .scale = node->spec.inputs.scale,
                                          .sum_scale = node->spec.inputs.sum_scale,
                                          .dtype = p->context->dtype});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    tsr_needs_read(out, node->in[0]);
}

/* z and the rows are read, all of it is written; back dout and z are read. */
static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    (void)step;
    tsr_cost_bytes(c,
                   pass == TSR_PASS_BACKWARD ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                   3 * tsr_cost_column(c) * tsr_cost_width(c, node->out[0]));
}

const tsr_node_kind tsr_node_inputs = {.name = "inputs",
                                       .rows = TSR_NONE,
                                       .forward = forward,
                                       .backward = backward,
                                       .needs = needs,
                                       .cost = cost};
