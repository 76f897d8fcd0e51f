/*
 * test_cuda_fp8.c: e4m3 on a GPU: fp8_quantize and fp8_decode give the reference's bytes, and ops that make
 * rows in e4m3 those of fp8_quantize.
 */
#include "cuda_test.h"

#include "kernels/fp8.h"
#include "kernels/kernels_cuda.h"

#define GUARD 64 /* bytes after an output that must stay as they were */

static void *new_output(uint64_t bytes, int offset)
{
    return (char *)cuda_copy(NULL, bytes + (uint64_t)offset + GUARD) + offset;
}

static void expect_bytes(const char *what, const void *device, const void *want, uint64_t bytes)
{
    uint8_t *got = malloc(bytes + GUARD);
    assert_non_null(got);
    cuda_read(got, device, bytes + GUARD);
    for (uint64_t i = 0; i < bytes; i++)
        if (got[i] != ((const uint8_t *)want)[i])
            fail_msg("%s: byte %llu of %llu is 0x%02x, want 0x%02x", what, (unsigned long long)i,
                     (unsigned long long)bytes, got[i], ((const uint8_t *)want)[i]);
    for (uint64_t i = bytes; i < bytes + GUARD; i++)
        if (got[i] != 0xff)
            fail_msg("%s: byte %llu behind the output was written", what,
                     (unsigned long long)(i - bytes));
    free(got);
}

/* The same bits, any NaN for a NaN. */
static void expect_scales(const char *what, const void *device, const float *want, int64_t count)
{
    float *got = cuda_floats(device, count, TSR_F32);
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&got[i], &want[i], 4) != 0 && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s: scale[%lld] is %a, want %a", what, (long long)i, (double)got[i],
                     (double)want[i]);
    free(got);
}

static uint8_t *new_bytes(int64_t count, uint64_t seed)
{
    uint8_t *out = malloc((size_t)count + 8);
    assert_non_null(out);
    for (int64_t i = 0; i < count; i += 8) {
        uint64_t word = tsr_mix((uint64_t)i * 0x9E3779B97F4A7C15u + seed);
        memcpy(out + i, &word, 8);
    }
    return out;
}

/* ---- fp8_quantize ---- */

typedef struct {
    int64_t tokens, d;
    bool factors;
    int x_offset, out_offset; /* elements, bytes */
} quantize_case;

/* Rows of every kind: plain, zeros, tiny, huge, of every code's midpoints, not finite. */
static float *new_rows(int64_t tokens, int64_t d, int offset)
{
    static const float magnitude[] = {1,        0, 1e-38f, 3e38f, 0x1p-133f, 0x1p-117f, 500,
                                      0x1p-20f, 1, 1,      1,     1,         1};
    const int kinds = sizeof magnitude / sizeof *magnitude;
    float *x = new_random(tokens * d + offset, 11, 1);
    for (int64_t t = 0; t < tokens; t++) {
        int kind = (int)(t % kinds);
        float *row = x + offset + t * d, *odd = &row[(t * 7 + 3) % d];
        for (int64_t j = 0; j < d; j++)
            row[j] *= magnitude[kind];
        for (int64_t j = 0; j < d && kind == 8; j++) /* with amax 448 these are midpoints */
            row[j] =
                (tsr_e4m3_to_f32((uint8_t)(j % 125)) + tsr_e4m3_to_f32((uint8_t)(j % 125 + 1))) /
                (j % 2 ? 2.0f : -2.0f);
        *odd = kind == 8 ? 448 : kind == 9 ? INFINITY : kind == 10 ? NAN : *odd;
    }
    return x;
}

