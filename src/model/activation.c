#include "model/activation.h"

#include "base/checked.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* Memory that buffers are cut from, from its front; two phases of a micro-batch share it by beginning
 * anew. `largest` is what it must have. While it is measured, and while planning, there is no base. */
typedef struct {
    char *base;
    uint64_t used, largest;
} region;

static void *cut(region *r, uint64_t bytes)
{
    char *out = r->base && bytes ? r->base + r->used : NULL;
    r->used += tsr_align_up(bytes, TSR_ALIGNMENT);
    r->largest = r->used > r->largest ? r->used : r->largest;
    return out;
}

/* What one walk passes along. */
typedef struct {
    const tsr_activation_options *options;
    tsr_take_buffer *take;
    void *user;
    region *from;           /* cut from it, nameless; NULL: taken */
    uint64_t element_bytes; /* of an activation */
    uint64_t tokens, rows, d, f, q, kv;
    char layer_name[24]; /* of the layer whose buffers are taken: "layer 3 " */
} walk;

static tsr_status take(const walk *w, void **out, const char *name, tsr_array array)
{
    void *unused;
    return w->take(w->user, out ? out : &unused, name, array);
}

/* A buffer of a layer (-1: shared). */
static tsr_status take_named(const walk *w, void **out, int layer, const char *what,
                             tsr_array array)
{
    char name[96];
    if (w->from) {
        *out = cut(w->from, tsr_array_bytes(array));
        return TSR_OK;
    }
    tsr_text_join(name, sizeof name, layer < 0 ? "scratch " : w->layer_name, what);
    return take(w, out, name, array);
}

/* A [tokens, width] activation of a layer (-1: shared). */
static tsr_status take_rows(const walk *w, void **out, int layer, const char *what, uint64_t width)
{
    return take_named(w, out, layer, what, (tsr_array){w->options->dtype, w->tokens, width});
}

static tsr_status take_floats(const walk *w, float **out, int layer, const char *what,
                              uint64_t rows, uint64_t columns)
{
    void *address = NULL;
    TSR_TRY(take_named(w, &address, layer, what, (tsr_array){TSR_F32, rows, columns}));
    if (out)
        *out = address;
    return TSR_OK;
}

static void *cut_rows(region *r, const walk *w, uint64_t width)
{
    return cut(r, w->tokens * width * w->element_bytes);
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
        tsr_text_join(what, sizeof what, "z ", tsr_linear_name[kind]);
        if ((kind == TSR_O || kind == TSR_DOWN) && !needs_z(w, linear, kind))
            b->z[kind] = shared->z[kind]; /* lives until the residual adds it */
        else if (kind <= TSR_V && !needs_z(w, linear, kind))
            b->z[kind] = in_place[kind];
        else
            TSR_TRY(take_rows(w, &b->z[kind], layer, what, linear->out));
        tsr_text_join(what, sizeof what, "y ", tsr_linear_name[kind]);
        if (composes(w, linear))
            TSR_TRY(take_rows(w, &b->y[kind], layer, what, linear->out));
    }
    return TSR_OK;
}

/* Whether x A^T of this linear is kept; `again`: by a layer that recomputes in full, whose forward leaves
 * out down_proj unless its z is needed (layer.h). */
static bool keeps_low(const walk *w, const tsr_layout_linear *linear, tsr_linear_kind kind,
                      bool again)
{
    const tsr_activation_options *o = w->options;
    bool merges = tsr_linear_merges(o->dtype, o->fp8, linear->quantized, linear->in, linear->r);
    return linear->r && tsr_graph_keeps_low(merges, o->dropout, o->dropout && linear->dora) &&
           !(again && kind == TSR_DOWN && !needs_z(w, linear, kind));
}

static tsr_status take_low(const walk *w, void **out, int layer, tsr_linear_kind kind, uint64_t r)
{
    char what[48];
    tsr_text_join(what, sizeof what, "low ", tsr_linear_name[kind]);
    return take_rows(w, out, layer, what, r);
}

static tsr_status take_lows(const walk *w, tsr_layer_buffers *b, int layer)
{
    const tsr_layout_linear *linear = w->options->layout->unit[layer].linear;
    for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++)
        if (keeps_low(w, &linear[kind], kind, false))
            TSR_TRY(take_low(w, &b->low[kind], layer, kind, linear[kind].r));
    return TSR_OK;
}

