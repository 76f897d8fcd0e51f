/*
 * best.c: the best evaluation of a run, whose adapter is written at its end (load_best_model_at_end), and
 * when enough of them were no better (early_stopping_patience). As transformers' Trainer and
 * EarlyStoppingCallback, with the evaluation's loss as the metric.
 */
#include "job/parts.h"

#include <math.h>

static void stop_early(tsr_job *job)
{
    int64_t patience = job->inputs.config.early_stopping_patience;
    if (!patience || job->best.worse < patience || job->done >= job->last_step)
        return;
    job->last_step = job->done;
    tsr_log(TSR_LOG_INFO,
            "step %lld is the last: %lld evaluations in a row were no better than the best, %.4f "
            "(early_stopping_patience)",
            (long long)job->done, (long long)job->best.worse, job->best.loss);
}

/* One that is not finite is no better than any. */
static bool take_loss(tsr_job *job, double loss)
{
    tsr_job_best *best = &job->best;
    bool first = best->step < 0, better = isfinite(loss) && (first || loss < best->loss);
    double least = job->inputs.config.early_stopping_threshold;
    bool clearly = better && (first || best->loss - loss > least);
    best->worse = clearly ? 0 : best->worse + 1;
    if (better) {
        best->step = job->done;
        best->loss = loss;
    }
    stop_early(job);
    return better;
}

void tsr_job_note_evaluation(tsr_job *job, tsr_job_evaluation *evaluation)
{
    const tsr_config *config = &job->inputs.config;
    if (!job->train)
        return;
    bool counts = job->done && !job->evaluated && !job->over;
    bool better = counts && take_loss(job, evaluation->loss);
    evaluation->last = job->done == job->last_step;
    evaluation->save = (better && config->load_best_model_at_end) ||
                       (evaluation->last && config->save_strategy != TSR_CONFIG_EVERY_NO);
    evaluation->best_step = job->best.step < 0 ? 0 : job->best.step;
    evaluation->best_loss = job->best.step < 0 ? NAN : job->best.loss;
}

json_t *tsr_job_describe_best(const tsr_job *job)
{
    return json_pack("{s:I, s:f, s:I}", "step", (json_int_t)job->best.step, "loss", job->best.loss,
                     "worse", (json_int_t)job->best.worse);
}

/* Older checkpoints say nothing of it. A run that begins in another directory has its own best: the
 * checkpoint of the old one is not there. */
tsr_status tsr_job_resume_best(tsr_job *job)
{
    const char *directory = tsr_snapshot_directory(job->resume);
    const json_t *state = tsr_snapshot_state(job->resume);
    tsr_job_best best;
    json_t *stored;
    if (!job->continues || !json_object_get(state, "best"))
        return TSR_OK;
    TSR_TRY(tsr_json_object(&stored, state, "best", directory));
    TSR_TRY(tsr_json_int(&best.step, stored, "step", -1, job->done, directory));
    TSR_TRY(tsr_json_int(&best.worse, stored, "worse", 0, INT64_MAX, directory));
    TSR_TRY(tsr_json_number(&best.loss, stored, "loss", -HUGE_VAL, HUGE_VAL, directory));
    job->best = best;
    stop_early(job);
    return TSR_OK;
}

/* The run has ended: its memory becomes what it was at the best evaluation. */
tsr_status tsr_job_take_best(tsr_job *job)
{
    char name[TSR_SNAPSHOT_NAME_BYTES];
    tsr_snapshot *snapshot = NULL;
    bool wanted = job->inputs.config.load_best_model_at_end && job->best.step >= 0;
    if (!wanted || job->over || job->stopped || job->issued < job->last_step)
        return TSR_OK;
    job->over = true; /* whatever follows, these are not the last step's values any more */
    job->saved = job->done;
    tsr_log(TSR_LOG_INFO,
            "the adapter of step %lld, whose eval_loss is %.4f, is written "
            "(load_best_model_at_end)",
            (long long)job->best.step, job->best.loss);
    if (job->best.step == job->done)
        return TSR_OK;
    tsr_snapshot_name(name, job->best.step);
    TSR_TRY(tsr_job_agree(job, tsr_snapshot_open_in(&snapshot, job->output, name)));
    tsr_status status = tsr_job_agree(job, tsr_job_verify(job, snapshot));
    if (status == TSR_OK)
        status = tsr_job_agree(job, tsr_job_restore_trainable(job, snapshot));
    tsr_snapshot_close(snapshot);
    return status;
}
