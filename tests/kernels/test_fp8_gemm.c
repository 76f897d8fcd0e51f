/*
 * test_fp8_gemm.c: e4m3 matmuls against sums in fp64, with and without scale_b, alpha and what is added to;
 * and that a NaN shows.
 */
#include "kernels/fp8.h"
#include "kernels/fp8_gemm.h"

#include "kernels/kernel_test.h"

#define F32_TOLERANCE 2e-6 /* of the largest element; k reaches 2100 */

typedef struct {
    int64_t m, n, k;
    float alpha, beta;
    bool scale_b;
} gemm_case;

static const gemm_case cases[] = {
    {1, 1, 1, 1, 0, true},         {3, 5, 7, 1.5f, 0, true},     {17, 33, 9, 1, 1, true},
    {64, 64, 128, 1, 0, true},     {129, 250, 31, -2, 1, false}, {65, 63, 257, 1, 0, false},
    {200, 24, 300, 0.5f, 1, true}, {40, 9, 2100, 1, 0, true},    {5, 4, 0, 1, 1, true},
    {5, 4, 0, 1, 0, true},         {0, 4, 3, 1, 0, true},        {4, 0, 3, 1, 1, true},
};

static uint8_t *new_codes(int64_t count, uint64_t seed)
{
    uint8_t *out = malloc((size_t)count + 1);
    assert_non_null(out);
    for (int64_t i = 0; i < count; i++) {
        uint8_t code = (uint8_t)tsr_mix((uint64_t)i * 31 + seed);
        out[i] = (code & 0x7f) == TSR_E4M3_NAN ? 0 : code;
    }
    return out;
}

typedef struct {
    tsr_fp8_gemm_args args;
    const float *start;
    int64_t count;
} gemm_run;

/* With beta 0, C stays NaN: it must not be read. */
static tsr_status run(void *context, tsr_pool *pool)
{
    gemm_run *r = context;
    if (r->args.beta != 0)
        memcpy(r->args.c, r->start, (size_t)r->count * sizeof(float));
    return tsr_fp8_gemm_ref(&r->args, pool);
}

static void one_case(const gemm_case *c)
{
    uint8_t *a = new_codes(c->m * c->k, 1), *b = new_codes(c->n * c->k, 2);
    float *scale_a = new_gain(c->m, 3), *scale_b = new_gain(c->n, 4);
    float *start = new_random(c->m * c->n, 5, 1e4f), *out = new_floats(c->m * c->n);
    double *want = new_doubles(NULL, c->m * c->n);
    gemm_run r = {.args = {.m = c->m,
                           .n = c->n,
                           .k = c->k,
                           .a = a,
                           .b = b,
                           .scale_a = scale_a,
                           .scale_b = c->scale_b ? scale_b : NULL,
                           .c = out,
                           .alpha = c->alpha,
                           .beta = c->beta},
                  .start = start,
                  .count = c->m * c->n};
    run_on_pools(run, &r, out, r.count);
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            double sum = 0, scale = c->scale_b ? (double)scale_b[j] : 1;
            for (int64_t k = 0; k < c->k; k++)
                sum += (double)tsr_e4m3_to_f32(a[i * c->k + k]) *
                       (double)tsr_e4m3_to_f32(b[j * c->k + k]);
            want[i * c->n + j] = (double)c->alpha * (double)scale_a[i] * scale * sum +
                                 (double)c->beta * (double)start[i * c->n + j];
        }
    expect_close("fp8_gemm", out, want, r.count, F32_TOLERANCE);
    free(a), free(b), free(scale_a), free(scale_b), free(start), free(out), free(want);
}

static void every_case(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        one_case(&cases[i]);
}

static void a_nan_shows_in_its_row(void **state)
{
    (void)state;
    enum { M = 3, N = 5, K = 40 };
    uint8_t *a = new_codes(M * K, 1), *b = new_codes(N * K, 2);
    float scale_a[M] = {1, NAN, 1}, out[M * N];
    a[2 * K + 7] = TSR_E4M3_NAN;
    tsr_fp8_gemm_args args = {
        .m = M, .n = N, .k = K, .a = a, .b = b, .scale_a = scale_a, .c = out, .alpha = 1};
    assert_int_equal(tsr_fp8_gemm_ref(&args, test_pool(1)), TSR_OK);
    for (int i = 0; i < M * N; i++)
        assert_int_equal(isnan(out[i]) != 0, i >= N);
    free(a), free(b);
}

static void bad_matmuls_are_refused(void **state)
{
    (void)state;
    tsr_fp8_gemm_args args = {.m = 2, .n = 2, .k = 2, .alpha = 1};
    assert_int_equal(tsr_fp8_gemm_ref(&args, test_pool(0)), TSR_EINVAL);
    args = (tsr_fp8_gemm_args){.beta = 0.5f};
    assert_int_equal(tsr_fp8_gemm_check(&args), TSR_EINVAL);
    args = (tsr_fp8_gemm_args){.m = -1};
    assert_int_equal(tsr_fp8_gemm_check(&args), TSR_EINVAL);
    args = (tsr_fp8_gemm_args){.c_dtype = TSR_F16};
    assert_int_equal(tsr_fp8_gemm_check(&args), TSR_EINVAL);
    args.c_dtype = TSR_BF16;
    assert_int_equal(tsr_fp8_gemm_ref(&args, test_pool(0)), TSR_EUNSUPPORTED);
    /* What stands for it in a list is no matmul of the op gemm. */
    tsr_gemm_args shape = tsr_fp8_gemm_shape(&args);
    assert_int_equal(tsr_gemm_check(&shape), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case),
        cmocka_unit_test(a_nan_shows_in_its_row),
        cmocka_unit_test(bad_matmuls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
