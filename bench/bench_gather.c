/*
 * bench_gather.c: the collectives of a step alone, at the sizes of one layer of an 8B model: the frozen part
 * gathered and pulled, the trainable part gathered, gradients exchanged, the control word.
 *
 *     launch/run -n N bench_gather [--backend cuda|cpu] [--part 0.01]     JSON on stdout, a table on stderr
 *
 * Of GPUs each is measured through NCCL first, then by copies from exposed memory, as in a run.
 * Every rank starts together; a sample is as many calls as last about 20 ms, from a barrier to an idle
 * stream; the median of 11. GB/s counts the bytes that arrive at a rank from the others, once, which is the
 * least that must cross its link. --part shrinks every size.
 */
#include "base/clock.h"
#include "comm/comm.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES  11
#define SAMPLE_S 20e-3
#define RANGES   14
#define GRANULE  256 /* bytes that every range begins and ends on */

static tsr_device *host, *device;
static tsr_stream *control, *stream;
static tsr_comm *world, *comm;
static char *shards, *gathered; /* device memory */
static uint64_t shard_bytes;    /* of `shards` */
static double part = 1;
static json_t *cases;
static double link_rate; /* bytes/s that a pull brings: link_bytes_per_s of a plan */

static void must(tsr_status status, const char *what)
{
    if (status == TSR_OK)
        return;
    fprintf(stderr, "bench_gather: %s: %s\n", what, tsr_last_error());
    if (world)
        tsr_comm_abort(world, status, tsr_last_error());
    exit(71);
}

/* Columns and rows of a layer's seven linears. */
static const double linears[7][2] = {{4096, 4096},  {4096, 1024},  {4096, 1024}, {4096, 4096},
                                     {4096, 14336}, {4096, 14336}, {14336, 4096}};

/* A rank's share of so many bytes. */
static uint64_t share(double bytes)
{
    double ranks = tsr_comm_size(comm);
    return ((uint64_t)(bytes * part / ranks) / GRANULE + 1) * GRANULE;
}

typedef struct {
    tsr_gather_range range[RANGES];
    int count;
    uint64_t sent;
} group;

static void add(group *g, double bytes)
{
    uint64_t mine = share(bytes);
    tsr_gather_range *r = &g->range[g->count++];
    uint64_t ranks = (uint64_t)tsr_comm_size(comm);
    *r = (tsr_gather_range){shards + g->sent, gathered + g->sent * ranks, mine};
    g->sent += mine;
}

/* Codes and the 8-bit absmax of every linear. */
static group frozen(void)
{
    group g = {0};
    for (int i = 0; i < 7; i++) {
        add(&g, linears[i][0] * linears[i][1] / 2);
        add(&g, linears[i][0] * linears[i][1] / 64);
    }
    return g;
}

static double adapter_elements(double r)
{
    double elements = 0;
    for (int i = 0; i < 7; i++)
        elements += r * (linears[i][0] + linears[i][1]);
    return elements;
}

/* ---- one case ---- */

typedef struct {
    enum { ALL_GATHER, PULL, EXCHANGE, ALL_REDUCE } what;
    group group;
    tsr_exchange_range piece[RANGES];
    uint64_t count; /* of int64 */
} operation;

static void enqueue(const operation *o)
{
    tsr_status status = TSR_OK;
    if (o->what == ALL_GATHER)
        status = tsr_comm_all_gather(comm, stream, o->group.range, o->group.count);
    else if (o->what == PULL)
        status = tsr_comm_pull(comm, stream, o->group.range, o->group.count);
    else if (o->what == EXCHANGE)
        status = tsr_comm_exchange(comm, stream, o->piece, RANGES);
    else
        status = tsr_comm_all_reduce(comm, stream, (int64_t *)(void *)shards, o->count, TSR_SUM);
    must(status, "a collective");
}

