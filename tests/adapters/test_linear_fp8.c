/*
 * test_linear_fp8.c: one linear with an NF4 base whose matmuls run in e4m3, forward and backward.
 *
 * wiring     against sums in double of the values that the ops quantize to: LoRA, DoRA, DoRA with
 *            dropout; in widths of whole blocks of NF4 and others
 * accuracy   against sums in double with the weights before NF4: the error is at most 1.15 times what
 *            NF4 alone makes, at an 8B model's statistics
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "adapters/linear.h"
#include "base/philox.h"
#include "kernels/fp8.h"
#include "support/golden.h"

#define SCALE      1.5
#define P          0.25
#define TOLERANCE  5e-6 /* of the largest value: fp32 sums of a few hundred products */
#define MOST       1.15 /* times NF4's own error */
#define MOST_TAKEN 128

typedef struct {
    int tokens, in, out, r;
} shape;

/* All in fp32; the last four are results. */
typedef struct {
    shape s;
    tsr_device *device;
    tsr_stream *stream;
    float *weight, *x, *dz, *a, *b, *m, *z, *y, *dx, *da, *db, *dm;
    uint8_t *codes;
    float *absmax;
    float *squares, *n, *g, *dropped;
    double *w;  /* [out, in]: the values that the matmul uses */
    double *xq; /* [tokens, in]: the same of x, or of drop(x) */
    tsr_linear linear;
    tsr_linear_context context;
    void *taken[MOST_TAKEN];
    int taken_count;
} fixture;

static void *take(fixture *f, size_t bytes)
{
    void *memory = calloc(1, bytes + 1);
    assert_non_null(memory);
    assert_true(f->taken_count < MOST_TAKEN);
    return f->taken[f->taken_count++] = memory;
}

static float *floats(fixture *f, int count)
{
    return take(f, (size_t)count * sizeof(float));
}

/* About N(0, 1). */
static double normal(uint64_t key, int i)
{
    double sum = -2;
    for (int part = 0; part < 4; part++)
        sum += (double)tsr_philox_uniform(tsr_philox_at(key, 3, (uint64_t)i).word[part]);
    return sum * sqrt(3);
}

static float *normals(fixture *f, uint64_t key, int count, double size)
{
    float *out = floats(f, count);
    for (int i = 0; i < count; i++)
        out[i] = (float)(size * normal(key, i));
    return out;
}

static void run(fixture *f, tsr_status status)
{
    assert_int_equal(status, TSR_OK);
    assert_int_equal(tsr_stream_synchronize(f->stream), TSR_OK);
}

static void quantize_base(fixture *f)
{
    int count = f->s.in * f->s.out;
    uint64_t bad = UINT64_MAX;
    f->codes = take(f, (size_t)count);
    f->absmax = floats(f, count / 64 + 1);
    const tsr_nf4_quantize_args args = {.codes = f->codes,
                                        .absmax = f->absmax,
                                        .bad = &bad,
                                        .values = f->weight,
                                        .count = count,
                                        .dtype = TSR_F32};
    run(f, tsr_kernels_cpu()->nf4_quantize(f->stream, &args));
}

static void make_context(fixture *f)
{
    const shape *s = &f->s;
    int widest = s->in > s->out ? s->in : s->out;
    f->context = (tsr_linear_context){
        .kernels = tsr_kernels_cpu(), .stream = f->stream, .dtype = TSR_F32, .tokens = s->tokens};
    f->context.weight = floats(f, s->in * s->out);
    f->context.low = floats(f, s->tokens * s->r);
    f->context.d_low = floats(f, s->tokens * s->r);
    f->context.dropped = floats(f, s->tokens * s->in);
    f->context.d_dropped = floats(f, s->tokens * s->in);
    f->context.lora = floats(f, s->tokens * s->out);
    f->context.fp8 = (tsr_linear_fp8){.on = true,
                                      .weight = take(f, (size_t)(s->in * s->out)),
                                      .weight_scale = floats(f, s->out),
                                      .rows = take(f, (size_t)(s->tokens * widest)),
                                      .row_scale = floats(f, s->tokens)};
    for (int i = 0; i < TSR_LINEAR_MADE; i++) {
        f->context.fp8.made_weight_scale[i] = floats(f, s->out);
        f->context.fp8.made_row_scale[i] = floats(f, s->tokens);
    }
    int64_t *samples = take(f, (size_t)s->tokens * sizeof *samples);
    int32_t *positions = take(f, (size_t)s->tokens * sizeof *positions);
    for (int t = 0; t < s->tokens; t++)
        positions[t] = t;
    f->context.samples = samples;
    f->context.positions = positions;
}

