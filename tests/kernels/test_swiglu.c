/*
 * test_swiglu.c: SwiGLU, GeGLU and gpt-oss's clamped SwiGLU against fp64 and its gradients, dm included, against central differences.
 */
#include "kernels/swiglu.h"

#include "kernels/kernel_test.h"

#define F32_TOLERANCE          1e-6 /* of the largest element */
#define F32_GRADIENT_TOLERANCE 2e-6

static const tsr_activation activations[] = {TSR_GELU_TANH, TSR_SILU_CLAMPED, TSR_SILU};
static tsr_activation activation; /* of the cases */

/* What random inputs are multiplied by: so that half of them are clamped. */
static float wide(void)
{
    return activation == TSR_SILU_CLAMPED ? 14 : 1;
}

/* act[t, j] of y = g z + bias, with g = m / n. */
static double act64(double z_gate, double z_up, double g_gate, double g_up, double b_gate,
                    double b_up)
{
    double gate = g_gate * z_gate + b_gate, up = g_up * z_up + b_up;
    if (activation == TSR_SILU)
        return gate / (1 + exp(-gate)) * up;
    if (activation == TSR_SILU_CLAMPED) {
        double g = fmin(gate, 7), u = fmax(fmin(up, 7), -7);
        return (u + 1) * g / (1 + exp(-1.702 * g));
    }
    return gate / 2 * (1 + tanh(sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
}

typedef struct {
    tsr_swiglu_args forward;
    tsr_swiglu_backward_args backward;
} swiglu_run;

static tsr_status run_forward(void *context, tsr_pool *pool)
{
    return tsr_swiglu_ref(&((swiglu_run *)context)->forward, pool);
}

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    return tsr_swiglu_backward_ref(&((swiglu_run *)context)->backward, pool);
}

typedef struct {
    int64_t tokens, f;
    double *z_gate, *z_up, *m_gate, *m_up;
    const float *n_gate, *n_up, *b_gate, *b_up, *dact;
} loss64;

static double loss(void *context)
{
    loss64 *l = context;
    double total = 0;
    for (int64_t i = 0; i < l->tokens * l->f; i++) {
        int64_t j = i % l->f;
        total += (double)l->dact[i] *
                 act64(l->z_gate[i], l->z_up[i], l->m_gate[j] / (double)l->n_gate[j],
                       l->m_up[j] / (double)l->n_up[j], (double)l->b_gate[j], (double)l->b_up[j]);
    }
    return total;
}

/* Powers of two as norms: g = m / n is then exact. */
static float *new_norms(int64_t count)
{
    float *n = new_floats(count);
    for (int64_t i = 0; i < count; i++)
        n[i] = i % 3 == 0 ? 0.5f : i % 3 == 1 ? 1.0f : 2.0f;
    return n;
}

static float *new_quotient(const float *m, const float *n, int64_t count)
{
    float *g = new_floats(count);
    for (int64_t i = 0; i < count; i++)
        g[i] = m[i] / n[i];
    return g;
}

static void one_case(int64_t tokens, int64_t f, float scale, bool differences)
{
    int64_t count = tokens * f;
    float *z_gate = new_random(count, 1, scale * wide()), *z_up = new_random(count, 2, wide());
    float *m_gate = new_gain(f, 3), *m_up = new_gain(f, 4), *n_gate = new_norms(f);
    float *n_up = new_norms(f), *b_gate = new_random(f, 5, 1), *b_up = new_random(f, 6, 1);
    float *g_gate = new_quotient(m_gate, n_gate, f), *g_up = new_quotient(m_up, n_up, f);
    float *dact = new_random(count, 7, 1), *act = new_floats(count);
    uint16_t *b_gate16 = new_bf16(b_gate, f);
    float *out = new_floats(2 * count + 2 * f); /* dz_gate, dz_up, dm_gate, dm_up */
    float *dm = out + 2 * count;
    swiglu_run r = {.forward = {z_gate,
                                z_up,
                                g_gate,
                                g_up,
                                {b_gate16, TSR_BF16},
                                {b_up, TSR_F32},
                                act,
                                tokens,
                                f,
                                0,
                                activation,
                                TSR_F32},
                    .backward = {dact,
                                 z_gate,
                                 z_up,
                                 g_gate,
                                 g_up,
                                 {b_gate16, TSR_BF16},
                                 {b_up, TSR_F32},
                                 out,
                                 out + count,
                                 n_gate,
                                 n_up,
                                 dm,
                                 dm + f,
                                 tokens,
                                 f,
                                 0,
                                 activation,
                                 TSR_F32}};
    run_on_pools(run_forward, &r, act, count);
    double *want = new_doubles(NULL, count);
    for (int64_t i = 0; i < count; i++)
        want[i] = act64((double)z_gate[i], (double)z_up[i], (double)g_gate[i % f],
                        (double)g_up[i % f], (double)b_gate[i % f], (double)b_up[i % f]);
    expect_close("act", act, want, count, F32_TOLERANCE);
    free(want);
    run_on_pools(run_backward, &r, out, 2 * count + 2 * f);
    if (differences) {
        loss64 l = {tokens,
                    f,
                    new_doubles(z_gate, count),
                    new_doubles(z_up, count),
                    new_doubles(m_gate, f),
                    new_doubles(m_up, f),
                    n_gate,
                    n_up,
                    b_gate,
                    b_up,
                    dact};
        double *x[4] = {l.z_gate, l.z_up, l.m_gate, l.m_up};
        float *got[4] = {out, out + count, dm, dm + f};
        const char *name[4] = {"dz_gate", "dz_up", "dm_gate", "dm_up"};
        for (int k = 0; k < 4; k++) {
            double *gradient = new_gradient(loss, &l, x[k], k < 2 ? count : f);
            expect_close(name[k], got[k], gradient, k < 2 ? count : f, F32_GRADIENT_TOLERANCE);
            free(gradient);
        }
        for (int k = 0; k < 4; k++)
            free(x[k]);
    }
    free(z_gate), free(z_up), free(m_gate), free(m_up), free(n_gate), free(n_up), free(b_gate);
    free(b_up), free(g_gate), free(g_up), free(dact), free(act), free(b_gate16), free(out);
}

static void shapes_match_fp64_and_differences(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        activation = activations[i];
        one_case(1, 1, 1, true);
        one_case(3, 5, 2, true);
        one_case(21, 16, 2, true);
        one_case(2, 67, 2, true);
        one_case(0, 9, 1, true);
        one_case(600, 130, 3, false);
    }
}

