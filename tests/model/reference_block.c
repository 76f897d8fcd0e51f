#include "model/reference_block.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_SLOTS = 256, MOST_EXPERTS = 32 };

typedef struct {
    const reference_block *r;
    double *value[TSR_BLOCK_VALUES]; /* with everything: magnitude and bias too */
    /* Of the block's only router. */
    int32_t id[MOST_SLOTS], row[MOST_SLOTS], slot[MOST_SLOTS], offset[MOST_EXPERTS + 1];
    reference_routes routes;
    reference_routing how;
} pass;

static double *new_rows(const pass *p, uint64_t width)
{
    double *out = calloc((uint64_t)p->r->tokens * width + 1, sizeof *out);
    assert_non_null(out);
    return out;
}

/* y [rows, out] = x w^T */
static void multiply(double *y, const double *x, const double *w, uint64_t rows, uint64_t out,
                     uint64_t in)
{
    for (uint64_t t = 0; t < rows; t++)
        for (uint64_t j = 0; j < out; j++) {
            double sum = 0;
            for (uint64_t i = 0; i < in; i++)
                sum += x[t * in + i] * w[j * in + i];
            y[t * out + j] = sum;
        }
}

/* W x + bias; LoRA + s B A drop(x); DoRA + (g - 1) W drop(x) + g s B A drop(x). */
static double *linear(const pass *p, int matrix, const double *x)
{
    const tsr_matrix *m = &p->r->block->matrix[matrix];
    const reference_linear *l = &p->r->linear[matrix];
    uint64_t t = (uint64_t)p->r->tokens;
    double *y = new_rows(p, m->out), *xd = new_rows(p, m->in), *base = new_rows(p, m->out);
    double *low = new_rows(p, l->r), *up = new_rows(p, m->out);
    multiply(y, x, l->w, t, m->out, m->in);
    for (uint64_t i = 0; i < t * m->in; i++)
        xd[i] = l->mask ? x[i] * l->mask[i] / l->kept : x[i];
    multiply(base, xd, l->w, t, m->out, m->in);
    multiply(low, xd, l->a, t, l->r, m->in);
    multiply(up, low, l->b, t, m->out, l->r);
    for (uint64_t i = 0; i < t * m->out; i++) {
        uint64_t j = i % m->out;
        double g = l->m ? l->m[j] / l->n[j] : 1;
        y[i] += g * l->scale * up[i] + (g - 1) * base[i] + (m->bias ? l->bias[j] : 0);
    }
    free(xd);
    free(base);
    free(low);
    free(up);
    return y;
}

/* out = w x / rms(x) over groups of `width`. */
static void rms_norm(double *out, const double *x, const double *w, uint64_t groups, uint64_t width,
                     double eps)
{
    for (uint64_t g = 0; g < groups; g++) {
        double sum = 0;
        for (uint64_t i = 0; i < width; i++)
            sum += x[g * width + i] * x[g * width + i];
        for (uint64_t i = 0; i < width; i++)
            out[g * width + i] = x[g * width + i] / sqrt(sum / (double)width + eps) * w[i];
    }
}

static void norm(pass *p, const tsr_node *node)
{
    const reference_block *r = p->r;
    uint64_t width = r->block->value[node->out[TSR_NORM_SUM]].width;
    uint64_t all = (uint64_t)r->tokens * width;
    double scale = node->spec.norm.scale != 0 ? (double)node->spec.norm.scale : 1;
    const double *x = node->in[TSR_NORM_X] == TSR_NONE ? NULL : p->value[node->in[TSR_NORM_X]];
    double *sum = new_rows(p, width), *h = new_rows(p, width);
    const double *pending =
        node->in[TSR_NORM_PENDING] == TSR_NONE ? NULL : p->value[node->in[TSR_NORM_PENDING]];
    for (uint64_t i = 0; i < all; i++)
        sum[i] = (x ? x[i] : 0) + (pending ? scale * pending[i] : 0);
    p->value[node->out[TSR_NORM_SUM]] = sum;
    if (node->spec.norm.head_dim) {
        uint64_t dim = (uint64_t)node->spec.norm.head_dim;
        double ones[64];
        for (uint64_t i = 0; i < dim; i++)
            ones[i] = 1;
        rms_norm(h, sum, ones, all / dim, dim, (double)node->spec.norm.eps);
        p->value[node->out[TSR_NORM_H]] = h;
        return;
    }
    if (node->weight[0] == TSR_NONE) {
        free(h);
        return;
    }
    rms_norm(h, sum, r->vector[node->weight[0]], (uint64_t)r->tokens, width,
             (double)node->spec.norm.eps);
    p->value[node->out[TSR_NORM_H]] = h;
}