/* Of a layer that recomputes in full. */
static void share_lows(const walk *w, tsr_layer_buffers *b, int layer,
                       const tsr_layer_buffers *shared)
{
    const tsr_layout_linear *linear = w->options->layout->unit[layer].linear;
    for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++)
        if (keeps_low(w, &linear[kind], kind, true))
            b->low[kind] = shared->low[kind];
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
    TSR_TRY(take_floats(w, &b->rstd, layer, "rstd", w->tokens, 1));
    TSR_TRY(take_floats(w, &b->rstd2, layer, "rstd2", w->tokens, 1));
    return take_floats(w, &b->lse, layer, "lse", heads, w->tokens);
}

static tsr_status take_norms(const walk *w, tsr_layer_buffers *b, int layer)
{
    TSR_TRY(take_rows(w, &b->h, layer, "h", w->d));
    return take_rows(w, &b->h2, layer, "h2", w->d);
}

/* What the layers that keep less than everything need in common. */
typedef struct {
    bool whole; /* some layer keeps at most x */
    bool cheap; /* some layer makes h, h2 and act again */
    bool composed;
    bool heads; /* some layer's q, k or v is not rotated in place */
    /* The largest rank of x A^T that layers which recompute in full share. */
    uint64_t low[TSR_LINEAR_COUNT];
} shared_need;

static void need_lows(shared_need *need, const walk *w, const tsr_layout_linear *linear)
{
    for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++)
        if (keeps_low(w, &linear[kind], kind, true) && linear[kind].r > need->low[kind])
            need->low[kind] = linear[kind].r;
}

static shared_need find_need(const walk *w)
{
    const tsr_layout *layout = w->options->layout;
    shared_need need = {.whole = !w->options->train || layout->first_trained > 0};
    for (int layer = 0; layer < layout->layer_count; layer++) {
        const tsr_layout_linear *linear = layout->unit[layer].linear;
        need.composed |= w->options->dropout && layout->unit[layer].dora;
        for (tsr_linear_kind kind = TSR_Q; kind <= TSR_V; kind++)
            need.heads |= needs_z(w, &linear[kind], kind);
        if (!w->options->train || layer < layout->first_trained)
            continue;
        need.whole |= w->options->recompute[layer] == TSR_RECOMPUTE_FULL;
        if (w->options->recompute[layer] == TSR_RECOMPUTE_FULL)
            need_lows(&need, w, linear);
        need.cheap |= w->options->recompute[layer] == TSR_RECOMPUTE_SELECTIVE;
    }
    need.cheap |= need.whole;
    return need;
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
                                  .train = options->train,
                                  .atomics = options->train && options->atomics,
                                  .wider = options->train ? options->wider : 0};
}

/* Attention, forward and backward, runs while nothing of the MLP is alive but what a layer keeps of
 * its own: its workspace lies where the shared part of the MLP does. */
static void cut_mlp(region *r, const walk *w, tsr_activations *out, const shared_need *need)
{
    r->used = 0;
    if (need->cheap)
        out->shared.act = cut_rows(r, w, w->f);
    if (need->whole) {
        out->shared.z[TSR_GATE] = cut_rows(r, w, w->f);
        out->shared.z[TSR_UP] = cut_rows(r, w, w->f);
    }
    if (w->options->train)
        out->scratch.d_act = cut_rows(r, w, w->f);
    r->used = 0;
    out->attention_workspace = cut(r, out->attention_workspace_bytes);
}

static tsr_status take_mlp(const walk *w, tsr_activations *out, const shared_need *need)
{
    region r = {0};
    void *base = NULL;
    tsr_attention_bounds attention = tsr_activation_attention(w->options);
    out->attention_workspace_bytes = w->options->kernels->attention_workspace_bytes(&attention);
    cut_mlp(&r, w, out, need);
    TSR_TRY(take(w, &base, "scratch MLP, or attention workspace", tsr_array_of_bytes(r.largest)));
    r.base = base;
    cut_mlp(&r, w, out, need);
    return TSR_OK;
}

