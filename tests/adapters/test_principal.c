/*
 * test_principal.c: the principal part of a weight: W v = s u with orthogonal u and v, nothing of it
 * left in the residual, the best rank r by its norm; found at random as well where the singular values
 * fall; the same bits on any number of threads, and a residual that does not depend on how W is cut.
 */
#include "adapters/init.h"
#include "adapters/principal.h"
#include "kernels/kernel_test.h"
#include "kernels/low_rank_residual.h"

#define TOLERANCE 1e-5 /* of the largest singular value */

typedef struct {
    uint64_t out, in, r;
    int64_t rounds;
    double scale;
    double decay; /* of the singular values, each of the one before */
} one_case;

/* Rank-one terms with falling factors, directions at random; decay 0: noise. */
static float *new_weight(const one_case *c)
{
    float *w = new_random((int64_t)(c->out * c->in), 3, 1);
    uint64_t side = c->out < c->in ? c->out : c->in;
    if (c->decay == 0)
        return w;
    memset(w, 0, c->out * c->in * sizeof *w);
    float *u = new_random((int64_t)(side * c->out), 4, 1);
    float *v = new_random((int64_t)(side * c->in), 5, 1);
    double factor = 1;
    for (uint64_t k = 0; k < side; k++, factor *= c->decay)
        for (uint64_t i = 0; i < c->out; i++)
            for (uint64_t j = 0; j < c->in; j++)
                w[i * c->in + j] += (float)factor * u[k * c->out + i] * v[k * c->in + j];
    free(u);
    free(v);
    return w;
}

static void factors(float *a, float *b, const one_case *c, const float *w, tsr_dtype dtype,
                    tsr_pool *pool)
{
    const tsr_principal_args args = {.w = w,
                                     .out = c->out,
                                     .in = c->in,
                                     .r = c->r,
                                     .scale = c->scale,
                                     .rounds = c->rounds,
                                     .seed = 1,
                                     .module_key = 2,
                                     .dtype = dtype};
    assert_int_equal(tsr_principal_factors(a, b, &args, pool), TSR_OK);
}

/* Row k of A, or column k of B. */
static double inner(const float *x, uint64_t step_x, const float *y, uint64_t step_y, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += (double)x[i * step_x] * (double)y[i * step_y];
    return sum;
}

/* A's rows and B's columns are orthogonal, both with the squares s / scale; W v = s u. */
static double check_components(const one_case *c, const float *w, const float *a, const float *b)
{
    double largest = inner(a, 1, a, 1, c->in) * c->scale, square = 0;
    uint64_t side = c->out < c->in ? c->out : c->in, rank = c->r < side ? c->r : side;
    for (uint64_t k = 0; k < c->r; k++) {
        double s = inner(a + k * c->in, 1, a + k * c->in, 1, c->in) * c->scale;
        square += s * s;
        if (k >= rank)
            assert_true(s == 0);
        for (uint64_t l = 0; l <= k; l++) {
            double of_a = inner(a + k * c->in, 1, a + l * c->in, 1, c->in) * c->scale;
            double of_b = inner(b + k, c->r, b + l, c->r, c->out) * c->scale;
            assert_true(fabs(of_a - (k == l ? s : 0)) < TOLERANCE * largest);
            assert_true(fabs(of_b - (k == l ? s : 0)) < TOLERANCE * largest);
        }
        for (uint64_t i = 0; i < c->out && c->rounds == TSR_PRINCIPAL_EXACT; i++) {
            double image = inner(w + i * c->in, 1, a + k * c->in, 1, c->in);
            assert_true(fabs(image - s * (double)b[i * c->r + k]) < 3 * TOLERANCE * largest);
        }
    }
    return square;
}

static void check_case(const one_case *c)
{
    float *w = new_weight(c), *a = new_floats((int64_t)(c->r * c->in));
    float *b = new_floats((int64_t)(c->r * c->out)), *rest = new_floats((int64_t)(c->out * c->in));
    float *a2 = new_floats((int64_t)(c->r * c->in)), *b2 = new_floats((int64_t)(c->r * c->out));
    factors(a, b, c, w, TSR_F32, test_pool(0));
    double square = check_components(c, w, a, b);
    for (int p = 1; p < POOL_COUNT; p++) {
        factors(a2, b2, c, w, TSR_F32, test_pool(p));
        assert_memory_equal(a, a2, c->r * c->in * sizeof *a);
        assert_memory_equal(b, b2, c->r * c->out * sizeof *b);
    }
    memcpy(rest, w, c->out * c->in * sizeof *w);
    tsr_low_rank_residual_args args = {a, b, (int64_t)c->r, (int64_t)c->in, (float)c->scale};
    tsr_low_rank_residual(rest, &args, 0, (int64_t)(c->out * c->in), test_pool(2));
    double whole = inner(w, 1, w, 1, c->out * c->in);
    double left = inner(rest, 1, rest, 1, c->out * c->in);
    /* |W|^2 = |W - s B A|^2 + |s B A|^2 */
    assert_true(fabs(whole - left - square) < 1e-5 * whole);
    if (c->decay > 0 && c->rounds > 0) { /* what was found at random is the best there is */
        one_case exact = *c;
        exact.rounds = TSR_PRINCIPAL_EXACT;
        factors(a2, b2, &exact, w, TSR_F32, test_pool(1));
        assert_true(fabs(check_components(&exact, w, a2, b2) - square) < 1e-4 * whole);
    }
    free(w);
    free(a);
    free(b);
    free(a2);
    free(b2);
    free(rest);
}

