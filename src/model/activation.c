#include "model/activation.h"

#include <stdio.h>

/* What one walk passes along. */
typedef struct {
    const tsr_activation_options *options;
    tsr_take_buffer *take;
    void *user;
    uint64_t element_bytes; /* of an activation */
    uint64_t tokens, rows, d, f, q, kv;
} walk;

static tsr_status take(const walk *w, void **out, const char *name, uint64_t bytes)
{
    void *unused;
    return w->take(w->user, out ? out : &unused, name, bytes);
}

/* A [tokens, width] activation of a layer (-1: shared). */
static tsr_status take_rows(const walk *w, void **out, int layer, const char *what, uint64_t width)
{
    char name[96];
    if (layer < 0)
        snprintf(name, sizeof name, "scratch %s", what);
    else
        snprintf(name, sizeof name, "layer %d %s", layer, what);
    return take(w, out, name, w->tokens * width * w->element_bytes);
}

static tsr_status take_floats(const walk *w, float **out, int layer, const char *what,
                              uint64_t count)
{
    char name[96];
    void *address = NULL;
    if (layer < 0)
        snprintf(name, sizeof name, "scratch %s", what);
    else
        snprintf(name, sizeof name, "layer %d %s", layer, what);
    TSR_TRY(take(w, &address, name, count * sizeof(float)));
    if (out)
        *out = address;
    return TSR_OK;
}

static bool composes(const walk *w, const tsr_layout_linear *linear)
{
    return linear->r && linear->dora && w->options->dropout;
}

/* Whether the backward reads z of this linear: for dm, for the heads' norm, for SwiGLU, or
 * (composed) both z and y. Otherwise z of q, k, v is rotated in place, and z of o and down only
 * lives until the residual. */
static bool needs_z(const walk *w, const tsr_layout_linear *linear, tsr_linear_kind kind)
{
    bool head_norm = w->options->layout->config.qk_norm && (kind == TSR_Q || kind == TSR_K);
    return (linear->r && linear->dora) || head_norm || kind == TSR_GATE || kind == TSR_UP;
}

/* The outputs of the seven linears. */
static tsr_status take_outputs(const walk *w, tsr_layer_buffers *b, int layer,
                               const tsr_layer_buffers *shared)
{
    const tsr_layout_linear *linears = w->options->layout->unit[layer].linear;
    for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
        const tsr_layout_linear *linear = &linears[kind];
        char what[48];
        void *in_place[3] = {b->q, b->k, b->v};
        snprintf(what, sizeof what, "z %s", tsr_linear_name[kind]);
        if ((kind == TSR_O || kind == TSR_DOWN) && !needs_z(w, linear, kind))
            b->z[kind] = shared->z[kind]; /* lives until the residual adds it */
        else if (kind <= TSR_V && !needs_z(w, linear, kind))
            b->z[kind] = in_place[kind];
        else
            TSR_TRY(take_rows(w, &b->z[kind], layer, what, linear->out));
        snprintf(what, sizeof what, "y %s", tsr_linear_name[kind]);
        if (composes(w, linear))
            TSR_TRY(take_rows(w, &b->y[kind], layer, what, linear->out));
    }
    return TSR_OK;
}

/* What attention and the norms leave. */
static tsr_status take_heads(const walk *w, tsr_layer_buffers *b, int layer)
{
    uint64_t heads = w->options->layout->config.head_count;
    TSR_TRY(take_rows(w, &b->q, layer, "q", w->q));
    TSR_TRY(take_rows(w, &b->k, layer, "k", w->kv));
    TSR_TRY(take_rows(w, &b->v, layer, "v", w->kv));
    TSR_TRY(take_rows(w, &b->o, layer, "o", w->q));
    TSR_TRY(take_rows(w, &b->x_mid, layer, "x_mid", w->d));
    TSR_TRY(take_floats(w, &b->rstd, layer, "rstd", w->tokens));
    TSR_TRY(take_floats(w, &b->rstd2, layer, "rstd2", w->tokens));
    return take_floats(w, &b->lse, layer, "lse", heads * w->tokens);
}

static tsr_status take_cheap(const walk *w, tsr_layer_buffers *b, int layer)
{
    TSR_TRY(take_rows(w, &b->h, layer, "h", w->d));
    TSR_TRY(take_rows(w, &b->h2, layer, "h2", w->d));
    return take_rows(w, &b->act, layer, "act", w->f);
}

/* What the layers that keep less than everything need in common. */
typedef struct {
    bool whole; /* some layer keeps at most x */
    bool cheap; /* some layer makes h, h2 and act again */
    bool composed;
} shared_need;

