/*
 * test_fp8.c: e4m3 over all of its codes and around every midpoint; rows of activations, and of weights in
 * NF4, to e4m3, against a second writing of the rule in fp64 and by search.
 */
#include "kernels/byte_decode.h"
#include "kernels/fp8.h"
#include "kernels/fp8_decode.h"
#include "kernels/fp8_quantize.h"
#include "kernels/nf4_quantize.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"

#include "kernels/kernel_test.h"

/* ---- the format ---- */

/* From the definition: (1 + mantissa / 8) 2^(exponent - 7), or mantissa 2^-9. */
static double value_of(int code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -value : value;
}

static void every_code_has_its_value(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        float value = tsr_e4m3_to_f32((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(value));
            continue;
        }
        assert_true((double)value == value_of(code));
        assert_int_equal(signbit(value) != 0, code >> 7);
        assert_int_equal(tsr_f32_to_e4m3(value), code);
    }
    assert_true(tsr_e4m3_to_f32(0x7e) == TSR_E4M3_MAX);
}

static void expect_code(float value, int want)
{
    int got = tsr_f32_to_e4m3(value), negative = tsr_f32_to_e4m3(-value);
    if (got != want || negative != (want | 0x80))
        fail_msg("%a is 0x%02x and 0x%02x, want 0x%02x", (double)value, got, negative, want);
}

/* Ties go to the even code; what is beside a midpoint to the nearer. */
static void midpoints_round_to_even(void **state)
{
    (void)state;
    for (int code = 0; code < 0x7e; code++) {
        float middle = (float)((value_of(code) + value_of(code + 1)) / 2);
        expect_code(middle, code % 2 ? code + 1 : code);
        expect_code(nextafterf(middle, 0), code);
        expect_code(nextafterf(middle, INFINITY), code + 1);
        expect_code(nextafterf((float)value_of(code + 1), 0), code + 1);
        expect_code(nextafterf((float)value_of(code), INFINITY), code);
    }
}

static void what_is_too_large_saturates(void **state)
{
    (void)state;
    const float large[] = {448, 449, 463.9f, 464, 465, 480, 512, 1e30f, 3.4e38f, INFINITY};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        expect_code(large[i], 0x7e);
    expect_code(0x1p-149f, 0);
    expect_code(0x1p-126f, 0);
    assert_int_equal(tsr_f32_to_e4m3(NAN) & 0x7f, TSR_E4M3_NAN);
    assert_int_equal(tsr_f32_to_e4m3(-NAN) & 0x7f, TSR_E4M3_NAN);
}

static void scales_are_normal_numbers(void **state)
{
    (void)state;
    assert_true(tsr_e4m3_scale(0) == 1);
    assert_true(tsr_e4m3_scale(448) == 1);
    assert_true(tsr_e4m3_scale(1) == 1 / 448.0f);
    assert_true(isnan(tsr_e4m3_scale(INFINITY)) && isnan(tsr_e4m3_scale(NAN)));
    const float small[] = {0x1p-149f, 0x1p-126f, 0x1p-117f, 0x1p-116f, 0x1p-100f, 3.4e38f};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        float scale = tsr_e4m3_scale(small[i]);
        assert_true(isnormal(scale) && isnormal(1 / scale));
    }
}

/* ---- a second writing ---- */

/* The code of the value nearest to x, by looking at all; of two that are as near the even one. */
static int nearest(double x)
{
    int best = 0;
    for (int code = 0; code < 0x7f; code++) {
        double distance = fabs(fabs(x) - value_of(code)), least = fabs(fabs(x) - value_of(best));
        if (distance < least || (distance == least && code % 2 == 0))
            best = code;
    }
    return signbit(x) ? best | 0x80 : best;
}

