/*
 * test_attention.c: causal attention over packed documents, groups of heads, windows, capped scores and sinks against a
 * plain fp64 softmax; gradients against central differences and, for shapes of several tiles,
 * against the written-out fp64 gradient.
 */
#include "kernels/attention.h"

#include "kernels/kernel_test.h"

#define F32_TOLERANCE          2e-6 /* of the largest element */
#define F32_GRADIENT_TOLERANCE 5e-6
#define LEAST                  0.1 /* gradients that cancel to 0 keep the noise of terms near 1 */

typedef struct {
    int64_t tokens;
    int32_t documents, q_heads, kv_heads, dim, window;
    int32_t cu_seqlens[8];
    float scores; /* the size of q and k: extreme logits */
    float softcap, scale;
    int32_t v_dim; /* of a head of v and o; 0: dim */
    float sinks;   /* their size; 0: none */
} attention_case;

static const attention_case cases[] = {
    {1, 1, 1, 1, 1, 0, {0, 1}, 1},
    {0, 0, 2, 1, 4, 0, {0}, 1},
    {5, 0, 2, 1, 4, 0, {0}, 1}, /* padding only */
    {7, 3, 2, 1, 5, 0, {0, 2, 2, 6}, 1},
    {13, 2, 4, 2, 8, 3, {0, 6, 13}, 1},
    {9, 1, 3, 3, 4, 1, {0, 9}, 1},
    {300, 1, 2, 1, 16, 0, {0, 300}, 1},
    {431, 4, 4, 2, 16, 0, {0, 1, 130, 258, 425}, 1},
    {400, 1, 2, 2, 8, 130, {0, 390}, 1},
    {400, 2, 2, 1, 8, 20, {0, 129, 400}, 1},
    {150, 1, 2, 1, 16, 0, {0, 150}, 40},
    {13, 2, 4, 2, 8, 3, {0, 6, 13}, 1, 2},
    {9, 1, 3, 3, 4, 0, {0, 9}, 1, 1, 0.7f},
    {70, 3, 2, 1, 5, 0, {0, 2, 2, 63}, 1, 1},
    {300, 1, 4, 2, 64, 0, {0, 300}, 1, 50},
    {431, 4, 4, 1, 96, 40, {0, 1, 130, 258, 425}, 1, 3},
    {200, 2, 3, 1, 130, 33, {0, 65, 195}, 1, 5},
    {200, 2, 8, 4, 256, 0, {0, 130, 200}, 1, 50, 0.0625f},
    {150, 2, 4, 2, 512, 40, {0, 90, 150}, 1, 3},
    {150, 1, 2, 1, 64, 0, {0, 150}, 8, 30},
    {400, 2, 4, 2, 64, 30, {0, 129, 400}, 1, 0, 0.2f},
    {13, 2, 4, 2, 8, 3, {0, 6, 13}, 1, 0, 0, 5},
    {9, 1, 2, 2, 3, 0, {0, 9}, 1, 1, 0.7f, 6},
    {431, 4, 4, 4, 24, 0, {0, 1, 130, 258, 425}, 1, 0, 0, 16},
    {300, 2, 2, 1, 192, 40, {0, 129, 290}, 1, 0, 0.1f, 128},
    {200, 2, 4, 2, 32, 0, {0, 130, 200}, 1, 3, 0, 80},
    /* sinks: among the scores, far above and below them, with windows, groups, empty documents, a cap */
    {1, 1, 1, 1, 1, 0, {0, 1}, 1, 0, 0, 0, 2},
    {7, 3, 2, 1, 5, 0, {0, 2, 2, 6}, 1, 0, 0, 0, 1},
    {13, 2, 4, 2, 8, 3, {0, 6, 13}, 1, 0, 0, 0, 3},
    {9, 1, 3, 3, 4, 1, {0, 9}, 1, 2, 0.7f, 0, 2},
    {431, 4, 8, 2, 64, 128, {0, 1, 130, 258, 425}, 1, 0, 0, 0, 4},
    {400, 2, 4, 1, 16, 0, {0, 129, 400}, 1, 0, 0, 0, 30},
    {150, 1, 2, 1, 16, 0, {0, 150}, 40, 0, 0, 0, 40},
};