static void one_quantize(const quantize_case *c, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    int64_t count = c->tokens * c->d;
    float *x = new_rows(c->tokens, c->d, c->x_offset), *factor = new_gain(c->d, 12);
    float *scale = new_floats(c->tokens);
    uint8_t *want = new_bytes(count, 1);
    char *device_x = cuda_values(x, count + c->x_offset, dtype);
    tsr_fp8_quantize_args args = {.out = want,
                                  .scale = scale,
                                  .x = x + c->x_offset,
                                  .column_factor = c->factors ? factor : NULL,
                                  .tokens = c->tokens,
                                  .d = c->d};
    RUN(tsr_fp8_quantize_ref(&args, rig.pool));
    args.dtype = dtype;
    args.out = new_output((uint64_t)count, c->out_offset);
    args.scale = new_output((uint64_t)c->tokens * 4, 0);
    args.x = device_x + (uint32_t)c->x_offset * tsr_dtype_bytes(dtype);
    if (c->factors)
        args.column_factor = cuda_copy(factor, (uint64_t)c->d * 4);
    RUN(rig.kernels->fp8_quantize(rig.stream, &args));
    char what[128];
    snprintf(what, sizeof what, "fp8_quantize of %s [%lld, %lld], %s factor, offsets %d, %d",
             tsr_dtype_name(dtype), (long long)c->tokens, (long long)c->d,
             c->factors ? "with" : "no", c->x_offset, c->out_offset);
    expect_scales(what, args.scale, scale, c->tokens);
    expect_bytes(what, args.out, want, (uint64_t)count);
    free(x), free(factor), free(scale), free(want);
    cuda_free_all();
}

static void rows_are_quantized(void **state)
{
    static const int64_t widths[] = {1,    7,    16,   48,   100,   512,   528,
                                     4096, 8192, 8208, 9000, 14336, 28672, 40000};
    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int factors = 0; factors < 2; factors++) {
            one_quantize(&(quantize_case){27, widths[i], factors, 0, 0}, TSR_BF16);
            one_quantize(&(quantize_case){14, widths[i], factors, 0, 0}, TSR_F32);
        }
    one_quantize(&(quantize_case){13, 64, true, 1, 0}, TSR_BF16);
    one_quantize(&(quantize_case){13, 64, false, 0, 3}, TSR_BF16);
    one_quantize(&(quantize_case){1, 4096, true, 0, 0}, TSR_BF16);
    one_quantize(&(quantize_case){1037, 4096, true, 0, 0}, TSR_BF16);
    one_quantize(&(quantize_case){301, 14336, true, 0, 0}, TSR_BF16); /* blocks have several rows */
    one_quantize(&(quantize_case){301, 16384, true, 0, 0}, TSR_BF16);
    one_quantize(&(quantize_case){9001, 64, true, 0, 0}, TSR_BF16);
    RUN(rig.kernels->fp8_quantize(rig.stream, &(tsr_fp8_quantize_args){.d = 8}));
    assert_int_equal(
        rig.kernels->fp8_quantize(rig.stream, &(tsr_fp8_quantize_args){.tokens = 1, .d = 8}),
        TSR_EINVAL);
}

/* All values of bf16, in a row whose scale is 1: the instruction rounds as the table of the format. */
static void every_value_is_converted(void **state)
{
    (void)state;
    enum { COUNT = 65536 };
    uint16_t *bits = calloc(COUNT, sizeof *bits);
    float *wide = new_floats(COUNT), scale;
    uint8_t *want = new_bytes(COUNT, 1);
    assert_non_null(bits);
    for (int i = 0; i < COUNT; i++)
        bits[i] = fabsf(tsr_bf16_to_f32((uint16_t)i)) <= 448 ? (uint16_t)i : 0;
    assert_true(tsr_widen_f32(wide, bits, TSR_BF16, COUNT));
    tsr_fp8_quantize_args args = {.out = want, .scale = &scale, .x = wide, .tokens = 1, .d = COUNT};
    RUN(tsr_fp8_quantize_ref(&args, rig.pool));
    assert_true(scale == 1);
    for (int64_t d = COUNT; d >= 8192; d /= 8) { /* one that is read twice, one that is held */
        tsr_fp8_quantize_args device = {.out = new_output(COUNT, 0),
                                        .scale = new_output((uint64_t)(COUNT / d) * 4, 0),
                                        .x = cuda_copy(bits, COUNT * 2),
                                        .tokens = COUNT / d,
                                        .d = d,
                                        .dtype = TSR_BF16};
        float *row_scale = new_floats(COUNT / d);
        args.scale = row_scale;
        args.tokens = COUNT / d, args.d = d;
        RUN(tsr_fp8_quantize_ref(&args, rig.pool));
        RUN(rig.kernels->fp8_quantize(rig.stream, &device));
        expect_scales("all of bf16", device.scale, row_scale, COUNT / d);
        expect_bytes("all of bf16", device.out, want, COUNT);
        free(row_scale);
    }
    free(bits), free(wide), free(want);
    cuda_free_all();
}

