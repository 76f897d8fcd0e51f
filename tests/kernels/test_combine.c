/*
 * test_combine.c: rows of tokens sorted by expert, the sum over a token's experts and its backward, and
 * that of their gated unit, against their definitions written here a second time, in fp64.
 */
#include "route_case.h"

#include "base/status.h"
#include "kernels/combine.h"
#include "kernels/route_sort.h"
#include "kernels/routed_glu.h"
#include "kernels/swiglu.h"

#include <math.h>

#define SUM_TOLERANCE 1e-6 /* of the largest: fp32 sums of k, and in 16 lanes */

static const int64_t shapes[][3] = {/* tokens, k, experts */
                                    {0, 2, 8},  {1, 1, 1},  {1, 8, 128},  {100, 2, 8},
                                    {50, 4, 4}, {33, 3, 5}, {700, 8, 64}, {40, 32, 1024}};
#define SHAPES (int)(sizeof shapes / sizeof *shapes)

/* ---- sorting ---- */

/* Expert by expert, slot by slot. */
static void expect_sorted(const tsr_routes *r, int64_t slots, int64_t experts, int64_t capacity)
{
    int32_t row = 0;
    assert_int_equal(r->offset[0], 0);
    for (int64_t e = 0; e < experts; e++) {
        int64_t count = 0;
        for (int64_t s = 0; s < slots; s++) {
            if (r->id[s] != e)
                continue;
            if (capacity && count == capacity) {
                assert_int_equal(r->row[s], -1);
                continue;
            }
            assert_int_equal(r->row[s], row);
            assert_int_equal(r->slot[row], s);
            row++, count++;
        }
        assert_int_equal(r->offset[e + 1], row);
    }
    for (int64_t i = row; i < slots; i++)
        assert_int_equal(r->slot[i], -1);
}

static void rows_are_sorted_by_expert_then_slot(void **state)
{
    (void)state;
    const int64_t capacities[] = {0, 1, 7, 1000000};
    for (int i = 0; i < SHAPES * LOADS * 4; i++) {
        int64_t tokens = shapes[i / 12][0], k = shapes[i / 12][1], experts = shapes[i / 12][2];
        tsr_routes r = new_routes(tokens, k, experts, (route_load)(i / 4 % LOADS));
        tsr_route_sort_args args = {.routes = r,
                                    .tokens = tokens,
                                    .k = k,
                                    .experts = experts,
                                    .capacity = capacities[i % 4]};
        RUN_OK(tsr_route_sort_ref(&args, test_pool(i % POOL_COUNT)));
        expect_sorted(&r, tokens * k, experts, args.capacity);
        free(r.id);
    }
}

static void bad_routes_are_refused(void **state)
{
    (void)state;
    tsr_routes r = new_routes(4, 2, 8, LOAD_EVEN);
    const tsr_route_sort_args good = {.routes = r, .tokens = 4, .k = 2, .experts = 8};
    RUN_OK(tsr_route_sort_ref(&good, test_pool(0)));
    tsr_route_sort_args bad = good;
    bad.k = 9;
    assert_int_equal(tsr_route_sort_check(&bad), TSR_EINVAL);
    bad = good, bad.capacity = -1;
    assert_int_equal(tsr_route_sort_check(&bad), TSR_EINVAL);
    bad = good, bad.tokens = 1ll << 30;
    assert_int_equal(tsr_route_sort_check(&bad), TSR_EINVAL);
    bad = good, bad.routes.parts = NULL;
    assert_int_equal(tsr_route_sort_check(&bad), TSR_EINVAL);
    r.id[3] = 8;
    assert_int_equal(tsr_route_sort_ref(&good, test_pool(0)), TSR_EINTERNAL);
    assert_non_null(strstr(tsr_last_error(), "id[3] = 8"));
    free(r.id);
}

/* ---- the sum and its backward ---- */

typedef struct {
    tsr_routes routes;
    float *z, *p, *old, *dy, *bias;
    uint16_t *bias16;
    tsr_combine_args forward;
    tsr_combine_backward_args backward;
} combine_data;

