/*
 * test_route_backward.c: the router's gradient against finite differences of its formulas in fp64.
 */
#include "route_case.h"

#include "base/status.h"

#define TOLERANCE 1e-5 /* of the largest; p (1 - p) is a difference of fp32 numbers */

/* L of one token: dp of its weights and aux of the softmax over all. */
typedef struct {
    const route_data *data;
    const double *x, *s; /* x NULL: by the logits s */
    const int32_t *id;
    const float *dp, *aux;
} token_loss;

static double loss_of(void *context)
{
    const token_loss *l = context;
    const tsr_routing *how = &l->data->args.how;
    double s[TSR_ROUTE_MOST_EXPERTS], a[TSR_ROUTE_MOST_EXPERTS], p[TSR_ROUTE_MOST_CHOSEN], loss = 0;
    if (l->x)
        route_logits(s, l->data, l->x);
    else
        memcpy(s, l->s, (size_t)how->experts * sizeof *s);
    route_weights(p, how, s, l->id);
    for (int64_t j = 0; j < how->k; j++)
        loss += (double)l->dp[j] * p[j];
    if (l->aux)
        route_softmax(a, s, how->experts);
    for (int64_t e = 0; l->aux && e < how->experts; e++)
        loss += (double)l->aux[e] * a[e];
    return loss;
}

typedef struct {
    route_data data;
    tsr_route_backward_args args;
    float *dp, *aux, *old;
} backward_data;

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    backward_data *b = context;
    if (b->args.add)
        memcpy(b->args.dx, b->old, (size_t)(b->args.tokens * b->args.h) * sizeof(float));
    return tsr_route_backward_ref(&b->args, pool);
}

static backward_data new_backward(const route_case *c, uint64_t seed, bool aux, bool add)
{
    backward_data b = {.data = new_route(c, seed)};
    RUN_OK(tsr_route_ref(&b.data.args, test_pool(1)));
    b.dp = new_random(c->tokens * c->how.k, seed + 5, 1);
    b.aux = new_random(c->how.experts, seed + 6, 1);
    b.old = new_random(c->tokens * c->h, seed + 7, 1);
    for (int64_t s = 0; s < c->tokens * c->how.k; s += 7)
        b.dp[s] = 0; /* left out */
    b.args = (tsr_route_backward_args){.dp = b.dp,
                                       .logits = b.data.args.logits,
                                       .id = b.data.args.id,
                                       .aux = aux ? b.aux : NULL,
                                       .weight = b.data.args.weight,
                                       .how = b.data.args.how,
                                       .dlogits = new_floats(c->tokens * c->how.experts),
                                       .dx = new_floats(c->tokens * c->h),
                                       .tokens = c->tokens,
                                       .h = c->h,
                                       .add = add};
    return b;
}

static void free_backward(backward_data *b)
{
    free(b->dp), free(b->aux), free(b->old), free(b->args.dlogits), free(b->args.dx);
    free_route(&b->data);
}

/* dlogits by differences, and from these dx; of the first tokens dx by differences as well. */
static void expect_gradient(const backward_data *b)
{
    const tsr_route_backward_args *a = &b->args;
    int64_t experts = a->how.experts, h = a->h;
    double *ds = new_doubles(NULL, a->tokens * experts), *dx = new_doubles(NULL, a->tokens * h);
    double *s = new_doubles(b->data.args.logits, a->tokens * experts);
    double *x = new_doubles(b->data.x, a->tokens * h);
    for (int64_t t = 0; t < a->tokens; t++) {
        token_loss l = {.data = &b->data,
                        .s = s + t * experts,
                        .id = a->id + t * a->how.k,
                        .dp = a->dp + t * a->how.k,
                        .aux = a->aux};
        for (int64_t e = 0; e < experts; e++)
            ds[t * experts + e] = difference(loss_of, &l, s + t * experts, e);
        l.x = x + t * h;
        for (int64_t i = 0; i < h; i++) {
            for (int64_t e = 0; e < experts; e++)
                dx[t * h + i] += ds[t * experts + e] * (double)b->data.weight[e * h + i];
            if (t < 3 && experts < 100) {
                double whole = difference(loss_of, &l, x + t * h, i);
                assert_true(fabs(whole - dx[t * h + i]) < 1e-6);
            }
            dx[t * h + i] += a->add ? (double)b->old[t * h + i] : 0;
        }
    }
    expect_near("dlogits", a->dlogits, ds, a->tokens * experts, TOLERANCE, 1e-2);
    expect_near("dx", a->dx, dx, a->tokens * h, TOLERANCE, 1e-2);
    free(ds), free(dx), free(s), free(x);
}

