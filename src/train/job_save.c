/*
 * job_save.c: what a run writes into output_dir; rank 0 writes, all ranks bring their part of the
 * adapter.
 */
#include "train/job_parts.h"

#include "io/file.h"
#include "train/usage.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a run leaves, and overwrite_output_dir removes. */
static const char *const run_files[] = {
    TSR_PEFT_WEIGHTS_FILE, TSR_PEFT_CONFIG_FILE, TSR_PEFT_CARD_FILE, "metrics.jsonl", "job.yaml",
    "plan.json",           TSR_MATMULS_FILE};

static tsr_status join(char *out, size_t bytes, const char *directory, const char *name)
{
    if ((size_t)snprintf(out, bytes, "%s/%s", directory, name) >= bytes)
        return tsr_fail(TSR_ECONFIG, "output_dir: the path %s is too long", directory);
    return TSR_OK;
}

tsr_status tsr_job_output_path(char *out, size_t bytes, const tsr_job *job, const char *name)
{
    return join(out, bytes, job->inputs.config.output_dir, name);
}

tsr_status tsr_output_check_place(const tsr_config *config)
{
    const char *where = tsr_config_where(config, "output_dir"), *directory = config->output_dir;
    char path[PATH_MAX], last[PATH_MAX];
    struct stat info;
    TSR_TRY(join(path, sizeof path, directory, ""));
    strcpy(last, *path == '/' ? "/" : ".");
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        if (stat(path, &info) != 0)
            break;
        if (!S_ISDIR(info.st_mode))
            return tsr_fail(TSR_ECONFIG, "%s: output_dir %s: %s is a file; name a directory", where,
                            directory, path);
        strcpy(last, path);
        *p = '/';
    }
    if (access(last, W_OK | X_OK) != 0)
        return tsr_fail(TSR_ECONFIG, "%s: output_dir %s: %s cannot be written to: %s", where,
                        directory, last, strerror(errno));
    return TSR_OK;
}

tsr_status tsr_job_open_output(tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    const char *directory = config->output_dir;
    char path[PATH_MAX];
    TSR_TRY(tsr_output_check_place(config));
    if (config->overwrite_output_dir)
        return TSR_OK;
    for (size_t i = 0; i < sizeof run_files / sizeof *run_files; i++) {
        if (!strcmp(run_files[i], TSR_PEFT_CARD_FILE))
            continue; /* a README alone is no run */
        TSR_TRY(join(path, sizeof path, directory, run_files[i]));
        if (access(path, F_OK) == 0)
            return tsr_fail(
                TSR_ECONFIG,
                "%s: output_dir %s holds a run already (%s); name another directory, or "
                "set overwrite_output_dir: true to replace it",
                tsr_config_where(config, "output_dir"), directory, run_files[i]);
    }
    return TSR_OK;
}

tsr_status tsr_output_make_directory(const char *directory)
{
    char path[PATH_MAX];
    TSR_TRY(join(path, sizeof path, directory, ""));
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return tsr_fail(TSR_EIO, "output_dir: cannot make the directory %s: %s", path,
                            strerror(errno));
        *p = '/';
    }
    return TSR_OK;
}

static tsr_status write_text(const char *directory, const char *name, const tsr_text *text)
{
    char path[PATH_MAX];
    TSR_TRY(join(path, sizeof path, directory, name));
    return tsr_file_write(path, tsr_text_string(text), text->length);
}

