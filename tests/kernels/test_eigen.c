/*
 * test_eigen.c: A v = l v, orthonormal vectors and the sum of all eigenvalues, of random symmetric
 * matrices and of those that are hard: equal eigenvalues, zeros, blocks; the same bits on any pool.
 */
#include "kernels/eigen.h"

#include "kernels/gemm_double.h"
#include "kernels/kernel_test.h"

#define TOLERANCE 1e-12 /* of the largest eigenvalue, and of 1; n reaches 200 */

static double *zeros(int64_t count)
{
    double *out = calloc((size_t)count + 1, sizeof *out);
    assert_non_null(out);
    return out;
}

typedef double entry(int64_t i, int64_t j, int64_t n);

static double random_entry(int64_t i, int64_t j, int64_t n)
{
    int64_t low = i < j ? i : j, high = i < j ? j : i;
    return (double)tsr_philox_uniform(tsr_philox_at(5, (uint64_t)low, (uint64_t)high).word[0]) -
           (n > 20 ? 0.5 : 0);
}

static double identity(int64_t i, int64_t j, int64_t n)
{
    return n && i == j;
}

static double zero(int64_t i, int64_t j, int64_t n)
{
    return (double)(0 * i * j * n);
}

/* Rank 2. */
static double low_rank(int64_t i, int64_t j, int64_t n)
{
    return (double)(i + 1) * (double)(j + 1) / (double)(n * n) + ((i ^ j) & 1 ? -0.25 : 0.25);
}

/* The same block again and again: each eigenvalue is there several times. */
static double blocks(int64_t i, int64_t j, int64_t n)
{
    return n && i / 5 == j / 5 ? random_entry(i % 5, j % 5, 100) : 0;
}

/* Spread over 20 decades. */
static double graded(int64_t i, int64_t j, int64_t n)
{
    return random_entry(i, j, n) * pow(10, -20.0 * (double)(i > j ? i : j) / (double)n);
}

static double *matrix_of(entry *of, int64_t n)
{
    double *out = zeros(n * n);
    for (int64_t i = 0; i < n * n; i++)
        out[i] = of(i / n, i % n, n);
    return out;
}

static double inner(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void check_vectors(entry *of, const double *values, const double *vectors, int64_t n,
                          int64_t count)
{
    double *a = matrix_of(of, n), largest = 1e-300;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, sqrt(inner(a + i * n, a + i * n, n)));
    for (int64_t k = 0; k < count; k++) {
        const double *v = vectors + k * n;
        if (k)
            assert_true(values[k] <= values[k - 1]);
        for (int64_t l = 0; l <= k; l++)
            assert_true(fabs(inner(v, vectors + l * n, n) - (l == k)) < TOLERANCE);
        for (int64_t i = 0; i < n; i++)
            assert_true(fabs(inner(a + i * n, v, n) - values[k] * v[i]) < TOLERANCE * largest);
    }
    double trace = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        trace += a[i * n + i];
        sum += i < count ? values[i] : 0;
    }
    if (count == n)
        assert_true(fabs(sum - trace) <= (double)n * TOLERANCE * largest);
    free(a);
}

static void one_case(entry *of, int64_t n, int64_t count)
{
    double *first = NULL;
    for (int p = 0; p < POOL_COUNT; p++) {
        double *a = matrix_of(of, n), *out = zeros(count * (n + 1));
        assert_int_equal(tsr_eigen_largest(out, out + count, a, n, count, test_pool(p)), TSR_OK);
        free(a);
        if (!first) {
            check_vectors(of, out, out + count, n, count);
            first = out;
        } else {
            assert_memory_equal(out, first, (size_t)(count * (n + 1)) * sizeof *out);
            free(out);
        }
    }
    free(first);
}

static void test_eigen(void **state)
{
    entry *const entries[] = {random_entry, identity, zero, low_rank, blocks, graded};
    const int64_t sides[] = {1, 2, 3, 5, 17, 32, 33, 64, 100, 200};
    (void)state;
    for (size_t e = 0; e < sizeof entries / sizeof *entries; e++)
        for (size_t s = 0; s < sizeof sides / sizeof *sides; s++) {
            one_case(entries[e], sides[s], sides[s] < 100 ? sides[s] : 9);
            one_case(entries[e], sides[s], 1);
        }
    one_case(random_entry, 150, 150);
}

/* The largest of [2 -1; -1 2 -1; ..] are 2 + 2 cos(k pi / (n + 1)). */
static double second_difference(int64_t i, int64_t j, int64_t n)
{
    return n && i == j ? 2 : i - j == 1 || j - i == 1 ? -1 : 0;
}

static void test_known(void **state)
{
    const int64_t n = 101, count = 20;
    double values[20], *vectors = zeros(count * n), *a = matrix_of(second_difference, n);
    (void)state;
    assert_int_equal(tsr_eigen_largest(values, vectors, a, n, count, test_pool(1)), TSR_OK);
    for (int64_t k = 0; k < count; k++)
        assert_true(fabs(values[k] - 2 - 2 * cos((double)(k + 1) * acos(-1.0) / (n + 1))) <
                    TOLERANCE);
    free(vectors);
    free(a);
}

static void test_gemm_double(void **state)
{
    const int64_t m = 300, n = 530, k = 41;
    double *a = zeros(m * k), *b = zeros(n * k), *c = zeros(m * n);
    (void)state;
    for (int trans = 0; trans < 4; trans++) {
        bool trans_a = trans & 1, trans_b = trans & 2;
        for (int64_t i = 0; i < m * k; i++)
            a[i] = random_entry(i % 97, i / 97, 100);
        for (int64_t i = 0; i < n * k; i++)
            b[i] = random_entry(i % 89, i / 89, 100);
        for (int64_t i = 0; i < m * n; i++)
            c[i] = 1;
        tsr_gemm_double(&(tsr_gemm_double_args){.m = m,
                                                .n = n,
                                                .k = k,
                                                .a = a,
                                                .b = b,
                                                .c = c,
                                                .trans_a = trans_a,
                                                .trans_b = trans_b,
                                                .alpha = 2,
                                                .beta = -1},
                        test_pool(2));
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++)
                    sum += a[trans_a ? l * m + i : i * k + l] * b[trans_b ? j * k + l : l * n + j];
                assert_true(fabs(c[i * n + j] - (2 * sum - 1)) < TOLERANCE);
            }
    }
    free(a);
    free(b);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eigen),
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_gemm_double),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
