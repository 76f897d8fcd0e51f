/*
 * model/head.c: from the last layer to the loss and back: final norm, the rows that have a label,
 * the vocabulary chunk by chunk, and the gradient of the final norm's input.
 */
#include "model/model_parts.h"

tsr_status tsr_model_head_begin(tsr_model *model, const tsr_layer *layer)
{
    tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    const tsr_kernels *kernels = model->options.kernels;
    int64_t d = model->shape.d;
    tsr_head_state state = a->head;
    TSR_TRY(kernels->rms_norm(model->compute, &(tsr_rms_norm_args){.x = model->carried.x,
                                                                   .z = model->carried.z,
                                                                   .g = model->carried.g,
                                                                   .w = layer->final_norm,
                                                                   .x_out = a->x_final,
                                                                   .h = a->h_final,
                                                                   .rstd = a->rstd_final,
                                                                   .tokens = s->batch.tokens,
                                                                   .d = d,
                                                                   .eps = model->shape.eps,
                                                                   .dtype = model->options.dtype}));
    TSR_TRY(kernels->gather_rows(model->compute,
                                 &(tsr_gather_rows_args){.out = a->h_rows,
                                                         .in = a->h_final,
                                                         .index = s->view.label_row,
                                                         .rows = s->batch.label_rows,
                                                         .tokens = s->batch.tokens,
                                                         .d = d,
                                                         .dtype = model->options.dtype}));
    if (!s->batch.train)
        state.acc = state.wy = NULL;
    return kernels->head_begin(
        model->compute,
        &(tsr_head_begin_args){.state = state, .rows = s->batch.label_rows, .d = d});
}

tsr_status tsr_model_head_chunk(tsr_model *model, int unit, const tsr_unit_view *view)
{
    tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_unit *chunk = &layout->unit[unit];
    tsr_head_state state = a->head;
    if (!s->batch.train)
        state.acc = state.wy = NULL;
    tsr_head_chunk_args args = {.state = state,
                                .h = a->h_rows,
                                .w = {view->frozen, chunk->frozen[0].dtype},
                                .labels = s->view.label,
                                .workspace = a->head_workspace,
                                .workspace_bytes = a->head_workspace_bytes,
                                .rows = s->batch.label_rows,
                                .d = model->shape.d,
                                .first = (int64_t)chunk->first_row,
                                .count = (int64_t)chunk->row_count,
                                .dtype = model->options.dtype};
    TSR_TRY(model->options.kernels->head_chunk(model->compute, &args));
    if (unit < layout->unit_count - 1)
        return TSR_OK;
    return model->options.kernels->head_finish(
        model->compute, &(tsr_head_finish_args){.state = state,
                                                .dh = s->batch.train ? a->h_rows : NULL,
                                                .nll = a->nll,
                                                .loss = model->sums.loss,
                                                .loss_overflow = model->sums.loss_overflow,
                                                .rows = s->batch.label_rows,
                                                .d = model->shape.d,
                                                .scale = (float)(1 / s->batch.label_tokens),
                                                .dtype = model->options.dtype});
}

tsr_status tsr_model_head_backward(tsr_model *model, const tsr_layer *layer)
{
    tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    const tsr_kernels *kernels = model->options.kernels;
    TSR_TRY(kernels->scatter_rows(model->compute,
                                  &(tsr_scatter_rows_args){.out = a->scratch.d_h,
                                                           .in = a->h_rows,
                                                           .index = s->view.label_row,
                                                           .rows = s->batch.label_rows,
                                                           .tokens = s->batch.tokens,
                                                           .d = model->shape.d,
                                                           .dtype = model->options.dtype}));
    return kernels->rms_norm_backward(model->compute,
                                      &(tsr_rms_norm_backward_args){.dh = a->scratch.d_h,
                                                                    .x = a->x_final,
                                                                    .rstd = a->rstd_final,
                                                                    .w = layer->final_norm,
                                                                    .dx = a->dx,
                                                                    .tokens = s->batch.tokens,
                                                                    .d = model->shape.d,
                                                                    .overwrite = true,
                                                                    .dtype = model->options.dtype});
}
