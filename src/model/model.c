#include "model/model_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tsr_status tsr_model_create(tsr_model **out, const tsr_model_options *options)
{
    size_t layers = (size_t)options->layout->layer_count;
    tsr_model *model = calloc(1, sizeof *model);
    if (model) {
        model->recompute = calloc(layers, sizeof *model->recompute);
        model->unit = calloc(layers, sizeof *model->unit);
        model->activations.kept = calloc(layers, sizeof *model->activations.kept);
    }
    if (!model || !model->recompute || !model->unit || !model->activations.kept) {
        tsr_model_destroy(model);
        return tsr_fail(TSR_ENOMEM, "out of memory for a model of %zu layers", layers);
    }
    model->options = *options;
    model->graphs.plain = options->graph_rule == TSR_GRAPHS_PLAIN;
    memcpy(model->recompute, options->recompute, layers * sizeof *model->recompute);
    model->options.recompute = model->recompute;
    *out = model;
    return TSR_OK;
}

void tsr_model_destroy(tsr_model *model)
{
    if (!model)
        return;
    for (int i = 0; i < STAGES; i++) {
        tsr_event_destroy(model->stage[i].staged);
        tsr_event_destroy(model->stage[i].released);
    }
    free(model->recompute);
    free(model->unit);
    free(model->activations.kept);
    free(model);
}

static tsr_status fill_tables(tsr_model *model, tsr_device *device)
{
    const tsr_model_config *config = &model->options.layout->config;
    const tsr_rope_type types[] = {[TSR_MODEL_ROPE_DEFAULT] = TSR_ROPE_DEFAULT,
                                   [TSR_MODEL_ROPE_LINEAR] = TSR_ROPE_LINEAR,
                                   [TSR_MODEL_ROPE_LLAMA3] = TSR_ROPE_LLAMA3};
    tsr_rope_scaling scaling = {.type = types[config->rope.type],
                                .theta = config->rope.theta,
                                .factor = config->rope.factor,
                                .low_frequency_factor = config->rope.low_freq_factor,
                                .high_frequency_factor = config->rope.high_freq_factor,
                                .original_max_positions =
                                    (double)config->rope.original_max_position};
    int32_t positions = (int32_t)model->options.bounds.tokens, dim = (int32_t)config->head_dim;
    uint64_t bytes = (uint64_t)positions * (uint64_t)(dim / 2) * sizeof(float);
    float *tables = malloc(2 * bytes + 1);
    if (!tables)
        return tsr_fail(TSR_ENOMEM, "out of memory for the tables of RoPE");
    float *sine = tables + bytes / sizeof(float);
    tsr_status status = tsr_rope_tables(tables, sine, positions, dim, &scaling);
    if (status == TSR_OK)
        status = tsr_device_write(device, model->cosine, tables, bytes);
    if (status == TSR_OK)
        status = tsr_device_write(device, model->sine, sine, bytes);
    if (status == TSR_OK)
        status = tsr_device_write(device, model->level, tsr_nf4_level, sizeof tsr_nf4_level);
    free(tables);
    return status;
}

tsr_status tsr_model_start(tsr_model *model, tsr_stream *compute, tsr_stream *h2d,
                           tsr_frozen embedding, tsr_model_sums sums)
{
    const tsr_model_config *config = &model->options.layout->config;
    tsr_device *device = tsr_stream_device(compute);
    model->compute = compute;
    model->h2d = h2d;
    model->embedding = embedding;
    model->sums = sums;
    for (int i = 0; i < STAGES; i++) {
        TSR_TRY(tsr_event_create(&model->stage[i].staged, device));
        TSR_TRY(tsr_event_create(&model->stage[i].released, device));
    }
    TSR_TRY(fill_tables(model, device));
    model->shape = (tsr_layer_shape){.d = (int64_t)config->hidden_size,
                                     .f = (int64_t)config->intermediate_size,
                                     .q_heads = (int32_t)config->head_count,
                                     .kv_heads = (int32_t)config->kv_head_count,
                                     .head_dim = (int32_t)config->head_dim,
                                     .window = (int32_t)config->sliding_window,
                                     .position_count = (int32_t)model->options.bounds.tokens,
                                     .eps = (float)config->rms_norm_eps,
                                     .cosine = model->cosine,
                                     .sine = model->sine,
                                     .attention_workspace = model->activations.attention_workspace,
                                     .attention_workspace_bytes =
                                         model->activations.attention_workspace_bytes};
    tsr_activation_options activation = tsr_model_activation(&model->options);
    tsr_attention_bounds attention = tsr_activation_attention(&activation);
    return model->options.kernels->prepare(device, &(tsr_prepare_args){.attention = &attention});
}

