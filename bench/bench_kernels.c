/*
 * bench_kernels.c: every CPU kernel at the shapes of tiny-llama (1024 tokens) and of one slice of a
 * Llama-like layer, against two roofs of the same run: a 1024^3 matmul and a 256 MiB copy.
 *
 *     bench_kernels [threads]        JSON on stdout; rates and `of_roof` are of the best
 *                                    time: floor / time, floor = max(FLOPs / matmul
 *                                    roof, bytes / copy roof)
 */
#include "base/clock.h"
#include "base/philox.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_TIMES 60
#define MIN_TIMES 7
#define SECONDS   0.25        /* of one measurement */
#define ARENA     (1LL << 28) /* floats */

typedef tsr_status bench_op(void *args, tsr_pool *pool);

typedef struct {
    const char *name, *shape;
    double flops, bytes;
    bench_op *run;
    void *args;
} bench_case;

static tsr_pool *pool;
static float *arena;
static int64_t arena_used;
static double gemm_roof = 1, copy_roof = 1;
static int printed;

static float *take(int64_t count)
{
    float *at = arena + arena_used;
    arena_used += (count + 63) / 64 * 64;
    if (arena_used > ARENA) {
        fprintf(stderr, "the benchmark's arena is too small\n");
        exit(1);
    }
    return at;
}

/* Random data: a matmul on zeros runs faster. */
static float *random_floats(int64_t count, float scale, float shift)
{
    float *data = take(count);
    for (int64_t i = 0; i < count; i++)
        data[i] = (2 * tsr_philox_uniform((uint32_t)tsr_mix((uint64_t)i)) - 1) * scale + shift;
    return data;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median; *best is the shortest, which other work on the machine disturbs least. */
static double measure(const bench_case *c, double *best)
{
    double times[MAX_TIMES], start = tsr_now();
    int count = 0;
    for (int i = -2; i < MAX_TIMES && (count < MIN_TIMES || tsr_now() - start < SECONDS); i++) {
        double before = tsr_now();
        if (c->run(c->args, pool) != TSR_OK) {
            fprintf(stderr, "%s: %s\n", c->name, tsr_last_error());
            exit(1);
        }
        if (i >= 0) /* the first two warm up */
            times[count++] = tsr_now() - before;
    }
    qsort(times, (size_t)count, sizeof *times, compare);
    *best = times[0];
    return times[count / 2];
}

static double report(const char *name, const char *shape, double flops, double bytes, bench_op *run,
                     void *args)
{
    bench_case c = {name, shape, flops, bytes, run, args};
    double best, median = measure(&c, &best);
    double floor = fmax(flops / gemm_roof, bytes / copy_roof);
    printf("%s    {\"op\": \"%s\", \"shape\": \"%s\", \"us\": %.1f, \"best_us\": %.1f, "
           "\"gflops\": %.1f, \"gbps\": %.1f, \"of_roof\": %.3f}",
           printed++ ? ",\n" : "", name, shape, median * 1e6, best * 1e6, flops / best * 1e-9,
           bytes / best * 1e-9, floor / best);
    fflush(stdout);
    return best;
}

#define BENCH_OP(op)                                                                               \
    static tsr_status run_##op(void *args, tsr_pool *p)                                            \
    {                                                                                              \
        return tsr_##op##_ref(args, p);                                                            \
    }

BENCH_OP(gemm)
BENCH_OP(nf4_dequant)
BENCH_OP(widen)
BENCH_OP(rms_norm)
BENCH_OP(rms_norm_backward)
BENCH_OP(rope_qkv)
BENCH_OP(rope_qkv_backward)
BENCH_OP(attention)
BENCH_OP(attention_backward)
BENCH_OP(swiglu)
BENCH_OP(swiglu_backward)
BENCH_OP(head_chunk)
BENCH_OP(compose)
BENCH_OP(compose_backward)
BENCH_OP(row_square_norm)
BENCH_OP(dora_norm)

static double gemm(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b, const char *name)
{
    arena_used = 0;
    tsr_gemm_args args = {.m = m,
                          .n = n,
                          .k = k,
                          .a = random_floats(m * k, 1, 0),
                          .b = random_floats(k * n, 1, 0),
                          .c = take(m * n),
                          .trans_a = trans_a,
                          .trans_b = trans_b,
                          .alpha = 1};
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)m, (long long)n, (long long)k);
    double flops = 2.0 * (double)m * (double)n * (double)k;
    return flops /
           report(name, shape, flops, 4.0 * (double)(m * k + k * n + m * n), run_gemm, &args);
}