static void rotate(const pass *p, double *x, int heads, int dim)
{
    int half = dim / 2;
    for (int t = 0; t < p->r->tokens; t++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < half; i++) {
                double *a = &x[(t * heads + h) * dim + i], *b = a + half;
                double angle = p->r->positions[t] * pow(p->r->theta, -2.0 * i / dim);
                double first = *a * cos(angle) - *b * sin(angle);
                *b = *b * cos(angle) + *a * sin(angle);
                *a = first;
            }
}

static void rope(pass *p, const tsr_node *node)
{
    const tsr_rope_spec *s = &node->spec.rope;
    for (int i = 0; i < 3 && node->out[i] != TSR_NONE; i++) {
        int heads = i == 0 ? s->q_heads : s->kv_heads;
        uint64_t width = p->r->block->value[node->in[i]].width;
        double *out = p->value[node->out[i]] = new_rows(p, width);
        memcpy(out, p->value[node->in[i]], (uint64_t)p->r->tokens * width * sizeof *out);
        if (i < 2 && node->weight[i] != TSR_NONE)
            rms_norm(out, out, p->r->vector[node->weight[i]],
                     (uint64_t)p->r->tokens * (uint64_t)heads, (uint64_t)s->head_dim,
                     (double)s->head_norm_eps);
        if (i < 2)
            rotate(p, out, heads, s->head_dim);
    }
}

/* The first columns of a value and the rest. */
static void columns(pass *p, const tsr_node *node)
{
    uint64_t all = p->r->block->value[node->in[0]].width, from = 0;
    for (int i = 0; i < 2; i++) {
        uint64_t width = p->r->block->value[node->out[i]].width;
        double *out = p->value[node->out[i]] = new_rows(p, width);
        for (uint64_t t = 0; t < (uint64_t)p->r->tokens; t++)
            memcpy(out + t * width, p->value[node->in[0]] + t * all + from, width * sizeof *out);
        from += width;
    }
}

/* Column `i` of a part of a head that turns. */
static double turned(const pass *p, const double *x, int t, const tsr_latent_spec *s, int i)
{
    int half = s->rope_dim / 2, pair = s->neighbours ? i / 2 : i % half;
    bool low = s->neighbours ? i % 2 == 0 : i < half;
    int first = s->neighbours ? 2 * pair : pair, second = s->neighbours ? first + 1 : first + half;
    double angle = p->r->positions[t] * pow(p->r->theta, -2.0 * pair / s->rope_dim);
    return low ? x[first] * cos(angle) - x[second] * sin(angle)
               : x[second] * cos(angle) + x[first] * sin(angle);
}

