/*
 * step.c: one optimizer step, and one evaluation.
 */
#include "job/parts.h"
#include "job/sized.h"

#include "base/clock.h"
#include "base/phase.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the executor calls ---- */

static tsr_status on_norm(void *user, int unit, const tsr_unit_view *view)
{
    return tsr_model_norm(((tsr_job *)user)->model, unit, view);
}

static tsr_status on_compute(void *user, const tsr_use *use, const tsr_unit_view *view,
                             void *gradient)
{
    return tsr_model_compute(((tsr_job *)user)->model, use->phase, use->layer, use->number, view,
                             gradient);
}

/* `count` sums of the model, which begin again. */
static tsr_status take_words(tsr_job *job, int64_t *word, int64_t *sums, uint64_t count)
{
    tsr_stream *stream = job->streams.stream[TSR_STREAM_OPTIM];
    if (!count)
        return TSR_OK;
    TSR_TRY(tsr_stream_copy(stream, word, sums, count * sizeof *sums));
    return tsr_stream_fill(stream, sums, 0, count * sizeof *sums);
}

/* Behind the word what experts had to do in the step, and what the objective reports. */
static tsr_status take_more(tsr_job *job, int64_t *word)
{
    uint64_t loads = tsr_decision_loads(&job->decision, &job->inputs.layout);
    int64_t *words = tsr_model_preference_words(job->model);
    word += TSR_WORD_COUNT;
    TSR_TRY(take_words(job, word, tsr_model_loads(job->model), loads));
    return take_words(job, word + loads, words, words ? TSR_PREFERENCE_WORDS : 0);
}

static tsr_status on_tally(void *user, int64_t *word)
{
    tsr_job *job = user;
    TSR_TRY(take_more(job, word));
    return job->decision.model.kernels->step_sums(
        job->streams.stream[TSR_STREAM_OPTIM],
        &(tsr_step_sums_args){.loss = &job->sums->loss,
                              .loss_overflow = &job->sums->loss_overflow,
                              .gradient_overflow = &job->sums->gradient_overflow,
                              .word_loss = &word[TSR_WORD_LOSS],
                              .word_non_finite = &word[TSR_WORD_NON_FINITE],
                              .seen = job->sums->seen,
                              .reported = &job->sums->correct,
                              .word_reported = &word[TSR_WORD_CORRECT]});
}

static tsr_status on_grad_norm(void *user, int64_t *word)
{
    tsr_job *job = user;
    const tsr_trainable *trainable = &job->decision.store.trainable;
    TSR_TRY(on_tally(user, word));
    return job->decision.model.kernels->grad_norm(
        job->streams.stream[TSR_STREAM_OPTIM],
        &(tsr_grad_norm_args){.sum = tsr_word_norm(word),
                              .gradient = trainable->accumulator,
                              .rounded = trainable->rounded,
                              .count = trainable->count,
                              .shift = TSR_FIXED_SHIFT});
}

static tsr_status on_optim(void *user, const int64_t *word, int chunk)
{
    tsr_job *job = user;
    const uint64_t *spans = job->chunk_spans + (chunk < 0 ? 0 : chunk);
    const tsr_kernels *kernels = job->decision.model.kernels;
    tsr_stream *stream = job->streams.stream[TSR_STREAM_OPTIM];
    const void *squares = word + TSR_WORD_NORM;
    if (chunk <= 0) {
        TSR_TRY(kernels->step_control(
            stream, &(tsr_step_control_args){.control = &job->sums->control,
                                             .squares = squares,
                                             .error = &word[TSR_WORD_ERROR],
                                             .non_finite = &word[TSR_WORD_NON_FINITE],
                                             .max_norm = job->inputs.config.max_grad_norm}));
        TSR_TRY(tsr_job_move_router_bias(job, word));
    }
    const tsr_adamw_args args = {.spans = job->spans + spans[0],
                                 .span_count = spans[1] - spans[0],
                                 .step = job->adamw,
                                 .control = &job->sums->control,
                                 .shift = TSR_FIXED_SHIFT};
    bool coded = job->inputs.config.optim == TSR_CONFIG_OPTIM_ADAMW_8BIT;
    return coded ? kernels->adamw_8bit(stream, &args) : kernels->adamw(stream, &args);
}

