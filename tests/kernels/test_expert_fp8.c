/*
 * test_expert_fp8.c: experts in e4m3 from the codes that are stored, by a second writing of the format and the rule in fp64
 * and by search: matrices with gaps between them, rows that blocks cross, what is not finite.
 */
#include "kernels/expert_fp8.h"
#include "kernels/fp8.h"

#include "kernels/kernel_test.h"

#define EXPERTS 5

typedef struct {
    int64_t parts, rows, columns, first, count;
    bool nested;
} shape;

typedef struct {
    uint8_t *codes, *q;
    float *absmax, *nested_absmax, *map, *offset;
    int64_t granules, groups; /* of a matrix */
} stack;

static uint8_t *new_bytes(int64_t count, uint64_t seed)
{
    uint8_t *bytes = malloc((size_t)count + 1);
    assert_non_null(bytes);
    for (int64_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)tsr_mix(seed + (uint64_t)i);
    return bytes;
}

/* Experts differ: each is eight times smaller than the one before it. */
static stack new_stack(const shape *s)
{
    int64_t elements = s->rows / s->parts * s->columns, matrices = EXPERTS * s->parts;
    stack k = {.granules = (elements + 1023) / 1024, .groups = (elements + 16383) / 16384};
    k.codes = new_bytes(matrices * k.granules * 512, 1);
    k.q = new_bytes(matrices * k.granules * 16, 2);
    k.absmax = new_random(matrices * k.granules * 16, 3, 1);
    k.nested_absmax = new_random(matrices * k.groups, 4, 0.3f);
    k.map = new_random(256, 5, 1);
    k.offset = new_random(matrices, 6, 0.1f);
    for (int64_t i = 0; i < matrices; i++) {
        float small = ldexpf(1, -3 * (int)(i / s->parts));
        for (int64_t j = 0; j < k.granules * 16; j++)
            k.absmax[i * k.granules * 16 + j] *= small;
        for (int64_t j = 0; j < k.groups; j++)
            k.nested_absmax[i * k.groups + j] *= small;
        k.offset[i] *= small;
    }
    return k;
}

static void free_stack(stack *k)
{
    free(k->codes), free(k->q), free(k->absmax), free(k->nested_absmax), free(k->map);
    free(k->offset);
}

static tsr_expert_fp8_args args_of(const shape *s, const stack *k)
{
    return (tsr_expert_fp8_args){
        .weight = {.codes = k->codes,
                   .absmax = s->nested ? (void *)k->q : (void *)k->absmax,
                   .nested_absmax = k->nested_absmax,
                   .nested_map = k->map,
                   .offset = k->offset,
                   .level = tsr_nf4_level,
                   .first = s->first,
                   .count = s->count,
                   .parts = s->parts,
                   .rows = s->rows,
                   .columns = s->columns,
                   .nested = s->nested,
                   .dtype = TSR_F8_E4M3},
    };
}

/* ---- a second writing ---- */

/* From the definition: (1 + mantissa / 8) 2^(exponent - 7), or mantissa 2^-9. */
static double value_of(int code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    return exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
}

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

/* Of a block of matrix i. */
static float absmax_of(const shape *s, const stack *k, int64_t i, int64_t block)
{
    int64_t at = i * k->granules * 16 + block;
    if (!s->nested)
        return k->absmax[at];
    volatile float residual = k->map[k->q[at]] * k->nested_absmax[i * k->groups + block / 256];
    return residual + k->offset[i];
}

/* The scale of an expert, from the double of every block's. */
static float want_scale(const shape *s, const stack *k, int64_t expert)
{
    int64_t blocks = (s->rows / s->parts * s->columns + 63) / 64;
    double most = 0;
    for (int64_t i = expert * s->parts; i < (expert + 1) * s->parts; i++)
        for (int64_t block = 0; block < blocks; block++) {
            double absmax = fabs((double)absmax_of(s, k, i, block));
            most = absmax <= most ? most : isnan(absmax) ? INFINITY : absmax;
        }
    if (!isfinite(most))
        return NAN;
    return most == 0 ? 1 : (float)(fmax(most, ldexp(1, -116)) / 448); /* the largest level is 1 */
}

static int want_code(const shape *s, const stack *k, int64_t expert, int64_t row, int64_t column,
                     float scale)
{
    int64_t rows = s->rows / s->parts, i = expert * s->parts + row / rows;
    int64_t e = row % rows * s->columns + column;
    uint8_t byte = k->codes[i * k->granules * 512 + e / 2];
    volatile float value = tsr_nf4_level[e % 2 ? byte & 15 : byte >> 4];
    value = value * absmax_of(s, k, i, e / 64);
    volatile float scaled = value * (float)(1 / (double)scale);
    return isnan(scale) ? (int)TSR_E4M3_NAN : nearest((double)scaled);
}