static void latent(pass *p, const tsr_node *node)
{
    const tsr_latent_spec *s = &node->spec.latent;
    int nope = s->nope_dim, rope = s->rope_dim, dim = nope + rope, both = nope + s->v_dim;
    double *out[3];
    for (int i = 0; i < 3; i++)
        out[i] = p->value[node->out[i]] = new_rows(p, p->r->block->value[node->out[i]].width);
    for (int row = 0; row < p->r->tokens * s->heads; row++) {
        int t = row / s->heads;
        const double *q = p->value[node->in[TSR_LATENT_Q]] + row * dim;
        const double *kv = p->value[node->in[TSR_LATENT_KV]] + row * both;
        for (int i = 0; i < dim; i++) {
            out[0][row * dim + i] = i < nope ? q[i] : turned(p, q + nope, t, s, i - nope);
            out[1][row * dim + i] =
                i < nope
                    ? kv[i]
                    : turned(p, p->value[node->in[TSR_LATENT_SHARED]] + t * rope, t, s, i - nope);
        }
        memcpy(out[2] + row * s->v_dim, kv + nope, (size_t)s->v_dim * sizeof *kv);
    }
}

/* sink: of the head, or NULL. */
static void attend(double *o, const pass *p, const tsr_attention_spec *s, int head, int t,
                   double *const in[3], const double *sink)
{
    int dim = s->head_dim, key_head = head / (s->q_heads / s->kv_heads);
    int wide = s->v_dim ? s->v_dim : dim;
    int first = t - p->r->positions[t];
    double score[64], sum = sink ? exp(*sink) : 0;
    if (s->window && t - s->window + 1 > first)
        first = t - s->window + 1;
    for (int j = first; j <= t; j++) {
        score[j] = 0;
        for (int i = 0; i < dim; i++)
            score[j] += in[0][(t * s->q_heads + head) * dim + i] *
                        in[1][(j * s->kv_heads + key_head) * dim + i] / sqrt(dim);
        sum += score[j] = exp(score[j]);
    }
    for (int j = first; j <= t; j++)
        for (int i = 0; i < wide; i++)
            o[(t * s->q_heads + head) * wide + i] +=
                score[j] / sum * in[2][(j * s->kv_heads + key_head) * wide + i];
}

static void attention(pass *p, const tsr_node *node)
{
    const tsr_attention_spec *s = &node->spec.attention;
    double *const in[3] = {p->value[node->in[0]], p->value[node->in[1]], p->value[node->in[2]]};
    double *o = new_rows(p, p->r->block->value[node->out[TSR_ATTENTION_O]].width);
    const double *sinks = node->weight[0] == TSR_NONE ? NULL : p->r->vector[node->weight[0]];
    assert_true(p->r->tokens <= 64);
    for (int head = 0; head < s->q_heads; head++)
        for (int t = 0; t < p->r->tokens; t++)
            attend(o, p, s, head, t, in, sinks ? &sinks[head] : NULL);
    p->value[node->out[TSR_ATTENTION_O]] = o;
}

static double gated(double gate, double up, tsr_activation activation)
{
    double inner = sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate), g = fmin(gate, 7);
    switch (activation) {
    case TSR_SILU:
        return gate / (1 + exp(-gate)) * up;
    case TSR_GELU_TANH:
        return gate / 2 * (1 + tanh(inner)) * up;
    default:
        return g / (1 + exp(-1.702 * g)) * (1 + fmax(-7, fmin(7, up)));
    }
}

static void glu(pass *p, const tsr_node *node)
{
    const tsr_value *value = &p->r->block->value[node->out[0]];
    uint64_t width = value->rows ? value->width / value->rows : value->width;
    double *act = new_rows(p, value->width);
    for (uint64_t i = 0; i < (uint64_t)p->r->tokens * value->width; i++) {
        bool one = node->in[1] == TSR_NONE; /* its halves are gate and up */
        uint64_t t = i / width, j = i % width, stride = one ? 2 * width : width;
        double gate = p->value[node->in[0]][t * stride + j];
        double up = one ? p->value[node->in[0]][t * stride + width + j] : p->value[node->in[1]][i];
        act[i] = gated(gate, up, node->spec.glu.activation);
    }
    p->value[node->out[0]] = act;
}