static tsr_status take_shared(const walk *w, tsr_activations *out)
{
    tsr_layer_buffers *b = &out->shared;
    const tsr_layout *layout = w->options->layout;
    shared_need need = find_need(w);
    TSR_TRY(take_mlp(w, out, &need));
    if (need.whole) {
        TSR_TRY(take_rows(w, &b->x, -1, "x", w->d));
        TSR_TRY(take_heads(w, b, -1));
    }
    if (need.cheap)
        TSR_TRY(take_norms(w, b, -1));
    void *in_place[3] = {b->q, b->k, b->v};
    for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
        uint64_t width = layout->unit[0].linear[kind].out;
        char what[48];
        tsr_text_join(what, sizeof what, "z ", tsr_linear_name[kind]);
        if (kind == TSR_O || kind == TSR_DOWN || (kind <= TSR_V && need.whole && need.heads))
            TSR_TRY(take_rows(w, &b->z[kind], -1, what, width));
        else if (kind <= TSR_V)
            b->z[kind] = in_place[kind];
        tsr_text_join(what, sizeof what, "y ", tsr_linear_name[kind]);
        if (need.whole && need.composed)
            TSR_TRY(take_rows(w, &b->y[kind], -1, what, width));
        if (need.low[kind])
            TSR_TRY(take_low(w, &b->low[kind], -1, kind, need.low[kind]));
    }
    return TSR_OK;
}

/* A layer's own buffers by its recompute mode; what it has not of its own is the shared one, but for low,
 * which the backward makes where there is none. */
static tsr_status take_layer(const walk *w, tsr_layer_buffers *b, int layer,
                             const tsr_layer_buffers *shared)
{
    const tsr_layout *layout = w->options->layout;
    *b = *shared;
    memset(b->low, 0, sizeof b->low);
    if (!w->options->train || layer < layout->first_trained)
        return TSR_OK;
    tsr_recompute recompute = w->options->recompute[layer];
    TSR_TRY(take_rows(w, &b->x, layer, "x", w->d));
    if (recompute == TSR_RECOMPUTE_FULL) {
        share_lows(w, b, layer, shared);
        return TSR_OK;
    }
    TSR_TRY(take_heads(w, b, layer));
    TSR_TRY(take_outputs(w, b, layer, shared));
    TSR_TRY(take_lows(w, b, layer));
    if (recompute == TSR_RECOMPUTE_SELECTIVE)
        return TSR_OK;
    TSR_TRY(take_norms(w, b, layer));
    return take_rows(w, &b->act, layer, "act", w->f);
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
    return take_floats(w, &out->context.partials, -1, "partial sums", dora ? rows : 0, columns);
}

static tsr_status take_backward(const walk *w, tsr_activations *out)
{
    const tsr_layout *layout = w->options->layout;
    const tsr_layout_linear *linear = layout->unit[0].linear;
    uint64_t widest = 0;
    for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++)
        widest = linear[kind].in > widest ? linear[kind].in : widest;
    TSR_TRY(take_rows(w, &out->dx, -1, "dx", w->d));
    TSR_TRY(take_partials(w, out));
    TSR_TRY(take_rows(w, &out->context.d_low, -1, "d_low", layout->largest_r));
    if (w->options->dropout)
        TSR_TRY(take_rows(w, &out->context.d_dropped, -1, "d_dropped", widest));
    return TSR_OK;
}

