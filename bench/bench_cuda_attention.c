/*
 * bench_cuda_attention.c: the CUDA attention, forward and backward: cuDNN's kernels under several caps
 * of the workspace (documents too long for them have the own backward of attention_wgmma.h), cuDNN's with
 * dq added up by atomics, the own ones, and those of attention_wgmma.h.
 *
 *     bench_cuda_attention [repeats [own [shared] | spans | NAME]]
 *
 * JSON on stdout: medians by CUDA events; FLOPs are those of visible pairs, 4 D forward and 10 D backward each;
 * differing: values of dq that another run of the same backward gave otherwise, the most of so many runs.
 * own: the own kernel alone, at other shapes; shared: as on a card whose blocks may have so many bytes of
 * shared memory. spans: rows that ranks share, as each of them has them; their sums of dq are added up by nothing, so that
 * dq is wrong there. NAME: shapes whose names have it.
 */
#include "base/dtype.h"
#include "base/log.h"
#include "kernels/attention_cudnn.h"
#include "kernels/attention_wgmma.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPEATS 200
#define WARM_UP     3
#define REPEATS     4
#define MOST_CAP    (4 * TSR_SDPA_CAP_BYTES)
#define SPARE       (8u << 20) /* bytes: the bounds of plans are a few tokens wider */

typedef struct {
    const char *name;
    int64_t tokens, longest; /* one document of `longest`, the rest of `other` */
    int64_t other;
    int32_t q_heads, kv_heads, dim;
    int32_t v_dim;  /* of a head of v and o; 0: dim */
    int32_t window; /* 0: none */
    float softcap;  /* 0: none */
} shape;

static const shape shapes[] = {
    {"4 x 2048", 8192, 2048, 2048, 32, 8, 128},
    {"1 x 8192", 8192, 8192, 8192, 32, 8, 128},
    {"1 x 2048", 2048, 2048, 2048, 32, 8, 128},
    {"1 x 2048, 64 heads", 2048, 2048, 2048, 64, 8, 128},
    {"16 x 512", 8192, 512, 512, 32, 8, 128},
    {"one of 2048, 60 of 102", 8192, 2048, 102, 32, 8, 128},
    {"8 x 1024", 8192, 1024, 1024, 32, 8, 128},
    {"4 x 2048, 32 / 4", 8192, 2048, 2048, 32, 4, 128},
    {"16 x 512, 32 / 4", 8192, 512, 512, 32, 4, 128},
    {"1 x 4096, 32 / 4", 4096, 4096, 4096, 32, 4, 128},
    {"1 x 2048, 32 / 4", 2048, 2048, 2048, 32, 4, 128},
    {"4 x 2048, 32 / 32", 8192, 2048, 2048, 32, 32, 128},
    {"4 x 2048, D 64", 8192, 2048, 2048, 32, 8, 64},
    {"2 x 4096", 8192, 4096, 4096, 32, 8, 128},
    {"1 x 16384", 16384, 16384, 16384, 32, 8, 128},
    {"4 x 2048, latent", 8192, 2048, 2048, 32, 32, 192, 128},
    {"1 x 32768", 32768, 32768, 32768, 32, 8, 128},
    {"1 x 65536", 65536, 65536, 65536, 32, 8, 128},
    {"1 x 16384, window 1024", 16384, 16384, 16384, 32, 8, 128, 0, 1024},
    {"1 x 131072", 131072, 131072, 131072, 32, 8, 128},
    {"1 x 8192, D 64", 8192, 8192, 8192, 32, 8, 64},
    {"1 x 32768, D 64", 32768, 32768, 32768, 32, 8, 64},
    {"1 x 65536, D 64", 65536, 65536, 65536, 32, 8, 64},
    {"4 x 2048, D 96", 8192, 2048, 2048, 32, 8, 96},
    {"1 x 8192, D 96", 8192, 8192, 8192, 32, 8, 96},
    {"1 x 16384, D 96, window 1024", 16384, 16384, 16384, 32, 8, 96, 0, 1024},
    {"1 x 32768, D 96", 32768, 32768, 32768, 32, 8, 96},
    {"1 x 65536, D 96", 65536, 65536, 65536, 32, 8, 96},
    {"1 x 8192, latent", 8192, 8192, 8192, 32, 32, 192, 128},
    {"1 x 32768, latent", 32768, 32768, 32768, 32, 32, 192, 128},
    {"1 x 65536, latent", 65536, 65536, 65536, 16, 16, 192, 128},
};

