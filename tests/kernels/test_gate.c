/*
 * test_gate.c: gates of columns and of groups of columns against fp64, and their gradients against central differences;
 * heads that are split are put together again by the backward.
 */
#include "kernels/gate.h"

#include "kernels/kernel_test.h"

#define F32_TOLERANCE          2e-6 /* of the largest element */
#define F32_GRADIENT_TOLERANCE 4e-6

typedef struct {
    tsr_gate_args args;
    float *x, *z, *g, *bias, *dout, *out;
    uint16_t *bias16;
    int64_t count, gates; /* of all tokens */
} gate_case;

static void make_case(gate_case *c, int64_t tokens, int64_t gates, int64_t group, bool vectors)
{
    *c = (gate_case){.count = tokens * gates * group, .gates = tokens * gates};
    c->x = new_random(c->count, 1, 2);
    c->z = new_random(c->gates, 2, 3);
    c->g = new_gain(gates, 3);
    c->bias = new_random(gates, 4, 1);
    c->bias16 = new_bf16(c->bias, gates);
    c->dout = new_random(c->count, 5, 1);
    c->out = new_floats(c->count + c->gates);
    c->args = (tsr_gate_args){
        .x = c->x, .z = c->z, .out = c->out, .tokens = tokens, .gates = gates, .group = group};
    if (!vectors)
        return;
    c->args.g = c->g;
    c->args.bias = (tsr_frozen){c->bias16, TSR_BF16};
}

static void free_case(gate_case *c)
{
    free(c->x), free(c->z), free(c->g), free(c->bias), free(c->bias16), free(c->dout);
    free(c->out);
}

static tsr_status run_forward(void *context, tsr_pool *pool)
{
    return tsr_gate_ref(&((gate_case *)context)->args, pool);
}

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    gate_case *c = context;
    const tsr_gate_args *a = &c->args;
    return tsr_gate_backward_ref(&(tsr_gate_backward_args){.dout = c->dout,
                                                           .x = a->x,
                                                           .z = a->z,
                                                           .g = a->g,
                                                           .bias = a->bias,
                                                           .dx = c->out,
                                                           .dy = c->out + c->count,
                                                           .tokens = a->tokens,
                                                           .gates = a->gates,
                                                           .group = a->group},
                                 pool);
}

/* in: x, then y. */
typedef struct {
    const gate_case *c;
    double *in, *out;
} model64;

static void forward64(const model64 *m)
{
    for (int64_t i = 0; i < m->c->count; i++)
        m->out[i] = m->in[i] / (1 + exp(-m->in[m->c->count + i / m->c->args.group]));
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

static void gates_match_fp64_and_differences(void **state)
{
    (void)state;
    const int64_t shapes[][3] = {{1, 1, 1}, {3, 12, 1}, {5, 1, 7}, {40, 2, 24}, {0, 2, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int vectors = 0; vectors < 2; vectors++) {
            gate_case c;
            make_case(&c, shapes[i][0], shapes[i][1], shapes[i][2], vectors);
            int64_t all = c.count + c.gates;
            model64 m = {&c, new_doubles(NULL, all), new_doubles(NULL, c.count)};
            for (int64_t j = 0; j < c.count; j++)
                m.in[j] = (double)c.x[j];
            for (int64_t j = 0; j < c.gates; j++) {
                int64_t gate = j % c.args.gates;
                m.in[c.count + j] = (double)(vectors ? c.g[gate] * c.z[j] + c.bias[gate] : c.z[j]);
            }
            forward64(&m);
            run_on_pools(run_forward, &c, c.out, c.count);
            expect_close("out", c.out, m.out, c.count, F32_TOLERANCE);
            double *d = new_gradient(loss, &m, m.in, all);
            run_on_pools(run_backward, &c, c.out, all);
            expect_close("dx", c.out, d, c.count, F32_GRADIENT_TOLERANCE);
            expect_close("dy", c.out + c.count, d + c.count, c.gates, F32_GRADIENT_TOLERANCE);
            free(m.in), free(m.out), free(d);
            free_case(&c);
        }
}

/* ---- halves of heads ---- */

typedef struct {
    tsr_split_heads_args args;
    float *z, *g, *bias, *half, *back;
    int64_t count;
} split_case;

static tsr_status run_split(void *context, tsr_pool *pool)
{
    return tsr_split_heads_ref(&((split_case *)context)->args, pool);
}

static tsr_status run_together(void *context, tsr_pool *pool)
{
    split_case *c = context;
    return tsr_split_heads_backward_ref(
        &(tsr_split_heads_backward_args){.first = c->half,
                                         .second = c->half + c->count / 2,
                                         .dy = c->back,
                                         .tokens = c->args.tokens,
                                         .heads = c->args.heads,
                                         .width = c->args.width},
        pool);
}

static void heads_are_split(void **state)
{
    (void)state;
    const int64_t shapes[][3] = {{1, 1, 1}, {3, 4, 5}, {70, 2, 24}, {0, 2, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int64_t tokens = shapes[i][0], heads = shapes[i][1], width = shapes[i][2];
        int64_t columns = 2 * heads * width;
        split_case c = {.count = tokens * columns};
        c.z = new_random(c.count, 1, 2);
        c.g = new_gain(columns, 2);
        c.bias = new_random(columns, 3, 1);
        c.half = new_floats(c.count);
        c.back = new_floats(c.count);
        c.args = (tsr_split_heads_args){.z = c.z,
                                        .g = c.g,
                                        .bias = {c.bias, TSR_F32},
                                        .first = c.half,
                                        .second = c.half + c.count / 2,
                                        .tokens = tokens,
                                        .heads = heads,
                                        .width = width};
        run_on_pools(run_split, &c, c.half, c.count);
        for (int64_t j = 0; j < c.count; j++) {
            int64_t t = j / columns, head = j % columns / (2 * width), in = j % (2 * width);
            int64_t half = in / width * (c.count / 2);
            float y = c.g[j % columns] * c.z[j] + c.bias[j % columns];
            assert_true(c.half[half + (t * heads + head) * width + in % width] == y);
        }
        run_on_pools(run_together, &c, c.back, c.count);
        for (int64_t j = 0; j < c.count; j++)
            assert_true(c.back[j] == c.g[j % columns] * c.z[j] + c.bias[j % columns]);
        free(c.z), free(c.g), free(c.bias), free(c.half), free(c.back);
    }
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    gate_case c;
    make_case(&c, 2, 2, 8, true);
    c.args.group = 0;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINVAL);
    assert_int_equal(run_backward(&c, test_pool(0)), TSR_EINVAL);
    c.args.group = 8;
    c.args.z = NULL;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINVAL);
    free_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gates_match_fp64_and_differences),
                                       cmocka_unit_test(heads_are_split),
                                       cmocka_unit_test(wrong_arguments_are_refused)};
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
