/*
 * model_run.c: one run of bench_model: the job's files, its steps, what they gave.
 */
#include "base/clock.h"
#include "job/mixer_parts.h"
#include "job/parts.h"
#include "model.h"

#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(const char *what)
{
    if (tsr_job_reports())
        fprintf(stderr, "bench_model: %s: %s\n", what, tsr_last_error());
    return -1;
}

/* ---- files ---- */

static int make_files(bench_run *run)
{
    int failed = 0;
    if (run->rank == 0) {
        const char *parent = run->scratch ? run->scratch : getenv("TMPDIR");
        snprintf(run->directory, sizeof run->directory, "%s/bench_model.XXXXXX",
                 parent ? parent : "/tmp");
        if (!mkdtemp(run->directory)) {
            fprintf(stderr, "bench_model: %s: %s\n", run->directory, strerror(errno));
            failed = -1;
        }
        failed = failed || bench_files_write(run);
        if (!failed && run->part)
            failed = bench_longest_ask(run) || bench_longest_take(run) || bench_files_write(run);
    }
    if (run->ranks > 1) {
        MPI_Bcast(run->directory, sizeof run->directory, MPI_CHAR, 0, MPI_COMM_WORLD);
        MPI_Bcast(&failed, 1, MPI_INT, 0, MPI_COMM_WORLD);
        MPI_Bcast(&run->longest, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
    }
    return failed || !run->part ? failed : bench_longest_take(run);
}

static void remove_output(const bench_run *run, const char *directory)
{
    static const char *const names[] = {"metrics.jsonl", "job.yaml", "plan.json", "matmuls.txt",
                                        "trace.json"};
    char path[BENCH_PATH_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s/%s", run->directory, directory, names[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/%s", run->directory, directory);
    rmdir(path);
}

static void remove_files(const bench_run *run)
{
    static const char *const names[] = {"config.json", "model.safetensors", "rows.jsonl",
                                        "job.yaml"};
    char path[BENCH_PATH_BYTES];
    if (run->rank != 0 || !run->directory[0])
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", run->directory, names[i]);
        unlink(path);
    }
    for (int64_t i = 0; i < run->adapters; i++) {
        char output[32];
        snprintf(output, sizeof output, "out/a%d", (int)i);
        remove_output(run, output);
    }
    remove_output(run, "out");
    if (rmdir(run->directory) != 0)
        fprintf(stderr, "bench_model: %s was left behind\n", run->directory);
}

/* ---- steps ---- */

/* How rows of several adapters share micro-batches, if they do; its plan decides what layers keep. */
static const tsr_decision *describe_mixing(bench_result *out, const bench_run *run,
                                           const tsr_job *job)
{
    const tsr_mixer *mixer = job->mixer;
    if (!mixer)
        return &job->decision;
    out->mixing.steps = run->steps / run->adapters * run->adapters;
    out->mixing.micro = mixer->schedule.count;
    out->mixing.count = run->adapters * (run->warmup + run->steps);
    out->mixing.capacity = mixer->schedule.capacity;
    out->mixing.fill = mixer->schedule.fill;
    return &mixer->own->decision;
}

double bench_micro_batches(const bench_run *run, const bench_result *r)
{
    if (!r->mixing.steps)
        return 1;
    return (double)r->mixing.micro / (double)r->mixing.count / run->ranks;
}

static void describe(bench_result *out, const bench_run *run, const tsr_job *job)
{
    const tsr_decision *d = describe_mixing(out, run, job);
    out->dtype = job->inputs.compute;
    out->cuda = job->inputs.cuda;
    out->fp8 = d->model.fp8;
    out->arena_planned = tsr_job_base_bytes(job, TSR_PLACE_DEVICE);
    out->budget = d->budget;
    out->host_bytes =
        tsr_job_base_bytes(job, TSR_PLACE_HOST) + tsr_job_base_bytes(job, TSR_PLACE_NODE);
    out->resident = d->resident_count;
    out->decoded = d->decoded_count;
    out->selective = d->selective_count;
    out->full = d->full_count;
    out->offloaded = d->offloaded_count;
    memcpy(out->keep, d->keep, (size_t)job->inputs.layout.layer_count * sizeof *out->keep);
    out->units = job->inputs.layout.plan_unit_count;
    out->slot_bytes = d->plan->slot_bytes;
    for (int u = 0; u < out->units; u++) {
        int uses = u < job->inputs.layout.plan_head_unit ? 2 : 1; /* forward and backward */
        bool sharded = d->home[u] == TSR_HOME_HOST_SHARDED;
        if (!sharded && d->home[u] != TSR_HOME_HOST_FULL)
            continue;
        out->host_units++;
        out->host_traffic += uses * (double)(sharded ? d->units[u].frozen.shard_bytes
                                                     : d->units[u].frozen.gathered_bytes);
    }
    int layers = job->inputs.layout.layer_count;
    for (int l = 0; l < layers; l++)
        if (tsr_saved_travels(d->saved_bytes, layers, l))
            out->host_traffic += (double)d->saved_bytes[l];
    out->nf4 = job->inputs.config.load_in_4bit;
    out->int8 = job->inputs.config.load_in_8bit;
    out->dropout = job->inputs.config.lora_dropout;
    out->attention = (bench_attention){d->model.dtype, d->model.atomics, d->model.wider};
    snprintf(out->device, sizeof out->device, "%s", tsr_device_description(job->device));
}

