#include "model/block.h"

#include "base/checked.h"

#include "kernels/routes.h"
#include "model/node.h"

#include <stdio.h>
#include <string.h>

static int16_t add_value(tsr_block *b, tsr_value_name called, uint64_t width, bool statistic)
{
    if (b->value_count == TSR_BLOCK_VALUES) {
        b->fault = "it has too many values";
        return 0;
    }
    b->value[b->value_count] = (tsr_value){.name = called.name,
                                           .why = called.why,
                                           .width = width,
                                           .statistic = statistic,
                                           .node = TSR_NONE,
                                           .matrix = TSR_NONE,
                                           .stack = TSR_NONE,
                                           .slot = TSR_NONE};
    return (int16_t)b->value_count++;
}

static int16_t add_vector(tsr_block *b, const char *name, uint64_t count)
{
    if (!name)
        return TSR_NONE;
    if (b->vector_count == TSR_BLOCK_VECTORS) {
        b->fault = "it has too many vectors";
        return 0;
    }
    b->vector[b->vector_count] =
        (tsr_vector){.name = name, .count = count, .plus_one = b->plus_one};
    return (int16_t)b->vector_count++;
}

static tsr_node *add_node(tsr_block *b, const tsr_node_kind *kind)
{
    if (b->node_count == TSR_BLOCK_NODES) {
        b->fault = "it has too many nodes";
        b->node_count--;
    }
    tsr_node *node = &b->node[b->node_count++];
    memset(node, 0, sizeof *node);
    node->kind = kind;
    for (int i = 0; i < TSR_NODE_PORTS; i++)
        node->in[i] = node->out[i] = node->weight[i] = TSR_NONE;
    return node;
}

/* The node's next output. */
static int16_t add_output(tsr_block *b, tsr_node *node, int port, tsr_value_name called,
                          uint64_t width, bool statistic)
{
    int16_t value = add_value(b, called, width, statistic);
    b->value[value].node = (int16_t)(node - b->node);
    node->out[port] = value;
    return value;
}

tsr_residual tsr_block_begin(tsr_block *out, uint64_t width)
{
    memset(out, 0, sizeof *out);
    out->width = width;
    out->root = TSR_NONE;
    out->in.x = add_value(out, (tsr_value_name){"x in", "the block before"}, width, false);
    out->in.pending = add_value(out, (tsr_value_name){"z in", "the block before"}, width, false);
    return out->in;
}

/* A node of norm that makes x + pending. */
static tsr_node *add_norm(tsr_block *b, tsr_residual in, tsr_value_name sum)
{
    tsr_node *node = add_node(b, &tsr_node_norm);
    node->in[TSR_NORM_X] = in.x;
    node->in[TSR_NORM_PENDING] = in.pending;
    add_output(b, node, TSR_NORM_SUM, sum, b->value[in.x != TSR_NONE ? in.x : in.pending].width,
               false);
    return node;
}

static int16_t add_normed(tsr_block *b, tsr_node *node, const char *name, float eps,
                          tsr_value_name h)
{
    uint64_t width = b->value[node->out[TSR_NORM_SUM]].width;
    node->spec.norm.eps = eps;
    node->weight[0] = add_vector(b, name, width);
    add_output(b, node, TSR_NORM_RSTD, (tsr_value_name){"rstd", "1 / rms of a norm"}, 1, true);
    return add_output(b, node, TSR_NORM_H, h, width, false);
}

/* Adds up the residual stream. */
static tsr_node *add_sum(tsr_block *b, tsr_residual *r, tsr_value_name x)
{
    tsr_node *node = add_norm(b, *r, x);
    *r = (tsr_residual){node->out[TSR_NORM_SUM], TSR_NONE};
    if (b->root == TSR_NONE)
        b->root = r->x;
    return node;
}

int16_t tsr_block_sum(tsr_block *b, tsr_residual *r, tsr_value_name x)
{
    add_sum(b, r, x);
    return r->x;
}