static tsr_saved on_saved(void *user, int unit)
{
    return tsr_model_saved(((tsr_job *)user)->model, unit);
}

const tsr_executor_callbacks tsr_job_callbacks = {.norm = on_norm,
                                                  .compute = on_compute,
                                                  .grad_norm = on_grad_norm,
                                                  .tally = on_tally,
                                                  .optim = on_optim,
                                                  .saved = on_saved};

/* ---- issuing ---- */

/* As Transformers' hook has it of the batch that TRL makes: rows padded to the longest, or, with packing, all tokens as
 * one row. */
static double noise_of(const tsr_job *job, const tsr_micro_batch *micro)
{
    const tsr_config *config = &job->inputs.config;
    double columns = (double)job->inputs.layout.config.hidden_size;
    int32_t longest = 0, begin = 0;
    for (int32_t d = 0; d < micro->document_count; d++) {
        if (micro->first_position[d] == 0 && !config->packing)
            begin = micro->cu_seqlens[d];
        int32_t length = micro->cu_seqlens[d + 1] - begin;
        longest = length > longest ? length : longest;
    }
    return longest ? config->neftune_noise_alpha / sqrt((double)longest * columns) : 0;
}

tsr_model_batch tsr_job_rows_of(const tsr_micro_batch *micro)
{
    return (tsr_model_batch){.tokens = micro->token_count,
                             .documents = micro->document_count,
                             .label_rows = micro->label_count,
                             .ids = micro->ids,
                             .positions = micro->positions,
                             .cu_seqlens = micro->cu_seqlens,
                             .label_row = micro->label_rows,
                             .label = micro->labels,
                             .sample = micro->sample,
                             .first_position = micro->first_position};
}

static tsr_model_batch batch_of(const tsr_job *job, const tsr_micro_batch *micro,
                                const tsr_batch_step_info *info, bool train)
{
    double coefficient = train ? job->inputs.config.router_aux_loss_coef : 0;
    tsr_model_batch batch = tsr_job_rows_of(micro);
    batch.epoch = (uint64_t)micro->epoch;
    batch.label_tokens = (double)info->label_tokens;
    batch.aux_weight = coefficient / (double)info->micro_count;
    batch.noise = train ? noise_of(job, micro) : 0;
    batch.train = train;
    return batch;
}

tsr_status tsr_job_stage_micro(tsr_job *job, const tsr_micro_batch *micro,
                               const tsr_batch_step_info *info, bool train)
{
    tsr_model_batch batch = batch_of(job, micro, info, train);
    tsr_job_stage_preference(job, &batch, micro, info, train);
    job->staged_empty = micro->token_count == 0;
    return tsr_model_stage(job->model, &batch);
}

tsr_status tsr_job_stage_reference(tsr_job *job, const tsr_micro_batch *micro,
                                   const tsr_batch_step_info *info)
{
    tsr_model_batch batch = batch_of(job, micro, info, false);
    batch.part = micro->part;
    batch.desirable = micro->desirable;
    batch.sums_alone = true;
    job->staged_empty = micro->token_count == 0;
    return tsr_model_stage(job->model, &batch);
}

tsr_status tsr_job_issue_micro(tsr_job *job, bool train)
{
    TSR_TRY(tsr_executor_micro_batch(job->executor, train, job->staged_empty));
    return tsr_model_release(job->model);
}

/* Steps of training, or the one of an evaluation. */
typedef struct {
    tsr_batch *batch;
    tsr_micro_batch *micro;
    bool train;
} rounds;