/* At a limit a gradient passes, as in PyTorch's clamp; just beyond it none does; a NaN is not clamped. */
static void limits_are_inside(void **state)
{
    (void)state;
    float beyond = nextafterf(7, 8);
    float z_gate[8] = {7, beyond, 1, 1, 1, 1, NAN, 1}, z_up[8] = {1, 1, 7, beyond, -7, -beyond, 1};
    float act[8], dact[8] = {1, 1, 1, 1, 1, 1, 1, 1}, dz[16];
    z_up[7] = NAN;
    tsr_swiglu_args args = {.z_gate = z_gate,
                            .z_up = z_up,
                            .act = act,
                            .tokens = 1,
                            .f = 8,
                            .activation = TSR_SILU_CLAMPED};
    tsr_swiglu_backward_args back = {.dact = dact,
                                     .z_gate = z_gate,
                                     .z_up = z_up,
                                     .dz_gate = dz,
                                     .dz_up = dz + 8,
                                     .tokens = 1,
                                     .f = 8,
                                     .activation = TSR_SILU_CLAMPED};
    assert_int_equal(tsr_swiglu_ref(&args, test_pool(0)), TSR_OK);
    assert_int_equal(tsr_swiglu_backward_ref(&back, test_pool(0)), TSR_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(act[2 * i] == act[2 * i + 1]);
        assert_true(dz[i ? 8 + 2 * i : 0] > 0 && dz[i ? 9 + 2 * i : 1] == 0);
    }
    assert_true(isnan(act[6]) && isnan(act[7]) && isnan(dz[6]) && isnan(dz[7]));
    assert_true(isnan(dz[14]) && dz[15] > 0); /* NaN (u + 1) f', and f of a gate of 1 */
}

