/*
 * model/head.c: from the last layer to the loss and back: final norm, the rows that have a label,
 * the vocabulary chunk by chunk, the gradients of its chunks where they are trained, and that of the final norm's input.
 *
 * A long micro-batch goes through it in spans (stage.c), as layers' tails go through tiles. What is made of several label
 * rows at once, a matmul or the sum of losses, is made of one span's, and so are gradients of the head's own parameters.
 */
#include "model/model_parts.h"

static int64_t width(const tsr_model *model)
{
    return (int64_t)model->options.layout->config.hidden_size;
}

/* Columns of what a LoRA of the head puts beside h and W; 0: it has none. */
static int64_t low_width(const tsr_model *model)
{
    return (int64_t)model->options.layout->head_lora.r;
}

/* Of what logits are made of. */
static int64_t joined_width(const tsr_model *model)
{
    return width(model) + low_width(model);
}

/* NULL remains NULL. */
static void *rows_at(const tsr_model *model, const void *rows, int64_t first, int64_t columns)
{
    return rows ? tsr_model_rows_at(model, rows, first, columns) : NULL;
}

static float *floats_at(float *values, int64_t first)
{
    return values ? values + first : NULL;
}

/* From a label row of the micro-batch on. W never changes: its rows are summed once, beside the first label row. */
static tsr_head_state state_of(const tsr_model *model, int64_t first)
{
    tsr_head_state state = model->activations.head.state;
    int64_t wide = first * joined_width(model);
    bool train = tsr_model_current(model)->batch.train;
    state.max += first;
    state.sum += first;
    state.label_logit += first;
    state.acc = train ? state.acc + wide : NULL;
    state.wy = train ? (char *)state.wy + (uint64_t)wide * tsr_dtype_bytes(state.wy_dtype) : NULL;
    state.rival += first;
    state.spread += first;
    state.squares = floats_at(model->preference.squares, first);
    if (!model->mean_row_known && first == 0)
        state.row_parts = model->row_parts;
    return state;
}

/* ---- the final norm ---- */

/* The label rows of a span, of h. */
static tsr_status gather(const tsr_model *model, void *out, const void *h, const token_span *span)
{
    int64_t d = width(model);
    const stage *s = tsr_model_current(model);
    return model->options.kernels->gather_rows(
        model->compute, &(tsr_gather_rows_args){.out = rows_at(model, out, span->first_label, d),
                                                .in = h,
                                                .index = s->view.label_row + span->first_label,
                                                .rows = span->label_rows,
                                                .tokens = span->tokens,
                                                .d = d,
                                                .dtype = model->options.dtype});
}

/* h of a span's tokens. */
static void *h_of(const tsr_model *model, const token_span *span)
{
    const tsr_activations *a = &model->activations;
    return rows_at(model, a->head.h, a->head.h_whole ? span->first : 0, width(model));
}

static tsr_status begin_span(tsr_model *model, const tsr_layer *layer, const token_span *span)
{
    tsr_activations *a = &model->activations;
    int64_t d = width(model), first = span->first;
    TSR_TRY(model->options.kernels->rms_norm(
        model->compute,
        &(tsr_rms_norm_args){.x = rows_at(model, model->carried.x, first, d),
                             .z = rows_at(model, model->carried.z, first, d),
                             .g = model->carried.g,
                             .w = layer->final_norm,
                             .x_out = rows_at(model, a->head.x, first, d),
                             .h = h_of(model, span),
                             .rstd = a->head.rstd + first,
                             .tokens = span->tokens,
                             .d = d,
                             .eps = (float)model->options.layout->config.rms_norm_eps,
                             .dtype = model->options.dtype}));
    return gather(model, low_width(model) ? a->head.label_h : a->head.rows, h_of(model, span),
                  span);
}

tsr_status tsr_model_head_begin(tsr_model *model, const tsr_layer *layer)
{
    const stage *s = tsr_model_current(model);
    for (int i = 0; i < s->span_count; i++)
        TSR_TRY(begin_span(model, layer, &s->span[i]));
    if (model->options.layout->scores)
        return TSR_OK;
    return model->options.kernels->head_begin(model->compute,
                                              &(tsr_head_begin_args){.state = state_of(model, 0),
                                                                     .rows = s->batch.label_rows,
                                                                     .d = joined_width(model)});
}