static const shape span_shapes[] = {
    {"1 x 32768", 32768, 32768, 32768, 32, 8, 128},
    {"1 x 131072", 131072, 131072, 131072, 32, 8, 128},
    {"1 x 32768, window 1024", 32768, 32768, 32768, 32, 8, 128, 0, 1024},
    {"1 x 32768, D 64", 32768, 32768, 32768, 32, 8, 64},
};

static const shape own_shapes[] = {
    {"1 x 2048", 2048, 2048, 2048, 32, 8, 128},
    {"1 x 4096", 4096, 4096, 4096, 32, 8, 128},
    {"1 x 8192", 8192, 8192, 8192, 32, 8, 128},
    {"4 x 2048", 8192, 2048, 2048, 32, 8, 128},
    {"one of 2048, 60 of 102", 8192, 2048, 102, 32, 8, 128},
    {"1 x 32768", 32768, 32768, 32768, 32, 8, 128},
    {"1 x 32768, window 1024", 32768, 32768, 32768, 32, 8, 128, 0, 1024},
    {"1 x 8192, D 64", 8192, 8192, 8192, 32, 8, 64},
    {"1 x 8192, D 96", 8192, 8192, 8192, 32, 8, 96},
    {"1 x 8192, latent", 8192, 8192, 8192, 32, 32, 192, 128},
    {"1 x 8192, D 256", 8192, 8192, 8192, 16, 4, 256},
    {"4 x 2048, D 64, window 128", 8192, 2048, 2048, 64, 8, 64, 0, 128},
    {"1 x 32768, D 64, window 128", 32768, 32768, 32768, 64, 8, 64, 0, 128},
    {"1 x 8192, D 256, window 1024", 8192, 8192, 8192, 16, 4, 256, 0, 1024},
    {"4 x 2048, D 256, 16 / 8", 8192, 2048, 2048, 16, 8, 256},
    {"4 x 2048, D 256, 16 / 8, cap 50", 8192, 2048, 2048, 16, 8, 256, 0, 0, 50},
    {"1 x 8192, D 256, 16 / 8, cap 50", 8192, 8192, 8192, 16, 8, 256, 0, 0, 50},
    {"1 x 8192, D 256, 16 / 8, window 4096, cap 50", 8192, 8192, 8192, 16, 8, 256, 0, 4096, 50},
    {"1 x 8192, cap 50", 8192, 8192, 8192, 32, 8, 128, 0, 0, 50},
};

/* Of shapes from here on: fewer runs, and the cap of a run alone. */
#define LONG      32768
#define LONG_RUNS 3

static int32_t values_of(const shape *s)
{
    return tsr_attention_v_dim(s->v_dim, s->dim);
}

static tsr_device *device;
static tsr_stream *stream;
static const tsr_kernels *kernels;
static int repeats = 20;
static bool first = true;

static void need(tsr_status status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", tsr_last_error());
        exit(1);
    }
}

static void print_line(void *user, tsr_log_level level, const char *line)
{
    (void)user, (void)level;
    fprintf(stderr, "%s\n", line);
}

/* ---- one shape's buffers ---- */

typedef struct {
    tsr_arena *arena;
    tsr_attention_args forward;
    tsr_attention_backward_args backward;
    tsr_attention_bounds bounds;
    double pairs;
    int64_t dq_count;
} job;

static void *take(job *j, uint64_t bytes)
{
    void *out = NULL;
    need(tsr_arena_take(&out, j->arena, "buffer", bytes));
    return out;
}

static void *take_random(job *j, int64_t count, uint16_t *host)
{
    static uint32_t seed = 1;
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        host[i] = tsr_f32_to_bf16((float)(seed >> 8) / (1 << 23) - 1);
    }
    void *out = take(j, (uint64_t)count * 2);
    need(tsr_device_write(device, out, host, (uint64_t)count * 2));
    return out;
}

static int32_t *documents_of(const shape *s, int32_t *count, double *pairs)
{
    int32_t *cu = calloc((size_t)s->tokens + 2, sizeof *cu), n = 0;
    for (int64_t at = 0; cu && at < s->tokens; n++) {
        int64_t length = n == 0 ? s->longest : s->other;
        if (at + length > s->tokens)
            length = s->tokens - at;
        at += length;
        cu[n + 1] = (int32_t)at;
        double most = s->window && s->window < length ? s->window : (double)length;
        *pairs += most * ((double)length - (most - 1) / 2);
    }
    *count = n;
    return cu;
}