/* i chooses the variant: with p or without, added or written, a bias in fp32 or bf16. */
static combine_data new_combine(int i, int64_t capacity)
{
    int64_t tokens = shapes[i][0], k = shapes[i][1], experts = shapes[i][2], slots = tokens * k;
    int64_t h = i % 3 ? 70 : 129;
    combine_data d = {.routes = new_routes(tokens, k, experts, LOAD_EVEN)};
    tsr_route_sort_args sort = {
        .routes = d.routes, .tokens = tokens, .k = k, .experts = experts, .capacity = capacity};
    RUN_OK(tsr_route_sort_ref(&sort, test_pool(0)));
    d.z = new_random(slots * h, 1, 1), d.p = new_random(slots, 2, 1);
    d.old = new_random(tokens * h, 3, 1), d.dy = new_random(tokens * h, 4, 1);
    d.bias = new_random(experts * h, 7, 1), d.bias16 = new_bf16(d.bias, experts * h);
    d.forward = (tsr_combine_args){.y = new_floats(tokens * h),
                                   .z = d.z,
                                   .p = i % 4 == 3 ? NULL : d.p,
                                   .row = d.routes.row,
                                   .tokens = tokens,
                                   .k = k,
                                   .h = h,
                                   .add = i % 2};
    d.backward = (tsr_combine_backward_args){.dp = new_floats(slots),
                                             .id = d.routes.id,
                                             .row = d.routes.row,
                                             .bias = i % 2 ? (tsr_frozen){d.bias, TSR_F32}
                                                           : (tsr_frozen){d.bias16, TSR_BF16},
                                             .dy = d.dy,
                                             .tokens = tokens,
                                             .k = k,
                                             .h = h};
    return d;
}

static void free_combine(combine_data *d)
{
    free(d->routes.id), free(d->z), free(d->p), free(d->old), free(d->dy);
    free(d->bias), free(d->bias16), free(d->forward.y), free(d->backward.dp);
}

static tsr_status run_forward(void *context, tsr_pool *pool)
{
    combine_data *d = context;
    if (d->forward.add)
        memcpy(d->forward.y, d->old, (size_t)(d->forward.tokens * d->forward.h) * sizeof(float));
    return tsr_combine_ref(&d->forward, pool);
}

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    return tsr_combine_backward_ref(&((combine_data *)context)->backward, pool);
}

static void expect_sum(const combine_data *d)
{
    const tsr_combine_args *a = &d->forward;
    double *y = new_doubles(NULL, a->tokens * a->h);
    for (int64_t t = 0; t < a->tokens; t++)
        for (int64_t i = 0; i < a->h; i++) {
            double sum = a->add ? (double)d->old[t * a->h + i] : 0;
            for (int64_t s = t * a->k; s < (t + 1) * a->k; s++)
                if (a->row[s] >= 0)
                    sum += (a->p ? (double)a->p[s] : 1) * (double)d->z[a->row[s] * a->h + i];
            y[t * a->h + i] = sum;
        }
    expect_close("y", a->y, y, a->tokens * a->h, SUM_TOLERANCE);
    free(y);
}

static void expect_backward(const combine_data *d)
{
    const tsr_combine_backward_args *a = &d->backward;
    int64_t slots = a->tokens * a->k;
    double *dp = new_doubles(NULL, slots);
    for (int64_t s = 0; s < slots; s++)
        for (int64_t i = 0; i < a->h && a->row[s] >= 0; i++)
            dp[s] += (double)d->bias[a->id[s] * a->h + i] * (double)d->dy[s / a->k * a->h + i];
    expect_close("dp", a->dp, dp, slots, SUM_TOLERANCE);
    free(dp);
}

static void sum_and_backward_are_their_definitions(void **state)
{
    (void)state;
    const int64_t capacities[] = {0, 3};
    for (int i = 0; i < SHAPES * 2; i++) {
        combine_data d = new_combine(i / 2, capacities[i % 2]);
        int64_t slots = d.forward.tokens * d.forward.k;
        run_on_pools(run_forward, &d, d.forward.y, d.forward.tokens * d.forward.h);
        expect_sum(&d);
        run_on_pools(run_backward, &d, d.backward.dp, slots);
        expect_backward(&d);
        free_combine(&d);
    }
}

