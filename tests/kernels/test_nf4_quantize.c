/*
 * test_nf4_quantize.c: the ops nf4_quantize and nf4_nest give the bytes of the plain functions (which
 * tests/quant holds against bitsandbytes) for any number of threads and any pieces, all cases of
 * golden/nf4_dq among them; the first value that is not finite is named; a nested part of a tensor is
 * that part of the whole.
 */
#include "kernels/nf4_quantize.h"

#include "kernels/kernel_test.h"
#include "kernels/nf4_values.h"
#include "support/golden_plain.h"

static void one_quantize(const void *values, tsr_dtype dtype, int64_t count, tsr_pool *pool)
{
    int64_t blocks = (count + 63) / 64, bytes = (count + 1) / 2;
    uint8_t *want = malloc((size_t)bytes), *codes = malloc((size_t)bytes);
    float *want_absmax = new_floats(blocks), *absmax = new_floats(blocks);
    uint64_t bad = UINT64_MAX;
    assert_true(want && codes);
    assert_int_equal(tsr_nf4_quantize_values(want, want_absmax, values, dtype, (uint64_t)count),
                     count);
    /* In two pieces of whole blocks. */
    int64_t cut = blocks / 3 * 64;
    tsr_nf4_quantize_args args = {.codes = codes,
                                  .absmax = absmax,
                                  .bad = &bad,
                                  .values = values,
                                  .count = cut,
                                  .dtype = dtype};
    assert_int_equal(tsr_nf4_quantize_ref(&args, pool), TSR_OK);
    args.codes += cut / 2;
    args.absmax += cut / 64;
    args.values = (const char *)values + cut * tsr_dtype_bytes(dtype);
    args.first = (uint64_t)cut;
    args.count = count - cut;
    assert_int_equal(tsr_nf4_quantize_ref(&args, pool), TSR_OK);
    assert_memory_equal(codes, want, (size_t)bytes);
    assert_memory_equal(absmax, want_absmax, (size_t)blocks * sizeof *absmax);
    assert_true(bad == UINT64_MAX);
    free(want), free(codes), free(want_absmax), free(absmax);
}

static void pieces_and_threads_do_not_matter(void **state)
{
    static const int64_t counts[] = {1, 63, 64, 65, 128, 1001, 32768, 32769, 200003};
    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (tsr_dtype dtype = TSR_F32; dtype <= TSR_F16; dtype++) {
            void *values = nf4_new_values(counts[c], dtype, c);
            for (int i = 0; i < POOL_COUNT; i++)
                one_quantize(values, dtype, counts[c], test_pool(i));
            free(values);
        }
}

static void golden_case(void *context, const char *name, const nf4_golden *g)
{
    int *compared = context;
    int64_t blocks = (g->count + 63) / 64;
    uint8_t *codes = malloc((size_t)g->count);
    float *absmax = new_floats(blocks);
    uint64_t bad = UINT64_MAX;
    tsr_nf4_quantize_args args = {.codes = codes,
                                  .absmax = absmax,
                                  .bad = &bad,
                                  .values = g->values,
                                  .count = g->count,
                                  .dtype = g->dtype};
    assert_int_equal(tsr_nf4_quantize_ref(&args, test_pool(2)), TSR_OK);
    if (memcmp(codes, g->codes, (size_t)(g->count + 1) / 2))
        fail_msg("%s: codes differ", name);
    free(codes), free(absmax);
    ++*compared;
}

static void every_golden_case(void **state)
{
    int compared = 0;
    (void)state;
    nf4_each_golden(golden_case, &compared);
    assert_int_equal(compared, 44);
}

/* The lowest index of several, counted from `first`. */
static void the_first_bad_value_is_named(void **state)
{
    enum { count = 100000 };
    static const int64_t at[] = {99999, 70000, 40001, 128, 0};
    (void)state;
    float *x = new_random(count, 3, 1), *absmax = new_floats(count / 64 + 1);
    uint8_t *codes = malloc(count);
    assert_non_null(codes);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        uint64_t bad = UINT64_MAX;
        x[at[i]] = i % 2 ? NAN : -INFINITY;
        tsr_nf4_quantize_args args = {
            .codes = codes, .absmax = absmax, .bad = &bad, .values = x, .first = 7, .count = count};
        assert_int_equal(tsr_nf4_quantize_ref(&args, test_pool(3)), TSR_OK);
        assert_true(bad == (uint64_t)at[i] + 7);
    }
    free(x), free(absmax), free(codes);
}

