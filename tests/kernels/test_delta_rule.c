/*
 * test_delta_rule.c: the gated delta rule, token by token in fp64, against the chunked reference; its gradients against
 * central differences. Documents shorter and longer than a chunk, empty ones, padding; heads of several widths; gates that
 * forget nothing and everything.
 */
#include "kernels/delta_rule.h"

#include "kernels/kernel_test.h"

#define F32_TOLERANCE          4e-6 /* of the largest element; measured: 1e-6 */
#define F32_GRADIENT_TOLERANCE 2e-5 /* measured: 5.5e-6 */
#define PROBES                 150  /* elements of a gradient, at most */

typedef struct {
    int32_t lengths[4], documents, padding, key_heads, group, dk, dv;
    float decay; /* added to dt_bias */
    bool vectors;
} delta_shape;

typedef struct {
    tsr_delta_rule_args args;
    float *mixed, *b, *a, *g_b, *g_a, *a_log, *dt_bias, *d_o, *out;
    uint16_t *a_log16;
    void *workspace;
    int32_t cu_seqlens[5];
    int64_t columns, tokens, used, heads;
} delta_case;

static void make_case(delta_case *c, const delta_shape *s)
{
    *c = (delta_case){.heads = s->key_heads * s->group};
    for (int32_t i = 0; i < s->documents; i++)
        c->cu_seqlens[i + 1] = c->cu_seqlens[i] + s->lengths[i];
    c->used = c->cu_seqlens[s->documents];
    c->tokens = c->used + s->padding;
    c->args.shape = (tsr_delta_rule_shape){.cu_seqlens = c->cu_seqlens,
                                           .tokens = c->tokens,
                                           .documents = s->documents,
                                           .key_heads = s->key_heads,
                                           .value_heads = (int32_t)c->heads,
                                           .key_dim = s->dk,
                                           .value_dim = s->dv};
    c->columns = tsr_delta_rule_columns(&c->args.shape);
    c->mixed = new_random(c->tokens * c->columns, 1, 1.5f);
    c->b = new_random(c->tokens * c->heads, 2, 3);
    c->a = new_random(c->tokens * c->heads, 3, 2);
    c->g_b = new_gain(c->heads, 4);
    c->g_a = new_gain(c->heads, 5);
    c->a_log = new_random(c->heads, 6, 1);
    c->a_log16 = new_bf16(c->a_log, c->heads);
    c->dt_bias = new_random(c->heads, 7, 1);
    for (int64_t i = 0; i < c->heads; i++)
        c->dt_bias[i] += s->decay;
    c->d_o = new_random(c->tokens * c->heads * s->dv, 8, 1);
    c->out = new_floats(c->tokens * (c->columns + 2 * c->heads));
    const tsr_delta_rule_bounds bounds = {.tokens = c->tokens,
                                          .documents = s->documents,
                                          .longest = c->tokens,
                                          .key_heads = s->key_heads,
                                          .value_heads = (int32_t)c->heads,
                                          .key_dim = s->dk,
                                          .value_dim = s->dv,
                                          .train = true};
    c->args.shape.workspace_bytes = tsr_delta_rule_workspace_bytes(&bounds);
    c->workspace = malloc(c->args.shape.workspace_bytes);
    assert_non_null(c->workspace);
    memset(c->workspace, 0xff, c->args.shape.workspace_bytes);
    c->args.shape.workspace = c->workspace;
    c->args.in = (tsr_delta_rule_inputs){.mixed = c->mixed,
                                         .b = c->b,
                                         .a = c->a,
                                         .g_b = s->vectors ? c->g_b : NULL,
                                         .g_a = s->vectors ? c->g_a : NULL,
                                         .a_log = {c->a_log16, TSR_BF16},
                                         .dt_bias = {c->dt_bias, TSR_F32}};
}

static void free_case(delta_case *c)
{
    free(c->mixed), free(c->b), free(c->a), free(c->g_b), free(c->g_a), free(c->a_log);
    free(c->a_log16), free(c->dt_bias), free(c->d_o), free(c->out), free(c->workspace);
}

static tsr_status run_forward(void *context, tsr_pool *pool)
{
    delta_case *c = context;
    c->args.o = c->out;
    return tsr_delta_rule_ref(&c->args, pool);
}

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    delta_case *c = context;
    float *d_b = c->out + c->tokens * c->columns;
    return tsr_delta_rule_backward_ref(
        &(tsr_delta_rule_backward_args){.in = c->args.in,
                                        .d_o = c->d_o,
                                        .d_mixed = c->out,
                                        .d_b = d_b,
                                        .d_a = d_b + c->tokens * c->heads,
                                        .shape = c->args.shape},
        pool);
}

