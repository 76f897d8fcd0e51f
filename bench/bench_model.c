/*
 * bench_model.c: training steps of a model's shape, without its weights.
 *
 *     bench_model --shape llama3-8b --layers 8 --batch 4 --length 2048 --adapter dora --rank 384
 *                 [--recompute none|selective|full|auto] [--offload none|sharded|full|auto]
 *                 [--dtype D] [--backend B] [--memory-budget 24GiB] [--resident 0|N|auto] [--steps 8]
 *                 [--warmup 3] [--roofs roofs.json] [--scratch DIR] [key=value ...]
 *
 * The job is the program's own: the same reader of job.yaml, the same plan, executor and kernels; only
 * the weights are made up (model.h). key=value goes to the configuration. Under mpirun every rank
 * trains BATCH x LENGTH tokens and rank 0 reports: one line of JSON on stdout, a summary on stderr.
 *
 * A step is timed by the clock of the host between the returns of tsr_job_step, which are one step
 * apart. With --roofs the floor is told term by term (the least work of model/work.h at these roofs, each
 * operation the longer of its bytes and its FLOPs), and SOL = floor / median; attention's roof is
 * measured in the same process afterwards.
 */
#include "base/clock.h"
#include "model.h"
#include "model/work.h"
#include "ranks.h"
#include "train/job_parts.h"
#include "train/usage.h"

#include <errno.h>
#include <jansson.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_STEPS 4096
#define GIB        (1.0 / (1 << 30))

/* What the run gave. */
typedef struct {
    double step_s[MOST_STEPS], exposed_s[MOST_STEPS];
    double start_s; /* until the first step could begin */
    double train_s; /* all timed steps, with the last one's end */
    double first_loss, last_loss, grad_norm;
    int64_t skipped, tokens; /* tokens: of a step, all ranks */
    uint64_t arena_planned, arena_used, host_bytes;
    uint64_t free_first, free_last, total; /* device memory after step 1 and at the end */
    int64_t most_change;                   /* of free memory between the two, over all ranks */
    int resident, selective, full, host_units;
    double host_traffic; /* bytes that a step copies to the device on this rank */
    tsr_dtype dtype;
    bool cuda, fp8;
    char device[256];
} result;

static int fail(const char *what)
{
    if (tsr_job_reports())
        fprintf(stderr, "bench_model: %s: %s\n", what, tsr_last_error());
    return -1;
}

/* ---- the command line ---- */

static int usage(const char *what)
{
    fprintf(stderr,
            "bench_model: %s\nusage: bench_model --shape S [--layers N] [--batch B] [--length L] "
            "[--adapter lora|dora] [--rank R]\n  [--recompute none|selective|full|auto] [--offload "
            "none|sharded|full|auto] [--dtype D] [--backend B]\n  [--memory-budget BYTES] "
            "[--resident 0|N|auto] [--steps "
            "N] [--warmup N] [--roofs FILE] [--scratch DIR] [key=value ...]\n  shapes: %s\n",
            what, bench_shape_names());
    return -1;
}

static int set_word(bench_run *run, const char *key, const char *value)
{
    const struct {
        const char *key;
        const char **field;
    } words[] = {{"recompute", &run->recompute}, {"offload", &run->offload},
                 {"dtype", &run->dtype},         {"backend", &run->backend},
                 {"roofs", &run->roofs},         {"memory-budget", &run->memory_budget},
                 {"scratch", &run->scratch},     {"resident", &run->resident}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(key, words[i].key)) {
            *words[i].field = value;
            return 0;
        }
    return usage("unknown option");
}

static int set_option(bench_run *run, const char *key, const char *value)
{
    const struct {
        const char *key;
        int64_t *field;
        int64_t least;
    } numbers[] = {{"layers", &run->shape.layers, 1}, {"batch", &run->batch, 1},
                   {"length", &run->length, 2},       {"rank", &run->r, 1},
                   {"steps", &run->steps, 1},         {"warmup", &run->warmup, 0}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key)) {
            *numbers[i].field = atoll(value);
            return *numbers[i].field < numbers[i].least ? usage("a number is too small") : 0;
        }
    if (!strcmp(key, "adapter")) {
        run->dora = !strcmp(value, "dora");
        return run->dora || !strcmp(value, "lora") ? 0 : usage("--adapter is lora or dora");
    }
    return set_word(run, key, value);
}