static int64_t values_of(const attention_case *c)
{
    return c->v_dim ? c->v_dim : c->dim;
}

typedef struct {
    const attention_case *shape;
    double *q, *k, *v, *o, *lse;
    double *sinks; /* [q_heads], or NULL */
} attention64;

static bool visible(const attention_case *c, int64_t i, int64_t j)
{
    return j <= i && (c->window == 0 || i - j < c->window);
}

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

static double scale_of(const attention_case *c)
{
    return c->scale > 0 ? (double)c->scale : 1 / sqrt((double)c->dim);
}

/* One query of one head, all in fp64. p holds the weights of the document's tokens; slope, unless NULL, how
 * much of a score's change comes through its cap. */
static void row64(const attention64 *a, int64_t start, int64_t i, int64_t h, double *p,
                  double *slope)
{
    const attention_case *c = a->shape;
    int64_t kv = h / (c->q_heads / c->kv_heads), dim = c->dim, wide = values_of(c);
    const double *q = a->q + ((start + i) * c->q_heads + h) * dim;
    double max = -INFINITY, sum = 0, *o = a->o + ((start + i) * c->q_heads + h) * wide;
    for (int64_t j = 0; j <= i; j++) {
        p[j] = dot(q, a->k + ((start + j) * c->kv_heads + kv) * dim, dim) * scale_of(c);
        double share = c->softcap > 0 ? tanh(p[j] / (double)c->softcap) : 0;
        if (c->softcap > 0)
            p[j] = (double)c->softcap * share;
        if (slope)
            slope[j] = 1 - share * share;
        p[j] = visible(c, i, j) ? p[j] : -INFINITY;
        max = p[j] > max ? p[j] : max;
    }
    if (a->sinks) {
        max = a->sinks[h] > max ? a->sinks[h] : max;
        sum = exp(a->sinks[h] - max);
    }
    for (int64_t j = 0; j <= i; j++)
        sum += p[j] = exp(p[j] - max);
    for (int64_t x = 0; x < wide; x++)
        o[x] = 0;
    for (int64_t j = 0; j <= i; j++) {
        p[j] /= sum;
        for (int64_t x = 0; x < wide; x++)
            o[x] += p[j] * a->v[((start + j) * c->kv_heads + kv) * wide + x];
    }
    a->lse[h * c->tokens + start + i] = max + log(sum);
}

static void forward64(const attention64 *a)
{
    const attention_case *c = a->shape;
    double *p = new_doubles(NULL, c->tokens);
    for (int32_t n = 0; n < c->documents; n++)
        for (int64_t i = 0; i < c->cu_seqlens[n + 1] - c->cu_seqlens[n]; i++)
            for (int64_t h = 0; h < c->q_heads; h++)
                row64(a, c->cu_seqlens[n], i, h, p, NULL);
    free(p);
}

