/*
 * mixed.c: several adapters in the micro-batch at work, each on a range of its tokens.
 */
#include "model/model_parts.h"

#include <stdlib.h>

bool tsr_model_allocate_mixed(tsr_model *model)
{
    size_t count = (size_t)model->options.layout->mixed_count;
    model->mixed_range = calloc(TSR_BLOCK_MATRICES * count + 1, sizeof *model->mixed_range);
    model->mixed_sums = calloc(count + 1, sizeof *model->mixed_sums);
    bool made = model->mixed_range && model->mixed_sums;
    for (int i = 0; made && i < STAGES; i++) {
        model->stage[i].range = calloc(count + 1, sizeof *model->stage[i].range);
        made = model->stage[i].range != NULL;
    }
    return made;
}

void tsr_model_set_sums(tsr_model *model, int adapter, tsr_model_sums sums)
{
    model->mixed_sums[adapter] = sums;
}

/* What one adapter has of a linear. */
static tsr_linear_range range_of(const tsr_model *model, int unit, const tsr_unit_view *view,
                                 const tsr_layout_linear *linear, const tsr_model_range *range)
{
    const tsr_layout_mixed *mixed = &linear->mixed[range->adapter];
    const tsr_model_adapter *adapter = &model->options.adapter[range->adapter];
    tsr_linear_range out = {
        .first = range->first, .tokens = range->tokens, .r = mixed->r, .scale = mixed->scale};
    if (!mixed->r)
        return out;
    out.a = tsr_model_trainable_at(model, unit, view, mixed->a);
    out.b = tsr_model_trainable_at(model, unit, view, mixed->b);
    out.drops = adapter->dropout > 0;
    if (out.drops)
        out.dropout =
            tsr_dropout_make(adapter->dropout, adapter->seed, range->epoch, linear->module_key);
    return out;
}

void tsr_model_resolve_mixed(tsr_linear *out, const tsr_model *model, int unit,
                             const tsr_unit_view *view, int index)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_linear *linear = &layout->unit[unit].linear[index];
    const tsr_model_batch *batch = &tsr_model_current(model)->batch;
    tsr_linear_range *range = model->mixed_range + index * layout->mixed_count;
    out->low = tsr_layer_program_of(model->options.programs, unit)->traits[index].low;
    for (int i = 0; i < batch->range_count; i++)
        range[i] = range_of(model, unit, view, linear, &batch->range[i]);
    if (batch->range_count > 1) {
        out->range = range;
        out->range_count = linear->r ? batch->range_count : 0;
        return;
    }
    out->apart = model->options.dropout > 0; /* x A^T is kept then, and what merges has none */
    out->r = range->r;
    out->scale = range->scale;
    out->a = range->a;
    out->b = range->b;
    out->drops = range->drops;
    out->dropout = range->dropout;
}

/* Of a linear, the gradients of adapter `adapter`; cleared, if `absent`. */
static tsr_status place_one(float **da, float **db, const tsr_model *model, int unit,
                            const tsr_unit_view *view, float *gradient,
                            const tsr_layout_mixed *mixed, bool absent)
{
    const tsr_layout_segment *segment = model->options.layout->unit[unit].trainable;
    *da = *db = NULL;
    if (!mixed->r)
        return TSR_OK;
    *da = tsr_model_gradient_at(model, unit, view, gradient, mixed->a);
    *db = tsr_model_gradient_at(model, unit, view, gradient, mixed->b);
    if (!absent || !*da)
        return TSR_OK;
    TSR_TRY(tsr_stream_fill(model->compute, *da, 0, segment[mixed->a].element_count * sizeof **da));
    return tsr_stream_fill(model->compute, *db, 0, segment[mixed->b].element_count * sizeof **db);
}

/* The range of an adapter; NULL: it has none. */
static tsr_linear_range *find_range(const tsr_model *model, int index, int adapter)
{
    const tsr_model_batch *batch = &tsr_model_current(model)->batch;
    for (int i = 0; i < batch->range_count; i++)
        if (batch->range[i].adapter == adapter)
            return &model->mixed_range[index * model->options.layout->mixed_count + i];
    return NULL;
}

tsr_status tsr_model_place_mixed(tsr_layer_gradients *out, const tsr_model *model, int unit,
                                 const tsr_unit_view *view, float *gradient)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_unit *u = &layout->unit[unit];
    for (int i = 0; i < u->block->matrix_count; i++) {
        out[i] = (tsr_layer_gradients){0};
        for (int k = 0; k < layout->mixed_count; k++) {
            tsr_linear_range *range = find_range(model, i, k);
            float *da, *db;
            TSR_TRY(place_one(&da, &db, model, unit, view, gradient, &u->linear[i].mixed[k],
                              range == NULL));
            if (!range)
                continue;
            range->da = da;
            range->db = db;
            out[i] = (tsr_layer_gradients){.a = da, .b = db}; /* of all tokens, if there is one */
        }
    }
    return TSR_OK;
}
