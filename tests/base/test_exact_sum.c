/*
 * The exact sum against __int128 (values on a grid), against a sum kept in a long expansion of
 * doubles (any values), and by properties: order, splits over ranks, one rounding.
 */
#include "base/exact_sum.h"
#include "base/philox.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_word(uint64_t i)
{
    tsr_philox r = tsr_philox_at(17, 4, i);
    return (uint64_t)r.word[0] << 32 | r.word[1];
}

static double sum_of(const double *x, uint64_t count)
{
    tsr_exact_sum sum;
    tsr_exact_clear(&sum);
    for (uint64_t i = 0; i < count; i++)
        tsr_exact_add(&sum, x[i]);
    return tsr_exact_round(&sum);
}

/* `value` 2^exponent rounded to `bits` bits, ties to even, by integer arithmetic. */
static double round_int128(__int128 value, int bits, int exponent)
{
    unsigned __int128 size = (unsigned __int128)(value < 0 ? -value : value), one = 1;
    int drop = 0;
    while (size >> drop >= one << bits)
        drop++;
    unsigned __int128 kept = size >> drop, rest = size - (kept << drop);
    unsigned __int128 half = drop ? one << (drop - 1) : 0;
    if (drop && (rest > half || (rest == half && (kept & 1))))
        kept++;
    double result = ldexp((double)(uint64_t)kept, drop + exponent);
    return value < 0 ? -result : result;
}

/* Multiples of 2^-60 whose sum fits 128 bits. */
static void test_against_int128(void **state)
{
    (void)state;
    for (uint64_t trial = 0; trial < 400; trial++) {
        tsr_exact_sum sum;
        tsr_exact_clear(&sum);
        __int128 expected = 0;
        uint64_t count = random_word(trial) % 300 + 1;
        for (uint64_t i = 0; i < count; i++) {
            uint64_t word = random_word(trial * 1000 + i + 1);
            int64_t mantissa = (int64_t)word >> 11; /* 53 bits: a double holds it */
            int shift = (int)(word % 60);
            expected += (__int128)mantissa * ((__int128)1 << shift);
            tsr_exact_add(&sum, ldexp((double)mantissa, shift - 60));
        }
        double found = tsr_exact_round(&sum), want = round_int128(expected, 53, -60);
        assert_true(found == want);
    }
}

/* The mean is rounded once: found by integer division with a sticky bit. */
static void test_mean_against_int128(void **state)
{
    (void)state;
    for (uint64_t trial = 0; trial < 2000; trial++) {
        tsr_exact_sum sum;
        tsr_exact_clear(&sum);
        __int128 expected = 0;
        uint64_t count = random_word(trial) % 40 + 1;
        for (uint64_t i = 0; i < count; i++) {
            uint32_t word = (uint32_t)random_word(trial * 1000 + i + 1);
            int64_t mantissa = word >> 8; /* absmax: fp32 values that are not negative */
            if (trial % 3 == 0)
                mantissa = -mantissa;
            int shift = (int)(word % 30);
            expected += (__int128)mantissa * ((__int128)1 << shift);
            tsr_exact_add(&sum, ldexp((double)mantissa, shift - 40));
        }
        /* 40 more bits than the sum has, and whether anything is left below them. */
        __int128 scaled = expected * ((__int128)1 << 40), size = scaled < 0 ? -scaled : scaled;
        __int128 quotient = size / (__int128)count * 2 + (size % (__int128)count != 0);
        double want = round_int128(scaled < 0 ? -quotient : quotient, 24, -40 - 41);
        assert_true(tsr_exact_mean_f32(&sum, count) == (float)want);
    }
}

static void test_mean_edges(void **state)
{
    (void)state;
    tsr_exact_sum sum;
    tsr_exact_clear(&sum);
    assert_true(tsr_exact_mean_f32(&sum, 5) == 0);
    for (int i = 0; i < 37; i++)
        tsr_exact_add(&sum, (double)0.1f);
    assert_true(tsr_exact_mean_f32(&sum, 37) == 0.1f); /* a sum in fp32 misses it by an ulp */
    tsr_exact_clear(&sum);
    tsr_exact_add(&sum, 0x1p-149);
    assert_true(tsr_exact_mean_f32(&sum, 2) == 0); /* half of the least subnormal: a tie to even */
    tsr_exact_add(&sum, 0x1p-149);
    tsr_exact_add(&sum, 0x1p-149);
    assert_true(tsr_exact_mean_f32(&sum, 2) == 0x1p-148f); /* 1.5: to even */
    tsr_exact_clear(&sum);
    for (int i = 0; i < 4; i++)
        tsr_exact_add(&sum, (double)FLT_MAX);
    assert_true(tsr_exact_mean_f32(&sum, 4) == FLT_MAX);
    assert_true(isinf(tsr_exact_mean_f32(&sum, 1)));
    tsr_exact_clear(&sum);
    tsr_exact_add(&sum, 1);
    assert_true(tsr_exact_mean_f32(&sum, 1ull << 32) == 0x1p-32f);
    assert_true(tsr_exact_mean_f32(&sum, 3) == (float)(1 / 3.0));
}

