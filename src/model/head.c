/*
 * model/head.c: from the last layer to the loss and back: final norm, the rows that have a label,
 * the vocabulary chunk by chunk, the gradients of its chunks where they are trained, and that of the final norm's input.
 */
#include "model/model_parts.h"

static int64_t width(const tsr_model *model)
{
    return (int64_t)model->options.layout->config.hidden_size;
}

/* Of the micro-batch that is computed. W never changes: its rows are summed once. */
static tsr_head_state state_of(const tsr_model *model)
{
    tsr_head_state state = model->activations.head.state;
    if (!tsr_model_current(model)->batch.train)
        state.acc = state.wy = NULL;
    if (!model->mean_row_known)
        state.row_parts = model->activations.row_parts;
    return state;
}

tsr_status tsr_model_head_begin(tsr_model *model, const tsr_layer *layer)
{
    tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    const tsr_kernels *kernels = model->options.kernels;
    int64_t d = width(model);
    TSR_TRY(kernels->rms_norm(
        model->compute,
        &(tsr_rms_norm_args){.x = model->carried.x,
                             .z = model->carried.z,
                             .g = model->carried.g,
                             .w = layer->final_norm,
                             .x_out = a->head.x,
                             .h = a->head.h,
                             .rstd = a->head.rstd,
                             .tokens = s->batch.tokens,
                             .d = d,
                             .eps = (float)model->options.layout->config.rms_norm_eps,
                             .dtype = model->options.dtype}));
    TSR_TRY(kernels->gather_rows(model->compute,
                                 &(tsr_gather_rows_args){.out = a->head.rows,
                                                         .in = a->head.h,
                                                         .index = s->view.label_row,
                                                         .rows = s->batch.label_rows,
                                                         .tokens = s->batch.tokens,
                                                         .d = d,
                                                         .dtype = model->options.dtype}));
    return kernels->head_begin(
        model->compute,
        &(tsr_head_begin_args){.state = state_of(model), .rows = s->batch.label_rows, .d = d});
}

/* The loss, what is reported beside it, and the gradient of the label rows in their place. */
static tsr_status finish(tsr_model *model)
{
    tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    float *mean_row = a->row_parts ? a->row_parts + TSR_HEAD_PARTS * width(model) : NULL;
    uint64_t vocabulary = model->options.layout->config.vocab_size;
    tsr_head_state state = state_of(model);
    model->mean_row_known = true;
    return model->options.kernels->head_finish(
        model->compute, &(tsr_head_finish_args){.state = state,
                                                .dh = s->batch.train ? a->head.rows : NULL,
                                                .nll = a->nll,
                                                .loss = model->sums.loss,
                                                .loss_overflow = model->sums.loss_overflow,
                                                .correct = model->sums.correct,
                                                .entropy = model->sums.entropy,
                                                .rows = s->batch.label_rows,
                                                .d = width(model),
                                                .scale = (float)(1 / s->batch.label_tokens),
                                                .dtype = model->options.dtype,
                                                .smoothing = model->options.label_smoothing,
                                                .h = a->head.rows,
                                                .mean_row = mean_row,
                                                .vocabulary = (int64_t)vocabulary});
}

/* The label rows of h again, for their place has their gradient; acc's is free by then. */
static tsr_status gather_again(const tsr_model *model)
{
    const tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    return model->options.kernels->gather_rows(
        model->compute, &(tsr_gather_rows_args){.out = a->head.state.acc,
                                                .in = a->head.h,
                                                .index = s->view.label_row,
                                                .rows = s->batch.label_rows,
                                                .tokens = s->batch.tokens,
                                                .d = width(model),
                                                .dtype = model->options.dtype});
}