/* Rows are a linear's input, or the gradient of its output. */
static tsr_status take_fp8(const walk *w, tsr_linear_fp8 *out, const tsr_array *weight,
                           uint64_t widest, uint64_t tallest)
{
    uint64_t width = widest > tallest ? widest : tallest;
    TSR_TRY(take(w, &out->weight, "scratch weight in e4m3",
                 (tsr_array){TSR_F8_E4M3, weight->rows, weight->columns}));
    TSR_TRY(take_floats(w, &out->weight_scale, -1, "weight scale", tallest, 1));
    for (int i = 0; i < TSR_LINEAR_MADE && w->options->train; i++) {
        char what[32];
        snprintf(what, sizeof what, "weight scale ahead %d", i);
        TSR_TRY(take_floats(w, &out->made_weight_scale[i], -1, what, tallest, 1));
        snprintf(what, sizeof what, "row scale ahead %d", i);
        TSR_TRY(take_floats(w, &out->made_row_scale[i], -1, what, w->tokens, 1));
    }
    TSR_TRY(
        take(w, &out->rows, "scratch rows in e4m3", (tsr_array){TSR_F8_E4M3, w->tokens, width}));
    return take_floats(w, &out->row_scale, -1, "row scale", w->tokens, 1);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Of DoRA's norms: what those need that the kernel that merges makes, and those that are factored. */
static tsr_status take_norm_scratch(const walk *w, tsr_activations *out)
{
    const tsr_layout *layout = w->options->layout;
    uint64_t partials = 0, products = 0, r = 0;
    for (int i = 0; i < layout->layer_count * TSR_LINEAR_COUNT; i++) {
        const tsr_layout_linear *one =
            &layout->unit[i / TSR_LINEAR_COUNT].linear[i % TSR_LINEAR_COUNT];
        if (!one->r || !one->dora)
            continue;
        if (tsr_linear_norm_merges(w->options->dtype, one->quantized, one->in, one->r))
            partials = larger(
                partials, (uint64_t)tsr_nf4_merge_partials((int64_t)one->out, (int64_t)one->in));
        else {
            products = larger(products, one->out * one->r);
            r = larger(r, one->r);
        }
    }
    TSR_TRY(take_floats(w, &out->norm_partials, -1, "norm partial sums", partials, 1));
    TSR_TRY(take_floats(w, &out->norm_u, -1, "norm u", products, 1));
    TSR_TRY(take_floats(w, &out->norm_gram, -1, "norm gram", r, r));
    if (w->options->dtype != TSR_F32)
        TSR_TRY(take_floats(w, &out->norm_b, -1, "norm b", products, 1));
    return take_floats(w, &out->norm_bg, -1, "norm bg", products, 1);
}

static tsr_status take_linear(const walk *w, tsr_activations *out)
{
    const tsr_layout *layout = w->options->layout;
    const tsr_layout_linear *linear = layout->unit[0].linear;
    uint64_t widest = 0, tallest = 0, r = layout->largest_r;
    tsr_array weight = {.dtype = w->options->dtype};
    for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
        tsr_array one = {weight.dtype, linear[kind].out, linear[kind].in};
        weight = tsr_array_bytes(one) > tsr_array_bytes(weight) ? one : weight;
        widest = linear[kind].in > widest ? linear[kind].in : widest;
        tallest = linear[kind].out > tallest ? linear[kind].out : tallest;
    }
    TSR_TRY(take(w, &out->context.weight, "scratch weight", weight));
    if (w->options->fp8)
        TSR_TRY(take_fp8(w, &out->context.fp8, &weight, widest, tallest));
    TSR_TRY(take_rows(w, &out->context.low, -1, "low", r));
    if (w->options->dropout) {
        TSR_TRY(take_rows(w, &out->context.dropped, -1, "dropped", widest));
        TSR_TRY(take_rows(w, &out->context.lora, -1, "lora", tallest));
    }
    return take_norm_scratch(w, out);
}

/* The head runs between the last layer's forward and its backward. h_final lies where d_h does; the
 * label rows, whose gradient is scattered into d_h, beyond it. */
static void cut_head(region *r, const walk *w, tsr_activations *out)
{
    tsr_layer_scratch *s = &out->scratch;
    uint64_t floats = w->rows * w->d * sizeof(float);
    r->used = 0;
    if (w->options->train) {
        s->d_h = cut_rows(r, w, w->d);
        s->d_z = cut_rows(r, w, w->d);
        s->d_o = cut_rows(r, w, w->q);
        s->d_q = cut_rows(r, w, w->q);
        s->d_k = cut_rows(r, w, w->kv);
        s->d_v = cut_rows(r, w, w->kv);
    }
    r->used = 0;
    out->h_final = cut_rows(r, w, w->d);
    out->h_rows = cut(r, w->rows * w->d * w->element_bytes);
    if (w->options->train) {
        out->head.acc = cut(r, floats);
        out->head.wy = cut(r, floats);
    }
    out->head_workspace = cut(r, out->head_workspace_bytes);
}

