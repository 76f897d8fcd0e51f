/*
 * preference.c: preference objectives: the reference's log-probabilities, computed once before the first step, and the metrics
 * of a step.
 *
 * The reference is the model before step 1, as in TRL: the base, or the adapter of init_adapter. With ref_adapter: base, and when
 * an adapter is evaluated, it is the base without an adapter; with ref_adapter: DIRECTORY the base with that one. The program of an
 * evaluation computes it in the order of the file, so its bits do not depend on the number of ranks. Checkpoints store it for
 * resumed runs.
 */
#include "base/auto.h"
#include "job/parts.h"

#include "inputs/objective.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REFERENCE_FILE TSR_JOB_REFERENCE_FILE
#define SAMPLE_SUMS    (2 * TSR_PARTS)

static const char *const tensor_names[] = {"dataset", "eval_dataset"};

static const tsr_dataset *data_of(const tsr_job *job, int which)
{
    return which ? job->inputs.eval_dataset : job->train ? job->inputs.dataset : NULL;
}

static uint64_t sums_of(const tsr_job *job, int which)
{
    const tsr_dataset *data = data_of(job, which);
    return data ? SAMPLE_SUMS * (uint64_t)tsr_dataset_sample_count(data) : 0;
}

/* Room for what data sets and micro-batches have. */
static tsr_status allocate(tsr_job *job)
{
    uint64_t most = TSR_PARTS * (uint64_t)job->inputs.bounds.documents;
    job->staged_reference = calloc(most + 1, sizeof *job->staged_reference);
    bool failed = !job->staged_reference;
    for (int i = 0; i < 2; i++) {
        job->reference[i] = calloc(sums_of(job, i) + 1, sizeof **job->reference);
        failed |= !job->reference[i];
    }
    return failed ? tsr_fail(TSR_ENOMEM, "out of memory for the log-probabilities of the reference")
                  : TSR_OK;
}

/* ---- another adapter, or none ---- */

/* Without B there is none. */
static tsr_status clear_b(void *user, const tsr_job_part *part)
{
    tsr_job *job = user;
    tsr_trainable_span span = tsr_job_trainable(job, part->unit, part->segment);
    uint64_t bytes = span.count * tsr_dtype_bytes(span.segment->dtype);
    if ((part->part != TSR_PEFT_B && part->part != TSR_PEFT_EMBEDDING_B) || !bytes)
        return TSR_OK;
    TSR_AUTO_FREE char *zeros = calloc(1, bytes);
    if (!zeros)
        return tsr_fail(TSR_ENOMEM, "out of memory for the reference");
    return tsr_device_write(job->device, span.work, zeros, bytes);
}

static tsr_status put_work(void *user, int unit, int segment, const float *values)
{
    return tsr_job_put_work(user, unit, segment, values);
}

/* Working copies of what the reference has, and of no master. */
static tsr_status put_reference(tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    const tsr_peft *adapter = job->inputs.reference.init;
    tsr_model_loader loader = {
        .comm = job->shard, .device = job->device, .trainable = put_work, .user = job};
    tsr_model_set_fresh(job->model, !adapter); /* without one, magnitudes are the norms of W */
    if (!adapter)
        return tsr_job_each_part(job, NULL, clear_b, job);
    for (int unit = 0; unit < layout->unit_count; unit++)
        TSR_TRY(tsr_model_load_trainable(layout, unit, adapter, 0, &loader));
    return TSR_OK;
}

/* ---- the pass ---- */

/* What the device has of a micro-batch, to the places of its samples, on the first of the ranks that share it. */
static tsr_status take_sums(tsr_job *job, const tsr_micro_batch *micro, int which)
{
    uint64_t count = TSR_PARTS * (uint64_t)micro->document_count;
    if (!micro->label_count || job->view.rank % job->inputs.config.context_parallel_size)
        return TSR_OK;
    TSR_TRY(tsr_streams_synchronize(tsr_job_streams(job)));
    TSR_TRY(tsr_device_read(job->device, job->staged_reference, tsr_model_document_sums(job->model),
                            count * sizeof(double)));
    for (int32_t d = 0; d < micro->document_count; d += 2)
        memcpy(job->reference[which] + micro->sample[d] * SAMPLE_SUMS,
               job->staged_reference + (int64_t)d * TSR_PARTS, SAMPLE_SUMS * sizeof(double));
    return TSR_OK;
}