static void one_nest(int64_t blocks, int kind, tsr_pool *pool)
{
    int64_t groups = (blocks + 255) / 256, first = blocks / 3, count = blocks / 2;
    float *absmax = nf4_new_absmax(blocks, kind), offset, part_offset;
    float *nested = new_floats(groups), *want = new_floats(groups);
    uint8_t *q = malloc((size_t)blocks), *part = malloc((size_t)blocks);
    assert_true(q && part);
    tsr_nf4_nest_args args = {.q = q,
                              .nested_absmax = nested,
                              .offset = &offset,
                              .absmax = absmax,
                              .map = tsr_nf4_nested_map,
                              .blocks = blocks,
                              .count = blocks};
    assert_int_equal(tsr_nf4_nest_ref(&args, pool), TSR_OK);
    long double sum = 0; /* 64 bits: near enough to tell another mean */
    for (int64_t i = 0; i < blocks; i++)
        sum += (long double)absmax[i];
    assert_true(fabsl((long double)offset - sum / (long double)blocks) <=
                fabsl((long double)offset) * 0x1p-23L + 0x1p-149L);
    tsr_nf4_nest_values(part, want, absmax, tsr_nf4_nested_map, (uint64_t)blocks, 0,
                        (uint64_t)blocks, offset);
    assert_memory_equal(q, part, (size_t)blocks);
    assert_memory_equal(nested, want, (size_t)groups * sizeof *want);
    args.q = part;
    args.offset = &part_offset;
    args.first = first;
    args.count = count;
    assert_int_equal(tsr_nf4_nest_ref(&args, pool), TSR_OK);
    assert_memory_equal(part, q + first, (size_t)count);
    assert_memory_equal(&part_offset, &offset, sizeof offset);
    assert_memory_equal(nested, want, (size_t)groups * sizeof *want);
    free(absmax), free(nested), free(want), free(q), free(part);
}

static void a_part_is_that_of_the_whole(void **state)
{
    static const int64_t blocks[] = {1, 2, 255, 256, 257, 8192, 8193, 50000};
    (void)state;
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        for (int kind = 0; kind < NF4_ABSMAX_KINDS; kind++)
            one_nest(blocks[b], kind, test_pool((int)b % POOL_COUNT));
}

static void a_scale_that_is_not_finite(void **state)
{
    (void)state;
    float absmax[3] = {1, INFINITY, 2}, nested, offset;
    uint8_t q[3];
    tsr_nf4_nest_args args = {.q = q,
                              .nested_absmax = &nested,
                              .offset = &offset,
                              .absmax = absmax,
                              .map = tsr_nf4_nested_map,
                              .blocks = 3,
                              .count = 3};
    assert_int_equal(tsr_nf4_nest_ref(&args, test_pool(0)), TSR_OK);
    assert_true(isnan(offset));
}

static void arguments_are_judged(void **state)
{
    (void)state;
    float x[2] = {1, 2}, absmax[1], offset;
    uint8_t codes[1];
    uint64_t bad;
    tsr_nf4_quantize_args quantize = {
        .codes = codes, .absmax = absmax, .bad = &bad, .values = x, .count = 2};
    assert_int_equal(tsr_nf4_quantize_check(&quantize), TSR_OK);
    assert_int_equal(tsr_nf4_quantize_check(&(tsr_nf4_quantize_args){0}), TSR_OK);
    quantize.bad = NULL;
    assert_int_equal(tsr_nf4_quantize_check(&quantize), TSR_EINVAL);
    quantize.bad = &bad;
    quantize.dtype = TSR_U8;
    assert_int_equal(tsr_nf4_quantize_check(&quantize), TSR_EINVAL);
    tsr_nf4_nest_args nest = {.q = codes,
                              .nested_absmax = x,
                              .offset = &offset,
                              .absmax = absmax,
                              .map = tsr_nf4_nested_map,
                              .blocks = 1,
                              .count = 1};
    assert_int_equal(tsr_nf4_nest_check(&nest), TSR_OK);
    nest.first = 1;
    assert_int_equal(tsr_nf4_nest_check(&nest), TSR_EINVAL);
    nest.first = 0;
    nest.blocks = TSR_NF4_NEST_BLOCKS + 1;
    assert_int_equal(tsr_nf4_nest_check(&nest), TSR_EINVAL);
    nest.blocks = 0;
    assert_int_equal(tsr_nf4_nest_check(&nest), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_and_threads_do_not_matter),
        cmocka_unit_test(every_golden_case),
        cmocka_unit_test(the_first_bad_value_is_named),
        cmocka_unit_test(a_part_is_that_of_the_whole),
        cmocka_unit_test(a_scale_that_is_not_finite),
        cmocka_unit_test(arguments_are_judged),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
