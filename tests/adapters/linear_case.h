/*
 * tests/adapters/linear_case.h: a linear with its adapter on a device, made up, and what it gives by sums in
 * double; for the tests of its graphs. On the CPU in fp32, or on a GPU.
 */
#ifndef TSR_TESTS_ADAPTERS_LINEAR_CASE_H
#define TSR_TESTS_ADAPTERS_LINEAR_CASE_H

#include "adapters/graph_time.h"
#include "adapters/linear.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Of the root of the sum of squares. bf16: operands, W, the product in the middle and the result are
 * rounded to 2^-9 each; a product too few or a factor s is 1e-1 and more. */
static inline double tolerance(tsr_dtype dtype)
{
    return dtype == TSR_F32 ? 1e-6 : 5e-3;
}

#define ARENA_BYTES (64u << 20)
#define SCALE       0.75

static bool on_gpu;
static struct {
    tsr_device *device;
    tsr_stream *stream;
    const tsr_kernels *kernels;
} rig;

#define RUN(call)                                                                                  \
    do {                                                                                           \
        if ((call) != TSR_OK)                                                                      \
            fail_msg("%s: %s", #call, tsr_last_error());                                           \
    } while (0)

static inline int setup(void **state)
{
    const tsr_device_options options = {.thread_count = 2, .no_pinning = true};
    (void)state;
    RUN(on_gpu ? tsr_device_create_cuda(&rig.device, &options)
               : tsr_device_create_cpu(&rig.device, &options));
    RUN(tsr_stream_create(&rig.stream, rig.device, "compute"));
    RUN(tsr_kernels_open(&rig.kernels, rig.device));
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    tsr_stream_destroy(rig.stream);
    tsr_device_destroy(rig.device);
    return 0;
}

/* ---- one case: numbers on the host, and what the device has ---- */

typedef struct {
    int64_t t, in, out, r;
    tsr_dtype dtype;
    double update; /* the largest of B */
} spec;

typedef struct {
    spec spec;
    tsr_arena *arena;
    double *x, *dy, *a, *b, *w; /* what is multiplied */
    double *z, *dx, *da, *db;   /* what that gives */
    double *n;                  /* norms of the rows of W + s B A */
    tsr_linear_norm_args norm;
    float *magnitude; /* what its first norms were */
    bool fresh;       /* and there were none yet */
    tsr_linear linear;
    tsr_linear_context context;
    tsr_linear_gradients gradients;
    tsr_graph_book book;
    void *d_z, *low;
} linear_case;

static inline void *take(linear_case *c, uint64_t bytes)
{
    void *out = NULL;
    RUN(tsr_arena_take(&out, c->arena, "array", bytes));
    return out;
}

static inline double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(*state >> 11) * 0x1p-52 - 1;
}

/* Random numbers of the dtype on both sides. */
static inline double *numbers(void **device, linear_case *c, int64_t count, double most,
                              uint64_t seed)
{
    double *host = malloc((size_t)count * sizeof *host);
    char *raw = malloc((size_t)count * 4);
    uint32_t bytes = tsr_dtype_bytes(c->spec.dtype);
    assert_non_null(host);
    assert_non_null(raw);
    for (int64_t i = 0; i < count; i++) {
        float value = (float)(most * uniform(&seed));
        uint16_t low = tsr_f32_to_bf16(value);
        value = c->spec.dtype == TSR_BF16 ? tsr_bf16_to_f32(low) : value;
        host[i] = (double)value;
        memcpy(raw + i * bytes, c->spec.dtype == TSR_BF16 ? (void *)&low : (void *)&value, bytes);
    }
    *device = take(c, (uint64_t)count * bytes);
    RUN(tsr_device_write(rig.device, *device, raw, (uint64_t)count * bytes));
    free(raw);
    return host;
}

