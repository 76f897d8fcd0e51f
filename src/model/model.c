#include "model/model_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The state of all linears of a unit. */
static bool allocate_unit(unit_state *unit, const tsr_layout_unit *layout)
{
    size_t linears = (size_t)tsr_layout_linears(layout);
    unit->norm = calloc(linears + 1, sizeof *unit->norm);
    unit->nested = calloc(linears + 1, sizeof *unit->nested);
    unit->stack = calloc((size_t)tsr_layout_stacks(layout) + 1, sizeof *unit->stack);
    return unit->norm && unit->nested && unit->stack;
}

/* [vocabulary], all -1 but for what is in rows. */
static bool allocate_ids(int32_t **out, const tsr_layout *layout, const tsr_layout_rows *rows)
{
    size_t bytes = layout->config.vocab_size * sizeof **out;
    *out = malloc(bytes);
    if (!*out)
        return false;
    memset(*out, -1, bytes);
    for (int i = 0; i < rows->count; i++)
        (*out)[rows->id[i]] = i;
    return true;
}

/* Of trained tables. */
static bool allocate_rows(tsr_model *model)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_rows none = {0};
    bool made = !layout->embedding_count || allocate_ids(&model->last_of, layout, &none);
    if (made && layout->embedding_rows.count)
        made = allocate_ids(&model->embedding_row, layout, &layout->embedding_rows);
    if (made && layout->head_rows.count)
        made = allocate_ids(&model->head_row, layout, &layout->head_rows);
    return made;
}

static tsr_status allocate(tsr_model *model)
{
    const tsr_layout *layout = model->options.layout;
    size_t layers = (size_t)layout->layer_count;
    model->unit = calloc(layers, sizeof *model->unit);
    model->activations.kept = calloc(layers * TSR_BLOCK_VALUES, sizeof *model->activations.kept);
    bool failed = !model->unit || !model->activations.kept;
    for (size_t i = 0; i < layers && !failed; i++)
        failed = !allocate_unit(&model->unit[i], &layout->unit[i]);
    failed = failed || !allocate_rows(model) || !tsr_model_allocate_mixed(model) ||
             !tsr_model_allocate_spans(model);
    return failed ? tsr_fail(TSR_ENOMEM, "out of memory for a model of %zu layers", layers)
                  : TSR_OK;
}

tsr_status tsr_model_create(tsr_model **out, const tsr_model_options *options)
{
    tsr_model *model = calloc(1, sizeof *model);
    if (!model)
        return tsr_fail(TSR_ENOMEM, "out of memory for a model");
    model->options = *options;
    model->graphs.plain = options->graph_rule == TSR_GRAPHS_PLAIN;
    model->options.keep = NULL; /* the programs have it */
    model->tables.capacity_factor = options->capacity_factor;
    tsr_status status = allocate(model);
    if (status < 0) {
        tsr_model_destroy(model);
        return status;
    }
    tsr_model_number_routers(model);
    *out = model;
    return TSR_OK;
}

void tsr_model_destroy(tsr_model *model)
{
    if (!model)
        return;
    tsr_model_end_routers(model);
    for (int i = 0; i < STAGES; i++) {
        tsr_event_destroy(model->stage[i].staged);
        tsr_event_destroy(model->stage[i].released);
        free(model->stage[i].range);
        free(model->stage[i].span);
    }
    free(model->mixed_range);
    free(model->mixed_sums);
    for (int i = 0; model->unit && i < model->options.layout->layer_count; i++) {
        free(model->unit[i].norm);
        free(model->unit[i].nested);
        free(model->unit[i].stack);
    }
    free(model->unit);
    free(model->last_of);
    free(model->embedding_row);
    free(model->head_row);
    free(model->activations.kept);
    free(model);
}

/* The next table: `used` floats of the cosines' and the sines' memory are taken. */
typedef struct {
    tsr_model *model;
    tsr_device *device;
    float *scratch; /* for one table of each */
    uint64_t used;
} table_filler;