/* x as a norm leaves it, with some channels far larger than the others; weights as a normal
 * distribution of deviation 0.02; gradients of tokens of unequal size. */
static fixture *open_fixture(const shape *s)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->s = *s;
    tsr_device_options options = {.thread_count = 2, .no_pinning = true};
    assert_int_equal(tsr_device_create_cpu(&f->device, &options), TSR_OK);
    assert_int_equal(tsr_stream_create(&f->stream, f->device, "compute"), TSR_OK);
    f->weight = normals(f, 1, s->in * s->out, 0.02);
    f->x = normals(f, 2, s->tokens * s->in, 1);
    f->dz = normals(f, 3, s->tokens * s->out, 1e-4);
    for (int i = 0; i < s->tokens * s->in; i++)
        f->x[i] *= i % s->in % 97 == 5 ? 15 : 1;
    for (int i = 0; i < s->tokens * s->out; i++)
        f->dz[i] *= 1 + (float)(i / s->out % 7);
    f->a = normals(f, 4, s->r * s->in, 0.03);
    f->b = normals(f, 5, s->out * s->r, 0.01);
    f->m = floats(f, s->out);
    f->z = floats(f, s->tokens * s->out);
    f->y = floats(f, s->tokens * s->out);
    f->dx = floats(f, s->tokens * s->in);
    f->da = floats(f, s->r * s->in);
    f->db = floats(f, s->out * s->r);
    f->dm = floats(f, s->out);
    f->squares = floats(f, s->out);
    f->n = floats(f, s->out);
    f->g = floats(f, s->out);
    f->dropped = floats(f, s->tokens * s->in);
    f->w = take(f, (size_t)(s->in * s->out) * sizeof *f->w);
    f->xq = take(f, (size_t)(s->tokens * s->in) * sizeof *f->xq);
    quantize_base(f);
    make_context(f);
    f->linear =
        (tsr_linear){.out = (uint64_t)s->out,
                     .in = (uint64_t)s->in,
                     .weight = {.codes = f->codes, .absmax = f->absmax, .level = tsr_nf4_level},
                     .r = (uint64_t)s->r,
                     .scale = SCALE,
                     .a = f->a,
                     .b = f->b};
    return f;
}

static void close_fixture(fixture *f)
{
    for (int i = 0; i < f->taken_count; i++)
        free(f->taken[i]);
    tsr_stream_destroy(f->stream);
    tsr_device_destroy(f->device);
    free(f);
}

/* ---- values that the ops quantize to ---- */

static void values_of_rows(fixture *f, double *out, const float *x, const float *factor, int width)
{
    uint8_t *codes = take(f, (size_t)(f->s.tokens * width));
    float *scale = floats(f, f->s.tokens);
    const tsr_fp8_quantize_args args = {.out = codes,
                                        .scale = scale,
                                        .x = x,
                                        .column_factor = factor,
                                        .tokens = f->s.tokens,
                                        .d = width,
                                        .dtype = TSR_F32};
    run(f, tsr_kernels_cpu()->fp8_quantize(f->stream, &args));
    for (int i = 0; i < f->s.tokens * width; i++)
        out[i] = (double)scale[i / width] * (double)tsr_e4m3_to_f32(codes[i]);
}

/* From the transposed codes, which the backward uses; the forward's must be the same. */
static float *values_of_weight(fixture *f)
{
    const shape *s = &f->s;
    int count = s->in * s->out;
    uint8_t *codes = take(f, (size_t)count);
    float *scale = floats(f, s->out);
    const tsr_fp8_decode_args args = {.weight = {.out = codes,
                                                 .codes = f->codes,
                                                 .absmax = f->absmax,
                                                 .level = tsr_nf4_level,
                                                 .count = count,
                                                 .columns = s->in,
                                                 .dtype = TSR_F8_E4M3},
                                      .scale = scale,
                                      .transposed = true};
    run(f, tsr_kernels_cpu()->fp8_decode(f->stream, &args));
    for (int i = 0; i < count; i++) {
        int row = i / s->in, column = i % s->in;
        f->w[i] = (double)scale[row] * (double)tsr_e4m3_to_f32(codes[column * s->out + row]);
        double nf4 = (double)tsr_nf4_level[f->codes[i / 2] >> (i % 2 ? 0 : 4) & 15] *
                     (double)f->absmax[i / 64];
        assert_true(fabs(f->w[i] - nf4) <= fabs(nf4) / 16 + (double)scale[row] * 0x1p-10);
    }
    return scale;
}