/* ---- rows that an op makes: as fp8_quantize would, of what it stores ---- */

static void *random_rows(int64_t count, uint64_t seed, float scale)
{
    float *values = new_random(count, seed, scale);
    void *out = cuda_values(values, count, TSR_BF16);
    free(values);
    return out;
}

static float *random_gain(int64_t count, uint64_t seed)
{
    float *values = new_gain(count, seed), *out = cuda_values(values, count, TSR_F32);
    free(values);
    return out;
}

static tsr_fp8_rows new_target(int64_t tokens, int64_t d, const float *factor)
{
    return (tsr_fp8_rows){new_output((uint64_t)(tokens * d), 0),
                          new_output((uint64_t)tokens * 4, 0), factor};
}

static void expect_rows(const char *what, tsr_fp8_rows rows, const void *stored, int64_t tokens,
                        int64_t d)
{
    uint64_t bytes = (uint64_t)(tokens * d);
    uint8_t *want = malloc(bytes);
    assert_non_null(want);
    tsr_fp8_quantize_args args = tsr_fp8_rows_pass(rows, stored, tokens, d, TSR_BF16);
    args.out = new_output(bytes, 0);
    args.scale = new_output((uint64_t)tokens * 4, 0);
    RUN(rig.kernels->fp8_quantize(rig.stream, &args));
    float *scale = cuda_floats(args.scale, tokens, TSR_F32);
    cuda_read(want, args.out, bytes);
    expect_scales(what, rows.scale, scale, tokens);
    expect_bytes(what, rows.out, want, bytes);
    free(want), free(scale);
}

/* What an op stores is what it stores without e4m3. */
static void expect_same(const char *what, const void *got, const void *want, int64_t count)
{
    uint64_t bytes = (uint64_t)count * 2;
    uint8_t *a = malloc(bytes), *b = malloc(bytes);
    assert_true(a && b);
    cuda_read(a, got, bytes);
    cuda_read(b, want, bytes);
    for (uint64_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s: byte %llu is 0x%02x, and 0x%02x without e4m3", what,
                     (unsigned long long)i, a[i], b[i]);
    free(a), free(b);
}

static void one_norm(int64_t tokens, int64_t d, bool adds, bool bad)
{
    if (!cuda_turn())
        return;
    int64_t count = tokens * d;
    float *x = new_random(count, 1, 2);
    x[count / 2] = bad ? NAN : x[count / 2];
    tsr_rms_norm_args args = {.x = cuda_values(x, count, TSR_BF16),
                              .z = adds ? random_rows(count, 2, 1) : NULL,
                              .g = adds ? random_gain(d, 3) : NULL,
                              .w = {random_gain(d, 4), TSR_F32},
                              .x_out = adds ? cuda_copy(NULL, (uint64_t)count * 2) : NULL,
                              .h = cuda_copy(NULL, (uint64_t)count * 2),
                              .tokens = tokens,
                              .d = d,
                              .eps = 1e-5f,
                              .dtype = TSR_BF16};
    tsr_rms_norm_args plain = args;
    plain.h = cuda_copy(NULL, (uint64_t)count * 2);
    args.h8 = new_target(tokens, d, NULL);
    RUN(rig.kernels->rms_norm(rig.stream, &plain));
    RUN(rig.kernels->rms_norm(rig.stream, &args));
    char what[64];
    snprintf(what, sizeof what, "h8 of [%lld, %lld]%s", (long long)tokens, (long long)d,
             adds ? " with z" : "");
    if (!bad)
        expect_same(what, args.h, plain.h, count);
    expect_rows(what, args.h8, args.h, tokens, d);
    free(x);
    cuda_free_all();
}