static int read_options(bench_run *run, int count, char **arguments)
{
    const bench_shape *shape = NULL;
    for (int i = 1; i + 1 < count; i++)
        if (!strcmp(arguments[i], "--shape"))
            shape = bench_shape_find(arguments[i + 1]);
    if (!shape)
        return usage("--shape is missing or unknown");
    run->shape = *shape;
    for (int i = 1; i < count; i++) {
        if (strncmp(arguments[i], "--", 2) != 0) {
            if (!strchr(arguments[i], '='))
                return usage("expected key=value");
            run->overrides[run->override_count++] = arguments[i];
            continue;
        }
        if (i + 1 == count)
            return usage("an option has no value");
        const char *key = arguments[i] + 2, *value = arguments[++i];
        if (strcmp(key, "shape") != 0 && set_option(run, key, value))
            return -1;
    }
    if (run->steps + run->warmup > MOST_STEPS)
        return usage("too many steps");
    return 0;
}

/* ---- ranks and files ---- */

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
    }
    if (run->ranks > 1) {
        MPI_Bcast(run->directory, sizeof run->directory, MPI_CHAR, 0, MPI_COMM_WORLD);
        MPI_Bcast(&failed, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    return failed;
}

static void remove_files(const bench_run *run)
{
    static const char *const names[] = {"config.json",   "model.safetensors", "rows.jsonl",
                                        "job.yaml",      "out/metrics.jsonl", "out/job.yaml",
                                        "out/plan.json", "out/matmuls.txt"};
    char path[BENCH_PATH_BYTES];
    if (run->rank != 0 || !run->directory[0])
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", run->directory, names[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/out", run->directory);
    rmdir(path);
    if (rmdir(run->directory) != 0)
        fprintf(stderr, "bench_model: %s was left behind\n", run->directory);
}

/* ---- the run ---- */

static void describe(result *out, const tsr_job *job)
{
    const tsr_decision *d = &job->decision;
    out->dtype = job->inputs.compute;
    out->cuda = job->inputs.cuda;
    out->fp8 = d->model.fp8;
    out->arena_planned = d->memory.total[TSR_PLACE_DEVICE];
    out->host_bytes = d->memory.total[TSR_PLACE_HOST] + d->memory.total[TSR_PLACE_NODE];
    out->resident = d->resident_count;
    out->selective = d->selective_count;
    out->full = d->full_count;
    for (int u = 0; u < job->inputs.layout.unit_count; u++) {
        int uses = u < job->inputs.layout.layer_count ? 2 : 1; /* forward and backward */
        bool sharded = d->home[u] == TSR_HOME_HOST_SHARDED;
        if (!sharded && d->home[u] != TSR_HOME_HOST_FULL)
            continue;
        out->host_units++;
        out->host_traffic += uses * (double)(sharded ? d->units[u].frozen.shard_bytes
                                                     : d->units[u].frozen.gathered_bytes);
    }
    snprintf(out->device, sizeof out->device, "%s", tsr_device_description(job->device));
}