static void extreme_gates_stay_finite(void **state)
{
    (void)state;
    float z_gate[6] = {-1e4f, -100, -88.5f, 88.5f, 100, 1e4f}, z_up[6] = {1, 1, 1, 1, 1, 1};
    float act[6], dact[6] = {1, 1, 1, 1, 1, 1}, dz[12];
    tsr_swiglu_args args = {.z_gate = z_gate, .z_up = z_up, .act = act, .tokens = 2, .f = 3};
    assert_int_equal(tsr_swiglu_ref(&args, test_pool(0)), TSR_OK);
    tsr_swiglu_backward_args back = {.dact = dact,
                                     .z_gate = z_gate,
                                     .z_up = z_up,
                                     .dz_gate = dz,
                                     .dz_up = dz + 6,
                                     .tokens = 2,
                                     .f = 3};
    assert_int_equal(tsr_swiglu_backward_ref(&back, test_pool(0)), TSR_OK);
    for (int i = 0; i < 6; i++) {
        assert_true(fabsf(act[i] - (i < 3 ? 0 : z_gate[i])) < 1e-30f);
        assert_true(fabsf(dz[i] - (i < 3 ? 0 : 1)) < 1e-30f);
        assert_true(isfinite(dz[6 + i]));
    }
}

/* Halves of one row, with `gap` columns behind them: the bits of two buffers, and what is between stays. */
static void strided_case(int64_t tokens, int64_t f, int64_t gap, bool sums)
{
    int64_t count = tokens * f, stride = 2 * f + gap;
    float *z[2] = {new_random(count, 1, 3 * wide()), new_random(count, 2, 2 * wide())};
    float *dact = new_random(count, 3, 1), *n = new_gain(f, 4), *g = new_gain(f, 5);
    float *bias = new_random(f, 6, 1), *dense = new_floats(3 * count + 2 * f);
    float *wide = new_random(tokens * stride, 7, 1), *before = new_floats(tokens * stride);
    for (int64_t i = 0; i < 2 * count; i++)
        wide[i % count / f * stride + i / count * f + i % f] = z[i / count][i % count];
    memcpy(before, wide, (size_t)(tokens * stride) * sizeof(float));
    tsr_frozen frozen = {bias, TSR_F32};
    float *act = new_floats(count), *dm = new_floats(2 * f), *dense_dm = dense + 3 * count;
    for (int way = 0; way < 2; way++) {
        float *from[2] = {way ? wide : z[0], way ? wide + f : z[1]};
        tsr_swiglu_args args = {.z_gate = from[0],
                                .z_up = from[1],
                                .g_up = g,
                                .bias_gate = frozen,
                                .act = way ? act : dense,
                                .tokens = tokens,
                                .f = f,
                                .stride = way ? stride : 0,
                                .activation = activation};
        tsr_swiglu_backward_args back = {.dact = dact,
                                         .z_gate = from[0],
                                         .z_up = from[1],
                                         .g_up = g,
                                         .bias_gate = frozen,
                                         .dz_gate = way ? from[0] : dense + count,
                                         .dz_up = way ? from[1] : dense + 2 * count,
                                         .n_gate = n,
                                         .n_up = n,
                                         .dm_gate = sums ? (way ? dm : dense_dm) : NULL,
                                         .dm_up = sums ? (way ? dm : dense_dm) + f : NULL,
                                         .tokens = tokens,
                                         .f = f,
                                         .stride = way ? stride : 0,
                                         .activation = activation};
        assert_int_equal(tsr_swiglu_ref(&args, test_pool(way)), TSR_OK);
        assert_int_equal(tsr_swiglu_backward_ref(&back, test_pool(way)), TSR_OK);
    }
    assert_memory_equal(act, dense, (size_t)count * sizeof(float));
    for (int64_t i = 0; i < 2 * count; i++)
        before[i % count / f * stride + i / count * f + i % f] = dense[count + i];
    assert_memory_equal(wide, before, (size_t)(tokens * stride) * sizeof(float));
    if (sums)
        assert_memory_equal(dm, dense_dm, (size_t)(2 * f) * sizeof(float));
    free(z[0]), free(z[1]), free(dact), free(n), free(g), free(bias), free(dense);
    free(wide), free(before), free(act), free(dm);
}

