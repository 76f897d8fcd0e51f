/*
 * model/stage.c: micro-batches on their way to the device, one ahead of the one that is computed.
 * The rows of the embedding that a micro-batch needs are collected on the host and travel with it.
 */
#include "model/model_parts.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

#define PART_ALIGNMENT 64

/* Of a table as it is kept; F16 is widened when it is read. */
static uint64_t row_bytes(const tsr_tensor *table)
{
    return table ? table->shape[1] * (table->dtype == TSR_BF16 ? 2 : 4) : 0;
}

/* Lays the parts out from `base` for these counts; returns the bytes. */
static uint64_t lay_out(stage_view *view, char *base, const tsr_model_options *options,
                        int64_t tokens, int64_t documents, int64_t label_rows)
{
    uint64_t t = (uint64_t)tokens, offset = 0;
    const tsr_layout *layout = options->layout;
    uint64_t chains = layout->embedding_count ? t * sizeof(int32_t) : 0;
    uint64_t sums = TSR_PARTS * (uint64_t)documents, pairs = (uint64_t)documents / 2;
    bool parts_known = options->objective && !layout->scores;
    const struct {
        void **part;
        uint64_t bytes;
    } parts[] = {
        {(void **)&view->positions, t * sizeof(int32_t)},
        {(void **)&view->cu_seqlens, ((uint64_t)documents + 1) * sizeof(int32_t)},
        {(void **)&view->label_row, (uint64_t)label_rows * sizeof(int32_t)},
        {(void **)&view->label, (uint64_t)label_rows * sizeof(int32_t)},
        {(void **)&view->sample_position, t * sizeof(int32_t)},
        {(void **)&view->sample, t * sizeof(int64_t)},
        {(void **)&view->part, parts_known ? (sums + 1) * sizeof(int32_t) : 0},
        {(void **)&view->desirable, options->objective ? pairs * sizeof(int32_t) : 0},
        {(void **)&view->reference, parts_known ? sums * sizeof(double) : 0},
        {(void **)&view->margin, layout->scores ? pairs * sizeof(float) : 0},
        {(void **)&view->embedding, layout->embedding_whole ? 0 : t * row_bytes(layout->embedding)},
        {(void **)&view->ids, chains},
        {(void **)&view->next, chains},
        {(void **)&view->leads, chains},
        {(void **)&view->layer_rows, t * row_bytes(layout->layer_rows)},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].part = base ? base + offset : NULL;
        offset += tsr_align_up(parts[i].bytes, PART_ALIGNMENT);
    }
    return offset;
}

uint64_t tsr_model_stage_bytes(const tsr_model_options *options)
{
    stage_view view;
    return lay_out(&view, NULL, options, options->bounds.tokens, options->bounds.documents,
                   options->bounds.label_rows);
}

const stage *tsr_model_current(const tsr_model *model)
{
    return &model->stage[model->released_count % STAGES];
}

/* ---- the rows of this rank ---- */

/* The place of a token of the micro-batch among this rank's; -1: it is another's. */
static int64_t place_of(const tsr_model *model, int64_t token)
{
    return tsr_spans_place(&model->options.spans, token);
}

/* Counts of what this rank has; documents are those of the whole micro-batch. */
static tsr_model_batch own_counts(const tsr_model *model, const tsr_model_batch *batch)
{
    tsr_model_batch own = *batch;
    own.tokens = tsr_spans_own_rows(&model->options.spans, batch->tokens);
    own.label_rows = 0;
    for (int64_t i = 0; i < batch->label_rows; i++)
        own.label_rows += place_of(model, batch->label_row[i]) >= 0;
    return own;
}

/* A document that is longer than the original length has the second table of its rope (LongRoPE), which begins
 * behind the first. */
static void turn_as_long(const tsr_model *model, const stage_view *view,
                         const tsr_model_batch *batch)
{
    const tsr_rope_scaling *rope = &model->options.layout->config.rope[0];
    if (rope->type != TSR_ROPE_LONG)
        return;
    for (int64_t document = 0; document < batch->documents; document++) {
        int32_t begin = batch->cu_seqlens[document], end = batch->cu_seqlens[document + 1];
        bool is_long = (double)(end - begin) > rope->original_max_positions;
        for (int32_t t = begin; t < end && is_long; t++)
            if (place_of(model, t) >= 0)
                view->positions[place_of(model, t)] +=
                    (int32_t)tsr_batch_all_tokens(&model->options.bounds);
    }
}