/* Seconds of `calls` in a row, the longest of all ranks. */
static double sample(const operation *o, int calls)
{
    must(tsr_comm_barrier(world, control), "a barrier");
    must(tsr_stream_synchronize(control), "a barrier");
    double start = tsr_now();
    for (int i = 0; i < calls; i++)
        enqueue(o);
    must(tsr_stream_synchronize(stream), "a collective");
    int64_t nanoseconds = (int64_t)(1e9 * (tsr_now() - start));
    must(tsr_comm_all_reduce(world, control, &nanoseconds, 1, TSR_MAX), "the time");
    must(tsr_stream_synchronize(control), "the time");
    return 1e-9 * (double)nanoseconds;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(const char *name, const operation *o, uint64_t arrives)
{
    double seconds[SAMPLES];
    sample(o, 1);
    int calls = (int)(SAMPLE_S / sample(o, 1)) + 1;
    calls = calls < 1000 ? calls : 1000;
    for (int i = 0; i < SAMPLES; i++)
        seconds[i] = sample(o, calls) / calls;
    qsort(seconds, SAMPLES, sizeof *seconds, by_size);
    double median = seconds[SAMPLES / 2], rate = 1e-9 * (double)arrives / median;
    if (o->what == PULL)
        link_rate = 1e9 * rate;
    if (tsr_comm_rank(comm) > 0)
        return;
    fprintf(stderr, "%-32s %10.1f us  %10.3f MB arrive  %8.2f GB/s\n", name, 1e6 * median,
            1e-6 * (double)arrives, rate);
    json_array_append_new(cases, json_pack("{ss sf sf sf sI sf}", "case", name, "us", 1e6 * median,
                                           "us_min", 1e6 * seconds[0], "us_max",
                                           1e6 * seconds[SAMPLES - 1], "bytes", (json_int_t)arrives,
                                           "gb_s", rate));
}

/* fp32 pieces of A and B of every linear; what is received lies behind them. Bytes that a rank
 * receives. */
static uint64_t gradients(operation *o, int r)
{
    uint64_t ranks = (uint64_t)tsr_comm_size(comm), sent = 0, received = 0;
    uint64_t all = share(4 * adapter_elements(r)) + GRANULE * RANGES;
    o->what = EXCHANGE;
    for (int i = 0; i < RANGES; i++) {
        uint64_t bytes = share(4 * (double)r * linears[i / 2][i % 2]);
        o->piece[i] =
            (tsr_exchange_range){gathered + sent, gathered + ranks * all + received, bytes};
        sent += ranks * bytes;
        received += (ranks - 1) * bytes;
    }
    return received;
}

static void run_all(const char *how)
{
    uint64_t others = (uint64_t)tsr_comm_size(comm) - 1;
    operation o = {.what = ALL_GATHER, .group = frozen()};
    char name[64];
    snprintf(name, sizeof name, "frozen part, all-gather%s", how);
    measure(name, &o, o.group.sent * others);
    o.what = PULL;
    snprintf(name, sizeof name, "frozen part, pull%s", how);
    measure(name, &o, o.group.sent * others);
    static const int ranks[] = {16, 384};
    for (int i = 0; i < 2; i++) {
        operation t = {.what = ALL_GATHER};
        add(&t.group, 2 * adapter_elements(ranks[i]));
        snprintf(name, sizeof name, "adapter r %d, all-gather%s", ranks[i], how);
        measure(name, &t, t.group.sent * others);
        uint64_t arrives = gradients(&t, ranks[i]);
        snprintf(name, sizeof name, "gradients r %d, exchange%s", ranks[i], how);
        measure(name, &t, arrives);
    }
    operation word = {.what = ALL_REDUCE, .count = 16};
    measure("control word, all-reduce", &word, 8 * word.count);
}

/* ---- set-up ---- */

static void open_all(bool cuda)
{
    must(tsr_comm_create_mpi(&world, 60), "MPI");
    tsr_device_options options = {.local_rank = tsr_comm_local_rank(world),
                                  .local_rank_count = tsr_comm_local_size(world),
                                  .timeout_seconds = 60};
    must(tsr_device_create_cpu(&host, &options), "the host");
    must(tsr_stream_create(&control, host, "control"), "a stream");
    device = host;
    comm = world;
    stream = control;
    if (!cuda)
        return;
    if (tsr_device_create_cuda(&device, &options) < 0) {
        fprintf(stderr, "bench_gather: %s\n", tsr_last_error());
        exit(77);
    }
    must(tsr_stream_create(&stream, device, "comm"), "a stream");
    must(tsr_comm_create_nccl(&comm, world, control, device), "NCCL");
}

/* As much as the largest case takes: the gradients of r 384. */
static tsr_arena *take_memory(void)
{
    tsr_arena *arena;
    void *at;
    tsr_memory kind = TSR_MEMORY_DEVICE;
    shard_bytes = share(8 * adapter_elements(384)) + GRANULE * RANGES;
    uint64_t ranks = (uint64_t)tsr_comm_size(comm), all = shard_bytes * (ranks + 1) + GRANULE;
    must(tsr_arena_create(&arena, device, kind, all), "memory");
    must(tsr_arena_take(&at, arena, "all", all), "memory");
    shards = at;
    gathered = shards + shard_bytes;
    must(tsr_stream_fill(stream, shards, 0, all), "memory");
    must(tsr_stream_synchronize(stream), "memory");
    return arena;
}

static void close_all(tsr_arena *arena)
{
    if (comm != world)
        tsr_comm_destroy(comm);
    tsr_arena_destroy(arena);
    if (stream != control)
        tsr_stream_destroy(stream);
    if (device != host)
        tsr_device_destroy(device);
    tsr_comm_destroy(world);
    tsr_stream_destroy(control);
    tsr_device_destroy(host);
}

int main(int count, char **arguments)
{
    bool cuda = tsr_device_cuda_built();
    for (int i = 1; i + 1 < count; i += 2) {
        if (!strcmp(arguments[i], "--part"))
            part = atof(arguments[i + 1]);
        else if (!strcmp(arguments[i], "--backend"))
            cuda = strcmp(arguments[i + 1], "cpu") != 0;
    }
    open_all(cuda);
    tsr_arena *arena = take_memory();
    cases = json_array();
    run_all("");
    if (comm != world) {
        uint64_t bytes = shard_bytes * ((uint64_t)tsr_comm_size(comm) + 1);
        must(tsr_comm_expose(comm, control, shards, bytes), "exposing memory");
        run_all(", exposed");
    }
    if (tsr_comm_rank(comm) == 0) {
        json_t *all = json_pack("{ss ss ss si sf sf so}", "bench", "gather", "device",
                                tsr_device_description(device), "comm", tsr_comm_name(comm),
                                "ranks", tsr_comm_size(comm), "part", part, "link_bytes_per_s",
                                link_rate, "cases", json_incref(cases));
        char *line = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(6));
        puts(line);
        free(line);
        json_decref(all);
    }
    json_decref(cases);
    close_all(arena);
    return 0;
}
