/*
 * node_latent.c: what stands between the linears of latent attention and attention (kernels/latent_qkv.h).
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

static tsr_latent_shape shape_of(const tsr_pass *p, const tsr_node *node)
{
    const tsr_latent_spec *spec = &node->spec.latent;
    const tsr_rope_table *table = &p->tables->rope[spec->table];
    return (tsr_latent_shape){.cosine = table->cosine,
                              .sine = table->sine,
                              .positions = p->positions,
                              .tokens = p->context->tokens,
                              .heads = spec->heads,
                              .nope_dim = spec->nope_dim,
                              .rope_dim = spec->rope_dim,
                              .v_dim = spec->v_dim,
                              .position_count = table->position_count,
                              .neighbours = spec->neighbours,
                              .dtype = p->context->dtype};
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output q = tsr_pass_output(p, node->in[TSR_LATENT_Q]);
    tsr_output kv = tsr_pass_output(p, node->in[TSR_LATENT_KV]);
    return p->context->kernels->latent_qkv(
        p->context->stream, &(tsr_latent_qkv_args){.q_z = q.z,
                                                   .kv_z = kv.z,
                                                   .shared = p->value[node->in[TSR_LATENT_SHARED]],
                                                   .q_g = q.g,
                                                   .kv_g = kv.g,
                                                   .q_bias = q.bias,
                                                   .kv_bias = kv.bias,
                                                   .q = p->value[node->out[0]],
                                                   .k = p->value[node->out[1]],
                                                   .v = p->value[node->out[2]],
                                                   .shape = shape_of(p, node)});
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    return p->context->kernels->latent_qkv_backward(
        p->context->stream,
        &(tsr_latent_qkv_backward_args){.dq = p->gradient[node->out[0]],
                                        .dk = p->gradient[node->out[1]],
                                        .dv = p->gradient[node->out[2]],
                                        .q_dy = p->gradient[node->in[TSR_LATENT_Q]],
                                        .kv_dy = p->gradient[node->in[TSR_LATENT_KV]],
                                        .d_shared = p->gradient[node->in[TSR_LATENT_SHARED]],
                                        .shape = shape_of(p, node)});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    tsr_needs_over(out, node->out[0], node->in[TSR_LATENT_Q]);
    tsr_needs_share(out, node->in[TSR_LATENT_Q], node->out[0], true);
}

/* All is read and written once, either way. */
static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    double columns = 0;
    (void)step;
    for (int i = 0; i < 3; i++)
        columns += tsr_cost_width(c, node->in[i]) + tsr_cost_width(c, node->out[i]);
    tsr_cost_bytes(c,
                   pass == TSR_PASS_BACKWARD ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                   tsr_cost_column(c) * columns);
}

const tsr_node_kind tsr_node_latent = {.name = "latent",
                                       .row_wise = true,
                                       .rows = TSR_NONE,
                                       .forward = forward,
                                       .backward = backward,
                                       .needs = needs,
                                       .cost = cost};
