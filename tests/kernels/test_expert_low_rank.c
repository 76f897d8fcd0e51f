/*
 * test_expert_low_rank.c: rows times the low-rank factors of all experts, and the gradient of these, against sums in fp64,
 * for every load, gathered or not; an expert without rows gets zeros.
 */
#include "kernels/expert_low_rank.h"
#include "kernels/expert_low_rank_backward.h"

#include "kernels/expert_rows_test.h"

#define SCALE 1.75f

enum { IN_ORDER, X_GATHERED, SPREAD, SPREAD_P, WAYS };

typedef struct {
    tsr_expert_low_rank_args of_x, of_dz;
    tsr_expert_low_rank_backward_args sums;
    float *results; /* da, db, then low and d_low, p times or not, of the rows */
    int64_t count;
} fixture;

static tsr_status run(void *context, tsr_pool *pool)
{
    fixture *f = context;
    memset(f->results, 0, (size_t)f->count * sizeof *f->results); /* rows of none */
    TSR_TRY(tsr_expert_low_rank_ref(&f->of_x, pool));
    TSR_TRY(tsr_expert_low_rank_ref(&f->of_dz, pool));
    return tsr_expert_low_rank_backward_ref(&f->sums, pool);
}

/* Row i of low, and its parts of da and db of its expert. */
typedef struct {
    double *da, *db, *low, *d_low;
} wanted;

static void add_row(const wanted *want, const fixture *f, const float *p, int64_t e, int64_t i)
{
    const tsr_expert_low_rank_backward_args *s = &f->sums;
    int64_t from = tsr_expert_row_from(&s->rows, i);
    const float *x = (const float *)s->x + (s->spread ? i : from) * s->in;
    const float *dz = (const float *)s->dz + (s->spread ? from : i) * s->out;
    double scale = (double)SCALE * (p ? (double)p[s->rows.slot[i]] : 1);
    const float *a = (const float *)f->of_x.factor + e * s->r * s->in;
    const float *b = (const float *)f->of_dz.factor + e * s->out * s->r;
    for (int64_t k = 0; k < s->r; k++) {
        double low = 0, d_low = 0;
        for (int64_t j = 0; j < s->in; j++)
            low += scale * (double)a[k * s->in + j] * (double)x[j];
        for (int64_t j = 0; j < s->out; j++)
            d_low += scale * (double)b[j * s->r + k] * (double)dz[j];
        for (int64_t j = 0; j < s->in; j++)
            want->da[(e * s->r + k) * s->in + j] += d_low * (double)x[j];
        for (int64_t j = 0; j < s->out; j++)
            want->db[(e * s->out + j) * s->r + k] += (double)dz[j] * low;
        want->low[i * s->r + k] = low, want->d_low[i * s->r + k] = d_low;
    }
}

/* Both of low: as it is, and p times. */
static void expect_half(const tsr_expert_low_rank_args *args, const float *p,
                        const double *weighted)
{
    const tsr_expert_rows *rows = &args->rows;
    int64_t r = args->r, count = rows->most * r;
    float *low = new_floats(count), *both = new_floats(count);
    double *want = new_doubles(NULL, count);
    tsr_expert_low_rank_args again = *args;
    again.low = low, again.weighted = both;
    memset(low, 0, (size_t)count * sizeof *low), memset(both, 0, (size_t)count * sizeof *both);
    assert_int_equal(tsr_expert_low_rank_ref(&again, test_pool(1)), TSR_OK);
    for (int64_t i = rows->offset[0]; i < rows->offset[rows->experts]; i++)
        for (int64_t k = 0; k < r; k++)
            want[i * r + k] = weighted[i * r + k] / (double)p[rows->slot[i]];
    expect_close("low", low, want, count, 2e-6);
    expect_close("weighted", both, weighted, count, 2e-6);
    free(low), free(both), free(want);
}