int16_t tsr_block_norm(tsr_block *b, tsr_residual *r, const char *name, float eps, tsr_value_name x,
                       tsr_value_name h)
{
    return add_normed(b, add_sum(b, r, x), name, eps, h);
}

int16_t tsr_block_norm_of(tsr_block *b, int16_t value, const char *name, float eps,
                          tsr_value_name h)
{
    tsr_node *node = add_norm(b, (tsr_residual){TSR_NONE, value},
                              (tsr_value_name){"y", "what a norm reads of a linear"});
    return add_normed(b, node, name, eps, h);
}

int16_t tsr_block_norm_heads(tsr_block *b, int16_t value, uint64_t head_dim, float eps,
                             tsr_value_name h)
{
    tsr_node *node = add_norm(b, (tsr_residual){TSR_NONE, value},
                              (tsr_value_name){"y", "what a norm of heads reads"});
    uint64_t width = b->value[value].width;
    if (b->value[value].matrix != TSR_NONE)
        b->fault = "heads of a linear's bare result are normed";
    node->spec.norm.eps = eps;
    node->spec.norm.head_dim = (int32_t)head_dim;
    add_output(b, node, TSR_NORM_RSTD, (tsr_value_name){"rstd", "1 / rms of the heads"},
               width / head_dim, true);
    return add_output(b, node, TSR_NORM_H, h, width, false);
}

int16_t tsr_block_layer_inputs(tsr_block *b, int16_t value, const char *name,
                               const tsr_inputs_spec *spec)
{
    tsr_node *node = add_node(b, &tsr_node_inputs);
    uint64_t width = b->value[value].width;
    node->spec.inputs = *spec;
    node->in[0] = value;
    node->weight[0] = add_vector(b, name, width / (uint64_t)spec->layers);
    b->vector[node->weight[0]].of_model = true;
    return add_output(b, node, 0, (tsr_value_name){"e", "what every layer takes of the tokens"},
                      width, false);
}

void tsr_block_gain(tsr_block *b, tsr_residual *r, const char *name)
{
    add_sum(b, r, (tsr_value_name){"x_end", "the residual before it is scaled"});
    tsr_node *node = add_node(b, &tsr_node_gain);
    node->in[0] = r->x;
    node->weight[0] = add_vector(b, name, b->width);
    b->vector[node->weight[0]].plus_one = false;
    b->vector[node->weight[0]].one = true;
    r->x = add_output(b, node, 0, (tsr_value_name){"x_out", "the residual after the layer"},
                      b->width, false);
}

int16_t tsr_block_plus(tsr_block *b, int16_t value, int16_t other, tsr_value_name y)
{
    tsr_node *node = add_node(b, &tsr_node_sum);
    if (b->value[value].matrix != TSR_NONE || b->value[value].width != b->value[other].width)
        b->fault = "it adds up what cannot be";
    node->in[0] = value;
    node->in[1] = other;
    return add_output(b, node, 0, y, b->value[value].width, false);
}

void tsr_block_give(tsr_block *b, int16_t value, int slot)
{
    if (slot >= TSR_SHARED_SLOTS || b->value[value].matrix != TSR_NONE)
        b->fault = "what it gives to other layers cannot be shared";
    b->value[value].slot = (int16_t)slot;
}

int16_t tsr_block_take(tsr_block *b, int slot, uint64_t width, bool of_layer, tsr_value_name called)
{
    int16_t value = add_value(b, called, width, false);
    b->value[value].slot = (int16_t)slot;
    b->value[value].of_layer = of_layer;
    return value;
}

int16_t tsr_block_scale(tsr_block *b, int16_t value, float scale)
{
    tsr_node *node = add_norm(b, (tsr_residual){TSR_NONE, value},
                              (tsr_value_name){"y", "a linear's output, scaled"});
    node->spec.norm.scale = scale;
    return node->out[TSR_NORM_SUM];
}

