/*
 * test_expert_low_rank.c: the gradient of the factors of all experts against sums in fp64, for every
 * load, gathered or not; an expert without rows gets zeros.
 */
#include "kernels/expert_low_rank_backward.h"

#include "kernels/expert_rows_test.h"

typedef struct {
    tsr_expert_low_rank_backward_args args;
    float *results; /* da, then db */
} fixture;

static tsr_status run(void *context, tsr_pool *pool)
{
    return tsr_expert_low_rank_backward_ref(&((fixture *)context)->args, pool);
}

/* Row i's part of da and db of its expert. */
static void add_row(double *da, double *db, const tsr_expert_low_rank_backward_args *s, int64_t e,
                    int64_t i)
{
    int64_t from = tsr_expert_row_from(&s->rows, i);
    const float *x = (const float *)s->x + (s->spread ? i : from) * s->in;
    const float *dz = (const float *)s->dz + (s->spread ? from : i) * s->out;
    double p = s->p ? (double)s->p[s->rows.slot[i]] : 1;
    const float *a = (const float *)s->a + e * s->r * s->in;
    const float *b = (const float *)s->b + e * s->out * s->r;
    for (int64_t k = 0; k < s->r; k++) {
        double low = 0, d_low = 0;
        for (int64_t j = 0; j < s->in; j++)
            low += (double)a[k * s->in + j] * (double)x[j];
        for (int64_t j = 0; j < s->out; j++)
            d_low += (double)b[j * s->r + k] * (double)dz[j];
        for (int64_t j = 0; j < s->in; j++)
            da[(e * s->r + k) * s->in + j] += p * (double)s->scale * d_low * (double)x[j];
        for (int64_t j = 0; j < s->out; j++)
            db[(e * s->out + j) * s->r + k] += p * (double)s->scale * (double)dz[j] * low;
    }
}

enum { IN_ORDER, X_GATHERED, SPREAD, SPREAD_P, WAYS };

static void one_case(int64_t tokens, int64_t k, int64_t experts, int64_t out, int64_t in, int64_t r,
                     expert_load load, int way)
{
    expert_case c = new_expert_case(tokens, k, experts, load);
    bool gather = way == X_GATHERED, spread = way >= SPREAD;
    int64_t most = c.rows.most, x_rows = gather ? tokens : most;
    int64_t da_count = experts * r * in, db_count = experts * out * r;
    float *x = new_random(x_rows * in, 1, 1),
          *dz = new_random((spread ? tokens : most) * out, 2, 1);
    float *p = new_random(most, 5, 1);
    float *a = new_random(da_count, 3, 1), *b = new_random(db_count, 4, 1);
    fixture f = {.args = {.x = x,
                          .dz = dz,
                          .a = a,
                          .b = b,
                          .rows = c.rows,
                          .out = out,
                          .in = in,
                          .r = r,
                          .p = way == SPREAD_P ? p : NULL,
                          .spread = spread,
                          .scale = 1.75f},
                 .results = new_floats(da_count + db_count)};
    f.args.da = f.results;
    f.args.db = f.results + da_count;
    if (way == IN_ORDER)
        f.args.rows.slot = NULL;
    f.args.scratch_bytes = tsr_expert_low_rank_backward_bytes(TSR_F32, most, r);
    f.args.scratch = malloc(f.args.scratch_bytes + 1);
    assert_non_null(f.args.scratch);
    double *want = new_doubles(NULL, da_count + db_count);
    for (int64_t e = 0; e < experts; e++)
        for (int64_t i = c.offset[e]; i < c.offset[e + 1]; i++)
            add_row(want, want + da_count, &f.args, e, i);
    run_on_pools(run, &f, f.results, da_count + db_count);
    expect_close("da", f.results, want, da_count, 2e-6);
    expect_close("db", f.results + da_count, want + da_count, db_count, 2e-6);
    for (int64_t e = 0; e < experts; e++)
        for (int64_t i = 0; c.offset[e] == c.offset[e + 1] && i < r * in; i++)
            assert_true(f.args.da[e * r * in + i] == 0);
    free(x), free(dz), free(p), free(a), free(b), free(f.results), free(f.args.scratch), free(want);
    free_expert_case(&c);
}

static void every_load(void **state)
{
    (void)state;
    for (int load = 0; load < LOAD_KINDS; load++)
        for (int way = 0; way < WAYS; way++) {
            one_case(90, 4, 7, 40, 150, 8, load, way);
            one_case(50, 2, 6, 131, 33, 3, load, way);
            one_case(1, 1, 1, 1, 1, 1, load, way);
            one_case(0, 2, 3, 5, 6, 8, load, way);
        }
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    _Alignas(16) float x[8] = {0};
    int32_t offset[2] = {0, 1};
    const tsr_expert_low_rank_backward_args good = {
        .x = x,
        .dz = x,
        .a = x,
        .b = x,
        .da = x,
        .db = x,
        .scratch = x,
        .scratch_bytes = tsr_expert_low_rank_backward_bytes(TSR_F32, 1, 1),
        .rows = {.offset = offset, .most = 1, .experts = 1},
        .out = 1,
        .in = 1,
        .r = 1};
    assert_int_equal(tsr_expert_low_rank_backward_check(&good), TSR_OK);
    tsr_expert_low_rank_backward_args bad = good;
    bad.scratch_bytes--;
    assert_int_equal(tsr_expert_low_rank_backward_check(&bad), TSR_EINVAL);
    assert_non_null(strstr(tsr_last_error(), "32 are needed"));
    bad = good;
    bad.scratch = NULL;
    assert_int_equal(tsr_expert_low_rank_backward_check(&bad), TSR_EINVAL);
    bad = good;
    bad.r = 0;
    assert_int_equal(tsr_expert_low_rank_backward_check(&bad), TSR_EINVAL);
    bad = good;
    bad.db = NULL;
    assert_int_equal(tsr_expert_low_rank_backward_check(&bad), TSR_EINVAL);
    bad = good;
    bad.dz = NULL;
    assert_int_equal(tsr_expert_low_rank_backward_check(&bad), TSR_EINVAL);
    bad = good;
    bad.spread = true;
    assert_int_equal(tsr_expert_low_rank_backward_check(&bad), TSR_EINVAL);
    bad = good;
    bad.p = x;
    assert_int_equal(tsr_expert_low_rank_backward_check(&bad), TSR_EINVAL);
    bad = good;
    bad.dtype = TSR_BF16;
    assert_int_equal(tsr_expert_low_rank_backward_ref(&bad, test_pool(0)), TSR_EUNSUPPORTED);
    offset[0] = 2;
    assert_int_equal(tsr_expert_low_rank_backward_ref(&good, test_pool(0)), TSR_EINTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_load),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
