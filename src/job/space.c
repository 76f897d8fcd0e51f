/*
 * space.c: whether what a run will write has room on the disk, asked before its first step. Rank 0.
 */
#include "job/parts.h"

#include "base/checked.h"
#include "inputs/experts.h"
#include "job/output.h"
#include "report/report.h"

#define NAME_BYTES    256         /* of a tensor in a file's header, at most */
#define FILE_BYTES    (16u << 10) /* of a small file, and what a file system adds to one */
#define METRICS_BYTES 512         /* of a step's line, at most */
#define EVENTS_BYTES  512         /* of a step's records, at most */
#define OTHER_BYTES   (1u << 20)  /* job.yaml, plan.json */

typedef struct {
    uint64_t adapter, checkpoint, metrics;
    int64_t checkpoints; /* that there will be more of than now, at most */
} needs;

/* Old ones go when the new one is durable, so for a moment there is one more than are kept. `there`: that stay
 * of those that are there now. */
static int64_t more_checkpoints(const tsr_job *job, int64_t done, int64_t there)
{
    const tsr_config *config = &job->inputs.config;
    const tsr_batch_run *run = tsr_batch_run_of(job->inputs.batch);
    int64_t most = config->save_total_limit > 0 ? config->save_total_limit + 1 : INT64_MAX;
    int64_t every = 0;
    if (config->save_strategy == TSR_CONFIG_EVERY_EPOCH)
        every = run->steps_per_epoch;
    if (config->save_strategy == TSR_CONFIG_EVERY_STEPS)
        every = tsr_config_steps(config->save_steps, run->steps, 1);
    int64_t made = every > 0 && run->steps > done ? run->steps / every - done / every : 0;
    if (made == 0 && config->time_limit > 0)
        made = 1; /* a stop writes one, whatever save_strategy says */
    if (config->load_best_model_at_end)
        return (made < most - there ? made : most - there) + 2; /* the best one, and the next */
    if (made == 0 || made <= most - there)
        return made;
    return most > there ? most - there : 1;
}

static needs count(const tsr_job *job, int64_t done, int64_t there)
{
    const tsr_inputs *in = &job->inputs;
    uint64_t values = sizeof(float) * in->layout.trainable_count;
    uint64_t names = 3 * in->adapter.set.count * NAME_BYTES;
    uint64_t ranks = (uint64_t)job->decision.group, states = 3;
    int64_t left = tsr_batch_run_of(in->batch)->steps - done;
    uint64_t steps = left > 0 ? (uint64_t)left : 0;
    bool events = in->config.report_to == TSR_CONFIG_REPORT_TENSORBOARD;
    uint64_t first = tsr_train_adapter_is_principal(&in->adapter) ? values : 0; /* adapter.c */
    uint64_t biases = tsr_inputs_has_router_bias(in, true)
                          ? sizeof(float) * tsr_model_load_count(&in->layout) + FILE_BYTES
                          : 0;
    needs n = {.adapter = values + first + names + biases + 3 * FILE_BYTES,
               .metrics = steps * (METRICS_BYTES + (events ? EVENTS_BYTES : 0)) + OTHER_BYTES,
               .checkpoints = more_checkpoints(job, done, there)};
    n.checkpoint = n.adapter + states * values + ranks * (states * names + FILE_BYTES);
    return n;
}

/* What of output_dir goes before anything is written, the run before or what came after the checkpoint, and
 * how many checkpoints stay. */
static tsr_status look_around(uint64_t *freed, int64_t *there, const tsr_job *job)
{
    struct stat info;
    bool goes_on = job->resume && job->continues;
    *freed = 0;
    *there = 0;
    if (!job->output || (!goes_on && !job->inputs.config.overwrite_output_dir))
        return TSR_OK;
    TSR_TRY(tsr_snapshot_bytes(freed, there, job->output,
                               goes_on ? tsr_snapshot_step(job->resume) : -1));
    if (!goes_on && tsr_folder_stat(&info, job->output, TSR_PEFT_WEIGHTS_FILE))
        *freed += 512 * (uint64_t)info.st_blocks;
    return TSR_OK;
}

tsr_status tsr_job_check_space(const tsr_job *job)
{
    int64_t done = job->resume ? tsr_snapshot_step(job->resume) : 0, there;
    uint64_t freed;
    TSR_TRY(look_around(&freed, &there, job));
    needs n = count(job, done, there);
    tsr_auto_text what = {0};
    tsr_text_puts(&what, "the adapter ");
    tsr_report_put_bytes(&what, n.adapter);
    if (n.checkpoints) {
        tsr_text_printf(&what, ", %lld checkpoint%s of ", (long long)n.checkpoints,
                        n.checkpoints > 1 ? "s" : "");
        tsr_report_put_bytes(&what, n.checkpoint);
    }
    tsr_text_puts(&what, ", metrics ");
    tsr_report_put_bytes(&what, n.metrics);
    uint64_t bytes;
    if (!tsr_mul_u64(&bytes, (uint64_t)n.checkpoints, n.checkpoint) ||
        !tsr_add_u64(&bytes, bytes, n.adapter + n.metrics))
        bytes = UINT64_MAX;
    tsr_output_need need = {
        .bytes = bytes,
        .freed = freed,
        .what = tsr_text_string(&what),
        .advice = n.checkpoints > 1 ? ", or keep fewer checkpoints with save_total_limit" : ""};
    return tsr_output_check_space(&job->inputs.config, &need);
}
