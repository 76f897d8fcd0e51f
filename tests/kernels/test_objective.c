/*
 * Objectives on made-up micro-batches: each row's weight is the slope of the loss by its nll, by differences; what is
 * reported; numbers that are not finite; and arguments that are refused. That the losses are TRL's is
 * tests/job/test_objectives.c.
 */
#include "objective_case.h"

#include "kernels/head.h"

#define RUN(call)                                                                                  \
    do {                                                                                           \
        if ((call) != TSR_OK)                                                                      \
            fail_msg("%s: %s", #call, tsr_last_error());                                           \
    } while (0)

static double loss_of(objective_run *r)
{
    r->loss = 0;
    memset(r->words, 0, sizeof r->words);
    RUN(tsr_objective_ref(&r->args, test_pool(0)));
    assert_int_equal(r->overflow, 0);
    return ldexp((double)r->loss, -TSR_LOSS_SHIFT);
}

/* KTO's z is not differentiated: rows of mismatched documents are left alone. */
static bool is_held(const objective_run *r, int64_t part)
{
    return r->objective.kind == TSR_OBJECTIVE_KTO && part / TSR_PARTS % 2;
}

static void check_slopes(const objective_case *c, int64_t documents)
{
    const double step = 1e-3;
    objective_run r;
    objective_begin(&r, c, documents, 1);
    loss_of(&r);
    float *weight = malloc((size_t)r.args.rows * sizeof *weight);
    assert_non_null(weight);
    memcpy(weight, r.weight, (size_t)r.args.rows * sizeof *weight);
    for (int64_t p = 0; p < TSR_PARTS * documents; p++)
        for (int32_t i = r.part[p]; i < r.part[p + 1]; i++) {
            double at = r.nll[i], slope;
            r.nll[i] = at + step;
            slope = loss_of(&r);
            r.nll[i] = at - step;
            slope = (slope - loss_of(&r)) / (2 * step);
            r.nll[i] = at;
            if (is_held(&r, p))
                slope = 0;
            if (!(fabs((double)weight[i] - r.args.scale * slope) <= 2e-6 + 2e-5 * fabs(slope)))
                fail_msg("%s, %lld documents, row %d of part %lld: %.9g, by differences %.9g",
                         c->name, (long long)documents, i, (long long)p, (double)weight[i],
                         r.args.scale * slope);
        }
    free(weight);
    objective_end(&r);
}

static void test_slopes(void **state)
{
    (void)state;
    for (int i = 0; i < OBJECTIVE_CASES; i++)
        for (int64_t documents = 2; documents <= 14 && !objective_cases[i].objective.weighting;
             documents += 6)
            check_slopes(&objective_cases[i], documents);
}

/* A pair's loss and slopes times exp(q(c) + q(r)), which is not differentiated itself. */
static void test_weighting(void **state)
{
    (void)state;
    const objective_case *plain = &objective_cases[0];
    objective_case weighted = *plain;
    objective_run r, w;
    double mean = 0;
    weighted.objective.weighting = true;
    objective_begin(&r, plain, 2, 2);
    objective_begin(&w, &weighted, 2, 2);
    for (int document = 0; document < 2; document++) {
        int32_t first = r.part[TSR_PARTS * document], end = r.part[TSR_PARTS * (document + 1)];
        double q = 0;
        for (int32_t i = first; i < end; i++)
            q -= r.nll[i] + (double)w.log_squares[i];
        mean += q / (double)(end - first);
    }
    double factor = exp(mean), loss = loss_of(&r);
    assert_true(fabs(loss_of(&w) - factor * loss) <= 1e-8);
    for (int64_t i = 0; i < r.args.rows; i++)
        assert_true(fabs((double)w.weight[i] - factor * (double)r.weight[i]) <=
                    1e-6 * fabs((double)w.weight[i]));
    w.args.log_squares = NULL;
    if (tsr_objective_ref(&w.args, test_pool(0)) != TSR_EINVAL)
        fail_msg("weighting without log_squares");
    objective_end(&r);
    objective_end(&w);
}

/* The same bits whatever the pool, and sums alone. */
static void test_sums(void **state)
{
    (void)state;
    for (int i = 0; i < OBJECTIVE_CASES; i++) {
        objective_run r, other;
        objective_begin(&r, &objective_cases[i], 10, 3);
        objective_begin(&other, &objective_cases[i], 10, 3);
        loss_of(&r);
        other.args.weight = NULL;
        other.args.objective = NULL;
        RUN(tsr_objective_ref(&other.args, test_pool(2)));
        assert_int_equal(other.loss, 0);
        for (int64_t p = 0; p < TSR_PARTS * 10; p++) {
            double sum = 0;
            for (int32_t j = r.part[p]; j < r.part[p + 1]; j++)
                sum -= r.nll[j];
            assert_true(other.sums[p] == sum && r.sums[p] == sum);
        }
        objective_end(&r);
        objective_end(&other);
    }
}

/* Means over the rows of a class, and how many micro-batches have it. */
static void test_classes(void **state)
{
    (void)state;
    const objective_case *kto = &objective_cases[OBJECTIVE_CASES - 2];
    for (int good = 0; good < 2; good++) {
        objective_run r;
        double mean = 0;
        objective_begin(&r, kto, 6, 1);
        for (int i = 0; i < 3; i++)
            r.desirable[i] = good;
        loss_of(&r);
        for (int i = 0; i < 3; i++)
            mean += r.sums[TSR_PARTS * 2 * i + TSR_PART_COMPLETION] / 3;
        int there = good ? TSR_PREFERENCE_LOGP_CHOSEN : TSR_PREFERENCE_LOGP_REJECTED;
        int gone = good ? TSR_PREFERENCE_LOGP_REJECTED : TSR_PREFERENCE_LOGP_CHOSEN;
        assert_true(fabs(ldexp((double)r.words[there], -TSR_LOSS_SHIFT) - mean) < 1e-8);
        assert_int_equal(r.words[gone], 0);
        assert_int_equal(r.words[TSR_PREFERENCE_CHOSEN_IN], good);
        assert_int_equal(r.words[TSR_PREFERENCE_REJECTED_IN], !good);
        assert_int_equal(r.words[TSR_PREFERENCE_BOTH_IN], 0);
        assert_int_equal(r.words[TSR_PREFERENCE_MARGIN], 0);
        objective_end(&r);
    }
}

/* Far from the reference losses are finite; what is not is said, and nothing is added. */
static void test_extremes(void **state)
{
    (void)state;
    for (int i = 0; i < OBJECTIVE_CASES; i++) {
        const objective_case *c = &objective_cases[i];
        bool exponential = c->objective.divergence != TSR_DIVERGENCE_REVERSE_KL;
        objective_run r;
        objective_begin(&r, c, 4, 1);
        for (int64_t p = 0; p < TSR_PARTS * 4 && !exponential; p++)
            r.reference[p] += p % 5 ? 4000 : -4000;
        loss_of(&r);
        for (int64_t row = 0; row < r.args.rows; row++)
            assert_true(isfinite(r.weight[row]));
        r.nll[0] = NAN;
        r.loss = 0;
        memset(r.words, 0, sizeof r.words);
        RUN(tsr_objective_ref(&r.args, test_pool(0)));
        assert_int_equal(r.overflow, 1);
        assert_int_equal(r.loss, 0);
        for (int w = 0; w < TSR_PREFERENCE_WORDS; w++)
            assert_int_equal(r.words[w], 0);
        for (int64_t row = 0; row < r.args.rows; row++)
            assert_true(r.weight[row] == 0);
        objective_end(&r);
    }
}

/* Pairs of the same tokens count as wrong, whichever reward is larger by rounding. */
static void test_ties(void **state)
{
    (void)state;
    objective_run r;
    objective_begin(&r, &objective_cases[0], 6, 1);
    for (int tied = 0; tied < 2; tied++) {
        for (int i = 0; i < 3; i++) {
            r.desirable[i] = tied;
            r.reference[TSR_PARTS * 2 * i + TSR_PART_COMPLETION] = -100;
        }
        memset(r.words, 0, sizeof r.words);
        loss_of(&r);
        assert_true(fabs(ldexp((double)r.words[TSR_PREFERENCE_ACCURACY], -TSR_LOSS_SHIFT) - !tied) <
                    1e-8);
    }
    objective_end(&r);
}

/* An answer that is predicted with certainty, and nearly so. */
static void test_certain(void **state)
{
    (void)state;
    const objective_case orpo = {"orpo", {.kind = TSR_OBJECTIVE_ORPO, .count = 1}, false, false};
    objective_run r;
    objective_begin(&r, &orpo, 2, 1);
    for (int32_t i = 0; i < r.part[TSR_PARTS]; i++)
        r.nll[i] = 1e-12;
    assert_true(loss_of(&r) < 1e-3);
    assert_true(isfinite(r.weight[0]));
    for (int32_t i = 0; i < r.part[TSR_PARTS]; i++)
        r.nll[i] = 0;
    RUN(tsr_objective_ref(&r.args, test_pool(0)));
    assert_int_equal(r.overflow, 1);
    objective_end(&r);
}

static void test_scale_rows(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{0, 3}, {1, 1}, {5, 7}, {300, 256}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int pool = 0; pool < POOL_COUNT; pool++) {
            int64_t rows = shapes[s][0], d = shapes[s][1];
            float *x = new_random(rows * d, 3, 2), *was = new_random(rows * d, 3, 2);
            float *weight = new_random(rows, 4, 1);
            RUN(tsr_scale_rows_ref(
                &(tsr_scale_rows_args){
                    .x = x, .weight = weight, .rows = rows, .d = d, .dtype = TSR_F32},
                test_pool(pool)));
            for (int64_t i = 0; i < rows * d; i++)
                assert_true(x[i] == was[i] * weight[i / d]);
            free(x), free(was), free(weight);
        }
}