static void test_factors(void **state)
{
    (void)state;
    const one_case cases[] = {
        {40, 40, 4, TSR_PRINCIPAL_EXACT, 2, 0},
        {70, 33, 8, TSR_PRINCIPAL_EXACT, 1.5, 0},
        {33, 700, 8, TSR_PRINCIPAL_EXACT, 0.5, 0},
        {600, 17, 3, TSR_PRINCIPAL_EXACT, 1, 0.5},
        {6, 40, 8, TSR_PRINCIPAL_EXACT, 2, 0},
        {1, 64, 1, TSR_PRINCIPAL_EXACT, 2, 0},
        {200, 150, 16, TSR_PRINCIPAL_EXACT, 2, .9},
        {70, 33, 8, 4, 1.5, 0},
        {70, 33, 8, 16, 1.5, 0.7},
        {33, 80, 6, 16, 0.25, 0.7},
        {200, 130, 4, 0, 1, 0.5},
        {6, 40, 8, 3, 2, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

/* Of nothing, nothing: no division by 0. */
static void test_zero(void **state)
{
    const one_case c = {20, 30, 4, TSR_PRINCIPAL_EXACT, 2, 0}, random = {20, 30, 4, 4, 2, 0};
    float w[600] = {0}, a[120], b[80];
    (void)state;
    for (int i = 0; i < 2; i++) {
        factors(a, b, i ? &random : &c, w, TSR_F32, test_pool(0));
        for (int j = 0; j < 120; j++)
            assert_true(a[j] == 0 && (j >= 80 || b[j] == 0));
    }
}

/* As they are used: what is taken out of the base is what the adapter adds. */
static void test_rounded(void **state)
{
    const one_case c = {20, 30, 4, TSR_PRINCIPAL_EXACT, 2, 0};
    float *w = new_weight(&c), a[120], b[80];
    (void)state;
    factors(a, b, &c, w, TSR_BF16, test_pool(0));
    for (int i = 0; i < 120; i++)
        assert_true(a[i] == tsr_bf16_to_f32(tsr_f32_to_bf16(a[i])));
    for (int i = 0; i < 80; i++)
        assert_true(b[i] == tsr_bf16_to_f32(tsr_f32_to_bf16(b[i])));
    free(w);
}

static void test_residual(void **state)
{
    const int64_t out = 37, in = 211, r = 5, count = out * in;
    float *w = new_random(count, 1, 1), *a = new_random(r * in, 2, 1),
          *b = new_random(out * r, 3, 1);
    float *whole = new_floats(count), *parts = new_floats(count);
    tsr_low_rank_residual_args args = {a, b, r, in, 1.25f};
    (void)state;
    memcpy(whole, w, (size_t)count * sizeof *w);
    memcpy(parts, w, (size_t)count * sizeof *w);
    tsr_low_rank_residual(whole, &args, 0, count, test_pool(0));
    for (int64_t i = 0; i < count; i++) {
        double sum = inner(b + i / in * r, 1, a + i % in, (uint64_t)in, (uint64_t)r);
        assert_true(fabs((double)w[i] - 1.25 * sum - (double)whole[i]) < 1e-5);
    }
    for (int64_t first = 0, step = 1; first < count; first += step, step = step * 3 % 1021)
        tsr_low_rank_residual(parts + first, &args, first,
                              step < count - first ? step : count - first, test_pool(3));
    assert_memory_equal(whole, parts, (size_t)count * sizeof *w);
    free(w);
    free(a);
    free(b);
    free(whole);
    free(parts);
}

/* Mean, deviation and how much is beyond two of them; and any range of them is the same numbers. */
static void test_normal(void **state)
{
    enum { COUNT = 100000 };
    float *x = new_floats(COUNT), part[1000];
    double sum = 0, squares = 0, beyond = 0;
    (void)state;
    tsr_adapter_init_normal(x, 0, COUNT, 0.25, 1, 2);
    for (int i = 0; i < COUNT; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
        beyond += fabsf(x[i]) > 0.5f;
    }
    assert_true(fabs(sum / COUNT) < 0.003);
    assert_true(fabs(sqrt(squares / COUNT) - 0.25) < 0.002);
    assert_true(fabs(beyond / COUNT - 0.0455) < 0.003);
    tsr_adapter_init_normal(part, 4321, 1000, 0.25, 1, 2);
    assert_memory_equal(part, x + 4321, sizeof part);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factors), cmocka_unit_test(test_zero),
        cmocka_unit_test(test_rounded), cmocka_unit_test(test_residual),
        cmocka_unit_test(test_normal),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