/* The tokens' rows of a table. */
static void look_up(const tsr_model *model, char *out, tsr_frozen table, uint64_t bytes,
                    const tsr_model_batch *batch)
{
    for (int64_t t = 0; t < batch->tokens && bytes; t++)
        if (place_of(model, t) >= 0)
            memcpy(out + (uint64_t)place_of(model, t) * bytes,
                   (const char *)table.data + (uint64_t)batch->ids[t] * bytes, bytes);
}

/* The rows of the trained table that a span's tokens have, and the chains of those that have one (kernels/table_rows.h), in
 * the tokens' order, whose ids these are. */
static void chain_ids(token_span *span, const tsr_model *model, const stage_view *view,
                      const int32_t *id)
{
    const int32_t *row = model->embedding_row;
    int32_t *last = model->last_of, *leads = view->leads + span->first;
    for (int64_t t = span->tokens - 1; t >= 0; t--) {
        int32_t of = row ? row[id[t]] : id[t];
        view->ids[span->first + t] = of;
        view->next[span->first + t] = last[id[t]];
        last[id[t]] = of < 0 ? -1 : (int32_t)t;
    }
    span->lead_count = 0;
    for (int64_t t = 0; t < span->tokens; t++) {
        if (last[id[t]] == t)
            leads[span->lead_count++] = (int32_t)t;
        last[id[t]] = -1;
    }
}

/* The first token of a span in the whole micro-batch. */
static int64_t first_of_all(const tsr_model *model, const stage *s, int span)
{
    const tsr_spans *spans = &model->options.spans;
    return tsr_spans_shared(spans) ? tsr_spans_own(spans, span) * spans->rows : s->span[span].first;
}

/* Labels that are trained tokens are in the chunk behind the vocabulary. */
static void move_labels(const tsr_model *model, const stage_view *view, int64_t label_rows)
{
    int32_t vocabulary = (int32_t)model->options.layout->config.vocab_size;
    for (int64_t i = 0; i < label_rows && model->head_row; i++)
        if (model->head_row[view->label[i]] >= 0)
            view->label[i] = vocabulary + model->head_row[view->label[i]];
}

static void fill_preference(const tsr_model *model, const stage_view *view,
                            const tsr_model_batch *batch)
{
    size_t parts = TSR_PARTS * (size_t)batch->documents, pairs = (size_t)batch->documents / 2;
    memcpy(view->desirable, batch->desirable, pairs * sizeof *view->desirable);
    if (model->options.layout->scores) {
        memcpy(view->margin, batch->margin, pairs * sizeof *view->margin);
        return;
    }
    memcpy(view->part, batch->part, (parts + 1) * sizeof *view->part);
    if (batch->reference)
        memcpy(view->reference, batch->reference, parts * sizeof *view->reference);
}

static int64_t span_rows(const tsr_model *model)
{
    const tsr_activation_options options = tsr_model_activation(&model->options);
    return tsr_activation_tile_rows(&options);
}

bool tsr_model_allocate_spans(tsr_model *model)
{
    int64_t rows = span_rows(model);
    size_t count = rows ? (size_t)(model->options.bounds.tokens / rows) + 1 : 1;
    bool made = true;
    for (int i = 0; made && i < STAGES; i++) {
        model->stage[i].span = calloc(count, sizeof *model->stage[i].span);
        made = model->stage[i].span != NULL;
    }
    return made;
}

/* The label rows of the micro-batch by spans, which matmuls take one by one: so their bits do not depend on which spans a
 * rank has. */
static void divide(const tsr_model *model, stage *s, const stage_view *view,
                   const tsr_model_batch *whole)
{
    int64_t rows = span_rows(model), tokens = s->batch.tokens, label = 0;
    int64_t own = 0, of_all = 0; /* of labels */
    rows = rows && rows < tokens ? rows : tokens;
    s->span_count = 0;
    for (int64_t first = 0; first < tokens; first += rows) {
        token_span *span = &s->span[s->span_count++];
        bool last = tokens - first <= rows;
        *span = (token_span){first, last ? tokens - first : rows, label, 0};
        for (; label < s->batch.label_rows && (last || view->label_row[label] < first + rows);
             label++)
            view->label_row[label] -= (int32_t)first;
        span->label_rows = label - span->first_label;
        for (; of_all < whole->label_rows && own < label; of_all++)
            own += place_of(model, whole->label_row[of_all]) >= 0;
        span->first_of_all = of_all - span->label_rows;
    }
}