static void refuse(objective_run *r, const char *word)
{
    if (tsr_objective_ref(&r->args, test_pool(0)) != TSR_EINVAL || !strstr(tsr_last_error(), word))
        fail_msg("expected a refusal with '%s', the last error is '%s'", word, tsr_last_error());
}

static void test_refusals(void **state)
{
    (void)state;
    objective_run r;
    objective_begin(&r, &objective_cases[0], 4, 1);
    r.args.documents = 3;
    refuse(&r, "documents");
    r.args.documents = 4;
    r.part[2]++;
    r.part[1] = r.part[2] + 1;
    refuse(&r, "not in order");
    objective_end(&r);
    objective_begin(&r, &objective_cases[0], 4, 1);
    r.objective.loss[0] = TSR_PREFER_SIMPO;
    refuse(&r, "no such objective or loss");
    r.objective.loss[0] = TSR_PREFER_SIGMOID;
    r.args.words = NULL;
    refuse(&r, "words is NULL");
    r.args.words = r.words;
    r.objective.kind = TSR_OBJECTIVE_SFT;
    refuse(&r, "no such objective");
    objective_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slopes),   cmocka_unit_test(test_weighting),
        cmocka_unit_test(test_sums),     cmocka_unit_test(test_classes),
        cmocka_unit_test(test_ties),     cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_certain),  cmocka_unit_test(test_scale_rows),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
