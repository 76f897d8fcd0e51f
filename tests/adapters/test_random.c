/*
 * Counter-based numbers of the adapters: initial values and dropout masks depend on what they are
 * for and on nothing else, and have the right distribution.
 */
#include "adapters/init.h"
#include "base/philox.h"
#include "kernels/dropout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COLUMNS 611 /* no multiple of 8 or of a register, and more than are drawn at once */

static void test_init(void **state)
{
    (void)state;
    enum { n = 64 * 704 };
    static float whole[n], part[n];
    uint64_t key = tsr_adapter_module_key("model.layers.3.mlp.up_proj");
    tsr_adapter_init_a(whole, 0, n, 704, 42, key);
    for (uint64_t first = 0, count = 1; first < n; first += count, count = count * 3 % 1001 + 1) {
        uint64_t own = n - first < count ? n - first : count;
        tsr_adapter_init_a(part + first, first, own, 704, 42, key);
    }
    assert_memory_equal(whole, part, sizeof whole);
    double bound = 1 / sqrt(704), sum = 0, squares = 0, largest = 0;
    for (int i = 0; i < n; i++) {
        sum += whole[i];
        squares += (double)whole[i] * whole[i];
        largest = fmax(largest, fabs(whole[i]));
    }
    assert_true(largest <= (float)bound && largest > 0.999 * bound);
    assert_true(fabs(sum / n) < 4 * bound / sqrt(3.0 * n));
    assert_true(fabs(squares / n / (bound * bound / 3) - 1) < 0.02);
    tsr_adapter_init_a(part, 0, n, 704, 43, key);
    assert_memory_not_equal(whole, part, sizeof whole);
    tsr_adapter_init_a(part, 0, n, 704, 42, tsr_adapter_module_key("model.layers.4.mlp.up_proj"));
    assert_memory_not_equal(whole, part, sizeof whole);
}

/* The mask is the written definition: one Philox call for eight columns. */
static void test_mask_definition(void **state)
{
    (void)state;
    tsr_dropout d = tsr_dropout_make(0.25, 7, 3, 99);
    assert_int_equal(d.threshold, 0x4000u);
    for (uint32_t position = 0; position < 300; position += 37)
        for (uint64_t sample = 5; sample < 1ull << 40; sample *= 1000) {
            uint8_t mask[COLUMNS];
            tsr_dropout_mask_row(mask, COLUMNS, &d, sample, position);
            for (uint64_t j = 0; j < COLUMNS; j++) {
                tsr_philox r = tsr_philox_at(d.key, sample, (uint64_t)position << 32 | j / 8);
                uint32_t drawn = r.word[j % 8 / 2] >> (j % 2 ? 16 : 0) & 0xffff;
                assert_int_equal(mask[j], drawn >= 0x4000u);
            }
        }
}

/* p to the nearest multiple of 2^-16, and the scale of just that; whatever p, something is kept. */
static void test_probability(void **state)
{
    (void)state;
    const double p[] = {0,   1e-9,    1e-5, 0.001, 0.05,    0.1,
                        0.2, 1.0 / 3, 0.5,  0.97,  0.99999, 1 - 1e-9};
    const uint32_t threshold[] = {0,     0,     1,     66,    3277,  6554,
                                  13107, 21845, 32768, 63570, 65535, 65535};
    for (size_t k = 0; k < sizeof p / sizeof *p; k++) {
        tsr_dropout d = tsr_dropout_make(p[k], 1, 2, 3);
        double dropped = d.threshold / 65536.0;
        assert_int_equal(d.threshold, threshold[k]);
        assert_true(fabs(dropped - p[k]) <= (p[k] < 0.9999 ? 0x1p-17 : 0x1p-16));
        assert_true(d.scale == (float)(1 / (1 - dropped)));
    }
}

static void test_rows(void **state)
{
    (void)state;
    float x[COLUMNS], out[COLUMNS], sum[COLUMNS];
    uint8_t mask[COLUMNS];
    tsr_dropout d = tsr_dropout_make(0.1, 1, 0, 2);
    for (int j = 0; j < COLUMNS; j++) {
        x[j] = (float)j - 300;
        sum[j] = 1000;
    }
    x[3] = x[17] = NAN; /* dropped or kept, a NaN is not multiplied by zero */
    tsr_dropout_mask_row(mask, COLUMNS, &d, 11, 4);
    tsr_dropout_row(out, x, COLUMNS, &d, 11, 4);
    tsr_dropout_add_row(sum, x, COLUMNS, &d, 11, 4);
    for (int j = 0; j < COLUMNS; j++) {
        if (isnan(x[j]) && mask[j]) {
            assert_true(isnan(out[j]));
            continue;
        }
        assert_true(out[j] == (mask[j] ? x[j] * d.scale : 0));
        assert_true(sum[j] == 1000 + out[j]);
    }
    tsr_dropout_row(x, x, COLUMNS, &d, 11, 4); /* in place */
    assert_memory_equal(x, out, sizeof x);
}

static double kept_share(double p, uint64_t seed, uint64_t epoch, uint64_t module, uint64_t sample)
{
    uint8_t mask[COLUMNS];
    double kept = 0;
    tsr_dropout d = tsr_dropout_make(p, seed, epoch, module);
    for (uint32_t position = 0; position < 500; position++) {
        tsr_dropout_mask_row(mask, COLUMNS, &d, sample, position);
        for (int j = 0; j < COLUMNS; j++)
            kept += mask[j];
    }
    return kept / (500 * COLUMNS);
}

static void test_share(void **state)
{
    (void)state;
    const double p[] = {0, 0.05, 0.1, 0.5, 0.9};
    for (int k = 0; k < 5; k++) {
        double error = 4.5 * sqrt(p[k] * (1 - p[k]) / (500 * COLUMNS));
        assert_true(fabs(kept_share(p[k], 1, 2, 3, 4) - (1 - p[k])) <= error);
    }
    uint8_t mask[5][COLUMNS]; /* each coordinate matters */
    const tsr_dropout d[] = {tsr_dropout_make(0.5, 1, 2, 3), tsr_dropout_make(0.5, 2, 2, 3),
                             tsr_dropout_make(0.5, 1, 3, 3), tsr_dropout_make(0.5, 1, 2, 4)};
    for (int i = 0; i < 4; i++)
        tsr_dropout_mask_row(mask[i], COLUMNS, &d[i], 9, 9);
    tsr_dropout_mask_row(mask[4], COLUMNS, &d[0], 9, 10);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(mask[i], mask[j], COLUMNS);
    tsr_dropout_mask_row(mask[4], COLUMNS, &d[0], 10, 9);
    assert_memory_not_equal(mask[0], mask[4], COLUMNS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init),        cmocka_unit_test(test_mask_definition),
        cmocka_unit_test(test_probability), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
