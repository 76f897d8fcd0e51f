/*
 * test_convolution.c: the convolution over time against fp64, and its gradient against central differences: documents
 * shorter than the taps, blocks of tokens that are cut inside one.
 */
#include "kernels/convolution.h"

#include "kernels/kernel_test.h"

#define F32_TOLERANCE          2e-6 /* of the largest element */
#define F32_GRADIENT_TOLERANCE 4e-6

typedef struct {
    tsr_convolution_args args;
    float *z, *g, *w, *dout, *out;
    uint16_t *w16;
    int32_t *positions;
    int64_t count;
} convolution_case;

static void make_case(convolution_case *c, int64_t tokens, int64_t channels, int32_t taps,
                      bool vectors)
{
    *c = (convolution_case){.count = tokens * channels};
    c->z = new_random(c->count, 1, 2);
    c->g = new_gain(channels, 2);
    c->w = new_random(channels * taps, 3, 1);
    c->w16 = new_bf16(c->w, channels * taps);
    c->dout = new_random(c->count, 4, 1);
    c->out = new_floats(c->count);
    c->positions = malloc((size_t)(tokens + 1) * sizeof *c->positions);
    assert_non_null(c->positions);
    for (int32_t t = 0; t < tokens; t++) /* documents of 2, 20, then all the rest */
        c->positions[t] = t < 2 ? t : t < 22 ? t - 2 : t - 22;
    c->args =
        (tsr_convolution_args){.z = c->z,
                               .g = vectors ? c->g : NULL,
                               .w = {vectors ? (void *)c->w16 : c->w, vectors ? TSR_BF16 : TSR_F32},
                               .positions = c->positions,
                               .out = c->out,
                               .tokens = tokens,
                               .channels = channels,
                               .taps = taps};
}

static void free_case(convolution_case *c)
{
    free(c->z), free(c->g), free(c->w), free(c->w16), free(c->dout), free(c->out);
    free(c->positions);
}

static tsr_status run_forward(void *context, tsr_pool *pool)
{
    return tsr_convolution_ref(&((convolution_case *)context)->args, pool);
}

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    convolution_case *c = context;
    const tsr_convolution_args *a = &c->args;
    return tsr_convolution_backward_ref(&(tsr_convolution_backward_args){.dout = c->dout,
                                                                         .z = a->z,
                                                                         .g = a->g,
                                                                         .w = a->w,
                                                                         .positions = a->positions,
                                                                         .dy = c->out,
                                                                         .tokens = a->tokens,
                                                                         .channels = a->channels,
                                                                         .taps = a->taps},
                                        pool);
}

typedef struct {
    const convolution_case *c;
    double *y, *out;
} model64;

static void forward64(const model64 *m)
{
    const tsr_convolution_args *a = &m->c->args;
    for (int64_t t = 0; t < a->tokens; t++)
        for (int64_t i = 0; i < a->channels; i++) {
            double pre = 0;
            for (int32_t back = 0; back < a->taps && back <= a->positions[t]; back++)
                pre += (double)m->c->w[i * a->taps + a->taps - 1 - back] *
                       m->y[(t - back) * a->channels + i];
            m->out[t * a->channels + i] = pre / (1 + exp(-pre));
        }
}

static double loss(void *context)
{
    model64 *m = context;
    double total = 0;
    forward64(m);
    for (int64_t i = 0; i < m->c->count; i++)
        total += m->out[i] * (double)m->c->dout[i];
    return total;
}

static void matches_fp64_and_differences(void **state)
{
    (void)state;
    const int64_t shapes[][3] = {{1, 1, 4},   {3, 5, 4},  {40, 3, 2},
                                 {100, 2, 8}, {33, 7, 1}, {0, 2, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int vectors = 0; vectors < 2; vectors++) {
            convolution_case c;
            make_case(&c, shapes[i][0], shapes[i][1], (int32_t)shapes[i][2], vectors);
            model64 m = {&c, new_doubles(c.z, c.count), new_doubles(NULL, c.count)};
            for (int64_t j = 0; j < c.count && vectors; j++)
                m.y[j] *= (double)c.g[j % c.args.channels];
            forward64(&m);
            run_on_pools(run_forward, &c, c.out, c.count);
            expect_close("out", c.out, m.out, c.count, F32_TOLERANCE);
            double *dy = new_gradient(loss, &m, m.y, c.count);
            run_on_pools(run_backward, &c, c.out, c.count);
            expect_close("dy", c.out, dy, c.count, F32_GRADIENT_TOLERANCE);
            free(m.y), free(m.out), free(dy);
            free_case(&c);
        }
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    convolution_case c;
    make_case(&c, 2, 2, 4, true);
    c.args.taps = TSR_CONVOLUTION_MOST + 1;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINVAL);
    assert_int_equal(run_backward(&c, test_pool(0)), TSR_EINVAL);
    c.args.taps = 4;
    c.args.positions = NULL;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINVAL);
    free_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches_fp64_and_differences),
                                       cmocka_unit_test(wrong_arguments_are_refused)};
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
