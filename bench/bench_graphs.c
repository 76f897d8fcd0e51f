/*
 * bench_graphs.c: a linear with its adapter by each of its graphs (src/adapters/graph.h), over ranks and
 * micro-batches: what start-up chooses by measuring and what it would take by price alone, against a fixed rule.
 *
 *     bench_graphs [BASE]     JSON on stdout, a table on stderr
 *
 *     nf4     the linears of an 8B model on an NF4 base. The fixed rule merges where 400 tokens >= r times the terms of a
 *             sum, and reads dY once from 16 M elements on up to r 16: what was done before graphs were chosen
 *     bf16    those of Llama 7B, 8B and 13B on a plain base, as RunLoRA (arXiv 2312.03415) compares graphs: the fixed rule
 *     fp32    is F1 and B1, what automatic differentiation of X W' + (X A') B' does
 *     cpu     small ones in fp32, to try the program
 *
 * Times are of a forward and a backward with dX, medians, the matmuls' kernels chosen as in a run.
 */
#include "adapters/graph_time.h"
#include "base/clock.h"
#include "matmuls.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tsr_device *device;
static tsr_stream *stream;
static const tsr_kernels *kernels;
static tsr_graph_bench bench;

static void must(tsr_status status, const char *what)
{
    if (status < 0) {
        fprintf(stderr, "bench_graphs: %s: %s\n", what, tsr_last_error());
        exit(71);
    }
}

/* ---- one shape ---- */

/* Chooses the kernels of its matmuls. */
static void prepare(const tsr_graph_shape *shape, const tsr_graph_choice *choice, int count)
{
    tsr_graph_bench dry = bench;
    double seconds[TSR_GRAPH_CHOICES];
    dry.kernels = bench_matmuls_note();
    must(tsr_graph_measure(seconds, &dry, shape, choice, count), "a list of matmuls");
    must(bench_matmuls_prepare(kernels, stream, bench.scratch, bench.scratch_bytes), "the matmuls");
}

/* Every allowed graph, the cheapest by price first. */
static int list(tsr_graph_choice out[TSR_GRAPH_CHOICES], const tsr_graph_shape *shape)
{
    int count = 0;
    out[count++] = tsr_graph_cheapest(shape);
    for (int i = 0; i < TSR_GRAPH_CHOICES; i++) {
        tsr_graph_choice other = tsr_graph_choice_at(i);
        if (!tsr_graph_same_choice(other, out[0]) && tsr_graph_allowed(shape, other))
            out[count++] = other;
    }
    return count;
}

static tsr_graph_choice fixed_rule(const tsr_graph_shape *s)
{
    if (!s->merges)
        return (tsr_graph_choice){s->backward ? TSR_B1 : TSR_F1, false};
    bool merges = s->tokens * 400 >= (s->backward ? s->out : s->in) * s->r;
    if (!s->backward)
        return (tsr_graph_choice){merges ? TSR_F2 : TSR_F1, false};
    return (tsr_graph_choice){merges ? TSR_B5 : TSR_B1,
                              s->tokens * s->out >= 16 << 20 && s->r <= 16 && s->dtype == TSR_BF16};
}

typedef struct {
    double fixed, priced, chosen; /* seconds, both ways */
    double ratio, best;           /* chosen over fixed up to MEAN_RANK: their sum, the least */
    int count;
} sums;

#define MEAN_RANK 512