static void the_gradient_is_that_of_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3 * ROUTE_CASES; i++) {
        const route_case *c = &route_cases[i / 3];
        backward_data b = new_backward(c, 20 * i, i % 3 != 0, i % 3 == 2);
        run_on_pools(run_backward, &b, b.args.dlogits, c->tokens * c->how.experts);
        run_on_pools(run_backward, &b, b.args.dx, c->tokens * c->h);
        expect_gradient(&b);
        free_backward(&b);
    }
}

static void dlogits_may_be_the_logits(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROUTE_CASES; i++) {
        const route_case *c = &route_cases[i];
        size_t bytes = (size_t)(c->tokens * c->how.experts) * sizeof(float);
        backward_data b = new_backward(c, i, i % 2, false);
        RUN_OK(tsr_route_backward_ref(&b.args, test_pool(0)));
        float *apart = b.args.dlogits, *dx = new_floats(c->tokens * c->h);
        memcpy(dx, b.args.dx, (size_t)(c->tokens * c->h) * sizeof(float));
        b.args.dlogits = b.data.args.logits;
        RUN_OK(tsr_route_backward_ref(&b.args, test_pool(2)));
        assert_memory_equal(b.args.dlogits, apart, bytes);
        assert_memory_equal(b.args.dx, dx, (size_t)(c->tokens * c->h) * sizeof(float));
        b.args.dlogits = apart;
        free(dx);
        free_backward(&b);
    }
}

/* A weight that is 1 has no gradient, and what is beyond exp's range none that is no number. */
static void large_logits_have_a_gradient(void **state)
{
    (void)state;
    float logits[3] = {-3e4f, 2e4f, 1e4f}, w[3] = {1, 1, 1}, dp[2] = {1, -1}, ds[3], dx;
    const int32_t id[2] = {1, 2};
    for (int normalise = 0; normalise < 2; normalise++)
        for (int scoring = TSR_ROUTE_SOFTMAX; scoring <= TSR_ROUTE_SIGMOID; scoring++) {
            tsr_route_backward_args args = {.dp = dp,
                                            .logits = logits,
                                            .id = id,
                                            .weight = {w, TSR_F32},
                                            .how = {.experts = 3,
                                                    .k = 2,
                                                    .scoring = (tsr_route_scoring)scoring,
                                                    .normalise = normalise},
                                            .dlogits = ds,
                                            .dx = &dx,
                                            .tokens = 1,
                                            .h = 1};
            RUN_OK(tsr_route_backward_ref(&args, test_pool(0)));
            assert_true(ds[0] == 0 && ds[1] == 0 && ds[2] == 0 && dx == 0);
        }
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float f[4];
    int32_t id[4];
    const tsr_route_backward_args good = {.dp = f,
                                          .logits = f,
                                          .id = id,
                                          .weight = {f, TSR_BF16},
                                          .how = {.experts = 4, .k = 2},
                                          .dlogits = f,
                                          .dx = f,
                                          .tokens = 1,
                                          .h = 1};
    assert_int_equal(tsr_route_backward_check(&good), TSR_OK);
    tsr_route_backward_args bad = good;
    bad.how.k = 5;
    assert_int_equal(tsr_route_backward_check(&bad), TSR_EINVAL);
    bad = good, bad.dlogits = NULL;
    assert_int_equal(tsr_route_backward_check(&bad), TSR_EINVAL);
    bad = good, bad.h = 0;
    assert_int_equal(tsr_route_backward_check(&bad), TSR_EINVAL);
    bad = good, bad.weight.dtype = TSR_F16;
    assert_int_equal(tsr_route_backward_check(&bad), TSR_EINVAL);
    bad = good, bad.dtype = TSR_BF16;
    assert_int_equal(tsr_route_backward_ref(&bad, test_pool(0)), TSR_EUNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gradient_is_that_of_differences),
        cmocka_unit_test(dlogits_may_be_the_logits),
        cmocka_unit_test(large_logits_have_a_gradient),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