void tsr_block_linears(tsr_block *b, int16_t out[], int16_t x, const tsr_matrix *matrix, int count)
{
    tsr_node *node = add_node(b, &tsr_node_linear);
    node->in[0] = x;
    for (int i = 0; i < count; i++) {
        if (b->matrix_count == TSR_BLOCK_MATRICES) {
            b->fault = "it has too many linears";
            b->matrix_count--;
        }
        int16_t index = (int16_t)b->matrix_count++;
        tsr_matrix *m = &b->matrix[index];
        *m = matrix[i];
        m->node = (int16_t)(node - b->node);
        node->weight[i] = index;
        m->result =
            add_output(b, node, i, (tsr_value_name){"z", "output of the linear"}, m->out, false);
        m->low = add_value(b, (tsr_value_name){"low", "x A of the linear"}, 0, false);
        m->inner = add_value(
            b, (tsr_value_name){"inner", "the linear's product before its output is composed"},
            m->out, false);
        b->value[m->result].matrix = b->value[m->low].matrix = b->value[m->inner].matrix = index;
        b->value[m->low].node = b->value[m->inner].node = m->node;
        out[i] = m->result;
    }
}

int16_t tsr_block_linear(tsr_block *b, int16_t x, const char *name, uint64_t out, bool bias)
{
    const tsr_matrix matrix = {.name = name, .out = out, .in = b->value[x].width, .bias = bias};
    int16_t result;
    tsr_block_linears(b, &result, x, &matrix, 1);
    return result;
}

void tsr_block_rope(tsr_block *b, int16_t qkv[3], const char *q_norm, const char *k_norm,
                    const tsr_rope_spec *spec)
{
    static const tsr_value_name called[3] = {{"q", "queries"}, {"k", "keys"}, {"v", "values"}};
    tsr_node *node = add_node(b, &tsr_node_rope);
    node->spec.rope = *spec;
    bool one = spec->kv_heads && qkv[1] == TSR_NONE;
    for (int i = 0; i < 3; i++) {
        node->in[i] = qkv[i];
        uint64_t heads = (uint64_t)(i == 0 ? spec->q_heads : spec->kv_heads);
        if (qkv[i] == TSR_NONE && !one)
            continue;
        qkv[i] = add_output(b, node, i, called[i], heads * (uint64_t)spec->head_dim, false);
    }
    node->weight[0] = add_vector(b, q_norm, (uint64_t)spec->head_dim);
    node->weight[1] = add_vector(b, k_norm, (uint64_t)spec->head_dim);
}

void tsr_block_columns(tsr_block *b, int16_t out[2], int16_t value, uint64_t width,
                       const tsr_value_name called[2])
{
    tsr_node *node = add_node(b, &tsr_node_columns);
    node->in[0] = value;
    if (width >= b->value[value].width)
        b->fault = "it splits a value into more than it has";
    out[0] = add_output(b, node, 0, called[0], width, false);
    out[1] = add_output(b, node, 1, called[1], b->value[value].width - width, false);
}

void tsr_block_latent(tsr_block *b, int16_t qkv[3], const tsr_latent_spec *spec)
{
    static const tsr_value_name called[3] = {{"q", "queries"}, {"k", "keys"}, {"v", "values"}};
    tsr_node *node = add_node(b, &tsr_node_latent);
    uint64_t heads = (uint64_t)spec->heads, nope = (uint64_t)spec->nope_dim;
    uint64_t rope = (uint64_t)spec->rope_dim, v = (uint64_t)spec->v_dim;
    const uint64_t in[3] = {heads * (nope + rope), rope, heads * (nope + v)};
    const uint64_t out[3] = {heads * (nope + rope), heads * (nope + rope), heads * v};
    node->spec.latent = *spec;
    for (int i = 0; i < 3; i++) {
        node->in[i] = qkv[i];
        if (b->value[qkv[i]].width != in[i])
            b->fault = "latent attention reads values of other widths";
        qkv[i] = add_output(b, node, i, called[i], out[i], false);
    }
}

