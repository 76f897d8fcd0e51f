/*
 * bench_model.c: training steps of a model's shape, without its weights.
 *
 *     bench_model --shape llama3-8b --layers 8 --batch 4 --length 2048 --adapter dora --rank 384
 *                 [--documents 64:1500 | --longest 1] [--recompute none|selective|full|auto]
 *                 [--offload none|sharded|full|auto] [--dtype D] [--backend B]
 *                 [--memory-budget 24GiB] [--resident 0|N|auto] [--steps 8] [--warmup 3] [--timeline]
 *                 [--roofs roofs.json] [--scratch DIR] [--runs FILE] [key=value ...]
 *
 * The job is the program's own: the same reader of job.yaml, the same plan, executor and kernels; only
 * the weights are made up (model.h). key=value goes to the configuration. Under mpirun every rank
 * trains BATCH x LENGTH tokens and rank 0 reports: one line of JSON on stdout, a summary on stderr.
 * With --pairs two rows at a time are a pair that DPO is trained on: as many tokens, and all but two of them labels, as without.
 * With --adapters so many of them on one base step in turns, and a step is one adapter's. With adapter_mixing=tokens one of
 * these does the work of several: then figures are means over whole rounds of adapters, the warm-up is whole rounds, and the
 * floor is that of a step's part of the micro-batches that are shared.
 * With --documents the BATCH x LENGTH tokens of a micro-batch are documents of such lengths.
 * With --longest N a micro-batch is one row, of an Nth of the tokens that plan names as the longest for this very job, as if
 * the model had the positions. It fails if it does not take just the memory of its plan, or takes more than the budget. No
 * floor is told: attention alone, time and again over such rows, takes minutes.
 *
 * --runs: each line of FILE that is not empty and no comment (#) is a run, with the options of the
 * line after those of the command line; all in this process, one after the other, which saves what
 * only the first one pays: libraries, random weights, roofs of attention. One that fails does not keep
 * the others from running (on several ranks it does), but the program ends with 1.
 *
 * A step is timed by the clock of the host between the returns of tsr_job_step, which are one step
 * apart; issue_ms is what of it the host spends on giving it to the streams, with its waits where their
 * queues are full (a thousand works or so). With --roofs the floor is
 * told term by term (the least work of model/work.h at these roofs, each operation the longer of its
 * bytes and its FLOPs), and SOL = floor / median; attention's roof is measured in the same process
 * afterwards. With --timeline the first six steps are traced (job/trace.h), and it is told what the
 * time between two of them is spent on (model_timeline.c); the timed steps are not traced.
 */
#include "job/trace.h"
#include "model.h"
#include "planner/decide.h"
#include "ranks.h"

#include <ctype.h>
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LINE_OPTIONS 128

/* ---- the command line ---- */

static int usage(const char *what)
{
    fprintf(stderr,
            "bench_model: %s\nusage: bench_model --shape S [--layers N] [--batch B] [--length L] "
            "[--documents LEAST:MOST] [--longest N]\n  [--adapter lora|dora] [--rank R] "
            "[--recompute none|selective|full|auto]\n  [--offload none|sharded|full|auto] "
            "[--dtype D] [--backend B] [--memory-budget BYTES]\n  [--resident 0|N|auto] [--steps "
            "N] [--warmup N] [--timeline] [--pairs] [--adapters N] [--roofs FILE] [--scratch "
            "DIR]\n  [--runs FILE] "
            "[key=value ...]\n  shapes: %s\n",
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
                 {"scratch", &run->scratch},     {"resident", &run->resident},
                 {"documents", &run->documents}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(key, words[i].key)) {
            *words[i].field = value;
            return 0;
        }
    return usage("unknown option");
}

static int set_shape(bench_run *run, const char *value)
{
    const bench_shape *shape = bench_shape_find(value);
    if (!shape)
        return usage("--shape is unknown");
    run->shape = *shape;
    return 0;
}

static int set_option(bench_run *run, const char *key, const char *value)
{
    const struct {
        const char *key;
        int64_t *field;
        int64_t least;
    } numbers[] = {{"layers", &run->layers, 1},     {"batch", &run->batch, 1},
                   {"length", &run->length, 2},     {"rank", &run->r, 1},
                   {"steps", &run->steps, 1},       {"warmup", &run->warmup, 0},
                   {"adapters", &run->adapters, 1}, {"longest", &run->part, 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key)) {
            *numbers[i].field = atoll(value);
            return *numbers[i].field < numbers[i].least ? usage("a number is too small") : 0;
        }
    if (!strcmp(key, "shape"))
        return set_shape(run, value);
    if (!strcmp(key, "adapter")) {
        run->dora = !strcmp(value, "dora");
        return run->dora || !strcmp(value, "lora") ? 0 : usage("--adapter is lora or dora");
    }
    return set_word(run, key, value);
}

