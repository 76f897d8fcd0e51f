/*
 * test_compose.c: compose, its backward and compose_merged against fp64, and that the stable form keeps a
 * correction that the naive one loses.
 */
#include "kernels/compose.h"

#include "kernels/kernel_test.h"

#define F32_TOLERANCE 1e-6 /* of the largest element */

typedef struct {
    tsr_compose_args forward;
    tsr_compose_backward_args backward;
    tsr_compose_merged_args merged;
} compose_run;

static tsr_status run_forward(void *context, tsr_pool *pool)
{
    return tsr_compose_ref(&((compose_run *)context)->forward, pool);
}

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    return tsr_compose_backward_ref(&((compose_run *)context)->backward, pool);
}

static tsr_status run_merged(void *context, tsr_pool *pool)
{
    return tsr_compose_merged_ref(&((compose_run *)context)->merged, pool);
}

static double *new_dm(const float *dy, const float *inner, const float *n, int64_t tokens,
                      int64_t d)
{
    double *dm = new_doubles(NULL, d);
    for (int64_t i = 0; i < tokens * d; i++)
        dm[i % d] += (double)dy[i] * (double)inner[i];
    for (int64_t j = 0; j < d; j++)
        dm[j] /= (double)n[j];
    return dm;
}

static void check_backward(compose_run *r, float *out, const float *dy, const float *inner,
                           const float *g, const float *n, float s, int64_t tokens, int64_t d)
{
    int64_t count = tokens * d;
    double *dm = new_dm(dy, inner, n, tokens, d), *dz = new_doubles(NULL, count);
    r->backward = (tsr_compose_backward_args){
        dy, inner, g, n, out, out + count, out + 2 * count, tokens, d, s, TSR_F32};
    run_on_pools(run_backward, r, out, 2 * count + d);
    for (int64_t i = 0; i < count; i++)
        dz[i] = ((double)g[i % d] - 1) * (double)dy[i];
    expect_close("d_base_dropped", out, dz, count, F32_TOLERANCE);
    for (int64_t i = 0; i < count; i++)
        dz[i] = (double)g[i % d] * (double)s * (double)dy[i];
    expect_close("d_lora", out + count, dz, count, F32_TOLERANCE);
    expect_close("dm", out + 2 * count, dm, d, F32_TOLERANCE);

    r->backward =
        (tsr_compose_backward_args){dy, inner, g, n, NULL, out, out + count, tokens, d, 1, TSR_F32};
    run_on_pools(run_backward, r, out, count + d);
    for (int64_t i = 0; i < count; i++)
        dz[i] = (double)g[i % d] * (double)dy[i];
    expect_close("dz", out, dz, count, F32_TOLERANCE);
    expect_close("dm of g dy", out + count, dm, d, F32_TOLERANCE);
    r->backward.dm = NULL; /* another split: blocks of tokens */
    run_on_pools(run_backward, r, out, count);
    expect_close("dz alone", out, dz, count, F32_TOLERANCE);
    r->backward.g = NULL;
    run_on_pools(run_backward, r, out, count);
    assert_memory_equal(out, dy, (size_t)count * sizeof(float));
    free(dm), free(dz);
}

static void one_case(int64_t tokens, int64_t d, bool dropped)
{
    int64_t count = tokens * d;
    float *base = new_random(count, 1, 2), *base_dropped = new_random(count, 2, 2);
    float *lora = new_random(count, 3, 1), *g = new_gain(d, 4), *bias = new_random(d, 5, 1);
    float *n = new_gain(d, 6), *dy = new_random(count, 7, 1), *out = new_floats(2 * count + d);
    const float s = 1.5f, *b = dropped ? base_dropped : base;
    compose_run r = {.forward = {base,
                                 dropped ? base_dropped : NULL,
                                 lora,
                                 g,
                                 {bias, TSR_F32},
                                 out,
                                 out + count,
                                 tokens,
                                 d,
                                 s,
                                 TSR_F32}};
    run_on_pools(run_forward, &r, out, 2 * count);
    double *want = new_doubles(NULL, count);
    for (int64_t i = 0; i < count; i++)
        want[i] = (double)bias[i % d] + (double)base[i] + ((double)g[i % d] - 1) * (double)b[i] +
                  (double)g[i % d] * (double)s * (double)lora[i];
    expect_close("y", out, want, count, F32_TOLERANCE);
    for (int64_t i = 0; i < count; i++)
        want[i] = (double)s * (double)lora[i] + (double)b[i];
    expect_close("inner", out + count, want, count, F32_TOLERANCE);
    float *inner = new_floats(count);
    memcpy(inner, out + count, (size_t)count * sizeof(float));
    check_backward(&r, out, dy, inner, g, n, s, tokens, d);
    free(base), free(base_dropped), free(lora), free(g), free(bias), free(n), free(dy);
    free(out), free(want), free(inner);
}