/* What a row becomes. */
static float want_row(uint8_t *out, const float *value, int64_t count, double amax)
{
    bool finite = isfinite(amax);
    double least = ldexp(1, -116), held = amax < least ? least : amax;
    float scale = amax == 0 ? 1 : (float)(held / 448); /* RN: a quotient is no tie of fp32 twice */
    float inverse = (float)(1 / (double)scale);
    for (int64_t i = 0; i < count; i++) {
        volatile float scaled = value[i] * inverse;
        out[i] = finite ? (uint8_t)nearest((double)scaled) : TSR_E4M3_NAN;
    }
    return finite ? scale : NAN;
}

static void expect_codes(const char *what, const uint8_t *got, const uint8_t *want, int64_t rows,
                         int64_t columns)
{
    for (int64_t i = 0; i < rows * columns; i++)
        if (got[i] != want[i])
            fail_msg("%s: [%lld, %lld] is 0x%02x, want 0x%02x", what, (long long)(i / columns),
                     (long long)(i % columns), got[i], want[i]);
}

static void expect_scales(const char *what, const float *got, const float *want, int64_t rows)
{
    for (int64_t t = 0; t < rows; t++)
        if (!(got[t] == want[t] || (isnan(got[t]) && isnan(want[t]))))
            fail_msg("%s: scale[%lld] is %a, want %a", what, (long long)t, (double)got[t],
                     (double)want[t]);
}

/* Bytes are compared over pools in units of floats. */
static uint8_t *new_bytes(int64_t count)
{
    return (uint8_t *)new_floats((count + 3) / 4);
}

/* ---- fp8_quantize ---- */

typedef struct {
    tsr_fp8_quantize_args args;
    float *both; /* scales, then codes */
} quantize_run;

static tsr_status run_quantize(void *context, tsr_pool *pool)
{
    return tsr_fp8_quantize_ref(&((quantize_run *)context)->args, pool);
}

/* Rows of every kind: plain, zeros, tiny, huge, one large among small, not finite. */
static float *new_rows(int64_t tokens, int64_t d)
{
    static const float magnitude[] = {1,        0,       1e-38f, 3e38f, 0x1p-149f, 0x1p-117f, 500,
                                      0x1p-20f, 0x1p60f, 1,      1,     1,         1};
    const int kinds = sizeof magnitude / sizeof *magnitude;
    float *x = new_random(tokens * d, 11, 1);
    for (int64_t t = 0; t < tokens; t++) {
        int kind = (int)(t % kinds);
        for (int64_t j = 0; j < d; j++)
            x[t * d + j] *= magnitude[kind];
        float *odd = &x[t * d + (t * 7 + 3) % d];
        *odd = kind == 9 ? INFINITY : kind == 10 ? NAN : kind == 11 ? -448e3f : *odd;
    }
    return x;
}

static void one_quantize(int64_t tokens, int64_t d, bool factors)
{
    float *x = new_rows(tokens, d), *factor = new_gain(d, 12), *want_scale = new_floats(tokens);
    float *both = new_floats(tokens + (tokens * d + 3) / 4), *value = new_floats(d);
    uint8_t *want = new_bytes(tokens * d);
    quantize_run run = {.args = {.out = (uint8_t *)(both + tokens),
                                 .scale = both,
                                 .x = x,
                                 .column_factor = factors ? factor : NULL,
                                 .tokens = tokens,
                                 .d = d}};
    run_on_pools(run_quantize, &run, both, tokens + tokens * d / 4);
    for (int64_t t = 0; t < tokens; t++) {
        double amax = 0;
        for (int64_t j = 0; j < d; j++) {
            volatile float product = factors ? x[t * d + j] * factor[j] : x[t * d + j];
            value[j] = product;
            amax = fabs((double)product) <= amax ? amax : fabs((double)product);
            if (isnan(amax))
                amax = INFINITY;
        }
        want_scale[t] = want_row(want + t * d, value, d, amax);
    }
    expect_codes("fp8_quantize", run.args.out, want, tokens, d);
    expect_scales("fp8_quantize", both, want_scale, tokens);
    free(x), free(factor), free(want_scale), free(both), free(value), free(want);
}