/* A vector without the block's 1 + w. */
static int16_t add_plain_vector(tsr_block *b, const char *name, uint64_t rows, uint64_t count,
                                bool bare)
{
    int16_t index = add_vector(b, name, count);
    if (index == TSR_NONE)
        return index;
    b->vector[index].plus_one = false;
    b->vector[index].rows = rows;
    b->vector[index].bare = bare;
    return index;
}

tsr_block_routes tsr_block_route(tsr_block *b, int16_t x, const tsr_router_names *names,
                                 const tsr_route_spec *spec)
{
    tsr_node *node = add_node(b, &tsr_node_route);
    uint64_t experts = (uint64_t)spec->experts, k = (uint64_t)spec->chosen;
    tsr_block_routes out;
    node->spec.route = *spec;
    node->in[0] = x;
    node->weight[TSR_ROUTE_WEIGHT] =
        add_plain_vector(b, names->weight, experts, b->value[x].width, false);
    node->weight[TSR_ROUTE_BIAS] = add_plain_vector(b, names->bias, 0, experts, true);
    node->weight[TSR_ROUTE_CORRECTION] = add_plain_vector(b, names->correction, 0, experts, true);
    node->weight[TSR_ROUTE_SCALE] = add_plain_vector(b, names->expert_scale, 0, experts, true);
    out.weights = add_output(b, node, TSR_ROUTE_P,
                             (tsr_value_name){"p", "weights of a token's experts"}, k, true);
    out.routes =
        add_output(b, node, TSR_ROUTE_ROUTES,
                   (tsr_value_name){"routes", "which tokens go to which experts"}, 3 * k, true);
    b->value[out.routes].fixed = /* what the next tile has lies on 64 bytes at least */
        tsr_align_up(tsr_routes_bytes(0, 0, (int64_t)experts), TSR_ALIGNMENT) / sizeof(int32_t);
    b->value[out.routes].index = true;
    add_output(b, node, TSR_ROUTE_LOGITS, (tsr_value_name){"logits", "of the router"}, experts,
               true);
    if (node->weight[TSR_ROUTE_CORRECTION] != TSR_NONE)
        b->vector[node->weight[TSR_ROUTE_CORRECTION]].wide = true;
    return out;
}

static int16_t add_stack(tsr_block *b, tsr_node *node, const tsr_stack *stack, int32_t chosen)
{
    if (b->stack_count == TSR_BLOCK_STACKS) {
        b->fault = "it has too many stacks of experts";
        b->stack_count--;
    }
    int16_t index = (int16_t)b->stack_count++;
    b->stack[index] = *stack;
    b->stack[index].node = (int16_t)(node - b->node);
    b->stack[index].low = add_value(b, (tsr_value_name){"low", "x A of the experts"}, 0, false);
    b->value[b->stack[index].low].node = b->stack[index].node;
    b->value[b->stack[index].low].stack = index;
    node->spec.experts = (tsr_experts_spec){.experts = (int32_t)stack->experts,
                                            .chosen = chosen,
                                            .out = (int64_t)stack->out,
                                            .in = (int64_t)stack->in};
    return index;
}

static int32_t chosen_of(const tsr_block *b, const tsr_block_routes *routes)
{
    return (int32_t)b->value[routes->weights].width;
}

int16_t tsr_block_experts(tsr_block *b, int16_t x, const tsr_block_routes *routes,
                          const tsr_stack *stack)
{
    tsr_node *node = add_node(b, &tsr_node_experts);
    int32_t k = chosen_of(b, routes);
    node->in[TSR_EXPERTS_X] = x;
    node->in[TSR_EXPERTS_ROUTES] = routes->routes;
    node->weight[0] = add_stack(b, node, stack, k);
    int16_t out =
        add_output(b, node, 0, (tsr_value_name){"experts", "output of the experts' gate and up"},
                   (uint64_t)k * stack->out, false);
    b->value[out].rows = (uint64_t)k;
    return out;
}

