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
    random_model_set(model, ranks, replicas, train);
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

/* Sums on their way to their owners: the same as of fp32, with some units wide, or all, and gradient buffers for
 * each unit or in turns; what is lost in one of several contributions discards the step. */
static void test_wide(void **state)
{
    (void)state;
    static const int ranks[][2] = {{1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 2}};
    for (int i = 0; i < 5; i++)
        for (int way = 0; way < 6; way++) {
            random_model model;
            char what[64];
            fix_model(&model, 502, TSR_HOME_SHARDED, ranks[i][0], ranks[i][1], true);
            for (int u = 0; u < model.options.layer_count; u++) {
                model.unit[u].wide = way % 3 == 2 || (way % 3 == 1 && u % 2);
                model.unit[u].keeps_trainable = way / 3;
            }
            snprintf(what, sizeof what, "way %d to be wide, %d ranks x %d replicas", way,
                     ranks[i][0], ranks[i][1]);
            toy_job job = {.model = &model,
                           .steps = 3,
                           .micro_batches = 5, /* some ranks have empty ones */
                           .lost_step = 1,
                           .debug = {.poison_slots = true, .check = true}};
            compare(&job, what);
        }
}

/* A micro-batch a step: sums are rounded at once. A second one is refused. */
static void test_one_round(void **state)
{
    (void)state;
    static const int ranks[][2] = {{1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 2}};
    for (int i = 0; i < 5; i++)
        for (int way = 0; way < 4; way++) {
            random_model model;
            char what[64];
            fix_model(&model, 610 + (uint64_t)way, -1, ranks[i][0], ranks[i][1], true);
            model.options.one_round = true;
            if (way % 2)
                random_model_make_full(&model);
            for (int u = 0; u < model.options.layer_count; u++)
                model.unit[u].wide = way / 2;
            snprintf(what, sizeof what, "one round, way %d, %d ranks x %d replicas", way,
                     ranks[i][0], ranks[i][1]);
            int all = ranks[i][0] * ranks[i][1];
            toy_job job = {.model = &model,
                           .steps = 4,
                           .micro_batches = all > 2 ? all - 1 : all,
                           .eval_micro_batches = all + 1,
                           .discard_step = 2,
                           .misuse = true,
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

/* A discarded step, a second prologue, calls out of order. */
static void test_order_of_calls(void **state)
{
    (void)state;
    random_model model;
    fix_model(&model, 21, TSR_HOME_HOST_FULL, 2, 2, true);
    toy_job job = {.model = &model,
                   .steps = 6,
                   .micro_batches = 5,
                   .eval_micro_batches = 2,
                   .discard_step = 2,
                   .restart_step = 4,
                   .misuse = true};
    compare(&job, "order of calls");
    job.restart_step = 3; /* right after a step of training */
    compare(&job, "order of calls");
}

/* Activations and optimizer state through the device, in every home, with delays, poison, a step that
 * is discarded and evaluations in between. */
static void test_offload(void **state)
{
    (void)state;
    for (int home = 0; home < TSR_HOME_COUNT; home++)
        for (int ranks = 1; ranks <= 3; ranks++) {
            random_model model;
            char what[64];
            fix_model(&model, 300 + (uint64_t)home, home, ranks, 1, true);
            random_model_make_full(&model);
            snprintf(what, sizeof what, "offload, %s on %d ranks", tsr_home_name((tsr_home)home),
                     ranks);
            toy_job job = {.model = &model,
                           .steps = 5,
                           .micro_batches = 4, /* one rank of three has an empty one */
                           .eval_micro_batches = 2,
                           .discard_step = 3,
                           .delay_seed = 1 + (uint64_t)(4 * home + ranks),
                           .debug = {.poison_slots = true, .check = true}};
            compare(&job, what);
        }
}

/* ---- a wrong plan is noticed ---- */

/* `keeps`: trainable parts have places of their own instead of the slots. */
static void expect_error(void (*tamper)(tsr_plan *plan), uint32_t delay_ms, bool keeps,
                         const char *expected)
{
    random_model model;
    toy_report report[2];
    fix_model(&model, 60, TSR_HOME_SHARDED, 2, 1, true);
    random_model_make_full(&model);
    for (int u = 0; u < model.options.layer_count; u++)
        model.unit[u].keeps_trainable = keeps;
    toy_job job = {.model = &model,
                   .steps = 2,
                   .micro_batches = 4,
                   .tamper = tamper,
                   .debug = {.check = true}};
    if (delay_ms > 0) {
        job.debug.fault = TSR_FAULT_DELAY;
        job.debug.delay_ms = delay_ms;
        job.debug.kind = TSR_OP_GATHER;
    }
    toy_run_threads(report, NULL, &job);
    for (int i = 0; i < 2; i++) {
        bool mine = report[i].status == TSR_EINTERNAL && strstr(report[i].message, expected);
        if (!mine && report[i].status != TSR_ECOMM)
            fail_msg("rank %d: %s: %s", i, tsr_status_name(report[i].status), report[i].message);
    }
    assert_true(report[0].status == TSR_EINTERNAL || report[1].status == TSR_EINTERNAL);
}

static void each_op(tsr_plan *plan, void (*change)(tsr_plan_op *op))
{
    for (int p = 0; p < plan->program_count; p++)
        for (int i = 0; i < plan->program[p].op_count; i++)
            change(&plan->program[p].op[i]);
}

static void wait_too_far(tsr_plan_op *op)
{
    if (op->kind == TSR_OP_REDUCE)
        op->wait[0].count++;
}

static void tamper_generation(tsr_plan *plan)
{
    each_op(plan, wait_too_far);
}

static void other_slot(tsr_plan_op *op)
{
    if (op->kind == TSR_OP_COMPUTE && op->phase == TSR_USE_HEAD)
        op->slot ^= 1;
}

static void tamper_slot(tsr_plan *plan)
{
    each_op(plan, other_slot);
}

static void no_update(tsr_plan_op *op)
{
    if (op->kind == TSR_OP_GATHER_T)
        op->unit = 0;
}

static void tamper_trainable(tsr_plan *plan)
{
    each_op(plan, no_update);
}

static void other_region(tsr_plan_op *op)
{
    if (op->kind == TSR_OP_LOAD)
        op->region ^= 1;
}

static void tamper_region(tsr_plan *plan)
{
    each_op(plan, other_region);
}

static void test_broken_plan(void **state)
{
    (void)state;
    expect_error(tamper_region, 0, false, "finds layer");          /* I6, when issued */
    expect_error(tamper_generation, 0, false, "waits for record"); /* I4 */
    expect_error(tamper_slot, 0, false, "is used in slot");        /* I6, when issued */
    expect_error(tamper_trainable, 0, false, "is used in slot");
    expect_error(tamper_trainable, 0, true, "is used after update");
}

#ifndef __SANITIZE_THREAD__ /* it would rightly report the race that is made here */
static void no_ready(tsr_plan_op *op)
{
    if (op->kind == TSR_OP_COMPUTE || op->kind == TSR_OP_NORM)
        op->wait_count = 0;
}

static void tamper_ready(tsr_plan *plan)
{
    each_op(plan, no_ready);
}

static void test_missing_wait(void **state)
{
    (void)state;
    expect_error(tamper_ready, 300, false, "instead of fill"); /* I6, on the device */
}
#endif

static void assert_near(double a, double b)
{
    if (!(a - b < 1e-5 && b - a < 1e-5))
        fail_msg("%.9g and %.9g", a, b);
}

/* Times by calls of the streams and by timed events, as on a GPU; more of them under way than there
 * are events. */
static void test_log(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        bool timed = i & 1, many = i & 2, staged = i & 4;
        random_model model;
        fix_model(&model, 5, staged ? TSR_HOME_HOST_SHARDED : TSR_HOME_SHARDED, 2, 1, true);
        random_model_make_full(&model);
        toy_job job = {.model = &model,
                       .steps = 3,
                       .micro_batches = many ? 200 : 4,
                       .delay_seed = many ? 0 : 7,
                       .log_count = 1 << 16,
                       .debug = {.timed = timed}};
        toy_report report[2];
        toy_run_threads(report, NULL, &job);
        for (int rank = 0; rank < 2; rank++) {
            const toy_report *r = &report[rank];
            const uint64_t *ops = r->logged_of_kind;
            uint64_t uses = (uint64_t)(2 * model.options.layer_count);
            uint64_t micro_batches = 3 * (uint64_t)job.micro_batches / 2;
            if (r->status != TSR_OK)
                fail_msg("%s", r->message);
            assert_int_equal(r->disorders, 0);
            assert_true(ops[TSR_OP_COMPUTE] > micro_batches * uses / 2);
            assert_int_equal(ops[TSR_OP_COMPUTE] % micro_batches, 0);
            assert_true(ops[TSR_OP_GATHER] > 0 && (ops[TSR_OP_H2D] > 0) == staged);
            assert_int_equal(ops[TSR_OP_GRAD_NORM], 3);
            assert_int_equal(ops[TSR_OP_CONTROL], 3);
            assert_int_equal(ops[TSR_OP_OPTIM], 9); /* three chunks */
            assert_int_equal(ops[TSR_OP_LOAD_STATE], 9);
            assert_int_equal(ops[TSR_OP_SAVE_STATE], 9);
            assert_true(ops[TSR_OP_SAVE] > 0 && ops[TSR_OP_SAVE] == ops[TSR_OP_LOAD]);
            assert_int_equal(ops[TSR_OP_SAVE] % micro_batches, 0);
            assert_int_equal(ops[TSR_OP_WORD], 3);
            assert_true(r->exposed.gather > 0);
            assert_near(r->exposed.h2d, r->logged_exposed[0]);
            assert_near(r->exposed.gather, r->logged_exposed[1]);
            assert_near(r->exposed.reduce, r->logged_exposed[2]);
            assert_near(r->exposed.load, r->logged_exposed[3]);
            assert_near(r->exposed.save, r->logged_exposed[4]);
            assert_near(r->exposed.other, r->logged_exposed[5]);
            assert_true((r->exposed.h2d > 0) <= staged);
        }
    }
}

/* A short trace holds the last records. */
static void test_short_log(void **state)
{
    (void)state;
    random_model model;
    fix_model(&model, 5, TSR_HOME_HOST_SHARDED, 2, 1, true);
    toy_job job = {.model = &model, .steps = 3, .micro_batches = 4};
    toy_report report[2];
    toy_run_threads(report, NULL, &job);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(report[rank].status, TSR_OK);
        assert_int_equal(report[rank].logged, 64);
        assert_int_equal(report[rank].logged_of_kind[TSR_OP_WORD], 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),        cmocka_unit_test(test_homes_and_ranks),
        cmocka_unit_test(test_mixed),        cmocka_unit_test(test_order_of_calls),
        cmocka_unit_test(test_offload),      cmocka_unit_test(test_broken_plan),
        cmocka_unit_test(test_wide),         cmocka_unit_test(test_one_round),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(test_missing_wait),
#endif
        cmocka_unit_test(test_log),          cmocka_unit_test(test_short_log)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