/* Codes and scales of W, and W as they say. */
static inline void make_weight(linear_case *c)
{
    int64_t count = c->spec.in * c->spec.out, blocks = (count + TSR_NF4_BLOCK - 1) / TSR_NF4_BLOCK;
    uint8_t *codes = malloc((size_t)count);
    float *absmax = malloc((size_t)blocks * sizeof *absmax);
    uint64_t seed = 5;
    assert_non_null(codes);
    assert_non_null(absmax);
    c->w = malloc((size_t)count * sizeof *c->w);
    assert_non_null(c->w);
    for (int64_t i = 0; i < blocks; i++)
        absmax[i] = (float)(0.05 * (1.5 + uniform(&seed)));
    for (int64_t i = 0; i < count / 2; i++)
        codes[i] = (uint8_t)(int)(128 + 127.9 * uniform(&seed));
    for (int64_t i = 0; i < count; i++) {
        int code = i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
        c->w[i] = (double)(tsr_nf4_level[code] * absmax[i / TSR_NF4_BLOCK]);
    }
    void *d_codes = take(c, (uint64_t)count / 2), *level = take(c, sizeof tsr_nf4_level);
    void *d_absmax = take(c, (uint64_t)blocks * sizeof(float));
    RUN(tsr_device_write(rig.device, d_codes, codes, (uint64_t)count / 2));
    RUN(tsr_device_write(rig.device, d_absmax, absmax, (uint64_t)blocks * sizeof(float)));
    RUN(tsr_device_write(rig.device, level, tsr_nf4_level, sizeof tsr_nf4_level));
    c->linear.weight = (tsr_base_weight){.codes = d_codes, .absmax = d_absmax, .level = level};
    free(codes);
    free(absmax);
}

/* out [m, n] (+)= factor op(a) b; a [m, k], or [k, m] with trans; b is [k, n]. Doubles are slow under a sanitizer, and not
 * what one is for. */
__attribute__((no_sanitize("address"), no_sanitize("undefined"))) static inline void
multiply(double *out, const double *a, const double *b, int64_t m, int64_t n, int64_t k, bool trans,
         double factor)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++) {
            double left = factor * (trans ? a[l * m + i] : a[i * k + l]);
            for (int64_t j = 0; j < n; j++)
                out[i * n + j] += left * b[l * n + j];
        }
}