/* ---- the gated unit of the experts' rows ---- */

typedef struct {
    tsr_routes routes;
    float *z, *dact, *p, *old;
    tsr_routed_glu_backward_args args;
} glu_data;

static glu_data new_glu(int i, int64_t capacity)
{
    int64_t tokens = shapes[i][0], k = shapes[i][1], experts = shapes[i][2], slots = tokens * k;
    int64_t f = i % 3 ? 70 : 129;
    glu_data d = {.routes = new_routes(tokens, k, experts, LOAD_EVEN)};
    tsr_route_sort_args sort = {
        .routes = d.routes, .tokens = tokens, .k = k, .experts = experts, .capacity = capacity};
    RUN_OK(tsr_route_sort_ref(&sort, test_pool(0)));
    d.z = new_random(slots * 2 * f, 1, 4), d.dact = new_random(slots * f, 2, 1);
    d.p = new_random(slots, 3, 1), d.old = new_random(slots, 4, 1);
    d.args = (tsr_routed_glu_backward_args){.dp = new_floats(slots),
                                            .dz = new_floats(slots * 2 * f),
                                            .z = d.z,
                                            .dact = d.dact,
                                            .p = d.p,
                                            .row = d.routes.row,
                                            .tokens = tokens,
                                            .k = k,
                                            .f = f,
                                            .add = i % 2};
    return d;
}

static void free_glu(glu_data *d)
{
    free(d->routes.id), free(d->z), free(d->dact), free(d->p), free(d->old);
    free(d->args.dp), free(d->args.dz);
}

static tsr_status run_glu(void *context, tsr_pool *pool)
{
    glu_data *d = context;
    memcpy(d->args.dp, d->old, (size_t)(d->args.tokens * d->args.k) * sizeof(float));
    return tsr_routed_glu_backward_ref(&d->args, pool);
}

/* act of SiLU, and what dact becomes for gate and up. */
static double silu_unit(double dz[2], double gate, double up, double d)
{
    double sigmoid = 1 / (1 + exp(-gate));
    dz[0] = d * up * sigmoid * (1 + gate * (1 - sigmoid));
    dz[1] = d * gate * sigmoid;
    return gate * sigmoid * up;
}

static void expect_glu(const glu_data *d)
{
    const tsr_routed_glu_backward_args *a = &d->args;
    int64_t slots = a->tokens * a->k, f = a->f, rows = 0;
    double *dp = new_doubles(NULL, slots), *dz = new_doubles(NULL, slots * 2 * f), of[2];
    float nothing;
    memset(&nothing, 0xff, sizeof nothing);
    for (int64_t s = 0; s < slots; s++) {
        int64_t row = a->row[s], at = row * 2 * f;
        dp[s] = a->add ? (double)d->old[s] : 0;
        rows += row >= 0;
        for (int64_t i = 0; i < f && row >= 0; i++) {
            double dact = (double)d->dact[row * f + i];
            dp[s] += dact * silu_unit(of, (double)d->z[at + i], (double)d->z[at + f + i],
                                      (double)a->p[s] * dact);
            dz[at + i] = of[0], dz[at + f + i] = of[1];
        }
    }
    expect_close("dp", a->dp, dp, slots, SUM_TOLERANCE);
    expect_close("dz", a->dz, dz, rows * 2 * f, SUM_TOLERANCE);
    for (int64_t i = rows * 2 * f; i < slots * 2 * f; i++)
        assert_memory_equal((const float *)a->dz + i, &nothing, sizeof nothing);
    free(dp), free(dz);
}