int64_t tsr_job_micro_of(const tsr_job *job, int64_t round)
{
    int64_t size = job->inputs.config.context_parallel_size;
    return round * (job->view.ranks / size) + job->view.rank / size;
}

static tsr_status stage_round(tsr_job *job, const rounds *r, int64_t step, int64_t round)
{
    tsr_batch_step_info info;
    tsr_comm_publish(job->world, (uint64_t)step + 1, r->train ? "micro-batch" : "evaluation",
                     (int)round);
    TSR_TRY(tsr_batch_step(r->batch, step, &info));
    TSR_TRY(tsr_batch_fill(r->micro, r->batch, step, tsr_job_micro_of(job, round)));
    return tsr_job_stage_micro(job, r->micro, &info, r->train);
}

/* Rounds [first, end) of a step's `count`. While the device computes one, the host stages the next: its embedding rows
 * are collected behind the matmuls. */
static tsr_status issue_rounds(tsr_job *job, const rounds *r, int64_t step, int64_t first,
                               int64_t end, int64_t count)
{
    for (int64_t round = first; round < end; round++) {
        if (!job->staged_ahead)
            TSR_TRY(stage_round(job, r, step, round));
        job->staged_ahead = false;
        TSR_TRY(tsr_job_issue_micro(job, r->train));
        tsr_phase_at(r->train ? TSR_JOB_TRAINING : "evaluating", (double)round + 1, (double)count);
        if (round + 1 == end)
            break;
        TSR_TRY(stage_round(job, r, step, round + 1));
        job->staged_ahead = true;
    }
    return TSR_OK;
}

static tsr_host_flags host_flags(const tsr_job *job)
{
    double limit = job->inputs.config.time_limit;
    return (tsr_host_flags){.stop = tsr_job_is_asked(job),
                            .time_limit = limit > 0 && tsr_now() - job->started_at > limit};
}

static bool asks_to_stop(const int64_t *word)
{
    return word[TSR_WORD_STOP] != 0 || word[TSR_WORD_TIME_LIMIT] != 0;
}

/* ---- a step ---- */

bool tsr_job_evaluation_due(const tsr_job *job, const tsr_batch_step_info *info)
{
    const tsr_config *config = &job->inputs.config;
    if (!job->inputs.eval_batch)
        return false;
    if (config->eval_strategy == TSR_CONFIG_EVERY_EPOCH)
        return info->ends_epoch;
    if (config->eval_strategy == TSR_CONFIG_EVERY_STEPS)
        return job->done % tsr_config_steps(config->eval_steps, job->total_steps, 1) == 0;
    return false;
}

static bool checkpoint_due(const tsr_job *job, const tsr_batch_step_info *info)
{
    const tsr_config *config = &job->inputs.config;
    if (config->save_strategy != TSR_CONFIG_EVERY_NO && job->done == job->total_steps)
        return true; /* to extend the run from */
    if (config->save_strategy == TSR_CONFIG_EVERY_EPOCH)
        return info->ends_epoch;
    if (config->save_strategy == TSR_CONFIG_EVERY_STEPS)
        return job->done % tsr_config_steps(config->save_steps, job->total_steps, 1) == 0;
    return false;
}

static double exposed(const tsr_executor *executor)
{
    tsr_exposed e = tsr_executor_exposed(executor);
    return e.h2d + e.gather + e.reduce + e.load + e.save + e.exchange;
}

double tsr_job_exposed(const tsr_job *job)
{
    const tsr_executor *shared = tsr_mixer_executor(job);
    return exposed(job->executor) + (shared ? exposed(shared) : 0);
}

tsr_status tsr_job_check_stepped(const tsr_job *job, const char *function)
{
    if (job->issued == job->done)
        return TSR_OK;
    return tsr_fail(
        TSR_EINVAL,
        "%s: another job's step has issued this one's next update, with which it shares "
        "micro-batches; call tsr_job_step first, and step the job with the fewest steps",
        function);
}