static void test_whole_range(void **state)
{
    (void)state;
    const double x[] = {DBL_MAX, 1, 0x1p-1074, -DBL_MAX, 0x1p-1074, -1};
    assert_true(sum_of(x, 6) == 0x1p-1073);
    assert_true(sum_of(x, 4) == 1);
    const double big[] = {DBL_MAX, DBL_MAX, -DBL_MAX};
    assert_true(sum_of(big, 3) == DBL_MAX);
    assert_true(isinf(sum_of(big, 2)));
    const double tie[] = {1, 0x1p-53}, above[] = {1, 0x1p-53, 0x1p-1074};
    assert_true(sum_of(tie, 2) == 1);
    assert_true(sum_of(above, 3) == 1 + 0x1p-52);
    const double odd_tie[] = {1 + 0x1p-52, 0x1p-53};
    assert_true(sum_of(odd_tie, 2) == 1 + 0x1p-51);
    const double zero[] = {0.0, -0.0, 5, -5};
    assert_true(sum_of(zero, 4) == 0);
    const double negative[] = {-0x1p-1074, -0x1p1000};
    assert_true(sum_of(negative, 2) == -0x1p1000);
    for (int e = -1074; e < 1024; e++) {
        double one = ldexp(1.5, e == -1074 ? -1073 : e), two[] = {one, one};
        assert_true(sum_of(&one, 1) == one && sum_of(two, 2) == one + one);
    }
}

static void test_not_finite(void **state)
{
    (void)state;
    const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        tsr_exact_sum sum, other;
        tsr_exact_clear(&sum);
        tsr_exact_clear(&other);
        tsr_exact_add(&sum, 1);
        tsr_exact_add(&other, bad[k]);
        tsr_exact_merge(&sum, &other);
        assert_true(isnan(tsr_exact_round(&sum)) && isnan(tsr_exact_mean_f32(&sum, 2)));
    }
}

/* A sum without rounding in the plain way: non-overlapping doubles, grown one summand at a time
 * (Shewchuk 1997); its largest component is within an ulp of the sum, and it is exactly zero when
 * the sum less the answer is. */
static double expansion_error(const double *x, uint64_t count, double answer)
{
    double part[2100], total = 0;
    int parts = 0;
    for (uint64_t i = 0; i <= count; i++) {
        double carry = i < count ? x[i] : -answer;
        int kept = 0;
        for (int k = 0; k < parts; k++) {
            volatile double sum = carry + part[k], virtual = sum - carry;
            volatile double low = (carry - (sum - virtual)) + (part[k] - virtual);
            if (low != 0)
                part[kept++] = low;
            carry = sum;
        }
        part[kept++] = carry;
        parts = kept;
    }
    for (int k = 0; k < parts; k++)
        total += part[k];
    return total;
}

static void test_any_values_any_order(void **state)
{
    (void)state;
    enum { n = 500 };
    double x[n];
    for (uint64_t trial = 0; trial < 60; trial++) {
        for (uint64_t i = 0; i < n; i++) {
            uint64_t word = random_word(trial * n + i);
            int exponent = (int)(word % (trial % 2 ? 1800 : 90)) - (trial % 2 ? 900 : 45);
            x[i] = ldexp((double)((int64_t)word >> 11), exponent - 53);
        }
        double found = sum_of(x, n);
        double error = fabs(expansion_error(x, n, found));
        double ulp = nextafter(fabs(found), INFINITY) - fabs(found);
        assert_true(error <= ulp / 2);
        tsr_exact_sum part[5], merged;
        for (int k = 0; k < 5; k++)
            tsr_exact_clear(&part[k]);
        for (uint64_t i = n; i-- > 0;) /* another order, over five ranks */
            tsr_exact_add(&part[random_word(i + trial) % 5], x[i * 7 % n]);
        tsr_exact_clear(&merged);
        for (int k = 4; k >= 0; k--)
            tsr_exact_merge(&merged, &part[k]);
        double again = tsr_exact_round(&merged);
        assert_memory_equal(&again, &found, sizeof found);
    }
}

/* Carries between limbs over many additions, both signs. */
static void test_many_additions(void **state)
{
    (void)state;
    tsr_exact_sum sum;
    tsr_exact_clear(&sum);
    const double x = 1 - 0x1p-53;
    for (int i = 0; i < 1 << 20; i++)
        tsr_exact_add(&sum, -x);
    assert_true(tsr_exact_round(&sum) == -x * 0x1p20);
    for (int i = 0; i < 9; i++) { /* doubled by merging: 2^29 additions, half of what is allowed */
        tsr_exact_sum copy = sum;
        tsr_exact_merge(&sum, &copy);
    }
    assert_true(tsr_exact_round(&sum) == -x * 0x1p29);
    tsr_exact_add(&sum, x * 0x1p29);
    assert_true(tsr_exact_round(&sum) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_int128), cmocka_unit_test(test_mean_against_int128),
        cmocka_unit_test(test_mean_edges),     cmocka_unit_test(test_whole_range),
        cmocka_unit_test(test_not_finite),     cmocka_unit_test(test_any_values_any_order),
        cmocka_unit_test(test_many_additions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
