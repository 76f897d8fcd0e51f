/*
 * model/embed.c: from tokens to the input of the first layer: the embedding's rows, which come with the micro-batch from
 * host memory, or those of a table that is trained, and its gradient; NEFTune's noise.
 */
#include "model/model_parts.h"

/* As Transformers has it: a number of the weights' dtype. */
static float embedding_scale(const tsr_model *model)
{
    double stated = model->options.layout->config.embedding_scale;
    float scale = stated != 0 ? (float)stated : 1;
    return model->options.dtype == TSR_BF16 ? tsr_bf16_to_f32(tsr_f32_to_bf16(scale)) : scale;
}

/* The micro-batch has arrived; x is the input of layer 0. */
static tsr_status arrive(tsr_model *model, void *x)
{
    const stage *s = tsr_model_current(model);
    model->carried = (tsr_layer_input){x, NULL, NULL};
    return tsr_stream_wait(model->compute, s->staged, tsr_event_recorded(s->staged));
}

/* NEFTune's, on what the module of the embedding gives: before a scale that follows it. */
static tsr_status add_noise(tsr_model *model, void *x)
{
    const stage *s = tsr_model_current(model);
    const tsr_model_config *config = &model->options.layout->config;
    if (!(s->batch.noise > 0))
        return TSR_OK;
    double scale =
        config->embedding_scale_later && config->embedding_scale > 0 ? config->embedding_scale : 1;
    return model->options.kernels->noise(
        model->compute, &(tsr_noise_args){.x = x,
                                          .samples = s->view.sample,
                                          .positions = s->view.sample_position,
                                          .key = tsr_noise_key(model->options.seed, s->batch.epoch),
                                          .size = (float)(s->batch.noise * scale),
                                          .tokens = s->batch.tokens,
                                          .columns = (int64_t)config->hidden_size,
                                          .dtype = model->options.dtype});
}

/* Its embedding's rows, which came with it, become x. */
static tsr_status look_up(tsr_model *model, void *x)
{
    const stage *s = tsr_model_current(model);
    TSR_TRY(arrive(model, x));
    return model->options.kernels->widen(
        model->compute,
        &(tsr_widen_args){.out = x,
                          .in = s->view.embedding,
                          .count =
                              s->batch.tokens * (int64_t)model->options.layout->config.hidden_size,
                          .in_dtype = model->host.embedding.dtype,
                          .dtype = model->options.dtype,
                          .scale = embedding_scale(model)});
}

tsr_status tsr_model_embed_tokens(tsr_model *model, void *x)
{
    TSR_TRY(look_up(model, x));
    return add_noise(model, x);
}

/* A segment of the chunk that adapters of the embedding and rows of tokens have. */
static const void *part_at(const tsr_model *model, int segment, const tsr_unit_view *view)
{
    return tsr_model_trainable_at(model, tsr_layout_head_end(model->options.layout), view, segment);
}

static void *gradient_at(const tsr_model *model, int segment, const tsr_unit_view *view,
                         void *gradient)
{
    return tsr_model_gradient_at(model, tsr_layout_head_end(model->options.layout), view, gradient,
                                 segment);
}

/* low = A[:, id] of every token. */
static tsr_status gather_low(tsr_model *model, const tsr_unit_view *view)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_table_lora *lora = &layout->embedding_lora;
    const stage *s = tsr_model_current(model);
    int64_t vocabulary = (int64_t)layout->config.vocab_size;
    return model->options.kernels->table_rows(
        model->compute, &(tsr_table_rows_args){.out = model->embedding_low[0],
                                               .table = part_at(model, lora->a, view),
                                               .ids = s->view.ids,
                                               .tokens = s->batch.tokens,
                                               .d = (int64_t)lora->r,
                                               .count = vocabulary,
                                               .row_stride = 1,
                                               .column_stride = vocabulary,
                                               .scale = 1,
                                               .dtype = model->options.dtype});
}

