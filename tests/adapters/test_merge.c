/*
 * The merge of rows against the formula in double, for LoRA and DoRA, and rows alone against all rows
 * together: the same up to it. Tolerance: 6e-7 of the
 * largest value (measured 3.2e-7, at rank 64).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "adapters/merge.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 6e-7

static float *random_floats(uint64_t count, uint64_t seed, float size)
{
    float *out = malloc(count * sizeof *out);
    assert_non_null(out);
    for (uint64_t i = 0; i < count; i++)
        out[i] = size * (2 * tsr_philox_uniform((uint32_t)tsr_mix(seed + i)) - 1);
    return out;
}

static void check(tsr_pool *pool, uint64_t out, uint64_t in, uint64_t r, bool dora)
{
    float *w = random_floats(out * in, 1, 0.1f), *a = random_floats(r * in, 1u << 20, 0.3f);
    float *b = random_floats(out * r, 1u << 22, 0.2f), *m = random_floats(out, 1u << 24, 3);
    float *all = malloc(out * in * sizeof *all), *one = malloc(in * sizeof *one);
    tsr_adapter_merge_args args = {out, in, r, a, b, dora ? m : NULL, 1.75};
    memcpy(all, w, out * in * sizeof *all);
    assert_int_equal(tsr_adapter_merge(all, &args, pool), TSR_OK);
    double most = 0, largest = 0;
    for (uint64_t j = 0; j < out; j++) {
        double sum = 0, row[512];
        for (uint64_t i = 0; i < in; i++) {
            row[i] = (double)w[j * in + i];
            for (uint64_t k = 0; k < r; k++)
                row[i] += 1.75 * (double)b[j * r + k] * (double)a[k * in + i];
            sum += row[i] * row[i];
        }
        for (uint64_t i = 0; i < in; i++) {
            double expected = (dora ? (double)m[j] / sqrt(sum) : 1) * row[i];
            most = fmax(most, fabs(expected - (double)all[j * in + i]));
            largest = fmax(largest, fabs(expected));
            assert_true(isfinite(all[j * in + i]));
        }
        args = (tsr_adapter_merge_args){1, in, r, a, b + j * r, dora ? m + j : NULL, 1.75};
        memcpy(one, w + j * in, in * sizeof *one);
        assert_int_equal(tsr_adapter_merge(one, &args, pool), TSR_OK);
        for (uint64_t i = 0; i < in; i++) /* another split of the matmul: within an ulp or two */
            assert_true(fabsf(one[i] - all[j * in + i]) <= (float)(TOLERANCE * largest) + 1e-30f);
    }
    if (!(most <= TOLERANCE * largest))
        fail_msg("[%d, %d] r %d: %g of %g", (int)out, (int)in, (int)r, most, largest);
    void *buffers[] = {w, a, b, m, all, one};
    for (int i = 0; i < 6; i++)
        free(buffers[i]);
}

static void test_merge(void **state)
{
    (void)state;
    tsr_device *device;
    assert_int_equal(tsr_device_create_cpu(&device, &(tsr_device_options){.thread_count = 2}),
                     TSR_OK);
    for (int dora = 0; dora < 2; dora++) {
        check(tsr_device_pool(device), 96, 64, 8, dora);
        check(tsr_device_pool(device), 33, 511, 3, dora);
        check(tsr_device_pool(device), 1, 1, 1, dora);
        check(tsr_device_pool(device), 300, 128, 64, dora);
    }
    tsr_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_merge)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
