/*
 * test_noise.c: NEFTune's numbers: those of an implementation in numpy (tests/golden/head_tiny_llama.json), of each row
 * by its own sample and position, whatever lies beside it; uniform in [-1, 1).
 */
#include "kernels/noise.h"

#include "kernels/kernel_test.h"

#include <jansson.h>
#include <math.h>

#define SEED 42

static void add(float *x, int64_t tokens, int64_t columns, const int64_t *samples,
                const int32_t *positions, uint64_t key, float size, int pool)
{
    tsr_noise_args args = {.x = x,
                           .samples = samples,
                           .positions = positions,
                           .key = key,
                           .size = size,
                           .tokens = tokens,
                           .columns = columns};
    assert_int_equal(tsr_noise_ref(&args, test_pool(pool)), TSR_OK);
}

static void numbers_are_those_of_numpy(void **state)
{
    (void)state;
    json_error_t error;
    json_t *golden = json_load_file(TSR_SOURCE_DIR "/tests/golden/head_tiny_llama.json", 0, &error);
    const json_t *want = json_object_get(golden, "uniform"), *value;
    float x[256] = {0};
    int64_t sample = json_integer_value(json_object_get(want, "sample"));
    int32_t position = (int32_t)json_integer_value(json_object_get(want, "position"));
    size_t i;
    assert_non_null(golden);
    assert_int_equal(json_integer_value(json_object_get(want, "seed")), SEED);
    add(x, 1, 256, &sample, &position, tsr_noise_key(SEED, 0), 1, 0);
    json_array_foreach(json_object_get(want, "columns"), i, value)
        assert_true((double)x[i] == json_number_value(value));
    assert_int_equal(i, 8);
    json_array_foreach(json_object_get(want, "last_columns"), i, value)
        assert_true((double)x[253 + i] == json_number_value(value));
    assert_int_equal(i, 3);
    json_decref(golden);
}

/* x + size u, by sample, position and column alone: rows in another order, narrower and on other threads. */
static void rows_depend_on_nothing_else(void **state)
{
    (void)state;
    enum { ROWS = 37, D = 611, NARROW = 70 };
    static float x[ROWS * D], again[ROWS * D], one[NARROW];
    int64_t samples[ROWS], turned[ROWS];
    int32_t positions[ROWS], turned_positions[ROWS];
    for (int t = 0; t < ROWS; t++) {
        samples[t] = turned[ROWS - 1 - t] = ((int64_t)7 << 33) + t / 5;
        positions[t] = turned_positions[ROWS - 1 - t] = t % 5;
    }
    for (int i = 0; i < ROWS * D; i++)
        x[i] = again[ROWS * D - D - i / D * D + i % D] = (float)(i % 101) - 50;
    add(x, ROWS, D, samples, positions, 5, 0.25f, 1);
    add(again, ROWS, D, turned, turned_positions, 5, 0.25f, 3);
    for (int t = 0; t < ROWS; t++) {
        assert_memory_equal(x + t * D, again + (ROWS - 1 - t) * D, D * sizeof *x);
        memset(one, 0, sizeof one);
        add(one, 1, NARROW, samples + t, positions + t, 5, 1, 0);
        for (int j = 0; j < NARROW; j++)
            assert_true(x[t * D + j] == (float)((t * D + j) % 101) - 50 + 0.25f * one[j]);
    }
}

static void numbers_are_uniform(void **state)
{
    (void)state;
    enum { ROWS = 512, D = 512, BINS = 16 };
    static float x[ROWS * D], other[ROWS * D];
    static int64_t samples[ROWS];
    static int32_t positions[ROWS];
    double mean = 0, square = 0, product = 0;
    int bin[BINS] = {0};
    for (int t = 0; t < ROWS; t++)
        positions[t] = t;
    add(x, ROWS, D, samples, positions, tsr_noise_key(1, 0), 1, 0);
    add(other, ROWS, D, samples, positions, tsr_noise_key(1, 1), 1, 0);
    for (int i = 0; i < ROWS * D; i++) {
        assert_true(x[i] >= -1 && x[i] < 1);
        mean += (double)x[i];
        square += (double)x[i] * (double)x[i];
        product += (double)x[i] * (double)other[i];
        bin[(int)((x[i] + 1) * BINS / 2)]++;
    }
    double n = ROWS * D, sigma = sqrt(1 / n);
    assert_true(fabs(mean / n) < 4 * sigma * sqrt(1.0 / 3));
    assert_true(fabs(square / n - 1.0 / 3) < 4 * sigma * sqrt(4.0 / 45));
    assert_true(fabs(product / n) < 4 * sigma / 3); /* another epoch has other numbers */
    for (int i = 0; i < BINS; i++)
        assert_true(fabs(bin[i] - n / BINS) < 5 * sqrt(n / BINS));
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float x[4];
    int64_t sample = 0;
    int32_t position = 0;
    tsr_noise_args args = {
        .x = x, .samples = &sample, .positions = &position, .tokens = 1, .columns = 4};
    assert_int_equal(tsr_noise_check(&args), TSR_OK);
    args.size = INFINITY;
    assert_int_equal(tsr_noise_check(&args), TSR_EINVAL);
    args.size = 1;
    args.positions = NULL;
    assert_int_equal(tsr_noise_check(&args), TSR_EINVAL);
    args.tokens = -1;
    assert_int_equal(tsr_noise_check(&args), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_numpy),
        cmocka_unit_test(rows_depend_on_nothing_else),
        cmocka_unit_test(numbers_are_uniform),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
