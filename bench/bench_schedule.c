/*
 * bench_schedule.c: how many micro-batches rows of four adapters take, packed greedily and by the solver
 * (src/data/adapter_schedule.h), and how long that takes, on three lists of lengths that are always the same.
 *
 *     bench_schedule [STEPS]     JSON on stdout, a table on stderr; of 100 steps of 32 rows each without STEPS
 *
 * short: 40 to 400 tokens, evenly. mixed: each adapter has lengths of its own, up to 2048. long: most rows are short, and a
 * few fill a micro-batch. The capacity is 8192 tokens. `least`: what the tokens of each window would take if rows could be cut.
 */
#include "base/clock.h"
#include "base/philox.h"
#include "base/version.h"
#include "data/adapter_schedule.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ADAPTERS 4
#define ROWS     32 /* of a step */
#define CAPACITY 8192

static double uniform(uint64_t *state)
{
    return (double)(tsr_mix((*state)++) >> 11) * 0x1p-53;
}

static int32_t short_row(int adapter, double u)
{
    (void)adapter;
    return (int32_t)(40 + 360 * u);
}

static int32_t mixed_row(int adapter, double u)
{
    static const double most[ADAPTERS] = {300, 700, 1400, 2048};
    return (int32_t)(most[adapter] * (0.2 + 0.8 * u));
}

static int32_t long_row(int adapter, double u)
{
    (void)adapter;
    double length = 150 / pow(1 - u, 0.8); /* Pareto's tail */
    return (int32_t)(length < CAPACITY ? length : CAPACITY);
}

static const struct {
    const char *name;
    int32_t (*row)(int adapter, double u);
} lists[] = {{"short", short_row}, {"mixed", mixed_row}, {"long", long_row}};

typedef struct {
    tsr_adapter_rows adapter[ADAPTERS];
    int64_t *first;
    int32_t *tokens[ADAPTERS];
} input;

static void fill(input *in, int list, int64_t steps)
{
    uint64_t state = 1;
    in->first = malloc(((size_t)steps + 1) * sizeof *in->first);
    for (int64_t s = 0; in->first && s <= steps; s++)
        in->first[s] = s * ROWS;
    for (int a = 0; a < ADAPTERS; a++) {
        in->tokens[a] = malloc((size_t)(steps * ROWS) * sizeof *in->tokens[a]);
        if (!in->first || !in->tokens[a]) {
            fputs("bench_schedule: out of memory\n", stderr);
            exit(71);
        }
        for (int64_t i = 0; i < steps * ROWS; i++)
            in->tokens[a][i] = lists[list].row(a, uniform(&state));
        in->adapter[a] = (tsr_adapter_rows){steps, in->first, in->tokens[a]};
    }
}

static int64_t least_of(const input *in, int64_t steps)
{
    int64_t sum = 0;
    for (int64_t s = 0; s < steps; s++) {
        int64_t tokens = 0;
        for (int a = 0; a < ADAPTERS; a++)
            for (int64_t i = s * ROWS; i < (s + 1) * ROWS; i++)
                tokens += in->tokens[a][i];
        sum += (tokens + CAPACITY - 1) / CAPACITY;
    }
    return sum;
}

static json_t *measure(const input *in, tsr_adapter_schedule_kind kind, int64_t *count)
{
    tsr_adapter_schedule s;
    double before = tsr_now();
    if (tsr_adapter_schedule_make(&s, in->adapter, ADAPTERS, CAPACITY, kind) < 0) {
        fprintf(stderr, "bench_schedule: %s\n", tsr_last_error());
        exit(71);
    }
    double seconds = tsr_now() - before;
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)s.hash);
    json_t *out =
        json_pack("{sI sI sf sf ss}", "micro_batches", (json_int_t)s.count, "unmerged",
                  (json_int_t)s.unmerged, "fill", s.fill, "seconds", seconds, "hash", hash);
    *count = s.count;
    fprintf(stderr, " %7lld %6.1f %% %8.3f s", (long long)s.count, 100 * s.fill, seconds);
    tsr_adapter_schedule_free(&s);
    return out;
}

int main(int argc, char **argv)
{
    int64_t steps = argc > 1 ? atoll(argv[1]) : 100;
    json_t *runs = json_array();
    if (steps < 1 || steps > 100000) {
        fputs("usage: bench_schedule [STEPS]\n", stderr);
        return 64;
    }
    for (int list = 0; list < 3; list++) {
        input in = {0};
        int64_t greedy, milp = 0;
        fill(&in, list, steps);
        fprintf(stderr, "%-6s", lists[list].name);
        json_t *run = json_pack("{ss sI so}", "lengths", lists[list].name, "least",
                                (json_int_t)least_of(&in, steps), "greedy",
                                measure(&in, TSR_ADAPTER_SCHEDULE_GREEDY, &greedy));
        if (tsr_adapter_schedule_has_milp()) {
            json_object_set_new(run, "milp", measure(&in, TSR_ADAPTER_SCHEDULE_MILP, &milp));
            json_object_set_new(run, "milp_over_greedy", json_real((double)milp / (double)greedy));
            fprintf(stderr, "  %.4f", (double)milp / (double)greedy);
        }
        fputs("\n", stderr);
        json_array_append_new(runs, run);
        for (int a = 0; a < ADAPTERS; a++)
            free(in.tokens[a]);
        free(in.first);
    }
    json_t *all =
        json_pack("{ss ss ss si sI si si so}", "bench", "schedule", "version", tsr_build_version(),
                  "commit", tsr_build_commit(), "adapters", ADAPTERS, "steps", (json_int_t)steps,
                  "rows", ROWS, "capacity", CAPACITY, "runs", runs);
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(5));
    fputs("\n", stdout);
    json_decref(all);
    return 0;
}
