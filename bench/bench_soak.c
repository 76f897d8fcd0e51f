/*
 * bench_soak.c: a training of micro-batches of many lengths, twice: it comes to its end in the memory that
 * was planned, and gives the same bits.
 *
 *     bench_soak output_dir=DIR [--steps 500] [key=value ...]
 *
 * DoRA on an NF4 base: examples/tiny-llama on GSM8K, not packed, so that each micro-batch has its own
 * length; two or more of them a step on each rank of at most two. Both runs are jobs of this process, one
 * after the other. It ends with 1, and says why, unless on every rank
 *     - every loss and gradient norm of the second run, and its adapter file, are the first's;
 *     - the arena's high water is what was planned;
 *     - free device memory at the end is what it was after step 1 (a GPU's; the CPU has no such figure);
 *     - no more slots than planned lived at once (counted on the CPU; a GPU's arena has room for no more).
 * Rank 0 prints one line of JSON. "bits" in it is a hash of all losses, norms and the adapter: the same
 * for any number of ranks, wherever units, activations and the optimizer's state live.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "base/version.h"
#include "job/parts.h"
#include "ranks.h"

#include <jansson.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUNS       2
#define MOST_STEPS 100000

static const char config[] = "model_name_or_path: " TSR_SOURCE_DIR "/examples/tiny-llama\n"
                             "dataset: " TSR_SOURCE_DIR "/examples/data/gsm8k_train.jsonl\n"
                             "load_in_4bit: true\nmax_length: 1024\nassistant_only_loss: true\n"
                             "use_dora: true\nlora_r: 8\nlearning_rate: 2e-3\nresident_units: 0\n"
                             "per_device_train_batch_size: 2\ntotal_batch_size: 8\n"
                             "overwrite_output_dir: true\n";

typedef struct {
    double loss, grad_norm;
} figures;

/* What one run left on this rank. */
typedef struct {
    figures *step; /* [steps] */
    uint64_t adapter, planned, used, free_first, free_last;
    int64_t skipped;
    int slots, live; /* live: at most; 0 on a GPU, where they are not watched */
    double seconds;  /* of its steps */
} soak_run;

/* The same in all runs. */
typedef struct {
    int rank, ranks, override_count;
    int64_t steps;
    const char **overrides;
    char device[256], steps_key[32];
    tsr_dtype dtype;
    int64_t micro_batches, lengths, shortest, longest, shapes;
    soak_run run[RUNS];
} soak;

static int fail(const char *what)
{
    if (tsr_job_reports())
        fprintf(stderr, "bench_soak: %s: %s\n", what, tsr_last_error());
    return -1;
}

/* ---- a run ---- */

static int run_steps(soak_run *out, int64_t steps, tsr_job *job)
{
    uint64_t total;
    double begin = tsr_now();
    for (int64_t i = 0; i < steps; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        if (tsr_job_step(job, &report) != 0)
            return fail("a step");
        out->step[i] = (figures){report.loss, report.grad_norm};
        out->skipped = report.skipped_steps;
        if (i == 0 && tsr_device_memory(&out->free_first, &total, job->device) < 0)
            return fail("device memory");
    }
    if (tsr_streams_synchronize(&job->streams) < 0 ||
        tsr_device_memory(&out->free_last, &total, job->device) < 0)
        return fail("the last step");
    out->seconds = tsr_now() - begin;
    out->planned = job->decision.memory.total[TSR_PLACE_DEVICE];
    out->used = tsr_arena_high_water(job->device_arena);
    out->slots = (int)job->inputs.config.slots;
    tsr_executor_live_slots(job->executor, &out->live);
    return 0;
}

/* The micro-batches of all ranks, walked through once more. */
static tsr_status count_lengths(soak *out, tsr_job *job)
{
    tsr_batch *batch = job->inputs.batch;
    const tsr_batch_run *run = tsr_batch_run_of(batch);
    bool *seen = calloc((size_t)run->most_tokens + 1, sizeof *seen);
    tsr_micro_batch micro;
    if (!seen)
        return tsr_fail(TSR_ENOMEM, "no memory for %d lengths", run->most_tokens);
    tsr_status status = tsr_micro_batch_create(&micro, run);
    for (int64_t step = 0; step < out->steps && status == TSR_OK; step++) {
        tsr_batch_step_info info = {0};
        status = tsr_batch_step(batch, step, &info);
        for (int64_t i = 0; i < info.micro_count && status == TSR_OK; i++) {
            status = tsr_batch_fill(&micro, batch, step, i);
            seen[micro.token_count] = true;
            out->micro_batches++;
        }
    }
    for (int32_t i = 1; i <= run->most_tokens; i++)
        if (seen[i]) {
            out->shortest = out->lengths++ ? out->shortest : i;
            out->longest = i;
        }
    out->shapes = run->bucket_count;
    tsr_micro_batch_free(&micro);
    free(seen);
    return status;
}