static tsr_status fill_table(tsr_rope_table *out, table_filler *f, int rope,
                             tsr_rope_table_kind kind)
{
    const tsr_model_config *config = &f->model->options.layout->config;
    int32_t positions = (int32_t)tsr_batch_all_tokens(&f->model->options.bounds);
    uint64_t dim = tsr_model_rotary_dim(config, rope), count = (uint64_t)positions * (dim / 2);
    float *cosine = f->model->cosine + f->used, *sine = f->model->sine + f->used;
    TSR_TRY(tsr_rope_tables(f->scratch, f->scratch + count, positions, (int32_t)dim,
                            &config->rope[rope], kind));
    TSR_TRY(tsr_device_write(f->device, cosine, f->scratch, count * sizeof *f->scratch));
    TSR_TRY(tsr_device_write(f->device, sine, f->scratch + count, count * sizeof *f->scratch));
    f->used += count;
    *out = (tsr_rope_table){cosine, sine, positions};
    return TSR_OK;
}

static tsr_status fill_ropes(table_filler *f)
{
    const tsr_model_config *config = &f->model->options.layout->config;
    tsr_model_tables *tables = &f->model->tables;
    for (int i = 0; i < config->rope_count; i++) {
        TSR_TRY(fill_table(&tables->rope[i], f, i, TSR_ROPE_TABLE));
        if (config->rope[i].type == TSR_ROPE_LONG) {
            /* It continues the first: positions of long documents begin there (stage.c). */
            tsr_rope_table rest;
            TSR_TRY(fill_table(&rest, f, i, TSR_ROPE_TABLE_OF_LONG));
            tables->rope[i].position_count += rest.position_count;
        }
    }
    if (config->rope[0].query_beta != 0)
        TSR_TRY(fill_table(&tables->queries, f, 0, TSR_ROPE_TABLE_OF_QUERIES));
    return TSR_OK;
}

static tsr_status write_ones(tsr_model *model, tsr_device *device)
{
    float ones[TSR_MODEL_ONES];
    for (int i = 0; i < TSR_MODEL_ONES; i++)
        ones[i] = 1;
    model->tables.ones = model->ones;
    return tsr_device_write(device, model->ones, ones, sizeof ones);
}

static tsr_status fill_tables(tsr_model *model, tsr_device *device)
{
    uint64_t count = (uint64_t)tsr_batch_all_tokens(&model->options.bounds) *
                     tsr_model_rope_angles(&model->options.layout->config);
    table_filler filler = {model, device, malloc(2 * count * sizeof(float) + 1), 0};
    if (!filler.scratch)
        return tsr_fail(TSR_ENOMEM, "out of memory for the tables of RoPE");
    tsr_status status = fill_ropes(&filler);
    if (status == TSR_OK)
        status = tsr_device_write(device, model->level, tsr_nf4_level, sizeof tsr_nf4_level);
    if (status == TSR_OK && model->ones)
        status = write_ones(model, device);
    free(filler.scratch);
    return status;
}

/* The head's trained tokens. */
static tsr_status write_ids(tsr_model *model, tsr_device *device)
{
    const tsr_layout_rows *rows = &model->options.layout->head_rows;
    for (int i = 0; i < rows->count; i++) {
        int32_t id = (int32_t)rows->id[i];
        TSR_TRY(tsr_device_write(device, model->head_ids + i, &id, sizeof id));
    }
    return TSR_OK;
}

tsr_status tsr_model_start(tsr_model *model, tsr_stream *compute, tsr_stream *h2d,
                           const tsr_host_tables *tables, tsr_model_sums sums)
{
    tsr_device *device = tsr_stream_device(compute);
    model->compute = compute;
    model->h2d = h2d;
    model->host = *tables;
    model->sums = sums;
    for (int i = 0; i < STAGES; i++) {
        TSR_TRY(tsr_event_create(&model->stage[i].staged, device));
        TSR_TRY(tsr_event_create(&model->stage[i].released, device));
    }
    TSR_TRY(tsr_model_start_routers(model, device));
    TSR_TRY(fill_tables(model, device));
    TSR_TRY(write_ids(model, device));
    return tsr_model_prepare_attention(model, device);
}