static void one_norm_back(int64_t tokens, int64_t d, bool overwrite, bool bad)
{
    if (!cuda_turn())
        return;
    int64_t count = tokens * d;
    float *dh = new_random(count, 1, 2), *old = new_random(count, 2, 1);
    dh[count / 2] = bad ? NAN : dh[count / 2];
    tsr_rms_norm_backward_args args = {.dh = cuda_values(dh, count, TSR_BF16),
                                       .x = random_rows(count, 3, 1),
                                       .rstd = random_gain(tokens, 4),
                                       .w = {random_gain(d, 5), TSR_F32},
                                       .dx = cuda_values(old, count, TSR_BF16),
                                       .tokens = tokens,
                                       .d = d,
                                       .overwrite = overwrite,
                                       .dtype = TSR_BF16};
    tsr_rms_norm_backward_args plain = args;
    plain.dx = cuda_values(old, count, TSR_BF16);
    args.dx8 = new_target(tokens, d, bad ? NULL : random_gain(d, 6));
    RUN(rig.kernels->rms_norm_backward(rig.stream, &plain));
    RUN(rig.kernels->rms_norm_backward(rig.stream, &args));
    char what[64];
    snprintf(what, sizeof what, "dx8 of [%lld, %lld]", (long long)tokens, (long long)d);
    if (!bad)
        expect_same(what, args.dx, plain.dx, count);
    expect_rows(what, args.dx8, args.dx, tokens, d);
    free(dh), free(old);
    cuda_free_all();
}

static void norms_are_quantized(void **state)
{
    static const int64_t widths[] = {8, 64, 100, 264, 4096, 8200, 16384, 20000};
    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int way = 0; way < 4; way++) {
            one_norm(5, widths[i], way % 2, way / 2);
            one_norm_back(5, widths[i], way % 2, way / 2);
        }
    one_norm(1031, 4096, true, false);
    one_norm_back(1031, 4096, false, false);
    assert_int_equal(
        rig.kernels->rms_norm(
            rig.stream,
            &(tsr_rms_norm_args){.d = 8, .x_out = &rig, .h8 = {.out = (uint8_t *)&rig}}),
        TSR_EINVAL);
}

static void one_swiglu(int64_t tokens, int64_t f, bool vectors, bool alias)
{
    if (!cuda_turn())
        return;
    int64_t count = tokens * f;
    tsr_swiglu_args args = {.z_gate = random_rows(count, 1, 6),
                            .z_up = random_rows(count, 2, 1),
                            .g_gate = vectors ? random_gain(f, 3) : NULL,
                            .g_up = vectors ? random_gain(f, 4) : NULL,
                            .act = cuda_copy(NULL, (uint64_t)count * 2),
                            .tokens = tokens,
                            .f = f,
                            .dtype = TSR_BF16};
    if (vectors)
        args.bias_gate = (tsr_frozen){random_rows(f, 5, 1), TSR_BF16};
    tsr_swiglu_args plain = args;
    RUN(rig.kernels->swiglu(rig.stream, &plain));
    args.act = alias ? (void *)args.z_gate : cuda_copy(NULL, (uint64_t)count * 2);
    args.act8 = new_target(tokens, f, NULL);
    RUN(rig.kernels->swiglu(rig.stream, &args));
    char what[64];
    snprintf(what, sizeof what, "act8 of [%lld, %lld]", (long long)tokens, (long long)f);
    expect_same(what, args.act, plain.act, count);
    expect_rows(what, args.act8, args.act, tokens, f);
    cuda_free_all();
}