/* ---- sums in double ---- */

static void compare(const char *name, const char *what, const float *ours, const double *want,
                    int count)
{
    char label[64];
    double largest = 0, difference = 0;
    for (int i = 0; i < count; i++) {
        largest = worse(largest, fabs(want[i]));
        difference = worse(difference, fabs((double)ours[i] - want[i]));
    }
    snprintf(label, sizeof label, "%s %s", name, what);
    judge(label, difference / largest, TOLERANCE);
}

/* out [t, n] += alpha a [t, k] b, b [n, k]; or b [k, n] with `plain`. */
static void add_product(double *out, const double *a, const double *b, int t, int n, int k,
                        double alpha, bool plain)
{
    for (int i = 0; i < t; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += a[i * k + l] * b[plain ? l * n + j : j * k + l];
            out[i * n + j] += alpha * sum;
        }
}

static double *widened(fixture *f, const float *in, int count)
{
    double *out = take(f, (size_t)count * sizeof *out);
    for (int i = 0; i < count; i++)
        out[i] = (double)in[i];
    return out;
}

static double *zeros(fixture *f, int count)
{
    return take(f, (size_t)count * sizeof(double));
}

/* s B A x [tokens, out]. */
static double *low_rank(fixture *f, const double *x)
{
    const shape *s = &f->s;
    double *low = zeros(f, s->tokens * s->r), *out = zeros(f, s->tokens * s->out);
    add_product(low, x, widened(f, f->a, s->r * s->in), s->tokens, s->r, s->in, 1, false);
    add_product(out, low, widened(f, f->b, s->out * s->r), s->tokens, s->out, s->r, SCALE, false);
    return out;
}

/* dx of d_base through W in e4m3, and of d_lora (of B A x) through A and B. */
static double *gradient_of_x(fixture *f, const float *d_base, const double *d_lora)
{
    const shape *s = &f->s;
    double *dq = zeros(f, s->tokens * s->out), *out = zeros(f, s->tokens * s->in);
    double *low = zeros(f, s->tokens * s->r), *unscaled = zeros(f, s->in * s->out);
    const float *scale = values_of_weight(f);
    for (int i = 0; i < s->in * s->out; i++)
        unscaled[i] = f->w[i] / (double)scale[i / s->in];
    values_of_rows(f, dq, d_base, scale, s->out);
    add_product(out, dq, unscaled, s->tokens, s->in, s->out, 1, true);
    if (!d_lora)
        return out;
    add_product(low, d_lora, widened(f, f->b, s->out * s->r), s->tokens, s->r, s->out, 1, true);
    add_product(out, low, widened(f, f->a, s->r * s->in), s->tokens, s->in, s->r, 1, true);
    return out;
}

/* ---- wiring ---- */

static tsr_linear_norm_args norm_args(fixture *f, const float *m)
{
    int out = f->s.out, r = f->s.r;
    return (tsr_linear_norm_args){.squares = f->squares,
                                  .m = m,
                                  .n = f->n,
                                  .g = f->g,
                                  .u = floats(f, out * r),
                                  .bg = floats(f, out * r),
                                  .gram = floats(f, r * r)};
}

/* n of the weight that e4m3 has; g = 1 exactly where m is that of a fresh adapter. */
static void make_dora(fixture *f)
{
    const shape *s = &f->s;
    double *dense = zeros(f, s->in * s->out);
    float *b = f->b, *nothing = floats(f, s->out * s->r);
    tsr_linear_norm_args args = norm_args(f, NULL);
    values_of_weight(f);
    f->linear.b = nothing;
    run(f, tsr_linear_norm(&f->context, &f->linear, &args)); /* m is what n is */
    memcpy(f->m, f->n, (size_t)s->out * sizeof *f->m);
    args = norm_args(f, f->m);
    args.known = true;
    run(f, tsr_linear_norm(&f->context, &f->linear, &args));
    for (int j = 0; j < s->out; j++)
        assert_true(f->g[j] == 1);

    f->linear.b = b;
    run(f, tsr_linear_norm(&f->context, &f->linear, &args));
    add_product(dense, widened(f, b, s->out * s->r), widened(f, f->a, s->r * s->in), s->out, s->in,
                s->r, SCALE, true);
    for (int j = 0; j < s->out; j++) {
        double sum = 0;
        for (int i = 0; i < s->in; i++) {
            double value = f->w[j * s->in + i] + dense[j * s->in + i];
            sum += value * value;
        }
        if (!(fabs((double)f->n[j] - sqrt(sum)) <= 2e-6 * sqrt(sum)))
            fail_msg("n[%d] is %.9g, expected %.9g", j, (double)f->n[j], sqrt(sum));
        assert_true(f->g[j] == f->m[j] / f->n[j]);
    }
    f->linear.g = f->g;
    f->linear.n = f->n;
}