/* The gradient written out: dS = slope P (dP - <P, dP>) scale. */
static void backward64(const attention64 *a, const double *d_o, double *dq, double *dk, double *dv)
{
    const attention_case *c = a->shape;
    int64_t dim = c->dim, wide = values_of(c);
    double *p = new_doubles(NULL, c->tokens), *dp = new_doubles(NULL, c->tokens);
    double *slope = new_doubles(NULL, c->tokens);
    for (int32_t n = 0; n < c->documents; n++)
        for (int64_t i = 0; i < c->cu_seqlens[n + 1] - c->cu_seqlens[n]; i++)
            for (int64_t h = 0; h < c->q_heads; h++) {
                int64_t start = c->cu_seqlens[n], kv = h / (c->q_heads / c->kv_heads);
                int64_t row = (start + i) * c->q_heads + h, at = row * dim, out = row * wide;
                row64(a, start, i, h, p, slope);
                double mean = 0;
                for (int64_t j = 0; j <= i; j++) {
                    int64_t value = ((start + j) * c->kv_heads + kv) * wide;
                    dp[j] = dot(d_o + out, a->v + value, wide);
                    mean += p[j] * dp[j];
                }
                for (int64_t j = 0; j <= i; j++) {
                    int64_t key = (start + j) * c->kv_heads + kv, value = key * wide;
                    double ds = slope[j] * p[j] * (dp[j] - mean) * scale_of(c);
                    key *= dim;
                    for (int64_t x = 0; x < wide; x++)
                        dv[value + x] += p[j] * d_o[out + x];
                    for (int64_t x = 0; x < dim; x++) {
                        dq[at + x] += ds * a->k[key + x];
                        dk[key + x] += ds * a->q[at + x];
                    }
                }
            }
    free(p), free(dp), free(slope);
}

typedef struct {
    tsr_attention_args forward;
    tsr_attention_backward_args backward;
} attention_run;

static tsr_status run_forward(void *context, tsr_pool *pool)
{
    return tsr_attention_ref(&((attention_run *)context)->forward, pool);
}

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    return tsr_attention_backward_ref(&((attention_run *)context)->backward, pool);
}

typedef struct {
    const attention_case *c;
    int64_t q_count, k_count, v_count, o_count, lse_count;
    float *q, *k, *v, *d_o, *out, *gradient, *workspace, *sinks;
    attention_run run;
    attention64 exact;
} fixture;

static void make_fixture(fixture *f, const attention_case *c)
{
    *f = (fixture){.c = c,
                   .q_count = c->tokens * c->q_heads * c->dim,
                   .k_count = c->tokens * c->kv_heads * c->dim,
                   .v_count = c->tokens * c->kv_heads * values_of(c),
                   .o_count = c->tokens * c->q_heads * values_of(c),
                   .lse_count = c->tokens * c->q_heads};
    f->q = new_random(f->q_count, 1, 2 * c->scores);
    f->k = new_random(f->k_count, 2, 2 * c->scores);
    f->v = new_random(f->v_count, 3, 1);
    f->d_o = new_random(f->o_count, 4, 1);
    f->sinks = c->sinks > 0 ? new_random(c->q_heads, 5, 2 * c->sinks) : NULL;
    f->out = new_floats(f->o_count + f->lse_count);
    f->gradient = new_floats(f->q_count + f->k_count + f->v_count);
    uint64_t bytes = tsr_attention_workspace_bytes(
        &(tsr_attention_bounds){.tokens = c->tokens, .q_heads = c->q_heads});
    f->workspace = malloc(bytes + 1);
    tsr_attention_shape shape = {.cu_seqlens = c->cu_seqlens,
                                 .workspace = f->workspace,
                                 .workspace_bytes = bytes,
                                 .tokens = c->tokens,
                                 .documents = c->documents,
                                 .q_heads = c->q_heads,
                                 .kv_heads = c->kv_heads,
                                 .head_dim = c->dim,
                                 .v_dim = c->v_dim,
                                 .window = c->window,
                                 .scale = c->scale,
                                 .sinks = {f->sinks, TSR_F32},
                                 .softcap = c->softcap};
    f->run.forward = (tsr_attention_args){f->q, f->k, f->v, f->out, f->out + f->o_count, shape};
    f->run.backward = (tsr_attention_backward_args){.q = f->q,
                                                    .k = f->k,
                                                    .v = f->v,
                                                    .o = f->out,
                                                    .d_o = f->d_o,
                                                    .lse = f->out + f->o_count,
                                                    .dq = f->gradient,
                                                    .dk = f->gradient + f->q_count,
                                                    .dv = f->gradient + f->q_count + f->k_count,
                                                    .shape = shape};
    f->exact = (attention64){c,
                             new_doubles(f->q, f->q_count),
                             new_doubles(f->k, f->k_count),
                             new_doubles(f->v, f->v_count),
                             new_doubles(NULL, f->o_count),
                             new_doubles(NULL, f->lse_count),
                             f->sinks ? new_doubles(f->sinks, c->q_heads) : NULL};
}