const tsr_layout *tsr_model_layout(const tsr_model *model)
{
    return model->options.layout;
}

float *tsr_model_nested_absmax(tsr_model *model, int unit, tsr_linear_kind kind)
{
    return model->unit[unit].nested[kind].nested_absmax;
}

float *tsr_model_nested_map(tsr_model *model, int unit, tsr_linear_kind kind)
{
    return model->unit[unit].nested[kind].nested_map;
}

void tsr_model_set_offset(tsr_model *model, int unit, tsr_linear_kind kind, float offset)
{
    model->unit[unit].nested[kind].offset = offset;
}

const float *tsr_model_norms(const tsr_model *model, int unit, tsr_linear_kind kind)
{
    return model->unit[unit].norm[kind].n;
}

void tsr_model_set_fresh(tsr_model *model, bool fresh)
{
    model->fresh = fresh;
}

const void *tsr_model_label_rows(const tsr_model *model)
{
    return model->activations.h_rows;
}

const double *tsr_model_nll(const tsr_model *model)
{
    return model->activations.nll;
}

/* ---- the gathered unit ---- */

static const void *frozen_at(const tsr_model *model, int unit, const tsr_unit_view *view, int index)
{
    const tsr_segment *segment = model->options.units[unit].frozen.segment;
    return index == TSR_NO_SEGMENT ? NULL : view->frozen + segment[index].gathered_offset;
}

static const void *trainable_at(const tsr_model *model, int unit, const tsr_unit_view *view,
                                int index)
{
    const tsr_segment *segment = model->options.units[unit].trainable.segment;
    return index == TSR_NO_SEGMENT ? NULL : view->trainable + segment[index].gathered_offset;
}

static tsr_frozen vector_at(const tsr_model *model, int unit, const tsr_unit_view *view, int index)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    return (tsr_frozen){frozen_at(model, unit, view, index),
                        index == TSR_NO_SEGMENT ? TSR_F32 : layout->frozen[index].dtype};
}

static void resolve_linear(tsr_linear *out, const tsr_model *model, int unit,
                           const tsr_unit_view *view, tsr_linear_kind kind)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    const tsr_layout_linear *linear = &layout->linear[kind];
    const unit_state *state = &model->unit[unit];
    *out = (tsr_linear){.out = linear->out,
                        .in = linear->in,
                        .bias = vector_at(model, unit, view, linear->bias),
                        .r = linear->r,
                        .scale = linear->scale};
    if (linear->quantized)
        out->weight = (tsr_base_weight){.codes = frozen_at(model, unit, view, linear->codes),
                                        .absmax = frozen_at(model, unit, view, linear->absmax),
                                        .nested_absmax = state->nested[kind].nested_absmax,
                                        .nested_map = state->nested[kind].nested_map,
                                        .level = model->level,
                                        .offset = state->nested[kind].offset,
                                        .nested = linear->nested};
    else
        out->weight = (tsr_base_weight){.data = frozen_at(model, unit, view, linear->plain),
                                        .dtype = layout->frozen[linear->plain].dtype};
    if (!linear->r)
        return;
    out->a = trainable_at(model, unit, view, linear->a);
    out->b = trainable_at(model, unit, view, linear->b);
    if (linear->dora) {
        out->g = state->norm[kind].g;
        out->n = state->norm[kind].n;
    }
}

void tsr_model_resolve(tsr_layer *layer, const tsr_model *model, int unit,
                       const tsr_unit_view *view, bool train, uint64_t epoch)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
        resolve_linear(&layer->linear[kind], model, unit, view, kind);
        layer->linear[kind].drops = train && model->options.dropout > 0;
        if (layer->linear[kind].drops)
            layer->linear[kind].dropout =
                tsr_dropout_make(model->options.dropout, model->options.seed, epoch,
                                 layout->linear[kind].module_key);
    }
    layer->input_norm = vector_at(model, unit, view, layout->input_norm);
    layer->post_norm = vector_at(model, unit, view, layout->post_norm);
    layer->q_norm = vector_at(model, unit, view, layout->q_norm);
    layer->k_norm = vector_at(model, unit, view, layout->k_norm);
    layer->final_norm = vector_at(model, unit, view, layout->final_norm);
}