static void backward_of(fixture *f, const float *dz, tsr_fp8_rows dz8, bool add)
{
    const shape *s = &f->s;
    float *copy = floats(f, s->tokens * s->out);
    memcpy(copy, dz, (size_t)(s->tokens * s->out) * sizeof *copy);
    tsr_linear_gradients gradients = {.x = f->x,
                                      .dz = copy,
                                      .dz8 = dz8,
                                      .z = f->z,
                                      .dx = f->dx,
                                      .add = add,
                                      .da = f->da,
                                      .db = f->db,
                                      .dm = f->dm};
    run(f, tsr_linear_backward(&f->context, &f->linear, &gradients));
}

static void backward(fixture *f, const float *dz, bool add)
{
    backward_of(f, dz, (tsr_fp8_rows){NULL}, add);
}

/* What an op that makes dz would put there; meanwhile another linear quantizes and decodes. */
static void expect_made_ahead(fixture *f, int which)
{
    const shape *s = &f->s;
    size_t bytes = (size_t)(s->tokens * s->in) * sizeof *f->dx;
    float *dx = take(f, bytes);
    tsr_fp8_rows rows;
    backward(f, f->dz, false);
    memcpy(dx, f->dx, bytes);
    uint8_t *codes = take(f, (size_t)(s->tokens * s->out));
    run(f, tsr_linear_gradient_rows(&rows, &f->context, &f->linear, codes, which));
    assert_ptr_equal(rows.out, codes);
    tsr_fp8_quantize_args args = tsr_fp8_rows_pass(rows, f->dz, s->tokens, s->out, TSR_F32);
    run(f, tsr_kernels_cpu()->fp8_quantize(f->stream, &args));
    memset(f->context.fp8.weight_scale, 0xff, (size_t)s->out * sizeof(float));
    memset(f->context.fp8.row_scale, 0xff, (size_t)s->tokens * sizeof(float));
    memset(f->context.fp8.rows, 0xff, (size_t)(s->tokens * s->out));
    memset(f->dx, 0, bytes);
    backward_of(f, f->dz, rows, false);
    assert_memory_equal(f->dx, dx, bytes);
}

/* With X A^T of the forward the backward gives the bits that it gives without. */
static void expect_kept(fixture *f)
{
    const shape *s = &f->s;
    size_t da_bytes = (size_t)(s->r * s->in) * sizeof(float);
    size_t db_bytes = (size_t)(s->out * s->r) * sizeof(float);
    float *low = floats(f, s->tokens * s->r), *dx = floats(f, s->tokens * s->in);
    float *da = floats(f, s->r * s->in), *db = floats(f, s->out * s->r);
    tsr_linear_gradients gradients = {
        .x = f->x, .low = low, .dz = f->dz, .dx = dx, .da = da, .db = db};
    backward(f, f->dz, false);
    run(f, tsr_linear_forward(&f->context, &f->linear, f->x, f->z, NULL, low));
    memset(f->context.low, 0xff, (size_t)(s->tokens * s->r) * sizeof(float));
    run(f, tsr_linear_backward(&f->context, &f->linear, &gradients));
    assert_memory_equal(dx, f->dx, (size_t)(s->tokens * s->in) * sizeof *dx);
    assert_memory_equal(da, f->da, da_bytes);
    assert_memory_equal(db, f->db, db_bytes);
}