static void one_case(int64_t tokens, int64_t k, int64_t experts, int64_t out, int64_t in, int64_t r,
                     expert_load load, int way)
{
    expert_case c = new_expert_case(tokens, k, experts, load);
    bool gather = way == X_GATHERED, spread = way >= SPREAD;
    int64_t most = c.rows.most, rows = most * r, da_count = experts * r * in;
    int64_t db_count = experts * out * r, count = da_count + db_count + 2 * rows;
    float *x = new_random((gather ? tokens : most) * in, 1, 1);
    float *dz = new_random((spread ? tokens : most) * out, 2, 1), *p = new_gain(most, 5);
    float *a = new_random(da_count, 3, 1), *b = new_random(db_count, 4, 1);
    float *results = new_floats(count), *low = results + da_count + db_count;
    bool weighted = way == SPREAD_P;
    tsr_expert_rows order = c.rows;
    if (way == IN_ORDER)
        order.slot = NULL;
    fixture f = {.of_x = {.low = weighted ? NULL : low,
                          .weighted = weighted ? low : NULL,
                          .x = x,
                          .factor = a,
                          .p = weighted ? p : NULL,
                          .rows = order,
                          .width = in,
                          .r = r,
                          .scale = SCALE,
                          .in_order = !gather},
                 .sums = {.x = x,
                          .dz = dz,
                          .low = low,
                          .d_low = low + rows,
                          .da = results,
                          .db = results + da_count,
                          .rows = order,
                          .out = out,
                          .in = in,
                          .r = r,
                          .spread = spread},
                 .results = results,
                 .count = count};
    f.of_dz = f.of_x;
    f.of_dz.low = weighted ? NULL : low + rows, f.of_dz.weighted = weighted ? low + rows : NULL;
    f.of_dz.x = dz, f.of_dz.factor = b, f.of_dz.width = out;
    f.of_dz.in_order = !spread, f.of_dz.by_column = true;
    double *sums = new_doubles(NULL, count);
    wanted want = {sums, sums + da_count, sums + da_count + db_count,
                   sums + da_count + db_count + rows};
    for (int64_t e = 0; e < experts; e++)
        for (int64_t i = c.offset[e]; i < c.offset[e + 1]; i++)
            add_row(&want, &f, weighted ? p : NULL, e, i);
    run_on_pools(run, &f, results, count);
    expect_close("da", results, want.da, da_count, 2e-6);
    expect_close("db", results + da_count, want.db, db_count, 2e-6);
    expect_close("low", low, want.low, rows, 2e-6);
    expect_close("d_low", low + rows, want.d_low, rows, 2e-6);
    if (weighted) {
        expect_half(&f.of_x, p, want.low);
        expect_half(&f.of_dz, p, want.d_low);
    }
    for (int64_t e = 0; e < experts; e++)
        for (int64_t i = 0; c.offset[e] == c.offset[e + 1] && i < r * in; i++)
            assert_true(results[e * r * in + i] == 0);
    free(x), free(dz), free(p), free(a), free(b), free(results), free(sums);
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
    float x[8] = {0};
    int32_t offset[2] = {0, 1}, slot[1] = {0};
    const tsr_expert_rows rows = {.offset = offset, .most = 1, .experts = 1};
    const tsr_expert_low_rank_args good_low = {
        .low = x + 1, .x = x, .factor = x, .rows = rows, .width = 1, .r = 1};
    const tsr_expert_low_rank_backward_args good = {.x = x,
                                                    .dz = x,
                                                    .low = x,
                                                    .d_low = x,
                                                    .da = x,
                                                    .db = x,
                                                    .rows = rows,
                                                    .out = 1,
                                                    .in = 1,
                                                    .r = 1};
    assert_int_equal(tsr_expert_low_rank_check(&good_low), TSR_OK);
    tsr_expert_low_rank_args low = good_low;
    low.low = NULL;
    assert_int_equal(tsr_expert_low_rank_check(&low), TSR_EINVAL);
    low = good_low;
    low.factor = NULL;
    assert_int_equal(tsr_expert_low_rank_check(&low), TSR_EINVAL);
    low = good_low;
    low.width = 0;
    assert_int_equal(tsr_expert_low_rank_check(&low), TSR_EINVAL);
    low = good_low;
    low.weighted = x + 2;
    low.p = x;
    assert_int_equal(tsr_expert_low_rank_check(&low), TSR_EINVAL);
    low.rows.slot = slot, low.rows.k = 1;
    assert_int_equal(tsr_expert_low_rank_check(&low), TSR_OK);
    low = good_low;
    low.dtype = TSR_BF16;
    assert_int_equal(tsr_expert_low_rank_ref(&low, test_pool(0)), TSR_EUNSUPPORTED);
    assert_int_equal(tsr_expert_low_rank_backward_check(&good), TSR_OK);
    tsr_expert_low_rank_backward_args bad = good;
    bad.low = NULL;
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
    bad.dtype = TSR_BF16;
    assert_int_equal(tsr_expert_low_rank_backward_ref(&bad, test_pool(0)), TSR_EUNSUPPORTED);
    offset[0] = 2;
    assert_int_equal(tsr_expert_low_rank_ref(&good_low, test_pool(0)), TSR_EINTERNAL);
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