static void rows_are_quantized(void **state)
{
    (void)state;
    const int64_t widths[] = {1, 3, 16, 64, 100, 704, 2048};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int factors = 0; factors < 2; factors++)
            one_quantize(29, widths[i], factors);
    one_quantize(1, 5, true);
}

static void bad_rows_are_refused(void **state)
{
    (void)state;
    tsr_fp8_quantize_args args = {.tokens = 0, .d = 8};
    assert_int_equal(tsr_fp8_quantize_ref(&args, test_pool(0)), TSR_OK);
    args.tokens = 1;
    assert_int_equal(tsr_fp8_quantize_ref(&args, test_pool(0)), TSR_EINVAL);
    args = (tsr_fp8_quantize_args){.dtype = TSR_F16, .d = 8};
    assert_int_equal(tsr_fp8_quantize_check(&args), TSR_EINVAL);
    args.dtype = TSR_BF16;
    assert_int_equal(tsr_fp8_quantize_check(&args), TSR_OK);
    assert_int_equal(tsr_fp8_quantize_ref(&args, test_pool(0)), TSR_EUNSUPPORTED);
}

/* ---- rows that an op makes ---- */

enum { ROWS = 7, WIDTH = 100 };

typedef struct {
    uint8_t code[ROWS * WIDTH];
    float scale[ROWS];
} codes;

static tsr_fp8_rows into(codes *out, const float *factor)
{
    return (tsr_fp8_rows){out->code, out->scale, factor};
}

/* What fp8_quantize makes of the rows that were stored. */
static void expect_made(const char *what, const codes *got, const float *stored,
                        const float *factor)
{
    codes want;
    tsr_fp8_quantize_args args =
        tsr_fp8_rows_pass(into(&want, factor), stored, ROWS, WIDTH, TSR_F32);
    assert_int_equal(tsr_fp8_quantize_ref(&args, test_pool(0)), TSR_OK);
    expect_codes(what, got->code, want.code, ROWS, WIDTH);
    expect_scales(what, got->scale, want.scale, ROWS);
}

static void norms_are_quantized(void **state)
{
    (void)state;
    float *x = new_rows(ROWS, WIDTH), *w = new_gain(WIDTH, 2), *h = new_floats(ROWS * WIDTH);
    codes h8;
    tsr_rms_norm_args args = {.x = x,
                              .w = {w, TSR_F32},
                              .h = h,
                              .tokens = ROWS,
                              .d = WIDTH,
                              .eps = 1e-5f,
                              .h8 = into(&h8, NULL)};
    assert_int_equal(tsr_rms_norm_ref(&args, test_pool(2)), TSR_OK);
    expect_made("h8", &h8, h, NULL);
    args.h8.scale = NULL;
    assert_int_equal(tsr_rms_norm_check(&args), TSR_EINVAL);
    args.h8.scale = h8.scale;
    args.dtype = TSR_F16;
    assert_int_equal(tsr_rms_norm_check(&args), TSR_EINVAL);
    free(x), free(w), free(h);
}

static void norms_backward_are_quantized(void **state)
{
    (void)state;
    float *x = new_rows(ROWS, WIDTH), *dh = new_random(ROWS * WIDTH, 3, 1);
    float *dx = new_random(ROWS * WIDTH, 4, 1), *w = new_gain(WIDTH, 2),
          *factor = new_gain(WIDTH, 5);
    float *rstd = new_gain(ROWS, 6);
    codes dx8;
    tsr_rms_norm_backward_args args = {.dh = dh,
                                       .x = x,
                                       .rstd = rstd,
                                       .w = {w, TSR_F32},
                                       .dx = dx,
                                       .tokens = ROWS,
                                       .d = WIDTH,
                                       .dx8 = into(&dx8, factor)};
    assert_int_equal(tsr_rms_norm_backward_ref(&args, test_pool(2)), TSR_OK);
    expect_made("dx8", &dx8, dx, factor);
    args.dx8.scale = NULL;
    assert_int_equal(tsr_rms_norm_backward_check(&args), TSR_EINVAL);
    free(x), free(dh), free(dx), free(w), free(factor), free(rstd);
}