const tsr_layout *tsr_model_layout(const tsr_model *model)
{
    return model->options.layout;
}

float *tsr_model_nested_absmax(tsr_model *model, int unit, int linear)
{
    return model->unit[unit].nested[linear].nested_absmax;
}

float *tsr_model_nested_map(tsr_model *model, int unit, int linear)
{
    return model->unit[unit].nested[linear].nested_map;
}

void tsr_model_set_offset(tsr_model *model, int unit, int linear, float offset)
{
    model->unit[unit].nested[linear].offset = offset;
}

const tsr_model_stack_state *tsr_model_stack(const tsr_model *model, int unit, int stack)
{
    return &model->unit[unit].stack[stack];
}

const float *tsr_model_norms(const tsr_model *model, int unit, int linear)
{
    return model->unit[unit].norm[linear].n;
}

void tsr_model_set_fresh(tsr_model *model, bool fresh)
{
    model->fresh = fresh;
}

const void *tsr_model_label_rows(const tsr_model *model)
{
    return model->activations.head.rows;
}

const double *tsr_model_nll(const tsr_model *model)
{
    return model->activations.nll;
}

/* ---- the gathered unit; NULL: what is in another ---- */

static const void *frozen_at(const tsr_model *model, int unit, const tsr_unit_view *view, int index)
{
    const tsr_layout_segment *s = &model->options.layout->unit[unit].frozen[index];
    if (index == TSR_NO_SEGMENT || s->unit != view->unit)
        return NULL;
    return view->frozen + model->options.units[s->unit].frozen.segment[s->at].gathered_offset;
}

const void *tsr_model_trainable_at(const tsr_model *model, int unit, const tsr_unit_view *view,
                                   int index)
{
    const tsr_layout_segment *s = &model->options.layout->unit[unit].trainable[index];
    if (index == TSR_NO_SEGMENT || s->unit != view->unit)
        return NULL;
    return view->trainable + model->options.units[s->unit].trainable.segment[s->at].gathered_offset;
}

static tsr_frozen vector_at(const tsr_model *model, int unit, const tsr_unit_view *view, int index)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    return (tsr_frozen){frozen_at(model, unit, view, index),
                        index == TSR_NO_SEGMENT ? TSR_F32 : layout->frozen[index].dtype};
}

static void resolve_linear(tsr_linear *out, const tsr_model *model, int unit,
                           const tsr_unit_view *view, int index)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    const tsr_layout_linear *linear = &layout->linear[index];
    const unit_state *state = &model->unit[unit];
    *out = (tsr_linear){.out = linear->out,
                        .in = linear->in,
                        .bias = vector_at(model, unit, view, linear->bias),
                        .r = linear->r,
                        .scale = linear->scale};
    if (linear->quantized)
        out->weight = (tsr_base_weight){.codes = frozen_at(model, unit, view, linear->codes),
                                        .absmax = frozen_at(model, unit, view, linear->absmax),
                                        .nested_absmax = state->nested[index].nested_absmax,
                                        .nested_map = state->nested[index].nested_map,
                                        .level = model->level,
                                        .offset = state->nested[index].offset,
                                        .nested = linear->nested};
    else
        out->weight =
            (tsr_base_weight){.data = frozen_at(model, unit, view, linear->plain),
                              .dtype = layout->frozen[linear->plain].dtype,
                              .code_scale = frozen_at(model, unit, view, linear->code_scale)};
    if (!linear->r || linear->mixed)
        return;
    out->a = tsr_model_trainable_at(model, unit, view, linear->a);
    out->b = tsr_model_trainable_at(model, unit, view, linear->b);
    if (linear->dora) {
        out->g = state->norm[index].g;
        out->n = state->norm[index].n;
    }
}

