/*
 * model/preference.c: preference objectives. The head computes each label's nll and the unweighted gradient of its row; the
 * objective turns sums over documents into one weight per row, so the logits are computed once.
 *
 * Of a micro-batch that several ranks share each has the label rows of its own tokens, and the sums are over all of them: so
 * the ranks first give each other what the head says of theirs, and each then computes all weights.
 */
#include "model/model_parts.h"

int64_t *tsr_model_preference_words(const tsr_model *model)
{
    return model->preference.words;
}

const double *tsr_model_document_sums(const tsr_model *model)
{
    return model->preference.sums;
}

bool tsr_model_reports_logits(const tsr_model_options *options)
{
    return options->objective && options->layout->config.logits_softcap <= 0 &&
           (options->objective->kind == TSR_OBJECTIVE_DPO ||
            options->objective->kind == TSR_OBJECTIVE_KTO);
}

static bool wants(const tsr_model_options *options, int i)
{
    return i == LABEL_LOGIT         ? tsr_model_reports_logits(options)
           : i == LABEL_LOG_SQUARES ? options->objective->weighting
                                    : true;
}

/* Int64 of an array of fp32. */
static int64_t words_of(int64_t rows)
{
    return (rows + 1) / 2;
}

/* Values of so many rows one behind the other, from `base` on; returns how many int64 they are. */
static int64_t lay_out(label_values *out, const tsr_model_options *options, void *base,
                       int64_t rows)
{
    int64_t words = rows;
    *out = (label_values){.nll = base};
    for (int i = 0; i < LABEL_FLOATS; i++) {
        if (!wants(options, i))
            continue;
        out->of[i] = base ? (float *)(void *)((int64_t *)base + words) : NULL;
        words += words_of(rows);
    }
    return words;
}

static tsr_status walk_rows(preference_state *state, const tsr_model_options *options,
                            tsr_take_buffer *device, void *user)
{
    static const char *const names[LABEL_FLOATS] = {"row entropies", "row hits", "row logits",
                                                    "row log squares"};
    int64_t all_rows = tsr_batch_all_label_rows(&options->bounds);
    tsr_array array = {TSR_F32, (uint64_t)options->bounds.label_rows, 1};
    void *address = NULL;
    label_values unused;
    TSR_TRY(device(user, &address, "row weights", "of the objective: the gradient of each label",
                   (tsr_array){TSR_F32, (uint64_t)all_rows, 1}));
    state->weight = address;
    for (int i = 0; i < LABEL_FLOATS; i++) {
        if (!wants(options, i))
            continue;
        TSR_TRY(device(user, &address, names[i], "of the objective: what is said of each label",
                       array));
        state->own.of[i] = address;
    }
    if (options->objective->weighting) {
        TSR_TRY(device(user, &address, "row squares",
                       "of the objective: how sure the model is of each label", array));
        state->squares = address;
    }
    if (!tsr_spans_shared(&options->spans))
        return TSR_OK;
    uint64_t words = (uint64_t)lay_out(&unused, options, NULL, all_rows);
    return device(user, &state->all, "label values",
                  "of the objective: what all ranks that share a micro-batch say of its labels",
                  (tsr_array){TSR_I64, words, 1});
}

tsr_status tsr_model_walk_preference(tsr_model *model, const tsr_model_options *options,
                                     tsr_take_buffer *device, void *user)
{
    preference_state state = {0};
    void *sums = NULL, *words = NULL;
    TSR_TRY(device(
        user, &sums, "document sums",
        "log-probabilities of the micro-batch's documents, and what the loss makes of them",
        (tsr_array){TSR_F64, (uint64_t)tsr_objective_doubles(options->bounds.documents), 1}));
    TSR_TRY(walk_rows(&state, options, device, user));
    TSR_TRY(device(user, &words, "preference sums", "of the objective: what is reported of a step",
                   (tsr_array){TSR_I64, 2 * TSR_PREFERENCE_WORDS + 1, 1}));
    state.sums = sums;
    state.words = words;
    state.discarded = state.words + TSR_PREFERENCE_WORDS;
    if (model)
        model->preference = state;
    return TSR_OK;
}

int64_t *tsr_model_loss_word(const tsr_model *model)
{
    return model->options.objective ? model->preference.discarded + TSR_PREFERENCE_WORDS
                                    : model->sums.loss;
}