/* What all ranks say of the rounds so far. */
static tsr_status end_rounds(tsr_job *job, int which)
{
    const tsr_host_flags flags = {.stop = tsr_job_is_asked(job)};
    TSR_TRY(tsr_executor_eval_end(job->executor, &flags));
    TSR_TRY(tsr_executor_wait_word(job->executor, job->word));
    if (job->word[TSR_WORD_STOP] != 0)
        return tsr_fail(TSR_ESTOPPED_UNSAVED,
                        "stopped while the reference was made; nothing was trained or written");
    return tsr_word_discards(job->word)
               ? tsr_fail(TSR_EDATA,
                          "%s: a log-probability of the reference is not finite; nothing was "
                          "trained; check the rows, or set dtype: float32",
                          tensor_names[which])
               : TSR_OK;
}

static tsr_status run_rounds(tsr_job *job, tsr_batch *batch, tsr_micro_batch *micro, int which)
{
    tsr_batch_step_info info;
    TSR_TRY(tsr_batch_step(batch, 0, &info));
    for (int64_t round = 0; round < info.rounds; round++) {
        if (round > 0 && round % TSR_JOB_ROUNDS_AT_ONCE == 0)
            TSR_TRY(end_rounds(job, which));
        tsr_comm_publish(job->world, 1, "reference", (int)round);
        TSR_TRY(tsr_batch_fill(micro, batch, 0, tsr_job_micro_of(job, round)));
        TSR_TRY(tsr_job_stage_reference(job, micro, &info));
        TSR_TRY(tsr_job_issue_micro(job, false));
        TSR_TRY(take_sums(job, micro, which));
        tsr_phase_at("the reference", (double)round + 1, (double)info.rounds);
    }
    return end_rounds(job, which);
}

/* A rank has the sums of its own micro-batches and zeros elsewhere, so adding the words of all ranks is exact. */
static tsr_status share(tsr_job *job, int which)
{
    uint64_t count = sums_of(job, which);
    int64_t *words = (int64_t *)(void *)job->reference[which];
    TSR_TRY(tsr_comm_all_reduce(job->world, job->control, words, count, TSR_SUM));
    return tsr_stream_synchronize(job->control);
}

static tsr_status pass(tsr_job *job, int which)
{
    tsr_batch *batch = which ? job->inputs.eval_batch : job->inputs.reference_batch;
    tsr_micro_batch micro;
    if (!batch || !data_of(job, which))
        return TSR_OK;
    TSR_TRY(tsr_job_agree(job, tsr_micro_batch_create(&micro, tsr_batch_run_of(batch))));
    tsr_status status = run_rounds(job, batch, &micro, which);
    tsr_micro_batch_free(&micro);
    if (status < 0)
        tsr_executor_fail(job->executor, status);
    TSR_TRY(tsr_job_agree(job, status));
    return share(job, which);
}

/* Whether the reference is not the model as it is. */
static bool is_other(const tsr_job *job)
{
    return job->inputs.adapter.present && (!job->train || job->inputs.config.ref_adapter);
}

static tsr_status both_passes(tsr_job *job)
{
    for (int which = 0; which < 2; which++)
        TSR_TRY(pass(job, which));
    return TSR_OK;
}

/* `kept` is for the working copies meanwhile. */
static tsr_status pass_of_other(tsr_job *job, char *kept)
{
    const tsr_trainable *trainable = &job->decision.store.trainable;
    tsr_status status = tsr_device_read(job->device, kept, trainable->work, trainable->work_bytes);
    TSR_TRY(tsr_job_agree(job, status));
    TSR_TRY(tsr_job_agree(job, put_reference(job)));
    TSR_TRY(tsr_executor_prologue(job->executor));
    TSR_TRY(both_passes(job));
    tsr_model_set_fresh(job->model, false);
    status = tsr_device_write(job->device, trainable->work, kept, trainable->work_bytes);
    TSR_TRY(tsr_job_agree(job, status));
    return tsr_executor_prologue(job->executor);
}