static void one_back(int64_t tokens, int64_t f, bool sums, bool alias)
{
    if (!cuda_turn())
        return;
    int64_t count = tokens * f;
    float *factor_gate = random_gain(f, 8), *n = random_gain(f, 9);
    tsr_swiglu_backward_args args = {
        .dact = random_rows(count, 3, 1),
        .z_gate = random_rows(count, 1, 6),
        .z_up = random_rows(count, 2, 1),
        .g_gate = sums ? random_gain(f, 4) : NULL,
        .dz_gate = cuda_copy(NULL, (uint64_t)count * 2),
        .dz_up = cuda_copy(NULL, (uint64_t)count * 2),
        .n_gate = n,
        .dm_gate = sums ? cuda_copy(NULL, (uint64_t)f * 4) : NULL,
        .tokens = tokens,
        .f = f,
        .dtype = TSR_BF16,
        .partials =
            sums ? cuda_copy(NULL, (uint64_t)(rig.kernels->partial_rows * 2 * f) * 4) : NULL};
    tsr_swiglu_backward_args plain = args;
    RUN(rig.kernels->swiglu_backward(rig.stream, &plain));
    args.dz_gate = alias ? (void *)args.z_up : cuda_copy(NULL, (uint64_t)count * 2);
    args.dz_up = alias ? (void *)args.dact : cuda_copy(NULL, (uint64_t)count * 2);
    args.dz_gate8 = new_target(tokens, f, factor_gate);
    args.dz_up8 = new_target(tokens, f, alias ? NULL : n);
    RUN(rig.kernels->swiglu_backward(rig.stream, &args));
    char what[64];
    snprintf(what, sizeof what, "dz8 of [%lld, %lld]%s", (long long)tokens, (long long)f,
             sums ? " with dm" : "");
    expect_same(what, args.dz_gate, plain.dz_gate, count);
    expect_same(what, args.dz_up, plain.dz_up, count);
    expect_rows(what, args.dz_gate8, args.dz_gate, tokens, f);
    expect_rows(what, args.dz_up8, args.dz_up, tokens, f);
    cuda_free_all();
}

static void swiglu_is_quantized(void **state)
{
    static const int64_t widths[] = {8, 64, 100, 2048, 2056, 4104, 14336, 28672, 60000};
    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int way = 0; way < 4; way++) {
            one_swiglu(5, widths[i], way % 2, way / 2);
            one_back(5, widths[i], way % 2, way / 2);
        }
    one_swiglu(1031, 4096, false, false);
    one_back(1031, 4096, false, false);
    one_back(301, 14336, false, true); /* blocks have several rows */
    one_back(301, 28672, false, false);
}

/* ---- fp8_decode ---- */

typedef struct {
    int64_t rows, columns;
    bool nested;
    int out_offset, code_offset; /* bytes */
} decode_case;