static shared_need find_need(const walk *w)
{
    const tsr_layout *layout = w->options->layout;
    shared_need need = {.whole = !w->options->train || layout->first_trained > 0};
    for (int layer = 0; layer < layout->layer_count; layer++) {
        need.composed |= w->options->dropout && layout->unit[layer].dora;
        if (!w->options->train || layer < layout->first_trained)
            continue;
        need.whole |= w->options->recompute[layer] == TSR_RECOMPUTE_FULL;
        need.cheap |= w->options->recompute[layer] == TSR_RECOMPUTE_SELECTIVE;
    }
    need.cheap |= need.whole;
    return need;
}

static tsr_status take_shared(const walk *w, tsr_activations *out)
{
    tsr_layer_buffers *b = &out->shared;
    const tsr_layout *layout = w->options->layout;
    shared_need need = find_need(w);
    if (need.whole) {
        TSR_TRY(take_rows(w, &b->x, -1, "x", w->d));
        TSR_TRY(take_heads(w, b, -1));
    }
    if (need.cheap)
        TSR_TRY(take_cheap(w, b, -1));
    for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
        uint64_t width = layout->unit[0].linear[kind].out;
        char what[48];
        snprintf(what, sizeof what, "z %s", tsr_linear_name[kind]);
        if (need.whole || kind == TSR_O || kind == TSR_DOWN)
            TSR_TRY(take_rows(w, &b->z[kind], -1, what, width));
        snprintf(what, sizeof what, "y %s", tsr_linear_name[kind]);
        if (need.whole && need.composed)
            TSR_TRY(take_rows(w, &b->y[kind], -1, what, width));
    }
    return TSR_OK;
}

/* A layer's own buffers by its recompute mode; what it has not of its own is the shared one. */
static tsr_status take_layer(const walk *w, tsr_layer_buffers *b, int layer,
                             const tsr_layer_buffers *shared)
{
    const tsr_layout *layout = w->options->layout;
    *b = *shared;
    if (!w->options->train || layer < layout->first_trained)
        return TSR_OK;
    tsr_recompute recompute = w->options->recompute[layer];
    TSR_TRY(take_rows(w, &b->x, layer, "x", w->d));
    if (recompute == TSR_RECOMPUTE_FULL)
        return TSR_OK;
    TSR_TRY(take_heads(w, b, layer));
    TSR_TRY(take_outputs(w, b, layer, shared));
    if (recompute == TSR_RECOMPUTE_SELECTIVE)
        return TSR_OK;
    return take_cheap(w, b, layer);
}

/* Of the sums over tokens that give dm: the widest consumer has 2 f, (Hq + 2 Hkv) D or d columns. */
static tsr_status take_partials(const walk *w, tsr_activations *out)
{
    uint64_t columns = 2 * w->f, heads = w->q + 2 * w->kv;
    bool dora = false;
    for (int layer = 0; layer < w->options->layout->layer_count; layer++)
        dora |= w->options->layout->unit[layer].dora;
    columns = heads > columns ? heads : columns;
    columns = w->d > columns ? w->d : columns;
    uint64_t rows = (uint64_t)w->options->kernels->partial_rows;
    return take_floats(w, &out->context.partials, -1, "partial sums", dora ? rows * columns : 0);
}

static tsr_status take_backward(const walk *w, tsr_activations *out)
{
    tsr_layer_scratch *s = &out->scratch;
    const tsr_layout *layout = w->options->layout;
    const tsr_layout_linear *linear = layout->unit[0].linear;
    uint64_t widest = 0, tallest = 0;
    for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
        widest = linear[kind].in > widest ? linear[kind].in : widest;
        tallest = linear[kind].out > tallest ? linear[kind].out : tallest;
    }
    TSR_TRY(take_rows(w, &out->dx, -1, "dx", w->d));
    TSR_TRY(take_rows(w, &s->d_act, -1, "d_act", w->f));
    TSR_TRY(take_rows(w, &s->d_h, -1, "d_h", w->d));
    TSR_TRY(take_rows(w, &s->d_z, -1, "d_z", w->d));
    TSR_TRY(take_rows(w, &s->d_o, -1, "d_o", w->q));
    TSR_TRY(take_rows(w, &s->d_q, -1, "d_q", w->q));
    TSR_TRY(take_rows(w, &s->d_k, -1, "d_k", w->kv));
    TSR_TRY(take_rows(w, &s->d_v, -1, "d_v", w->kv));
    TSR_TRY(take_floats(w, &s->da, -1, "da", layout->largest_r * widest));
    TSR_TRY(take_floats(w, &s->db, -1, "db", layout->largest_r * tallest));
    for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++)
        TSR_TRY(take_floats(w, &s->dm[kind], -1, "dm", linear[kind].out));
    TSR_TRY(take_partials(w, out));
    TSR_TRY(take_rows(w, &out->context.d_low, -1, "d_low", layout->largest_r));
    if (w->options->dropout)
        TSR_TRY(take_rows(w, &out->context.d_dropped, -1, "d_dropped", widest));
    return TSR_OK;
}