/* ---- in fp64 ---- */

/* What is differentiated by: mixed, g_b b and g_a a, one behind the other. */
typedef struct {
    const delta_case *c;
    double *x, *o;
} model64;

static void read_head(double *out, const double *x, int dim, double scale)
{
    double squares = 0;
    for (int i = 0; i < dim; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < dim; i++)
        out[i] = x[i] / sqrt(squares + 1e-6) * scale;
}

/* One token of one head. */
static void step64(double *o, double *state, const model64 *m, int64_t t, int64_t h)
{
    const delta_case *c = m->c;
    const tsr_delta_rule_shape *s = &c->args.shape;
    int dk = s->key_dim, dv = s->value_dim;
    int64_t key_head = h / (c->heads / s->key_heads);
    const double *row = m->x + t * c->columns, *v = row + 2 * s->key_heads * dk + h * dv;
    double q[64], k[64];
    double b = m->x[c->tokens * c->columns + t * c->heads + h];
    double a = m->x[c->tokens * (c->columns + c->heads) + t * c->heads + h];
    double beta = 1 / (1 + exp(-b)), keep;
    read_head(q, row + key_head * dk, dk, 1 / sqrt(dk));
    read_head(k, row + (s->key_heads + key_head) * dk, dk, 1);
    keep = exp(-exp((double)c->a_log[h]) * log1p(exp(a + (double)c->dt_bias[h])));
    for (int j = 0; j < dv; j++) {
        double read = 0;
        o[j] = 0;
        for (int i = 0; i < dk; i++) {
            state[i * dv + j] *= keep;
            read += state[i * dv + j] * k[i];
        }
        for (int i = 0; i < dk; i++) {
            state[i * dv + j] += k[i] * beta * (v[j] - read);
            o[j] += state[i * dv + j] * q[i];
        }
    }
}

static void forward64(const model64 *m)
{
    const delta_case *c = m->c;
    const tsr_delta_rule_shape *s = &c->args.shape;
    double state[64 * 64];
    memset(m->o, 0, (size_t)(c->tokens * c->heads * s->value_dim) * sizeof *m->o);
    for (int64_t h = 0; h < c->heads; h++)
        for (int32_t document = 0; document < s->documents; document++) {
            memset(state, 0, sizeof state);
            for (int64_t t = c->cu_seqlens[document]; t < c->cu_seqlens[document + 1]; t++)
                step64(m->o + (t * c->heads + h) * s->value_dim, state, m, t, h);
        }
}

static double loss(void *context)
{
    model64 *m = context;
    double total = 0;
    forward64(m);
    for (int64_t i = 0; i < m->c->tokens * m->c->heads * m->c->args.shape.value_dim; i++)
        total += m->o[i] * (double)m->c->d_o[i];
    return total;
}

static model64 make_model(const delta_case *c)
{
    model64 m = {c, new_doubles(NULL, c->tokens * (c->columns + 2 * c->heads)),
                 new_doubles(NULL, c->tokens * c->heads * c->args.shape.value_dim)};
    double *b = m.x + c->tokens * c->columns, *a = b + c->tokens * c->heads;
    for (int64_t i = 0; i < c->tokens * c->columns; i++)
        m.x[i] = (double)c->mixed[i];
    for (int64_t i = 0; i < c->tokens * c->heads; i++) {
        int64_t h = i % c->heads;
        b[i] = (double)(c->args.in.g_b ? c->g_b[h] * c->b[i] : c->b[i]);
        a[i] = (double)(c->args.in.g_a ? c->g_a[h] * c->a[i] : c->a[i]);
    }
    return m;
}

/* A step through a gradient that comes by every column and head. */
static int64_t step_of(int64_t count, int64_t columns)
{
    int64_t step = count / PROBES + 1;
    for (int64_t i = 2; i <= columns; i++)
        if (columns % i == 0 && step % i == 0)
            step++, i = 1;
    return step;
}