static void free_fixture(fixture *f)
{
    free(f->q), free(f->k), free(f->v), free(f->d_o), free(f->out), free(f->gradient);
    free(f->workspace), free(f->exact.q), free(f->exact.k), free(f->exact.v), free(f->exact.o);
    free(f->exact.lse), free(f->exact.sinks), free(f->sinks);
}

static void forward_and_backward_match_fp64(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        make_fixture(&f, &cases[i]);
        run_on_pools(run_forward, &f.run, f.out, f.o_count + f.lse_count);
        forward64(&f.exact);
        /* The scores themselves are rounded: 40 times larger ones (1600 in the dot) lose more. */
        double loose = cases[i].scores > 1 ? 200 : 1;
        /* A capped score is a difference of numbers as large as the cap: off by 50 2^-24 = 3e-6 at most, and a mean of
         * values of at most 1 by twice that. How much of it is met depends on the processor's own kernels. */
        if (cases[i].softcap == 50)
            loose = 3;
        expect_close("o", f.out, f.exact.o, f.o_count, F32_TOLERANCE * loose);
        expect_close("lse", f.out + f.o_count, f.exact.lse, f.lse_count, F32_TOLERANCE);
        run_on_pools(run_backward, &f.run, f.gradient, f.q_count + f.k_count + f.v_count);
        double *d_o = new_doubles(f.d_o, f.o_count);
        double *want = new_doubles(NULL, f.q_count + f.k_count + f.v_count);
        double *dk = want + f.q_count, *dv = dk + f.k_count;
        backward64(&f.exact, d_o, want, dk, dv);
        expect_near("dq", f.gradient, want, f.q_count, F32_GRADIENT_TOLERANCE * loose, LEAST);
        expect_near("dk", f.gradient + f.q_count, dk, f.k_count, F32_GRADIENT_TOLERANCE * loose,
                    LEAST);
        expect_close("dv", f.gradient + f.q_count + f.k_count, dv, f.v_count,
                     F32_GRADIENT_TOLERANCE * loose);
        free(d_o), free(want);
        free_fixture(&f);
    }
}

typedef struct {
    attention64 *exact;
    const float *d_o;
    int64_t count;
} loss64;

static double loss(void *context)
{
    loss64 *l = context;
    forward64(l->exact);
    double total = 0;
    for (int64_t i = 0; i < l->count; i++)
        total += l->exact->o[i] * (double)l->d_o[i];
    return total;
}

static void gradients_match_differences(void **state)
{
    (void)state;
    static const int small[] = {3, 4, 5, 11, 12, 21, 22, 26, 27, 28, 29};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        fixture f;
        make_fixture(&f, &cases[small[i]]);
        assert_int_equal(run_forward(&f.run, test_pool(0)), TSR_OK);
        assert_int_equal(run_backward(&f.run, test_pool(1)), TSR_OK);
        loss64 l = {&f.exact, f.d_o, f.o_count};
        double *x[3] = {f.exact.q, f.exact.k, f.exact.v};
        int64_t at[3] = {0, f.q_count, f.q_count + f.k_count};
        int64_t counts[3] = {f.q_count, f.k_count, f.v_count};
        for (int j = 0; j < 3; j++) {
            int64_t count = counts[j];
            double *want = new_gradient(loss, &l, x[j], count);
            expect_near("gradient", f.gradient + at[j], want, count, F32_GRADIENT_TOLERANCE, LEAST);
            free(want);
        }
        free_fixture(&f);
    }
}

