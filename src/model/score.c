/*
 * model/score.c: a reward model's head (kernels/score.h): rewards and loss where other models have a vocabulary. Both gradients
 * are made with the loss; that of the score waits for the backward in the head's scratch.
 */
#include "model/model_parts.h"

_Static_assert((int)TSR_SCORE_WORDS <= (int)TSR_PREFERENCE_WORDS,
               "they are the first of an objective's words");

tsr_status tsr_model_walk_score(tsr_model *model, const tsr_model_options *options,
                                tsr_take_buffer *device, void *user)
{
    uint64_t rows = (uint64_t)options->bounds.label_rows;
    void *rewards = NULL, *words = NULL;
    TSR_TRY(device(user, &rewards, "rewards", "of the documents, and their slopes in the loss",
                   (tsr_array){TSR_F64, rows, 2}));
    TSR_TRY(device(user, &words, "preference sums", "of the objective: what is reported of a step",
                   (tsr_array){TSR_I64, TSR_PREFERENCE_WORDS, 1}));
    if (model)
        model->preference = (preference_state){.rewards = rewards, .words = words};
    return TSR_OK;
}

tsr_status tsr_model_score(tsr_model *model, int unit, const tsr_unit_view *view)
{
    const stage *s = tsr_model_current(model);
    const tsr_layout *layout = model->options.layout;
    const tsr_activations *a = &model->activations;
    int64_t rows = s->batch.label_rows;
    tsr_frozen w = {tsr_model_trainable_at(model, unit, view, 0),
                    layout->unit[unit].trainable[0].dtype};
    return model->options.kernels->score(
        model->compute, &(tsr_score_args){.h = a->head.rows,
                                          .w = w,
                                          .margin = s->view.margin,
                                          .tie = s->view.desirable,
                                          .reward = model->preference.rewards,
                                          .slope = model->preference.rewards + rows,
                                          .dh = s->batch.train ? a->head.rows : NULL,
                                          .dw = s->batch.train ? a->head.score_gradient : NULL,
                                          .rows = rows,
                                          .d = (int64_t)layout->config.hidden_size,
                                          .center = model->options.objective->center,
                                          .scale = s->batch.share,
                                          .loss = model->sums.loss,
                                          .loss_overflow = model->sums.loss_overflow,
                                          .words = model->preference.words,
                                          .dtype = model->options.dtype});
}

tsr_status tsr_model_score_weight(tsr_model *model, int unit, const tsr_unit_view *view,
                                  float *gradient)
{
    return tsr_stream_copy(model->compute, tsr_model_gradient_at(model, unit, view, gradient, 0),
                           model->activations.head.score_gradient,
                           model->options.layout->config.hidden_size * sizeof(float));
}