/* For every kernel that is timed. */
static uint64_t workspace_bytes(tsr_attention_bounds bounds)
{
    uint64_t most = kernels->attention_workspace_bytes(&bounds);
    for (int i = 0; i < 2; i++) {
        tsr_sdpa_cut cut;
        bounds.atomics = i;
        if (tsr_sdpa_cut_for(&cut, &bounds, MOST_CAP) && tsr_sdpa_workspace_bytes(&cut) > most)
            most = tsr_sdpa_workspace_bytes(&cut);
    }
    return most + SPARE;
}

static void make_job(job *j, const shape *s)
{
    int64_t q = s->tokens * s->q_heads * s->dim, kv = s->tokens * s->kv_heads * s->dim;
    int64_t wide = values_of(s), o = s->tokens * s->q_heads * wide;
    int64_t v = s->tokens * s->kv_heads * wide;
    int32_t documents = 0;
    *j = (job){.dq_count = q};
    int32_t *cu = documents_of(s, &documents, &j->pairs);
    uint16_t *host = malloc((size_t)q * 2);
    if (!cu || !host)
        exit(1);
    j->bounds = (tsr_attention_bounds){.tokens = s->tokens,
                                       .documents = documents,
                                       .longest = s->longest,
                                       .q_heads = s->q_heads,
                                       .kv_heads = s->kv_heads,
                                       .head_dim = s->dim,
                                       .v_dim = s->v_dim,
                                       .softcap = s->softcap,
                                       .dtype = TSR_BF16,
                                       .train = true};
    uint64_t workspace = workspace_bytes(j->bounds);
    need(tsr_arena_create(&j->arena, device, TSR_MEMORY_DEVICE,
                          workspace + (uint64_t)(q * 8 + kv * 8 + s->tokens * s->q_heads * 4) +
                              (1 << 24)));
    int32_t *device_cu = take(j, (uint64_t)(documents + 1) * 4);
    need(tsr_device_write(device, device_cu, cu, (uint64_t)(documents + 1) * 4));
    tsr_attention_args f = {.q = take_random(j, q, host),
                            .k = take_random(j, kv, host),
                            .v = take_random(j, v, host),
                            .o = take(j, (uint64_t)o * 2),
                            .lse = take(j, (uint64_t)(s->tokens * s->q_heads) * 4),
                            .shape = {.cu_seqlens = device_cu,
                                      .workspace = take(j, workspace),
                                      .workspace_bytes = workspace,
                                      .tokens = s->tokens,
                                      .documents = documents,
                                      .q_heads = s->q_heads,
                                      .kv_heads = s->kv_heads,
                                      .head_dim = s->dim,
                                      .v_dim = s->v_dim,
                                      .window = s->window,
                                      .softcap = s->softcap,
                                      .dtype = TSR_BF16}};
    j->forward = f;
    j->backward = (tsr_attention_backward_args){.q = f.q,
                                                .k = f.k,
                                                .v = f.v,
                                                .o = f.o,
                                                .d_o = take_random(j, o, host),
                                                .lse = f.lse,
                                                .dq = take(j, (uint64_t)q * 2),
                                                .dk = take(j, (uint64_t)kv * 2),
                                                .dv = take(j, (uint64_t)v * 2),
                                                .shape = f.shape};
    free(cu), free(host);
}

/* ---- timing ---- */

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

typedef tsr_status forward_function(tsr_stream *, const tsr_attention_args *);
typedef tsr_status backward_function(tsr_stream *, const tsr_attention_backward_args *);

