/*
 * test_rms_norm.c: the residual add and the norm against fp64, its gradient against central
 * differences of the fp64 forward.
 */
#include "kernels/rms_norm.h"

#include "kernels/kernel_test.h"

#define F32_TOLERANCE          1e-6 /* of the largest element */
#define F32_GRADIENT_TOLERANCE 3e-6

static const int64_t shapes[][2] = {{1, 1},     {1, 64},   {3, 7}, {5, 65},
                                    {300, 256}, {2, 1000}, {0, 8}};
#define SHAPES (sizeof shapes / sizeof *shapes)

static void forward64(double *sum, double *h, const tsr_rms_norm_args *a, const float *bias,
                      const float *w)
{
    for (int64_t t = 0; t < a->tokens; t++) {
        double squares = 0;
        for (int64_t j = 0; j < a->d; j++) {
            int64_t at = t * a->d + j;
            sum[at] = (double)((const float *)a->x)[at];
            if (a->z)
                sum[at] += (a->g ? (double)a->g[j] : 1) * (double)((const float *)a->z)[at] +
                           (bias ? (double)bias[j] : 0);
            squares += sum[at] * sum[at];
        }
        double rstd = 1 / sqrt(squares / (double)a->d + (double)a->eps);
        for (int64_t j = 0; j < a->d; j++)
            h[t * a->d + j] = sum[t * a->d + j] * rstd * (double)w[j];
    }
}

static tsr_status run(void *context, tsr_pool *pool)
{
    return tsr_rms_norm_ref(context, pool);
}

/* variant bit 0: z; 1: g and bias; 2: bf16 vectors; 3: x_out */
static void forward_case(int64_t tokens, int64_t d, int variant)
{
    int64_t count = tokens * d;
    float *x = new_random(count, 1, 2), *z = new_random(count, 2, 1), *g = new_gain(d, 3);
    float *bias = new_random(d, 4, 1), *w = new_gain(d, 5);
    uint16_t *bias16 = NULL, *w16 = NULL;
    if (variant & 4) {
        bias16 = new_bf16(bias, d);
        w16 = new_bf16(w, d);
    }
    float *out = new_floats(2 * count + tokens); /* x_out, h, rstd */
    bool with_z = variant & 1, with_vectors = (variant & 3) == 3;
    tsr_frozen frozen_w = {w16 ? (void *)w16 : (void *)w, w16 ? TSR_BF16 : TSR_F32};
    tsr_frozen frozen_bias = {bias16 ? (void *)bias16 : (void *)bias, frozen_w.dtype};
    tsr_rms_norm_args args = {.x = x,
                              .z = with_z ? z : NULL,
                              .g = with_vectors ? g : NULL,
                              .w = frozen_w,
                              .x_out = variant & 8 ? out : NULL,
                              .h = out + count,
                              .rstd = out + 2 * count,
                              .tokens = tokens,
                              .d = d,
                              .eps = 1e-5f};
    if (with_vectors)
        args.bias = frozen_bias;
    run_on_pools(run, &args, out, 2 * count + tokens);
    double *sum = new_doubles(NULL, count), *h = new_doubles(NULL, count);
    forward64(sum, h, &args, with_vectors ? bias : NULL, w);
    if (variant & 8)
        expect_close("x_out", out, sum, count, F32_TOLERANCE);
    expect_close("h", out + count, h, count, F32_TOLERANCE);
    free(x), free(z), free(g), free(bias), free(w), free(bias16), free(w16), free(out);
    free(sum), free(h);
}

static void forward_matches_fp64(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPES; i++)
        for (int variant = 0; variant < 16; variant++)
            forward_case(shapes[i][0], shapes[i][1], variant);
}