static int run_steps(result *out, const bench_run *run, tsr_job *job)
{
    tsr_job_report report = {0};
    double before = tsr_now(), begin = before;
    for (int64_t step = 0; step < run->warmup + run->steps; step++) {
        if (tsr_job_step(job, &report) != 0)
            return fail("a step");
        double now = tsr_now();
        int64_t timed = step - run->warmup;
        if (timed >= 0) {
            out->step_s[timed] = now - before;
            out->exposed_s[timed] = report.exposed_s;
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
    if (tsr_streams_synchronize(&job->streams) < 0)
        return fail("the last step");
    out->train_s = tsr_now() - begin;
    out->last_loss = report.loss;
    out->grad_norm = report.grad_norm;
    out->tokens = report.input_tokens;
    out->arena_used = tsr_arena_high_water(job->device_arena);
    if (tsr_device_memory(&out->free_last, &out->total, job->device) < 0)
        return fail("device memory");
    return 0;
}

static void on_log(void *user, int severity, const char *line)
{
    (void)user;
    fprintf(stderr, "%s%s\n", severity <= TSR_JOB_WARNING ? "warning: " : "", line);
}

static int train(result *out, const bench_run *run)
{
    char path[BENCH_PATH_BYTES], *summary = NULL;
    snprintf(path, sizeof path, "%s/job.yaml", run->directory);
    tsr_job_options options = {.config_path = path,
                               .overrides = run->overrides,
                               .override_count = run->override_count,
                               .purpose = TSR_JOB_TRAIN,
                               .use_mpi = run->ranks > 1,
                               .log = on_log};
    tsr_job *job;
    double before = tsr_now();
    if (tsr_job_create(&job, &options) < 0)
        return fail("the job");
    job->fill = bench_fill;
    int failed = tsr_job_start(job) < 0 ? fail("the start") : 0;
    out->start_s = tsr_now() - before;
    if (!failed && run->rank == 0 && tsr_job_print_summary(job, &summary) == 0)
        fputs(summary, stderr);
    free(summary);
    if (!failed) {
        describe(out, job);
        failed = run_steps(out, run, job);
    }
    tsr_job_destroy(job);
    return failed;
}

/* ---- the report ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int64_t count)
{
    static double sorted[MOST_STEPS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

static void extremes(double *least, double *most, const double *values, int64_t count)
{
    *least = *most = values[0];
    for (int64_t i = 1; i < count; i++) {
        *least = values[i] < *least ? values[i] : *least;
        *most = values[i] > *most ? values[i] : *most;
    }
}

static json_t *milliseconds(const double *seconds, int64_t count)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(array, json_real(1e3 * seconds[i]));
    return array;
}

static double roof(const json_t *roofs, const char *key)
{
    return json_number_value(json_object_get(roofs, key));
}

typedef struct {
    double bytes, flops, seconds;
} term_sum;

typedef struct {
    tsr_work_rates rates;
    term_sum term[TSR_WORK_TERMS];
    double seconds;
} floor_sum;

static void add_operation(void *user, const tsr_work_op *op)
{
    floor_sum *sum = user;
    double seconds = tsr_work_seconds(&sum->rates, op);
    sum->term[op->term].bytes += op->least.bytes;
    sum->term[op->term].flops += op->least.flops;
    sum->term[op->term].seconds += seconds;
    sum->seconds += seconds;
}

/* The least work of a step of one micro-batch on one rank, every token a label. */
static void sum_floor(floor_sum *sum, const bench_run *run, const result *r)
{
    const bench_shape *s = &run->shape;
    double tokens = (double)(run->batch * run->length), elements = 0, element = 2;
    tsr_work_layer layer = {.element = element,
                            .fp8 = r->fp8,
                            .tokens = tokens,
                            .pairs = tokens * (double)(run->length + 1) / 2};
    tsr_work_set_widths(&layer, (double)s->d, (double)s->f, (double)(s->heads * s->head_dim),
                        (double)(s->kv_heads * s->head_dim));
    for (int i = 0; i < TSR_LINEAR_COUNT; i++) {
        tsr_work_linear *x = &layer.linear[i];
        x->r = (double)run->r;
        x->dora = run->dora;
        x->nf4 = true;
        elements += (double)s->layers * (x->r * (x->in + x->out) + (run->dora ? x->out : 0));
    }
    for (int i = 0; i < s->layers; i++) {
        layer.first = i == 0;
        layer.last = i == s->layers - 1;
        layer.recompute = i < r->full                  ? TSR_RECOMPUTE_FULL
                          : i < r->full + r->selective ? TSR_RECOMPUTE_SELECTIVE
                                                       : TSR_RECOMPUTE_NONE;
        tsr_work_norm(&layer, add_operation, sum);
        tsr_work_forward(&layer, add_operation, sum);
        tsr_work_backward(&layer, add_operation, sum);
    }
    const tsr_work_head head = {tokens, (double)s->d, (double)s->vocabulary, element, true};
    tsr_work_chunk(&head, add_operation, sum);
    tsr_work_update(elements, element, add_operation, sum);
}

static json_t *print_terms(const term_sum *term)
{
    json_t *terms = json_object();
    for (tsr_work_term i = 0; i < TSR_WORK_TERMS; i++) {
        const char *name = tsr_work_term_name(i);
        if (term[i].seconds <= 0)
            continue;
        fprintf(stderr, "  %-20s %9.2f GB %10.1f GFLOP %9.3f ms\n", name, 1e-9 * term[i].bytes,
                1e-9 * term[i].flops, 1e3 * term[i].seconds);
        json_object_set_new(terms, name, json_real(1e3 * term[i].seconds));
    }
    return terms;
}

/* Adds the floor and what the step is of it. */
static int add_floor(json_t *all, const bench_run *run, const result *r, double step_s)
{
    json_error_t error;
    json_t *roofs = json_load_file(run->roofs, 0, &error);
    double forward = 0, backward = 0;
    if (!roofs || roof(roofs, "gemm_tflop_s") <= 0 || roof(roofs, "copy_gb_s") <= 0 ||
        (r->fp8 && roof(roofs, "fp8_gemm_tflop_s") <= 0)) {
        fprintf(stderr, "bench_model: %s: %s\n", run->roofs, roofs ? "no roofs" : error.text);
        json_decref(roofs);
        return -1;
    }
    if (bench_attention_roof(&forward, &backward, run, r->dtype) < 0) {
        json_decref(roofs);
        return fail("attention's roof");
    }
    floor_sum sum = {.rates = {.matmul = 1e12 * roof(roofs, "gemm_tflop_s"),
                               .copy = 1e9 * roof(roofs, "copy_gb_s"),
                               .attention_forward = forward,
                               .attention_backward = backward,
                               .matmul_fp8 = 1e12 * roof(roofs, "fp8_gemm_tflop_s")}};
    sum_floor(&sum, run, r);
    double floor = sum.seconds, h2d = 1e9 * roof(roofs, "h2d_gb_s");
    double copy_s = h2d > 0 ? r->host_traffic / h2d : 0, bound = copy_s > floor ? copy_s : floor;
    json_t *terms = print_terms(sum.term);
    json_object_set_new(
        all, "floor",
        json_pack("{sf sf sf sf sf sf sf sf so}", "floor_ms", 1e3 * floor, "gemm_tflop_s",
                  roof(roofs, "gemm_tflop_s"), "fp8_gemm_tflop_s", roof(roofs, "fp8_gemm_tflop_s"),
                  "copy_gb_s", roof(roofs, "copy_gb_s"), "attention_forward_tflop_s",
                  1e-12 * forward, "attention_backward_tflop_s", 1e-12 * backward, "h2d_gb_s",
                  1e-9 * h2d, "h2d_ms", 1e3 * copy_s, "terms_ms", terms));
    json_object_set_new(all, "sol", json_real(floor / step_s));
    json_object_set_new(all, "of_bound", json_real(step_s / bound));
    fprintf(stderr, "  floor %.2f ms, host to device %.2f ms: SOL %.3f, step / bound %.3f\n",
            1e3 * floor, 1e3 * copy_s, floor / step_s, step_s / bound);
    json_decref(roofs);
    return 0;
}

static json_t *describe_run(const bench_run *run, const result *r)
{
    json_t *overrides = json_array();
    for (int i = 0; i < run->override_count; i++)
        json_array_append_new(overrides, json_string(run->overrides[i]));
    return json_pack("{ss ss ss ss ss si sI sI sI ss sI ss ss ss ss so sI sI}", "bench", "model",
                     "version", tsr_usage_version(), "commit", tsr_usage_commit(), "device",
                     r->device, "shape", run->shape.name, "ranks", run->ranks, "layers",
                     (json_int_t)run->shape.layers, "batch", (json_int_t)run->batch, "length",
                     (json_int_t)run->length, "adapter", run->dora ? "dora" : "lora", "r",
                     (json_int_t)run->r, "recompute", run->recompute, "offload", run->offload,
                     "dtype", tsr_dtype_name(r->dtype), "memory_budget", run->memory_budget,
                     "overrides", overrides, "steps", (json_int_t)run->steps, "warmup",
                     (json_int_t)run->warmup);
}

static void add_memory(json_t *all, const result *r)
{
    json_object_set_new(
        all, "memory",
        json_pack("{sI sI sb sI sI sI sI sI}", "arena_planned_bytes", (json_int_t)r->arena_planned,
                  "arena_used_bytes", (json_int_t)r->arena_used, "as_planned",
                  r->arena_planned == r->arena_used, "card_used_bytes",
                  (json_int_t)(r->total - r->free_last), "free_after_step_1_bytes",
                  (json_int_t)r->free_first, "free_at_end_bytes", (json_int_t)r->free_last,
                  "most_change_of_free_bytes", (json_int_t)r->most_change, "host_bytes",
                  (json_int_t)r->host_bytes));
    json_object_set_new(all, "plan",
                        json_pack("{si si si si sf}", "resident_units", r->resident,
                                  "selective_layers", r->selective, "full_layers", r->full,
                                  "host_units", r->host_units, "host_to_device_bytes",
                                  r->host_traffic));
}

static int report(const bench_run *run, const result *r)
{
    double least, most, step_s = median(r->step_s, run->steps);
    double per_second = (double)r->tokens / step_s;
    extremes(&least, &most, r->step_s, run->steps);
    json_t *all = describe_run(run, r);
    json_object_update_new(
        all, json_pack("{sf sf sf sf sf sf sf so sf sf sf sI sf}", "step_ms", 1e3 * step_s,
                       "step_ms_min", 1e3 * least, "step_ms_max", 1e3 * most, "step_ms_mean",
                       1e3 * r->train_s / (double)run->steps, "tokens_per_s", per_second,
                       "tokens_per_s_per_rank", per_second / run->ranks, "exposed_ms",
                       1e3 * median(r->exposed_s, run->steps), "steps_ms",
                       milliseconds(r->step_s, run->steps), "first_loss", r->first_loss,
                       "last_loss", r->last_loss, "grad_norm", r->grad_norm, "skipped",
                       (json_int_t)r->skipped, "start_s", r->start_s));
    add_memory(all, r);
    fprintf(stderr,
            "%s, %lld layers, %lld x %lld, %s r%lld, recompute %s, offload %s, %d rank%s\n"
            "  step %.2f ms (%.2f to %.2f), %.0f tokens/s a rank, exposed %.2f ms, start %.1f s\n"
            "  arena %.2f GiB used of %.2f planned, card %.2f GiB, free memory changed by %lld "
            "bytes, loss %.4f to %.4f\n",
            run->shape.name, (long long)run->shape.layers, (long long)run->batch,
            (long long)run->length, run->dora ? "dora" : "lora", (long long)run->r, run->recompute,
            run->offload, run->ranks, run->ranks == 1 ? "" : "s", 1e3 * step_s, 1e3 * least,
            1e3 * most, per_second / run->ranks, 1e3 * median(r->exposed_s, run->steps), r->start_s,
            GIB * (double)r->arena_used, GIB * (double)r->arena_planned,
            GIB * (double)(r->total - r->free_last), (long long)r->most_change, r->first_loss,
            r->last_loss);
    int failed = run->roofs && r->cuda ? add_floor(all, run, r, step_s) : 0;
    char *line = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(7));
    puts(line);
    free(line);
    json_decref(all);
    return failed;
}

int main(int count, char **arguments)
{
    static result r;
    bench_run run = {.batch = 4,
                     .length = 2048,
                     .r = 16,
                     .steps = 8,
                     .warmup = 3,
                     .recompute = "none",
                     .offload = "none",
                     .dtype = "auto",
                     .backend = "auto",
                     .memory_budget = "auto",
                     .resident = "0"};
    run.overrides = calloc((size_t)count, sizeof *run.overrides);
    if (!run.overrides || read_options(&run, count, arguments))
        return 64;
    bench_meet(&run.rank, &run.ranks);
    int failed = make_files(&run);
    if (!failed)
        failed = train(&r, &run);
    int64_t change = (int64_t)r.free_first - (int64_t)r.free_last;
    r.most_change = change < 0 ? -change : change;
    if (run.ranks > 1 && !failed)
        MPI_Allreduce(MPI_IN_PLACE, &r.most_change, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
    if (!failed && run.rank == 0)
        failed = report(&run, &r);
    remove_files(&run);
    if (run.ranks > 1 && !failed)
        MPI_Finalize();
    free(run.overrides);
    return failed ? 1 : 0;
}