static void one_decode(const decode_case *c, bool transposed)
{
    static const float odd[] = {0, -0.5f, 1e-40f, 3e38f, INFINITY, NAN};
    if (!cuda_turn())
        return;
    int64_t count = c->rows * c->columns, blocks = (count + 63) / 64;
    uint64_t code_bytes = (uint64_t)(count + 1) / 2 + (uint64_t)c->code_offset;
    uint8_t *codes = new_bytes((int64_t)code_bytes, 3), *q = new_bytes(blocks, 4);
    uint8_t *want = new_bytes(count, 1);
    float *absmax = new_gain(blocks, 5), *nested = new_random(blocks / 256 + 1, 6, 0.3f);
    float *map = new_random(256, 7, 1), *scale = new_floats(c->rows);
    for (int64_t i = 0; i < 6 && 37 * i + 2 < blocks; i++)
        absmax[37 * i + 2] = odd[i];
    tsr_fp8_decode_args args = {.weight = {.out = want,
                                           .codes = codes + c->code_offset,
                                           .absmax = c->nested ? (void *)q : (void *)absmax,
                                           .nested_absmax = nested,
                                           .nested_map = map,
                                           .level = tsr_nf4_level,
                                           .count = count,
                                           .columns = c->columns,
                                           .offset = 0.04f,
                                           .nested = c->nested,
                                           .dtype = TSR_F8_E4M3},
                                .scale = scale,
                                .transposed = transposed};
    RUN(tsr_fp8_decode_ref(&args, rig.pool));
    args.weight.out = new_output((uint64_t)count, c->out_offset);
    args.weight.codes = (uint8_t *)cuda_copy(codes, code_bytes) + c->code_offset;
    args.weight.absmax =
        c->nested ? cuda_copy(q, (uint64_t)blocks) : cuda_copy(absmax, (uint64_t)blocks * 4);
    args.weight.nested_absmax = cuda_copy(nested, (uint64_t)(blocks / 256 + 1) * 4);
    args.weight.nested_map = cuda_copy(map, 1024);
    args.weight.level = cuda_copy(tsr_nf4_level, 64);
    args.scale = new_output((uint64_t)c->rows * 4, 0);
    RUN(rig.kernels->fp8_decode(rig.stream, &args));
    char what[128];
    snprintf(what, sizeof what, "fp8_decode of [%lld, %lld]%s, %s scales, offsets %d, %d",
             (long long)c->rows, (long long)c->columns, transposed ? " transposed" : "",
             c->nested ? "nested" : "fp32", c->out_offset, c->code_offset);
    expect_scales(what, args.scale, scale, c->rows);
    expect_bytes(what, args.weight.out, want, (uint64_t)count);
    if (transposed) { /* in two steps: the scales, which the second only reads */
        void *out = new_output((uint64_t)count, c->out_offset);
        args.weight.out = NULL;
        args.scale = new_output((uint64_t)c->rows * 4, 0);
        RUN(rig.kernels->fp8_decode(rig.stream, &args));
        expect_scales(what, args.scale, scale, c->rows);
        args.weight.out = out;
        args.scaled = true;
        RUN(rig.kernels->fp8_decode(rig.stream, &args));
        expect_scales(what, args.scale, scale, c->rows);
        expect_bytes(what, args.weight.out, want, (uint64_t)count);
    }
    free(codes), free(q), free(want), free(absmax), free(nested), free(map), free(scale);
    cuda_free_all();
}

static void weights_are_decoded(void **state)
{
    static const int64_t rows[] = {1, 15, 16, 48, 127, 128, 144, 272};
    static const int64_t columns[] = {1, 16, 48, 64, 100, 128, 192, 320, 2048, 2112, 4096};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
            for (int way = 0; way < 4; way++)
                one_decode(&(decode_case){rows[i], columns[j], way / 2, 0, 0}, way % 2);
    for (int transposed = 0; transposed < 2; transposed++) {
        one_decode(&(decode_case){32, 128, true, 1, 0}, transposed);
        one_decode(&(decode_case){32, 128, true, 0, 8}, transposed);
        one_decode(&(decode_case){1024, 4096, true, 0, 0}, transposed);
        one_decode(&(decode_case){512, 14336, true, 0, 0}, transposed);
    }
    tsr_fp8_decode_args none = {.weight = {.columns = 64, .dtype = TSR_F8_E4M3}};
    RUN(rig.kernels->fp8_decode(rig.stream, &none));
    none.weight.count = 64;
    assert_int_equal(rig.kernels->fp8_decode(rig.stream, &none), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_quantized),  cmocka_unit_test(norms_are_quantized),
        cmocka_unit_test(swiglu_is_quantized), cmocka_unit_test(every_value_is_converted),
        cmocka_unit_test(weights_are_decoded),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
