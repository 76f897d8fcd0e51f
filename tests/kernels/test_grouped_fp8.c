/*
 * test_grouped_fp8.c: each row in e4m3 times the matrix of its expert, against sums in fp64 of the values that the codes and
 * scales stand for: both directions, gathered or not, with an adapter or not, with a bias, for ranges of experts and every
 * load; what is not of the range stays as it was. Stored weights, made for some experts at a time. And with weights before NF4
 * the error is at most 1.15 times what NF4 alone makes.
 */
#include "kernels/fp8.h"
#include "kernels/fp8_quantize.h"
#include "kernels/grouped_fp8.h"
#include "kernels/nf4_quantize.h"

#include "kernels/expert_rows_test.h"

typedef struct {
    tsr_grouped_fp8_args args;
    const float *before; /* of z */
    float *z;
    int64_t elements;
} fixture;

static tsr_status run(void *context, tsr_pool *pool)
{
    fixture *f = context;
    memcpy(f->z, f->before, (size_t)f->elements * sizeof(float));
    return tsr_grouped_fp8_ref(&f->args, pool);
}

/* Codes that are no NaN. */
static uint8_t *new_codes(int64_t count, uint64_t seed)
{
    uint8_t *codes = malloc((size_t)count + 1);
    assert_non_null(codes);
    for (int64_t i = 0; i < count; i++) {
        codes[i] = (uint8_t)tsr_mix(seed + (uint64_t)i);
        if ((codes[i] & 0x7f) == TSR_E4M3_NAN)
            codes[i] = 0;
    }
    return codes;
}

static double product(const tsr_grouped_fp8_args *args, int64_t e, int64_t i, int64_t j)
{
    const tsr_grouped_gemm_args *a = &args->gemm;
    int64_t inner = a->backward ? a->out : a->in, outer = a->backward ? a->in : a->out;
    int64_t from = tsr_expert_row_from(&a->rows, i);
    const uint8_t *x = (const uint8_t *)a->x + from * inner;
    const uint8_t *w = (const uint8_t *)a->w + ((e - a->first) * outer + j) * inner;
    double sum = 0;
    for (int64_t k = 0; k < inner; k++)
        sum += (double)tsr_e4m3_to_f32(x[k]) * (double)tsr_e4m3_to_f32(w[k]);
    return sum * (double)args->x_scale[from] * (double)args->w_scale[e - a->first];
}

static double low_product(const tsr_grouped_gemm_args *a, int64_t e, int64_t i, int64_t j)
{
    const float *low = (const float *)a->low + i * a->r;
    const float *factor = (const float *)a->factor + e * a->r * (a->backward ? a->in : a->out);
    double sum = 0;
    for (int64_t k = 0; k < a->r; k++)
        sum +=
            (double)low[k] * (double)(a->backward ? factor[k * a->in + j] : factor[j * a->r + k]);
    return sum;
}

static double *new_want(const fixture *f)
{
    const tsr_grouped_gemm_args *a = &f->args.gemm;
    int64_t outer = a->backward ? a->in : a->out;
    double *want = new_doubles(f->before, f->elements);
    for (int64_t e = a->first; e < a->first + a->count; e++)
        for (int64_t i = a->rows.offset[e]; i < a->rows.offset[e + 1]; i++)
            for (int64_t j = 0; j < outer; j++) {
                double bias =
                    a->bias.data ? (double)((const float *)a->bias.data)[e * a->out + j] : 0;
                want[i * outer + j] = product(&f->args, e, i, j) + low_product(a, e, i, j) + bias;
            }
    return want;
}

static void expect_untouched(const fixture *f)
{
    const tsr_grouped_gemm_args *a = &f->args.gemm;
    int64_t outer = a->backward ? a->in : a->out;
    int64_t first = a->rows.offset[a->first] * outer;
    int64_t end = a->rows.offset[a->first + a->count] * outer;
    assert_memory_equal(f->z, f->before, (size_t)first * sizeof(float));
    assert_memory_equal(f->z + end, f->before + end, (size_t)(f->elements - end) * sizeof(float));
}

