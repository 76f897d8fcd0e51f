/*
 * node_convolution.c: the convolution over time that linear attention begins with (kernels/convolution.h).
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output y = tsr_pass_output(p, node->in[0]);
    return p->context->kernels->convolution(
        p->context->stream,
        &(tsr_convolution_args){.z = y.z,
                                .g = y.g,
                                .w = p->vector[node->weight[0]],
                                .positions = p->batch->positions,
                                .out = p->value[node->out[0]],
                                .tokens = p->batch->tokens,
                                .channels = (int64_t)p->block->value[node->out[0]].width,
                                .taps = node->spec.convolution.taps,
                                .dtype = p->context->dtype});
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output y = tsr_pass_output(p, node->in[0]);
    return p->context->kernels->convolution_backward(
        p->context->stream,
        &(tsr_convolution_backward_args){.dout = p->gradient[node->out[0]],
                                         .z = y.z,
                                         .g = y.g,
                                         .w = p->vector[node->weight[0]],
                                         .positions = p->batch->positions,
                                         .dy = p->gradient[node->in[0]],
                                         .tokens = p->batch->tokens,
                                         .channels = (int64_t)p->block->value[node->out[0]].width,
                                         .taps = node->spec.convolution.taps,
                                         .dtype = p->context->dtype});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    tsr_needs_read(out, node->in[0]);
}

/* Read and written; back dout and z are read. */
static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    bool backward = pass == TSR_PASS_BACKWARD;
    (void)step;
    tsr_cost_bytes(c, backward ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                   (backward ? 3 : 2) * tsr_cost_column(c) * tsr_cost_width(c, node->out[0]));
}

const tsr_node_kind tsr_node_convolution = {.name = "convolution",
                                            .rows = TSR_NONE,
                                            .forward = forward,
                                            .backward = backward,
                                            .needs = needs,
                                            .cost = cost};
