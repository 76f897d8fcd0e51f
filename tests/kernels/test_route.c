/*
 * test_route.c: the router against its formulas in fp64: what is chosen, of equals and of what is no
 * number too; weights; and what is counted.
 */
#include "route_case.h"

#include "base/status.h"

#define LOGIT_TOLERANCE 2e-6 /* of the largest: fp32 sums in 16 lanes */
#define P_TOLERANCE     4e-6 /* a few times that of the logits, which e is raised to */

static tsr_status run_route(void *context, tsr_pool *pool)
{
    return tsr_route_ref(context, pool);
}

static void expect_route(route_data *d)
{
    int64_t experts = d->c.how.experts, k = d->c.how.k, tokens = d->c.tokens;
    double *x = new_doubles(d->x, tokens * d->c.h), *s = new_doubles(NULL, tokens * experts);
    double *rounded = new_doubles(d->args.logits, tokens * experts);
    double *p = new_doubles(NULL, tokens * k);
    for (int64_t t = 0; t < tokens; t++) {
        int32_t id[TSR_ROUTE_MOST_CHOSEN];
        route_logits(s + t * experts, d, x + t * d->c.h);
        route_choose(id, &d->args.how, rounded + t * experts);
        assert_memory_equal(id, d->args.id + t * k, (size_t)k * sizeof(int32_t));
        route_weights(p + t * k, &d->args.how, s + t * experts, id);
    }
    expect_close("logits", d->args.logits, s, tokens * experts, LOGIT_TOLERANCE);
    expect_close("p", d->args.p, p, tokens * k, P_TOLERANCE);
    free(x), free(s), free(p), free(rounded);
}

static void route_is_its_formula(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROUTE_CASES; i++) {
        route_data d = new_route(&route_cases[i], 10 * i);
        run_on_pools(run_route, &d.args, d.args.logits, d.c.tokens * d.c.how.experts);
        run_on_pools(run_route, &d.args, d.args.p, d.c.tokens * d.c.how.k);
        run_on_pools(run_route, &d.args, (float *)d.args.id, d.c.tokens * d.c.how.k);
        expect_route(&d);
        free_route(&d);
    }
}

static void a_token_alone_has_the_same_bits(void **state)
{
    (void)state;
    route_data d = new_route(&route_cases[0], 5);
    RUN_OK(tsr_route_ref(&d.args, test_pool(1)));
    float logits[16], p[4];
    int32_t id[4];
    for (int64_t t = 0; t < d.c.tokens; t++) {
        tsr_route_args one = d.args;
        one.x = d.x + t * d.c.h, one.logits = logits, one.p = p, one.id = id, one.tokens = 1;
        RUN_OK(tsr_route_ref(&one, test_pool(0)));
        assert_memory_equal(logits, d.args.logits + t * 16, sizeof logits);
        assert_memory_equal(p, d.args.p + t * 4, sizeof p);
        assert_memory_equal(id, d.args.id + t * 4, sizeof id);
    }
    free_route(&d);
}

/* A router whose logits are given: h is 1, x is 1. */
static void route_given(int32_t *id, float *p, const tsr_routing *how, const float *logits)
{
    float one = 1, s[TSR_ROUTE_MOST_EXPERTS];
    tsr_route_args args = {.x = &one,
                           .weight = {logits, TSR_F32},
                           .how = *how,
                           .logits = s,
                           .p = p,
                           .id = id,
                           .tokens = 1,
                           .h = 1};
    RUN_OK(tsr_route_ref(&args, test_pool(0)));
}

static void expect_ids(const tsr_routing *how, const float *logits, const int32_t *want)
{
    int32_t id[TSR_ROUTE_MOST_CHOSEN];
    float p[TSR_ROUTE_MOST_CHOSEN];
    route_given(id, p, how, logits);
    for (int64_t j = 0; j < how->k; j++)
        if (id[j] != want[j])
            fail_msg("id[%lld] is %d, not %d", (long long)j, id[j], want[j]);
}

static void equals_go_to_the_lower_index(void **state)
{
    (void)state;
    const float equal[8] = {0}, some[8] = {1, 2, 2, -1, 2, 1, 2, 0};
    const float zeros[8] = {-1, -0.0f, 0.0f, -0.0f, -1, -2, -3, -4};
    for (int scoring = TSR_ROUTE_SOFTMAX; scoring <= TSR_ROUTE_SIGMOID; scoring++) {
        tsr_routing how = {.experts = 8, .k = 5, .scoring = (tsr_route_scoring)scoring};
        expect_ids(&how, equal, (const int32_t[]){0, 1, 2, 3, 4});
        expect_ids(&how, some, (const int32_t[]){1, 2, 4, 6, 0});
        expect_ids(&how, zeros, (const int32_t[]){1, 2, 3, 0, 4});
    }
    tsr_routing groups = {
        .experts = 8, .k = 3, .scoring = TSR_ROUTE_SIGMOID, .n_group = 4, .topk_group = 2};
    expect_ids(&groups, equal, (const int32_t[]){0, 1, 2});
    /* Groups by the sum of two: {2, 2} before {3, -9}, which has the largest alone. */
    const float sums[8] = {3, -9, 0, 0, 2, 2, 1, 1};
    expect_ids(&groups, sums, (const int32_t[]){4, 5, 6});
}