static tsr_status span_backward(tsr_model *model, const tsr_layer *layer, const token_span *span)
{
    tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    const tsr_kernels *kernels = model->options.kernels;
    int64_t d = width(model), first = span->first;
    const void *gradient = low_width(model) ? a->head.label_h : a->head.rows;
    TSR_TRY(kernels->scatter_rows(
        model->compute,
        &(tsr_scatter_rows_args){.out = a->head.d_h,
                                 .in = rows_at(model, gradient, span->first_label, d),
                                 .index = s->view.label_row + span->first_label,
                                 .rows = span->label_rows,
                                 .tokens = span->tokens,
                                 .d = d,
                                 .dtype = model->options.dtype}));
    return kernels->rms_norm_backward(
        model->compute, &(tsr_rms_norm_backward_args){.dh = a->head.d_h,
                                                      .x = rows_at(model, a->head.x, first, d),
                                                      .rstd = a->head.rstd + first,
                                                      .w = layer->final_norm,
                                                      .dx = rows_at(model, a->dx, first, d),
                                                      .tokens = span->tokens,
                                                      .d = d,
                                                      .overwrite = true,
                                                      .dtype = model->options.dtype});
}

tsr_status tsr_model_head_backward(tsr_model *model, const tsr_layer *layer)
{
    const stage *s = tsr_model_current(model);
    for (int i = 0; i < s->span_count; i++)
        TSR_TRY(span_backward(model, layer, &s->span[i]));
    return TSR_OK;
}

/* ---- the loss ---- */

/* What head_finish is given of label rows. */
static tsr_head_finish_args finish_args(const tsr_model *model, int64_t first, int64_t rows)
{
    const tsr_activations *a = &model->activations;
    const preference_state *preference = &model->preference;
    const stage *s = tsr_model_current(model);
    void *dh = low_width(model) ? a->head.d_rows : a->head.rows;
    bool weighed = model->options.objective != NULL;
    return (tsr_head_finish_args){
        .state = state_of(model, first),
        .dh = s->batch.train ? rows_at(model, dh, first, joined_width(model)) : NULL,
        .nll = a->nll + first,
        .loss = tsr_model_loss_word(model),
        .loss_overflow = model->sums.loss_overflow,
        .correct = model->sums.correct,
        .entropy = model->sums.entropy,
        .log_squares = floats_at(preference->own.of[LABEL_LOG_SQUARES], first),
        .row_entropy = floats_at(preference->own.of[LABEL_ENTROPY], first),
        .row_correct = floats_at(preference->own.of[LABEL_CORRECT], first),
        .row_logit = floats_at(preference->own.of[LABEL_LOGIT], first),
        .rows = rows,
        .d = joined_width(model),
        .scale = weighed ? 1 : (float)(1 / s->batch.label_tokens),
        .dtype = model->options.dtype,
        .smoothing = model->options.label_smoothing,
        .h = rows_at(model, a->head.rows, first, joined_width(model)),
        .mean_row = model->row_parts ? model->row_parts + TSR_HEAD_PARTS * width(model) : NULL,
        .vocabulary = (int64_t)model->options.layout->config.vocab_size};
}

/* Of one of several adapters: its label rows, into its sums. There is neither an objective nor smoothing. */
static tsr_status finish_range(tsr_model *model, const tsr_model_range *range)
{
    tsr_head_finish_args args = finish_args(model, range->first_label, range->label_rows);
    const tsr_model_sums *sums = &model->mixed_sums[range->adapter];
    args.loss = sums->loss;
    args.loss_overflow = sums->loss_overflow;
    args.correct = sums->correct;
    args.entropy = sums->entropy;
    args.scale = (float)(1 / range->label_tokens);
    return model->options.kernels->head_finish(model->compute, &args);
}

/* The loss, what is reported beside it, and the gradient of the label rows in their place. A span's loss is rounded by
 * itself. */