/* [rows, columns] of one expert of the range, or [columns, rows]. */
static void expect_expert(const shape *s, const stack *k, int64_t index, const uint8_t *got,
                          float scale, bool transposed)
{
    float want = want_scale(s, k, s->first + index);
    if (!(scale == want || (isnan(scale) && isnan(want))))
        fail_msg("scale[%lld] is %a, want %a", (long long)index, (double)scale, (double)want);
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t column = 0; column < s->columns; column++) {
            int code = want_code(s, k, s->first + index, row, column, want);
            int64_t at = transposed ? column * s->rows + row : row * s->columns + column;
            if (got[at] != code)
                fail_msg("%lld part(s) of %lld x %lld%s%s: expert %lld [%lld, %lld] is 0x%02x, "
                         "want 0x%02x",
                         (long long)s->parts, (long long)s->rows, (long long)s->columns,
                         s->nested ? ", nested" : "", transposed ? ", transposed" : "",
                         (long long)index, (long long)row, (long long)column, got[at], code);
        }
}

/* ---- cases ---- */

static tsr_status run(void *context, tsr_pool *pool)
{
    return tsr_expert_fp8_ref(context, pool);
}

static void check_stack(const shape *s, const stack *k)
{
    int64_t each = s->rows * s->columns, all = s->count * each;
    tsr_expert_fp8_args args = args_of(s, k);
    /* Scales, then codes: bytes are compared over pools in units of floats. */
    float *both = new_floats(s->count + (all + 3) / 4);
    uint8_t *codes = (uint8_t *)(both + s->count);
    args.scale = both, args.weight.out = codes;
    for (int transposed = 0; transposed < 2; transposed++) {
        args.transposed = transposed;
        run_on_pools(run, &args, both, s->count + all / 4);
        for (int64_t i = 0; i < s->count; i++)
            expect_expert(s, k, i, codes + i * each, both[i], transposed);
    }
    free(both);
}

static const shape shapes[] = {
    {1, 16, 64, 0, EXPERTS, false},   /* whole granules */
    {2, 32, 128, 1, 3, false},        /* the same, from the second on */
    {1, 6, 64, 0, EXPERTS, false},    /* blocks that fill no granule */
    {2, 14, 100, 1, 4, false},        /* blocks that cross rows, a last one that is short */
    {2, 2, 7, 2, 2, false},           /* less than a block */
    {1, 33, 48, 4, 1, false},         /* an odd number of half blocks */
    {2, 2 * 130, 192, 3, 1, false},   /* more than one group of nested scales, the last short */
    {3, 3 * 5, 37, 0, EXPERTS, false} /* three parts; bytes that rows share */
};

static void experts_have_one_scale_each(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int nested = 0; nested < 2; nested++) {
            shape s = shapes[i];
            s.nested = nested;
            stack k = new_stack(&s);
            check_stack(&s, &k);
            free_stack(&k);
        }
}

/* Of all levels the largest counts, whichever it is. */
static void the_largest_level_counts(void **state)
{
    (void)state;
    shape s = {2, 6, 64, 1, 2, false};
    stack k = new_stack(&s);
    float level[16], scale[2];
    uint8_t out[2 * 6 * 64];
    for (int i = 0; i < 16; i++)
        level[i] = i == 5 ? -3 : tsr_nf4_level[i];
    tsr_expert_fp8_args args = args_of(&s, &k);
    args.weight.out = out, args.weight.level = level, args.scale = scale;
    assert_int_equal(tsr_expert_fp8_ref(&args, test_pool(1)), TSR_OK);
    for (int i = 0; i < 2; i++) {
        double most = (double)want_scale(&s, &k, 1 + i) * 3;
        assert_true(fabs((double)scale[i] - most) <= ldexp(most, -22));
    }
    free_stack(&k);
}

/* One block of one part, beside experts that keep what they were. */
static void what_is_not_finite_poisons_its_expert(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    shape s = {2, 2 * 20, 64, 1, 3, false};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int nested = 0; nested < 2; nested++) {
            s.nested = nested;
            stack k = new_stack(&s);
            int64_t matrix = 2 * 2 + 1;
            k.absmax[matrix * k.granules * 16 + 19] = bad[i];
            k.offset[matrix] = nested ? bad[i] : k.offset[matrix];
            check_stack(&s, &k);
            assert_true(isfinite(want_scale(&s, &k, 2)) == (bad[i] == 3e38f));
            assert_true(isfinite(want_scale(&s, &k, 1)) && isfinite(want_scale(&s, &k, 3)));
            free_stack(&k);
        }
}