/* Keys that are NaN, a whole tile of them too, make every row that sees them NaN, and no other. */
static void nan_is_not_lost(void **state)
{
    (void)state;
    static const attention_case c = {300, 1, 2, 1, 16, 0, {0, 300}, 1};
    for (int turn = 0; turn < 10; turn++) {
        int64_t first = turn % 2 ? 20 : 0, keys = 1 + 16 * (turn / 2);
        fixture f;
        make_fixture(&f, &c);
        for (int64_t i = first * c.dim; i < (first + keys) * c.dim; i++)
            f.k[i] = NAN;
        assert_int_equal(run_forward(&f.run, test_pool(0)), TSR_OK);
        for (int64_t i = 0; i < c.tokens; i++)
            assert_int_equal(isnan(f.out[i * c.q_heads * c.dim]) != 0, i >= first);
        free_fixture(&f);
    }
}

/* Of bf16 as of fp32; -inf is none; and a NaN is not lost. */
static void sinks_are_read_in_both_dtypes(void **state)
{
    (void)state;
    static const attention_case c = {300, 2, 4, 2, 16, 30, {0, 130, 300}, 1, 0, 0, 0, 2};
    fixture f;
    make_fixture(&f, &c);
    int64_t count = f.q_count + f.lse_count;
    float *first = malloc((size_t)count * sizeof *first);
    uint16_t bits[4];
    for (int h = 0; h < 4; h++) {
        bits[h] = tsr_f32_to_bf16(f.sinks[h]);
        f.sinks[h] = tsr_bf16_to_f32(bits[h]);
    }
    assert_int_equal(run_forward(&f.run, test_pool(0)), TSR_OK);
    memcpy(first, f.out, (size_t)count * sizeof *first);
    f.run.forward.shape.sinks = (tsr_frozen){bits, TSR_BF16};
    assert_int_equal(run_forward(&f.run, test_pool(0)), TSR_OK);
    assert_memory_equal(first, f.out, (size_t)count * sizeof *first);
    for (int h = 0; h < 4; h++)
        f.sinks[h] = h == 3 ? NAN : -INFINITY;
    f.run.forward.shape.sinks = (tsr_frozen){f.sinks, TSR_F32};
    assert_int_equal(run_forward(&f.run, test_pool(0)), TSR_OK);
    memcpy(first, f.out, (size_t)count * sizeof *first);
    f.run.forward.shape.sinks = (tsr_frozen){0};
    assert_int_equal(run_forward(&f.run, test_pool(0)), TSR_OK);
    for (int64_t i = 0; i < c.tokens; i++) {
        assert_memory_equal(first + i * 64, f.out + i * 64, 48 * sizeof *first);
        assert_true(isnan(first[i * 64 + 48]));
    }
    free(first);
    free_fixture(&f);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f, &cases[3]);
    f.run.forward.shape.workspace_bytes = 0;
    assert_int_equal(run_forward(&f.run, test_pool(0)), TSR_EINVAL);
    f.run.backward.shape.kv_heads = 3;
    assert_int_equal(run_backward(&f.run, test_pool(0)), TSR_EINVAL);
    free_fixture(&f);
    make_fixture(&f, &cases[3]);
    int32_t falling[4] = {0, 4, 3, 7}, beyond[4] = {0, 2, 3, 8};
    f.run.forward.shape.sinks = (tsr_frozen){f.q, TSR_F16};
    assert_int_equal(run_forward(&f.run, test_pool(0)), TSR_EINVAL);
    f.run.forward.shape.sinks = (tsr_frozen){0};
    f.run.forward.shape.cu_seqlens = falling;
    assert_int_equal(run_forward(&f.run, test_pool(0)), TSR_EINTERNAL);
    f.run.backward.shape.cu_seqlens = beyond;
    assert_int_equal(run_backward(&f.run, test_pool(0)), TSR_EINTERNAL);
    free_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_and_backward_match_fp64),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(nan_is_not_lost),
        cmocka_unit_test(sinks_are_read_in_both_dtypes),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