int16_t tsr_block_combine(tsr_block *b, int16_t rows, const tsr_block_routes *routes,
                          const tsr_stack *stack)
{
    tsr_node *node = add_node(b, &tsr_node_combine);
    node->in[TSR_COMBINE_ROWS] = rows;
    node->in[TSR_COMBINE_P] = routes->weights;
    node->in[TSR_COMBINE_ROUTES] = routes->routes;
    node->weight[0] = add_stack(b, node, stack, chosen_of(b, routes));
    return add_output(b, node, 0, (tsr_value_name){"y", "output of the experts"}, stack->out,
                      false);
}

int16_t tsr_block_attention(tsr_block *b, const int16_t qkv[3], const tsr_attention_spec *spec)
{
    tsr_node *node = add_node(b, &tsr_node_attention);
    node->spec.attention = *spec;
    for (int i = 0; i < 3; i++)
        node->in[i] = qkv[i];
    node->spec.attention.shared = b->value[qkv[1]].slot != TSR_NONE;
    add_output(b, node, TSR_ATTENTION_LSE, (tsr_value_name){"lse", "attention's log-sum-exp"},
               (uint64_t)spec->q_heads, true);
    return add_output(b, node, TSR_ATTENTION_O, (tsr_value_name){"o", "output of attention"},
                      (uint64_t)spec->q_heads *
                          (uint64_t)tsr_attention_v_dim(spec->v_dim, spec->head_dim),
                      false);
}

void tsr_block_sinks(tsr_block *b, int16_t o, const char *name)
{
    tsr_node *node = &b->node[b->value[o].node];
    node->weight[0] = add_plain_vector(b, name, 0, (uint64_t)node->spec.attention.q_heads, true);
}

int16_t tsr_block_glu(tsr_block *b, int16_t gate, int16_t up, tsr_activation activation)
{
    tsr_node *node = add_node(b, &tsr_node_glu);
    uint64_t width = b->value[gate].width;
    node->spec.glu.activation = activation;
    node->in[0] = gate;
    node->in[1] = up;
    int16_t out = add_output(b, node, 0, (tsr_value_name){"act", "output of the gated unit"},
                             up == TSR_NONE ? width / 2 : width, false);
    b->value[out].rows = b->value[gate].rows;
    return out;
}

int16_t tsr_block_routed_glu(tsr_block *b, int16_t rows, const tsr_block_routes *routes,
                             const tsr_stack *down, tsr_activation activation)
{
    int16_t act = tsr_block_glu(b, rows, TSR_NONE, activation);
    tsr_node *node = &b->node[b->value[act].node];
    node->spec.glu.chosen = chosen_of(b, routes); /* one by one: specs are compared byte by byte */
    node->spec.glu.experts = (int32_t)down->experts;
    node->spec.glu.biased = down->bias;
    node->in[TSR_GLU_P] = routes->weights;
    node->in[TSR_GLU_ROUTES] = routes->routes;
    return act;
}

/* ---- linear attention, gates ---- */

int16_t tsr_block_convolution(tsr_block *b, int16_t value, const char *name, int32_t taps)
{
    tsr_node *node = add_node(b, &tsr_node_convolution);
    uint64_t width = b->value[value].width;
    node->spec.convolution.taps = taps;
    node->in[0] = value;
    node->weight[0] = add_plain_vector(b, name, 0, width * (uint64_t)taps, false);
    b->vector[node->weight[0]].taps = (uint64_t)taps;
    return add_output(b, node, 0,
                      (tsr_value_name){"qkv", "queries, keys and values after the convolution"},
                      width, false);
}