static int run_steps(bench_result *out, const bench_run *run, tsr_job **jobs)
{
    int64_t count = run->adapters > 1 ? run->adapters : 1;
    int64_t tokens = 0; /* of the steps that count with mixing */
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    double before = tsr_now(), begin = before;
    for (int64_t step = 0; step < run->warmup + run->steps; step++) {
        tsr_job *job = jobs[step % count];
        if (tsr_job_step(job, &report) != 0)
            return fail("a step");
        double now = tsr_now();
        int64_t timed = step - run->warmup;
        if (timed >= 0) {
            out->step_s[timed] = now - before;
            out->exposed_s[timed] = report.exposed_s;
            out->issue_s[timed] = job->issue_s;
            tokens += timed < out->mixing.steps ? report.input_tokens : 0;
        }
        before = now;
        out->skipped += report.skipped;
        if (step == 0) {
            out->first_loss = report.loss;
            if (tsr_device_memory(&out->free_first, &out->total, job->device) < 0)
                return fail("device memory");
        }
        if (timed < 0)
            begin = before = tsr_now();
    }
    tsr_job *job = *jobs;
    if (tsr_streams_synchronize(&job->streams) < 0)
        return fail("the last step");
    out->train_s = tsr_now() - begin;
    out->last_loss = report.loss;
    out->grad_norm = report.grad_norm;
    out->tokens = out->mixing.steps ? tokens / out->mixing.steps : report.input_tokens;
    out->arena_used = tsr_job_base_taken(job);
    if (tsr_device_memory(&out->free_last, &out->total, job->device) < 0)
        return fail("device memory");
    if (run->timeline && run->rank == 0)
        out->timeline = bench_timeline(job);
    return 0;
}

static void on_log(void *user, int severity, const char *line)
{
    (void)user;
    fprintf(stderr, "%s%s\n", severity <= TSR_JOB_WARNING ? "warning: " : "", line);
}

static int train(bench_result *out, const bench_run *run)
{
    char path[BENCH_PATH_BYTES], *summary = NULL;
    snprintf(path, sizeof path, "%s/job.yaml", run->directory);
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .config_path = path,
                               .overrides = run->overrides,
                               .override_count = run->override_count,
                               .purpose = TSR_JOB_TRAIN,
                               .use_mpi = run->ranks > 1,
                               .log = on_log};
    tsr_job *job[BENCH_MOST_ADAPTERS] = {NULL};
    int count = run->adapters > 1 ? (int)run->adapters : 1, failed = 0;
    double before = tsr_now();
    for (int i = 0; i < count && !failed; i++) {
        options.entry = i;
        failed = tsr_job_create(&job[i], &options) < 0 ? fail("the job") : 0;
        options.base = job[0];
    }
    for (int i = 0; i < count && !failed; i++) {
        job[i]->fill = bench_fill;
        failed = tsr_job_start(job[i]) < 0 ? fail("the start") : 0;
    }
    out->start_s = tsr_now() - before;
    if (!failed && run->rank == 0 && tsr_job_print_summary(*job, &summary) == 0)
        fputs(summary, stderr);
    free(summary);
    if (!failed) {
        describe(out, run, *job);
        failed = run_steps(out, run, job);
    }
    for (int i = count - 1; i >= 0; i--)
        tsr_job_destroy(job[i]);
    return failed;
}

/* Of the largest, over all ranks. */
static void agree_on_memory(bench_result *out, const bench_run *run)
{
    int64_t change = (int64_t)out->free_first - (int64_t)out->free_last;
    out->most_change = change < 0 ? -change : change;
    if (run->ranks > 1)
        MPI_Allreduce(MPI_IN_PLACE, &out->most_change, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
}

int bench_run_steps(bench_result *out, bench_run *run)
{
    int failed = make_files(run);
    if (!failed)
        failed = train(out, run);
    if (!failed)
        agree_on_memory(out, run);
    remove_files(run);
    return failed;
}
