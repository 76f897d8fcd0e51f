/*
 * test_latent_qkv.c: q, k and v of latent attention against fp64, written out column by column, and the gradients against
 * central differences; both ways of pairing, with and without magnitude and bias, q in place.
 */
#include "kernels/latent_qkv.h"

#include "kernels/kernel_test.h"
#include "kernels/rope_tables.h"

#define F32_TOLERANCE          1e-6 /* of the largest element */
#define F32_GRADIENT_TOLERANCE 4e-6
#define POSITIONS              64

typedef struct {
    int64_t tokens;
    int32_t heads, nope, rope, v;
    bool neighbours, vectors, in_place;
} latent_case;

static const latent_case cases[] = {
    {1, 1, 0, 2, 1, false, false, false},    {3, 2, 4, 6, 5, false, true, false},
    {5, 3, 16, 8, 16, true, true, true},     {300, 4, 16, 8, 16, true, false, false},
    {70, 2, 128, 64, 128, true, true, true}, {9, 1, 3, 4, 2, true, true, false},
    {0, 2, 4, 4, 4, false, false, false},
};

typedef struct {
    const latent_case *c;
    int32_t positions[512];
    float *cosine, *sine, *q_z, *kv_z, *shared, *q_g, *kv_g, *q_bias, *out, *d;
    uint16_t *kv_bias;
    float *kv_bias_wide;
    int64_t q, kv, k, v, r; /* elements */
    tsr_latent_shape shape;
} fixture;

static void make_fixture(fixture *f, const latent_case *c)
{
    const tsr_rope_scaling scaling = {.type = TSR_ROPE_DEFAULT, .theta = 100};
    int64_t rows = c->tokens * c->heads, pairs = c->rope / 2;
    *f = (fixture){.c = c,
                   .q = rows * (c->nope + c->rope),
                   .k = rows * (c->nope + c->rope),
                   .kv = rows * (c->nope + c->v),
                   .v = rows * c->v,
                   .r = c->tokens * c->rope};
    for (int64_t t = 0; t < c->tokens; t++)
        f->positions[t] = (int32_t)(t * 7 % POSITIONS);
    f->cosine = new_floats(POSITIONS * pairs);
    f->sine = new_floats(POSITIONS * pairs);
    assert_int_equal(
        tsr_rope_tables(f->cosine, f->sine, POSITIONS, c->rope, &scaling, TSR_ROPE_TABLE), TSR_OK);
    f->q_z = new_random(f->q, 1, 1);
    f->kv_z = new_random(f->kv, 2, 1);
    f->shared = new_random(f->r, 3, 1);
    f->q_g = new_gain(c->heads * (c->nope + c->rope), 4);
    f->kv_g = new_gain(c->heads * (c->nope + c->v), 5);
    f->q_bias = new_random(c->heads * (c->nope + c->rope), 6, 1);
    f->kv_bias_wide = new_random(c->heads * (c->nope + c->v), 7, 1);
    f->kv_bias = new_bf16(f->kv_bias_wide, c->heads * (c->nope + c->v));
    f->out = new_floats(f->q + f->k + f->v);
    f->d = new_random(f->q + f->k + f->v, 8, 1);
    f->shape = (tsr_latent_shape){.cosine = f->cosine,
                                  .sine = f->sine,
                                  .positions = f->positions,
                                  .tokens = c->tokens,
                                  .heads = c->heads,
                                  .nope_dim = c->nope,
                                  .rope_dim = c->rope,
                                  .v_dim = c->v,
                                  .position_count = POSITIONS,
                                  .neighbours = c->neighbours};
}

static void free_fixture(fixture *f)
{
    free(f->cosine), free(f->sine), free(f->q_z), free(f->kv_z), free(f->shared), free(f->q_g);
    free(f->kv_g), free(f->q_bias), free(f->kv_bias), free(f->kv_bias_wide), free(f->out);
    free(f->d);
}

static tsr_status run_forward(void *context, tsr_pool *pool)
{
    fixture *f = context;
    tsr_latent_qkv_args args = {.q_z = f->q_z,
                                .kv_z = f->kv_z,
                                .shared = f->shared,
                                .q = f->out,
                                .k = f->out + f->q,
                                .v = f->out + f->q + f->k,
                                .shape = f->shape};
    if (f->c->vectors) {
        args.q_g = f->q_g, args.kv_g = f->kv_g;
        args.q_bias = (tsr_frozen){f->q_bias, TSR_F32};
        args.kv_bias = (tsr_frozen){f->kv_bias, TSR_BF16};
    }
    if (f->c->in_place && f->q) {
        memcpy(f->out, f->q_z, (size_t)f->q * sizeof *f->out);
        args.q_z = f->out;
    }
    return tsr_latent_qkv_ref(&args, pool);
}

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    fixture *f = context; /* out: q_dy, kv_dy, d_shared */
    tsr_latent_qkv_backward_args args = {.dq = f->d,
                                         .dk = f->d + f->q,
                                         .dv = f->d + f->q + f->k,
                                         .q_dy = f->out,
                                         .kv_dy = f->out + f->q,
                                         .d_shared = f->out + f->q + f->kv,
                                         .shape = f->shape};
    if (f->c->in_place && f->q) {
        memcpy(f->out, f->d, (size_t)f->q * sizeof *f->out);
        args.dq = f->out;
    }
    return tsr_latent_qkv_backward_ref(&args, pool);
}