int16_t tsr_block_delta_rule(tsr_block *b, const int16_t mixed_beta_decay[3], const char *a_log,
                             const char *dt_bias, const tsr_delta_rule_spec *spec)
{
    tsr_node *node = add_node(b, &tsr_node_delta_rule);
    uint64_t heads = (uint64_t)spec->value_heads, keys = (uint64_t)spec->key_heads;
    uint64_t dk = (uint64_t)spec->key_dim, dv = (uint64_t)spec->value_dim;
    const int16_t *in = mixed_beta_decay;
    node->spec.delta_rule = *spec;
    for (int i = 0; i < 3; i++)
        node->in[i] = in[i];
    if (b->value[in[0]].width != 2 * keys * dk + heads * dv || b->value[in[1]].width != heads ||
        b->value[in[2]].width != heads || heads % keys)
        b->fault = "the heads of a delta rule are not what its inputs have";
    node->weight[0] = add_plain_vector(b, a_log, 0, heads, true);
    node->weight[1] = add_plain_vector(b, dt_bias, 0, heads, true);
    return add_output(b, node, 0, (tsr_value_name){"o", "output of the delta rule"}, heads * dv,
                      false);
}

int16_t tsr_block_gated_norm(tsr_block *b, int16_t value, int16_t gate, const char *name,
                             const tsr_gated_norm_spec *spec)
{
    tsr_node *node = add_node(b, &tsr_node_gated_norm);
    uint64_t width = b->value[value].width;
    node->spec.gated_norm = *spec;
    node->in[0] = value;
    node->in[1] = gate;
    if (b->value[gate].width != width || width % (uint64_t)spec->head_dim)
        b->fault = "a gated norm and its gate have different widths";
    node->weight[0] = add_plain_vector(b, name, 0, (uint64_t)spec->head_dim, false);
    return add_output(b, node, 0, (tsr_value_name){"y", "output of the gated norm"}, width, false);
}

void tsr_block_split(tsr_block *b, int16_t half[2], int16_t value, int32_t heads,
                     const tsr_value_name called[2])
{
    tsr_node *node = add_node(b, &tsr_node_split);
    node->spec.split.heads = heads;
    node->in[0] = value;
    if (b->value[value].width % (2 * (uint64_t)heads))
        b->fault = "heads of an odd width are split";
    for (int i = 0; i < 2; i++)
        half[i] = add_output(b, node, i, called[i], b->value[value].width / 2, false);
}

int16_t tsr_block_gate(tsr_block *b, int16_t value, int16_t gate, tsr_value_name called)
{
    tsr_node *node = add_node(b, &tsr_node_gate);
    uint64_t width = b->value[value].width;
    node->in[0] = value;
    node->in[1] = gate;
    if (width % b->value[gate].width || b->value[value].matrix != TSR_NONE)
        b->fault = "a gate is for no equal groups of columns, or of a linear's bare result";
    return add_output(b, node, 0, called, width, false);
}

void tsr_block_add(tsr_block *b, tsr_residual *r, int16_t value)
{
    if (r->pending != TSR_NONE)
        b->fault = "it adds to a residual stream that was not added up";
    if (b->value[value].width != b->width)
        b->fault = "it adds another width to the residual stream";
    r->pending = value;
}

/* What runs relies on: the stream is added up by the first node, and what leaves still lacks something. */
static const char *judge(const tsr_block *b, tsr_residual r)
{
    if (b->fault)
        return b->fault;
    if (b->node_count == 0 || b->node[0].kind != &tsr_node_norm)
        return "its first node does not add up the residual stream";
    if (r.x == b->in.x || (r.pending == TSR_NONE && b->value[r.x].node != b->node_count - 1))
        return "it does not end with something that is done to the residual stream";
    return NULL;
}

tsr_status tsr_block_end(tsr_block *b, tsr_residual r, const char *who)
{
    const char *fault = judge(b, r);
    /* A bias lies in the gathered unit, which is gone when the next block runs. */
    int16_t matrix = fault || r.pending == TSR_NONE ? TSR_NONE : b->value[r.pending].matrix;
    if (matrix != TSR_NONE && b->matrix[matrix].bias)
        add_sum(b, &r, (tsr_value_name){"x_out", "the residual after the layer"});
    fault = fault ? fault : b->fault;
    b->out = r;
    return fault ? tsr_fail(TSR_EINTERNAL, "%s: the block cannot be run: %s", who, fault) : TSR_OK;
}