/* Positions, in their documents and samples, and labels. */
static void fill_rows(const tsr_model *model, const stage_view *view, const tsr_model_batch *batch)
{
    int64_t labels = 0;
    for (int64_t t = 0; t < batch->tokens; t++)
        if (place_of(model, t) >= 0)
            view->positions[place_of(model, t)] = batch->positions[t];
    for (int64_t document = 0; document < batch->documents; document++)
        for (int32_t t = batch->cu_seqlens[document]; t < batch->cu_seqlens[document + 1]; t++) {
            int64_t place = place_of(model, t);
            if (place < 0)
                continue;
            view->sample[place] = batch->sample[document];
            view->sample_position[place] = batch->first_position[document] + batch->positions[t];
        }
    for (int64_t i = 0; i < batch->label_rows; i++) {
        int64_t place = place_of(model, batch->label_row[i]);
        if (place < 0)
            continue;
        view->label_row[labels] = (int32_t)place;
        view->label[labels++] = batch->label[i];
    }
}

/* The whole micro-batch's; own: what this rank has of it. */
static void fill(const tsr_model *model, const stage_view *view, const tsr_model_batch *batch,
                 const tsr_model_batch *own)
{
    const tsr_layout *layout = model->options.layout;
    memcpy(view->cu_seqlens, batch->cu_seqlens, ((size_t)batch->documents + 1) * sizeof(int32_t));
    fill_rows(model, view, batch);
    if (model->options.objective)
        fill_preference(model, view, batch);
    turn_as_long(model, view, batch);
    move_labels(model, view, own->label_rows);
    if (!layout->embedding_whole)
        look_up(model, view->embedding, model->host.embedding, row_bytes(layout->embedding), batch);
    look_up(model, view->layer_rows, model->host.layer_rows, row_bytes(layout->layer_rows), batch);
}

tsr_status tsr_model_stage(tsr_model *model, const tsr_model_batch *batch)
{
    stage *s = &model->stage[model->staged_count % STAGES];
    const tsr_batch_bounds *bounds = &model->options.bounds;
    stage_view host;
    if (model->staged_count - model->released_count >= STAGES)
        return tsr_fail(TSR_EINVAL, "a third micro-batch is staged before one was released");
    tsr_model_batch own = own_counts(model, batch);
    if (own.tokens > bounds->tokens || own.documents > bounds->documents ||
        own.label_rows > bounds->label_rows || batch->tokens > tsr_batch_all_tokens(bounds) ||
        batch->label_rows > tsr_batch_all_label_rows(bounds))
        return tsr_fail(TSR_EINTERNAL,
                        "a micro-batch of %lld tokens, %lld documents and %lld label rows; the "
                        "plan has room for %lld, %lld and %lld",
                        (long long)own.tokens, (long long)own.documents, (long long)own.label_rows,
                        (long long)bounds->tokens, (long long)bounds->documents,
                        (long long)bounds->label_rows);
    s->batch = own;
    s->all_tokens = batch->tokens;
    s->all_label_rows = batch->label_rows;
    s->active =
        tsr_model_active(batch) && (own.tokens > 0 || batch->tokens > model->options.spans.rows);
    if (batch->range_count) {
        memcpy(s->range, batch->range, (size_t)batch->range_count * sizeof *s->range);
        s->batch.range = s->range;
    }
    if (s->active) {
        uint64_t last = tsr_event_recorded(s->staged);
        if (last) /* the host side may be written again when its copy is done */
            TSR_TRY(tsr_event_wait_host(s->staged, last));
        uint64_t bytes =
            lay_out(&host, s->host, &model->options, own.tokens, own.documents, own.label_rows);
        lay_out(&s->view, s->device, &model->options, own.tokens, own.documents, own.label_rows);
        fill(model, &host, batch, &own);
        divide(model, s, &host, batch);
        for (int i = 0; i < s->span_count && model->last_of; i++)
            chain_ids(&s->span[i], model, &host, batch->ids + first_of_all(model, s, i));
        if (tsr_event_recorded(s->released))
            TSR_TRY(tsr_stream_wait(model->h2d, s->released, tsr_event_recorded(s->released)));
        TSR_TRY(tsr_stream_copy(model->h2d, s->device, s->host, bytes));
        TSR_TRY(tsr_event_record(s->staged, model->h2d));
    }
    model->staged_count++;
    return TSR_OK;
}

tsr_status tsr_model_unstage(tsr_model *model)
{
    if (model->staged_count == model->released_count)
        return tsr_fail(TSR_EINVAL, "no micro-batch is staged");
    model->staged_count--;
    return TSR_OK;
}

tsr_status tsr_model_release(tsr_model *model)
{
    stage *s = &model->stage[model->released_count % STAGES];
    if (s->active)
        TSR_TRY(tsr_event_record(s->released, model->compute));
    model->released_count++;
    return TSR_OK;
}
