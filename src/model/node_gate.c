/*
 * node_gate.c: x sigmoid(z), of columns or of groups of columns (kernels/gate.h).
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

static int64_t gates_of(const tsr_pass *p, const tsr_node *node)
{
    return (int64_t)p->block->value[node->in[1]].width;
}

static int64_t group_of(const tsr_pass *p, const tsr_node *node)
{
    return (int64_t)p->block->value[node->out[0]].width / gates_of(p, node);
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output gate = tsr_pass_output(p, node->in[1]);
    return p->context->kernels->gate(p->context->stream,
                                     &(tsr_gate_args){.x = p->value[node->in[0]],
                                                      .z = gate.z,
                                                      .g = gate.g,
                                                      .bias = gate.bias,
                                                      .out = p->value[node->out[0]],
                                                      .tokens = p->context->tokens,
                                                      .gates = gates_of(p, node),
                                                      .group = group_of(p, node),
                                                      .dtype = p->context->dtype});
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output gate = tsr_pass_output(p, node->in[1]);
    return p->context->kernels->gate_backward(
        p->context->stream, &(tsr_gate_backward_args){.dout = p->gradient[node->out[0]],
                                                      .x = p->value[node->in[0]],
                                                      .z = gate.z,
                                                      .g = gate.g,
                                                      .bias = gate.bias,
                                                      .dx = p->gradient[node->in[0]],
                                                      .dy = p->gradient[node->in[1]],
                                                      .tokens = p->context->tokens,
                                                      .gates = gates_of(p, node),
                                                      .group = group_of(p, node),
                                                      .dtype = p->context->dtype});
}

/* Whether nobody but a linear has the gradient of a value: else it may be that of the residual stream. */
static bool feeds_linear(const tsr_block *block, int16_t value)
{
    for (int i = 0; i < block->node_count; i++)
        if (block->node[i].kind == &tsr_node_linear && block->node[i].in[0] == value)
            return true;
    return false;
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)traits;
    tsr_needs_read(out, node->in[0]);
    tsr_needs_read(out, node->in[1]);
    tsr_needs_over(out, node->out[0], node->in[0]);
    if (feeds_linear(block, node->out[0]))
        tsr_needs_share(out, node->in[0], node->out[0], true);
}

/* Three are read or written forward, five back; fewer where a gate is for a group. */
static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    bool backward = pass == TSR_PASS_BACKWARD;
    double x = tsr_cost_width(c, node->out[0]), z = tsr_cost_width(c, node->in[1]);
    (void)step;
    tsr_cost_bytes(c, backward ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                   tsr_cost_column(c) * (backward ? 3 * x + 2 * z : 2 * x + z));
}

const tsr_node_kind tsr_node_gate = {.name = "gate",
                                     .row_wise = true,
                                     .rows = TSR_NONE,
                                     .forward = forward,
                                     .backward = backward,
                                     .needs = needs,
                                     .cost = cost};