static void gain(pass *p, const tsr_node *node)
{
    uint64_t width = p->r->block->width;
    double *out = p->value[node->out[0]] = new_rows(p, width);
    for (uint64_t i = 0; i < (uint64_t)p->r->tokens * width; i++)
        out[i] = p->value[node->in[0]][i] * p->r->vector[node->weight[0]][i % width];
}

/* ---- linear attention and gates ---- */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void convolution(pass *p, const tsr_node *node)
{
    uint64_t width = p->r->block->value[node->out[0]].width;
    int taps = node->spec.convolution.taps;
    const double *w = p->r->vector[node->weight[0]], *x = p->value[node->in[0]];
    double *out = p->value[node->out[0]] = new_rows(p, width);
    for (int t = 0; t < p->r->tokens; t++)
        for (uint64_t i = 0; i < width; i++) {
            double sum = 0;
            for (int back = 0; back < taps && back <= p->r->positions[t]; back++)
                sum += w[i * (uint64_t)taps + (uint64_t)(taps - 1 - back)] *
                       x[(uint64_t)(t - back) * width + i];
            out[(uint64_t)t * width + i] = sum * sigmoid(sum);
        }
}

/* x / |x|, times scale. */
static void unit(double *out, const double *x, int count, double scale)
{
    double squares = 1e-6;
    for (int i = 0; i < count; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < count; i++)
        out[i] = x[i] / sqrt(squares) * scale;
}

/* One token: the state decays, is corrected towards v at k, and is read at q. */
static void delta_step(double *o, double *state, const double *q, const double *k, const double *v,
                       double beta, double keep, const tsr_delta_rule_spec *s)
{
    int dk = s->key_dim, dv = s->value_dim;
    for (int i = 0; i < dk * dv; i++)
        state[i] *= keep;
    for (int j = 0; j < dv; j++) {
        double found = 0;
        for (int i = 0; i < dk; i++)
            found += state[i * dv + j] * k[i];
        o[j] = 0;
        for (int i = 0; i < dk; i++) {
            state[i * dv + j] += beta * (v[j] - found) * k[i];
            o[j] += state[i * dv + j] * q[i];
        }
    }
}

static void delta_rule(pass *p, const tsr_node *node)
{
    const tsr_delta_rule_spec *s = &node->spec.delta_rule;
    int dk = s->key_dim, dv = s->value_dim, heads = s->value_heads, keys = s->key_heads * dk;
    const double *mixed = p->value[node->in[0]], *b = p->value[node->in[1]];
    const double *a = p->value[node->in[2]], *a_log = p->r->vector[node->weight[0]];
    double *o = p->value[node->out[0]] = new_rows(p, (uint64_t)(heads * dv));
    for (int h = 0; h < heads; h++) {
        double state[64], q[8], k[8];
        for (int t = 0; t < p->r->tokens; t++) {
            const double *row = mixed + t * (2 * keys + heads * dv);
            const double *query = row + h / (heads / s->key_heads) * dk;
            double step = log1p(exp(a[t * heads + h] + p->r->vector[node->weight[1]][h]));
            if (p->r->positions[t] == 0)
                memset(state, 0, sizeof state);
            unit(q, query, dk, 1 / sqrt(dk));
            unit(k, query + keys, dk, 1);
            delta_step(o + (t * heads + h) * dv, state, q, k, row + 2 * keys + h * dv,
                       sigmoid(b[t * heads + h]), exp(-exp(a_log[h]) * step), s);
        }
    }
}

static void gated_norm(pass *p, const tsr_node *node)
{
    uint64_t width = p->r->block->value[node->out[0]].width;
    uint64_t all = (uint64_t)p->r->tokens * width;
    uint64_t dim = (uint64_t)node->spec.gated_norm.head_dim;
    const double *gate = p->value[node->in[1]];
    double *out = p->value[node->out[0]] = new_rows(p, width);
    rms_norm(out, p->value[node->in[0]], p->r->vector[node->weight[0]], all / dim, dim,
             (double)node->spec.gated_norm.eps);
    for (uint64_t i = 0; i < all; i++)
        out[i] *= gate[i] * sigmoid(gate[i]);
}

