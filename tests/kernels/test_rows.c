/*
 * test_rows.c: widening, gather, scatter and the row sums. Copies are exact.
 */
#include "kernels/rows.h"

#include "kernels/fp8.h"
#include "kernels/kernel_test.h"
#include "kernels/row_square_norm.h"
#include "kernels/widen.h"

#define ROW_SUM_TOLERANCE 6e-8 /* of the largest: one rounding of an fp64 sum */

static tsr_status run_widen(void *context, tsr_pool *pool)
{
    return tsr_widen_ref(context, pool);
}

static void widen_is_exact(void **state)
{
    (void)state;
    int64_t count = 70001;
    uint16_t *in = malloc((size_t)count * sizeof(uint16_t));
    float *out = new_floats(count), *want = new_floats(count);
    for (int64_t i = 0; i < count; i++)
        in[i] = (uint16_t)i;
    for (int pass = 0; pass < 2; pass++) {
        tsr_dtype dtype = pass ? TSR_F16 : TSR_BF16;
        tsr_widen_args args = {.out = out, .in = in, .count = count, .in_dtype = dtype};
        run_on_pools(run_widen, &args, out, count);
        assert_true(tsr_widen_f32(want, in, dtype, (uint64_t)count));
        assert_memory_equal(out, want, (size_t)count * sizeof(float));
    }
    free(in), free(out), free(want);
}

static void widen_of_e4m3_is_exact(void **state)
{
    (void)state;
    uint8_t in[256];
    float out[256], want[256];
    for (int i = 0; i < 256; i++) {
        in[i] = (uint8_t)i;
        want[i] = tsr_e4m3_to_f32((uint8_t)i);
    }
    tsr_widen_args args = {.out = out, .in = in, .count = 256, .in_dtype = TSR_F8_E4M3};
    run_on_pools(run_widen, &args, out, 256);
    assert_memory_equal(out, want, sizeof out);
    assert_true(out[0x08] == 0x1p-6f && out[0x7e] == 448 && out[0x81] == -0x1p-9f);
    assert_true(isnan(out[0x7f]) && isnan(out[0xff]));
}

typedef struct {
    tsr_gather_rows_args gather;
    tsr_scatter_rows_args scatter;
} rows_run;

static tsr_status run_gather(void *context, tsr_pool *pool)
{
    return tsr_gather_rows_ref(&((rows_run *)context)->gather, pool);
}

static tsr_status run_scatter(void *context, tsr_pool *pool)
{
    return tsr_scatter_rows_ref(&((rows_run *)context)->scatter, pool);
}

static void gather_and_scatter_are_inverse(void **state)
{
    (void)state;
    const int64_t shapes[][2] = {{1, 1}, {10, 7}, {1000, 200}, {0, 3}};
    for (size_t i = 0; i < 4; i++) {
        int64_t tokens = shapes[i][0], d = shapes[i][1], rows = 0;
        int32_t *index = malloc((size_t)(tokens + 1) * sizeof(int32_t));
        for (int64_t t = 0; t < tokens; t++)
            if (t % 3 != 1)
                index[rows++] = (int32_t)t;
        float *in = new_random(tokens * d, 1, 1), *label = new_floats(rows * d);
        float *out = new_floats(tokens * d);
        rows_run r = {{label, in, index, rows, tokens, d, TSR_F32},
                      {out, label, index, rows, tokens, d, TSR_F32}};
        run_on_pools(run_gather, &r, label, rows * d);
        run_on_pools(run_scatter, &r, out, tokens * d);
        for (int64_t j = 0; j < tokens * d; j++)
            assert_true(out[j] == (j / d % 3 == 1 ? 0.0f : in[j]));
        if (rows > 1) {
            index[1] = index[0];
            assert_int_equal(run_gather(&r, test_pool(0)), TSR_EINTERNAL);
            assert_int_equal(run_scatter(&r, test_pool(0)), TSR_EINTERNAL);
        }
        free(index), free(in), free(label), free(out);
    }
}

static tsr_status run_square(void *context, tsr_pool *pool)
{
    return tsr_row_square_norm_ref(context, pool);
}

static void row_sums_match_fp64(void **state)
{
    (void)state;
    const int64_t shapes[][2] = {{1, 1}, {3, 7}, {100, 65}, {5, 1000}, {700, 256}, {4, 0}, {0, 4}};
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        int64_t rows = shapes[i / 2][0], columns = shapes[i / 2][1];
        float *w = new_random(rows * columns, 2, 1), *out = new_floats(rows);
        uint16_t *w16 = new_bf16(w, rows * columns);
        double *squares = new_doubles(NULL, rows);
        for (int64_t j = 0; j < rows * columns; j++)
            squares[j / columns] += (double)w[j] * (double)w[j];
        tsr_row_square_norm_args square = {out, w, rows, columns, TSR_F32};
        if (i % 2)
            square = (tsr_row_square_norm_args){out, w16, rows, columns, TSR_BF16};
        run_on_pools(run_square, &square, out, rows);
        expect_close("square", out, squares, rows, ROW_SUM_TOLERANCE);
        free(w), free(out), free(w16), free(squares);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widen_is_exact),
        cmocka_unit_test(widen_of_e4m3_is_exact),
        cmocka_unit_test(gather_and_scatter_are_inverse),
        cmocka_unit_test(row_sums_match_fp64),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