/* The gradient of vocabulary rows [first, first + count), whose weights are w. */
static tsr_status weigh(tsr_model *model, const void *w, int64_t first, int64_t count, float *dw)
{
    const tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    return model->options.kernels->head_weight(
        model->compute,
        &(tsr_head_weight_args){.max = a->head.state.max,
                                .sum = a->head.state.sum,
                                .label_logit = a->head.state.label_logit,
                                .h = a->head.state.acc,
                                .w = w,
                                .labels = s->view.label,
                                .dw = dw,
                                .workspace = a->head.workspace,
                                .workspace_bytes = a->head.workspace_bytes,
                                .rows = s->batch.label_rows,
                                .d = width(model),
                                .first = first,
                                .count = count,
                                .scale = (float)(1 / s->batch.label_tokens),
                                .softcap = (float)model->options.layout->config.logits_softcap,
                                .dtype = model->options.dtype});
}

tsr_status tsr_model_head_weight(tsr_model *model, int unit, const tsr_unit_view *view,
                                 float *gradient)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_unit *chunk = &layout->unit[unit];
    if (unit == tsr_layout_head_end(layout) - 1)
        TSR_TRY(gather_again(model));
    return weigh(model, view->trainable, (int64_t)chunk->first_row, (int64_t)chunk->row_count,
                 gradient);
}

static tsr_frozen chunk_weight(const tsr_model *model, const tsr_layout_unit *chunk,
                               const tsr_unit_view *view)
{
    return model->options.layout->head_trained
               ? (tsr_frozen){view->trainable, chunk->trainable[0].dtype}
               : (tsr_frozen){view->frozen, chunk->frozen[0].dtype};
}

tsr_status tsr_model_head_chunk(tsr_model *model, int unit, const tsr_unit_view *view)
{
    tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_unit *chunk = &layout->unit[unit];
    tsr_head_chunk_args args = {.state = state_of(model),
                                .h = a->head.rows,
                                .w = chunk_weight(model, chunk, view),
                                .labels = s->view.label,
                                .workspace = a->head.workspace,
                                .workspace_bytes = a->head.workspace_bytes,
                                .rows = s->batch.label_rows,
                                .d = width(model),
                                .first = (int64_t)chunk->first_row,
                                .count = (int64_t)chunk->row_count,
                                .skip = model->head_ids,
                                .skip_count = layout->head_rows.count,
                                .softcap = (float)layout->config.logits_softcap,
                                .dtype = model->options.dtype};
    TSR_TRY(model->options.kernels->head_chunk(model->compute, &args));
    if (unit < tsr_layout_head_end(layout) - 1)
        return TSR_OK;
    if (!layout->head_rows.count)
        return finish(model);
    /* Rows of tokens that are trained, behind the vocabulary, in place of those that were skipped. */
    args.w = (tsr_frozen){model->head_rows, model->options.dtype};
    args.first = (int64_t)layout->config.vocab_size;
    args.count = layout->head_rows.count;
    args.skip_count = 0;
    TSR_TRY(model->options.kernels->head_chunk(model->compute, &args));
    TSR_TRY(finish(model));
    if (!s->batch.train)
        return TSR_OK;
    TSR_TRY(gather_again(model));
    return weigh(model, model->head_rows, args.first, args.count, model->head_gradient);
}

tsr_status tsr_model_head_backward(tsr_model *model, const tsr_layer *layer)
{
    tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    const tsr_kernels *kernels = model->options.kernels;
    TSR_TRY(kernels->scatter_rows(model->compute,
                                  &(tsr_scatter_rows_args){.out = a->head.d_h,
                                                           .in = a->head.rows,
                                                           .index = s->view.label_row,
                                                           .rows = s->batch.label_rows,
                                                           .tokens = s->batch.tokens,
                                                           .d = width(model),
                                                           .dtype = model->options.dtype}));
    return kernels->rms_norm_backward(model->compute,
                                      &(tsr_rms_norm_backward_args){.dh = a->head.d_h,
                                                                    .x = a->head.x,
                                                                    .rstd = a->head.rstd,
                                                                    .w = layer->final_norm,
                                                                    .dx = a->dx,
                                                                    .tokens = s->batch.tokens,
                                                                    .d = width(model),
                                                                    .overwrite = true,
                                                                    .dtype = model->options.dtype});
}