/* The choice is by score plus correction, p is without; experts outside of the groups are out even where
 * all that is left is below zero. */
static void a_correction_is_of_the_choice_alone(void **state)
{
    (void)state;
    const float logits[4] = {1, 2, 3, 4}, correction[4] = {9, 0, 0, -9};
    tsr_routing how = {
        .experts = 4, .k = 2, .scoring = TSR_ROUTE_SIGMOID, .correction = correction};
    int32_t id[2];
    float p[2];
    route_given(id, p, &how, logits);
    assert_int_equal(id[0], 0);
    assert_int_equal(id[1], 2);
    assert_true(fabs((double)p[0] - 1 / (1 + exp(-1))) < 1e-6);
    const float below[4] = {-5, -6, -9, -9};
    how.correction = below, how.n_group = 2, how.topk_group = 1;
    expect_ids(&how, logits, (const int32_t[]){0, 1});
    how.scoring = TSR_ROUTE_CHOSEN, how.n_group = 0, how.correction = correction;
    expect_ids(&how, logits, (const int32_t[]){0, 2});
}

static void what_is_no_number_is_chosen_once(void **state)
{
    (void)state;
    const float logits[6] = {1, NAN, -INFINITY, NAN, INFINITY, 2};
    tsr_routing how = {.experts = 6, .k = 6, .scoring = TSR_ROUTE_CHOSEN};
    expect_ids(&how, logits, (const int32_t[]){1, 3, 4, 5, 0, 2});
    how.scoring = TSR_ROUTE_SIGMOID, how.k = 4, how.n_group = 3, how.topk_group = 2;
    expect_ids(&how, logits, (const int32_t[]){1, 3, 0, 2});
}

static void large_logits_have_weights(void **state)
{
    (void)state;
    const float logits[4] = {-1e4f, 1e4f, 9999, -3e4f};
    for (int normalise = 0; normalise < 2; normalise++)
        for (int scoring = TSR_ROUTE_SOFTMAX; scoring <= TSR_ROUTE_SIGMOID; scoring++) {
            tsr_routing how = {.experts = 4,
                               .k = 2,
                               .scoring = (tsr_route_scoring)scoring,
                               .normalise = normalise};
            double s[4] = {-1e4, 1e4, 9999, -3e4}, want[2];
            int32_t id[2];
            float p[2];
            route_given(id, p, &how, logits);
            route_weights(want, &how, s, id);
            expect_close("p", p, want, 2, P_TOLERANCE);
        }
    /* All sigmoids are 0: so is p, for the 1e-20. */
    const float low[2] = {-1e4f, -1e4f};
    tsr_routing how = {.experts = 2, .k = 2, .scoring = TSR_ROUTE_SIGMOID, .normalise = true};
    int32_t id[2];
    float p[2];
    route_given(id, p, &how, low);
    assert_true(p[0] == 0 && p[1] == 0);
}

/* ---- statistics ---- */

static void statistics_are_exact_sums(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROUTE_CASES; i++) {
        route_data d = new_route(&route_cases[i], 3 * i);
        int64_t experts = d.c.how.experts, k = d.c.how.k, slots = d.c.tokens * k;
        RUN_OK(tsr_route_ref(&d.args, test_pool(1)));
        int64_t count[1024], prob[1024], dropped = 5, want[1024] = {0}, left_out = 0;
        int32_t *row = malloc((size_t)(slots + 1) * sizeof *row);
        for (int64_t s = 0; s < slots; s++) {
            row[s] = s % 3 ? (int32_t)s : -1;
            want[d.args.id[s]]++;
            left_out += row[s] < 0;
        }
        memset(count, 1, sizeof count), memset(prob, 1, sizeof prob);
        tsr_route_stats_args args = {.id = d.args.id,
                                     .row = row,
                                     .logits = d.args.logits,
                                     .count = count,
                                     .prob = prob,
                                     .dropped = &dropped,
                                     .tokens = d.c.tokens,
                                     .k = k,
                                     .experts = experts,
                                     .begin = true};
        RUN_OK(tsr_route_stats_ref(&args, test_pool(2)));
        assert_memory_equal(count, want, (size_t)experts * sizeof *count);
        assert_int_equal(dropped, left_out);
        double s[1024], a[1024], *total = new_doubles(NULL, experts);
        float *got = new_floats(experts);
        for (int64_t t = 0; t < d.c.tokens; t++) {
            for (int64_t e = 0; e < experts; e++)
                s[e] = (double)d.args.logits[t * experts + e];
            route_softmax(a, s, experts);
            for (int64_t e = 0; e < experts; e++)
                total[e] += a[e];
        }
        for (int64_t e = 0; e < experts; e++)
            got[e] = (float)ldexp((double)prob[e], -TSR_ROUTE_PROB_SHIFT);
        expect_near("prob", got, total, experts, 1e-6, 1e-3);
        /* Added to, and in two parts: the same numbers. */
        int64_t whole[1024], first = d.c.tokens / 3;
        memcpy(whole, prob, (size_t)experts * sizeof *prob);
        args.tokens = first;
        RUN_OK(tsr_route_stats_ref(&args, test_pool(0)));
        args.begin = false, args.tokens = d.c.tokens - first, args.dropped = NULL;
        args.id += first * k, args.logits += first * experts;
        RUN_OK(tsr_route_stats_ref(&args, test_pool(0)));
        assert_memory_equal(count, want, (size_t)experts * sizeof *count);
        assert_memory_equal(prob, whole, (size_t)experts * sizeof *prob);
        free(row), free(total), free(got);
        free_route(&d);
    }
}