static void resolve_stack(tsr_expert_stack *out, tsr_model *model, int unit,
                          const tsr_unit_view *view, int index)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    const tsr_layout_stack *stack = &layout->stack[index];
    tsr_model_stack_state *state = &model->unit[unit].stack[index];
    *out = (tsr_expert_stack){.nested_absmax = state->nested_absmax,
                              .nested_map = state->nested_map,
                              .offset = state->offset,
                              .level = model->level,
                              .nested = stack->nested,
                              .mxfp4 = stack->mxfp4,
                              .decoded = &state->decoded,
                              .bias = vector_at(model, unit, view, stack->bias),
                              .r = stack->r,
                              .scale = stack->scale};
    if (stack->quantized) {
        out->codes = frozen_at(model, unit, view, stack->codes);
        out->absmax = frozen_at(model, unit, view, stack->absmax);
    } else {
        out->plain = vector_at(model, unit, view, stack->plain);
    }
    if (!stack->r)
        return;
    out->a = tsr_model_trainable_at(model, unit, view, stack->a);
    out->b = tsr_model_trainable_at(model, unit, view, stack->b);
}

void tsr_model_resolve(tsr_layer *layer, tsr_model *model, int unit, const tsr_unit_view *view,
                       bool train, uint64_t epoch)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    layer->program = tsr_layer_program_of(model->options.programs, unit);
    layer->made8 = model->made8;
    for (int i = 0; i < layout->block->matrix_count; i++) {
        resolve_linear(&layer->linear[i], model, unit, view, i);
        if (layout->linear[i].mixed) {
            tsr_model_resolve_mixed(&layer->linear[i], model, unit, view, i);
            continue;
        }
        layer->linear[i].drops = train && model->options.dropout > 0;
        if (layer->linear[i].drops)
            layer->linear[i].dropout = tsr_dropout_make(model->options.dropout, model->options.seed,
                                                        epoch, layout->linear[i].module_key);
    }
    for (int i = 0; i < layout->block->stack_count; i++)
        resolve_stack(&layer->stack[i], model, unit, view, i);
    for (int i = 0; i < layout->block->vector_count; i++)
        layer->vector[i] = vector_at(model, unit, view, layout->vector[i]);
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

static bool merges(const tsr_model *model, int unit, int index)
{
    const tsr_layout_linear *linear = &model->options.layout->unit[unit].linear[index];
    return tsr_linear_merges(model->options.dtype, model->options.fp8, linear->quantized,
                             linear->in, linear->r);
}

static tsr_linear_norm_args norm_args(const tsr_model *model, int unit, const tsr_unit_view *view,
                                      int index)
{
    const unit_state *state = &model->unit[unit];
    const tsr_activations *scratch = &model->activations;
    const float *m = tsr_model_trainable_at(model, unit, view,
                                            model->options.layout->unit[unit].linear[index].m);
    return (tsr_linear_norm_args){.m = model->fresh ? NULL : m,
                                  .n = state->norm[index].n,
                                  .g = state->norm[index].g,
                                  .partials = scratch->norm_partials,
                                  .squares = state->norm[index].squares,
                                  .known = state->norm[index].squares_known,
                                  .u = scratch->norm_u,
                                  .gram = scratch->norm_gram,
                                  .b = scratch->norm_b,
                                  .bg = scratch->norm_bg};
}

/* Whether a linear is in the unit of the view. */
static bool holds(const tsr_model *model, int unit, const tsr_unit_view *view, int index)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    int node = layout->block->matrix[index].node;
    return view->unit == layout->first_unit + layout->part[node];
}

/* The norms that tsr_model_norm has left to this forward. */
static void add_norms(tsr_layer *layer, tsr_linear_norm_args args[TSR_BLOCK_MATRICES],
                      tsr_model *model, int unit, const tsr_unit_view *view)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    for (int i = 0; i < layout->block->matrix_count; i++) {
        norm_vectors *norm = &model->unit[unit].norm[i];
        if (!norm->due || !holds(model, unit, view, i))
            continue;
        norm->due = false;
        if (!merges(model, unit, i))
            continue;
        args[i] = norm_args(model, unit, view, i);
        layer->linear[i].norm = &args[i];
    }
}

