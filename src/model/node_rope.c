/*
 * node_rope.c: what stands between the linears of q, k, v and attention (kernels/rope_qkv.h).
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

static tsr_frozen norm_of(const tsr_pass *p, const tsr_node *node, int part)
{
    return part < 2 && node->weight[part] != TSR_NONE ? p->vector[node->weight[part]]
                                                      : (tsr_frozen){NULL, TSR_F32};
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    const tsr_rope_spec *spec = &node->spec.rope;
    const tsr_rope_table *table = &p->tables->rope[spec->table];
    tsr_rope_qkv_args args = {.cosine = table->cosine,
                              .sine = table->sine,
                              .positions = p->batch->positions,
                              .tokens = p->batch->tokens,
                              .q_heads = spec->q_heads,
                              .kv_heads = spec->kv_heads,
                              .head_dim = spec->head_dim,
                              .position_count = table->position_count,
                              .norm_eps = spec->head_norm_eps,
                              .dtype = p->context->dtype};
    for (int i = 0; i < 3; i++) {
        tsr_output y = tsr_pass_output(p, node->in[i]);
        args.part[i] = (tsr_rope_part){.z = y.z,
                                       .out = p->value[node->out[i]],
                                       .g = y.g,
                                       .bias = y.bias,
                                       .norm = norm_of(p, node, i)};
    }
    return p->context->kernels->rope_qkv(p->context->stream, &args);
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    const tsr_rope_spec *spec = &node->spec.rope;
    const tsr_rope_table *table = &p->tables->rope[spec->table];
    tsr_rope_qkv_backward_args args = {.partials = p->context->partials,
                                       .cosine = table->cosine,
                                       .sine = table->sine,
                                       .positions = p->batch->positions,
                                       .tokens = p->batch->tokens,
                                       .q_heads = spec->q_heads,
                                       .kv_heads = spec->kv_heads,
                                       .head_dim = spec->head_dim,
                                       .position_count = table->position_count,
                                       .norm_eps = spec->head_norm_eps,
                                       .dtype = p->context->dtype};
    for (int i = 0; i < 3; i++) {
        int16_t in = node->in[i];
        tsr_output y = tsr_pass_output(p, in);
        args.part[i] = (tsr_rope_backward_part){.dout = p->gradient[node->out[i]],
                                                .z = y.z,
                                                .dz = p->gradient[in],
                                                .g = y.g,
                                                .n = tsr_pass_n(p, in),
                                                .dm = tsr_pass_dm(p, in),
                                                .bias = y.bias,
                                                .norm = norm_of(p, node, i)};
    }
    return p->context->kernels->rope_qkv_backward(p->context->stream, &args);
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    for (int i = 0; i < 3; i++) {
        if (tsr_value_has_dm(block, traits, node->in[i]) || (i < 2 && node->weight[i] != TSR_NONE))
            tsr_needs_read(out, node->in[i]);
        tsr_needs_over(out, node->out[i], node->in[i]);
        tsr_needs_share(out, node->in[i], node->out[i], true);
    }
}

/* Each part is read and written; dm reads z as well. */
static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    bool backward = pass == TSR_PASS_BACKWARD;
    double columns = 0, read = 0;
    (void)step;
    for (int i = 0; i < 3; i++) {
        int matrix = c->layer->program->block->value[node->in[i]].matrix;
        double width = tsr_cost_width(c, node->in[i]);
        columns += width;
        read += backward && matrix != TSR_NONE && c->layer->linear[matrix].dora ? width : 0;
    }
    tsr_cost_bytes(c, backward ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                   2 * tsr_cost_column(c) * columns);
    if (read > 0)
        tsr_cost_bytes(c, TSR_WORK_DORA, tsr_cost_column(c) * read);
}

const tsr_node_kind tsr_node_rope = {.name = "rope",
                                     .light = true,
                                     .scales = true,
                                     .rows = TSR_NONE,
                                     .forward = forward,
                                     .backward = backward,
                                     .needs = needs,
                                     .cost = cost};