static void roofs(void)
{
    arena_used = 0;
    int64_t count = 1 << 25;
    tsr_widen_args copy = {.out = take(count), .in = random_floats(count, 1, 0), .count = count};
    copy_roof = 8.0 * (double)count / report("copy roof", "2^25", 0, 0, run_widen, &copy);
    gemm_roof = gemm(1024, 1024, 1024, false, true, "gemm roof");
}

/* t tokens, width d, f of the MLP, rank r. */
static void matmuls(int64_t t, int64_t d, int64_t f, int64_t r)
{
    gemm(t, d, d, false, true, "gemm q");
    gemm(t, f, d, false, true, "gemm up");
    gemm(t, d, f, false, true, "gemm down");
    gemm(t, d, f, false, false, "gemm dx of up");
    gemm(t, r, d, false, true, "gemm x A^T");
    gemm(t, f, r, false, true, "gemm h B^T");
    gemm(r, d, t, true, false, "gemm dA");
    gemm(f, r, t, true, false, "gemm dB");
}

static void dequantize(int64_t rows, int64_t columns)
{
    arena_used = 0;
    static uint8_t codes[1 << 24];
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)tsr_mix(i);
    float *level = random_floats(16, 1, 0);
    int64_t count = rows * columns;
    tsr_nf4_dequant_args args = {.out = take(count),
                                 .codes = codes,
                                 .absmax = codes,
                                 .nested_absmax = random_floats(count / 64 / 256 + 1, 1, 2),
                                 .nested_map = random_floats(256, 1, 0),
                                 .level = level,
                                 .count = count,
                                 .nested = true};
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)rows, (long long)columns);
    report("nf4_dequant", shape, 0, (double)count * (4 + 0.5 + 1.0 / 64), run_nf4_dequant, &args);
}

static void norms(int64_t t, int64_t d)
{
    arena_used = 0;
    int64_t count = t * d;
    float *x = random_floats(count, 1, 0), *w = random_floats(d, 1, 1), *rstd = take(t);
    float *h = take(count), *n = random_floats(d, 0.5f, 1), *dm = take(d);
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)t, (long long)d);
    tsr_rms_norm_args norm = {.x = x,
                              .z = random_floats(count, 1, 0),
                              .g = w,
                              .w = {w, TSR_F32},
                              .x_out = take(count),
                              .h = h,
                              .rstd = rstd,
                              .tokens = t,
                              .d = d,
                              .eps = 1e-5f};
    report("rms_norm", shape, 0, 16.0 * (double)count, run_rms_norm, &norm);
    tsr_rms_norm_backward_args back = {h, x, rstd, {w, TSR_F32}, take(count), t, d, false, TSR_F32};
    report("rms_norm_backward", shape, 0, 16.0 * (double)count, run_rms_norm_backward, &back);
    tsr_compose_backward_args scale = {x, h, w, n, NULL, take(count), dm, t, d, 1, TSR_F32};
    report("g dy and dm", shape, 0, 12.0 * (double)count, run_compose_backward, &scale);
    tsr_compose_args compose = {.base = x,
                                .base_dropped = h,
                                .lora = norm.z,
                                .g = w,
                                .y = take(count),
                                .inner = take(count),
                                .tokens = t,
                                .d = d,
                                .scale = 2};
    report("compose", shape, 0, 20.0 * (double)count, run_compose, &compose);
    tsr_compose_backward_args compose_back = {x,  h, w, n, take(count), take(count),
                                              dm, t, d, 2, TSR_F32};
    report("compose_backward", shape, 0, 16.0 * (double)count, run_compose_backward, &compose_back);
}

/* DoRA's norm of a weight [rows, columns] with an adapter of rank r, after its matmuls. */
static void dora(int64_t rows, int64_t columns, int64_t r)
{
    arena_used = 0;
    float *squares = take(rows), *m = random_floats(rows, 0.5f, 1);
    tsr_row_square_norm_args square = {squares, random_floats(rows * columns, 1, 0), rows, columns,
                                       TSR_F32};
    tsr_dora_norm_args norm = {.n = take(rows),
                               .g = take(rows),
                               .m = m,
                               .squares = squares,
                               .u = random_floats(rows * r, 1, 0),
                               .bg = random_floats(rows * r, 1, 0),
                               .b = random_floats(rows * r, 1, 0),
                               .rows = rows,
                               .r = r,
                               .scale = 2};
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)rows, (long long)columns);
    report("row_square_norm", shape, 0, 4.0 * (double)(rows * columns), run_row_square_norm,
           &square);
    snprintf(shape, sizeof shape, "%lld rows, r %lld", (long long)rows, (long long)r);
    report("dora_norm", shape, 0, 12.0 * (double)(rows * r), run_dora_norm, &norm);
}