/* What lies between matrices is not theirs. */
static void gaps_do_not_count(void **state)
{
    (void)state;
    shape s = {2, 12, 64, 0, EXPERTS, false}; /* 6 blocks of 16 */
    stack k = new_stack(&s);
    for (int64_t i = 0; i < EXPERTS * 2; i++)
        for (int64_t block = 6; block < 16; block++)
            k.absmax[i * 16 + block] = NAN;
    check_stack(&s, &k);
    free_stack(&k);
}

static void zeros_have_scale_one(void **state)
{
    (void)state;
    shape s = {2, 14, 100, 0, 3, false};
    stack k = new_stack(&s);
    memset(k.absmax + 2 * k.granules * 16, 0, (size_t)(2 * k.granules * 16) * sizeof(float));
    for (int64_t i = 0; i < 2 * k.granules * 16; i++)
        k.absmax[4 * k.granules * 16 + i] *= 1e-38f; /* the next is tiny */
    assert_true(want_scale(&s, &k, 1) == 1);
    assert_true(want_scale(&s, &k, 2) == 0x1p-116f / 448);
    check_stack(&s, &k);
    free_stack(&k);
}

/* Rows that are 2^14 times smaller than the largest are as near as those: half of a place of 4 bits. */
static void small_rows_keep_their_bits(void **state)
{
    (void)state;
    shape s = {2, 2 * 32, 64, 0, 1, false};
    stack k = new_stack(&s);
    uint8_t out[2 * 32 * 64];
    float scale;
    for (int64_t i = 0; i < 64; i++) /* a row a block */
        k.absmax[i] = ldexpf(1 + fabsf(k.absmax[i]) / 2, -(int)(i % 15));
    tsr_expert_fp8_args args = args_of(&s, &k);
    args.weight.out = out, args.scale = &scale;
    assert_int_equal(tsr_expert_fp8_ref(&args, test_pool(1)), TSR_OK);
    for (int64_t e = 0; e < 2 * 32 * 64; e++) {
        uint8_t byte = k.codes[e / 2];
        double level = (double)tsr_nf4_level[e % 2 ? byte & 15 : byte >> 4];
        double value = level * (double)k.absmax[e / 64];
        double got = (double)tsr_e4m3_to_f32(out[e]) * (double)scale;
        if (fabs(value) >= ldexp((double)scale, -6))
            assert_true(fabs(got - value) <= 1.0001 * ldexp(fabs(value), -4));
        if (fabs(level) == 1)
            assert_true(fabs(value) >= ldexp((double)scale, -6));
    }
    free_stack(&k);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float x[4] = {0};
    uint8_t codes[512] = {0}, out[4];
    const tsr_expert_fp8_args good = {.weight = {.out = out,
                                                 .codes = codes,
                                                 .absmax = x,
                                                 .level = tsr_nf4_level,
                                                 .count = 1,
                                                 .parts = 1,
                                                 .rows = 2,
                                                 .columns = 2,
                                                 .dtype = TSR_F8_E4M3},
                                      .scale = x + 1};
    assert_int_equal(tsr_expert_fp8_ref(&good, test_pool(0)), TSR_OK);
    tsr_expert_fp8_args bad = good;
    bad.weight.dtype = TSR_F32;
    assert_int_equal(tsr_expert_fp8_ref(&bad, test_pool(0)), TSR_EINVAL);
    bad = good;
    bad.weight.format = TSR_EXPERTS_PLAIN;
    bad.weight.plain = (tsr_frozen){x, TSR_F32};
    assert_int_equal(tsr_expert_fp8_check(&bad), TSR_EINVAL);
    bad = good;
    bad.scale = NULL;
    assert_int_equal(tsr_expert_fp8_check(&bad), TSR_EINVAL);
    bad = good;
    bad.weight.out = NULL;
    assert_int_equal(tsr_expert_fp8_check(&bad), TSR_EINVAL);
    bad = good;
    bad.weight.parts = 3;
    assert_int_equal(tsr_expert_fp8_check(&bad), TSR_EINVAL);
    bad = good;
    bad.weight.nested = true;
    assert_int_equal(tsr_expert_fp8_check(&bad), TSR_EINVAL);
    bad = good;
    bad.weight.first = -1;
    assert_int_equal(tsr_expert_fp8_check(&bad), TSR_EINVAL);
    bad = good;
    bad.weight.count = 0, bad.weight.out = NULL, bad.scale = NULL;
    assert_int_equal(tsr_expert_fp8_ref(&bad, test_pool(0)), TSR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_have_one_scale_each),
        cmocka_unit_test(the_largest_level_counts),
        cmocka_unit_test(what_is_not_finite_poisons_its_expert),
        cmocka_unit_test(gaps_do_not_count),
        cmocka_unit_test(zeros_have_scale_one),
        cmocka_unit_test(small_rows_keep_their_bits),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
