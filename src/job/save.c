/*
 * save.c: output_dir and what a run writes there beside the adapter and checkpoints. Rank 0.
 */
#include "job/parts.h"

#include "base/called.h"
#include "base/version.h"
#include "inputs/earlier.h"
#include "io/file.h"
#include "job/output.h"

#include <string.h>

#define METRICS_FILE "metrics.jsonl"
#define PLAN_FILE    "plan.json"

/* What a run leaves, and overwrite_output_dir removes, with the events and checkpoints. The first, which
 * appears last, only a run that came to its end. */
static const char *const run_files[] = {TSR_PEFT_WEIGHTS_FILE, TSR_PEFT_CONFIG_FILE,
                                        TSR_PEFT_CARD_FILE,    METRICS_FILE,
                                        TSR_JOB_CONFIG_FILE,   PLAN_FILE,
                                        TSR_MATMULS_FILE,      TSR_PEFT_ROUTER_BIAS_FILE};
#define RUN_FILES (sizeof run_files / sizeof *run_files)
#define END_FILES 1

static mode_t type_of(const char *name)
{
    for (size_t i = 0; i < RUN_FILES; i++)
        if (!strcmp(name, run_files[i]))
            return S_IFREG;
    for (int i = 0; i < TSR_JOB_TOKENIZER_FILES; i++)
        if (!strcmp(name, tsr_job_tokenizer_files[i]))
            return S_IFREG;
    return !strcmp(name, TSR_EVENTS_FOLDER) || tsr_snapshot_is_name(name) ? S_IFDIR : 0;
}

static mode_t type_of_event(const char *name)
{
    return !strcmp(name, TSR_EVENTS_FILE) ? S_IFREG : 0;
}

/* ---- before ---- */

static tsr_status check_events(const tsr_folder *folder)
{
    tsr_auto_folder *events = NULL;
    TSR_TRY(tsr_folder_enter(&events, folder, TSR_EVENTS_FOLDER));
    return events ? tsr_file_check_names(events, type_of_event) : TSR_OK;
}

/* The first of the run's files that is there; NULL: none. `ended`: of those of a run that came to its
 * end. */
static tsr_status find_run(const char **out, const tsr_folder *folder, bool ended)
{
    struct stat info;
    tsr_auto_folder *events = NULL;
    *out = NULL;
    for (size_t i = 0; i < (ended ? END_FILES : RUN_FILES); i++)
        if (strcmp(run_files[i], TSR_PEFT_CARD_FILE) != 0 && /* a README alone is no run */
            tsr_folder_stat(&info, folder, run_files[i])) {
            *out = run_files[i];
            return TSR_OK;
        }
    TSR_TRY(tsr_folder_enter(&events, folder, TSR_EVENTS_FOLDER));
    if (events && !ended && tsr_folder_stat(&info, events, TSR_EVENTS_FILE))
        *out = TSR_EVENTS_FOLDER "/" TSR_EVENTS_FILE;
    return TSR_OK;
}

void tsr_job_close_output(tsr_job *job)
{
    tsr_output_leave(job->output_lock, job->output);
    job->output_lock = -1;
    tsr_folder_close(job->output);
    job->output = NULL;
}

/* The configuration that was given may lie where the run writes the resolved one. Another run's may be
 * replaced, but not one that a person wrote. */
static tsr_status check_given(const tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    const char *given = job->options.config_path;
    struct stat x, y;
    bool same = given && stat(given, &x) == 0 &&
                tsr_folder_stat(&y, job->output, TSR_JOB_CONFIG_FILE) && x.st_dev == y.st_dev &&
                x.st_ino == y.st_ino;
    return !same || tsr_earlier_wrote(given)
               ? TSR_OK
               : tsr_fail(TSR_ECONFIG,
                          "%s: output_dir %s: the run writes its resolved job.yaml there, over "
                          "the file that was given; give that another name, or name another "
                          "directory",
                          tsr_config_where(config, "output_dir"), config->output_dir);
}