static tsr_status finish(tsr_model *model)
{
    const stage *s = tsr_model_current(model);
    const tsr_model_batch *batch = &s->batch;
    for (int i = 0; i < s->span_count && !batch->range_count; i++) {
        const token_span *span = &s->span[i];
        if (!span->label_rows)
            continue;
        tsr_head_finish_args args = finish_args(model, span->first_label, span->label_rows);
        model->mean_row_known = true;
        TSR_TRY(model->options.kernels->head_finish(model->compute, &args));
    }
    for (int i = 0; i < batch->range_count; i++)
        if (batch->range[i].label_rows)
            TSR_TRY(finish_range(model, &batch->range[i]));
    return model->options.objective ? tsr_model_prefer(model) : TSR_OK;
}

/* The label rows of h again, for their place has their gradient; acc's is free by then. */
static tsr_status gather_again(const tsr_model *model)
{
    const stage *s = tsr_model_current(model);
    for (int i = 0; i < s->span_count; i++)
        TSR_TRY(gather(model, model->activations.head.state.acc, h_of(model, &s->span[i]),
                       &s->span[i]));
    return TSR_OK;
}

/* ---- a LoRA of the head: h and W with columns beside them, [h, scale low] and [W, B] ---- */

/* `columns` columns of a matrix of rows `to_stride` wide, from one of rows `from_stride` wide. */
static tsr_status put(tsr_model *model, void *to, int64_t to_stride, tsr_frozen from,
                      int64_t from_stride, int64_t rows, int64_t columns)
{
    return model->options.kernels->copy_columns(
        model->compute, &(tsr_copy_columns_args){.out = to,
                                                 .in = from.data,
                                                 .rows = rows,
                                                 .columns = columns,
                                                 .out_stride = to_stride,
                                                 .in_stride = from_stride,
                                                 .in_dtype = from.dtype,
                                                 .dtype = model->options.dtype,
                                                 .scale = 1});
}

/* From column d of rows on. */
static void *low_of(const tsr_model *model, void *rows)
{
    return (char *)rows + (uint64_t)width(model) * tsr_dtype_bytes(model->options.dtype);
}

/* For each span that has labels, from its first label row on; a has lda columns, c ldc. */
static tsr_status gemm_spans(tsr_model *model, tsr_gemm_args gemm, const void *a, void *c)
{
    const stage *s = tsr_model_current(model);
    for (int i = 0; i < s->span_count; i++) {
        gemm.m = s->span[i].label_rows;
        gemm.a = rows_at(model, a, s->span[i].first_label, gemm.lda);
        gemm.c = rows_at(model, c, s->span[i].first_label, gemm.ldc);
        if (gemm.m)
            TSR_TRY(model->options.kernels->gemm(model->compute, &gemm));
    }
    return TSR_OK;
}

/* rows = [h, scale h A^T], of the first chunk, which has A. */
static tsr_status join_rows(tsr_model *model, int unit, const tsr_unit_view *view)
{
    const tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    tsr_frozen h = {a->head.label_h, model->options.dtype};
    tsr_gemm_args gemm = {.n = low_width(model),
                          .k = width(model),
                          .b = tsr_model_trainable_at(model, unit, view, 0),
                          .lda = width(model),
                          .ldc = joined_width(model),
                          .trans_b = true,
                          .alpha = (float)model->options.layout->head_lora.scale,
                          .dtype = model->options.dtype,
                          .c_dtype = model->options.dtype};
    TSR_TRY(put(model, a->head.rows, joined_width(model), h, width(model), s->batch.label_rows,
                width(model)));
    return gemm_spans(model, gemm, a->head.label_h, low_of(model, a->head.rows));
}

/* [W, B] of a chunk. */
static tsr_status join_chunk(tsr_model *model, int unit, const tsr_unit_view *view)
{
    const tsr_layout_unit *chunk = &model->options.layout->unit[unit];
    void *joined = model->activations.head.joined;
    tsr_frozen w = {view->frozen, chunk->frozen[0].dtype};
    tsr_frozen b = {tsr_model_trainable_at(model, unit, view, chunk->trainable_count - 1),
                    model->options.dtype};
    int64_t rows = (int64_t)chunk->row_count, stride = joined_width(model);
    TSR_TRY(put(model, joined, stride, w, width(model), rows, width(model)));
    return put(model, low_of(model, joined), stride, b, low_width(model), rows, low_width(model));
}