typedef struct {
    int64_t tokens, k, experts, out, in, first, count;
    expert_load load;
    int64_t r;
} shape;

/* Bits of a way. */
enum { BACKWARD = 1, GATHER = 2, LOW = 4, BIAS = 8, WAYS = 16 };

static void one_way(const shape *s, int way)
{
    expert_case c = new_expert_case(s->tokens, s->k, s->experts, s->load);
    bool backward = way & BACKWARD, gather = way & GATHER;
    int64_t outer = backward ? s->in : s->out, inner = backward ? s->out : s->in;
    int64_t x_rows = gather ? s->tokens : c.rows.most;
    uint8_t *x = new_codes(x_rows * inner, 1), *w = new_codes(s->count * s->out * s->in, 2);
    float *x_scale = new_gain(x_rows, 7), *w_scale = new_gain(s->count, 8);
    float *bias = new_random(s->experts * s->out, 3, 1);
    float *low = new_random(c.rows.most * s->r, 5, 1);
    float *factor = new_random(s->experts * s->r * outer, 6, 1);
    float *before = new_random(c.rows.most * outer, 4, 1);
    fixture f = {.args = {.gemm = {.x = x,
                                   .w = w,
                                   .rows = c.rows,
                                   .first = s->first,
                                   .count = s->count,
                                   .out = s->out,
                                   .in = s->in,
                                   .low = low,
                                   .factor = factor,
                                   .r = way & LOW ? s->r : 0,
                                   .backward = backward},
                          .x_scale = x_scale,
                          .w_scale = w_scale},
                 .before = before,
                 .elements = c.rows.most * outer};
    if (!gather)
        f.args.gemm.rows.slot = NULL;
    if (way & BIAS)
        f.args.gemm.bias = (tsr_frozen){bias, TSR_F32};
    f.args.gemm.z = f.z = new_floats(f.elements);
    double *want = new_want(&f);
    run_on_pools(run, &f, f.z, f.elements);
    expect_close(expert_load_name[s->load], f.z, want, f.elements, 2e-6);
    expect_untouched(&f);
    free(x), free(w), free(x_scale), free(w_scale), free(bias), free(low), free(factor);
    free(before), free(want), free(f.z);
    free_expert_case(&c);
}

static void every_way_and_load(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {1, 1, 1, 1, 1, 0, 1, LOAD_EVEN, 1},        {7, 2, 5, 33, 70, 0, 5, LOAD_EVEN, 8},
        {90, 4, 9, 40, 129, 0, 9, LOAD_ZIPF, 16},   {90, 4, 9, 40, 129, 2, 4, LOAD_ZIPF, 24},
        {70, 3, 6, 24, 31, 5, 1, LOAD_ONE, 72},     {50, 2, 10, 17, 300, 1, 9, LOAD_HOLES, 40},
        {60, 4, 7, 300, 20, 0, 7, LOAD_DROPPED, 3}, {0, 2, 4, 8, 8, 0, 4, LOAD_EVEN, 8},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int way = 0; way < WAYS; way++)
            if (!(way & BACKWARD && way & BIAS))
                one_way(&shapes[i], way);
}

/* ---- stored weights ---- */

enum { OUT = 16, IN = 192, EXPERTS = 5, R = 8, TOKENS = 40 };

static const float levels[16] = {-1.0f, -0.7f, -0.53f, -0.4f, -0.28f, -0.18f, -0.09f, 0,
                                 0.08f, 0.16f, 0.25f,  0.34f, 0.44f,  0.56f,  0.72f,  1};

