/*
 * Proofs 2 and 3 of the scheduler: streams are real threads with random delays, slots are poisoned
 * on release, and the result is that of a serial run, bit for bit, for every home and number of
 * ranks. No more than `slots` slots are alive, and the memory taken is the memory planned.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shard/toy.h"

#include <stdio.h>
#include <string.h>

#ifdef TSR_SANITIZED
#define MIXED_RUNS 10
#else
#define MIXED_RUNS 40
#endif

static void fix_model(random_model *model, uint64_t seed, int home, int ranks, int replicas,
                      bool train)
{
    random_source random = {.key = seed};
    random_limits limits = {
        .max_layers = 5, .max_chunks = 3, .max_ranks = 1, .max_replicas = 1, .home = home};
    random_model_make(model, &random, &limits);
    model->options.ranks = ranks;
    model->options.replicas = replicas;
    model->options.train = train;
    for (int u = 0; u < model->options.unit_count; u++)
        assert_int_equal(tsr_unit_lay_out(&model->unit[u], ranks), TSR_OK);
}

static bool words_equal(const toy_outcome *a, const toy_outcome *b)
{
    return a->word_count == b->word_count &&
           memcmp(a->word, b->word, (size_t)a->word_count * sizeof a->word[0]) == 0;
}

/* Runs the job on ranks and serially and compares everything. */
static void compare(const toy_job *job, const char *what)
{
    const tsr_plan_options *o = &job->model->options;
    toy_outcome serial, out[4];
    toy_report report[16];
    toy_outcome_make(&serial, job->model);
    for (int i = 0; i < o->replicas; i++)
        toy_outcome_make(&out[i], job->model);
    toy_run_serial(&serial, job);
    toy_run_threads(report, out, job);
    for (int i = 0; i < o->ranks * o->replicas; i++) {
        if (report[i].status != TSR_OK)
            fail_msg("%s, rank %d: %s", what, i, report[i].message);
        assert_in_range(report[i].live_most, 0, o->slots);
    }
    for (int i = 0; i < o->replicas; i++) {
        /* An evaluation alone keeps no masters. */
        bool same = o->train ? toy_outcome_equal(&serial, &out[i]) : words_equal(&serial, &out[i]);
        if (!same)
            fail_msg("%s: replica %d is not equal to the serial run (%d words, %d)", what, i,
                     out[i].word_count, serial.word_count);
        toy_outcome_free(&out[i]);
    }
    assert_true(serial.word[0][TSR_WORD_LOSS] != 0);
    toy_outcome_free(&serial);
}

static void test_homes_and_ranks(void **state)
{
    (void)state;
    static const int ranks[] = {1, 2, 3, 4, 8};
    for (int home = 0; home < TSR_HOME_COUNT; home++)
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
            random_model model;
            char what[64];
            fix_model(&model, 40 + (uint64_t)home, home, ranks[i], 1, true);
            snprintf(what, sizeof what, "%s on %d ranks", tsr_home_name((tsr_home)home), ranks[i]);
            toy_job job = {.model = &model,
                           .steps = 4,
                           .micro_batches = 5,
                           .eval_micro_batches = 3,
                           .delay_seed = 1 + (uint64_t)home,
                           .debug = {.poison_slots = true, .check = true}};
            compare(&job, what);
        }
}

static void test_mixed(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= MIXED_RUNS; seed++) {
        random_source random = {.key = seed};
        random_model model;
        char what[64];
        int ranks = 1 + (int)random_below(&random, 4);
        int replicas = 1 + (int)random_below(&random, 2);
        fix_model(&model, 900 + seed, -1, ranks, replicas, random_below(&random, 8) != 0);
        snprintf(what, sizeof what, "seed %d, %d ranks x %d replicas", (int)seed, ranks, replicas);
        toy_job job = {.model = &model,
                       .steps = 3,
                       .micro_batches = 1 + (int)random_below(&random, 9),
                       .eval_micro_batches = 1 + (int)random_below(&random, 6),
                       .delay_seed = seed % 3 ? seed : 0,
                       .debug = {.poison_slots = true, .check = true}};
        compare(&job, what);
    }
}

/* Without delays and without debug options, as a real run. */
static void test_plain(void **state)
{
    (void)state;
    random_model model;
    fix_model(&model, 77, TSR_HOME_SHARDED, 3, 1, true);
    toy_job job = {.model = &model, .steps = 8, .micro_batches = 7, .eval_micro_batches = 4};
    compare(&job, "plain");
}

static void test_log(void **state)
{
    (void)state;
    random_model model;
    fix_model(&model, 5, TSR_HOME_HOST_SHARDED, 2, 1, true);
    toy_job job = {.model = &model, .steps = 3, .micro_batches = 4};
    toy_report report[2];
    toy_run_threads(report, NULL, &job);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(report[i].status, TSR_OK);
        assert_int_equal(report[i].logged, 64);
        assert_true(report[i].last.issue <= report[i].last.end);
        assert_true(report[i].last.start <= report[i].last.end);
        assert_true(report[i].exposed.gather >= 0 && report[i].exposed.h2d >= 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain),
                                       cmocka_unit_test(test_homes_and_ranks),
                                       cmocka_unit_test(test_mixed), cmocka_unit_test(test_log)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