static void mlp(int64_t t, int64_t f)
{
    arena_used = 0;
    int64_t count = t * f;
    float *gate = random_floats(count, 3, 0), *up = random_floats(count, 1, 0);
    float *g = random_floats(f, 0.5f, 1), *act = take(count), *dm = take(2 * f);
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)t, (long long)f);
    tsr_swiglu_args forward = {
        .z_gate = gate, .z_up = up, .g_gate = g, .g_up = g, .act = act, .tokens = t, .f = f};
    report("swiglu", shape, 0, 12.0 * (double)count, run_swiglu, &forward);
    tsr_swiglu_backward_args back = {.dact = act,
                                     .z_gate = gate,
                                     .z_up = up,
                                     .g_gate = g,
                                     .g_up = g,
                                     .dz_gate = take(count),
                                     .dz_up = take(count),
                                     .n_gate = g,
                                     .n_up = g,
                                     .dm_gate = dm,
                                     .dm_up = dm + f,
                                     .tokens = t,
                                     .f = f};
    report("swiglu_backward with dm", shape, 0, 20.0 * (double)count, run_swiglu_backward, &back);
    back.dm_gate = back.dm_up = NULL;
    report("swiglu_backward", shape, 0, 20.0 * (double)count, run_swiglu_backward, &back);
}

static void rope(int64_t t, int32_t hq, int32_t hkv, int32_t dim)
{
    arena_used = 0;
    int64_t width = (int64_t)(hq + 2 * hkv) * dim, half = dim / 2;
    int32_t *positions = (int32_t *)take(t);
    for (int64_t i = 0; i < t; i++)
        positions[i] = (int32_t)(i % 256);
    tsr_rope_shape heads = {.cosine = random_floats(256 * half, 1, 0),
                            .sine = random_floats(256 * half, 1, 0),
                            .positions = positions,
                            .tokens = t,
                            .q_heads = hq,
                            .kv_heads = hkv,
                            .head_dim = dim,
                            .position_count = 256};
    tsr_rope_qkv_args args = {.shape = heads};
    tsr_rope_qkv_backward_args back = {.shape = heads};
    for (int p = 0; p < 3; p++) {
        int64_t part = (int64_t)(p ? hkv : hq) * dim;
        float *g = random_floats(part, 0.5f, 1), *z = random_floats(t * part, 1, 0);
        float *out = take(t * part);
        args.part[p] = (tsr_rope_part){.z = z, .out = out, .g = g};
        back.part[p] = (tsr_rope_backward_part){
            .dout = out, .z = z, .dz = take(t * part), .g = g, .n = g, .dm = take(part)};
    }
    char shape[64];
    snprintf(shape, sizeof shape, "%lld tokens, %d+2x%d heads of %d", (long long)t, hq, hkv, dim);
    report("rope_qkv", shape, 0, 8.0 * (double)(t * width), run_rope_qkv, &args);
    report("rope_qkv_backward", shape, 0, 12.0 * (double)(t * width), run_rope_qkv_backward, &back);
}

static void attention(int32_t documents, int32_t length, int32_t hq, int32_t hkv, int32_t dim)
{
    arena_used = 0;
    int64_t t = (int64_t)documents * length, q = t * hq * dim, kv = t * hkv * dim;
    int32_t *cu = (int32_t *)take(documents + 1);
    for (int32_t i = 0; i <= documents; i++)
        cu[i] = i * length;
    uint64_t bytes =
        tsr_attention_workspace_bytes(&(tsr_attention_bounds){.tokens = t, .q_heads = hq});
    tsr_attention_args args = {.q = random_floats(q, 1, 0),
                               .k = random_floats(kv, 1, 0),
                               .v = random_floats(kv, 1, 0),
                               .o = take(q),
                               .lse = take(t * hq),
                               .shape = {.cu_seqlens = cu,
                                         .workspace = take((int64_t)bytes / 4 + 1),
                                         .workspace_bytes = bytes,
                                         .tokens = t,
                                         .documents = documents,
                                         .q_heads = hq,
                                         .kv_heads = hkv,
                                         .head_dim = dim}};
    tsr_attention_backward_args back = {.q = args.q,
                                        .k = args.k,
                                        .v = args.v,
                                        .o = args.o,
                                        .d_o = random_floats(q, 1, 0),
                                        .lse = args.lse,
                                        .dq = take(q),
                                        .dk = take(kv),
                                        .dv = take(kv),
                                        .shape = args.shape};
    char shape[64];
    snprintf(shape, sizeof shape, "%dx%d, %d:%d heads of %d", documents, length, hq, hkv, dim);
    double pairs = (double)documents * hq * (double)length * (length + 1) / 2;
    report("attention", shape, 4 * pairs * dim, 8.0 * (double)(q + kv), run_attention, &args);
    report("attention_backward", shape, 10 * pairs * dim, 16.0 * (double)(q + kv),
           run_attention_backward, &back);
}