static void split(pass *p, const tsr_node *node)
{
    uint64_t width = p->r->block->value[node->out[0]].width;
    uint64_t dim = width / (uint64_t)node->spec.split.heads;
    for (int half = 0; half < 2; half++) {
        double *out = p->value[node->out[half]] = new_rows(p, width);
        for (uint64_t i = 0; i < (uint64_t)p->r->tokens * width; i++)
            out[i] = p->value[node->in[0]][i / dim * 2 * dim + (uint64_t)half * dim + i % dim];
    }
}

static void gate(pass *p, const tsr_node *node)
{
    uint64_t width = p->r->block->value[node->out[0]].width;
    uint64_t group = width / p->r->block->value[node->in[1]].width;
    double *out = p->value[node->out[0]] = new_rows(p, width);
    for (uint64_t i = 0; i < (uint64_t)p->r->tokens * width; i++)
        out[i] = p->value[node->in[0]][i] * sigmoid(p->value[node->in[1]][i / group]);
}

/* ---- experts ---- */

static const double *vector_of(const pass *p, const tsr_node *node, int port)
{
    return node->weight[port] == TSR_NONE ? NULL : p->r->vector[node->weight[port]];
}

static reference_routing routing_of(const pass *p, const tsr_node *node)
{
    static const reference_scoring scorings[] = {[TSR_ROUTE_SOFTMAX] = REFERENCE_SOFTMAX,
                                                 [TSR_ROUTE_CHOSEN] = REFERENCE_CHOSEN,
                                                 [TSR_ROUTE_SIGMOID] = REFERENCE_SIGMOID};
    const tsr_route_spec *s = &node->spec.route;
    return (reference_routing){.experts = s->experts,
                               .k = s->chosen,
                               .scoring = scorings[s->scoring],
                               .normalise = s->normalise,
                               .scale = (double)s->scale,
                               .expert_scale = vector_of(p, node, TSR_ROUTE_SCALE),
                               .correction = vector_of(p, node, TSR_ROUTE_CORRECTION),
                               .n_group = s->groups,
                               .topk_group = s->chosen_groups,
                               .capacity_factor = p->r->capacity_factor,
                               .tile_rows = p->r->tile_rows};
}

static void add_auxiliary(const pass *p, const double *logits, int experts)
{
    for (int t = 0; p->r->aux && t < p->r->tokens; t++) {
        double sum = 0;
        for (int e = 0; e < experts; e++)
            sum += exp(logits[t * experts + e]);
        for (int e = 0; e < experts; e++)
            *p->r->aux_sum += p->r->aux[e] * exp(logits[t * experts + e]) / sum;
    }
}

static void route(pass *p, const tsr_node *node)
{
    const double *x = p->value[node->in[0]], *w = vector_of(p, node, TSR_ROUTE_WEIGHT);
    uint64_t width = p->r->block->value[node->in[0]].width;
    int experts = node->spec.route.experts, tokens = p->r->tokens;
    double *logits = new_rows(p, (uint64_t)experts),
           *weights = new_rows(p, (uint64_t)node->spec.route.chosen);
    assert_true(tokens * node->spec.route.chosen <= MOST_SLOTS && experts <= MOST_EXPERTS);
    if (w)
        reference_router(logits, x, w, vector_of(p, node, TSR_ROUTE_BIAS), tokens, (int)width,
                         experts);
    else
        memcpy(logits, x, (size_t)(tokens * experts) * sizeof *logits);
    p->how = routing_of(p, node);
    p->routes = (reference_routes){p->id, p->row, p->slot, p->offset, weights};
    reference_route(&p->routes, logits, &p->how, tokens);
    add_auxiliary(p, logits, experts);
    p->value[node->out[TSR_ROUTE_LOGITS]] = logits;
    p->value[node->out[TSR_ROUTE_P]] = weights;
}

