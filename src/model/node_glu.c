/*
 * node_glu.c: act = f(gate) up (kernels/swiglu.h). Its gradients take the place of what they are computed from. Gate and
 * up may be the halves of one linear's result. Those of experts are; there the weights of the experts come in as well, for
 * the backward alone (kernels/routed_glu.h).
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

/* What is read of gate and up, and with which distance of rows. */
typedef struct {
    tsr_output gate, up;
    int64_t rows, f, stride;
} halves;

static const void *half_of(const tsr_pass *p, const void *z, int64_t f)
{
    return (const char *)z + (uint64_t)f * tsr_dtype_bytes(p->context->dtype);
}

static halves halves_of(const tsr_pass *p, const tsr_node *node)
{
    const tsr_value *act = &p->block->value[node->out[0]];
    uint64_t rows = act->rows ? act->rows : 1; /* of a token */
    halves h = {.gate = tsr_pass_output(p, node->in[0]),
                .rows = p->context->tokens * (int64_t)rows,
                .f = (int64_t)(act->width / rows)};
    if (node->in[1] != TSR_NONE) {
        h.up = tsr_pass_output(p, node->in[1]);
        return h;
    }
    h.stride = 2 * h.f;
    h.up = h.gate;
    h.up.z = half_of(p, h.gate.z, h.f);
    h.up.g = h.gate.g ? h.gate.g + h.f : NULL;
    if (h.gate.bias.data)
        h.up.bias.data =
            (const char *)h.gate.bias.data + (uint64_t)h.f * tsr_dtype_bytes(h.gate.bias.dtype);
    return h;
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    halves h = halves_of(p, node);
    return p->context->kernels->swiglu(p->context->stream,
                                       &(tsr_swiglu_args){.z_gate = h.gate.z,
                                                          .z_up = h.up.z,
                                                          .g_gate = h.gate.g,
                                                          .g_up = h.up.g,
                                                          .bias_gate = h.gate.bias,
                                                          .bias_up = h.up.bias,
                                                          .act = p->value[node->out[0]],
                                                          .tokens = h.rows,
                                                          .f = h.f,
                                                          .stride = h.stride,
                                                          .activation = node->spec.glu.activation,
                                                          .dtype = p->context->dtype,
                                                          .act8 = step->makes_rows
                                                                      ? tsr_linear_rows(p->context)
                                                                      : (tsr_fp8_rows){0}});
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

static tsr_status backward_routed(const tsr_pass *p, const tsr_node *node)
{
    const tsr_glu_spec *spec = &node->spec.glu;
    int64_t tokens = p->context->tokens;
    halves h = halves_of(p, node);
    tsr_routes routes =
        tsr_routes_at(p->value[node->in[TSR_GLU_ROUTES]], tokens, spec->chosen, spec->experts);
    return p->context->kernels->routed_glu_backward(
        p->context->stream, &(tsr_routed_glu_backward_args){.dp = p->gradient[node->in[TSR_GLU_P]],
                                                            .dz = p->gradient[node->in[0]],
                                                            .z = h.gate.z,
                                                            .dact = p->gradient[node->out[0]],
                                                            .p = p->value[node->in[TSR_GLU_P]],
                                                            .row = routes.row,
                                                            .tokens = tokens,
                                                            .k = spec->chosen,
                                                            .f = h.f,
                                                            .add = spec->biased,
                                                            .activation = spec->activation,
                                                            .dtype = p->context->dtype});
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    if (node->in[TSR_GLU_P] != TSR_NONE)
        return backward_routed(p, node);
    halves h = halves_of(p, node);
    bool one = node->in[1] == TSR_NONE;
    int16_t up = node->in[one ? 0 : 1];
    const float *n_up = tsr_pass_n(p, up);
    float *dm_up = tsr_pass_dm(p, up);
    void *dz_up = p->gradient[up];
    if (one) {
        n_up = n_up ? n_up + h.f : NULL;
        dm_up = dm_up ? dm_up + h.f : NULL;
        dz_up = (void *)half_of(p, dz_up, h.f);
    }
    if (step->makes_rows)
        TSR_TRY(make_rows(p, node));
    return p->context->kernels->swiglu_backward(
        p->context->stream,
        &(tsr_swiglu_backward_args){.dact = p->gradient[node->out[0]],
                                    .z_gate = h.gate.z,
                                    .z_up = h.up.z,
                                    .g_gate = h.gate.g,
                                    .g_up = h.up.g,
                                    .bias_gate = h.gate.bias,
                                    .bias_up = h.up.bias,
                                    .dz_gate = p->gradient[node->in[0]],
                                    .dz_up = dz_up,
                                    .n_gate = tsr_pass_n(p, node->in[0]),
                                    .n_up = n_up,
                                    .dm_gate = tsr_pass_dm(p, node->in[0]),
                                    .dm_up = dm_up,
                                    .partials = p->context->partials,
                                    .tokens = h.rows,
                                    .f = h.f,
                                    .stride = h.stride,
                                    .activation = node->spec.glu.activation,
                                    .dtype = p->context->dtype,
                                    .dz_gate8 = rows_of(p, node->in[0]),
                                    .dz_up8 = one ? (tsr_fp8_rows){0} : rows_of(p, node->in[1])});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    bool one = node->in[1] == TSR_NONE;
    if (!one)
        tsr_needs_over(out, node->out[0], node->in[0]);
    for (int i = 0; i < 2 - one; i++) {
        tsr_needs_read(out, node->in[i]);
        tsr_needs_share(out, node->in[i], node->in[i], false);
        if (!one)
            tsr_needs_share(out, node->in[i], node->out[0], true);
    }
    if (node->in[TSR_GLU_P] != TSR_NONE) {
        tsr_needs_read(out, node->in[TSR_GLU_P]);
        tsr_needs_read(out, node->in[TSR_GLU_ROUTES]);
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
                                    .row_wise = true,
                                    .adds = 1u << TSR_GLU_P, /* to what combine has begun */
                                    .scales = true,
                                    .rows = 0,
                                    .forward = forward,
                                    .backward = backward,
                                    .needs = needs,
                                    .cost = cost};