tsr_status tsr_job_make_reference(tsr_job *job)
{
    if (!tsr_inputs_has_reference(&job->inputs.config) || job->reference[0])
        return TSR_OK;
    TSR_TRY(tsr_job_agree(job, allocate(job)));
    if (!is_other(job))
        return both_passes(job);
    TSR_AUTO_FREE char *kept = malloc(job->decision.store.trainable.work_bytes + 1);
    TSR_TRY(tsr_job_agree(job,
                          kept ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory for the reference")));
    return pass_of_other(job, kept);
}

/* ---- in checkpoints ---- */

tsr_status tsr_job_write_reference(const tsr_job *job, const tsr_folder *folder)
{
    tsr_tensor_source source[2];
    uint64_t count = 0;
    for (int i = 0; i < 2; i++)
        if (sums_of(job, i))
            source[count++] =
                (tsr_tensor_source){.name = tensor_names[i],
                                    .dtype = TSR_F64,
                                    .ndim = 3,
                                    .shape = {sums_of(job, i) / SAMPLE_SUMS, 2, TSR_PARTS},
                                    .data = job->reference[i]};
    return tsr_safetensors_write_in(folder, REFERENCE_FILE, source, count);
}

static tsr_status read_sums(tsr_job *job, tsr_safetensors *file, int which)
{
    const tsr_tensor *tensor = tsr_safetensors_find(file, tensor_names[which]);
    uint64_t count = sums_of(job, which);
    if (!count)
        return TSR_OK;
    if (!tensor || tensor->dtype != TSR_F64 || tensor->element_count != count)
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' has %" PRIu64 " elements, expected %" PRIu64
                        " of F64: the checkpoint is of other data",
                        tsr_safetensors_path(file), tensor_names[which],
                        tensor ? tensor->element_count : 0, count);
    return tsr_safetensors_read(job->reference[which], tensor, 0, count * sizeof(double));
}

tsr_status tsr_job_read_reference(tsr_job *job, const tsr_snapshot *snapshot)
{
    tsr_safetensors *file = NULL;
    if (!tsr_inputs_has_reference(&job->inputs.config))
        return TSR_OK;
    TSR_TRY(allocate(job));
    TSR_TRY(tsr_safetensors_open_in(&file, tsr_snapshot_folder(snapshot), REFERENCE_FILE));
    tsr_status status = TSR_OK;
    for (int i = 0; i < 2 && status == TSR_OK; i++)
        status = read_sums(job, file, i);
    tsr_safetensors_close(file);
    return status;
}

/* ---- a step ---- */

void tsr_job_stage_preference(tsr_job *job, tsr_model_batch *batch, const tsr_micro_batch *micro,
                              const tsr_batch_step_info *info, bool train)
{
    const double *reference = job->reference[train ? 0 : 1];
    if (job->inputs.config.objective.kind == TSR_OBJECTIVE_SFT)
        return;
    batch->part = micro->part;
    batch->desirable = micro->desirable;
    batch->margin = micro->margin;
    batch->share = 1 / (double)info->micro_count;
    if (!reference)
        return;
    for (int32_t d = 0; d < micro->document_count; d += 2)
        memcpy(job->staged_reference + (int64_t)d * TSR_PARTS,
               reference + micro->sample[d] * SAMPLE_SUMS, SAMPLE_SUMS * sizeof(double));
    batch->reference = job->staged_reference;
}

static double mean(const int64_t *words, int word, int64_t count)
{
    return count ? (double)words[word] * 0x1p-32 / (double)count : NAN;
}

/* Of a reward model, of `count` micro-batches. */
static tsr_job_preference scores_of(const int64_t *w, int64_t count)
{
    return (tsr_job_preference){.present = 1,
                                .reward_chosen = NAN,
                                .reward_rejected = NAN,
                                .reward_margin = mean(w, TSR_SCORE_MARGIN, count),
                                .reward_accuracy = mean(w, TSR_SCORE_ACCURACY, count),
                                .logp_chosen = NAN,
                                .logp_rejected = NAN,
                                .nll_loss = NAN,
                                .log_odds_ratio = NAN,
                                .log_odds_chosen = NAN,
                                .kl = NAN,
                                .logit_chosen = NAN,
                                .logit_rejected = NAN,
                                .min_reward = mean(w, TSR_SCORE_MIN, count),
                                .mean_reward = mean(w, TSR_SCORE_MEAN, count),
                                .max_reward = mean(w, TSR_SCORE_MAX, count)};
}

void tsr_job_take_preference(tsr_job_preference *out, const tsr_job *job, const int64_t *word,
                             int64_t micro_count)
{
    tsr_objective_kind kind = job->inputs.config.objective.kind;
    const int64_t *w =
        word + TSR_WORD_COUNT + tsr_decision_loads(&job->decision, &job->inputs.layout);
    bool logits = tsr_model_reports_logits(&job->decision.model);
    bool discards = tsr_word_discards(word), odds = kind == TSR_OBJECTIVE_ORPO;
    int64_t all = discards ? 0 : micro_count;
    if (kind == TSR_OBJECTIVE_SFT)
        return;
    if (kind == TSR_OBJECTIVE_REWARD) {
        *out = scores_of(w, all);
        return;
    }
    int64_t chosen = discards ? 0 : w[TSR_PREFERENCE_CHOSEN_IN];
    int64_t rejected = discards ? 0 : w[TSR_PREFERENCE_REJECTED_IN];
    int64_t both = discards ? 0 : w[TSR_PREFERENCE_BOTH_IN];
    *out = (tsr_job_preference){
        .present = 1,
        .reward_chosen = mean(w, TSR_PREFERENCE_REWARD_CHOSEN, chosen),
        .reward_rejected = mean(w, TSR_PREFERENCE_REWARD_REJECTED, rejected),
        .reward_margin = mean(w, TSR_PREFERENCE_MARGIN, both),
        .reward_accuracy = mean(w, TSR_PREFERENCE_ACCURACY, kind == TSR_OBJECTIVE_KTO ? 0 : all),
        .logp_chosen = mean(w, TSR_PREFERENCE_LOGP_CHOSEN, chosen),
        .logp_rejected = mean(w, TSR_PREFERENCE_LOGP_REJECTED, rejected),
        .nll_loss = mean(w, TSR_PREFERENCE_NLL, odds || kind == TSR_OBJECTIVE_CPO ? all : 0),
        .log_odds_ratio = mean(w, TSR_PREFERENCE_LOG_ODDS_RATIO, odds ? all : 0),
        .log_odds_chosen = mean(w, TSR_PREFERENCE_LOG_ODDS_CHOSEN, odds ? all : 0),
        .kl = mean(w, TSR_PREFERENCE_KL, kind == TSR_OBJECTIVE_KTO ? all : 0),
        .logit_chosen = mean(w, TSR_PREFERENCE_LOGIT_CHOSEN, logits ? chosen : 0),
        .logit_rejected = mean(w, TSR_PREFERENCE_LOGIT_REJECTED, logits ? rejected : 0),
        .min_reward = NAN,
        .mean_reward = NAN,
        .max_reward = NAN};
}

void tsr_job_take_tokens(double *accuracy, double *entropy, const tsr_job *job, const int64_t *word,
                         int64_t micro_count)
{
    tsr_objective_kind kind = job->inputs.config.objective.kind;
    const int64_t *w =
        word + TSR_WORD_COUNT + tsr_decision_loads(&job->decision, &job->inputs.layout);
    int64_t all = tsr_word_discards(word) ? 0 : micro_count;
    if (kind == TSR_OBJECTIVE_REWARD)
        *accuracy = *entropy = NAN;
    if (kind == TSR_OBJECTIVE_DPO || kind == TSR_OBJECTIVE_KTO)
        *entropy = mean(w, TSR_PREFERENCE_ENTROPY, all);
    if (kind == TSR_OBJECTIVE_DPO)
        *accuracy = mean(w, TSR_PREFERENCE_TOKEN_ACCURACY, all);
}