/* dA = d low^T h, of d low = scale times what follows dh in d_rows. */
static tsr_status weigh_a(tsr_model *model, tsr_gemm_args gemm, void *gradient)
{
    const tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    tsr_table_gradient g = tsr_model_table_gradient(model, gradient, (uint64_t)(gemm.m * gemm.n));
    gemm.c = g.part;
    gemm.trans_a = true;
    gemm.c_dtype = TSR_F32;
    for (int i = 0; i < s->span_count; i++) {
        int64_t first = s->span[i].first_label;
        gemm.k = s->span[i].label_rows;
        gemm.a = low_of(model, rows_at(model, a->head.d_rows, first, joined_width(model)));
        gemm.b = rows_at(model, a->head.label_h, first, width(model));
        if (!gemm.k)
            continue;
        TSR_TRY(model->options.kernels->gemm(model->compute, &gemm));
        TSR_TRY(tsr_model_add_part(model, &g));
    }
    return tsr_model_end_parts(model, &g);
}

/* Then label_h = dh + d low A, which head_backward takes. */
static tsr_status finish_lora(tsr_model *model, int unit, const tsr_unit_view *view, void *gradient)
{
    const tsr_activations *a = &model->activations;
    int64_t rows = tsr_model_current(model)->batch.label_rows, stride = joined_width(model);
    tsr_frozen dh = {a->head.d_rows, model->options.dtype};
    tsr_gemm_args gemm = {.m = low_width(model),
                          .n = width(model),
                          .lda = stride,
                          .alpha = (float)model->options.layout->head_lora.scale,
                          .dtype = model->options.dtype,
                          .c_dtype = model->options.dtype};
    TSR_TRY(weigh_a(model, gemm, tsr_model_gradient_at(model, unit, view, gradient, 0)));
    TSR_TRY(put(model, a->head.label_h, width(model), dh, stride, rows, width(model)));
    gemm.k = low_width(model);
    gemm.b = tsr_model_trainable_at(model, unit, view, 0);
    gemm.ldc = width(model);
    gemm.beta = 1;
    return gemm_spans(model, gemm, low_of(model, a->head.d_rows), a->head.label_h);
}

/* ---- chunks ---- */

/* The gradient of vocabulary rows [first, first + count), whose weights are w; of a LoRA's B, that of the columns behind
 * W's. */
static tsr_status weigh(tsr_model *model, const void *w, int64_t first, int64_t count,
                        void *gradient)
{
    const tsr_activations *a = &model->activations;
    const stage *s = tsr_model_current(model);
    int64_t low = low_width(model), stride = joined_width(model);
    void *h = low ? a->head.rows : (void *)a->head.state.acc;
    tsr_table_gradient g =
        tsr_model_table_gradient(model, gradient, (uint64_t)(count * (low ? low : width(model))));
    tsr_head_weight_args args = {.w = w,
                                 .dw = g.part,
                                 .z_columns = low,
                                 .z_stride = stride,
                                 .workspace = a->head.workspace,
                                 .workspace_bytes = a->head.workspace_bytes,
                                 .d = stride,
                                 .first = first,
                                 .count = count,
                                 .scale = (float)(1 / s->batch.label_tokens),
                                 .softcap = (float)model->options.layout->config.logits_softcap,
                                 .dtype = model->options.dtype};
    for (int i = 0; i < s->span_count; i++) {
        int64_t label = s->span[i].first_label;
        const tsr_head_state state = state_of(model, label);
        args.rows = s->span[i].label_rows;
        args.max = state.max;
        args.sum = state.sum;
        args.label_logit = state.label_logit;
        args.h = rows_at(model, h, label, stride);
        args.z = low ? low_of(model, rows_at(model, h, label, stride)) : NULL;
        args.labels = s->view.label + label;
        if (!args.rows)
            continue;
        TSR_TRY(model->options.kernels->head_weight(model->compute, &args));
        TSR_TRY(tsr_model_add_part(model, &g));
    }
    return tsr_model_end_parts(model, &g);
}