/* Column i of the R that turn. */
static double turned(const fixture *f, const double *y, int64_t t, int32_t i)
{
    int32_t rope = f->c->rope, half = rope / 2;
    int32_t pair = f->c->neighbours ? i / 2 : i % half;
    int32_t low = f->c->neighbours ? 2 * pair : pair,
            high = f->c->neighbours ? low + 1 : low + half;
    double angle = f->positions[t] * pow(100, -2.0 * pair / rope);
    return i == low ? y[low] * cos(angle) - y[high] * sin(angle)
                    : y[high] * cos(angle) + y[low] * sin(angle);
}

/* y: q's, kv's, then the shared part; out: q, k, v. */
static void forward64(const fixture *f, const double *y, double *out)
{
    const latent_case *c = f->c;
    int64_t wide = c->nope + c->rope, both = c->nope + c->v;
    for (int64_t row = 0; row < c->tokens * c->heads; row++) {
        int64_t t = row / c->heads;
        const double *q = y + row * wide, *kv = y + f->q + row * both;
        const double *shared = y + f->q + f->kv + t * c->rope;
        double *to = out + row * wide, *k = out + f->q + row * wide;
        for (int32_t i = 0; i < wide; i++) {
            to[i] = i < c->nope ? q[i] : turned(f, q + c->nope, t, i - c->nope);
            k[i] = i < c->nope ? kv[i] : turned(f, shared, t, i - c->nope);
        }
        memcpy(out + f->q + f->k + row * c->v, kv + c->nope, (size_t)c->v * sizeof *kv);
    }
}

static double *new_outputs(const fixture *f)
{
    const latent_case *c = f->c;
    int64_t wide = c->heads * (c->nope + c->rope), both = c->heads * (c->nope + c->v);
    double *y = new_doubles(NULL, f->q + f->kv + f->r);
    for (int64_t i = 0; i < f->q; i++)
        y[i] = c->vectors
                   ? (double)f->q_g[i % wide] * (double)f->q_z[i] + (double)f->q_bias[i % wide]
                   : (double)f->q_z[i];
    for (int64_t i = 0; i < f->kv; i++)
        y[f->q + i] = c->vectors ? (double)f->kv_g[i % both] * (double)f->kv_z[i] +
                                       (double)f->kv_bias_wide[i % both]
                                 : (double)f->kv_z[i];
    for (int64_t i = 0; i < f->r; i++)
        y[f->q + f->kv + i] = (double)f->shared[i];
    return y;
}

typedef struct {
    const fixture *f;
    double *y, *out;
} loss64;

static double loss(void *context)
{
    loss64 *l = context;
    double total = 0;
    forward64(l->f, l->y, l->out);
    for (int64_t i = 0; i < l->f->q + l->f->k + l->f->v; i++)
        total += l->out[i] * (double)l->f->d[i];
    return total;
}

static void matches_fp64_and_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static fixture f;
        make_fixture(&f, &cases[i]);
        loss64 l = {&f, new_outputs(&f), new_doubles(NULL, f.q + f.k + f.v)};
        int64_t inputs = f.q + f.kv + f.r;
        forward64(&f, l.y, l.out);
        run_on_pools(run_forward, &f, f.out, f.q + f.k + f.v);
        expect_close("q, k, v", f.out, l.out, f.q + f.k + f.v, F32_TOLERANCE);
        free(f.out);
        f.out = new_floats(inputs);
        run_on_pools(run_backward, &f, f.out, inputs);
        double most = 1;
        for (int64_t k = 0; k < inputs; k++)
            most = fmax(most, fabs((double)f.out[k]));
        for (int64_t probe = 0; probe < 60 && inputs; probe++) {
            int64_t at = (probe < 20   ? probe * 7919 % f.q
                          : probe < 40 ? f.q + probe * 7919 % f.kv
                                       : f.q + f.kv + probe * 7919 % f.r);
            double want = difference(loss, &l, l.y, at);
            if (!(fabs(want - (double)f.out[at]) <= F32_GRADIENT_TOLERANCE * most))
                fail_msg("case %zu: gradient %lld is %.9g, want %.9g", i, (long long)at,
                         (double)f.out[at], want);
        }
        free(l.y), free(l.out);
        free_fixture(&f);
    }
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    static fixture f;
    make_fixture(&f, &cases[1]);
    f.shape.rope_dim = 5;
    assert_int_equal(run_forward(&f, test_pool(0)), TSR_EINVAL);
    assert_int_equal(run_backward(&f, test_pool(0)), TSR_EINVAL);
    f.shape.rope_dim = 6;
    f.positions[2] = POSITIONS;
    assert_int_equal(run_forward(&f, test_pool(0)), TSR_EINTERNAL);
    assert_int_equal(run_backward(&f, test_pool(0)), TSR_EINTERNAL);
    f.shape.cosine = NULL;
    assert_int_equal(run_forward(&f, test_pool(0)), TSR_EINVAL);
    free_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches_fp64_and_differences),
                                       cmocka_unit_test(wrong_arguments_are_refused)};
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