static void one_merged(int64_t tokens, int64_t d, bool biased)
{
    int64_t count = tokens * d;
    float *base = new_random(count, 1, 2), *inner = new_random(count, 2, 2);
    float *g = new_gain(d, 4), *bias = new_random(d, 5, 1), *out = new_floats(count);
    double *want = new_doubles(NULL, count);
    for (int64_t i = 0; i < count; i++)
        want[i] = (double)base[i] + (biased ? (double)bias[i % d] : 0) +
                  (double)g[i % d] * (double)inner[i];
    compose_run r = {.merged = {.base = base,
                                .inner = inner,
                                .g = g,
                                .bias = {biased ? bias : NULL, TSR_F32},
                                .y = out,
                                .tokens = tokens,
                                .d = d}};
    run_on_pools(run_merged, &r, out, count);
    expect_close("y of merged", out, want, count, F32_TOLERANCE);
    r.merged.y = tokens % 2 ? base : inner; /* may be an input */
    assert_int_equal(tsr_compose_merged_ref(&r.merged, test_pool(1)), TSR_OK);
    assert_memory_equal(r.merged.y, out, (size_t)count * sizeof *out);
    free(base), free(inner), free(g), free(bias), free(out), free(want);
}

static void shapes_match_fp64(void **state)
{
    (void)state;
    const int64_t shapes[][2] = {{1, 1}, {3, 7}, {17, 64}, {300, 130}, {1000, 48}, {0, 9}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        one_case(shapes[i][0], shapes[i][1], false);
        one_case(shapes[i][0], shapes[i][1], true);
        one_merged(shapes[i][0], shapes[i][1], i % 2);
    }
}

static void a_small_correction_survives(void **state)
{
    (void)state;
    float base = 1.0f, lora = 0x1p-30f, g = 1.0f, y, inner;
    float zero = -1.0f;
    tsr_compose_args args = {.base = &base,
                             .base_dropped = &base,
                             .lora = &lora,
                             .g = &g,
                             .bias = {&zero, TSR_F32},
                             .y = &y,
                             .inner = &inner,
                             .tokens = 1,
                             .d = 1,
                             .scale = 1};
    assert_int_equal(tsr_compose_ref(&args, test_pool(0)), TSR_OK);
    assert_true(y == 0x1p-30f); /* (1 - 1) + (0 * 1 + 1 * 2^-30) */
}

static void outputs_may_be_inputs(void **state)
{
    (void)state;
    int64_t tokens = 5, d = 100, count = tokens * d;
    float *base = new_random(count, 1, 2), *lora = new_random(count, 3, 1), *g = new_gain(d, 4);
    float *y = new_floats(count), *inner = new_floats(count);
    tsr_compose_args args = {.base = base,
                             .lora = lora,
                             .g = g,
                             .y = y,
                             .inner = inner,
                             .tokens = tokens,
                             .d = d,
                             .scale = 2};
    assert_int_equal(tsr_compose_ref(&args, test_pool(1)), TSR_OK);
    args.y = base;
    args.inner = lora;
    assert_int_equal(tsr_compose_ref(&args, test_pool(1)), TSR_OK);
    assert_memory_equal(base, y, (size_t)count * sizeof(float));
    assert_memory_equal(lora, inner, (size_t)count * sizeof(float));
    free(base), free(lora), free(g), free(y), free(inner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_match_fp64),
        cmocka_unit_test(a_small_correction_survives),
        cmocka_unit_test(outputs_may_be_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