/* Median milliseconds of one call; `forward` NULL: of the backward. */
static double time_of(const job *j, forward_function *forward, backward_function *backward)
{
    float times[MAX_REPEATS] = {0};
    bool is_long = j->bounds.tokens >= LONG;
    int runs = is_long && repeats > LONG_RUNS ? LONG_RUNS : repeats;
    cudaEvent_t begin, end;
    need(tsr_cuda_status(cudaEventCreate(&begin), "event"));
    need(tsr_cuda_status(cudaEventCreate(&end), "event"));
    for (int i = is_long ? -1 : -WARM_UP; i < runs; i++) {
        need(tsr_cuda_status(cudaEventRecord(begin, tsr_stream_cuda(stream)), "record"));
        need(forward ? forward(stream, &j->forward) : backward(stream, &j->backward));
        need(tsr_cuda_status(cudaEventRecord(end, tsr_stream_cuda(stream)), "record"));
        need(tsr_stream_synchronize(stream));
        if (i >= 0)
            need(tsr_cuda_status(cudaEventElapsedTime(&times[i], begin, end), "time"));
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    qsort(times, (size_t)runs, sizeof *times, compare);
    return (double)times[runs / 2];
}

/* Values of dq that differ between two backwards, the most of REPEATS pairs. */
static int64_t differing(const job *j, backward_function *backward)
{
    size_t bytes = (size_t)j->dq_count * sizeof(uint16_t);
    uint16_t *one = malloc(bytes), *other = malloc(bytes);
    int64_t most = 0;
    if (!one || !other)
        exit(1);
    for (int i = 0; i <= (j->bounds.tokens >= LONG ? 1 : REPEATS); i++) {
        int64_t count = 0;
        need(backward(stream, &j->backward));
        need(tsr_stream_synchronize(stream));
        need(tsr_device_read(device, i ? other : one, j->backward.dq, bytes));
        for (int64_t e = 0; i && e < j->dq_count; e++)
            count += one[e] != other[e];
        most = count > most ? count : most;
    }
    free(one), free(other);
    return most;
}

static void report(const shape *s, const job *j, const char *kernel, int64_t workspace,
                   forward_function *forward, backward_function *backward)
{
    double pairs = j->pairs * s->q_heads, d = s->dim, v = values_of(s);
    double f = time_of(j, forward, NULL), b = time_of(j, NULL, backward);
    printf("%s\n  {\"shape\": \"%s\", \"q_heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, "
           "\"kernel\": \"%s\", \"workspace_mib\": %lld, \"forward_ms\": %.4f, "
           "\"forward_tflops\": %.1f, \"backward_ms\": %.4f, \"backward_tflops\": %.1f, "
           "\"differing\": %lld}",
           first ? "" : ",", s->name, s->q_heads, s->kv_heads, s->dim, kernel,
           (long long)(workspace >> 20), f, pairs * 2 * (d + v) / f * 1e-9, b,
           pairs * (6 * d + 4 * v) / b * 1e-9, (long long)differing(j, backward));
    first = false;
    fflush(stdout);
}

/* Unless another cap is cut alike: with a workspace of `last` bytes. Returns its own. */
static uint64_t run_cudnn(const shape *s, const job *j, const char *name,
                          tsr_attention_bounds bounds, uint64_t cap, uint64_t last)
{
    tsr_sdpa *sdpa = tsr_kernels_kept(stream)->sdpa;
    tsr_sdpa_cut cut;
    if (!tsr_sdpa_cut_for(&cut, &bounds, cap) || tsr_sdpa_workspace_bytes(&cut) == last)
        return last;
    bounds.tokens += (int64_t)(MOST_CAP / cap); /* plans of its own for each cap */
    need(tsr_sdpa_prepare_within(sdpa, &bounds, cap));
    if (tsr_sdpa_find(sdpa, &j->forward.shape))
        report(s, j, cut.own_bytes ? "cudnn forward, own backward" : name,
               (int64_t)tsr_sdpa_workspace_bytes(&cut), kernels->attention,
               kernels->attention_backward);
    return tsr_sdpa_workspace_bytes(&cut);
}

static tsr_status backward_wgmma(tsr_stream *on, const tsr_attention_backward_args *args)
{
    return tsr_attention_backward_wgmma(on, args, false);
}

/* Where the backward is not wgmma's, that of other own kernels. */
static void report_wgmma(const shape *s, job *j)
{
    bool backward = tsr_attention_wgmma_takes(stream, &j->backward);
    if (backward || tsr_attention_wgmma_takes_forward(stream, &j->forward))
        report(s, j, "own, wgmma",
               (int64_t)(backward ? tsr_attention_wgmma_workspace_bytes(&j->bounds)
                                  : tsr_attention_own_workspace_bytes(&j->bounds)),
               tsr_attention_wgmma_takes_forward(stream, &j->forward) ? tsr_attention_forward_wgmma
                                                                      : tsr_attention_own,
               backward ? backward_wgmma : tsr_attention_backward_own);
}

static void run_shape(const shape *s)
{
    job j;
    make_job(&j, s);
    tsr_attention_bounds bounds = j.bounds;
    uint64_t last = 0;
    bool is_long = s->tokens >= LONG;
    for (uint64_t cap = is_long ? TSR_SDPA_CAP_BYTES : MOST_CAP;
         cap >= TSR_SDPA_CAP_BYTES / (is_long ? 1 : 8); cap /= 2)
        last = run_cudnn(s, &j, "cudnn", bounds, cap, last);
    bounds.atomics = true;
    run_cudnn(s, &j, "cudnn, atomics", bounds, TSR_SDPA_CAP_BYTES, 0);
    if (s->tokens <= 2 * LONG)
        report(s, &j, "own", (int64_t)tsr_attention_own_workspace_bytes(&j.bounds),
               tsr_attention_own, tsr_attention_backward_own);
    report_wgmma(s, &j);
    need(tsr_stream_synchronize(stream));
    tsr_arena_destroy(j.arena);
}

static tsr_attention_card card;

static tsr_status own(tsr_stream *on, const tsr_attention_args *args)
{
    return tsr_attention_own_as(on, args, &card);
}

static tsr_status own_backward(tsr_stream *on, const tsr_attention_backward_args *args)
{
    return tsr_attention_backward_own_as(on, args, &card);
}

/* all: what the card itself takes too, not as another. */
static void run_own(bool all)
{
    for (size_t i = 0; i < sizeof own_shapes / sizeof *own_shapes; i++) {
        job j;
        make_job(&j, &own_shapes[i]);
        report(&own_shapes[i], &j, "own", (int64_t)tsr_attention_own_workspace_bytes(&j.bounds),
               own, own_backward);
        if (all)
            report_wgmma(&own_shapes[i], &j);
        need(tsr_stream_synchronize(stream));
        tsr_arena_destroy(j.arena);
    }
}

/* ---- shared rows ---- */

#define SPAN 8192 /* context_span */

static tsr_status add_nothing(void *user, tsr_stream *on, int32_t *values, uint64_t count,
                              tsr_stream **rest)
{
    (void)user, (void)values, (void)count;
    if (rest)
        *rest = on;
    return TSR_OK;
}

static void report_rank(const shape *s, job *j, tsr_spans spans, bool summed)
{
    tsr_attention_sum sum = {summed ? add_nothing : NULL, NULL};
    j->forward.shape.spans = j->backward.shape.spans = spans;
    j->backward.shape.sum = sum;
    double f = time_of(j, kernels->attention, NULL);
    double b = time_of(j, NULL, kernels->attention_backward);
    printf("%s\n  {\"shape\": \"%s\", \"ranks\": %d, \"rank\": %d, \"summed\": %s, \"forward_ms\": "
           "%.3f, "
           "\"backward_ms\": %.3f}",
           first ? "" : ",", s->name, spans.ranks, spans.rank, summed ? "true" : "false", f, b);
    first = false;
    fflush(stdout);
}

static void run_spans(const shape *s)
{
    job j;
    make_job(&j, s);
    tsr_sdpa *sdpa = tsr_kernels_kept(stream)->sdpa;
    for (int ranks = 1; ranks <= 8 && s->tokens / SPAN >= ranks; ranks *= 2)
        for (int rank = 0; rank<ranks; rank += ranks> 1 ? ranks - 1 : 1) {
            j.bounds.spans = (tsr_spans){SPAN, ranks, rank};
            need(tsr_sdpa_prepare(sdpa, &j.bounds));
            report_rank(s, &j, j.bounds.spans, false);
            if (ranks > 1)
                report_rank(s, &j, j.bounds.spans, true);
        }
    need(tsr_stream_synchronize(stream));
    tsr_arena_destroy(j.arena);
}

int main(int argc, char **argv)
{
    bool only_own = argc > 2 && strcmp(argv[2], "own") == 0;
    bool spans = argc > 2 && strcmp(argv[2], "spans") == 0;
    const char *name = argc > 2 ? argv[2] : "";
    repeats = argc > 1 ? atoi(argv[1]) : repeats;
    if (repeats < 1 || repeats > MAX_REPEATS)
        return 64;
    tsr_log_set(print_line, NULL, TSR_LOG_DEBUG);
    need(tsr_device_create_cuda(&device, &(tsr_device_options){.no_pinning = true}));
    need(tsr_stream_create(&stream, device, "bench"));
    need(tsr_kernels_open(&kernels, device));
    const tsr_cuda_properties *p = tsr_device_cuda_properties(device);
    card = (tsr_attention_card){argc > 3 ? atoll(argv[3]) : (int64_t)p->shared_bytes, p->sm_count};
    printf("{\"device\": \"%s\", \"attention\": [", tsr_device_description(device));
    if (only_own)
        run_own(argc <= 3);
    for (size_t i = 0; spans && i < sizeof span_shapes / sizeof *span_shapes; i++)
        run_spans(&span_shapes[i]);
    for (size_t i = 0; !only_own && !spans && i < sizeof shapes / sizeof *shapes; i++)
        if (strstr(shapes[i].name, name))
            run_shape(&shapes[i]);
    printf("\n]}\n");
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
    return 0;
}
