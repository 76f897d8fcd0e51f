/*
 * DoRA's factored row norm against the dense one in fp64, and what must hold bit for bit.
 */
#include "kernels/dora_norm.h"
#include "kernels/gemm.h"
#include "kernels/row_square_norm.h"

#include "kernels/kernel_test.h"

/* fp32 sums of up to 96 x 384 products, relative to the norm. */
#define TOLERANCE 2e-6

enum { ROWS = 45, COLUMNS = 96, LARGEST = 384 };

typedef struct {
    uint64_t r;
    float w[ROWS * COLUMNS], a[LARGEST * COLUMNS], b[ROWS * LARGEST];
    float u[ROWS * LARGEST], gram[LARGEST * LARGEST], bg[ROWS * LARGEST];
    float squares[ROWS];
} problem;

static float value(uint64_t key, uint64_t i)
{
    return tsr_philox_uniform(tsr_philox_at(key, 5, i).word[0]) - 0.5f;
}

/* c [m, n] = a [m, k] b [k, n], or a b^T with b [n, k]. */
static void multiply(float *c, const float *a, const float *b, uint64_t m, uint64_t n, uint64_t k,
                     bool trans_b)
{
    assert_int_equal(tsr_gemm_ref(&(tsr_gemm_args){.m = (int64_t)m,
                                                   .n = (int64_t)n,
                                                   .k = (int64_t)k,
                                                   .a = a,
                                                   .b = b,
                                                   .c = c,
                                                   .trans_b = trans_b,
                                                   .alpha = 1},
                                  test_pool(1)),
                     TSR_OK);
}

static problem *make(uint64_t r, float b_size)
{
    problem *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->r = r;
    for (uint64_t i = 0; i < ROWS * COLUMNS; i++)
        p->w[i] = value(1, i) * 0.2f;
    for (uint64_t i = 0; i < r * COLUMNS; i++)
        p->a[i] = value(2, i);
    for (uint64_t i = 0; i < ROWS * r; i++)
        p->b[i] = value(3, i) * b_size;
    multiply(p->u, p->w, p->a, ROWS, r, COLUMNS, true);
    multiply(p->gram, p->a, p->a, r, r, COLUMNS, true);
    multiply(p->bg, p->b, p->gram, ROWS, r, r, false);
    assert_int_equal(
        tsr_row_square_norm_ref(
            &(tsr_row_square_norm_args){
                .out = p->squares, .w = p->w, .rows = ROWS, .columns = COLUMNS, .dtype = TSR_F32},
            test_pool(1)),
        TSR_OK);
    return p;
}

/* Of rows [first, first + count), into n[first..]. */
static void norm(float *n, const problem *p, double s, int64_t first, int64_t count)
{
    tsr_dora_norm(&(tsr_dora_norm_args){.n = n,
                                        .squares = p->squares,
                                        .u = p->u,
                                        .bg = p->bg,
                                        .b = p->b,
                                        .rows = ROWS,
                                        .r = (int64_t)p->r,
                                        .scale = s},
                  first, count);
}

static double dense(const problem *p, uint64_t j, double s)
{
    double sum = 0;
    for (uint64_t i = 0; i < COLUMNS; i++) {
        double x = 0;
        for (uint64_t k = 0; k < p->r; k++)
            x += (double)p->b[j * p->r + k] * (double)p->a[k * COLUMNS + i];
        x = x * s + (double)p->w[j * COLUMNS + i];
        sum += x * x;
    }
    return sqrt(sum);
}

static void test_dense(void **state)
{
    (void)state;
    const uint64_t ranks[] = {1, 3, 8, 16, 17, 37, LARGEST};
    for (size_t k = 0; k < sizeof ranks / sizeof *ranks; k++)
        for (int size = -12; size <= 2; size += 7) {
            problem *p = make(ranks[k], exp2f((float)size));
            float n[ROWS], part[ROWS];
            double s = 2.7;
            norm(n, p, s, 0, ROWS);
            for (uint64_t j = 0; j < ROWS; j++) {
                double expected = dense(p, j, s);
                if (!(fabs(n[j] - expected) <= TOLERANCE * expected))
                    fail_msg("r %d, size %d, row %d: %.9g, expected %.9g", (int)p->r, size, (int)j,
                             (double)n[j], expected);
            }
            for (int64_t j = 0; j < ROWS; j += 7) /* a range of rows has the same bits */
                norm(part, p, s, j, ROWS - j < 7 ? ROWS - j : 7);
            assert_memory_equal(n, part, sizeof n);
            free(p);
        }
}

/* A fresh adapter has B = 0: the gain is 1 exactly, whatever A and s are. */
static void test_start(void **state)
{
    (void)state;
    problem *p = make(16, 0);
    float m[ROWS], n[ROWS], g[ROWS];
    for (int j = 0; j < ROWS; j++)
        m[j] = sqrtf(p->squares[j]);
    norm(n, p, 1.3, 0, ROWS);
    tsr_dora_gain(g, m, n, ROWS);
    for (int j = 0; j < ROWS; j++) {
        assert_true(n[j] == m[j] && g[j] == 1);
        assert_true(fabs(n[j] / dense(p, (uint64_t)j, 0) - 1) < 1e-7);
    }
    free(p);
}

/* The assembly's roundings, by hand: r = 1. */
static void test_assembly(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 5000; i++) {
        float squares = value(9, 4 * i) + 2, u = value(9, 4 * i + 1), b = value(9, 4 * i + 2);
        float bg = (value(9, 4 * i + 3) + 0.5f) * b, n;
        double s = 0.1 + (double)i * 1e-3;
        tsr_dora_norm_args args = {.n = &n,
                                   .squares = &squares,
                                   .u = &u,
                                   .bg = &bg,
                                   .b = &b,
                                   .rows = 1,
                                   .r = 1,
                                   .scale = s};
        tsr_dora_norm(&args, 0, 1);
        volatile float cross = b * u, ba = bg * b;
        volatile float first = (float)(2 * s) * cross, second = (float)(s * s) * ba;
        volatile float sum = squares + first;
        sum = sum + second;
        assert_true(n == sqrtf(sum));
        volatile float c = 0.7f + (float)i * 1e-4f, w2 = c * squares;
        float scale = c;
        w2 = c * w2;
        cross = c * cross;
        first = (float)(2 * s) * cross;
        sum = w2 + first;
        sum = sum + second;
        args.row_scale = &scale;
        tsr_dora_norm(&args, 0, 1);
        assert_true(n == sqrtf(sum));
    }
}

static void test_nan_and_negative(void **state)
{
    (void)state;
    float squares[] = {NAN, 1, 1, INFINITY}, u[] = {1, NAN, -100, 1}, b[] = {1, 1, 1, 1};
    float bg[] = {1, 1, 1, 1}, n[4], m[4] = {1, 1, 2, 1}, g[4];
    tsr_dora_norm(
        &(tsr_dora_norm_args){
            .n = n, .squares = squares, .u = u, .bg = bg, .b = b, .rows = 4, .r = 1, .scale = 1},
        0, 4);
    assert_true(isnan(n[0]) && isnan(n[1]));
    assert_true(n[2] == 0); /* 1 - 200 + 1 is cut off at 0 */
    assert_true(isinf(n[3]));
    tsr_dora_gain(g, m, n, 4);
    assert_true(isnan(g[0]) && isinf(g[2]) && g[3] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_assembly),
        cmocka_unit_test(test_nan_and_negative),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