static tsr_status head_again(void *args, tsr_pool *p)
{
    tsr_head_chunk_args *chunk = args;
    tsr_head_begin_args begin = {chunk->state, chunk->rows, chunk->d};
    TSR_TRY(tsr_head_begin_ref(&begin, p));
    return run_head_chunk(args, p);
}

static void head(int64_t rows, int64_t d, int64_t vocabulary)
{
    arena_used = 0;
    uint64_t bytes = tsr_head_workspace_bytes(&(tsr_head_bounds){.d = d});
    uint16_t *w = (uint16_t *)take(vocabulary * d / 2);
    for (int64_t i = 0; i < vocabulary * d; i++)
        w[i] = tsr_f32_to_bf16(tsr_philox_uniform((uint32_t)tsr_mix((uint64_t)i)) - 0.5f);
    int32_t *labels = (int32_t *)take(rows);
    for (int64_t i = 0; i < rows; i++)
        labels[i] = (int32_t)(tsr_mix((uint64_t)i) % (uint64_t)vocabulary);
    tsr_head_chunk_args args = {
        .state = {take(rows), take(rows), take(rows), take(rows * d), take(rows * d)},
        .h = random_floats(rows * d, 1, 0),
        .w = {w, TSR_BF16},
        .labels = labels,
        .workspace = take((int64_t)bytes / 4),
        .workspace_bytes = bytes,
        .rows = rows,
        .d = d,
        .count = vocabulary};
    char shape[64];
    snprintf(shape, sizeof shape, "%lld rows, %lldx%lld", (long long)rows, (long long)vocabulary,
             (long long)d);
    double flops = 4.0 * (double)rows * (double)vocabulary * (double)d;
    report("head", shape, flops, 2.0 * (double)(vocabulary * d), head_again, &args);
    args.state.acc = args.state.wy = NULL;
    report("head, loss only", shape, flops / 2, 2.0 * (double)(vocabulary * d), head_again, &args);
}

int main(int count, char **arguments)
{
    tsr_device *device;
    tsr_device_options options = {.thread_count = count > 1 ? atoi(arguments[1]) : 0};
    arena = aligned_alloc(64, ARENA * sizeof(float));
    if (!arena || tsr_device_create_cpu(&device, &options) != TSR_OK) {
        fprintf(stderr, "no memory or no device: %s\n", tsr_last_error());
        return 1;
    }
    pool = tsr_device_pool(device);
    printf("{\n  \"threads\": %d,\n  \"kernel_set\": \"%s\",\n  \"ops\": [\n",
           tsr_pool_thread_count(pool), tsr_kernels_cpu_set());
    roofs();
    matmuls(1024, 256, 704, 8);
    matmuls(256, 256, 704, 16);
    matmuls(512, 2048, 5632, 64);
    dequantize(704, 256);
    dequantize(5632, 2048);
    norms(1024, 256);
    norms(512, 4096);
    dora(704, 256, 16);
    dora(5632, 2048, 64);
    mlp(1024, 704);
    mlp(512, 5632);
    rope(1024, 4, 2, 64);
    rope(512, 32, 8, 64);
    attention(4, 256, 4, 2, 64);
    attention(1, 2048, 8, 2, 64);
    head(1024, 256, 4096);
    head(200, 256, 4096);
    head(256, 2048, 8192);
    printf("\n  ],\n  \"roofs\": {\"gemm_gflops\": %.1f, \"copy_gbps\": %.1f}\n}\n",
           gemm_roof * 1e-9, copy_roof * 1e-9);
    tsr_device_destroy(device);
    free(arena);
    return 0;
}