static void swiglu_is_quantized(void **state)
{
    (void)state;
    float *gate = new_random(ROWS * WIDTH, 1, 6), *up = new_random(ROWS * WIDTH, 2, 1);
    float *act = new_floats(ROWS * WIDTH), *dz = new_floats(2 * ROWS * WIDTH);
    float *factor = new_gain(WIDTH, 3);
    codes act8, gate8, up8;
    tsr_swiglu_args args = {.z_gate = gate,
                            .z_up = up,
                            .act = act,
                            .tokens = ROWS,
                            .f = WIDTH,
                            .act8 = into(&act8, NULL)};
    assert_int_equal(tsr_swiglu_ref(&args, test_pool(2)), TSR_OK);
    expect_made("act8", &act8, act, NULL);
    tsr_swiglu_backward_args back = {.dact = up,
                                     .z_gate = gate,
                                     .z_up = up,
                                     .dz_gate = dz,
                                     .dz_up = dz + ROWS * WIDTH,
                                     .tokens = ROWS,
                                     .f = WIDTH,
                                     .dz_gate8 = into(&gate8, factor),
                                     .dz_up8 = into(&up8, NULL)};
    assert_int_equal(tsr_swiglu_backward_ref(&back, test_pool(2)), TSR_OK);
    expect_made("dz_gate8", &gate8, dz, factor);
    expect_made("dz_up8", &up8, dz + ROWS * WIDTH, NULL);
    back.dz_up8.scale = NULL;
    assert_int_equal(tsr_swiglu_backward_check(&back), TSR_EINVAL);
    args.act8.scale = NULL;
    assert_int_equal(tsr_swiglu_check(&args), TSR_EINVAL);
    free(gate), free(up), free(act), free(dz), free(factor);
}

/* ---- fp8_decode ---- */

typedef struct {
    uint8_t *codes, *q;
    float *absmax, *nested, *map, *values, *block;
    int64_t blocks;
} weight;

static weight new_weight(int64_t count, bool nested)
{
    static const float odd[] = {0, -0.5f, 1e-40f, 3e38f, INFINITY, NAN};
    weight w = {.blocks = (count + 63) / 64};
    w.codes = new_bytes(count);
    w.q = new_bytes(w.blocks);
    for (int64_t i = 0; i < (count + 1) / 2; i++)
        w.codes[i] = (uint8_t)tsr_mix((uint64_t)i + 5);
    for (int64_t i = 0; i < w.blocks; i++)
        w.q[i] = (uint8_t)tsr_mix((uint64_t)i + 500);
    w.absmax = new_gain(w.blocks, 21);
    for (int64_t i = 0; i < 6 && 7 * i + 2 < w.blocks; i++)
        w.absmax[7 * i + 2] = odd[i];
    w.nested = new_random(w.blocks / 256 + 1, 22, 0.3f);
    w.map = new_random(256, 23, 1);
    w.block = new_floats(w.blocks);
    for (int64_t i = 0; i < w.blocks; i++) {
        volatile float product = w.map[w.q[i]] * w.nested[i / 256];
        w.block[i] = nested ? product + 0.04f : w.absmax[i];
    }
    w.values = new_floats(count);
    for (int64_t e = 0; e < count; e++) {
        int code = e % 2 ? w.codes[e / 2] & 15 : w.codes[e / 2] >> 4;
        w.values[e] = tsr_nf4_level[code] * w.block[e / 64];
    }
    return w;
}

static void free_weight(weight *w)
{
    free(w->codes), free(w->q), free(w->absmax), free(w->nested), free(w->map), free(w->values);
    free(w->block);
}

