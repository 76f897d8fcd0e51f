/*
 * test_vector_math.c: the CPU kernels' exp against libm in fp64.
 */
#include "kernels/vector_math.h"

#include "kernels/kernel_test.h"

#define EXP_ULP 2.0

static void exp_is_within_two_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (int64_t i = 0; i < 2000000; i++) {
        float x = -86.0f + 174.7f * (float)i / 2000000.0f;
        double want = exp((double)x), got = (double)tsr_expf(x);
        double ulp = ldexp(1, ilogb(want) - 23);
        double error = fabs(got - want) / ulp;
        worst = error > worst ? error : worst;
    }
    if (worst > EXP_ULP)
        fail_msg("%.3f ulp", worst);
}

static void exp_of_the_ends(void **state)
{
    (void)state;
    assert_true(tsr_expf(0.0f) == 1.0f);
    assert_true(tsr_expf(-INFINITY) == 0.0f);
    assert_true(tsr_expf(-1e30f) == 0.0f);
    assert_true(tsr_expf(-87.0f) == 0.0f);
    assert_true(tsr_expf(89.0f) == INFINITY);
    assert_true(tsr_expf(INFINITY) == INFINITY);
    assert_true(tsr_expf(88.7f) < INFINITY);
    assert_true(isnan(tsr_expf(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_ulp),
        cmocka_unit_test(exp_of_the_ends),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