/* Rows of what a stack makes of the tokens, or of rows. */
static double *rows_of(const pass *p, const tsr_node *node, const double *x, bool gather)
{
    const reference_expert_linear *l = &p->r->stack[node->weight[0]];
    double *rows = new_rows(p, (uint64_t)(p->how.k * l->out));
    reference_experts(rows, x, gather, l, &p->routes, &p->how, p->r->tokens);
    return rows;
}

static void experts(pass *p, const tsr_node *node)
{
    p->value[node->out[0]] = rows_of(p, node, p->value[node->in[TSR_EXPERTS_X]], true);
}

static void combine(pass *p, const tsr_node *node)
{
    int width = p->r->stack[node->weight[0]].out;
    double *rows = rows_of(p, node, p->value[node->in[TSR_COMBINE_ROWS]], false);
    p->value[node->out[0]] = new_rows(p, (uint64_t)width);
    reference_combine(p->value[node->out[0]], rows, &p->routes, &p->how, p->r->tokens, width);
    free(rows);
}

static void sum(pass *p, const tsr_node *node)
{
    uint64_t width = p->r->block->value[node->out[0]].width;
    double *out = p->value[node->out[0]] = new_rows(p, width);
    for (uint64_t i = 0; i < (uint64_t)p->r->tokens * width; i++)
        out[i] = p->value[node->in[0]][i] + p->value[node->in[1]][i];
}

static void run(pass *p, const tsr_node *node)
{
    if (node->kind == &tsr_node_norm)
        norm(p, node);
    else if (node->kind == &tsr_node_rope)
        rope(p, node);
    else if (node->kind == &tsr_node_attention)
        attention(p, node);
    else if (node->kind == &tsr_node_glu)
        glu(p, node);
    else if (node->kind == &tsr_node_columns)
        columns(p, node);
    else if (node->kind == &tsr_node_latent)
        latent(p, node);
    else if (node->kind == &tsr_node_gain)
        gain(p, node);
    else if (node->kind == &tsr_node_convolution)
        convolution(p, node);
    else if (node->kind == &tsr_node_delta_rule)
        delta_rule(p, node);
    else if (node->kind == &tsr_node_gated_norm)
        gated_norm(p, node);
    else if (node->kind == &tsr_node_split)
        split(p, node);
    else if (node->kind == &tsr_node_gate)
        gate(p, node);
    else if (node->kind == &tsr_node_route)
        route(p, node);
    else if (node->kind == &tsr_node_experts)
        experts(p, node);
    else if (node->kind == &tsr_node_combine)
        combine(p, node);
    else if (node->kind == &tsr_node_sum)
        sum(p, node);
    else if (node->kind != &tsr_node_linear)
        fail_msg("no reference for %s", node->kind->name);
    for (int i = 0; i < TSR_NODE_PORTS && node->kind == &tsr_node_linear; i++)
        if (node->weight[i] != TSR_NONE)
            p->value[node->out[i]] = linear(p, node->weight[i], p->value[node->in[0]]);
}

void reference_block_run(double *out, const reference_block *r)
{
    pass p = {.r = r};
    const tsr_block *b = r->block;
    uint64_t all = (uint64_t)r->tokens * b->width;
    p.value[b->in.x] = new_rows(&p, b->width);
    p.value[b->in.pending] = new_rows(&p, b->width); /* nothing is pending */
    memcpy(p.value[b->in.x], r->x, all * sizeof *out);
    for (int i = 0; i < b->node_count; i++)
        run(&p, &b->node[i]);
    for (uint64_t i = 0; i < all; i++)
        out[i] =
            p.value[b->out.x][i] + (b->out.pending == TSR_NONE ? 0 : p.value[b->out.pending][i]);
    for (int v = 0; v < b->value_count; v++)
        free(p.value[v]);
}