static void test_adapter(const shape *s, const char *name)
{
    fixture *f = open_fixture(s);
    int inputs = s->tokens * s->in, outputs = s->tokens * s->out;
    values_of_weight(f);
    values_of_rows(f, f->xq, f->x, NULL, s->in);
    double *want = low_rank(f, widened(f, f->x, inputs));
    add_product(want, f->xq, f->w, s->tokens, s->out, s->in, 1, false);
    run(f, tsr_linear_input(&f->context, f->x, s->in));
    run(f, tsr_linear_forward(&f->context, &f->linear, f->x, f->z, NULL, NULL));
    compare(name, "z", f->z, want, outputs);
    run(f, tsr_linear_forward(&f->context, &f->linear, f->x, f->y, NULL,
                              NULL)); /* of the same input */
    assert_memory_equal(f->z, f->y, (size_t)outputs * sizeof *f->z);

    double *d_lora = widened(f, f->dz, outputs);
    for (int i = 0; i < outputs; i++)
        d_lora[i] *= SCALE;
    want = gradient_of_x(f, f->dz, d_lora);
    backward(f, f->dz, false);
    compare(name, "dx", f->dx, want, inputs);
    backward(f, f->dz, true);
    for (int i = 0; i < inputs; i++)
        want[i] *= 2;
    compare(name, "dx added", f->dx, want, inputs);
    expect_kept(f);
    for (int which = 0; which < TSR_LINEAR_MADE; which++)
        expect_made_ahead(f, which);
    f->linear.r = 0;
    expect_made_ahead(f, 0);
    want = gradient_of_x(f, f->dz, NULL);
    backward(f, f->dz, false);
    compare(name, "dx without an adapter", f->dx, want, inputs);
    close_fixture(f);
}

static const shape wide = {24, 320, 96, 8}, crossing = {19, 176, 80, 8};

static void test_lora(void **state)
{
    (void)state;
    test_adapter(&wide, "lora");
    test_adapter(&crossing, "blocks across rows");
}

static void test_norms(void **state)
{
    (void)state;
    fixture *f = open_fixture(&wide);
    make_dora(f);
    close_fixture(f);
}

/* d = drop(x), as the linear makes it. */
static void drop_input(fixture *f)
{
    const shape *s = &f->s;
    f->linear.drops = true;
    f->linear.dropout = tsr_dropout_make(P, 1, 0, 7);
    const tsr_dropout_args drop = {.out = f->dropped,
                                   .x = f->x,
                                   .samples = f->context.samples,
                                   .positions = f->context.positions,
                                   .dropout = f->linear.dropout,
                                   .tokens = s->tokens,
                                   .columns = s->in,
                                   .dtype = TSR_F32};
    run(f, tsr_kernels_cpu()->dropout(f->stream, &drop));
}

/* z = W x + s B A d: the base's x is the whole one. */
static void test_lora_dropout(void **state)
{
    (void)state;
    const shape *s = &wide;
    fixture *f = open_fixture(s);
    int inputs = s->tokens * s->in, outputs = s->tokens * s->out;
    drop_input(f);
    values_of_weight(f);
    values_of_rows(f, f->xq, f->x, NULL, s->in);
    double *want = low_rank(f, widened(f, f->dropped, inputs));
    add_product(want, f->xq, f->w, s->tokens, s->out, s->in, 1, false);
    run(f, tsr_linear_input(&f->context, f->x, s->in));
    run(f, tsr_linear_forward(&f->context, &f->linear, f->x, f->z, NULL, NULL));
    compare("lora, dropout", "z", f->z, want, outputs);
    close_fixture(f);
}

/* y = W x + (g - 1) W d + g s B A d, d = drop(x): both of W's in e4m3, and x's is left for the next
 * linear that reads it. */