tsr_linear_context tsr_model_context(const tsr_model *model)
{
    const stage *s = tsr_model_current(model);
    tsr_linear_context context = model->activations.context;
    context.kernels = model->options.kernels;
    context.stream = model->compute;
    context.dtype = model->options.dtype;
    context.fp8.on = model->options.fp8;
    context.fp8.fast = model->options.fp8_fast;
    context.tokens = s->batch.tokens;
    context.step_micro = model->options.step_micro;
    context.graphs = &model->graphs;
    context.samples = s->view.sample;
    context.positions = s->view.sample_position;
    return context;
}

/* ---- uses ---- */

static bool merges(const tsr_model *model, int unit, tsr_linear_kind kind)
{
    const tsr_layout_linear *linear = &model->options.layout->unit[unit].linear[kind];
    return tsr_linear_merges(model->options.dtype, model->options.fp8, linear->quantized,
                             linear->in, linear->r);
}

static tsr_linear_norm_args norm_args(const tsr_model *model, int unit, const tsr_unit_view *view,
                                      tsr_linear_kind kind)
{
    const unit_state *state = &model->unit[unit];
    const tsr_activations *scratch = &model->activations;
    const float *m =
        trainable_at(model, unit, view, model->options.layout->unit[unit].linear[kind].m);
    return (tsr_linear_norm_args){.m = model->fresh ? NULL : m,
                                  .n = state->norm[kind].n,
                                  .g = state->norm[kind].g,
                                  .partials = scratch->norm_partials,
                                  .squares = state->norm[kind].squares,
                                  .known = state->squares_known,
                                  .u = scratch->norm_u,
                                  .gram = scratch->norm_gram,
                                  .b = scratch->norm_b,
                                  .bg = scratch->norm_bg};
}

/* The norms that tsr_model_norm has left to this forward. */
static void add_norms(tsr_layer *layer, tsr_linear_norm_args args[TSR_LINEAR_COUNT],
                      tsr_model *model, int unit, const tsr_unit_view *view)
{
    for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT && model->unit[unit].norms_due; kind++) {
        if (!model->options.layout->unit[unit].linear[kind].dora || !merges(model, unit, kind))
            continue;
        args[kind] = norm_args(model, unit, view, kind);
        layer->linear[kind].norm = &args[kind];
    }
    model->unit[unit].norms_due = false;
}

tsr_status tsr_model_norm(tsr_model *model, int unit, const tsr_unit_view *view)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    unit_state *state = &model->unit[unit];
    tsr_linear_context context = tsr_model_context(model);
    bool active = tsr_model_active(&tsr_model_current(model)->batch);
    for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
        tsr_linear linear;
        if (!layout->linear[kind].dora || (active && merges(model, unit, kind)))
            continue;
        resolve_linear(&linear, model, unit, view, kind);
        tsr_linear_norm_args args = norm_args(model, unit, view, kind);
        TSR_TRY(tsr_linear_norm(&context, &linear, &args));
    }
    state->squares_known = true;
    state->norms_due = active;
    return TSR_OK;
}

static tsr_layer_buffers buffers_of(const tsr_model *model, int unit)
{
    tsr_layer_buffers buffers = model->activations.kept[unit];
    if (model->options.units[unit].saved_bytes > 0) {
        tsr_activation_options options = tsr_model_activation(&model->options);
        tsr_activations_in_region(&buffers, &model->activations, &options, unit,
                                  tsr_model_current(model)->batch.tokens);
    }
    return buffers;
}

tsr_saved tsr_model_saved(const tsr_model *model, int unit)
{
    const tsr_model_batch *batch = &tsr_model_current(model)->batch;
    tsr_activation_options options = tsr_model_activation(&model->options);
    int region = tsr_unit_region(model->options.units, unit);
    if (!tsr_model_active(batch))
        return (tsr_saved){0};
    return (tsr_saved){.device = model->activations.region[region],
                       .host = model->unit[unit].saved,
                       .bytes = tsr_activations_kept_bytes(&options, unit, batch->tokens)};
}

/* The micro-batch has arrived; its embedding becomes the input x of layer 0. */
static tsr_status begin(tsr_model *model, void *x)
{
    const stage *s = tsr_model_current(model);
    TSR_TRY(tsr_stream_wait(model->compute, s->staged, tsr_event_recorded(s->staged)));
    model->carried = (tsr_layer_input){x, NULL, NULL};
    return model->options.kernels->widen(
        model->compute, &(tsr_widen_args){.out = x,
                                          .in = s->view.embedding,
                                          .count = s->batch.tokens * model->shape.d,
                                          .in_dtype = model->embedding.dtype,
                                          .dtype = model->options.dtype});
}