/* x += scale low B^T, as large as the embedding's own scale makes it. */
static tsr_status add_lora(tsr_model *model, const tsr_unit_view *view, void *x)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_table_lora *lora = &layout->embedding_lora;
    const stage *s = tsr_model_current(model);
    int64_t d = (int64_t)layout->config.hidden_size, r = (int64_t)lora->r;
    if (!lora->r)
        return TSR_OK;
    TSR_TRY(gather_low(model, view));
    for (int i = 0; i < s->span_count; i++) {
        int64_t first = s->span[i].first;
        TSR_TRY(model->options.kernels->gemm(
            model->compute,
            &(tsr_gemm_args){.m = s->span[i].tokens,
                             .n = d,
                             .k = r,
                             .a = tsr_model_rows_at(model, model->embedding_low[0], first, r),
                             .b = part_at(model, lora->b, view),
                             .c = tsr_model_rows_at(model, x, first, d),
                             .trans_b = true,
                             .alpha = (float)lora->scale * embedding_scale(model),
                             .beta = 1,
                             .dtype = model->options.dtype,
                             .c_dtype = model->options.dtype}));
    }
    return TSR_OK;
}

/* The sums over a span's tokens, of `d` columns each in dout, which is of all tokens. */
static tsr_status sum_span(tsr_model *model, tsr_table_gradient *gradient, tsr_table_sum_args args,
                           const token_span *span)
{
    const stage *s = tsr_model_current(model);
    args.dtable = gradient->part;
    args.dout = tsr_model_rows_at(model, args.dout, span->first, args.d);
    args.ids = s->view.ids + span->first;
    args.next = s->view.next + span->first;
    args.leads = s->view.leads + span->first;
    args.tokens = span->tokens;
    args.lead_count = span->lead_count;
    args.dtype = model->options.dtype;
    TSR_TRY(model->options.kernels->table_sum(model->compute, &args));
    return tsr_model_add_part(model, gradient);
}

/* Of a span: dB = s dx^T low, d low = s dx B, dA[:, id] += d low. */
static tsr_status lora_span(tsr_model *model, const tsr_unit_view *view, tsr_table_gradient *da,
                            tsr_table_gradient *db, const token_span *span)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_table_lora *lora = &layout->embedding_lora;
    const tsr_kernels *kernels = model->options.kernels;
    int64_t d = (int64_t)layout->config.hidden_size, r = (int64_t)lora->r;
    int64_t vocabulary = (int64_t)layout->config.vocab_size;
    tsr_gemm_args gemm = {.m = d,
                          .n = r,
                          .k = span->tokens,
                          .a = tsr_model_rows_at(model, model->activations.dx, span->first, d),
                          .b = tsr_model_rows_at(model, model->embedding_low[0], span->first, r),
                          .c = db->part,
                          .trans_a = true,
                          .alpha = (float)lora->scale * embedding_scale(model),
                          .dtype = model->options.dtype,
                          .c_dtype = TSR_F32};
    TSR_TRY(kernels->gemm(model->compute, &gemm));
    TSR_TRY(tsr_model_add_part(model, db));
    gemm.m = span->tokens;
    gemm.k = d;
    gemm.b = part_at(model, lora->b, view);
    gemm.c = tsr_model_rows_at(model, model->embedding_low[1], span->first, r);
    gemm.trans_a = false;
    gemm.c_dtype = model->options.dtype;
    TSR_TRY(kernels->gemm(model->compute, &gemm));
    return sum_span(model, da,
                    (tsr_table_sum_args){.dout = model->embedding_low[1],
                                         .d = r,
                                         .count = vocabulary,
                                         .row_stride = 1,
                                         .column_stride = vocabulary,
                                         .scale = 1},
                    span);
}

static tsr_status lora_backward(tsr_model *model, const tsr_unit_view *view, void *gradient)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_table_lora *lora = &layout->embedding_lora;
    const stage *s = tsr_model_current(model);
    tsr_table_gradient da = tsr_model_table_gradient(
        model, gradient_at(model, lora->a, view, gradient), lora->r * layout->config.vocab_size);
    tsr_table_gradient db = tsr_model_table_gradient(
        model, gradient_at(model, lora->b, view, gradient), lora->r * layout->config.hidden_size);
    TSR_TRY(gather_low(model, view));
    for (int i = 0; i < s->span_count; i++)
        TSR_TRY(lora_span(model, view, &da, &db, &s->span[i]));
    TSR_TRY(tsr_model_end_parts(model, &da));
    return tsr_model_end_parts(model, &db);
}

