/*
 * test_rows.c: embedding, widening, gather, scatter, add and the row sums. Copies are exact.
 */
#include "kernels/rows.h"

#include "kernels/embed_rows.h"
#include "kernels/kernel_test.h"
#include "kernels/row_dot.h"
#include "kernels/widen.h"

#define ROW_SUM_TOLERANCE 6e-8 /* of the largest: one rounding of an fp64 sum */

static tsr_status run_embed(void *context, tsr_pool *pool)
{
    return tsr_embed_rows_ref(context, pool);
}

static void embed_copies_rows(void **state)
{
    (void)state;
    const int64_t shapes[][2] = {{1, 1}, {5, 7}, {400, 256}, {0, 3}};
    for (size_t i = 0; i < 8; i++) {
        int64_t tokens = shapes[i / 2][0], d = shapes[i / 2][1], vocabulary = 19;
        float *table = new_random(vocabulary * d, 1, 1), *out = new_floats(tokens * d);
        uint16_t *table16 = new_bf16(table, vocabulary * d);
        int32_t *ids = malloc((size_t)(tokens + 1) * sizeof(int32_t));
        for (int64_t t = 0; t < tokens; t++)
            ids[t] = (int32_t)(t * 5 % vocabulary);
        tsr_embed_rows_args args = {.out = out,
                                    .table = {table, TSR_F32},
                                    .ids = ids,
                                    .tokens = tokens,
                                    .d = d,
                                    .vocabulary = vocabulary};
        if (i % 2)
            args.table = (tsr_frozen){table16, TSR_BF16};
        run_on_pools(run_embed, &args, out, tokens * d);
        for (int64_t t = 0; t < tokens; t++)
            assert_memory_equal(out + t * d, table + ids[t] * d, (size_t)d * sizeof(float));
        if (tokens) {
            ids[tokens - 1] = (int32_t)vocabulary;
            assert_int_equal(tsr_embed_rows_ref(&args, test_pool(0)), TSR_EINTERNAL);
        }
        free(table), free(table16), free(out), free(ids);
    }
}

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

typedef struct {
    tsr_add_args args;
    const float *start;
} add_run;

static tsr_status run_add(void *context, tsr_pool *pool)
{
    add_run *r = context;
    memcpy(r->args.y, r->start, (size_t)r->args.count * sizeof(float));
    return tsr_add_ref(&r->args, pool);
}

static void add_adds(void **state)
{
    (void)state;
    int64_t count = 100003;
    float *x = new_random(count, 1, 1), *start = new_random(count, 2, 1), *y = new_floats(count);
    add_run r = {{y, x, count, TSR_F32}, start};
    run_on_pools(run_add, &r, y, count);
    for (int64_t i = 0; i < count; i++)
        assert_true(y[i] == start[i] + x[i]);
    free(x), free(start), free(y);
}

static tsr_status run_dot(void *context, tsr_pool *pool)
{
    return tsr_row_dot_ref(context, pool);
}

static tsr_status run_square(void *context, tsr_pool *pool)
{
    return tsr_row_square_norm_ref(context, pool);
}

static void row_sums_match_fp64(void **state)
{
    (void)state;
    const int64_t shapes[][2] = {{1, 1}, {3, 7}, {100, 65}, {5, 1000}, {700, 256}, {4, 0}, {0, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int64_t rows = shapes[i][0], columns = shapes[i][1], lda = columns + 3;
        float *a = new_random(rows * lda, 1, 1), *b = new_random(rows * columns, 2, 1);
        float *out = new_floats(rows);
        uint16_t *b16 = new_bf16(b, rows * columns);
        double *dots = new_doubles(NULL, rows), *squares = new_doubles(NULL, rows);
        for (int64_t j = 0; j < rows; j++)
            for (int64_t k = 0; k < columns; k++) {
                double y = (double)b[j * columns + k];
                dots[j] += (double)a[j * lda + k] * y;
                squares[j] += y * y;
            }
        tsr_row_dot_args args = {.out = out,
                                 .a = a,
                                 .b = b16,
                                 .rows = rows,
                                 .columns = columns,
                                 .lda = lda,
                                 .b_dtype = TSR_BF16};
        run_on_pools(run_dot, &args, out, rows);
        expect_close("dot", out, dots, rows, ROW_SUM_TOLERANCE);
        tsr_row_square_norm_args square = {out, b, rows, columns, TSR_F32};
        run_on_pools(run_square, &square, out, rows);
        expect_close("square", out, squares, rows, ROW_SUM_TOLERANCE);
        free(a), free(b), free(out), free(b16), free(dots), free(squares);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_copies_rows),
        cmocka_unit_test(widen_is_exact),
        cmocka_unit_test(gather_and_scatter_are_inverse),
        cmocka_unit_test(add_adds),
        cmocka_unit_test(row_sums_match_fp64),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