/* The same as of swiglu's backward, for the other functions too: dz to the bit. */
static void expect_as_swiglu(glu_data *d, tsr_activation activation)
{
    tsr_routed_glu_backward_args *a = &d->args;
    int64_t slots = a->tokens * a->k, f = a->f, rows = 0;
    float *scaled = new_floats(slots * f), *dz = new_floats(slots * 2 * f);
    for (int64_t s = 0; s < slots; rows += a->row[s++] >= 0)
        for (int64_t i = 0; i < f && a->row[s] >= 0; i++)
            scaled[a->row[s] * f + i] = a->p[s] * d->dact[a->row[s] * f + i];
    tsr_swiglu_backward_args want = {.dact = scaled,
                                     .z_gate = d->z,
                                     .z_up = d->z + f,
                                     .dz_gate = dz,
                                     .dz_up = dz + f,
                                     .tokens = rows,
                                     .f = f,
                                     .stride = 2 * f,
                                     .activation = activation};
    a->activation = activation;
    RUN_OK(tsr_swiglu_backward_ref(&want, test_pool(2)));
    RUN_OK(run_glu(d, test_pool(2)));
    assert_memory_equal(a->dz, dz, (size_t)(rows * 2 * f) * sizeof(float));
    free(scaled), free(dz);
}

static void glu_backward_is_its_definition(void **state)
{
    (void)state;
    const int64_t capacities[] = {0, 3};
    for (int i = 0; i < SHAPES * 2; i++) {
        glu_data d = new_glu(i / 2, capacities[i % 2]);
        int64_t slots = d.args.tokens * d.args.k;
        run_on_pools(run_glu, &d, d.args.dp, slots);
        run_on_pools(run_glu, &d, d.args.dz, slots * 2 * d.args.f);
        expect_glu(&d);
        expect_as_swiglu(&d, TSR_GELU_TANH);
        expect_as_swiglu(&d, TSR_SILU_CLAMPED);
        float *apart = d.args.dz; /* in place */
        int64_t rows = d.routes.offset[shapes[i / 2][2]];
        d.args.dz = d.z;
        RUN_OK(run_glu(&d, test_pool(2)));
        assert_memory_equal(d.z, apart, (size_t)(rows * 2 * d.args.f) * sizeof(float));
        d.args.dz = apart;
        free_glu(&d);
    }
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    combine_data d = new_combine(3, 0);
    tsr_combine_args forward = d.forward;
    forward.row = NULL;
    assert_int_equal(tsr_combine_check(&forward), TSR_EINVAL);
    forward = d.forward, forward.k = 0;
    assert_int_equal(tsr_combine_check(&forward), TSR_EINVAL);
    forward = d.forward, forward.dtype = TSR_BF16;
    assert_int_equal(tsr_combine_ref(&forward, test_pool(0)), TSR_EUNSUPPORTED);
    tsr_combine_backward_args backward = d.backward;
    backward.dy = NULL;
    assert_int_equal(tsr_combine_backward_check(&backward), TSR_EINVAL);
    backward = d.backward, backward.bias = (tsr_frozen){d.bias, TSR_F16};
    assert_int_equal(tsr_combine_backward_check(&backward), TSR_EINVAL);
    backward = d.backward, backward.dtype = TSR_F16;
    assert_int_equal(tsr_combine_backward_ref(&backward, test_pool(0)), TSR_EUNSUPPORTED);
    free_combine(&d);
    glu_data g = new_glu(3, 0);
    float *dp = g.args.dp;
    g.args.dp = NULL;
    assert_int_equal(tsr_routed_glu_backward_check(&g.args), TSR_EINVAL);
    g.args.dp = dp, g.args.f = 0;
    assert_int_equal(tsr_routed_glu_backward_check(&g.args), TSR_EINVAL);
    g.args.f = 70, g.args.dtype = TSR_BF16;
    assert_int_equal(tsr_routed_glu_backward_ref(&g.args, test_pool(0)), TSR_EUNSUPPORTED);
    free_glu(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sorted_by_expert_then_slot),
        cmocka_unit_test(bad_routes_are_refused),
        cmocka_unit_test(sum_and_backward_are_their_definitions),
        cmocka_unit_test(glu_backward_is_its_definition),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
