/*
 * test_low_rank_stack.c: adapters are stacked and taken apart element by element, and a token keeps the columns of its own
 * adapter, whatever stands in the others.
 */
#include "low_rank_stack_case.h"

static tsr_status run_stack(void *context, tsr_pool *pool)
{
    return tsr_low_rank_stack_ref(context, pool);
}

static tsr_status run_mask(void *context, tsr_pool *pool)
{
    return tsr_low_rank_mask_ref(context, pool);
}

static void expect_same(const float *got, const float *want, int64_t count)
{
    if (count)
        assert_memory_equal(got, want, (size_t)count * sizeof *got);
}

static void test_stack(void **state)
{
    (void)state;
    for (size_t n = 0; n < STACK_CASES; n++) {
        const stack_case *c = &stack_cases[n];
        int64_t ranks = ranks_of(c), rows = ranks * c->in, columns = ranks * c->out, before = 0;
        float *parts_a = new_random(rows, 1, 1), *parts_b = new_random(columns, 2, 1);
        float *a = new_floats(rows), *b = new_floats(columns);
        float *want_a = new_floats(rows), *want_b = new_floats(columns);
        tsr_low_rank_stack_args args = {
            .a = a, .b = b, .count = c->count, .in = c->in, .out = c->out};
        for (int i = 0; i < c->count; before += c->r[i++])
            args.part[i] =
                (tsr_low_rank_part){parts_a + before * c->in, parts_b + before * c->out, c->r[i]};
        stack_plainly(want_a, want_b, parts_a, parts_b, c);
        for (int k = 0; k < POOL_COUNT; k++) {
            memset(a, 0xff, (size_t)rows * sizeof *a);
            memset(b, 0xff, (size_t)columns * sizeof *b);
            args.apart = false;
            assert_int_equal(run_stack(&args, test_pool(k)), TSR_OK);
            expect_same(a, want_a, rows);
            expect_same(b, want_b, columns);
            float *back_a = new_random(rows, 1, 1), *back_b = new_random(columns, 2, 1);
            memset(parts_a, 0xff, (size_t)rows * sizeof *a);
            memset(parts_b, 0xff, (size_t)columns * sizeof *b);
            args.apart = true;
            assert_int_equal(run_stack(&args, test_pool(k)), TSR_OK);
            expect_same(parts_a, back_a, rows);
            expect_same(parts_b, back_b, columns);
            free(back_a), free(back_b);
        }
        free(parts_a), free(parts_b), free(a), free(b), free(want_a), free(want_b);
    }
}

static void test_mask(void **state)
{
    (void)state;
    for (size_t n = 0; n < STACK_CASES; n++) {
        const stack_case *c = &stack_cases[n];
        int64_t count = c->tokens * ranks_of(c);
        float *low = new_random(count, 3, 1), *got = new_floats(count);
        tsr_low_rank_mask_args args = {0};
        own_tokens(&args, c);
        float *want = new_random(count, 3, 1);
        mask_plainly(want, &args);
        for (int64_t i = 0; i < count; i++) /* what others have must not matter */
            low[i] = want[i] == 0 ? (i % 2 ? NAN : INFINITY) : low[i];
        args.low = got;
        for (int k = 0; k < POOL_COUNT; k++) {
            memcpy(got, low, (size_t)count * sizeof *got);
            assert_int_equal(run_mask(&args, test_pool(k)), TSR_OK);
            for (int64_t i = 0; i < count; i++)
                assert_true(got[i] == want[i]);
        }
        free(low), free(got), free(want);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    float some[64] = {0};
    tsr_low_rank_stack_args stack = {.a = some, .b = some, .count = 1, .in = 4, .out = 4};
    stack.part[0] = (tsr_low_rank_part){some, NULL, 2};
    assert_int_equal(run_stack(&stack, test_pool(0)), TSR_EINVAL);
    stack.count = TSR_LOW_RANK_STACK + 1;
    assert_int_equal(run_stack(&stack, test_pool(0)), TSR_EINVAL);
    tsr_low_rank_mask_args mask = {.low = some, .tokens = 4, .columns = 8, .count = 1};
    mask.owner[0] = (tsr_low_rank_owner){0, 5, 0, 8, 1};
    assert_int_equal(run_mask(&mask, test_pool(0)), TSR_EINVAL);
    mask.owner[0] = (tsr_low_rank_owner){0, 4, 4, 8, 1};
    assert_int_equal(run_mask(&mask, test_pool(0)), TSR_EINVAL);
    mask.owner[0].column = 0;
    mask.dtype = TSR_BF16;
    assert_int_equal(run_mask(&mask, test_pool(0)), TSR_EUNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_mask),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