typedef struct {
    const tsr_job *job;
    int unit, segment; /* of the plan */
    char name[256];
} refused_part;

static tsr_status name_part(void *user, const tsr_job_part *part)
{
    refused_part *refused = user;
    char *name;
    const tsr_layout_segment *s =
        &refused->job->inputs.layout.unit[part->unit].trainable[part->segment];
    if (s->unit != refused->unit || s->at != refused->segment)
        return TSR_OK;
    TSR_TRY(tsr_peft_tensor_name(&name, part->path, part->part));
    snprintf(refused->name, sizeof refused->name, "%s", name);
    free(name);
    return TSR_OK;
}

tsr_status tsr_job_give_up(tsr_job *job)
{
    bool never =
        job->skipped_steps == job->done; /* though all that it was given is finite (model/load.h) */
    int64_t seen[2];
    refused_part refused = {.job = job};
    TSR_TRY(tsr_streams_synchronize(tsr_job_streams(job)));
    TSR_TRY(tsr_device_read(job->device, seen, job->sums->seen, sizeof seen));
    seen[0] = -seen[0];
    seen[1] = seen[1] ? seen[1] : INT64_MAX;
    TSR_TRY(tsr_comm_all_reduce(job->world, job->control, seen, 2, TSR_MIN));
    TSR_TRY(tsr_stream_synchronize(job->control));
    if (seen[1] != INT64_MAX) {
        tsr_trainable_marked(&refused.unit, &refused.segment, &job->decision.store.trainable,
                             seen[1]);
        TSR_TRY(tsr_job_each_part(job, NULL, name_part, &refused));
    }
    const char *loss = seen[0] ? "the loss" : "";
    const char *gradient = *refused.name ? "first, from the output back, the gradient of " : "";
    return tsr_fail(never ? TSR_EDEVICE : TSR_EDATA,
                    "step %lld: the loss or a gradient was not finite in %lld steps in a row "
                    "(max_skipped_steps is %lld)%s%s%s%s%s%s; %s",
                    (long long)job->done, (long long)job->skipped,
                    (long long)job->inputs.config.max_skipped_steps,
                    never ? ", and no step has updated anything: no adapter is written" : "",
                    *loss || *gradient ? "; in this one " : "", loss,
                    *loss && *gradient ? " and " : "", gradient, refused.name,
                    never ? "the model and the adapter it began with are finite: lower lora_alpha, "
                            "write dtype: float32, or look at the data of these steps"
                          : "lower learning_rate, or look at the data of these steps");
}

/* The loss is the mean over all labels, or of an objective over the micro-batches. */
static double loss_of(const tsr_job *job, const int64_t *word, const tsr_batch_step_info *info)
{
    bool labels = job->inputs.config.objective.kind == TSR_OBJECTIVE_SFT;
    return tsr_word_discards(word)
               ? NAN
               : tsr_word_loss(word) / (double)(labels ? info->label_tokens : info->micro_count);
}

/* Means over the label tokens; of a step that is discarded there are none. */
static void take_reported(double *accuracy, double *entropy, const int64_t *word,
                          int64_t label_tokens)
{
    bool discards = tsr_word_discards(word);
    *accuracy = discards ? NAN : (double)word[TSR_WORD_CORRECT] / (double)label_tokens;
    *entropy = discards ? NAN : tsr_word_entropy(word) / (double)label_tokens;
}

/* The largest load of a layer over its mean, and the experts of it without a token. */
static double imbalance_of(int64_t *empty, const int64_t *load, uint64_t experts)
{
    int64_t most = 0, total = 0;
    for (uint64_t e = 0; e < experts; e++) {
        most = load[e] > most ? load[e] : most;
        total += load[e];
        *empty += load[e] == 0;
    }
    return total ? (double)most * (double)experts / (double)total : 0;
}

#define LOADS_BYTES 3900 /* of a line of the log; 512 experts of 6 digits fit */