tsr_status tsr_job_check_output(const tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    const char *directory = config->output_dir, *where = tsr_config_where(config, "output_dir");
    const char *found;
    if (!job->output || config->overwrite_output_dir || (job->continues && job->resume))
        return TSR_OK;
    TSR_TRY(find_run(&found, job->output, job->continues));
    if (found && job->continues)
        return tsr_fail(TSR_ECONFIG,
                        "%s: output_dir %s holds a run that has ended (%s) and no checkpoint to "
                        "resume from; name another directory, or remove resume_from_checkpoint and "
                        "set overwrite_output_dir: true to replace it",
                        where, directory, found);
    if (found || job->newest >= 0)
        return tsr_fail(TSR_ECONFIG,
                        "%s: output_dir %s already holds a run (%s); name another directory, "
                        "continue the run (%s resume %s, or resume_from_checkpoint: true), or set "
                        "overwrite_output_dir: true to replace it",
                        where, directory, found ? found : "a checkpoint", tsr_called(), directory);
    return TSR_OK;
}

/* The other ranks wait in a collective, which has its deadline. */
static tsr_output_patience patience(const tsr_job *job)
{
    double deadline = job->options.timeout_seconds;
    bool soon = deadline > 0 && deadline < 2 * TSR_OUTPUT_SECONDS;
    return (tsr_output_patience){soon ? deadline / 2 : TSR_OUTPUT_SECONDS, job->options.stop,
                                 &job->asked};
}

tsr_status tsr_job_open_output(tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    TSR_TRY(tsr_output_check_place(config));
    TSR_TRY(tsr_output_open(&job->output, config, type_of, false));
    job->newest = -1;
    if (!job->output)
        return TSR_OK;
    TSR_TRY(check_events(job->output));
    TSR_TRY(check_given(job));
    tsr_output_patience p = patience(job);
    TSR_TRY(tsr_output_ask(job->output, config, &p));
    return tsr_snapshot_newest(&job->newest, job->output);
}

/* From here on the directory is this job's. Since it was created another may have come and gone:
 * what that left is not this job's to remove. */
static tsr_status take_output(tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    int64_t before = job->newest;
    if (job->output && !tsr_folder_in_place(job->output))
        return tsr_fail(TSR_ECONFIG,
                        "%s: output_dir %s was replaced by another directory since this job was "
                        "created; start the job again",
                        tsr_config_where(config, "output_dir"), config->output_dir);
    if (!job->output)
        TSR_TRY(tsr_output_open(&job->output, config, type_of, true));
    else
        TSR_TRY(tsr_file_check_names(job->output, type_of));
    TSR_TRY(check_events(job->output));
    tsr_output_patience p = patience(job);
    TSR_TRY(tsr_output_take(&job->output_lock, job->output, config, &p));
    TSR_TRY(tsr_snapshot_newest(&job->newest, job->output));
    if (job->continues && job->newest != before)
        return tsr_fail(
            TSR_ECONFIG,
            "%s: the checkpoints in output_dir %s changed since this job was created: another job "
            "has continued the run; start this one again to resume from the newest",
            tsr_config_where(config, "output_dir"), config->output_dir);
    return tsr_job_check_output(job);
}

/* ---- metrics ---- */