/* One direction. Adds its times, and prints its choices. */
static void measure(sums *sum, json_t *row, const tsr_graph_shape *shape)
{
    tsr_graph_choice choice[TSR_GRAPH_CHOICES], fixed = fixed_rule(shape);
    double seconds[TSR_GRAPH_CHOICES];
    char name[TSR_GRAPH_NAME], key[32];
    const char *direction = shape->backward ? "backward" : "forward";
    int count = list(choice, shape), rule = 0;
    prepare(shape, choice, count);
    must(tsr_graph_measure(seconds, &bench, shape, choice, count), "a graph");
    json_t *all = json_object();
    for (int i = 0; i < count; i++) {
        rule = tsr_graph_same_choice(choice[i], fixed) ? i : rule;
        tsr_graph_name(name, choice[i]);
        json_object_set_new(all, name, json_real(1e6 * seconds[i]));
    }
    snprintf(key, sizeof key, "%s_us", direction);
    json_object_set_new(row, key, all);
    const int told[3] = {rule, 0, tsr_graph_fastest(seconds, count)};
    const char *const what[3] = {"fixed", "priced", "chosen"};
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "%s_%s", direction, what[i]);
        tsr_graph_name(name, choice[told[i]]);
        json_object_set_new(row, key, json_string(name));
        fprintf(stderr, " %7s %8.1f", name, 1e6 * seconds[told[i]]);
    }
    sum->fixed += seconds[told[0]];
    sum->priced += seconds[told[1]];
    sum->chosen += seconds[told[2]];
}

static void run(sums *all, json_t *rows, tsr_graph_shape *shape)
{
    sums one = {0};
    json_t *row =
        json_pack("{sI sI sI sI}", "tokens", (json_int_t)shape->tokens, "in", (json_int_t)shape->in,
                  "out", (json_int_t)shape->out, "r", (json_int_t)shape->r);
    fprintf(stderr, "%6d %6d %6d %5d", (int)shape->tokens, (int)shape->in, (int)shape->out,
            (int)shape->r);
    for (int backward = 0; backward < 2; backward++) {
        shape->backward = backward;
        measure(&one, row, shape);
    }
    json_object_set_new(row, "of_fixed", json_real(one.chosen / one.fixed));
    fprintf(stderr, "  %.3f\n", one.chosen / one.fixed);
    json_array_append_new(rows, row);
    if (shape->r <= MEAN_RANK) {
        double ratio = one.chosen / one.fixed;
        all->best = all->count && all->best < ratio ? all->best : ratio;
        all->ratio += ratio;
        all->count++;
    }
    all->fixed += one.fixed;
    all->priced += one.priced;
    all->chosen += one.chosen;
}

/* ---- all shapes ---- */

typedef struct {
    const char *base, *shapes;
    tsr_dtype dtype;
    const int64_t (*sides)[2], *tokens, *ranks; /* ends with 0 */
    bool nf4, cpu;
} grid;

static const int64_t sides_8b[][2] = {
    {4096, 4096}, {4096, 1024}, {4096, 14336}, {14336, 4096}, {0}};
static const int64_t sides_llama[][2] = {{4096, 4096},  {4096, 11008}, {11008, 4096},
                                         {4096, 14336}, {14336, 4096}, {5120, 5120},
                                         {5120, 13824}, {13824, 5120}, {0}};
static const int64_t sides_small[][2] = {{128, 128}, {128, 64}, {0}};
static const int64_t tokens_8b[] = {128, 512, 2048, 8192, 16384, 0}, tokens_small[] = {32, 128, 0};
static const int64_t tokens_bf16[] = {2048, 8192, 0}, tokens_fp32[] = {2048, 0};
static const int64_t ranks_8b[] = {8, 16, 64, 128, 384, 1024, 0}, ranks_small[] = {8, 64, 0};
static const int64_t ranks_llama[] = {8, 16, 32, 64, 128, 256, 512, 1024, 0};

static const grid grids[] = {
    {"nf4", "8b", TSR_BF16, sides_8b, tokens_8b, ranks_8b, .nf4 = true},
    {"bf16", "llama", TSR_BF16, sides_llama, tokens_bf16, ranks_llama},
    {"fp32", "llama", TSR_F32, sides_llama, tokens_fp32, ranks_llama},
    {"cpu", "small", TSR_F32, sides_small, tokens_small, ranks_small, .cpu = true},
};