/* At debug level, of each layer with experts how many tokens chose each. */
static void log_loads(const tsr_job *job, const int64_t *load, uint64_t experts)
{
    const tsr_layout *layout = &job->inputs.layout;
    if (tsr_log_get().level < TSR_LOG_DEBUG || job->view.rank != 0)
        return;
    for (int layer = 0; layer < layout->layer_count; layer++) {
        char text[LOADS_BYTES] = "";
        size_t length = 0;
        if (!tsr_layout_stacks(&layout->unit[layer]))
            continue;
        for (uint64_t e = 0; e < experts && length < sizeof text; e++)
            length +=
                (size_t)snprintf(text + length, sizeof text - length, " %lld", (long long)load[e]);
        tsr_log(TSR_LOG_DEBUG, "step %lld: layer %d: tokens of each expert:%s",
                (long long)job->done, layer, text);
        load += experts;
    }
}

/* What experts did in the step, whose words are behind the others. */
static void take_experts(tsr_job_report *report, const tsr_job *job,
                         const tsr_batch_step_info *info)
{
    const int64_t *word = job->word, *load = word + TSR_WORD_COUNT;
    uint64_t count = tsr_decision_loads(&job->decision, &job->inputs.layout), experts;
    int64_t empty = 0;
    if (!count ||
        tsr_job_base_of(job)->mixer) /* of micro-batches that others share it is not known */
        return;
    experts = job->inputs.layout.config.experts.count;
    report->has_experts = 1;
    log_loads(job, load, experts);
    for (uint64_t i = 0; i < count; i += experts)
        report->expert_load_over_mean =
            fmax(report->expert_load_over_mean, imbalance_of(&empty, load + i, experts));
    report->expert_empty_share = (double)empty / (double)count;
    report->expert_dropped = word[TSR_WORD_DROPPED];
    report->aux_loss = job->inputs.config.router_aux_loss_coef > 0
                           ? tsr_word_aux(word) / (double)info->micro_count
                           : NAN;
    if (report->skipped)
        report->expert_load_over_mean = report->expert_empty_share = report->aux_loss = NAN;
}

static tsr_status take_word(tsr_job *job, const tsr_batch_step_info *info, int64_t *word,
                            tsr_job_report *report)
{
    double now = tsr_now();
    double exposed = tsr_job_exposed(job);
    bool discards = tsr_word_discards(word); /* its sums are of what was finite */
    job->done++;
    job->evaluated = false;
    *report = (tsr_job_report){
        .step = job->done,
        .total_steps = job->total_steps,
        .epoch = info->progress,
        .loss = loss_of(job, word, info),
        .grad_norm = discards ? NAN : tsr_grad_norm(tsr_word_norm(word)),
        .learning_rate = job->adamw.learning_rate,
        .label_tokens = info->label_tokens,
        .input_tokens = info->input_tokens,
        .step_s = now - job->word_time,
        .device_bytes = tsr_job_base_taken(job),
        .exposed_s = exposed - job->exposed_before,
        .skipped = discards,
    };
    take_reported(&report->mean_token_accuracy, &report->entropy, word, info->label_tokens);
    tsr_job_take_tokens(&report->mean_token_accuracy, &report->entropy, job, word,
                        info->micro_count);
    take_experts(report, job, info);
    tsr_job_take_preference(&report->preference, job, word, info->micro_count);
    report->tokens_per_s = (double)info->input_tokens / report->step_s;
    job->word_time = now;
    job->exposed_before = exposed;
    /* All ranks read this word before any op of the next step is issued. */
    if (asks_to_stop(word) && job->done < job->total_steps) {
        job->stopped = true;
        job->last_step = job->done;
    }
    report->last = job->done == job->last_step;
    report->stopped = job->stopped;
    report->evaluate = tsr_job_evaluation_due(job, info);
    report->save = job->stopped || checkpoint_due(job, info);
    job->skipped = report->skipped ? job->skipped + 1 : 0;
    job->skipped_steps += report->skipped;
    report->skipped_steps = job->skipped_steps;
    return job->skipped > job->inputs.config.max_skipped_steps ? tsr_job_give_up(job) : TSR_OK;
}