static tsr_status take_head(const walk *w, tsr_activations *out)
{
    const tsr_activation_options *o = w->options;
    void *nll = NULL, *base = NULL;
    region r = {0};
    out->head_workspace_bytes =
        o->kernels->head_workspace_bytes(&(tsr_head_bounds){.rows = o->bounds.label_rows,
                                                            .d = (int64_t)w->d,
                                                            .chunk = TSR_HEAD_CHUNK_ROWS,
                                                            .dtype = o->dtype,
                                                            .train = o->train});
    cut_head(&r, w, out);
    TSR_TRY(take(w, &base, "scratch backward, or head", tsr_array_of_bytes(r.largest)));
    r.base = base;
    cut_head(&r, w, out);
    TSR_TRY(take_rows(w, &out->x_final, -1, "x final", w->d));
    TSR_TRY(take_floats(w, &out->rstd_final, -1, "rstd final", w->tokens, 1));
    TSR_TRY(take_floats(w, &out->head.max, -1, "head max", w->rows, 1));
    TSR_TRY(take_floats(w, &out->head.sum, -1, "head sum", w->rows, 1));
    TSR_TRY(take_floats(w, &out->head.label_logit, -1, "head label logit", w->rows, 1));
    TSR_TRY(take(w, &nll, "head nll", (tsr_array){TSR_F64, w->rows, 1}));
    out->nll = nll;
    return TSR_OK;
}

static walk walk_of(const tsr_activation_options *options, int64_t tokens)
{
    const tsr_model_config *config = &options->layout->config;
    return (walk){.options = options,
                  .element_bytes = tsr_dtype_bytes(options->dtype),
                  .tokens = (uint64_t)tokens,
                  .rows = (uint64_t)options->bounds.label_rows,
                  .d = config->hidden_size,
                  .f = config->intermediate_size,
                  .q = config->head_count * config->head_dim,
                  .kv = config->kv_head_count * config->head_dim};
}

/* Of all offloaded layers the largest, as many times as layers take turns. */
static tsr_status take_regions(const walk *w, tsr_activations *out)
{
    const tsr_unit *units = w->options->units;
    uint64_t bytes[TSR_REGIONS] = {0};
    int turn = 0;
    for (int layer = 0; units && layer < w->options->layout->layer_count; layer++) {
        if (units[layer].saved_bytes == 0)
            continue;
        uint64_t *most = &bytes[turn++ % TSR_REGIONS]; /* tsr_unit_region */
        *most = units[layer].saved_bytes > *most ? units[layer].saved_bytes : *most;
    }
    for (int i = 0; i < TSR_REGIONS; i++) {
        char name[48];
        snprintf(name, sizeof name, "saved activations %d", i);
        TSR_TRY(take(w, &out->region[i], name, tsr_array_of_bytes(bytes[i])));
    }
    return TSR_OK;
}

uint64_t tsr_activations_kept_bytes(const tsr_activation_options *options, int layer,
                                    int64_t tokens)
{
    region r = {0};
    walk w = walk_of(options, tokens);
    tsr_layer_buffers buffers, shared = {0};
    w.from = &r;
    take_layer(&w, &buffers, layer, &shared); /* cutting cannot fail */
    return r.used;
}

void tsr_activations_in_region(tsr_layer_buffers *out, const tsr_activations *activations,
                               const tsr_activation_options *options, int layer, int64_t tokens)
{
    region r = {.base = activations->region[tsr_unit_region(options->units, layer)]};
    walk w = walk_of(options, tokens);
    w.from = &r;
    take_layer(&w, out, layer, &activations->shared);
}

tsr_status tsr_activations_walk(tsr_activations *out, const tsr_activation_options *options,
                                tsr_take_buffer *take_buffer, void *user)
{
    tsr_activations ignored = {0};
    walk w = walk_of(options, options->bounds.tokens);
    w.take = take_buffer;
    w.user = user;
    tsr_activations *a = out ? out : &ignored;
    TSR_TRY(take_shared(&w, a));
    for (int layer = 0; layer < options->layout->layer_count; layer++) {
        tsr_layer_buffers unused, *b = out ? &out->kept[layer] : &unused;
        *b = a->shared;
        snprintf(w.layer_name, sizeof w.layer_name, "layer %d ", layer);
        if (!options->units || options->units[layer].saved_bytes == 0)
            TSR_TRY(take_layer(&w, b, layer, &a->shared));
    }
    TSR_TRY(take_regions(&w, a));
    TSR_TRY(take_linear(&w, a));
    TSR_TRY(take_head(&w, a));
    return options->train ? take_backward(&w, a) : TSR_OK;
}