static tsr_layer_batch layer_batch(const stage *s)
{
    return (tsr_layer_batch){.tokens = s->batch.tokens,
                             .positions = s->view.positions,
                             .cu_seqlens = s->view.cu_seqlens,
                             .documents = (int32_t)s->batch.documents};
}

static tsr_status forward(tsr_model *model, int unit, const tsr_unit_view *view)
{
    const stage *s = tsr_model_current(model);
    tsr_layer_buffers buffers = buffers_of(model, unit);
    tsr_layer_batch batch = layer_batch(s);
    tsr_layer layer;
    tsr_linear_norm_args norms[TSR_LINEAR_COUNT];
    if (unit == 0)
        TSR_TRY(begin(model, buffers.x));
    tsr_linear_context context = tsr_model_context(model);
    tsr_model_resolve(&layer, model, unit, view, s->batch.train, s->batch.epoch);
    add_norms(&layer, norms, model, unit, view);
    TSR_TRY(tsr_layer_forward(&context, &model->shape, &layer, &batch, &buffers, &model->carried));
    model->carried = tsr_layer_output(&layer, &buffers);
    if (unit < model->options.layout->layer_count - 1)
        return TSR_OK;
    return tsr_model_head_begin(model, &layer);
}

/* Where the gradients of a unit's linears go. */
static void place_gradients(tsr_layer_gradients out[TSR_LINEAR_COUNT], const tsr_model *model,
                            int unit, float *gradient)
{
    const tsr_segment *segment = model->options.units[unit].trainable.segment;
    for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
        const tsr_layout_linear *linear = &model->options.layout->unit[unit].linear[kind];
        int index[3] = {linear->a, linear->b, linear->m};
        float *at[3];
        for (int i = 0; i < 3; i++) {
            bool there = linear->r && index[i] != TSR_NO_SEGMENT;
            at[i] = there
                        ? gradient + tsr_unit_gradient_at(&segment[index[i]], model->options.ranks)
                        : NULL;
        }
        out[kind] = (tsr_layer_gradients){at[0], at[1], at[2]};
    }
}

static tsr_status backward(tsr_model *model, int unit, const tsr_unit_view *view, float *gradient)
{
    const stage *s = tsr_model_current(model);
    const tsr_layout *layout = model->options.layout;
    tsr_layer_batch batch = layer_batch(s);
    tsr_layer layer;
    tsr_layer_gradients gradients[TSR_LINEAR_COUNT];
    if (unit < layout->first_trained)
        return TSR_OK;
    tsr_layer_buffers buffers = buffers_of(model, unit);
    tsr_linear_context context = tsr_model_context(model);
    tsr_model_resolve(&layer, model, unit, view, true, s->batch.epoch);
    place_gradients(gradients, model, unit, gradient);
    if (unit == layout->layer_count - 1)
        TSR_TRY(tsr_model_head_backward(model, &layer));
    TSR_TRY(tsr_layer_recompute(&context, &model->shape, &layer, &batch, &buffers,
                                model->recompute[unit]));
    return tsr_layer_backward(&context, &model->shape, &layer, &batch, &buffers,
                              &model->activations.scratch, model->activations.dx,
                              unit == layout->first_trained, gradients);
}

tsr_status tsr_model_compute(tsr_model *model, tsr_use_phase phase, int unit,
                             const tsr_unit_view *view, float *gradient)
{
    const stage *s = tsr_model_current(model);

    if (phase == TSR_USE_BACKWARD && gradient && !tsr_model_active(&s->batch))
        return tsr_stream_fill(model->compute, gradient, 0,
                               model->options.units[unit].trainable.gradient_count *
                                   (uint64_t)model->options.ranks * sizeof *gradient);
    if (!tsr_model_active(&s->batch))
        return TSR_OK;
    switch (phase) {
    case TSR_USE_FORWARD:
        return forward(model, unit, view);
    case TSR_USE_HEAD:
        return tsr_model_head_chunk(model, unit, view);
    case TSR_USE_BACKWARD:
        return backward(model, unit, view, gradient);
    }
    return tsr_fail(TSR_EINTERNAL, "phase %d", (int)phase);
}
