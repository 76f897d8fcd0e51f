/*
 * test_score.c: a reward model's head against the formulas of score.h, and its gradients against differences of its loss.
 */
#include "score_case.h"

static tsr_status run_score(void *context, tsr_pool *pool)
{
    score_run *r = context;
    r->loss = 0;
    memset(r->words, 0, sizeof r->words);
    return tsr_score_ref(&r->args, pool);
}

static double loss_of(score_run *r)
{
    assert_int_equal(run_score(r, test_pool(0)), TSR_OK);
    return ldexp((double)r->loss, -TSR_LOSS_SHIFT);
}

static double reported(const score_run *r, tsr_score_word word)
{
    return ldexp((double)r->words[word], -TSR_LOSS_SHIFT);
}

static void expect_number(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
        fail_msg("%s: %.17g, want %.17g", what, got, want);
}

/* Each number by itself. */
static void follows_the_formulas(void **state)
{
    (void)state;
    const int64_t shapes[][2] = {{2, 1}, {2, 300}, {10, 64}, {34, 129}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int centered = 0; centered < 2; centered++) {
            score_run r;
            int64_t rows = shapes[s][0], d = shapes[s][1], pairs = rows / 2;
            double center = centered ? 0.3 : 0, loss = 0, margin = 0, mean = 0, right = 0;
            score_begin(&r, rows, d, center);
            run_on_pools(run_score, &r, r.dw, d);
            double low = INFINITY, high = -INFINITY;
            for (int64_t i = 0; i < rows; i++) {
                double reward = 0;
                for (int64_t j = 0; j < d; j++)
                    reward += (double)r.h[i * d + j] * (double)r.w[j];
                expect_number("reward", r.reward[i], reward, 1e-13);
                low = fmin(low, reward), high = fmax(high, reward), mean += reward / (double)rows;
            }
            for (int64_t p = 0; p < pairs; p++) {
                double c = r.reward[2 * p], q = r.reward[2 * p + 1];
                loss += (log1p(exp(q - c + (double)r.margin[p])) + center * (c + q) * (c + q)) /
                        (double)pairs;
                margin += (c - q) / (double)pairs;
                right += (c > q && p > 0) / (double)pairs;
            }
            expect_number("loss", ldexp((double)r.loss, -TSR_LOSS_SHIFT), loss, 1e-9);
            expect_number("accuracy", reported(&r, TSR_SCORE_ACCURACY), right, 1e-9);
            expect_number("margin", reported(&r, TSR_SCORE_MARGIN), margin, 1e-9);
            expect_number("min", reported(&r, TSR_SCORE_MIN), low, 1e-9);
            expect_number("mean", reported(&r, TSR_SCORE_MEAN), mean, 1e-9);
            expect_number("max", reported(&r, TSR_SCORE_MAX), high, 1e-9);
            score_end(&r);
        }
}

/* Of an element of h or w, against the loss on both sides of it. */
static void expect_slope(const char *what, score_run *r, float *value, double got)
{
    const float step = 1.0f / 64, kept = *value;
    *value = kept + step;
    double after = loss_of(r);
    *value = kept - step;
    double before = loss_of(r);
    *value = kept;
    expect_number(what, got, r->args.scale * (after - before) / (2 * (double)step), 2e-4);
}

static void gradients_are_slopes(void **state)
{
    (void)state;
    score_run r;
    const int64_t rows = 8, d = 24;
    score_begin(&r, rows, d, 0.05);
    loss_of(&r);
    float *dw = new_floats(d), *dh = new_floats(rows * d);
    memcpy(dw, r.dw, (size_t)d * sizeof *dw);
    memcpy(dh, r.dh, (size_t)(rows * d) * sizeof *dh);
    for (int64_t j = 0; j < d; j++)
        expect_slope("dw", &r, &r.w[j], (double)dw[j]);
    for (int64_t i = 0; i < rows * d; i += 5)
        expect_slope("dh", &r, &r.h[i], (double)dh[i]);
    free(dw), free(dh);
    score_end(&r);
}

/* dh in the place of h, w in bf16, and an evaluation have the same numbers. */
static void ways_agree(void **state)
{
    (void)state;
    score_run r, in_place;
    score_begin(&r, 6, 100, 0.1);
    score_begin(&in_place, 6, 100, 0.1);
    uint16_t *narrow = new_bf16(r.w, 100);
    in_place.args.w = (tsr_frozen){narrow, TSR_BF16};
    in_place.args.dh = in_place.h;
    double loss = loss_of(&r);
    assert_true(loss == loss_of(&in_place));
    assert_memory_equal(r.dh, in_place.h, 600 * sizeof(float));
    assert_memory_equal(r.dw, in_place.dw, 100 * sizeof(float));
    r.args.dh = NULL;
    r.args.dw = NULL;
    assert_true(loss == loss_of(&r));
    free(narrow);
    score_end(&r);
    score_end(&in_place);
}

static void what_is_not_finite(void **state)
{
    (void)state;
    score_run r;
    score_begin(&r, 4, 10, 0);
    r.h[13] = INFINITY;
    assert_true(loss_of(&r) == 0);
    assert_int_equal(r.overflow, 1);
    for (int i = 0; i < 40; i++)
        assert_true(r.dh[i] == 0);
    for (int w = 0; w < TSR_SCORE_WORDS; w++)
        assert_true(r.words[w] == 0);
    score_end(&r);
}

static void arguments(void **state)
{
    (void)state;
    score_run r;
    score_begin(&r, 4, 10, 0);
    tsr_score_args wrong = r.args;
    wrong.rows = 3;
    assert_int_equal(tsr_score_check(&wrong), TSR_EINVAL);
    wrong = r.args;
    wrong.dw = NULL;
    assert_int_equal(tsr_score_check(&wrong), TSR_EINVAL);
    wrong = r.args;
    wrong.w.data = NULL;
    assert_int_equal(tsr_score_check(&wrong), TSR_EINVAL);
    wrong = r.args;
    wrong.dtype = TSR_BF16;
    assert_int_equal(tsr_score_ref(&wrong, test_pool(0)), TSR_EUNSUPPORTED);
    wrong = r.args;
    wrong.rows = 0;
    assert_int_equal(tsr_score_ref(&wrong, test_pool(0)), TSR_OK);
    for (int j = 0; j < 10; j++)
        assert_true(r.dw[j] == 0);
    score_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_formulas), cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(ways_agree), cmocka_unit_test(what_is_not_finite),
        cmocka_unit_test(arguments)};
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
