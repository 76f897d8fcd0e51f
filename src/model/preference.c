/*
 * model/preference.c: preference objectives. The head computes each label's nll and the unweighted gradient of its row; the
 * objective turns sums over documents into one weight per row, so the logits are computed once.
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

tsr_status tsr_model_walk_preference(tsr_model *model, const tsr_model_options *options,
                                     tsr_take_buffer *device, void *user)
{
    uint64_t doubles = (uint64_t)tsr_objective_doubles(options->bounds.documents);
    uint64_t rows = (uint64_t)options->bounds.label_rows;
    static const char *const of_rows[] = {"row entropies", "row hits", "row logits"};
    void *of_row[3] = {NULL};
    void *sums = NULL, *weight = NULL, *words = NULL, *squares[2] = {NULL};
    TSR_TRY(
        device(user, &sums, "document sums",
               "log-probabilities of the micro-batch's documents, and what the loss makes of them",
               (tsr_array){TSR_F64, doubles, 1}));
    TSR_TRY(device(user, &weight, "row weights", "of the objective: the gradient of each label",
                   (tsr_array){TSR_F32, rows, 1}));
    for (int i = 0; i < (tsr_model_reports_logits(options) ? 3 : 2); i++)
        TSR_TRY(device(user, &of_row[i], of_rows[i],
                       "of the objective: what is reported of each label",
                       (tsr_array){TSR_F32, rows, 1}));
    for (int i = 0; i < 2 && options->objective->weighting; i++)
        TSR_TRY(device(user, &squares[i], i ? "row log squares" : "row squares",
                       "of the objective: how sure the model is of each label",
                       (tsr_array){TSR_F32, rows, 1}));
    TSR_TRY(device(user, &words, "preference sums", "of the objective: what is reported of a step",
                   (tsr_array){TSR_I64, TSR_PREFERENCE_WORDS + 1, 1}));
    if (model)
        model->preference = (preference_state){.sums = sums,
                                               .weight = weight,
                                               .squares = squares[0],
                                               .log_squares = squares[1],
                                               .entropy = of_row[0],
                                               .correct = of_row[1],
                                               .logit = of_row[2],
                                               .words = words};
    return TSR_OK;
}

int64_t *tsr_model_loss_word(const tsr_model *model)
{
    return model->options.objective ? model->preference.words + TSR_PREFERENCE_WORDS
                                    : model->sums.loss;
}

tsr_status tsr_model_prefer(tsr_model *model)
{
    const stage *s = tsr_model_current(model);
    const tsr_kernels *kernels = model->options.kernels;
    const preference_state *state = &model->preference;
    TSR_TRY(kernels->objective(
        model->compute,
        &(tsr_objective_args){.objective = model->options.objective,
                              .rows = s->batch.label_rows,
                              .documents = s->batch.documents,
                              .nll = model->activations.nll,
                              .part = s->view.part,
                              .reference = s->batch.reference ? s->view.reference : NULL,
                              .desirable = s->view.desirable,
                              .log_squares = state->log_squares,
                              .row_entropy = state->entropy,
                              .row_correct = state->correct,
                              .row_logit = state->logit,
                              .sums = state->sums,
                              .weight = s->batch.sums_alone ? NULL : state->weight,
                              .scale = s->batch.share,
                              .loss = model->sums.loss,
                              .loss_overflow = model->sums.loss_overflow,
                              .words = state->words}));
    if (!s->batch.train)
        return TSR_OK;
    return kernels->scale_rows(
        model->compute,
        &(tsr_scale_rows_args){.x = model->activations.head.rows,
                               .weight = state->weight,
                               .rows = s->batch.label_rows,
                               .d = (int64_t)model->options.layout->config.hidden_size,
                               .dtype = model->options.dtype});
}