tsr_status tsr_model_norm(tsr_model *model, int unit, const tsr_unit_view *view)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    tsr_linear_context context = tsr_model_context(model);
    bool active = tsr_model_current(model)->active;
    for (int i = 0; i < layout->block->matrix_count; i++) {
        tsr_linear linear;
        norm_vectors *norm = &model->unit[unit].norm[i];
        if (!layout->linear[i].dora || !holds(model, unit, view, i))
            continue;
        norm->due = active;
        if (!active || !merges(model, unit, i)) {
            resolve_linear(&linear, model, unit, view, i);
            tsr_linear_norm_args args = norm_args(model, unit, view, i);
            TSR_TRY(tsr_linear_norm(&context, &linear, &args));
        }
        norm->squares_known = true;
    }
    return TSR_OK;
}

/* Rows of what is kept of the micro-batch that is computed now. Of a shared one every rank counts those of the rank that has most
 * (attention_shared.h). */
static int64_t kept_rows(const tsr_model *model)
{
    const stage *s = tsr_model_current(model);
    return tsr_model_is_shared(model) ? tsr_spans_most_rows(&model->options.spans, s->all_tokens)
                                      : s->batch.tokens;
}

/* Of a layer in the micro-batch that is computed now; `kept` is filled. */
static tsr_layer_memory memory_of(void *kept[TSR_BLOCK_VALUES], const tsr_model *model, int unit)
{
    const tsr_activations *a = &model->activations;
    tsr_activation_options options = tsr_model_activation(&model->options);
    tsr_activations_kept(kept, a, &options, model->options.programs, unit, kept_rows(model));
    return (tsr_layer_memory){kept,  a->scratch, a->carried_x,      a->carried_z,
                              a->dx, a->shared,  a->shared_gradient};
}

tsr_saved tsr_model_saved(const tsr_model *model, int unit)
{
    const stage *s = tsr_model_current(model);
    tsr_activation_options options = tsr_model_activation(&model->options);
    int region = tsr_saved_region(model->options.saved_bytes, unit);
    if (!s->active)
        return (tsr_saved){0};
    return (tsr_saved){.device = model->activations.region[region],
                       .host = model->unit[unit].saved,
                       .bytes = tsr_activations_kept_bytes(&options, model->options.programs, unit,
                                                           kept_rows(model))};
}

const void *tsr_model_layer_input(const tsr_model *model, int layer)
{
    void *kept[TSR_BLOCK_VALUES];
    tsr_layer_memory memory = memory_of(kept, model, layer);
    return tsr_layer_first(tsr_layer_program_of(model->options.programs, layer), &memory);
}

static tsr_layer_batch layer_batch(const tsr_model *model, int unit)
{
    const stage *s = tsr_model_current(model);
    tsr_activation_options options = tsr_model_activation(&model->options);
    return (tsr_layer_batch){.layer = unit,
                             .correction = tsr_model_correction(model, unit),
                             .aux = s->batch.aux_weight > 0 ? model->routers.aux : NULL,
                             .layer_rows = s->view.layer_rows,
                             .layer_rows_dtype = model->host.layer_rows.dtype,
                             .tokens = s->batch.tokens,
                             .all_tokens = s->all_tokens,
                             .shared = tsr_model_is_shared(model) ? model->shared : NULL,
                             .gradient_limit = tsr_model_gradient_limit(model),
                             .attention = tsr_activation_attention(&options),
                             .positions = s->view.positions,
                             .cu_seqlens = s->view.cu_seqlens,
                             .documents = (int32_t)s->batch.documents};
}

static tsr_stride stride_of(const tsr_model *model)
{
    tsr_activation_options options = tsr_model_activation(&model->options);
    return tsr_activation_stride(&options);
}

static int runs_of(tsr_layer_run runs[TSR_LAYER_RUNS], const tsr_model *model, int unit,
                   bool backward)
{
    return tsr_layer_runs(runs, model->options.layout, unit,
                          tsr_layer_program_of(model->options.programs, unit), backward,
                          tsr_stride_ends(stride_of(model), unit));
}