bool tsr_model_is_first_sharer(const tsr_model *model)
{
    return !tsr_model_is_shared(model) || model->options.spans.rank == 0;
}

/* ---- label rows of several ranks ---- */

static tsr_status copy_labels(const tsr_model *model, char *all, char *own, uint64_t row_bytes,
                              bool out)
{
    const stage *s = tsr_model_current(model);
    for (int i = 0; i < s->span_count; i++) {
        const token_span *span = &s->span[i];
        char *in_all = all + (uint64_t)span->first_of_all * row_bytes;
        char *in_own = own + (uint64_t)span->first_label * row_bytes;
        if (span->label_rows)
            TSR_TRY(tsr_stream_copy(model->compute, out ? in_own : in_all, out ? in_all : in_own,
                                    (uint64_t)span->label_rows * row_bytes));
    }
    return TSR_OK;
}

tsr_status tsr_model_place_labels(const tsr_model *model, void *all, const void *own,
                                  uint64_t row_bytes)
{
    return copy_labels(model, all, (void *)own, row_bytes, false);
}

tsr_status tsr_model_take_labels(const tsr_model *model, void *own, const void *all,
                                 uint64_t row_bytes)
{
    return copy_labels(model, (void *)all, own, row_bytes, true);
}

/* What the head has said, of all ranks. */
static tsr_status gather(label_values *out, const tsr_model *model)
{
    const preference_state *state = &model->preference;
    int64_t rows = tsr_model_current(model)->all_label_rows;
    int64_t words = lay_out(out, &model->options, state->all, rows);
    TSR_TRY(tsr_stream_fill(model->compute, state->all, 0, (uint64_t)words * sizeof(int64_t)));
    TSR_TRY(tsr_model_place_labels(model, out->nll, model->activations.nll, sizeof(double)));
    for (int i = 0; i < LABEL_FLOATS; i++)
        if (out->of[i])
            TSR_TRY(tsr_model_place_labels(model, out->of[i], state->own.of[i], sizeof(float)));
    return tsr_context_sum(model->shared, state->all, (uint64_t)words);
}

/* ---- the loss ---- */

/* The gradient of the label rows, span by span, since their weights lie where all ranks' do. */
static tsr_status weigh(tsr_model *model)
{
    const stage *s = tsr_model_current(model);
    int64_t d = (int64_t)model->options.layout->config.hidden_size;
    for (int i = 0; i < s->span_count; i++) {
        const token_span *span = &s->span[i];
        if (span->label_rows)
            TSR_TRY(model->options.kernels->scale_rows(
                model->compute,
                &(tsr_scale_rows_args){.x = tsr_model_rows_at(model, model->activations.head.rows,
                                                              span->first_label, d),
                                       .weight = model->preference.weight + span->first_of_all,
                                       .rows = span->label_rows,
                                       .d = d,
                                       .dtype = model->options.dtype}));
    }
    return TSR_OK;
}

tsr_status tsr_model_prefer(tsr_model *model)
{
    const stage *s = tsr_model_current(model);
    const preference_state *state = &model->preference;
    label_values labels = state->own;
    bool first = tsr_model_is_first_sharer(model);
    labels.nll = model->activations.nll;
    if (tsr_model_is_shared(model))
        TSR_TRY(gather(&labels, model));
    TSR_TRY(model->options.kernels->objective(
        model->compute,
        &(tsr_objective_args){.objective = model->options.objective,
                              .rows = s->all_label_rows,
                              .documents = s->batch.documents,
                              .nll = labels.nll,
                              .part = s->view.part,
                              .reference = s->batch.reference ? s->view.reference : NULL,
                              .desirable = s->view.desirable,
                              .log_squares = labels.of[LABEL_LOG_SQUARES],
                              .row_entropy = labels.of[LABEL_ENTROPY],
                              .row_correct = labels.of[LABEL_CORRECT],
                              .row_logit = labels.of[LABEL_LOGIT],
                              .sums = state->sums,
                              .weight = s->batch.sums_alone ? NULL : state->weight,
                              .scale = s->batch.share,
                              .loss = first ? model->sums.loss : tsr_model_loss_word(model),
                              .loss_overflow = model->sums.loss_overflow,
                              .words = first ? state->words : state->discarded}));
    return s->batch.train ? weigh(model) : TSR_OK;
}
