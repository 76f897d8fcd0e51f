/* A run's directory: what ran, how the loss went, how it ended, and the files that it left. */
#include "commands/inspect.h"

#include "base/aside.h"
#include "config/config.h"
#include "io/missing.h"
#include "io/peft.h"
#include "report/plot.h"
#include "tessera.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void copy_key(json_t *report, const json_t *start, const char *key)
{
    const json_t *value = json_object_get(start, key);
    if (value)
        json_object_set(report, key, (json_t *)value);
}

static void add_start(json_t *report, const tsr_run_metrics *m)
{
    static const char *const keys[] = {"version", "commit", "ranks",
                                       "device",  "model",  "trainable_parameters"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        copy_key(report, m->start, keys[i]);
    if (m->start_count > 1)
        tsr_report_int(report, "resumed_times", (uint64_t)m->start_count - 1);
    tsr_report_string(report, "status", m->status[0] ? m->status : TSR_INSPECT_OPEN);
    tsr_report_int(report, "steps_done",
                   m->step_count ? (uint64_t)m->steps[m->step_count - 1].step : 0);
    copy_key(report, m->start, "total_steps");
}

/* Nothing of runs that did not report them. */
static void add_reported(json_t *report, double accuracy, double entropy)
{
    if (isfinite(accuracy))
        tsr_report_real(report, "last_mean_token_accuracy", accuracy);
    if (isfinite(entropy))
        tsr_report_real(report, "last_entropy", entropy);
}

/* Of a model with experts; the worst of all steps beside the last. */
static void add_experts(json_t *training, const tsr_run_metrics *m)
{
    const tsr_run_step *last = &m->steps[m->step_count - 1];
    double largest = NAN;
    uint64_t dropped = 0;
    for (uint64_t i = 0; i < m->step_count; i++) {
        largest = fmax(largest, m->steps[i].expert_load_over_mean);
        dropped += (uint64_t)m->steps[i].expert_dropped;
    }
    if (!isfinite(largest))
        return;
    tsr_report_real(training, "last_expert_load_over_mean", last->expert_load_over_mean);
    tsr_report_real(training, "largest_expert_load_over_mean", largest);
    tsr_report_real(training, "last_expert_empty_share", last->expert_empty_share);
    if (isfinite(last->aux_loss))
        tsr_report_real(training, "last_aux_loss", last->aux_loss);
    if (dropped)
        tsr_report_int(training, "expert_dropped", dropped);
}

static void add_steps(json_t *report, const tsr_run_metrics *m)
{
    double seconds = 0, lowest = NAN;
    uint64_t not_finite = 0, tokens = 0;
    for (uint64_t i = 0; i < m->step_count; i++) {
        const tsr_run_step *s = &m->steps[i];
        seconds += isfinite(s->step_s) ? s->step_s : 0;
        tokens += (uint64_t)s->input_tokens;
        not_finite += !isfinite(s->loss) || !isfinite(s->grad_norm);
        lowest = fmin(lowest, s->loss); /* of two, the one that is a number */
    }
    if (!m->step_count)
        return;
    const tsr_run_step *first = &m->steps[0], *last = &m->steps[m->step_count - 1];
    json_t *training = tsr_report_object(report, "training");
    tsr_report_real(training, "first_loss", first->loss);
    tsr_report_real(training, "last_loss", last->loss);
    tsr_report_real(training, "lowest_loss", lowest);
    add_reported(training, last->mean_token_accuracy, last->entropy);
    add_experts(training, m);
    tsr_report_real(training, "last_learning_rate", last->learning_rate);
    tsr_report_real(training, "epochs", last->epoch);
    tsr_report_int(training, "input_tokens", tokens);
    tsr_report_real(training, "seconds", seconds);
    tsr_report_real(training, "tokens_per_s", seconds > 0 ? (double)tokens / seconds : NAN);
    tsr_report_int(training, "device_memory_bytes", (uint64_t)last->device_bytes);
    tsr_report_int(training, "steps_not_finite", not_finite);
}

static void add_evaluations(json_t *report, const tsr_run_metrics *m)
{
    if (!m->evaluation_count)
        return;
    const tsr_run_evaluation *all = m->evaluations, *best = all;
    for (uint64_t i = 1; i < m->evaluation_count; i++)
        best = all[i].loss < best->loss || isnan(best->loss) ? &all[i] : best;
    json_t *e = tsr_report_object(report, "evaluation");
    tsr_report_int(e, "times", m->evaluation_count);
    tsr_report_real(e, "first_loss", all[0].loss);
    tsr_report_real(e, "last_loss", all[m->evaluation_count - 1].loss);
    tsr_report_real(e, "lowest_loss", best->loss);
    tsr_report_int(e, "lowest_at_step", (uint64_t)best->step);
    add_reported(e, all[m->evaluation_count - 1].mean_token_accuracy,
                 all[m->evaluation_count - 1].entropy);
}

/* The keys of job.yaml that say what was trained; of one that cannot be read, why. */
static tsr_status add_job(json_t *report, const char *directory)
{
    static const char *const keys[] = {
        "dataset",    "eval_dataset",        "base_compute",  "use_dora",          "lora_r",
        "lora_alpha", "lora_target_modules", "learning_rate", "lr_scheduler_type", "seed"};
    char path[TSR_INSPECT_PATH_BYTES];
    TSR_TRY(tsr_inspect_join(path, directory, "job.yaml"));
    if (access(path, F_OK) != 0)
        return TSR_OK;
    json_t *job = tsr_report_object(report, "job");
    tsr_report_string(job, "file", path);
    tsr_config config;
    const tsr_config_source source = {.path = path, .use = TSR_CONFIG_PLAN, .has_cuda = true};
    if (tsr_config_load(&config, &source) < 0) {
        tsr_report_string(job, "refused", tsr_last_error());
        return TSR_OK;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        tsr_text text = {0};
        if (tsr_config_value_text(&text, &config, keys[i]) == TSR_OK)
            tsr_report_string(job, keys[i], tsr_text_string(&text));
        tsr_text_free(&text);
    }
    tsr_config_free(&config);
    return TSR_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add_entries(json_t *report, char **names, uint64_t count, const char *directory)
{
    char path[TSR_INSPECT_PATH_BYTES];
    struct stat info;
    json_t *files = tsr_report_array(report, "files");
    for (uint64_t i = 0; i < count; i++) {
        if (tsr_inspect_join(path, directory, names[i]) < 0 || stat(path, &info) != 0)
            continue;
        json_t *row = tsr_report_row(files);
        tsr_report_string(row, "name", names[i]);
        if (S_ISDIR(info.st_mode))
            tsr_report_string(row, "bytes", "a directory");
        else
            tsr_report_int(row, "bytes", (uint64_t)info.st_size);
    }
}

static tsr_status add_files(json_t *report, const char *directory)
{
    DIR *entries = opendir(directory);
    char **names = NULL;
    uint64_t count = 0;
    tsr_status status = TSR_OK;
    if (!entries)
        return tsr_fail(TSR_EIO, "%s: cannot be opened: %s", directory, strerror(errno));
    for (struct dirent *entry; status == TSR_OK && (entry = readdir(entries));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        char **more = realloc(names, (count + 1) * sizeof *names);
        names = more ? more : names;
        char *copy = more ? strdup(entry->d_name) : NULL;
        if (copy)
            names[count++] = copy;
        else
            status = tsr_fail(TSR_ENOMEM, "%s: out of memory", directory);
    }
    closedir(entries);
    if (count)
        qsort(names, count, sizeof *names, by_name);
    if (status == TSR_OK)
        add_entries(report, names, count, directory);
    for (uint64_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
    return status;
}

static tsr_status add_adapter(json_t *report, const char *directory)
{
    char path[TSR_INSPECT_PATH_BYTES];
    TSR_TRY(tsr_inspect_join(path, directory, TSR_PEFT_WEIGHTS_FILE));
    if (access(path, F_OK) != 0) /* it appears at the end of the run */
        return TSR_OK;
    return tsr_inspect_adapter_within(report, directory);
}

tsr_status tsr_inspect_metrics(tsr_run_metrics *out, const char *directory)
{
    char path[TSR_INSPECT_PATH_BYTES];
    TSR_TRY(tsr_inspect_join(path, directory, "metrics.jsonl"));
    if (access(directory, F_OK) != 0) {
        char hint[TSR_MISSING_BYTES];
        int error = errno;
        return tsr_fail(TSR_EDATA, "%s: %s%s", directory, strerror(error),
                        tsr_missing_hint(hint, directory, error));
    }
    if (access(path, F_OK) != 0)
        return tsr_fail(TSR_EDATA, "%s: it has no metrics.jsonl; expected a run's output_dir",
                        directory);
    return tsr_run_metrics_read(out, path);
}

tsr_status tsr_inspect_run(json_t *report, const char *directory)
{
    tsr_run_metrics metrics;
    TSR_TRY(tsr_inspect_metrics(&metrics, directory));
    add_start(report, &metrics);
    add_steps(report, &metrics);
    add_evaluations(report, &metrics);
    tsr_run_metrics_free(&metrics);
    TSR_TRY(add_job(report, directory));
    TSR_TRY(add_files(report, directory));
    return add_adapter(report, directory);
}

tsr_status tsr_plot(const char *run_directory, const char *file)
{
    tsr_run_metrics metrics;
    tsr_text svg = {0};
    if (!run_directory || !file)
        return tsr_fail(TSR_EINVAL, "tsr_plot: run_directory or file is NULL");
    TSR_TRY(tsr_inspect_metrics(&metrics, run_directory));
    tsr_aside aside = {0};
    tsr_aside_begin(&aside);
    tsr_status status = tsr_plot_run(&svg, &metrics, run_directory);
    if (status == TSR_OK)
        status = tsr_file_write(file, tsr_text_string(&svg), svg.length);
    tsr_text_free(&svg);
    tsr_run_metrics_free(&metrics);
    tsr_aside_end(&aside);
    return status;
}
