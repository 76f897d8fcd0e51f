/*
 * tests/kernels/kernel_test.h: pools of several sizes, random data, and comparison with fp64, for
 * the tests of the device operations.
 */
#ifndef TSR_TESTS_KERNELS_KERNEL_TEST_H
#define TSR_TESTS_KERNELS_KERNEL_TEST_H

#include "base/dtype.h"
#include "base/philox.h"
#include "device/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define POOL_COUNT 4

static const int pool_threads[POOL_COUNT] = {1, 2, 3, 5};
static tsr_device *pool_device[POOL_COUNT];

static inline tsr_pool *test_pool(int index)
{
    if (!pool_device[index]) {
        tsr_device_options options = {.thread_count = pool_threads[index], .no_pinning = true};
        assert_int_equal(tsr_device_create_cpu(&pool_device[index], &options), TSR_OK);
    }
    return tsr_device_pool(pool_device[index]);
}

static inline int pools_teardown(void **state)
{
    (void)state;
    for (int i = 0; i < POOL_COUNT; i++) {
        tsr_device_destroy(pool_device[i]);
        pool_device[i] = NULL;
    }
    return 0;
}

/* A malloc'd array, so that sanitizers see its end. */
static inline float *new_floats(int64_t count)
{
    float *data = malloc((size_t)(count ? count : 1) * sizeof(float));
    assert_non_null(data);
    return data;
}

/* Uniform in [-scale, scale), by seed and index. */
static inline float *new_random(int64_t count, uint64_t seed, float scale)
{
    float *data = new_floats(count);
    for (int64_t i = 0; i < count; i++)
        data[i] = (2 * tsr_philox_uniform(tsr_philox_at(seed, 7, (uint64_t)i).word[0]) - 1) * scale;
    return data;
}

/* Around 1: magnitudes over norms, and norms. */
static inline float *new_gain(int64_t count, uint64_t seed)
{
    float *data = new_random(count, seed, 0.5f);
    for (int64_t i = 0; i < count; i++)
        data[i] += 1.25f;
    return data;
}

static inline double *new_doubles(const float *from, int64_t count)
{
    double *data = malloc((size_t)(count ? count : 1) * sizeof(double));
    assert_non_null(data);
    for (int64_t i = 0; i < count; i++)
        data[i] = from ? (double)from[i] : 0;
    return data;
}

static inline uint16_t *new_bf16(float *values, int64_t count)
{
    assert_true(count >= 0);
    uint16_t *data = malloc(((size_t)count + 1) * sizeof(uint16_t));
    assert_non_null(data);
    for (int64_t i = 0; i < count; i++) {
        data[i] = tsr_f32_to_bf16(values[i]);
        values[i] = tsr_bf16_to_f32(data[i]);
    }
    return data;
}

/* Every element within `tolerance` of the largest |want|, or of `least` where all are smaller. */
static inline void expect_near(const char *what, const float *got, const double *want,
                               int64_t count, double tolerance, double least)
{
    double most = least;
    for (int64_t i = 0; i < count; i++)
        most = fabs(want[i]) > most ? fabs(want[i]) : most;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * most))
            fail_msg("%s[%lld] = %.9g, want %.9g, largest %.3g", what, (long long)i, (double)got[i],
                     want[i], most);
}

static inline void expect_close(const char *what, const float *got, const double *want,
                                int64_t count, double tolerance)
{
    expect_near(what, got, want, count, tolerance, 1e-30);
}

/* Runs the op on pools of 1, 2, 3 and 5 threads: the same bits. `out` holds the last result. */
typedef tsr_status test_run(void *context, tsr_pool *pool);

static inline void run_on_pools(test_run *run, void *context, float *out, int64_t count)
{
    float *first = new_floats(count);
    for (int i = 0; i < POOL_COUNT; i++) {
        memset(out, 0xff, (size_t)count * sizeof(float)); /* NaN */
        tsr_status status = run(context, test_pool(i));
        if (status != TSR_OK)
            fail_msg("%d: %s", (int)status, tsr_last_error());
        if (i == 0)
            memcpy(first, out, (size_t)count * sizeof(float));
        else if (memcmp(first, out, (size_t)count * sizeof(float)) != 0)
            fail_msg("a pool of %d threads gives other bits", pool_threads[i]);
    }
    free(first);
}

/* d f / d x[i] by central differences, f in fp64. */
static inline double difference(double (*f)(void *), void *context, double *x, int64_t i)
{
    const double step = 1e-5;
    double old = x[i];
    x[i] = old + step;
    double up = f(context);
    x[i] = old - step;
    double down = f(context);
    x[i] = old;
    return (up - down) / (2 * step);
}

static inline double *new_gradient(double (*f)(void *), void *context, double *x, int64_t count)
{
    double *gradient = new_doubles(NULL, count);
    for (int64_t i = 0; i < count; i++)
        gradient[i] = difference(f, context, x, i);
    return gradient;
}

#endif