/* Writing the trace is no part of a step's time. */
static tsr_status end_step(tsr_job *job, bool last)
{
    double before = tsr_now();
    TSR_TRY(tsr_trace_done(job->trace, job->done, last));
    job->word_time += tsr_now() - before;
    return TSR_OK;
}

tsr_status tsr_job_end_micro_batches(tsr_job *job)
{
    job->adamw.learning_rate = job->inputs.config.learning_rate *
                               tsr_schedule_multiplier(&job->schedule, (uint64_t)job->issued);
    tsr_host_flags flags = host_flags(job); /* as late as they still count in this step */
    job->issued++;
    return tsr_executor_step_end(job->executor, &flags);
}

static tsr_status issue_step(tsr_job *job, const tsr_batch_step_info *info)
{
    const rounds r = {job->inputs.batch, &job->micro, true};
    double before = tsr_now();
    TSR_TRY(tsr_job_base_enter(job));
    tsr_trace_issue(job->trace, job->issued + 1);
    tsr_executor_name_step(job->executor, (uint64_t)job->issued + 1);
    TSR_TRY(issue_rounds(job, &r, job->issued, 0, info->rounds, info->rounds));
    TSR_TRY(tsr_job_end_micro_batches(job));
    job->issue_s = tsr_now() - before;
    if (job->issued < job->last_step) {
        TSR_TRY(stage_round(job, &r, job->issued, 0));
        job->staged_ahead = true;
    }
    return TSR_OK;
}

static tsr_status run_step(tsr_job *job, tsr_job_report *report)
{
    tsr_batch_step_info info;
    TSR_TRY(tsr_batch_step(job->inputs.batch, job->done, &info));
    TSR_TRY(tsr_job_base_of(job)->mixer ? tsr_mixer_step(job) : issue_step(job, &info));
    TSR_TRY(tsr_executor_wait_word(job->executor, job->word));
    tsr_job_report own;
    TSR_TRY(take_word(job, &info, job->word, &own));
    TSR_TRY(tsr_job_record_step(job, &own));
    TSR_TRY(end_step(job, own.last));
    tsr_sized_fill(&tsr_sized_report, report, &own);
    return TSR_OK;
}

/* An error of one rank reaches the others through the communicator; then all agree on the one to
 * report. */
static int finish(tsr_job *job, tsr_status status)
{
    if (status >= 0)
        return status;
    tsr_executor_fail(job->executor, status);
    return tsr_job_agree(job, status);
}

tsr_status tsr_job_step(tsr_job *job, tsr_job_report *report)
{
    TSR_TRY(tsr_sized_check(&tsr_sized_report, report));
    if (job->state != TSR_JOB_STARTED || !job->train)
        return tsr_fail(TSR_EINVAL, "tsr_job_step needs a training job that was started");
    if (job->done == job->last_step)
        return TSR_JOB_DONE;
    TSR_TRY(tsr_mixer_check(job));
    tsr_job_listen(job, true);
    int status = finish(job, run_step(job, report));
    tsr_job_listen(job, false);
    return status;
}

/* ---- an evaluation ---- */

/* Sums its words up in `sum`; *stopped where ranks were asked to stop before its last rounds. Only where a
 * checkpoint can say that it is due, and not after a stop: then it is wanted nevertheless. */