static tsr_status start_metrics(tsr_job *job, const char *directory)
{
    char path[PATH_MAX];
    TSR_TRY(join(path, sizeof path, directory, "metrics.jsonl"));
    TSR_TRY(tsr_metrics_create(&job->metrics, path, false));
    tsr_metrics_start start = {.version = tsr_usage_version(),
                               .commit = tsr_usage_commit(),
                               .ranks = job->view.ranks,
                               .device = tsr_device_description(job->device),
                               .plan_hash = job->decision.plan->hash,
                               .config_hash = tsr_config_hash(&job->inputs.config),
                               .model = job->inputs.config.model_name_or_path,
                               .total_steps = job->total_steps,
                               .trainable_count = (int64_t)job->inputs.layout.trainable_count};
    return tsr_metrics_write_start(job->metrics, &start);
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

tsr_status tsr_job_write_output(tsr_job *job)
{
    const char *directory = job->inputs.config.output_dir;
    char path[PATH_MAX];
    tsr_text yaml = {0}, plan = {0};
    TSR_TRY(tsr_output_make_directory(directory));
    for (size_t i = 0; i < sizeof run_files / sizeof *run_files; i++) {
        TSR_TRY(join(path, sizeof path, directory, run_files[i]));
        if (unlink(path) != 0 && errno != ENOENT)
            return tsr_fail(TSR_EIO, "output_dir: cannot remove %s: %s", path, strerror(errno));
    }
    resolve_config(job);
    tsr_status status = tsr_config_write(&yaml, &job->inputs.config);
    if (status == TSR_OK)
        status = write_text(directory, "job.yaml", &yaml);
    if (status == TSR_OK)
        status = tsr_decision_print(&plan, &job->decision, &job->inputs, &job->view, NULL, true);
    if (status == TSR_OK)
        status = write_text(directory, "plan.json", &plan);
    if (status == TSR_OK && job->matmuls.length)
        status = write_text(directory, TSR_MATMULS_FILE, &job->matmuls);
    if (status == TSR_OK)
        status = start_metrics(job, directory);
    tsr_text_free(&yaml);
    tsr_text_free(&plan);
    return status;
}

/* ---- the adapter ---- */

typedef struct {
    tsr_peft_tensor *tensor;
    uint64_t count;
    uint64_t used; /* floats of the adapter buffer */
} collected;

/* Gathers the masters of one trainable segment; rank 0 keeps it as a tensor to write. */
static tsr_status collect(tsr_job *job, collected *c, int unit, int segment, tsr_peft_part part,
                          const tsr_layout_linear *linear)
{
    const tsr_trainable *trainable = &job->decision.store.trainable;
    const tsr_layout_segment *layout = &job->inputs.layout.unit[unit].trainable[segment];
    tsr_trainable_span span = tsr_trainable_at(trainable, unit, segment);
    tsr_stream *stream = job->control;
    uint64_t bytes = span.count * sizeof(float);
    float *own = job->buffers.unit + (uint64_t)tsr_comm_rank(job->shard) * span.count;
    TSR_TRY(tsr_device_read(job->device, own, trainable->master + span.begin, bytes));
    tsr_gather_range range = {own, job->buffers.unit, bytes};
    TSR_TRY(tsr_comm_all_gather(job->shard, stream, &range, 1));
    TSR_TRY(tsr_stream_synchronize(stream));
    if (job->view.rank != 0)
        return TSR_OK;
    char *name = NULL;
    TSR_TRY(tsr_peft_tensor_name(&name, linear->path, part));
    float *data = job->buffers.adapter + c->used;
    for (tsr_stored_run run = {0}; tsr_stored_next(&run, layout, 0, layout->element_count);)
        memcpy(data + run.stored, job->buffers.unit + run.memory, run.count * sizeof *data);
    c->used += layout->stored_rows * layout->stored_columns;
    c->tensor[c->count++] =
        (tsr_peft_tensor){.name = name,
                          .ndim = part == TSR_PEFT_MAGNITUDE ? 1 : 2,
                          .shape = {layout->stored_rows, layout->stored_columns},
                          .data = data};
    return TSR_OK;
}

static tsr_status collect_all(tsr_job *job, collected *c)
{
    const tsr_layout *layout = &job->inputs.layout;
    c->tensor = calloc(3 * job->inputs.adapter.set.count + 1, sizeof *c->tensor);
    if (!c->tensor)
        return tsr_fail(TSR_ENOMEM, "out of memory while saving the adapter");
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
            const tsr_layout_linear *linear = &layout->unit[unit].linear[kind];
            if (!linear->r)
                continue;
            TSR_TRY(collect(job, c, unit, linear->a, TSR_PEFT_A, linear));
            TSR_TRY(collect(job, c, unit, linear->b, TSR_PEFT_B, linear));
            if (linear->dora)
                TSR_TRY(collect(job, c, unit, linear->m, TSR_PEFT_MAGNITUDE, linear));
        }
    return TSR_OK;
}

static tsr_status write_adapter(tsr_job *job, const collected *c)
{
    tsr_peft_config config;
    if (job->view.rank != 0)
        return TSR_OK;
    TSR_TRY(tsr_train_adapter_config(&config, &job->inputs.adapter, &job->inputs.config));
    tsr_status status = tsr_peft_write(job->inputs.config.output_dir, &config, c->tensor, c->count);
    free(config.rank_pattern); /* one array: alpha_pattern is its second part */
    return status;
}

int tsr_job_save(tsr_job *job)
{
    collected c = {0};
    if (job->state != TSR_JOB_STARTED || !job->train)
        return tsr_fail(TSR_EINVAL, "tsr_job_save needs a training job that was started");
    /* The control word comes before the update of its step: the last one may still be running. */
    tsr_status status = tsr_streams_synchronize(&job->streams);
    if (status == TSR_OK)
        status = collect_all(job, &c);
    if (status < 0)
        tsr_executor_fail(job->executor, status); /* the others wait in a collective */
    else
        status = write_adapter(job, &c);
    for (uint64_t i = 0; i < c.count; i++)
        free((char *)c.tensor[i].name);
    free(c.tensor);
    if (status == TSR_OK && job->metrics)
        status = tsr_metrics_write_end(job->metrics,
                                       job->stopped ? TSR_METRICS_SAVED : TSR_METRICS_DONE);
    return tsr_job_agree(job, status);
}
