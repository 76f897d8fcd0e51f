/*
 * node_glu.c: act = silu(gate) up (kernels/swiglu.h). Its gradients take the place of what they are computed from.
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output gate = tsr_pass_output(p, node->in[0]), up = tsr_pass_output(p, node->in[1]);
    return p->context->kernels->swiglu(
        p->context->stream,
        &(tsr_swiglu_args){.z_gate = gate.z,
                           .z_up = up.z,
                           .g_gate = gate.g,
                           .g_up = up.g,
                           .bias_gate = gate.bias,
                           .bias_up = up.bias,
                           .act = p->value[node->out[0]],
                           .tokens = p->context->tokens,
                           .f = (int64_t)p->block->value[node->out[0]].width,
                           .dtype = p->context->dtype,
                           .act8 =
                               step->makes_rows ? tsr_linear_rows(p->context) : (tsr_fp8_rows){0}});
}

/* Gradients in e4m3, for the linears' backward. */
static tsr_status make_rows(const tsr_pass *p, const tsr_node *node)
{
    for (int i = 0; i < 2; i++) {
        const tsr_value *value = &p->block->value[node->in[i]];
        uint8_t *codes = p->codes; /* NULL where the kernels do nothing */
        if (value->matrix == TSR_NONE)
            continue;
        if (codes)
            codes += (uint64_t)i * (uint64_t)p->context->tokens * value->width;
        TSR_TRY(tsr_linear_gradient_rows(&p->made8[value->matrix], p->context,
                                         &p->linear[value->matrix], codes, i));
    }
    return TSR_OK;
}

static tsr_fp8_rows rows_of(const tsr_pass *p, int value)
{
    int matrix = p->block->value[value].matrix;
    return matrix == TSR_NONE ? (tsr_fp8_rows){0} : p->made8[matrix];
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output gate = tsr_pass_output(p, node->in[0]), up = tsr_pass_output(p, node->in[1]);
    if (step->makes_rows)
        TSR_TRY(make_rows(p, node));
    return p->context->kernels->swiglu_backward(
        p->context->stream,
        &(tsr_swiglu_backward_args){.dact = p->gradient[node->out[0]],
                                    .z_gate = gate.z,
                                    .z_up = up.z,
                                    .g_gate = gate.g,
                                    .g_up = up.g,
                                    .bias_gate = gate.bias,
                                    .bias_up = up.bias,
                                    .dz_gate = p->gradient[node->in[0]],
                                    .dz_up = p->gradient[node->in[1]],
                                    .n_gate = tsr_pass_n(p, node->in[0]),
                                    .n_up = tsr_pass_n(p, node->in[1]),
                                    .dm_gate = tsr_pass_dm(p, node->in[0]),
                                    .dm_up = tsr_pass_dm(p, node->in[1]),
                                    .partials = p->context->partials,
                                    .tokens = p->context->tokens,
                                    .f = (int64_t)p->block->value[node->out[0]].width,
                                    .dtype = p->context->dtype,
                                    .dz_gate8 = rows_of(p, node->in[0]),
                                    .dz_up8 = rows_of(p, node->in[1])});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    tsr_needs_over(out, node->out[0], node->in[0]);
    for (int i = 0; i < 2; i++) {
        tsr_needs_read(out, node->in[i]);
        tsr_needs_share(out, node->in[i], node->in[i], false);
        tsr_needs_share(out, node->in[i], node->out[0], true);
    }
}

static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    double column = tsr_cost_column(c) * tsr_cost_width(c, node->out[0]);
    (void)step;
    if (pass == TSR_PASS_BACKWARD)
        tsr_cost_bytes(c, TSR_WORK_MEMORY_BACKWARD, 5 * column);
    else
        tsr_cost_bytes(c, TSR_WORK_MEMORY_FORWARD, 3 * column);
}

const tsr_node_kind tsr_node_glu = {.name = "glu",
                                    .light = true,
                                    .scales = true,
                                    .rows = 0,
                                    .forward = forward,
                                    .backward = backward,
                                    .needs = needs,
                                    .cost = cost};
