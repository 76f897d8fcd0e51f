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

/* Where part `i` is read: the value, TSR_NONE where there is no such part, and its first column there. */
typedef struct {
    int16_t value;
    uint64_t column;
} source;

/* q, k and v are columns of one value. */
static bool is_one(const tsr_node *node)
{
    return node->in[1] == TSR_NONE && node->out[1] != TSR_NONE;
}

static source source_of(const tsr_block *block, const tsr_node *node, int i)
{
    source s = {node->in[i], 0};
    if (s.value != TSR_NONE || !is_one(node))
        return s;
    s.value = node->in[0];
    for (int before = 0; before < i; before++)
        s.column += block->value[node->out[before]].width;
    return s;
}

static int64_t stride_of(const tsr_pass *p, const tsr_node *node)
{
    return is_one(node) ? (int64_t)p->block->value[node->in[0]].width : 0;
}

static char *columns_from(const tsr_pass *p, const void *rows, uint64_t column)
{
    return rows ? (char *)rows + column * tsr_dtype_bytes(p->context->dtype) : NULL;
}

static const float *floats_from(const float *vector, uint64_t column)
{
    return vector ? vector + column : NULL;
}

static tsr_output output_from(const tsr_pass *p, source from)
{
    tsr_output y = tsr_pass_output(p, from.value);
    y.z = columns_from(p, y.z, from.column);
    y.g = floats_from(y.g, from.column);
    if (y.bias.data)
        y.bias.data = (const char *)y.bias.data + from.column * tsr_dtype_bytes(y.bias.dtype);
    return y;
}

static const tsr_rope_table *queries_of(const tsr_pass *p, const tsr_rope_spec *spec)
{
    static const tsr_rope_table none;
    return spec->own_queries ? &p->tables->queries : &none;
}

static tsr_rope_shape shape_of(const tsr_pass *p, const tsr_node *node)
{
    const tsr_rope_spec *spec = &node->spec.rope;
    const tsr_rope_table *table = &p->tables->rope[spec->table], *queries = queries_of(p, spec);
    return (tsr_rope_shape){.cosine = table->cosine,
                            .sine = table->sine,
                            .q_cosine = queries->cosine,
                            .q_sine = queries->sine,
                            .positions = p->positions,
                            .tokens = p->context->tokens,
                            .stride = stride_of(p, node),
                            .q_heads = spec->q_heads,
                            .kv_heads = spec->kv_heads,
                            .head_dim = spec->head_dim,
                            .position_count = table->position_count,
                            .rotary_dim = spec->rotary_dim,
                            .neighbours = spec->neighbours,
                            .norm_eps = spec->head_norm_eps,
                            .dtype = p->context->dtype};
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_rope_qkv_args args = {.shape = shape_of(p, node)};
    for (int i = 0; i < 3; i++) {
        source from = source_of(p->block, node, i);
        if (from.value == TSR_NONE)
            continue;
        tsr_output y = output_from(p, from);
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
    tsr_rope_qkv_backward_args args = {.shape = shape_of(p, node),
                                       .partials = p->context->partials};
    for (int i = 0; i < 3; i++) {
        source from = source_of(p->block, node, i);
        if (from.value == TSR_NONE)
            continue;
        tsr_output y = output_from(p, from);
        float *dm = tsr_pass_dm(p, from.value);
        args.part[i] =
            (tsr_rope_backward_part){.dout = p->gradient[node->out[i]],
                                     .z = y.z,
                                     .dz = columns_from(p, p->gradient[from.value], from.column),
                                     .g = y.g,
                                     .n = floats_from(tsr_pass_n(p, from.value), from.column),
                                     .dm = dm ? dm + from.column : NULL,
                                     .bias = y.bias,
                                     .norm = norm_of(p, node, i)};
    }
    return p->context->kernels->rope_qkv_backward(p->context->stream, &args);
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    if (is_one(node)) {
        if (tsr_value_has_dm(block, traits, node->in[0]))
            tsr_needs_read(out, node->in[0]);
        return;
    }
    for (int i = 0; i < 3 && node->in[i] != TSR_NONE; i++) {
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
    for (int i = 0; i < 3 && node->out[i] != TSR_NONE; i++) {
        int16_t from = node->in[is_one(node) ? 0 : i];
        int matrix = c->layer->program->block->value[from].matrix;
        double width = tsr_cost_width(c, node->out[i]);
        columns += width;
        read += backward && matrix != TSR_NONE && c->layer->linear[matrix].dora ? width : 0;
    }
    tsr_cost_bytes(c, backward ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                   2 * tsr_cost_column(c) * columns);
    if (read > 0)
        tsr_cost_bytes(c, TSR_WORK_DORA, tsr_cost_column(c) * read);
}

const tsr_node_kind tsr_node_rope = {.name = "rope",
                                     .row_wise = true,
                                     .scales = true,
                                     .rows = TSR_NONE,
                                     .forward = forward,
                                     .backward = backward,
                                     .needs = needs,
                                     .cost = cost};