/* Of a chunk of B; the first one, which comes last, has A too. */
static tsr_status weigh_lora(tsr_model *model, int unit, const tsr_unit_view *view, void *gradient)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_unit *chunk = &layout->unit[unit];
    void *db = tsr_model_gradient_at(model, unit, view, gradient, chunk->trainable_count - 1);
    TSR_TRY(join_chunk(model, unit, view));
    TSR_TRY(weigh(model, model->activations.head.joined, (int64_t)chunk->first_row,
                  (int64_t)chunk->row_count, db));
    return unit == layout->layer_count ? finish_lora(model, unit, view, gradient) : TSR_OK;
}

tsr_status tsr_model_head_weight(tsr_model *model, int unit, const tsr_unit_view *view,
                                 void *gradient)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_unit *chunk = &layout->unit[unit];
    if (layout->scores)
        return tsr_model_score_weight(model, unit, view, gradient);
    if (low_width(model))
        return weigh_lora(model, unit, view, gradient);
    if (unit == tsr_layout_head_end(layout) - 1)
        TSR_TRY(gather_again(model));
    return weigh(model, view->trainable, (int64_t)chunk->first_row, (int64_t)chunk->row_count,
                 gradient);
}

/* What logits of a chunk are made with. */
static tsr_status chunk_weight(tsr_frozen *out, tsr_model *model, int unit,
                               const tsr_unit_view *view)
{
    const tsr_layout_unit *chunk = &model->options.layout->unit[unit];
    *out = (tsr_frozen){model->activations.head.joined, model->options.dtype};
    if (low_width(model))
        return join_chunk(model, unit, view);
    *out = model->options.layout->head_whole
               ? (tsr_frozen){view->trainable, chunk->trainable[0].dtype}
               : (tsr_frozen){view->frozen, chunk->frozen[0].dtype};
    return TSR_OK;
}

/* A chunk into the state of every span that has labels. */
static tsr_status add_chunk(const tsr_model *model, tsr_head_chunk_args args)
{
    const stage *s = tsr_model_current(model);
    for (int i = 0; i < s->span_count; i++) {
        int64_t first = s->span[i].first_label;
        if (!s->span[i].label_rows)
            continue;
        args.state = state_of(model, first);
        args.h = rows_at(model, model->activations.head.rows, first, args.d);
        args.labels = s->view.label + first;
        args.rows = s->span[i].label_rows;
        TSR_TRY(model->options.kernels->head_chunk(model->compute, &args));
    }
    return TSR_OK;
}

tsr_status tsr_model_head_chunk(tsr_model *model, int unit, const tsr_unit_view *view)
{
    tsr_activations *a = &model->activations;
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_unit *chunk = &layout->unit[unit];
    tsr_head_chunk_args args = {.workspace = a->head.workspace,
                                .workspace_bytes = a->head.workspace_bytes,
                                .d = joined_width(model),
                                .first = (int64_t)chunk->first_row,
                                .count = (int64_t)chunk->row_count,
                                .skip = model->head_ids,
                                .skip_count = layout->head_rows.count,
                                .softcap = (float)layout->config.logits_softcap,
                                .dtype = model->options.dtype};
    if (layout->scores)
        return tsr_model_score(model, unit, view);
    if (low_width(model) && unit == layout->layer_count)
        TSR_TRY(join_rows(model, unit, view));
    TSR_TRY(chunk_weight(&args.w, model, unit, view));
    TSR_TRY(add_chunk(model, args));
    if (unit < tsr_layout_head_end(layout) - 1)
        return TSR_OK;
    if (!layout->head_rows.count)
        return finish(model);
    /* Rows of tokens that are trained, behind the vocabulary, in place of those that were skipped. */
    args.w = (tsr_frozen){model->head_rows, model->options.dtype};
    args.first = (int64_t)layout->config.vocab_size;
    args.count = layout->head_rows.count;
    args.skip_count = 0;
    TSR_TRY(add_chunk(model, args));
    TSR_TRY(finish(model));
    if (!tsr_model_current(model)->batch.train)
        return TSR_OK;
    TSR_TRY(gather_again(model));
    return weigh(model, model->head_rows, args.first, args.count, model->head_gradient);
}
