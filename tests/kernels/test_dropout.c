/*
 * test_dropout.c: the op: every row by its own sample and position; added to; what is left of x. The masks
 * themselves are judged in tests/adapters/test_random.c.
 */
#include "kernels/dropout.h"

#include "kernels/kernel_test.h"

#define ROWS 37
#define D    611

static void run_op(tsr_dropout_args args, float *out)
{
    args.out = out;
    assert_int_equal(tsr_dropout_ref(&args, test_pool(1)), TSR_OK);
}

/* The op with what is left of x, and added to, over what it reads or not. */
static void test_op(void **state)
{
    (void)state;
    enum { n = ROWS * D };
    static float x[n], out[n], left[n], same[n], old[n];
    static uint8_t mask[n];
    int64_t samples[ROWS];
    int32_t positions[ROWS];
    tsr_dropout d = tsr_dropout_make(0.3, 1, 0, 2);
    for (int t = 0; t < ROWS; t++) {
        samples[t] = 100 + t / 5;
        positions[t] = t % 5;
        tsr_dropout_mask_row(mask + t * D, D, &d, (uint64_t)samples[t], (uint32_t)positions[t]);
    }
    for (int i = 0; i < n; i++) {
        x[i] = (float)(i * 37 % 1001) - 500.3f;
        old[i] = (float)(i % 17);
    }
    tsr_dropout_args args = {.x = x,
                             .samples = samples,
                             .positions = positions,
                             .dropout = d,
                             .tokens = ROWS,
                             .columns = D};
    args.left = left;
    run_op(args, out);
    for (int i = 0; i < n; i++) {
        assert_true(out[i] == (mask[i] ? x[i] * d.scale : 0));
        assert_true((double)out[i] + (double)left[i] == (double)x[i]);
    }
    args.left = same;
    assert_int_equal(tsr_dropout_check(&args), TSR_EINVAL); /* no out */
    args.out = out;
    args.add = true;
    assert_int_equal(tsr_dropout_check(&args), TSR_EINVAL);
    args.left = NULL;
    memcpy(same, old, sizeof same);
    run_op(args, same);
    for (int i = 0; i < n; i++)
        assert_true(same[i] == old[i] + out[i]);
    args.add = false;
    args.left = left;
    memcpy(same, x, sizeof same);
    memset(left, 0, sizeof left);
    args.x = same;
    run_op(args, same); /* over x: what is left is of x as it was */
    for (int i = 0; i < n; i++)
        assert_true(left[i] == x[i] - (mask[i] ? x[i] * d.scale : 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_op)};
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