static void x_out_may_be_x_and_h_may_be_z(void **state)
{
    (void)state;
    int64_t tokens = 9, d = 100, count = tokens * d;
    float *x = new_random(count, 1, 2), *z = new_random(count, 2, 1), *w = new_gain(d, 5);
    float *sum = new_floats(count), *h = new_floats(count);
    tsr_rms_norm_args args = {.x = x,
                              .z = z,
                              .w = {w, TSR_F32},
                              .x_out = sum,
                              .h = h,
                              .tokens = tokens,
                              .d = d,
                              .eps = 1e-5f};
    assert_int_equal(tsr_rms_norm_ref(&args, test_pool(1)), TSR_OK);
    args.x_out = x;
    args.h = z;
    assert_int_equal(tsr_rms_norm_ref(&args, test_pool(1)), TSR_OK);
    assert_memory_equal(x, sum, (size_t)count * sizeof(float));
    assert_memory_equal(z, h, (size_t)count * sizeof(float));
    args.h = x;
    assert_int_equal(tsr_rms_norm_ref(&args, test_pool(1)), TSR_EINVAL);
    free(x), free(z), free(w), free(sum), free(h);
}

typedef struct {
    int64_t tokens, d;
    double *x;
    const float *w, *dh;
} loss64;

static double loss(void *context)
{
    loss64 *l = context;
    double total = 0;
    for (int64_t t = 0; t < l->tokens; t++) {
        double squares = 0, dot = 0;
        for (int64_t j = 0; j < l->d; j++) {
            double x = l->x[t * l->d + j];
            squares += x * x;
            dot += x * (double)l->w[j] * (double)l->dh[t * l->d + j];
        }
        total += dot / sqrt(squares / (double)l->d + 1e-5);
    }
    return total;
}

typedef struct {
    tsr_rms_norm_backward_args args;
    const float *start;
} backward_run;

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    backward_run *r = context;
    memcpy(r->args.dx, r->start, (size_t)(r->args.tokens * r->args.d) * sizeof(float));
    return tsr_rms_norm_backward_ref(&r->args, pool);
}

static void gradient_matches_differences(void **state)
{
    (void)state;
    const int64_t small[][2] = {{1, 3}, {2, 7}, {3, 65}, {17, 16}, {0, 8}};
    for (size_t i = 0; i < 10; i++) {
        int64_t tokens = small[i / 2][0], d = small[i / 2][1], count = tokens * d;
        float *x = new_random(count, 1, 2), *w = new_gain(d, 2), *dh = new_random(count, 3, 1);
        float *start = new_random(count, 4, 1), *dx = new_floats(count), *h = new_floats(count);
        float *rstd = new_floats(tokens);
        tsr_rms_norm_args forward = {.x = x,
                                     .w = {w, TSR_F32},
                                     .h = h,
                                     .rstd = rstd,
                                     .tokens = tokens,
                                     .d = d,
                                     .eps = 1e-5f};
        assert_int_equal(tsr_rms_norm_ref(&forward, test_pool(0)), TSR_OK);
        backward_run r = {{.dh = dh,
                           .x = x,
                           .rstd = rstd,
                           .w = {w, TSR_F32},
                           .dx = dx,
                           .tokens = tokens,
                           .d = d,
                           .overwrite = i % 2},
                          start};
        run_on_pools(run_backward, &r, dx, count);
        loss64 l = {tokens, d, new_doubles(x, count), w, dh};
        double *want = new_gradient(loss, &l, l.x, count);
        if (i % 2 == 0)
            for (int64_t j = 0; j < count; j++)
                want[j] += (double)start[j];
        expect_close("dx", dx, want, count, F32_GRADIENT_TOLERANCE);
        r.args.dx = x;
        if (r.args.overwrite) {
            assert_int_equal(tsr_rms_norm_backward_ref(&r.args, test_pool(0)), TSR_OK);
            assert_memory_equal(x, dx, (size_t)count * sizeof *dx);
        }
        free(x), free(w), free(dh), free(start), free(dx), free(h), free(rstd), free(l.x);
        free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_matches_fp64),
        cmocka_unit_test(x_out_may_be_x_and_h_may_be_z),
        cmocka_unit_test(gradient_matches_differences),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