/* Two experts at a time, of four: the bits of all of them made before. */
static void stored_weights_are_made_first(bool backward)
{
    const int64_t outer = backward ? IN : OUT, inner = backward ? OUT : IN;
    const int64_t granules = tsr_expert_granules(OUT / 2, IN), matrices = 2 * EXPERTS;
    expert_case c = new_expert_case(TOKENS, 2, EXPERTS, LOAD_ZIPF);
    uint8_t *x = new_codes(TOKENS * inner, 1), *codes = new_codes(matrices * granules * 512, 2);
    float *x_scale = new_gain(TOKENS, 3), *absmax = new_gain(matrices * granules * 16, 4);
    uint8_t *w = new_codes(EXPERTS * OUT * IN, 5), *scratch = new_codes(2 * OUT * IN, 6);
    float w_scale[EXPERTS], held_scale[2];
    float *want = new_random(2 * TOKENS * outer, 7, 1), *z = new_random(2 * TOKENS * outer, 7, 1);
    float *low = new_random(2 * TOKENS * R, 8, 1), *factor = new_random(EXPERTS * outer * R, 9, 1);
    const tsr_expert_weight_args stored = {.codes = codes,
                                           .absmax = absmax,
                                           .level = levels,
                                           .parts = 2,
                                           .rows = OUT,
                                           .columns = IN,
                                           .format = TSR_EXPERTS_NF4,
                                           .dtype = TSR_F32};
    tsr_expert_fp8_args make = {.weight = stored, .scale = w_scale, .transposed = backward};
    make.weight.out = w, make.weight.count = EXPERTS, make.weight.dtype = TSR_F8_E4M3;
    assert_int_equal(tsr_expert_fp8_ref(&make, test_pool(2)), TSR_OK);
    tsr_grouped_fp8_args args = {.gemm = {.z = want,
                                          .x = x,
                                          .w = w + OUT * IN,
                                          .rows = c.rows,
                                          .first = 1,
                                          .count = 4,
                                          .out = OUT,
                                          .in = IN,
                                          .low = low,
                                          .factor = factor,
                                          .r = R,
                                          .backward = backward,
                                          .dtype = TSR_F32},
                                 .x_scale = x_scale,
                                 .w_scale = w_scale + 1};
    assert_int_equal(tsr_grouped_fp8_ref(&args, test_pool(2)), TSR_OK);
    args.gemm.z = z, args.gemm.w = NULL, args.gemm.stored = stored, args.gemm.scratch = scratch;
    args.gemm.held = 2, args.w_scale = held_scale;
    assert_int_equal(tsr_grouped_fp8_ref(&args, test_pool(2)), TSR_OK);
    assert_memory_equal(z, want, (size_t)(2 * TOKENS * outer) * sizeof *z);
    args.gemm.stored.format = TSR_EXPERTS_PLAIN;
    args.gemm.stored.plain = (tsr_frozen){x_scale, TSR_F32};
    assert_int_equal(tsr_grouped_fp8_check(&args), TSR_EINVAL);
    free(x), free(codes), free(x_scale), free(absmax), free(w), free(scratch), free(want), free(z);
    free(low), free(factor);
    free_expert_case(&c);
}

static void stored_weights(void **state)
{
    (void)state;
    stored_weights_are_made_first(false);
    stored_weights_are_made_first(true);
}

/* ---- accuracy ---- */

#define MOST 1.15 /* times NF4's own error */

/* About N(0, 1). */
static float *new_normal(int64_t count, uint64_t seed, float size)
{
    float *out = new_floats(count);
    for (int64_t i = 0; i < count; i++) {
        double sum = -2;
        for (uint64_t part = 0; part < 4; part++)
            sum += (double)(tsr_mix(seed + 4 * (uint64_t)i + part) >> 11) * 0x1p-53;
        out[i] = (float)(sum * sqrt(3)) * size;
    }
    return out;
}