static inline double *transposed(const double *a, int64_t rows, int64_t columns)
{
    double *out = malloc((size_t)(rows * columns) * sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[j * rows + i] = a[i * columns + j];
    return out;
}

static inline double *zeros(int64_t count)
{
    double *out = calloc(count > 0 ? (size_t)count : 1, sizeof *out);
    assert_non_null(out);
    return out;
}

/* With M = W + s B A: z = x M', dx = dy M, G = dy' x, da = s B' G, db = s G A'. */
static inline void make_reference(linear_case *c)
{
    int64_t t = c->spec.t, in = c->spec.in, out = c->spec.out, r = c->spec.r;
    double *g = zeros(out * in), *m = zeros(out * in);
    memcpy(m, c->w, (size_t)(out * in) * sizeof *m);
    multiply(m, c->b, c->a, out, in, r, false, SCALE);
    multiply(g, c->dy, c->x, out, in, t, true, 1);
    double *m_t = transposed(m, out, in), *a_t = transposed(c->a, r, in);
    c->n = zeros(out);
    for (int64_t i = 0; i < out * in; i++)
        c->n[i / in] += m[i] * m[i];
    for (int64_t i = 0; i < out; i++)
        c->n[i] = sqrt(c->n[i]);
    multiply(c->z = zeros(t * out), c->x, m_t, t, out, in, false, 1);
    multiply(c->dx = zeros(t * in), c->dy, m, t, in, out, false, 1);
    multiply(c->da = zeros(r * in), c->b, g, r, in, out, true, SCALE);
    multiply(c->db = zeros(out * r), g, a_t, out, r, in, false, SCALE);
    free(g);
    free(m);
    free(m_t);
    free(a_t);
}

static inline linear_case *begin(spec s)
{
    linear_case *c = calloc(1, sizeof *c);
    uint64_t element = tsr_dtype_bytes(s.dtype), t = (uint64_t)s.t, r = (uint64_t)s.r;
    assert_non_null(c);
    c->spec = s;
    RUN(tsr_arena_create(&c->arena, rig.device, TSR_MEMORY_DEVICE, ARENA_BYTES));
    c->linear = (tsr_linear){.out = (uint64_t)s.out, .in = (uint64_t)s.in, .r = r, .scale = SCALE};
    make_weight(c);
    void *x, *a, *b;
    c->x = numbers(&x, c, s.t * s.in, 1, 1);
    c->dy = numbers(&c->gradients.dz, c, s.t * s.out, 1, 2);
    c->a = numbers(&a, c, s.r * s.in, 0.1, 3);
    c->b = numbers(&b, c, s.out * s.r, s.update, 4);
    c->linear.a = a;
    c->linear.b = b;
    c->gradients.x = x;
    c->gradients.dx = take(c, t * c->linear.in * element);
    c->gradients.da = take(c, r * c->linear.in * sizeof(float));
    c->gradients.db = take(c, r * c->linear.out * sizeof(float));
    c->d_z = take(c, t * c->linear.out * element);
    c->low = take(c, t * r * element);
    c->context = (tsr_linear_context){.kernels = rig.kernels,
                                      .stream = rig.stream,
                                      .dtype = s.dtype,
                                      .tokens = s.t,
                                      .graphs = &c->book};
    c->context.weight = take(c, c->linear.out * c->linear.in * element);
    c->context.low = take(c, t * r * element);
    c->context.d_low = take(c, t * r * element);
    uint64_t out = c->linear.out, floats = sizeof(float);
    c->norm = (tsr_linear_norm_args){.n = take(c, out * floats), .g = take(c, out * floats)};
    c->norm.squares = take(c, out * floats);
    c->magnitude = take(c, out * floats);
    c->norm.partials = take(c, (uint64_t)tsr_nf4_merge_partials(s.out, s.in) * floats);
    c->norm.u = take(c, out * r * floats);
    c->norm.gram = take(c, r * r * floats);
    c->norm.b = take(c, out * r * floats);
    c->norm.bg = take(c, out * r * floats);
    make_reference(c);
    return c;
}

static inline void end(linear_case *c)
{
    double *host[] = {c->x, c->dy, c->a, c->b, c->w, c->z, c->dx, c->da, c->db, c->n};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
    tsr_arena_destroy(c->arena);
    free(c);
}

/* The distance from `want` by its length. */
static inline double distance(const void *device, const double *want, int64_t count,
                              tsr_dtype dtype, double factor)
{
    char *raw = malloc((size_t)count * 4);
    double length = 0, apart = 0;
    assert_non_null(raw);
    RUN(tsr_device_read(rig.device, raw, device, (uint64_t)count * tsr_dtype_bytes(dtype)));
    for (int64_t i = 0; i < count; i++) {
        float value;
        uint16_t low;
        memcpy(&value, raw + 4 * i * (dtype == TSR_F32), 4);
        memcpy(&low, raw + 2 * i, 2);
        double got = (double)(dtype == TSR_F32 ? value : tsr_bf16_to_f32(low));
        length += factor * want[i] * factor * want[i];
        apart += (got - factor * want[i]) * (got - factor * want[i]);
    }
    free(raw);
    return length > 0 ? sqrt(apart / length) : sqrt(apart);
}

/* In fp32 the merged graphs are not allowed, but must be right all the same. */
static inline bool can_run(const tsr_graph_shape *shape, tsr_graph_choice choice)
{
    tsr_graph_shape merging = *shape;
    merging.merges = shape->merges || shape->dtype == TSR_F32;
    return tsr_graph_allowed(&merging, choice);
}

/* Rounded once, it is no further away than what is added to a product; of a few numbers that is chance. */
static inline void expect_near(const spec *s, double apart, double plain)
{
    assert_true(apart < tolerance(s->dtype));
    if (s->dtype == TSR_BF16 && s->t >= 100)
        assert_true(apart <= 1.1 * plain);
}

static inline void over_dtypes(void (*check)(spec), spec s)
{
    s.dtype = TSR_F32;
    check(s);
    s.dtype = TSR_BF16;
    if (on_gpu)
        check(s);
}

/* The program's arguments: "cuda" for a GPU, of which there may be none. */
static inline bool case_is_skipped(int argc, char **argv)
{
    int count = 0;
    on_gpu = argc > 1 && strcmp(argv[1], "cuda") == 0;
    if (!on_gpu || (tsr_device_cuda_count(&count) == TSR_OK && count > 0))
        return false;
    printf("skipped: %s\n", count ? "" : tsr_last_error());
    return true;
}

/* Each case in each dtype. */
static inline void over_cases(void (*check)(spec))
{
    static const spec specs[] = {
        {1, 64, 8, 8, TSR_F32, 0.1},        {24, 64, 48, 8, TSR_F32, 0.1},
        {130, 192, 320, 16, TSR_F32, 0.1},  {257, 128, 1040, 24, TSR_F32, 1},
        {96, 96, 200, 16, TSR_F32, 0.1},    {384, 512, 768, 256, TSR_F32, 0.1},
        {200, 256, 256, 64, TSR_F32, 1e-4}, {33, 128, 64, 128, TSR_F32, 0}};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        over_dtypes(check, specs[i]);
}

#endif