void tsr_value_print(char *out, uint64_t bytes, const tsr_block *block, int value)
{
    const tsr_value *v = &block->value[value];
    if (v->stack != TSR_NONE)
        snprintf(out, bytes, "%s %s", v->name, block->stack[v->stack].name);
    else if (v->matrix == TSR_NONE)
        snprintf(out, bytes, "%s", v->name);
    else
        snprintf(out, bytes, "%s %s", v->name, block->matrix[v->matrix].name);
}

static bool same_nodes(const tsr_block *a, const tsr_block *b)
{
    bool same = a->node_count == b->node_count;
    for (int i = 0; i < a->node_count && same; i++) {
        const tsr_node *x = &a->node[i], *y = &b->node[i];
        same = x->kind == y->kind && !memcmp(x->in, y->in, sizeof x->in) &&
               !memcmp(x->out, y->out, sizeof x->out) &&
               !memcmp(x->weight, y->weight, sizeof x->weight) &&
               !memcmp(&x->spec, &y->spec, sizeof x->spec);
    }
    return same;
}

uint64_t tsr_block_idle_parameters(const tsr_block *block)
{
    uint64_t idle = 0;
    for (int i = 0; i < block->stack_count; i++) {
        const tsr_stack *stack = &block->stack[i];
        uint64_t chosen = (uint64_t)block->node[stack->node].spec.experts.chosen;
        idle +=
            (stack->experts - chosen) * (stack->out * stack->in + (stack->bias ? stack->out : 0));
    }
    return idle;
}

bool tsr_block_same(const tsr_block *a, const tsr_block *b)
{
    bool same = same_nodes(a, b) && a->value_count == b->value_count &&
                a->matrix_count == b->matrix_count && a->vector_count == b->vector_count &&
                a->stack_count == b->stack_count;
    for (int i = 0; i < a->value_count && same; i++)
        same = a->value[i].width == b->value[i].width && a->value[i].slot == b->value[i].slot &&
               a->value[i].of_layer == b->value[i].of_layer;
    for (int i = 0; i < a->matrix_count && same; i++)
        same = !strcmp(a->matrix[i].name, b->matrix[i].name) &&
               a->matrix[i].in == b->matrix[i].in && a->matrix[i].bias == b->matrix[i].bias &&
               a->matrix[i].of_model == b->matrix[i].of_model &&
               a->matrix[i].router == b->matrix[i].router;
    for (int i = 0; i < a->vector_count && same; i++)
        same = !strcmp(a->vector[i].name, b->vector[i].name) &&
               a->vector[i].count == b->vector[i].count && a->vector[i].rows == b->vector[i].rows &&
               a->vector[i].bare == b->vector[i].bare && a->vector[i].wide == b->vector[i].wide &&
               !(a->vector[i].divisor < b->vector[i].divisor) &&
               !(a->vector[i].divisor > b->vector[i].divisor) &&
               a->vector[i].plus_one == b->vector[i].plus_one &&
               a->vector[i].one == b->vector[i].one && a->vector[i].taps == b->vector[i].taps &&
               a->vector[i].of_model == b->vector[i].of_model;
    for (int i = 0; i < a->stack_count && same; i++)
        same = !strcmp(a->stack[i].name, b->stack[i].name) &&
               a->stack[i].files == b->stack[i].files &&
               a->stack[i].experts == b->stack[i].experts && a->stack[i].out == b->stack[i].out &&
               a->stack[i].in == b->stack[i].in && a->stack[i].parts == b->stack[i].parts &&
               a->stack[i].bias == b->stack[i].bias;
    return same;
}