/* Before the rows of trained tokens take their places, the embedding's own; the head's are kept until it comes. */
static tsr_status begin_rows(tsr_model *model, void *x, const tsr_unit_view *view)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_rows *head = &layout->head_rows;
    uint64_t bytes =
        (uint64_t)head->count * layout->config.hidden_size * tsr_dtype_bytes(model->options.dtype);
    TSR_TRY(look_up(model, x));
    return bytes ? tsr_stream_copy(model->compute, model->head_rows,
                                   part_at(model, head->segment, view), bytes)
                 : TSR_OK;
}

tsr_status tsr_model_embed(tsr_model *model, int chunk, const tsr_unit_view *view, void *x)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_unit *rows = &layout->unit[chunk];
    const stage *s = tsr_model_current(model);
    bool whole = layout->embedding_whole;
    int64_t count = whole ? (int64_t)rows->row_count : layout->embedding_rows.count;
    if (rows->first_row == 0)
        TSR_TRY(whole ? arrive(model, x) : begin_rows(model, x, view));
    if (count)
        TSR_TRY(model->options.kernels->table_rows(
            model->compute,
            &(tsr_table_rows_args){.out = x,
                                   .table =
                                       whole ? view->trainable
                                             : part_at(model, layout->embedding_rows.segment, view),
                                   .ids = s->view.ids,
                                   .tokens = s->batch.tokens,
                                   .d = (int64_t)model->options.layout->config.hidden_size,
                                   .first = (int64_t)rows->first_row,
                                   .count = count,
                                   .scale = embedding_scale(model),
                                   .dtype = model->options.dtype}));
    TSR_TRY(add_lora(model, view, x));
    bool last = !whole || rows->first_row + rows->row_count == layout->config.vocab_size;
    return last ? add_noise(model, x) : TSR_OK;
}

/* The head's rows of trained tokens have their gradient already. */
static tsr_status copy_rows(tsr_model *model, void *gradient)
{
    const tsr_layout *layout = model->options.layout;
    uint64_t element = tsr_model_tiles(&model->options) ? sizeof(int64_t) : sizeof(float);
    return tsr_stream_copy(model->compute, gradient, model->head_gradient,
                           (uint64_t)layout->head_rows.count * layout->config.hidden_size *
                               element);
}

/* Of a chunk of the embedding, or of its trained rows, to which those of a tied head are added. */
static tsr_status rows_backward(tsr_model *model, int64_t first, int64_t count, void *gradient)
{
    const tsr_layout *layout = model->options.layout;
    const stage *s = tsr_model_current(model);
    int64_t d = (int64_t)layout->config.hidden_size;
    tsr_table_gradient g = tsr_model_table_gradient(model, gradient, (uint64_t)(count * d));
    tsr_table_sum_args args = {.dout = model->activations.dx,
                               .d = d,
                               .first = first,
                               .count = count,
                               .scale = embedding_scale(model)};
    if (layout->rows_tied && !g.divided) {
        args.plus = model->head_gradient;
    } else if (layout->rows_tied) {
        TSR_TRY(copy_rows(model, gradient));
        g.begun = true;
    }
    for (int i = 0; i < s->span_count; i++)
        TSR_TRY(sum_span(model, &g, args, &s->span[i]));
    return tsr_model_end_parts(model, &g);
}

tsr_status tsr_model_embed_backward(tsr_model *model, int chunk, const tsr_unit_view *view,
                                    void *gradient)
{
    const tsr_layout *layout = model->options.layout;
    const tsr_layout_unit *rows = &layout->unit[chunk];
    bool whole = layout->embedding_whole;
    int64_t count = whole ? (int64_t)rows->row_count : layout->embedding_rows.count;
    if (layout->head_rows.count && !layout->rows_tied)
        TSR_TRY(copy_rows(model, gradient_at(model, layout->head_rows.segment, view, gradient)));
    if (layout->embedding_lora.r)
        return lora_backward(model, view, gradient);
    if (!count)
        return TSR_OK;
    return rows_backward(
        model, (int64_t)rows->first_row, count,
        whole ? gradient : gradient_at(model, layout->embedding_rows.segment, view, gradient));
}
