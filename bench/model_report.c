/*
 * model_report.c: what a run of bench_model gave, as JSON and in words.
 */
#include "base/version.h"
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1.0 / (1 << 30))

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int64_t count)
{
    static double sorted[BENCH_MOST_STEPS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

static double mean(const double *values, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += values[i];
    return sum / (double)count;
}

/* What a step takes: in the median; with mixing in the mean. */
static double typical(const bench_run *run, const bench_result *r, const double *values)
{
    return r->mixing.steps ? mean(values, r->mixing.steps) : median(values, run->steps);
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

static json_t *describe_run(const bench_run *run)
{
    json_t *overrides = json_array();
    for (int i = 0; i < run->override_count; i++)
        json_array_append_new(overrides, json_string(run->overrides[i]));
    json_t *all = json_pack(
        "{ss ss ss ss* ss si sI sI sI ss sI ss ss ss so sI sI}", "bench", "model", "version",
        tsr_build_version(), "commit", tsr_build_commit(), "line", run->line, "shape",
        run->shape.name, "ranks", run->ranks, "layers", (json_int_t)run->shape.layers, "batch",
        (json_int_t)run->batch, "length", (json_int_t)run->length, "adapter",
        run->dora ? "dora" : "lora", "r", (json_int_t)run->r, "recompute", run->recompute,
        "offload", run->offload, "memory_budget", run->memory_budget, "overrides", overrides,
        "steps", (json_int_t)run->steps, "warmup", (json_int_t)run->warmup);
    json_object_update_new(all, json_pack("{ss ss* si}", "resident", run->resident, "documents",
                                          run->documents, "rows", (int)run->row_count));
    if (run->adapters > 1)
        json_object_set_new(all, "adapters", json_integer(run->adapters));
    if (run->pairs)
        json_object_set_new(all, "pairs", json_true());
    if (run->longest)
        json_object_set_new(all, "longest", json_integer(run->longest));
    return all;
}

static void put_line(json_t *all)
{
    char *line = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(7));
    puts(line ? line : "{}");
    fflush(stdout); /* a program that is stopped has told of the runs before */
    free(line);
    json_decref(all);
}

void bench_report_failure(const bench_run *run)
{
    json_t *all = describe_run(run);
    json_object_set_new(all, "failed", json_string(tsr_last_error()));
    fprintf(stderr, "%s: FAILED\n", run->line ? run->line : run->shape.name);
    put_line(all);
}

/* Marks a line whose figures are means. */
static void add_mixing(json_t *all, const bench_run *run, const bench_result *r)
{
    if (!r->mixing.steps)
        return;
    json_object_set_new(all, "mixing",
                        json_pack("{ss sI sI sf sf}", "figures", "means of whole rounds of steps",
                                  "steps", (json_int_t)r->mixing.steps, "capacity",
                                  (json_int_t)r->mixing.capacity, "fill", r->mixing.fill,
                                  "micro_batches_a_step", bench_micro_batches(run, r)));
    fprintf(stderr,
            "mixed micro-batches of at most %lld tokens, %.1f %% full, %.3f a step of a rank; "
            "figures are means of %lld steps\n",
            (long long)r->mixing.capacity, 100 * r->mixing.fill, bench_micro_batches(run, r),
            (long long)r->mixing.steps);
}

static void add_memory(json_t *all, const bench_result *r)
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
                        json_pack("{si sI si si si si si si sf}", "units", r->units, "slot_bytes",
                                  (json_int_t)r->slot_bytes, "resident_units", r->resident,
                                  "decoded_layers", r->decoded, "selective_layers", r->selective,
                                  "full_layers", r->full, "offloaded_layers", r->offloaded,
                                  "host_units", r->host_units, "host_to_device_bytes",
                                  r->host_traffic));
}

static double figure(const json_t *all, const char *key)
{
    return json_number_value(json_object_get(all, key));
}

static void tell(const bench_run *run, const bench_result *r, const json_t *all)
{
    fprintf(stderr, "%s, %lld layers, %lld x %lld", run->shape.name, (long long)run->shape.layers,
            (long long)run->batch, (long long)run->length);
    if (run->documents)
        fprintf(stderr, " in %lld documents", (long long)run->row_count);
    fprintf(stderr, ", %s r%lld, recompute %s, offload %s, %d rank%s", run->dora ? "dora" : "lora",
            (long long)run->r, run->recompute, run->offload, run->ranks,
            run->ranks == 1 ? "" : "s");
    for (int i = 0; i < run->override_count; i++)
        fprintf(stderr, ", %s", run->overrides[i]);
    fprintf(stderr,
            "\n  step %.2f ms (%.2f to %.2f), %.0f tokens/s a rank, exposed %.2f ms, issued in "
            "%.2f ms, start %.1f s\n",
            figure(all, "step_ms"), figure(all, "step_ms_min"), figure(all, "step_ms_max"),
            figure(all, "tokens_per_s_per_rank"), figure(all, "exposed_ms"),
            figure(all, "issue_ms"), r->start_s);
    fprintf(stderr,
            "  arena %.2f GiB used of %.2f planned, card %.2f GiB, free memory changed by %lld "
            "bytes, loss %.4f to %.4f\n",
            GIB * (double)r->arena_used, GIB * (double)r->arena_planned,
            GIB * (double)(r->total - r->free_last), (long long)r->most_change, r->first_loss,
            r->last_loss);
}

static void tell_timeline(const json_t *timeline)
{
    const json_t *rows = json_object_get(timeline, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        fprintf(stderr, "  %-8s %-20s %7.1f x %9.3f ms\n",
                json_string_value(json_object_get(row, "kind")),
                json_string_value(json_object_get(row, "name")), figure(row, "times"),
                figure(row, "ms"));
    }
    if (timeline)
        fprintf(stderr, "  traced step %.3f ms, its kernels %.3f ms\n",
                figure(timeline, "traced_step_ms"), figure(timeline, "kernels_ms"));
}

int bench_report(const bench_run *run, const bench_result *r)
{
    double least, most, step_s = typical(run, r, r->step_s);
    double per_second = (double)r->tokens / step_s;
    extremes(&least, &most, r->step_s, run->steps);
    double issue_ms = 1e3 * typical(run, r, r->issue_s);
    json_t *all = describe_run(run);
    if (r->int8)
        json_object_set_new(all, "int8", json_true());
    json_object_update_new(
        all,
        json_pack("{ss ss sb sf sf sf sf sf sf sf sf sf so sf sf sf sI sf sO*}", "device",
                  r->device, "dtype", tsr_dtype_name(r->dtype), "nf4", r->nf4, "dropout",
                  r->dropout, "step_ms", 1e3 * step_s, "step_ms_min", 1e3 * least, "step_ms_max",
                  1e3 * most, "step_ms_mean", 1e3 * r->train_s / (double)run->steps, "issue_ms",
                  issue_ms, "tokens_per_s", per_second, "tokens_per_s_per_rank",
                  per_second / run->ranks, "exposed_ms", 1e3 * typical(run, r, r->exposed_s),
                  "steps_ms", milliseconds(r->step_s, run->steps), "first_loss", r->first_loss,
                  "last_loss", r->last_loss, "grad_norm", r->grad_norm, "skipped",
                  (json_int_t)r->skipped, "start_s", r->start_s, "timeline", r->timeline));
    add_mixing(all, run, r);
    add_memory(all, r);
    tell(run, r, all);
    tell_timeline(r->timeline);
    int failed = run->roofs && r->cuda ? bench_floor_add(all, run, r, step_s) : 0;
    put_line(all);
    return failed || bench_longest_check(run, r) ? -1 : 0;
}
