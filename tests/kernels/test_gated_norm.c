/*
 * test_gated_norm.c: the gated norm of heads against fp64, and its gradients against central differences, also in the place
 * of what they are computed from.
 */
#include "kernels/gated_norm.h"

#include "kernels/kernel_test.h"

#define F32_TOLERANCE          2e-6 /* of the largest element */
#define F32_GRADIENT_TOLERANCE 4e-6

typedef struct {
    tsr_gated_norm_args args;
    float *x, *z, *g, *w, *dout, *out;
    uint16_t *w16;
    int64_t columns, count;
    bool in_place;
} norm_case;

static void make_case(norm_case *c, int64_t tokens, int32_t heads, int32_t width, bool vectors)
{
    *c = (norm_case){.columns = heads * width, .count = tokens * heads * width};
    c->x = new_random(c->count, 1, 2);
    c->z = new_random(c->count, 2, 3);
    c->g = new_gain(c->columns, 3);
    c->w = new_gain(width, 4);
    c->w16 = new_bf16(c->w, width);
    c->dout = new_random(c->count, 5, 1);
    c->out = new_floats(2 * c->count);
    c->args =
        (tsr_gated_norm_args){.x = c->x,
                              .z = c->z,
                              .g = vectors ? c->g : NULL,
                              .w = {vectors ? (void *)c->w16 : c->w, vectors ? TSR_BF16 : TSR_F32},
                              .out = c->out,
                              .tokens = tokens,
                              .heads = heads,
                              .width = width,
                              .eps = 1e-3f};
}

static void free_case(norm_case *c)
{
    free(c->x), free(c->z), free(c->g), free(c->w), free(c->w16), free(c->dout), free(c->out);
}

static tsr_status run_forward(void *context, tsr_pool *pool)
{
    return tsr_gated_norm_ref(&((norm_case *)context)->args, pool);
}

/* dx, then dy; in place: of dout and z. */
static tsr_status run_backward(void *context, tsr_pool *pool)
{
    norm_case *c = context;
    const tsr_gated_norm_args *a = &c->args;
    float *dx = c->out, *dy = c->out + c->count;
    if (c->in_place) {
        memcpy(dx, c->dout, (size_t)c->count * sizeof *dx);
        memcpy(dy, c->z, (size_t)c->count * sizeof *dy);
    }
    return tsr_gated_norm_backward_ref(
        &(tsr_gated_norm_backward_args){.dout = c->in_place ? dx : c->dout,
                                        .x = a->x,
                                        .z = c->in_place ? dy : a->z,
                                        .g = a->g,
                                        .w = a->w,
                                        .dx = dx,
                                        .dy = dy,
                                        .tokens = a->tokens,
                                        .heads = a->heads,
                                        .width = a->width,
                                        .eps = a->eps},
        pool);
}

/* in: x, then y. */
typedef struct {
    const norm_case *c;
    double *in, *out;
} model64;

static void forward64(const model64 *m)
{
    const norm_case *c = m->c;
    int64_t width = c->args.width;
    for (int64_t r = 0; r < c->count / width; r++) {
        double squares = 0;
        for (int64_t i = 0; i < width; i++)
            squares += m->in[r * width + i] * m->in[r * width + i];
        for (int64_t i = 0; i < width; i++) {
            double y = m->in[c->count + r * width + i];
            m->out[r * width + i] = m->in[r * width + i] /
                                    sqrt(squares / (double)width + (double)c->args.eps) *
                                    (double)c->w[i] * y / (1 + exp(-y));
        }
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
    const int32_t shapes[][3] = {{1, 1, 3}, {3, 4, 16}, {5, 3, 7}, {40, 2, 24}, {0, 2, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int vectors = 0; vectors < 2; vectors++) {
            norm_case c;
            make_case(&c, shapes[i][0], shapes[i][1], shapes[i][2], vectors);
            model64 m = {&c, new_doubles(NULL, 2 * c.count), new_doubles(NULL, c.count)};
            for (int64_t j = 0; j < c.count; j++) {
                m.in[j] = (double)c.x[j];
                m.in[c.count + j] = (double)(vectors ? c.g[j % c.columns] * c.z[j] : c.z[j]);
            }
            forward64(&m);
            run_on_pools(run_forward, &c, c.out, c.count);
            expect_close("out", c.out, m.out, c.count, F32_TOLERANCE);
            double *d = new_gradient(loss, &m, m.in, 2 * c.count);
            for (int j = 0; j < 2; j++) {
                c.in_place = j;
                run_on_pools(run_backward, &c, c.out, 2 * c.count);
                expect_close("dx", c.out, d, c.count, F32_GRADIENT_TOLERANCE);
                expect_close("dy", c.out + c.count, d + c.count, c.count, F32_GRADIENT_TOLERANCE);
            }
            free(m.in), free(m.out), free(d);
            free_case(&c);
        }
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    norm_case c;
    make_case(&c, 2, 2, 8, true);
    c.args.width = TSR_GATED_NORM_MOST + 1;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINVAL);
    assert_int_equal(run_backward(&c, test_pool(0)), TSR_EINVAL);
    c.args.width = 8;
    c.args.z = NULL;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINVAL);
    free_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches_fp64_and_differences),
                                       cmocka_unit_test(wrong_arguments_are_refused)};
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
