/*
 * model/score.c: a reward model's head (kernels/score.h): rewards and loss where other models have a vocabulary. Both gradients
 * are made with the loss; that of the score waits for the backward in the head's scratch.
 *
 * Of a micro-batch that several ranks share each has some documents' last tokens: all of them get all rows, and the first says
 * the loss and the gradient of the score.
 */
#include "model/model_parts.h"

#include "base/checked.h"

_Static_assert((int)TSR_SCORE_WORDS <= (int)TSR_PREFERENCE_WORDS,
               "they are the first of an objective's words");

static uint64_t row_bytes(const tsr_model_options *options)
{
    return options->layout->config.hidden_size * tsr_dtype_bytes(options->dtype);
}

/* Int64 that so many rows are. */
static uint64_t words_of(const tsr_model_options *options, uint64_t rows)
{
    return tsr_ceil_div(rows * row_bytes(options), sizeof(int64_t));
}

tsr_status tsr_model_walk_score(tsr_model *model, const tsr_model_options *options,
                                tsr_take_buffer *device, void *user)
{
    uint64_t rows = (uint64_t)tsr_batch_all_label_rows(&options->bounds);
    void *rewards = NULL, *words = NULL, *all = NULL;
    TSR_TRY(device(user, &rewards, "rewards", "of the documents, and their slopes in the loss",
                   (tsr_array){TSR_F64, rows, 2}));
    TSR_TRY(device(user, &words, "preference sums", "of the objective: what is reported of a step",
                   (tsr_array){TSR_I64, 2 * TSR_PREFERENCE_WORDS + 1, 1}));
    if (tsr_spans_shared(&options->spans))
        TSR_TRY(device(user, &all, "label rows", "of all ranks that share a micro-batch",
                       (tsr_array){TSR_I64, words_of(options, rows), 1}));
    if (model)
        model->preference =
            (preference_state){.rewards = rewards,
                               .all = all,
                               .words = words,
                               .discarded = (int64_t *)words + TSR_PREFERENCE_WORDS};
    return TSR_OK;
}

/* Every rank's rows, in their order. */
static tsr_status gather(const tsr_model *model)
{
    const tsr_model_options *options = &model->options;
    void *all = model->preference.all;
    uint64_t words = words_of(options, (uint64_t)tsr_model_current(model)->all_label_rows);
    TSR_TRY(tsr_stream_fill(model->compute, all, 0, words * sizeof(int64_t)));
    TSR_TRY(tsr_model_place_labels(model, all, model->activations.head.rows, row_bytes(options)));
    return tsr_context_sum(model->shared, all, words);
}

tsr_status tsr_model_score(tsr_model *model, int unit, const tsr_unit_view *view)
{
    const stage *s = tsr_model_current(model);
    const tsr_layout *layout = model->options.layout;
    const tsr_activations *a = &model->activations;
    const preference_state *state = &model->preference;
    bool shared = tsr_model_is_shared(model), first = tsr_model_is_first_sharer(model);
    int64_t rows = s->all_label_rows;
    void *h = shared ? state->all : a->head.rows;
    tsr_frozen w = {tsr_model_trainable_at(model, unit, view, 0),
                    layout->unit[unit].trainable[0].dtype};
    if (shared)
        TSR_TRY(gather(model));
    TSR_TRY(model->options.kernels->score(
        model->compute,
        &(tsr_score_args){.h = h,
                          .w = w,
                          .margin = s->view.margin,
                          .tie = s->view.desirable,
                          .reward = state->rewards,
                          .slope = state->rewards + rows,
                          .dh = s->batch.train ? h : NULL,
                          .dw = s->batch.train ? a->head.score_gradient : NULL,
                          .rows = rows,
                          .d = (int64_t)layout->config.hidden_size,
                          .center = model->options.objective->center,
                          .scale = s->batch.share,
                          .loss = first ? model->sums.loss : tsr_model_loss_word(model),
                          .loss_overflow = model->sums.loss_overflow,
                          .words = first ? state->words : state->discarded,
                          .dtype = model->options.dtype}));
    return shared && s->batch.train
               ? tsr_model_take_labels(model, a->head.rows, h, row_bytes(&model->options))
               : TSR_OK;
}

tsr_status tsr_model_score_weight(tsr_model *model, int unit, const tsr_unit_view *view,
                                  void *gradient)
{
    uint64_t d = model->options.layout->config.hidden_size;
    void *to = tsr_model_gradient_at(model, unit, view, gradient, 0);
    tsr_table_gradient g = tsr_model_table_gradient(model, to, d);
    if (tsr_model_is_first_sharer(model)) {
        TSR_TRY(tsr_stream_copy(model->compute, g.part, model->activations.head.score_gradient,
                                d * sizeof(float)));
        TSR_TRY(tsr_model_add_part(model, &g));
    }
    return tsr_model_end_parts(model, &g);
}