/* Elements [first, first + count) of the gradient, some of them. */
static double probe(const char *what, const delta_case *c, model64 *m, int64_t first, int64_t count)
{
    double most = 1e-3, worst = 0; /* of one token nothing depends on its decay */
    for (int64_t i = first; i < first + count; i++)
        most = fmax(most, fabs((double)c->out[i]));
    int64_t step = step_of(count, count / c->tokens);
    for (int64_t i = first; i < first + count; i += step) {
        double apart = fabs((double)c->out[i] - difference(loss, m, m->x, i)) / most;
        worst = fmax(worst, apart);
        if (!(apart <= F32_GRADIENT_TOLERANCE))
            fail_msg("%s[%lld] = %.9g, off by %g of the largest, %g", what, (long long)(i - first),
                     (double)c->out[i], apart, most);
    }
    return worst;
}

static const delta_shape shapes[] = {
    {{1}, 1, 0, 1, 1, 4, 4, 0, false},      {{5, 3}, 2, 2, 1, 2, 8, 5, 0, true},
    {{64, 65}, 2, 0, 1, 1, 4, 6, 0, false}, {{7, 0, 150}, 3, 3, 2, 3, 6, 4, 0, true},
    {{200}, 1, 0, 1, 2, 16, 24, -4, false}, {{130, 70}, 2, 0, 2, 1, 5, 7, 6, true},
};

static void matches_fp64_and_differences(void **state)
{
    (void)state;
    double worst = 0, worst_back = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        delta_case c;
        make_case(&c, &shapes[i]);
        model64 m = make_model(&c);
        int64_t outputs = c.tokens * c.heads * shapes[i].dv, gates = c.tokens * c.heads;
        int64_t mixed = c.tokens * c.columns;
        double most = 0, apart = 0;
        forward64(&m);
        run_on_pools(run_forward, &c, c.out, outputs);
        expect_close("o", c.out, m.o, outputs, F32_TOLERANCE);
        for (int64_t j = 0; j < outputs; j++) {
            most = fmax(most, fabs(m.o[j]));
            apart = fmax(apart, fabs((double)c.out[j] - m.o[j]));
        }
        worst = fmax(worst, apart / most);
        run_on_pools(run_backward, &c, c.out, mixed + 2 * gates);
        worst_back = fmax(worst_back, probe("d_mixed", &c, &m, 0, mixed));
        worst_back = fmax(worst_back, probe("d_b", &c, &m, mixed, gates));
        worst_back = fmax(worst_back, probe("d_a", &c, &m, mixed + gates, gates));
        for (int64_t t = c.used; t < c.tokens; t++)
            for (int64_t j = 0; j < c.columns; j++)
                assert_true(c.out[t * c.columns + j] == 0);
        free(m.x), free(m.o);
        free_case(&c);
    }
    print_message("    off by %.2g of the largest output, %.2g of the largest gradient\n", worst,
                  worst_back);
}

/* What a document gives does not depend on the others, bit for bit. */
static void documents_are_alone(void **state)
{
    (void)state;
    const delta_shape both = {{70, 90}, 2, 0, 1, 2, 8, 8, 0, false};
    delta_case c;
    make_case(&c, &both);
    int64_t width = c.heads * 8, skipped = 70;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_OK);
    float *together = new_floats(90 * width);
    memcpy(together, c.out + skipped * width, (size_t)(90 * width) * sizeof *together);
    c.args.in.mixed = c.mixed + skipped * c.columns;
    c.args.in.a = c.a + skipped * c.heads;
    c.args.in.b = c.b + skipped * c.heads;
    c.cu_seqlens[1] = 90;
    c.args.shape.documents = 1;
    c.args.shape.tokens = 90;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_OK);
    assert_memory_equal(together, c.out, (size_t)(90 * width) * sizeof *together);
    free(together);
    free_case(&c);
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    delta_case c;
    make_case(&c, &shapes[1]);
    c.args.shape.key_dim = TSR_DELTA_MOST + 1;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINVAL);
    c.args.shape.key_dim = 8;
    c.args.shape.value_heads = 3;
    c.args.shape.key_heads = 2;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINVAL);
    c.args.shape.value_heads = 2;
    c.args.shape.key_heads = 1;
    c.args.shape.workspace_bytes--;
    assert_int_equal(run_backward(&c, test_pool(0)), TSR_EINVAL);
    c.cu_seqlens[1] = 9;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINTERNAL);
    free_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches_fp64_and_differences),
                                       cmocka_unit_test(documents_are_alone),
                                       cmocka_unit_test(wrong_arguments_are_refused)};
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