/* Run `number` of a layer's forward, or backward. */
static tsr_layer_run run_of(const tsr_model *model, int unit, bool backward, int number)
{
    tsr_layer_run runs[TSR_LAYER_RUNS];
    runs_of(runs, model, unit, backward);
    return runs[number];
}

/* The chunk that a use of a layer is of (model/units.h); -1: of none, and *number is its run's. */
static int chunk_of(int *number, const tsr_model *model, int unit, bool backward)
{
    const tsr_layout *layout = model->options.layout;
    tsr_layer_run runs[TSR_LAYER_RUNS];
    int before = tsr_layer_chunks_before(layout, unit, backward);
    if (!before && !tsr_layer_chunks_after(layout, unit, backward))
        return -1;
    int chunk =
        tsr_layer_chunk(layout, unit, backward, *number, runs_of(runs, model, unit, backward));
    *number -= chunk < 0 ? before : 0;
    return chunk;
}

/* phase AGAIN: what follows from the input of a span's first layer, which was kept. */
static tsr_status forward(tsr_model *model, tsr_use_phase phase, int unit, int number,
                          const tsr_unit_view *view)
{
    tsr_layer_run run = run_of(model, unit, false, number);
    const stage *s = tsr_model_current(model);
    void *kept[TSR_BLOCK_VALUES];
    tsr_layer_memory memory = memory_of(kept, model, unit);
    tsr_layer_batch batch = layer_batch(model, unit);
    tsr_layer layer;
    tsr_linear_norm_args norms[TSR_BLOCK_MATRICES];
    void *first = tsr_layer_first(tsr_layer_program_of(model->options.programs, unit), &memory);
    if (number == 0 && phase == TSR_USE_AGAIN && tsr_stride_place(stride_of(model), unit) == 0)
        model->carried = (tsr_layer_input){first, NULL, NULL};
    else if (number == 0 && unit == 0 && !model->options.layout->embedding_count)
        TSR_TRY(tsr_model_embed_tokens(model, first));
    tsr_linear_context context = tsr_model_context(model);
    tsr_model_resolve(&layer, model, unit, view, s->batch.train, s->batch.epoch);
    add_norms(&layer, norms, model, unit, view);
    bool counted = model->routers.load && s->batch.train && phase != TSR_USE_AGAIN;
    tsr_router_counts counts;
    if (unit == 0 && number == 0)
        TSR_TRY(tsr_model_await_bias(model));
    if (counted && unit == 0 && number == 0)
        TSR_TRY(tsr_model_clear_counts(model));
    if (counted && model->unit[unit].router >= 0) {
        counts = tsr_model_router_counts(model, unit);
        batch.counts = &counts;
    }
    TSR_TRY(tsr_layer_forward(&context, &model->tables, &layer, &batch, &memory, &model->carried,
                              &run));
    if (counted && layer.final_norm.data)
        TSR_TRY(tsr_model_balance(model));
    if (!layer.final_norm.data)
        return TSR_OK;
    return tsr_model_head_begin(model, &layer);
}

void *tsr_model_gradient_at(const tsr_model *model, int unit, const tsr_unit_view *view,
                            void *gradient, int index)
{
    if (!gradient || index == TSR_NO_SEGMENT)
        return NULL;
    const tsr_layout_segment *s = &model->options.layout->unit[unit].trainable[index];
    if (s->unit != view->unit)
        return NULL;
    const tsr_unit *of = &model->options.units[s->unit];
    return (char *)gradient +
           tsr_unit_gradient_at(&of->trainable.segment[s->at], model->options.ranks) *
               tsr_unit_gradient_element(of);
}

/* Of a unit's linears and stacks. */
static void place_gradients(tsr_layer_gradients *out, const tsr_model *model, int unit,
                            const tsr_unit_view *view, void *gradient)
{
    const tsr_layout_unit *layout = &model->options.layout->unit[unit];
    for (int i = 0; i < layout->block->matrix_count; i++) {
        const tsr_layout_linear *l = &layout->linear[i];
        void *to = l->r ? gradient : NULL;
        out[i] = (tsr_layer_gradients){tsr_model_gradient_at(model, unit, view, to, l->a),
                                       tsr_model_gradient_at(model, unit, view, to, l->b),
                                       tsr_model_gradient_at(model, unit, view, to, l->m)};
    }
    for (int i = 0; i < layout->block->stack_count; i++) {
        const tsr_layout_stack *s = &layout->stack[i];
        void *to = s->r ? gradient : NULL;
        out[tsr_stack_weight(i)] =
            (tsr_layer_gradients){.a = tsr_model_gradient_at(model, unit, view, to, s->a),
                                  .b = tsr_model_gradient_at(model, unit, view, to, s->b)};
    }
}