static void halves_of_a_row_are_the_same(void **state)
{
    (void)state;
    static const int64_t gaps[] = {0, 3, 8};
    for (int i = 0; i < 18; i++) {
        activation = activations[i % 3];
        strided_case(21, 16, gaps[i / 6], i / 3 % 2);
        strided_case(5, 67, gaps[i / 6], i / 3 % 2);
        strided_case(300, 130, gaps[i / 6], i / 3 % 2);
    }
}

/* Rows that overlap, and gradients in e4m3 of rows that are not dense. */
static void odd_strides_are_refused(void **state)
{
    (void)state;
    float z[16] = {0}, out[16], more[16];
    uint8_t codes[8];
    tsr_swiglu_args args = {
        .z_gate = z, .z_up = z + 4, .act = out, .tokens = 2, .f = 4, .stride = 3};
    tsr_swiglu_backward_args back = {.dact = z,
                                     .z_gate = z,
                                     .z_up = z + 4,
                                     .dz_gate = out,
                                     .dz_up = more,
                                     .tokens = 2,
                                     .f = 4,
                                     .stride = 3};
    assert_int_equal(tsr_swiglu_ref(&args, test_pool(0)), TSR_EINVAL);
    assert_int_equal(tsr_swiglu_backward_ref(&back, test_pool(0)), TSR_EINVAL);
    back.stride = 8;
    back.dz_up8 = (tsr_fp8_rows){.out = codes, .scale = out};
    assert_int_equal(tsr_swiglu_backward_ref(&back, test_pool(0)), TSR_EINVAL);
}

static void outputs_may_be_inputs(void **state)
{
    (void)state;
    int64_t tokens = 10, f = 70, count = tokens * f;
    float *gate = new_random(count, 1, 2), *up = new_random(count, 2, 2);
    float *dact = new_random(count, 3, 1), *dz = new_floats(2 * count);
    tsr_swiglu_backward_args args = {.dact = dact,
                                     .z_gate = gate,
                                     .z_up = up,
                                     .dz_gate = dz,
                                     .dz_up = dz + count,
                                     .tokens = tokens,
                                     .f = f};
    assert_int_equal(tsr_swiglu_backward_ref(&args, test_pool(1)), TSR_OK);
    args.dz_gate = up;
    args.dz_up = gate;
    assert_int_equal(tsr_swiglu_backward_ref(&args, test_pool(1)), TSR_OK);
    assert_memory_equal(up, dz, (size_t)count * sizeof(float));
    assert_memory_equal(gate, dz + count, (size_t)count * sizeof(float));
    args.dz_up = up;
    assert_int_equal(tsr_swiglu_backward_ref(&args, test_pool(1)), TSR_EINVAL);
    free(gate), free(up), free(dact), free(dz);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_match_fp64_and_differences),
        cmocka_unit_test(limits_are_inside),
        cmocka_unit_test(extreme_gates_stay_finite),
        cmocka_unit_test(halves_of_a_row_are_the_same),
        cmocka_unit_test(odd_strides_are_refused),
        cmocka_unit_test(outputs_may_be_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