static tsr_status take_linear(const walk *w, tsr_activations *out)
{
    const tsr_layout *layout = w->options->layout;
    const tsr_layout_linear *linear = layout->unit[0].linear;
    uint64_t largest = 0, widest = 0, tallest = 0, r = layout->largest_r;
    for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
        uint64_t count = linear[kind].out * linear[kind].in;
        largest = count > largest ? count : largest;
        widest = linear[kind].in > widest ? linear[kind].in : widest;
        tallest = linear[kind].out > tallest ? linear[kind].out : tallest;
    }
    TSR_TRY(take(w, &out->context.weight, "scratch weight", largest * w->element_bytes));
    TSR_TRY(take_rows(w, &out->context.low, -1, "low", r));
    if (w->options->dropout) {
        TSR_TRY(take_rows(w, &out->context.dropped, -1, "dropped", widest));
        TSR_TRY(take_rows(w, &out->context.lora, -1, "lora", tallest));
    }
    TSR_TRY(take_floats(w, &out->norm_u, -1, "norm u", tallest * r));
    TSR_TRY(take_floats(w, &out->norm_gram, -1, "norm gram", r * r));
    if (w->options->dtype != TSR_F32)
        TSR_TRY(take_floats(w, &out->norm_b, -1, "norm b", tallest * r));
    return take_floats(w, &out->norm_bg, -1, "norm bg", tallest * r);
}

tsr_attention_bounds tsr_activation_attention(const tsr_activation_options *options)
{
    const tsr_model_config *config = &options->layout->config;
    return (tsr_attention_bounds){.tokens = options->bounds.tokens,
                                  .documents = options->bounds.documents,
                                  .longest = options->bounds.longest,
                                  .q_heads = (int32_t)config->head_count,
                                  .kv_heads = (int32_t)config->kv_head_count,
                                  .head_dim = (int32_t)config->head_dim,
                                  .dtype = options->dtype,
                                  .train = options->train};
}

static tsr_status take_head(const walk *w, tsr_activations *out)
{
    void *nll = NULL;
    uint64_t rows = w->rows, d = w->d;
    TSR_TRY(take_rows(w, &out->x_final, -1, "x final", d));
    TSR_TRY(take_rows(w, &out->h_final, -1, "h final", d));
    TSR_TRY(take_floats(w, &out->rstd_final, -1, "rstd final", w->tokens));
    TSR_TRY(take(w, &out->h_rows, "head rows", rows * d * w->element_bytes));
    TSR_TRY(take_floats(w, &out->head.max, -1, "head max", rows));
    TSR_TRY(take_floats(w, &out->head.sum, -1, "head sum", rows));
    TSR_TRY(take_floats(w, &out->head.label_logit, -1, "head label logit", rows));
    if (w->options->train) {
        TSR_TRY(take_floats(w, &out->head.acc, -1, "head acc", rows * d));
        TSR_TRY(take_floats(w, &out->head.wy, -1, "head wy", rows * d));
    }
    TSR_TRY(take(w, &nll, "head nll", rows * sizeof(double)));
    out->nll = nll;
    const tsr_activation_options *o = w->options;
    out->head_workspace_bytes =
        o->kernels->head_workspace_bytes(&(tsr_head_bounds){.rows = o->bounds.label_rows,
                                                            .d = (int64_t)d,
                                                            .chunk = TSR_HEAD_CHUNK_ROWS,
                                                            .dtype = o->dtype,
                                                            .train = o->train});
    TSR_TRY(take(w, &out->head_workspace, "head workspace", out->head_workspace_bytes));
    tsr_attention_bounds attention = tsr_activation_attention(o);
    out->attention_workspace_bytes = o->kernels->attention_workspace_bytes(&attention);
    return take(w, &out->attention_workspace, "attention workspace",
                out->attention_workspace_bytes);
}

tsr_status tsr_activations_walk(tsr_activations *out, const tsr_activation_options *options,
                                tsr_take_buffer *take_buffer, void *user)
{
    const tsr_model_config *config = &options->layout->config;
    tsr_activations ignored = {0};
    tsr_layer_buffers ignored_layer;
    walk w = {.options = options,
              .take = take_buffer,
              .user = user,
              .element_bytes = tsr_dtype_bytes(options->dtype),
              .tokens = (uint64_t)options->bounds.tokens,
              .rows = (uint64_t)options->bounds.label_rows,
              .d = config->hidden_size,
              .f = config->intermediate_size,
              .q = config->head_count * config->head_dim,
              .kv = config->kv_head_count * config->head_dim};
    tsr_activations *a = out ? out : &ignored;
    TSR_TRY(take_shared(&w, a));
    for (int layer = 0; layer < options->layout->layer_count; layer++)
        TSR_TRY(take_layer(&w, out ? &out->kept[layer] : &ignored_layer, layer, &a->shared));
    TSR_TRY(take_linear(&w, a));
    TSR_TRY(take_head(&w, a));
    return options->train ? take_backward(&w, a) : TSR_OK;
}
