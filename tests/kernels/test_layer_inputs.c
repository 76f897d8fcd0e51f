/*
 * test_layer_inputs.c: what every layer takes of a token against fp64, and its gradient against central differences.
 */
#include "kernels/layer_inputs.h"

#include "kernels/kernel_test.h"

#define F32_TOLERANCE          2e-6 /* of the largest element */
#define F32_GRADIENT_TOLERANCE 4e-6

typedef struct {
    tsr_layer_inputs_args args;
    float *z, *g, *bias, *w, *rows, *dout, *out;
    uint16_t *bias16;
    int64_t columns, count;
} inputs_case;

static void make_case(inputs_case *c, int64_t tokens, int32_t layers, int64_t width, bool vectors)
{
    *c = (inputs_case){.columns = layers * width, .count = tokens * layers * width};
    c->z = new_random(c->count, 1, 2);
    c->g = new_gain(c->columns, 2);
    c->bias = new_random(c->columns, 3, 1);
    c->bias16 = new_bf16(c->bias, c->columns);
    c->w = new_gain(width, 4);
    c->rows = new_random(c->count, 5, 1);
    c->dout = new_random(c->count, 6, 1);
    c->out = new_floats(c->count);
    c->args = (tsr_layer_inputs_args){.z = c->z,
                                      .w = {c->w, TSR_F32},
                                      .rows = c->rows,
                                      .out = c->out,
                                      .tokens = tokens,
                                      .width = width,
                                      .layers = layers,
                                      .eps = 1e-6f,
                                      .scale = 0.125f,
                                      .row_scale = 3,
                                      .sum_scale = 0.75f};
    if (!vectors)
        return;
    c->args.g = c->g;
    c->args.bias = (tsr_frozen){c->bias16, TSR_BF16};
}

static void free_case(inputs_case *c)
{
    free(c->z), free(c->g), free(c->bias), free(c->bias16), free(c->w), free(c->rows);
    free(c->dout), free(c->out);
}

static tsr_status run_forward(void *context, tsr_pool *pool)
{
    return tsr_layer_inputs_ref(&((inputs_case *)context)->args, pool);
}

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    inputs_case *c = context;
    const tsr_layer_inputs_args *a = &c->args;
    return tsr_layer_inputs_backward_ref(
        &(tsr_layer_inputs_backward_args){.dout = c->dout,
                                          .z = a->z,
                                          .g = a->g,
                                          .bias = a->bias,
                                          .w = a->w,
                                          .dy = c->out,
                                          .tokens = a->tokens,
                                          .width = a->width,
                                          .layers = a->layers,
                                          .eps = a->eps,
                                          .scale = a->scale,
                                          .sum_scale = a->sum_scale},
        pool);
}

/* From y = g z + bias, in fp64. */
static void forward64(const inputs_case *c, const double *y, double *out)
{
    const tsr_layer_inputs_args *a = &c->args;
    for (int64_t t = 0; t < a->tokens; t++)
        for (int64_t l = 0; l < a->layers; l++) {
            int64_t at = (t * a->layers + l) * a->width, to = (l * a->tokens + t) * a->width;
            double squares = 0, scale = (double)a->scale;
            for (int64_t i = 0; i < a->width; i++)
                squares += scale * y[at + i] * scale * y[at + i];
            double rstd = 1 / sqrt(squares / (double)a->width + (double)a->eps);
            for (int64_t i = 0; i < a->width; i++)
                out[to + i] =
                    (double)a->sum_scale * (scale * y[at + i] * rstd * (double)c->w[i] +
                                            (double)a->row_scale * (double)c->rows[at + i]);
        }
}

static double *new_outputs(const inputs_case *c)
{
    double *y = new_doubles(c->z, c->count);
    for (int64_t i = 0; i < c->count && c->args.g; i++)
        y[i] = (double)c->g[i % c->columns] * y[i] + (double)c->bias[i % c->columns];
    return y;
}

typedef struct {
    const inputs_case *c;
    double *y, *out;
} loss64;

static double loss(void *context)
{
    loss64 *l = context;
    double total = 0;
    forward64(l->c, l->y, l->out);
    for (int64_t i = 0; i < l->c->count; i++)
        total += l->out[i] * (double)l->c->dout[i];
    return total;
}

static void matches_fp64_and_differences(void **state)
{
    (void)state;
    const int64_t shapes[][3] = {{1, 1, 2}, {3, 4, 16}, {5, 3, 7}, {70, 2, 24}, {0, 2, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int vectors = 0; vectors < 2; vectors++) {
            inputs_case c;
            make_case(&c, shapes[i][0], (int32_t)shapes[i][1], shapes[i][2], vectors);
            loss64 l = {&c, new_outputs(&c), new_doubles(NULL, c.count)};
            forward64(&c, l.y, l.out);
            run_on_pools(run_forward, &c, c.out, c.count);
            expect_close("out", c.out, l.out, c.count, F32_TOLERANCE);
            double *dy = new_gradient(loss, &l, l.y, c.count);
            run_on_pools(run_backward, &c, c.out, c.count);
            expect_close("dy", c.out, dy, c.count, F32_GRADIENT_TOLERANCE);
            free(l.y), free(l.out), free(dy);
            free_case(&c);
        }
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    inputs_case c;
    make_case(&c, 2, 2, 8, true);
    c.args.width = TSR_LAYER_INPUTS_MOST + 1;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINVAL);
    c.args.width = 8;
    c.args.rows = NULL;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINVAL);
    free_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches_fp64_and_differences),
                                       cmocka_unit_test(wrong_arguments_are_refused)};
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