static tsr_status run_decode(void *context, tsr_pool *pool)
{
    return tsr_fp8_decode_ref(context, pool);
}

static void one_decode(int64_t rows, int64_t columns, bool nested)
{
    int64_t count = rows * columns;
    weight w = new_weight(count, nested);
    float *both = new_floats(rows + (count + 3) / 4), *want_scale = new_floats(rows);
    uint8_t *want = new_bytes(count), *turned = new_bytes(count);
    tsr_fp8_decode_args args = {
        .weight = {.out = both + rows,
                   .codes = w.codes,
                   .absmax = nested ? (void *)w.q : (void *)w.absmax,
                   .nested_absmax = w.nested,
                   .nested_map = w.map,
                   .level = tsr_nf4_level,
                   .count = count,
                   .columns = columns,
                   .offset = 0.04f,
                   .nested = nested,
                   .dtype = TSR_F8_E4M3},
        .scale = both,
    };
    run_on_pools(run_decode, &args, both, rows + count / 4);
    for (int64_t r = 0; r < rows; r++) {
        double amax = 0;
        for (int64_t e = r * columns; e < (r + 1) * columns; e++) {
            double of_block = fabs((double)w.block[e / 64]);
            amax = of_block <= amax ? amax : isnan(of_block) ? INFINITY : of_block;
        }
        want_scale[r] = want_row(want + r * columns, w.values + r * columns, columns, amax);
    }
    expect_codes("fp8_decode", args.weight.out, want, rows, columns);
    expect_scales("fp8_decode", both, want_scale, rows);
    args.transposed = true;
    run_on_pools(run_decode, &args, both, rows + count / 4);
    for (int64_t e = 0; e < count; e++)
        turned[e % columns * rows + e / columns] = want[e];
    expect_codes("fp8_decode transposed", args.weight.out, turned, columns, rows);
    expect_scales("fp8_decode transposed", both, want_scale, rows);
    /* The scales alone; then the weight with those that are there, which are only read. */
    args.transposed = false;
    args.weight.out = NULL;
    run_on_pools(run_decode, &args, both, rows);
    expect_scales("fp8_decode, scales", both, want_scale, rows);
    args.weight.out = both + rows;
    args.transposed = args.scaled = true;
    memset(both + rows, 0, (size_t)count);
    assert_int_equal(tsr_fp8_decode_ref(&args, test_pool(1)), TSR_OK);
    expect_codes("fp8_decode with scales", args.weight.out, turned, columns, rows);
    both[rows / 2] = NAN;
    assert_int_equal(tsr_fp8_decode_ref(&args, test_pool(1)), TSR_OK);
    assert_true(isnan(both[rows / 2]));
    for (int64_t c = 0; c < columns; c++)
        assert_int_equal(((uint8_t *)args.weight.out)[c * rows + rows / 2], TSR_E4M3_NAN);
    free_weight(&w);
    free(both), free(want_scale), free(want), free(turned);
}

/* Rows that begin with a block, and rows that blocks cross. */
static void weights_are_decoded(void **state)
{
    (void)state;
    const int64_t columns[] = {1, 7, 16, 48, 64, 100, 128, 704};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        for (int nested = 0; nested < 2; nested++)
            one_decode(i % 2 ? 48 : 33, columns[i], nested);
}