static void test_dora_dropout(void **state)
{
    (void)state;
    const shape *s = &wide;
    fixture *f = open_fixture(s);
    int inputs = s->tokens * s->in, outputs = s->tokens * s->out;
    make_dora(f);
    drop_input(f);
    double *inner = low_rank(f, widened(f, f->dropped, inputs)), *want = zeros(f, outputs);
    values_of_rows(f, f->xq, f->dropped, NULL, s->in);
    add_product(inner, f->xq, f->w, s->tokens, s->out, s->in, 1, false);
    values_of_rows(f, f->xq, f->x, NULL, s->in);
    double *of_x = zeros(f, outputs), *of_dropped = inner, *lora = NULL;
    add_product(of_x, f->xq, f->w, s->tokens, s->out, s->in, 1, false);
    lora = low_rank(f, widened(f, f->dropped, inputs));
    for (int i = 0; i < outputs; i++) {
        double g = (double)f->g[i % s->out], base = of_dropped[i] - lora[i];
        want[i] = of_x[i] + (g - 1) * base + g * lora[i];
    }
    run(f, tsr_linear_input(&f->context, f->x, s->in));
    uint8_t *rows = take(f, (size_t)inputs);
    memcpy(rows, f->context.fp8.rows, (size_t)inputs);
    run(f, tsr_linear_forward(&f->context, &f->linear, f->x, f->z, f->y, NULL));
    compare("dora, dropout", "y", f->y, want, outputs);
    compare("dora, dropout", "inner", f->z, inner, outputs);
    assert_memory_equal(rows, f->context.fp8.rows, (size_t)inputs);

    double *d_lora = widened(f, f->dz, outputs);
    float *d_base = floats(f, outputs);
    for (int i = 0; i < outputs; i++) {
        d_lora[i] *= SCALE * (double)f->g[i % s->out];
        d_base[i] = (f->g[i % s->out] - 1) * f->dz[i];
    }
    double *through = gradient_of_x(f, d_base, d_lora), *dx = gradient_of_x(f, f->dz, NULL);
    for (int i = 0; i < inputs; i++)
        dx[i] += f->dropped[i] != 0 ? through[i] / (1 - P) : 0;
    backward(f, f->dz, false);
    compare("dora, dropout", "dx", f->dx, dx, inputs);
    tsr_fp8_rows made = {.out = rows}; /* of two parts of dz: here it cannot be made ahead */
    run(f, tsr_linear_gradient_rows(&made, &f->context, &f->linear, rows, 0));
    assert_null(made.out);
    f->linear.drops = f->context.fp8.on = false;
    made.out = rows;
    run(f, tsr_linear_gradient_rows(&made, &f->context, &f->linear, rows, 0));
    assert_null(made.out);
    close_fixture(f);
}

/* ---- accuracy ---- */

static double distance(const double *a, const double *b, int count)
{
    double sum = 0, size = 0;
    for (int i = 0; i < count; i++) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(sum / size);
}

static void judge_accuracy(const char *what, const double *plain, const double *nf4,
                           const double *fp8, int count)
{
    double by_nf4 = distance(nf4, plain, count), by_both = distance(fp8, plain, count);
    char label[96];
    snprintf(label, sizeof label, "%s: NF4 alone %.4f, with e4m3 %.4f, e4m3 alone %.4f", what,
             by_nf4, by_both, distance(fp8, nf4, count));
    judge(label, by_both / by_nf4, MOST);
}

static void test_accuracy(void **state)
{
    (void)state;
    const shape s = {32, 2048, 256, 8};
    fixture *f = open_fixture(&s);
    int inputs = s.tokens * s.in, outputs = s.tokens * s.out;
    double *plain = widened(f, f->weight, s.in * s.out), *nf4 = zeros(f, s.in * s.out);
    double *x = widened(f, f->x, inputs), *dz = widened(f, f->dz, outputs);
    double *forward[2] = {zeros(f, outputs), zeros(f, outputs)};
    double *back[2] = {zeros(f, inputs), zeros(f, inputs)};
    for (int i = 0; i < s.in * s.out; i++)
        nf4[i] = (double)tsr_nf4_level[f->codes[i / 2] >> (i % 2 ? 0 : 4) & 15] *
                 (double)f->absmax[i / 64];
    for (int i = 0; i < 2; i++) {
        add_product(forward[i], x, i ? nf4 : plain, s.tokens, s.out, s.in, 1, false);
        add_product(back[i], dz, i ? nf4 : plain, s.tokens, s.in, s.out, 1, true);
    }
    f->linear.r = 0;
    run(f, tsr_linear_input(&f->context, f->x, s.in));
    run(f, tsr_linear_forward(&f->context, &f->linear, f->x, f->z, NULL, NULL));
    backward(f, f->dz, false);
    judge_accuracy("z", forward[0], forward[1], widened(f, f->z, outputs), outputs);
    judge_accuracy("dx", back[0], back[1], widened(f, f->dx, inputs), inputs);
    close_fixture(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lora),     cmocka_unit_test(test_lora_dropout),
        cmocka_unit_test(test_norms),    cmocka_unit_test(test_dora_dropout),
        cmocka_unit_test(test_accuracy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