static tsr_status issue_evaluation(tsr_job *job, int64_t *sum, bool *stopped, int64_t count)
{
    const rounds r = {job->inputs.eval_batch, &job->eval_micro, false};
    bool stops = job->train && !job->stopped && job->done > job->resumed;
    *stopped = false;
    for (int64_t first = 0; first < count && !*stopped; first += TSR_JOB_ROUNDS_AT_ONCE) {
        int64_t end =
            count - first < TSR_JOB_ROUNDS_AT_ONCE ? count : first + TSR_JOB_ROUNDS_AT_ONCE;
        TSR_TRY(issue_rounds(job, &r, 0, first, end, count));
        const tsr_host_flags flags = stops ? host_flags(job) : (tsr_host_flags){0};
        TSR_TRY(tsr_executor_eval_end(job->executor, &flags));
        TSR_TRY(tsr_executor_wait_word(job->executor, job->word));
        for (uint64_t i = 0; i < tsr_store_words(&job->decision.store); i++)
            sum[i] += i < TSR_WORD_SPARE || i >= TSR_WORD_COUNT ? job->word[i] : 0;
        *stopped = end < count && asks_to_stop(job->word);
    }
    return TSR_OK;
}

static tsr_status run_evaluation(tsr_job *job, tsr_job_evaluation *evaluation)
{
    tsr_batch_step_info info;
    int64_t *word = job->eval_word;
    double before = tsr_now();
    bool stopped;
    TSR_TRY(tsr_job_base_enter(job));
    memset(word, 0, tsr_store_words(&job->decision.store) * sizeof *word);
    TSR_TRY(tsr_batch_step(job->inputs.eval_batch, 0, &info));
    if (job->staged_ahead) /* the next training step's: it will be staged again */
        TSR_TRY(tsr_model_unstage(job->model));
    job->staged_ahead = false;
    bool alone = job->options.purpose == TSR_JOB_EVALUATE;
    tsr_trace_issue(job->trace, alone ? 0 : -1);
    TSR_TRY(issue_evaluation(job, word, &stopped, info.rounds));
    if (alone)
        TSR_TRY(tsr_trace_done(job->trace, 0, true));
    job->exposed_before = tsr_job_exposed(job); /* no part of the next step's either */
    bool labels = job->inputs.config.objective.kind == TSR_OBJECTIVE_SFT;
    double loss = stopped ? NAN : loss_of(job, word, &info);
    tsr_job_evaluation own = {.loss = loss,
                              .perplexity = labels ? exp(loss) : NAN,
                              .label_tokens = info.label_tokens,
                              .rows = tsr_batch_run_of(job->inputs.eval_batch)->units,
                              .stopped = stopped};
    take_reported(&own.mean_token_accuracy, &own.entropy, word, info.label_tokens);
    tsr_job_take_tokens(&own.mean_token_accuracy, &own.entropy, job, word, info.micro_count);
    if (!stopped)
        tsr_job_take_preference(&own.preference, job, word, info.micro_count);
    if (stopped)
        own.mean_token_accuracy = own.entropy = NAN;
    tsr_mixer_pause(job, tsr_now() - before);
    if (stopped) {
        job->stopped = true;
        job->last_step = job->done;
    } else {
        tsr_job_note_evaluation(job, &own);
        job->evaluated = true;
        TSR_TRY(tsr_job_record_eval(job, &own));
    }
    tsr_sized_fill(&tsr_sized_evaluation, evaluation, &own);
    return TSR_OK;
}

tsr_status tsr_job_evaluate(tsr_job *job, tsr_job_evaluation *evaluation)
{
    TSR_TRY(tsr_sized_check(&tsr_sized_evaluation, evaluation));
    if (job->state != TSR_JOB_STARTED)
        return tsr_fail(TSR_EINVAL, "tsr_job_evaluate needs a job that was started");
    TSR_TRY(tsr_job_check_stepped(job, "tsr_job_evaluate"));
    if (!job->inputs.eval_batch)
        return tsr_fail(
            TSR_ECONFIG,
            "there is nothing to evaluate: neither eval_dataset nor validation_split is set");
    tsr_job_listen(job, true);
    int status = finish(job, run_evaluation(job, evaluation));
    tsr_job_listen(job, false);
    return status;
}