static void a_logit_that_is_not_finite_adds_nothing(void **state)
{
    (void)state;
    const float logits[4] = {1, NAN, 0, 0};
    const int32_t id[2] = {1, 0};
    int64_t count[2] = {0}, prob[2] = {0};
    tsr_route_stats_args args = {.id = id,
                                 .logits = logits,
                                 .count = count,
                                 .prob = prob,
                                 .tokens = 2,
                                 .k = 1,
                                 .experts = 2};
    RUN_OK(tsr_route_stats_ref(&args, test_pool(0)));
    int64_t half = 1ll << (TSR_ROUTE_PROB_SHIFT - 1);
    assert_true(prob[0] == half && prob[1] == half && count[0] == 1 && count[1] == 1);
}

/* ---- what is refused ---- */

static void expect_refused(tsr_status status, const char *what)
{
    if (status != TSR_EINVAL || !strstr(tsr_last_error(), what))
        fail_msg("%d, \"%s\": not refused for \"%s\"", (int)status, tsr_last_error(), what);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float f[4];
    int32_t id[4];
    const tsr_route_args good = {.x = f,
                                 .weight = {f, TSR_F32},
                                 .how = {.experts = 8, .k = 2},
                                 .logits = f,
                                 .p = f,
                                 .id = id,
                                 .tokens = 1,
                                 .h = 1};
    assert_int_equal(tsr_route_check(&good), TSR_OK);
    tsr_route_args bad = good;
    bad.how.k = 9;
    expect_refused(tsr_route_check(&bad), "9 of 8 experts");
    bad.how.k = 0;
    expect_refused(tsr_route_check(&bad), "0 of 8 experts");
    bad = good, bad.how.experts = 2000;
    expect_refused(tsr_route_check(&bad), "at most 32 of 1024");
    bad = good, bad.how.n_group = 3, bad.how.topk_group = 1;
    expect_refused(tsr_route_check(&bad), "8 experts in 3 groups");
    bad.how.n_group = 8;
    expect_refused(tsr_route_check(&bad), "at least 2");
    bad.how.n_group = 4, bad.how.topk_group = 5;
    expect_refused(tsr_route_check(&bad), "of which 5 stay");
    bad.how.topk_group = 1, bad.how.k = 3;
    expect_refused(tsr_route_check(&bad), "3 chosen");
    bad = good, bad.how.scoring = (tsr_route_scoring)7;
    expect_refused(tsr_route_check(&bad), "scoring");
    bad = good, bad.weight.dtype = TSR_F16;
    expect_refused(tsr_route_check(&bad), "weight or bias");
    bad = good, bad.how.expert_scale = (tsr_frozen){f, TSR_F16};
    expect_refused(tsr_route_check(&bad), "expert_scale");
    bad = good, bad.logits = NULL;
    expect_refused(tsr_route_check(&bad), "NULL");
    bad = good, bad.dtype = TSR_BF16;
    assert_int_equal(tsr_route_check(&bad), TSR_OK);
    assert_int_equal(tsr_route_ref(&bad, test_pool(0)), TSR_EUNSUPPORTED);
    int64_t count[8];
    tsr_route_stats_args stats = {
        .id = id, .count = count, .prob = count, .tokens = 1, .k = 1, .experts = 8};
    expect_refused(tsr_route_stats_check(&stats), "prob needs logits");
    stats.prob = NULL, stats.dropped = count;
    expect_refused(tsr_route_stats_check(&stats), "dropped needs row");
    stats.dropped = NULL, stats.count = NULL;
    expect_refused(tsr_route_stats_check(&stats), "count is NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route_is_its_formula),
        cmocka_unit_test(a_token_alone_has_the_same_bits),
        cmocka_unit_test(equals_go_to_the_lower_index),
        cmocka_unit_test(a_correction_is_of_the_choice_alone),
        cmocka_unit_test(what_is_no_number_is_chosen_once),
        cmocka_unit_test(large_logits_have_weights),
        cmocka_unit_test(statistics_are_exact_sums),
        cmocka_unit_test(a_logit_that_is_not_finite_adds_nothing),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
