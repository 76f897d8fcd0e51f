/*
 * fp32 to bf16, against pairs of bits written by hand: every other test that rounds asks the same
 * function what is right. And the search for what is not finite.
 */
#include "base/dtype.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static uint16_t rounded(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return tsr_f32_to_bf16(value);
}

static void test_bf16_rounding(void **state)
{
    (void)state;
    static const struct {
        uint32_t wide;
        uint16_t narrow;
    } pairs[] = {
        {0x00000000, 0x0000}, {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, /* below the middle */
        {0x3f808000, 0x3f80},                       /* ties: to the even one, which is below */
        {0x3f818000, 0x3f82},                       /* and above */
        {0x3f808001, 0x3f81},                       /* above the middle */
        {0x3fff8000, 0x4000},                       /* into the next exponent */
        {0x00008000, 0x0000}, {0x00018000, 0x0002}, /* ties of subnormal numbers */
        {0x007fffff, 0x0080},                       /* the smallest normal one */
        {0x7f7f7fff, 0x7f7f},                       /* the largest finite one */
        {0x7f7f8000, 0x7f80}, {0x7f7fffff, 0x7f80}, /* infinity */
        {0x7f800000, 0x7f80},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        assert_int_equal(rounded(pairs[i].wide), pairs[i].narrow);
        assert_int_equal(rounded(pairs[i].wide | 0x80000000u), pairs[i].narrow | 0x8000);
    }
}

/* With its sign, and quiet: the bits that stay alone would make an infinity of the first. */
static void test_bf16_nan(void **state)
{
    (void)state;
    static const uint32_t nans[] = {0x7f800001, 0x7f80ffff, 0x7fc00000, 0x7fffffff};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++)
        for (uint32_t sign = 0; sign < 2; sign++) {
            uint16_t narrow = rounded(nans[i] | sign << 31);
            assert_true((narrow & 0x7fc0) == 0x7fc0);
            assert_int_equal(narrow >> 15, sign);
        }
}

/* Each of them is a float that comes back as it was. */
static void test_bf16_back(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++)
        if ((bits & 0x7fff) <= 0x7f80)
            assert_int_equal(tsr_f32_to_bf16(tsr_bf16_to_f32((uint16_t)bits)), bits);
}

/* Each kind of NaN and infinity at each place of a few chunks, and none among all finite numbers. */
static void test_first_not_finite(void **state)
{
    (void)state;
    static const uint16_t bad_bf16[] = {0x7f80, 0xff80, 0x7f81, 0xffff};
    static const uint16_t bad_f16[] = {0x7c00, 0xfc00, 0x7c01, 0xffff};
    static uint16_t half[1300];
    static float wide[1300];
    for (int i = 0; i < 1300; i++) {
        half[i] = (uint16_t)(i % 2 ? 0x7bff : 0x83ff); /* the largest of F16, and a small one */
        wide[i] = i % 2 ? 0x1.fffffep127f : -0x1p-149f;
    }
    assert_int_equal(tsr_first_not_finite(half, TSR_F16, 1300), 1300);
    assert_int_equal(tsr_first_not_finite(half, TSR_BF16, 1300), 1300);
    assert_int_equal(tsr_first_not_finite(wide, TSR_F32, 1300), 1300);
    assert_int_equal(tsr_first_not_finite(half, TSR_BF16, 0), 0);
    static uint8_t code[1300];
    code[3] = 0x7e, code[4] = 0xfe; /* the largest */
    assert_int_equal(tsr_first_not_finite(code, TSR_F8_E4M3, 1300), 1300);
    code[1100] = 0xff;
    assert_int_equal(tsr_first_not_finite(code, TSR_F8_E4M3, 1300), 1100);
    code[7] = 0x7f;
    assert_int_equal(tsr_first_not_finite(code, TSR_F8_E4M3, 1300), 7);
    for (int i = 0; i < 1300; i++) {
        uint16_t good = half[i];
        float number = wide[i];
        half[i] = bad_bf16[i % 4];
        assert_int_equal(tsr_first_not_finite(half, TSR_BF16, 1300), i);
        half[i] = bad_f16[i % 4];
        assert_int_equal(tsr_first_not_finite(half, TSR_F16, 1300), i);
        wide[i] = tsr_bf16_to_f32(bad_bf16[i % 4]);
        assert_int_equal(tsr_first_not_finite(wide, TSR_F32, 1300), i);
        half[i] = good;
        wide[i] = number;
    }
    memset(wide, 0xff, sizeof wide);
    assert_int_equal(tsr_first_not_finite(wide, TSR_U8, 1300), 1300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_rounding),
        cmocka_unit_test(test_bf16_nan),
        cmocka_unit_test(test_bf16_back),
        cmocka_unit_test(test_first_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