/* run->overrides has room for all arguments. `runs`: the value of --runs; NULL where there cannot be one. */
static int read_options(bench_run *run, const char **runs, int count, char **arguments)
{
    for (int i = 0; i < count; i++) {
        if (strncmp(arguments[i], "--", 2) != 0) {
            if (!strchr(arguments[i], '='))
                return usage("expected key=value");
            run->overrides[run->override_count++] = arguments[i];
            continue;
        }
        const char *key = arguments[i] + 2;
        if (!strcmp(key, "pairs")) {
            run->pairs = true;
            continue;
        }
        if (!strcmp(key, "timeline")) {
            run->timeline = true;
            continue;
        }
        if (i + 1 == count)
            return usage("an option has no value");
        const char *value = arguments[++i];
        if (runs && !strcmp(key, "runs"))
            *runs = value;
        else if (set_option(run, key, value))
            return -1;
    }
    return 0;
}

/* One row, or one pair, whose length is not known yet. */
static int settle_longest(bench_run *run)
{
    if (run->documents || run->adapters > 1)
        return usage("--longest is for one row and one adapter");
    run->batch = run->pairs ? 2 : 1;
    run->shape.positions = TSR_MOST_TOKENS;
    run->roofs = NULL;
    return 0;
}

/* What the options come to. */
static int settle(bench_run *run)
{
    if (!run->shape.name)
        return usage("--shape is missing");
    if (run->layers)
        run->shape.layers = run->layers;
    if (run->part && settle_longest(run))
        return -1;
    if (run->pairs && run->batch % 2)
        return usage("--pairs needs an even --batch");
    if (run->timeline && run->warmup < TSR_TRACE_LAST)
        run->warmup = TSR_TRACE_LAST;
    if (run->adapters > BENCH_MOST_ADAPTERS || (run->adapters > 1 && run->timeline))
        return usage("too many --adapters, or several with --timeline");
    if (run->adapters > 1) {
        run->warmup = (run->warmup + run->adapters - 1) / run->adapters * run->adapters;
        if (run->steps < run->adapters)
            return usage("--steps is less than --adapters");
    }
    if (run->shape.layers > BENCH_MOST_LAYERS)
        return usage("too many layers");
    if (run->steps + run->warmup > BENCH_MOST_STEPS)
        return usage("too many steps");
    return bench_rows_make(run);
}

/* ---- runs ---- */

static int run_one(bench_run *run)
{
    static bench_result r;
    memset(&r, 0, sizeof r);
    int failed = bench_run_steps(&r, run);
    if (run->rank == 0 && !failed)
        failed = bench_report(run, &r);
    else if (run->rank == 0)
        bench_report_failure(run);
    json_decref(r.timeline);
    return failed;
}

/* A line's words, in its place. */
static int split(char **words, char *line)
{
    int count = 0;
    for (char *word = strtok(line, " \t"); word; word = strtok(NULL, " \t")) {
        if (count == MOST_LINE_OPTIONS)
            return usage("a line of --runs is too long");
        words[count++] = word;
    }
    return count;
}

/* A run of `common` and the options of `line`. */
static int run_line(const bench_run *common, char *line)
{
    char *words[MOST_LINE_OPTIONS];
    bench_run run = *common;
    char *text = strdup(line);
    int count = split(words, line);
    int room = run.override_count + MOST_LINE_OPTIONS, failed = -1;
    run.line = text;
    run.overrides = calloc((size_t)room, sizeof *run.overrides);
    if (text && run.overrides && count >= 0) {
        for (int i = 0; i < run.override_count; i++)
            run.overrides[i] = common->overrides[i];
        if (!read_options(&run, NULL, count, words) && !settle(&run))
            failed = run_one(&run);
    }
    free(run.overrides);
    free(text);
    return failed;
}

static int run_file(const bench_run *common, const char *path)
{
    char line[BENCH_PATH_BYTES];
    int failed = 0;
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "bench_model: %s: %s\n", path, strerror(errno));
        return -1;
    }
    while ((!failed || common->ranks == 1) && fgets(line, sizeof line, file)) {
        line[strcspn(line, "#\n")] = 0;
        const char *first = line;
        while (isspace((unsigned char)*first))
            first++;
        if (*first && run_line(common, line))
            failed = -1;
    }
    fclose(file);
    return failed;
}

int main(int count, char **arguments)
{
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
    const char *runs = NULL;
    run.overrides = calloc((size_t)count, sizeof *run.overrides);
    if (!run.overrides || read_options(&run, &runs, count - 1, arguments + 1) ||
        (!runs && settle(&run)))
        return 64;
    bench_meet(&run.rank, &run.ranks);
    int failed = runs ? run_file(&run, runs) : run_one(&run);
    if (run.ranks > 1 && !failed)
        MPI_Finalize();
    free(run.overrides);
    return failed ? 1 : 0;
}