static tsr_status start_metrics(tsr_job *job)
{
    tsr_auto_folder *events = NULL;
    bool appends = job->resume && job->continues;
    if (appends)
        TSR_TRY(tsr_metrics_cut(job->output, METRICS_FILE, job->metrics_bytes));
    TSR_TRY(tsr_metrics_create(&job->metrics, job->output, METRICS_FILE, appends));
    tsr_metrics_start start = {.version = tsr_build_version(),
                               .commit = tsr_build_commit(),
                               .ranks = job->view.ranks,
                               .device = tsr_device_description(job->device),
                               .plan_hash = job->decision.plan->hash,
                               .config_hash = tsr_config_hash(&job->inputs.config),
                               .model = job->inputs.config.model_name_or_path,
                               .total_steps = job->total_steps,
                               .resumed_step = job->resumed,
                               .trainable_count = (int64_t)job->inputs.layout.trainable_count};
    TSR_TRY(tsr_metrics_write_start(job->metrics, &start));
    if (job->inputs.config.report_to != TSR_CONFIG_REPORT_TENSORBOARD)
        return TSR_OK;
    TSR_TRY(tsr_folder_make(&events, job->output, TSR_EVENTS_FOLDER));
    return tsr_events_create(&job->events, events, appends ? job->resumed : 0, job->evaluated);
}

typedef struct {
    const char *tag;
    double value;
} scalar;

static tsr_status write_events(tsr_job *job, int64_t step, const scalar *scalars, int count)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double wall_time = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    bool scores = job->inputs.layout.scores; /* which has neither tokens' accuracy nor entropy */
    for (int i = 0; job->events && i < count; i++)
        if (!scores ||
            (!strstr(scalars[i].tag, "accuracy") && !strstr(scalars[i].tag, "entropy")) ||
            !isnan(scalars[i].value))
            TSR_TRY(
                tsr_events_write(job->events, wall_time, step, scalars[i].tag, scalars[i].value));
    return TSR_OK;
}

/* "train/rewards/chosen" */
static tsr_status write_preference(tsr_job *job, int64_t step, const tsr_job_preference *preference,
                                   const char *before)
{
    tsr_metrics_value values[TSR_METRICS_PREFERENCE];
    int count = tsr_metrics_preference(values, preference);
    for (int i = 0; i < count; i++) {
        char tag[64];
        snprintf(tag, sizeof tag, "%s%s", before, values[i].name);
        TSR_TRY(write_events(job, step, &(scalar){tag, values[i].value}, 1));
    }
    return TSR_OK;
}

tsr_status tsr_job_record_step(tsr_job *job, const tsr_job_report *step)
{
    const scalar scalars[] = {{"train/loss", step->loss},
                              {"train/grad_norm", step->grad_norm},
                              {"train/learning_rate", step->learning_rate},
                              {"train/epoch", step->epoch},
                              {"train/mean_token_accuracy", step->mean_token_accuracy},
                              {"train/entropy", step->entropy},
                              {"train/tokens_per_s", step->tokens_per_s}};
    const scalar experts[] = {{"train/expert_load_over_mean", step->expert_load_over_mean},
                              {"train/expert_empty_share", step->expert_empty_share},
                              {"train/aux_loss", step->aux_loss}};
    int expert_count = !step->has_experts ? 0 : isnan(step->aux_loss) ? 2 : 3;
    if (!job->metrics)
        return TSR_OK;
    TSR_TRY(tsr_metrics_write_step(job->metrics, step));
    TSR_TRY(write_events(job, step->step, scalars, sizeof scalars / sizeof *scalars));
    TSR_TRY(write_events(job, step->step, experts, expert_count));
    return write_preference(job, step->step, &step->preference, "train/");
}

/* The loss first: a run that goes on before it cuts off what follows. */
tsr_status tsr_job_record_eval(tsr_job *job, const tsr_job_evaluation *evaluation)
{
    const scalar scalars[] = {{TSR_EVENTS_EVAL, evaluation->loss},
                              {"eval/mean_token_accuracy", evaluation->mean_token_accuracy},
                              {"eval/entropy", evaluation->entropy}};
    if (!job->metrics)
        return TSR_OK;
    TSR_TRY(tsr_metrics_write_eval(job->metrics, job->done, evaluation));
    TSR_TRY(write_events(job, job->done, scalars, sizeof scalars / sizeof *scalars));
    return write_preference(job, job->done, &evaluation->preference, "eval/");
}

/* Values that were left to the runtime are written as they were decided; but not the size of a
 * shard group, so that the file is good for another number of ranks (plan.json has it). */