/* NF4 of whole blocks: codes and their absmax; what they stand for replaces the values. */
static void quantize(uint8_t *codes, float *absmax, float *w, int64_t count)
{
    memset(codes, 0, (size_t)count / 2);
    for (int64_t i = 0; i < count; i++) {
        float *most = &absmax[i / 64];
        *most = i % 64 && *most > fabsf(w[i]) ? *most : fabsf(w[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        float scale = absmax[i / 64];
        int best = 0;
        for (int k = 1; k < 16; k++)
            if (fabsf(tsr_nf4_level[k] * scale - w[i]) < fabsf(tsr_nf4_level[best] * scale - w[i]))
                best = k;
        codes[i / 2] |= (uint8_t)(i % 2 ? best : best << 4);
        w[i] = tsr_nf4_level[best] * scale;
    }
}

static double distance(const float *z, const double *want, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += ((double)z[i] - want[i]) * ((double)z[i] - want[i]);
    return sqrt(sum);
}

/* [rows, outer] = x W^T, backward x W, of rows of two experts. */
static double *new_products(const float *x, const float *w, const int32_t *offset, int64_t out,
                            int64_t in, bool backward)
{
    int64_t inner = backward ? out : in, outer = backward ? in : out;
    double *z = calloc((size_t)(offset[2] * outer), sizeof *z);
    assert_non_null(z);
    for (int64_t i = 0; i < offset[2]; i++)
        for (int64_t j = 0; j < outer; j++)
            for (int64_t k = 0; k < inner; k++)
                z[i * outer + j] +=
                    (double)x[i * inner + k] *
                    (double)
                        w[(i < offset[1] ? 0 : out * in) + (backward ? k * in + j : j * in + k)];
    return z;
}

/* Rows of W differ in size by 64 times, as channels of real weights do at most. */
static void one_accuracy(bool backward)
{
    enum { OUTER = 192, INNER = 256, ROWS = 48, MATRICES = 4, EACH = OUTER / 2 * INNER };
    const int32_t offset[3] = {0, 20, ROWS};
    int64_t inner = backward ? OUTER : INNER, outer = backward ? INNER : OUTER;
    float *x = new_normal(ROWS * inner, 1, 1), *w = new_normal(MATRICES * EACH, 2, 0.02f);
    float *nf4 = new_floats(MATRICES * EACH), *absmax = new_floats(MATRICES * EACH / 64);
    uint8_t *codes = new_codes(MATRICES * EACH, 3), *scratch = new_codes(2 * OUTER * INNER, 4);
    uint8_t *rows = new_codes(ROWS * inner, 5);
    float x_scale[ROWS], w_scale[2], *z = new_floats(ROWS * outer);
    for (int64_t i = 0; i < MATRICES * EACH; i++)
        w[i] *= ldexpf(1, (int)(i / INNER % 7));
    memcpy(nf4, w, MATRICES * EACH * sizeof *nf4);
    quantize(codes, absmax, nf4, MATRICES * EACH);
    double *want = new_products(x, w, offset, OUTER, INNER, backward);
    double *alone = new_products(x, nf4, offset, OUTER, INNER, backward);
    const tsr_fp8_quantize_args make = {
        .out = rows, .scale = x_scale, .x = x, .tokens = ROWS, .d = inner, .dtype = TSR_F32};
    assert_int_equal(tsr_fp8_quantize_ref(&make, test_pool(2)), TSR_OK);
    const tsr_grouped_fp8_args args = {
        .gemm = {.z = z,
                 .x = rows,
                 .stored = {.codes = codes,
                            .absmax = absmax,
                            .level = tsr_nf4_level,
                            .parts = 2,
                            .rows = OUTER,
                            .columns = INNER,
                            .format = TSR_EXPERTS_NF4,
                            .dtype = TSR_F32},
                 .scratch = scratch,
                 .held = 2,
                 .rows = {.offset = offset, .most = ROWS, .k = 1, .experts = 2},
                 .count = 2,
                 .out = OUTER,
                 .in = INNER,
                 .backward = backward,
                 .dtype = TSR_F32},
        .x_scale = x_scale,
        .w_scale = w_scale};
    assert_int_equal(tsr_grouped_fp8_ref(&args, test_pool(2)), TSR_OK);
    for (int64_t i = 0; i < ROWS * outer; i++)
        nf4[i] = (float)alone[i];
    double by_nf4 = distance(nf4, want, ROWS * outer), by_both = distance(z, want, ROWS * outer);
    print_message("%s: %.3f times NF4's error\n", backward ? "backward" : "forward",
                  by_both / by_nf4);
    assert_true(by_both > by_nf4 && by_both <= MOST * by_nf4);
    free(x), free(w), free(nf4), free(absmax), free(codes), free(scratch), free(rows), free(z);
    free(want), free(alone);
}

static void accuracy(void **state)
{
    (void)state;
    one_accuracy(false);
    one_accuracy(true);
}

/* A row or an expert that is NaN is so, and no other. */
static void nan_stays_where_it_is(void **state)
{
    (void)state;
    uint8_t x[2 * 4], w[2 * 4];
    float z[2], x_scale[2] = {1, NAN}, w_scale[2] = {1, 1};
    int32_t offset[3] = {0, 1, 2}, slot[2] = {0, 1};
    memset(x, 0x38, sizeof x), memset(w, 0x38, sizeof w); /* ones */
    memset(x + 4, TSR_E4M3_NAN, 4);
    tsr_grouped_fp8_args args = {
        .gemm = {.z = z,
                 .x = x,
                 .w = w,
                 .rows = {.offset = offset, .slot = slot, .most = 2, .k = 1, .experts = 2},
                 .count = 2,
                 .out = 1,
                 .in = 4},
        .x_scale = x_scale,
        .w_scale = w_scale};
    assert_int_equal(tsr_grouped_fp8_ref(&args, test_pool(0)), TSR_OK);
    assert_true(z[0] == 4 && isnan(z[1]));
    slot[1] = 0;
    memset(w + 4, TSR_E4M3_NAN, 4), w_scale[1] = NAN;
    assert_int_equal(tsr_grouped_fp8_ref(&args, test_pool(0)), TSR_OK);
    assert_true(z[0] == 4 && isnan(z[1]));
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float z[4] = {0}, scale[1] = {1};
    uint8_t codes[4] = {0};
    int32_t offset[2] = {0, 1}, slot[1] = {0};
    const tsr_grouped_fp8_args good = {
        .gemm = {.z = z,
                 .x = codes,
                 .w = codes,
                 .rows = {.offset = offset, .slot = slot, .most = 1, .k = 1, .experts = 1},
                 .count = 1,
                 .out = 1,
                 .in = 1},
        .x_scale = scale,
        .w_scale = scale};
    assert_int_equal(tsr_grouped_fp8_ref(&good, test_pool(0)), TSR_OK);
    tsr_grouped_fp8_args bad = good;
    bad.x_scale = NULL;
    assert_int_equal(tsr_grouped_fp8_check(&bad), TSR_EINVAL);
    bad = good;
    bad.w_scale = NULL;
    assert_int_equal(tsr_grouped_fp8_check(&bad), TSR_EINVAL);
    bad = good;
    bad.gemm.w = NULL;
    assert_int_equal(tsr_grouped_fp8_check(&bad), TSR_EINVAL);
    bad = good;
    bad.gemm.dtype = TSR_F16;
    assert_int_equal(tsr_grouped_fp8_check(&bad), TSR_EINVAL);
    bad = good;
    bad.gemm.dtype = TSR_BF16;
    assert_int_equal(tsr_grouped_fp8_ref(&bad, test_pool(0)), TSR_EUNSUPPORTED);
    bad = good;
    slot[0] = 7;
    assert_int_equal(tsr_grouped_fp8_ref(&bad, test_pool(0)), TSR_EINTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_and_load),
        cmocka_unit_test(stored_weights),
        cmocka_unit_test(accuracy),
        cmocka_unit_test(nan_stays_where_it_is),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