/* Calls for each shape; with `rows` NULL only the largest scratch is looked for. */
static uint64_t over(const grid *g, sums *all, json_t *rows)
{
    uint64_t most = 0;
    for (int side = 0; g->sides[side][0]; side++)
        for (int t = 0; g->tokens[t]; t++) {
            sums some = {0};
            for (int r = 0; g->ranks[r]; r++) {
                tsr_graph_shape shape = {.tokens = g->tokens[t],
                                         .in = g->sides[side][0],
                                         .out = g->sides[side][1],
                                         .r = g->ranks[r],
                                         .dtype = g->dtype,
                                         .merges = g->nf4};
                uint64_t bytes = tsr_graph_time_bytes(&shape);
                most = bytes > most ? bytes : most;
                if (rows)
                    run(&some, rows, &shape);
            }
            if (!rows)
                continue;
            fprintf(stderr, "%6d tokens, %d to %d: %.3f of the fixed rule's time, by price %.3f\n",
                    (int)g->tokens[t], (int)g->sides[side][0], (int)g->sides[side][1],
                    some.chosen / some.fixed, some.priced / some.fixed);
            all->best = all->count && all->best < some.best ? all->best : some.best;
            all->ratio += some.ratio;
            all->count += some.count;
            all->fixed += some.fixed;
            all->priced += some.priced;
            all->chosen += some.chosen;
        }
    return most;
}

static void open_device(bool cuda)
{
    const tsr_device_options options = {.no_pinning = true};
    int count = 0;
    if (cuda && (tsr_device_cuda_count(&count) != TSR_OK || count == 0)) {
        fprintf(stderr, "bench_graphs: skipped: no GPU\n");
        exit(77);
    }
    must(cuda ? tsr_device_create_cuda(&device, &options)
              : tsr_device_create_cpu(&device, &options),
         "the device");
    must(tsr_stream_create(&stream, device, "compute"), "a stream");
    must(tsr_kernels_open(&kernels, device), "the kernels");
}

static const grid *grid_of(const char *base)
{
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++)
        if (!strcmp(grids[i].base, base))
            return &grids[i];
    fprintf(stderr, "bench_graphs: no base %s: nf4, bf16, fp32 or cpu\n", base);
    exit(64);
}

static void print(const grid *g, const sums *all, double seconds, json_t *rows)
{
    double mean = all->ratio / all->count;
    fprintf(stderr,
            "%s: %.3f of the fixed rule's time, by price %.3f; up to r %d %.3f in the mean, %.3f "
            "at best; %.1f s\n",
            g->base, all->chosen / all->fixed, all->priced / all->fixed, MEAN_RANK, mean, all->best,
            seconds);
    json_t *result = json_pack("{ss ss ss ss sf sf sf sf sf so}", "bench", "graphs", "base",
                               g->base, "shapes", g->shapes, "device",
                               tsr_device_description(device), "of_fixed", all->chosen / all->fixed,
                               "priced_of_fixed", all->priced / all->fixed, "mean_of_fixed", mean,
                               "best_of_fixed", all->best, "seconds", seconds, "rows", rows);
    char *line = json_dumps(result, JSON_COMPACT | JSON_REAL_PRECISION(6));
    puts(line);
    free(line);
    json_decref(result);
}

int main(int count, char **arguments)
{
    const grid *g = grid_of(count < 2 ? "nf4" : arguments[1]);
    tsr_arena *arena = NULL;
    sums all = {0};
    json_t *rows = json_array();
    open_device(!g->cpu);
    uint64_t bytes = over(g, &all, NULL);
    bytes += g->cpu ? 0 : (uint64_t)1 << 30; /* matmuls are timed on several sets of operands */
    must(tsr_arena_create(&arena, device, TSR_MEMORY_DEVICE, bytes), "memory");
    bench = (tsr_graph_bench){.kernels = kernels, .stream = stream, .scratch_bytes = bytes};
    must(tsr_arena_take(&bench.scratch, arena, "scratch", bytes), "memory");
    double begin = tsr_now();
    fprintf(stderr,
            "tokens     in    out     r   fixed, priced, chosen forward; the same backward\n");
    over(g, &all, rows);
    print(g, &all, tsr_now() - begin, rows);
    tsr_arena_destroy(arena);
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
    return 0;
}