static void resolve_config(tsr_job *job)
{
    tsr_config *config = &job->inputs.config;
    const tsr_decision *d = &job->decision;
    bool narrow = job->inputs.compute == TSR_BF16;
    config->dtype = narrow ? TSR_CONFIG_DTYPE_BFLOAT16 : TSR_CONFIG_DTYPE_FLOAT32;
    if (config->resident_units < 0)
        config->resident_units = d->resident_count;
}

/* The run that was there before; of one that goes on, what came after its checkpoint. */
static tsr_status clear_output(const tsr_job *job)
{
    const tsr_folder *folder = job->output;
    tsr_auto_folder *events = NULL;
    bool goes_on = job->resume && job->continues, foreign = tsr_peft_card_is_foreign(folder);
    TSR_TRY(tsr_file_tidy(folder, type_of));
    TSR_TRY(tsr_job_tokenizer_clear(folder));
    TSR_TRY(tsr_snapshot_tidy(folder));
    TSR_TRY(tsr_snapshot_drop_after(folder, goes_on ? job->done : -1));
    if (goes_on && job->newest > job->done)
        tsr_log(TSR_LOG_WARNING,
                "%s: resuming from checkpoint-%lld; the later ones, up to checkpoint-%lld, were "
                "deleted",
                tsr_folder_path(folder), (long long)job->done, (long long)job->newest);
    if (!job->resume && job->continues)
        tsr_log(TSR_LOG_WARNING,
                "resume_from_checkpoint: %s holds no checkpoint yet: starting at step 1",
                tsr_folder_path(folder));
    TSR_TRY(tsr_folder_enter(&events, folder, TSR_EVENTS_FOLDER));
    if (events)
        TSR_TRY(tsr_file_tidy(events, type_of_event));
    if (events && !goes_on)
        TSR_TRY(tsr_folder_remove(events, TSR_EVENTS_FILE));
    for (size_t i = 0; i < RUN_FILES && !goes_on; i++)
        if (!foreign || strcmp(run_files[i], TSR_PEFT_CARD_FILE) != 0)
            TSR_TRY(tsr_folder_remove(folder, run_files[i]));
    return TSR_OK;
}

tsr_status tsr_job_end(tsr_job *job, tsr_metrics_status status)
{
    if (!job->metrics || job->ended)
        return TSR_OK;
    job->ended = true;
    return tsr_metrics_write_end(job->metrics, status);
}

static tsr_status write_text(const tsr_job *job, const char *name, const tsr_text *text)
{
    return tsr_file_write_in(job->output, name, tsr_text_string(text), text->length);
}

tsr_status tsr_job_write_output(tsr_job *job)
{
    tsr_auto_text yaml = {0}, plan = {0};
    TSR_TRY(take_output(job));
    TSR_TRY(clear_output(job));
    resolve_config(job);
    TSR_TRY(tsr_config_write(&yaml, &job->inputs.config));
    TSR_TRY(tsr_job_tokenizer_write(&yaml, job));
    TSR_TRY(write_text(job, TSR_JOB_CONFIG_FILE, &yaml));
    TSR_TRY(tsr_decision_print(&plan, &job->decision, &job->inputs, &job->view, &job->speeds,
                               &(tsr_largest){0}, true));
    TSR_TRY(write_text(job, PLAN_FILE, &plan));
    if (job->matmuls.length)
        TSR_TRY(write_text(job, TSR_MATMULS_FILE, &job->matmuls));
    return start_metrics(job);
}

tsr_status tsr_job_follow_output(tsr_job *job)
{
    if (!job->output)
        TSR_TRY(tsr_folder_open(&job->output, job->inputs.config.output_dir));
    return job->output ? TSR_OK
                       : tsr_fail(TSR_EIO,
                                  "output_dir %s: rank %d does not find it; every rank must see "
                                  "the same files at the same paths",
                                  job->inputs.config.output_dir, job->view.rank);
}