static tsr_status backward(tsr_model *model, int unit, int number, const tsr_unit_view *view,
                           void *gradient)
{
    const stage *s = tsr_model_current(model);
    const tsr_layout *layout = model->options.layout;
    tsr_layer_batch batch = layer_batch(model, unit);
    void *kept[TSR_BLOCK_VALUES];
    tsr_layer layer;
    tsr_layer_gradients gradients[TSR_BLOCK_WEIGHTS];
    if (unit < layout->first_trained)
        return TSR_OK;
    tsr_layer_run run = run_of(model, unit, true, number);
    tsr_layer_memory memory = memory_of(kept, model, unit);
    tsr_linear_context context = tsr_model_context(model);
    tsr_model_resolve(&layer, model, unit, view, true, s->batch.epoch);
    place_gradients(gradients, model, unit, view, gradient);
    if (layout->mixed_count)
        TSR_TRY(tsr_model_place_mixed(gradients, model, unit, view, gradient));
    if (number == 0)
        memset(model->made8, 0, sizeof model->made8);
    if (number == 0 && layer.final_norm.data)
        TSR_TRY(tsr_model_head_backward(model, &layer));
    if (number == 0 && tsr_stride_ends(stride_of(model), unit))
        TSR_TRY(
            tsr_layer_enter(&context, &model->tables, &layer, &batch, &memory, &model->carried));
    return tsr_layer_backward(&context, &model->tables, &layer, &batch, &memory, gradients, &run);
}

/* A chunk of a trained embedding, into the input of the first layer. */
static tsr_status embed(tsr_model *model, int chunk, const tsr_unit_view *view)
{
    void *kept[TSR_BLOCK_VALUES];
    tsr_layer_memory memory = memory_of(kept, model, 0);
    const tsr_layer_program *program = tsr_layer_program_of(model->options.programs, 0);
    return tsr_model_embed(model, chunk, view, tsr_layer_first(program, &memory));
}

tsr_status tsr_model_compute(tsr_model *model, tsr_use_phase phase, int unit, int number,
                             const tsr_unit_view *view, void *gradient)
{
    const stage *s = tsr_model_current(model);

    if (phase == TSR_USE_BACKWARD && gradient && (!s->active || s->batch.tokens == 0))
        TSR_TRY(tsr_stream_fill(
            model->compute, gradient, 0,
            tsr_unit_gradient_bytes(&model->options.units[view->unit], model->options.ranks)));
    if (!s->active)
        return TSR_OK;
    int chunk =
        phase == TSR_USE_HEAD ? -1 : chunk_of(&number, model, unit, phase == TSR_USE_BACKWARD);
    if (chunk >= 0 && phase != TSR_USE_BACKWARD) /* what is made again begins with what was kept */
        return phase == TSR_USE_AGAIN ? TSR_OK : embed(model, chunk, view);
    if (chunk >= tsr_layout_head_end(model->options.layout))
        return tsr_model_embed_backward(model, chunk, view, gradient);
    if (chunk >= 0)
        return tsr_model_head_weight(model, chunk, view, gradient);
    switch (phase) {
    case TSR_USE_FORWARD:
    case TSR_USE_AGAIN:
        return forward(model, phase, unit, number, view);
    case TSR_USE_HEAD:
        return tsr_model_head_chunk(model, unit, view);
    case TSR_USE_BACKWARD:
        return backward(model, unit, number, view, gradient);
    }
    return tsr_fail(TSR_EINTERNAL, "phase %d", (int)phase);
}