/* A hash of the file that rank 0 wrote. */
static int hash_adapter(uint64_t *hash, const tsr_job *job)
{
    char path[PATH_MAX], block[65536];
    size_t bytes;
    tsr_folder_show(path, job->output, TSR_PEFT_WEIGHTS_FILE);
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "bench_soak: %s cannot be read\n", path);
        return -1;
    }
    *hash = TSR_HASH_START;
    while ((bytes = fread(block, 1, sizeof block, file)) > 0)
        *hash = tsr_hash(*hash, block, bytes);
    fclose(file);
    return 0;
}

static void on_log(void *user, int severity, const char *line)
{
    (void)user;
    if (severity <= TSR_JOB_WARNING)
        fprintf(stderr, "%s\n", line);
}

static int train(soak *all, int index)
{
    soak_run *out = &all->run[index];
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .config_text = config,
                               .overrides = all->overrides,
                               .override_count = all->override_count,
                               .purpose = TSR_JOB_TRAIN,
                               .use_mpi = all->ranks > 1,
                               .log = on_log};
    tsr_job *job;
    if (tsr_job_create(&job, &options) < 0)
        return fail("the job");
    int failed = tsr_job_start(job) < 0 ? fail("the start") : 0;
    if (!failed)
        failed = run_steps(out, all->steps, job);
    if (!failed && tsr_job_save(job) < 0)
        failed = fail("the adapter");
    if (!failed && all->rank == 0)
        failed = hash_adapter(&out->adapter, job);
    if (!failed && index == 0 && count_lengths(all, job) < 0)
        failed = fail("the micro-batches");
    all->dtype = job->inputs.compute;
    if (!failed)
        snprintf(all->device, sizeof all->device, "%s", tsr_device_description(job->device));
    tsr_job_destroy(job);
    return failed;
}

/* ---- the verdict ---- */

/* Of this rank, or after together() of the worst. */
typedef struct {
    int64_t other_steps, other_adapter, unplanned, changed_free, too_many_slots;
} verdict;

static verdict judge(const soak *all)
{
    const soak_run *a = &all->run[0], *b = &all->run[1];
    verdict v = {.other_adapter = a->adapter != b->adapter};
    for (int64_t i = 0; i < all->steps; i++)
        v.other_steps += memcmp(&a->step[i], &b->step[i], sizeof a->step[i]) != 0;
    for (int i = 0; i < RUNS; i++) {
        const soak_run *r = &all->run[i];
        int64_t change = llabs((int64_t)(r->free_first - r->free_last));
        v.unplanned |= r->used != r->planned;
        v.changed_free = change > v.changed_free ? change : v.changed_free;
        v.too_many_slots |= r->live > r->slots;
    }
    return v;
}