/* The rounding of e4m3: half of a place of 4 bits, or of the least number. */
static void decoding_is_near(void **state)
{
    (void)state;
    enum { COUNT = 16 * 512, COLUMNS = 512 };
    weight w = new_weight(COUNT, true);
    uint8_t *out = new_bytes(COUNT);
    float scale[COUNT / COLUMNS];
    tsr_fp8_decode_args args = {.weight = {.out = out,
                                           .codes = w.codes,
                                           .absmax = w.q,
                                           .nested_absmax = w.nested,
                                           .nested_map = w.map,
                                           .level = tsr_nf4_level,
                                           .count = COUNT,
                                           .columns = COLUMNS,
                                           .offset = 0.04f,
                                           .nested = true,
                                           .dtype = TSR_F8_E4M3},
                                .scale = scale};
    assert_int_equal(tsr_fp8_decode_ref(&args, test_pool(2)), TSR_OK);
    for (int64_t e = 0; e < COUNT; e++) {
        double s = (double)scale[e / COLUMNS], got = (double)tsr_e4m3_to_f32(out[e]) * s;
        double want = (double)w.values[e], half = fmax(fabs(want) / 16, s * ldexp(1, -10));
        if (fabs(got - want) > 1.0001 * half)
            fail_msg("[%lld] is %g, want %g", (long long)e, got, want);
    }
    free_weight(&w);
    free(out);
}

static void bad_weights_are_refused(void **state)
{
    (void)state;
    float factor = 1;
    tsr_fp8_decode_args args = {.weight = {.columns = 64, .dtype = TSR_F8_E4M3}};
    assert_int_equal(tsr_fp8_decode_ref(&args, test_pool(0)), TSR_OK);
    args.weight.row_factor = &factor;
    assert_int_equal(tsr_fp8_decode_check(&args), TSR_EINVAL);
    args.weight.row_factor = NULL;
    args.weight.count = 65;
    assert_int_equal(tsr_fp8_decode_check(&args), TSR_EINVAL);
    args.weight = (tsr_nf4_dequant_args){.columns = 64};
    assert_int_equal(tsr_fp8_decode_check(&args), TSR_EINVAL);
    args.weight = (tsr_nf4_dequant_args){.dtype = TSR_F8_E4M3};
    assert_int_equal(tsr_fp8_decode_check(&args), TSR_EINVAL);
    args = (tsr_fp8_decode_args){.weight = {.columns = 64, .dtype = TSR_F8_E4M3}, .scaled = true};
    assert_int_equal(tsr_fp8_decode_check(&args), TSR_EINVAL);
}

/* Blocks of 128 x 128, at edges smaller: the product in fp32, rounded to bf16. */
static void blocks_are_decoded(void **state)
{
    enum { DOWN = 130, ALONG = 259, ACROSS = 3 };
    (void)state;
    static uint8_t code[DOWN * ALONG];
    static float out[DOWN * ALONG], scale[2 * ACROSS];
    for (int i = 0; i < 2 * ACROSS; i++)
        scale[i] = 0.01f + (float)i / 3;
    for (int i = 0; i < DOWN * ALONG; i++)
        code[i] = (uint8_t)(i * 37 % 127 + (i % 3 ? 0 : 128));
    tsr_byte_decode_args args = {out, code, scale, DOWN, ALONG, TSR_F8_E4M3, TSR_F32};
    assert_int_equal(tsr_byte_decode_ref(&args, test_pool(1)), TSR_OK);
    for (int i = 0; i < DOWN * ALONG; i++) {
        float product =
            (float)(value_of(code[i]) * (double)scale[i / ALONG / 128 * ACROSS + i % ALONG / 128]);
        assert_true(out[i] == tsr_bf16_to_f32(tsr_f32_to_bf16(product)));
    }
    args.scale = NULL;
    assert_int_equal(tsr_byte_decode_ref(&args, test_pool(1)), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_value),
        cmocka_unit_test(midpoints_round_to_even),
        cmocka_unit_test(what_is_too_large_saturates),
        cmocka_unit_test(scales_are_normal_numbers),
        cmocka_unit_test(rows_are_quantized),
        cmocka_unit_test(bad_rows_are_refused),
        cmocka_unit_test(norms_are_quantized),
        cmocka_unit_test(swiglu_is_quantized),
        cmocka_unit_test(weights_are_decoded),
        cmocka_unit_test(decoding_is_near),
        cmocka_unit_test(bad_weights_are_refused),
        cmocka_unit_test(norms_backward_are_quantized),
        cmocka_unit_test(blocks_are_decoded),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