static void together(verdict *v, int ranks)
{
    _Static_assert(sizeof *v == 5 * sizeof(int64_t), "all of them are reduced");
    if (ranks > 1)
        MPI_Allreduce(MPI_IN_PLACE, v, 5, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
}

static bool passes(const verdict *v)
{
    return !v->other_steps && !v->other_adapter && !v->unplanned && !v->changed_free &&
           !v->too_many_slots;
}

static json_t *describe_memory(const soak_run *r, const verdict *v)
{
    return json_pack("{sI sI sb sI sI sI si si sb}", "arena_planned_bytes", (json_int_t)r->planned,
                     "arena_used_bytes", (json_int_t)r->used, "as_planned", !v->unplanned,
                     "free_after_step_1_bytes", (json_int_t)r->free_first, "free_at_end_bytes",
                     (json_int_t)r->free_last, "most_change_of_free_bytes",
                     (json_int_t)v->changed_free, "slots", r->slots, "live_slots", r->live,
                     "slots_as_planned", !v->too_many_slots);
}

static void report(const soak *all, const verdict *v)
{
    const soak_run *r = &all->run[0];
    char bits[17];
    json_t *overrides = json_array();
    uint64_t hash = tsr_hash(r->adapter, r->step, (uint64_t)all->steps * sizeof *r->step);
    snprintf(bits, sizeof bits, "%016llx", (unsigned long long)hash);
    for (int i = 0; i < all->override_count; i++)
        json_array_append_new(overrides, json_string(all->overrides[i]));
    json_t *line =
        json_pack("{ss ss ss ss si ss so sI sI sI sI sI sI}", "bench", "soak", "version",
                  tsr_build_version(), "commit", tsr_build_commit(), "device", all->device, "ranks",
                  all->ranks, "dtype", tsr_dtype_name(all->dtype), "overrides", overrides, "steps",
                  (json_int_t)all->steps, "micro_batches", (json_int_t)all->micro_batches,
                  "lengths", (json_int_t)all->lengths, "shortest", (json_int_t)all->shortest,
                  "longest", (json_int_t)all->longest, "shapes", (json_int_t)all->shapes);
    json_object_update_new(
        line,
        json_pack("{sf sf sI s[ff] sI sb ss so}", "first_loss", r->step[0].loss, "last_loss",
                  r->step[all->steps - 1].loss, "skipped", (json_int_t)r->skipped, "seconds",
                  r->seconds, all->run[1].seconds, "steps_that_differ", (json_int_t)v->other_steps,
                  "same_bits", !v->other_steps && !v->other_adapter, "bits", bits, "memory",
                  describe_memory(r, v)));
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9));
    puts(text);
    fprintf(stderr,
            "soak, %d rank%s, %lld steps of %lld lengths (%lld to %lld tokens, %lld shapes), %.1f "
            "and %.1f s, loss %.3f to %.3f\n  %lld steps and %s adapter differ; arena %s; free "
            "memory changed by %lld bytes; bits %s\n",
            all->ranks, all->ranks == 1 ? "" : "s", (long long)all->steps, (long long)all->lengths,
            (long long)all->shortest, (long long)all->longest, (long long)all->shapes, r->seconds,
            all->run[1].seconds, r->step[0].loss, r->step[all->steps - 1].loss,
            (long long)v->other_steps, v->other_adapter ? "the" : "no",
            v->unplanned ? "NOT as planned" : "as planned", (long long)v->changed_free, bits);
    free(text);
    json_decref(line);
}

/* ---- the program ---- */

static int usage(void)
{
    fprintf(stderr, "usage: bench_soak output_dir=DIR [--steps N] [key=value ...]\n");
    return 64;
}

static int read_options(soak *all, int count, char **arguments)
{
    bool output = false;
    for (int i = 1; i < count; i++) {
        if (!strcmp(arguments[i], "--steps") && i + 1 < count) {
            all->steps = atoll(arguments[++i]);
            continue;
        }
        output |= !strncmp(arguments[i], "output_dir=", strlen("output_dir="));
        if (!strchr(arguments[i], '='))
            return -1;
        all->overrides[all->override_count++] = arguments[i];
    }
    if (!output || all->steps < 2 || all->steps > MOST_STEPS)
        return -1;
    snprintf(all->steps_key, sizeof all->steps_key, "max_steps=%lld", (long long)all->steps);
    all->overrides[all->override_count++] = all->steps_key;
    for (int i = 0; i < RUNS; i++)
        all->run[i].step = calloc((size_t)all->steps, sizeof(figures));
    return all->run[0].step && all->run[1].step ? 0 : -1;
}

int main(int count, char **arguments)
{
    soak all = {.steps = 500};
    all.overrides = calloc((size_t)count + 1, sizeof *all.overrides);
    if (!all.overrides || read_options(&all, count, arguments) < 0)
        return usage();
    bench_meet(&all.rank, &all.ranks);
    int failed = 0;
    for (int i = 0; i < RUNS && !failed; i++)
        failed = train(&all, i);
    if (failed) /* the other ranks know as much: nobody is waited for */
        return 1;
    verdict v = judge(&all);
    together(&v, all.ranks);
    if (all.rank == 0)
        report(&all, &v);
    if (all.ranks > 1)
        MPI_Finalize();
    for (int i = 0; i < RUNS; i++)
        free(all.run[i].step);
    free(all.overrides);
    return !passes(&v);
}
