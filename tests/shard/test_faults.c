/*
 * Proof 4 of the scheduler, the fault matrix: one rank fails, hangs or is slow at an op of every kind.
 * Every rank ends, each with the right status; the step of the fault is discarded on all of them. (A
 * killed rank: test_mpi.c.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shard/toy.h"

#include <stdio.h>
#include <string.h>

#define MAX_RANKS 6

/* Host shards, norms, activations and optimizer state on the host, so that every kind of op is there. */
static void make_model(random_model *model, int ranks, int replicas)
{
    random_source random = {.key = 3};
    random_limits limits = {.max_layers = 3,
                            .max_chunks = 2,
                            .max_ranks = 1,
                            .max_replicas = 1,
                            .home = TSR_HOME_HOST_SHARDED};
    do
        random_model_make(model, &random, &limits);
    while (model->options.layer_count < 3 || model->unit[0].trainable.segment_count == 0);
    random_model_set(model, ranks, replicas, true);
    random_model_make_full(model);
}

static toy_job make_job(const random_model *model, tsr_fault fault, tsr_op_kind kind, int rank)
{
    return (toy_job){.model = model,
                     .steps = 4,
                     .micro_batches = 5,
                     .eval_micro_batches = 2,
                     .fault_rank = rank,
                     .debug = {.fault = fault, .kind = kind, .delay_ms = 30}};
}

/* Before the first OPTIM: no rank may have changed anything. (The first LOAD_STATE runs beside the
 * reduction of the control word, which the other ranks may have by then.) */
static bool discards_first_step(tsr_op_kind kind)
{
    return kind != TSR_OP_OPTIM && kind != TSR_OP_WORD && kind != TSR_OP_TALLY &&
           kind != TSR_OP_LOAD_STATE && kind != TSR_OP_SAVE_STATE;
}

static void fail_at(tsr_op_kind kind, int ranks, int replicas, int rank)
{
    random_model model;
    toy_report report[MAX_RANKS];
    make_model(&model, ranks, replicas);
    toy_job job = make_job(&model, TSR_FAULT_FAIL, kind, rank);
    toy_run_threads(report, NULL, &job);
    for (int i = 0; i < ranks * replicas; i++) {
        tsr_status expected = i == rank ? TSR_EDEVICE : TSR_ECOMM;
        if (report[i].status != expected)
            fail_msg("failure at %s of rank %d: rank %d ends with %s: %s", tsr_op_name(kind), rank,
                     i, tsr_status_name(report[i].status), report[i].message);
        /* Everybody says what happened, and where. */
        if (!strstr(report[i].message, "injected failure"))
            fail_msg("failure at %s: rank %d says: %s", tsr_op_name(kind), i, report[i].message);
        if (discards_first_step(kind) && report[i].updates != 0)
            fail_msg("failure at %s: rank %d has updated %d times", tsr_op_name(kind), i,
                     report[i].updates);
    }
}

static void test_fail(void **state)
{
    (void)state;
    for (int kind = 0; kind < TSR_OP_COUNT; kind++) {
        fail_at((tsr_op_kind)kind, 3, 1, kind % 3);
        fail_at((tsr_op_kind)kind, 2, 2, (kind + 1) % 4);
    }
}

static void test_stop(void **state)
{
    (void)state;
    for (int kind = 0; kind < TSR_OP_COUNT; kind++) {
        random_model model;
        toy_report report[MAX_RANKS];
        make_model(&model, 3, 1);
        toy_job job = make_job(&model, TSR_FAULT_STOP, (tsr_op_kind)kind, (kind + 1) % 3);
        job.timeout_seconds = 1;
        toy_run_threads(report, NULL, &job);
        bool timed_out = false;
        for (int i = 0; i < 3; i++) {
            timed_out |= report[i].status == TSR_ETIMEOUT;
            if (report[i].status != TSR_ETIMEOUT && report[i].status != TSR_ECOMM)
                fail_msg("hang at %s: rank %d ends with %s: %s", tsr_op_name((tsr_op_kind)kind), i,
                         tsr_status_name(report[i].status), report[i].message);
            if (discards_first_step((tsr_op_kind)kind))
                assert_int_equal(report[i].updates, 0);
        }
        assert_true(timed_out);
    }
}

/* Every kind of op is really there. */
static void test_kinds(void **state)
{
    (void)state;
    random_model model;
    tsr_plan *plan;
    bool seen[TSR_OP_COUNT] = {0};
    make_model(&model, 3, 1);
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_OK);
    for (int p = 0; p < plan->program_count; p++)
        for (int i = 0; i < plan->program[p].op_count; i++)
            seen[plan->program[p].op[i].kind] = true;
    for (int kind = 0; kind < TSR_OP_COUNT; kind++)
        assert_true(seen[kind]);
    tsr_plan_destroy(plan);
}

static void test_delay(void **state)
{
    (void)state;
    random_model model;
    make_model(&model, 3, 1);
    toy_job job = make_job(&model, TSR_FAULT_NONE, TSR_OP_H2D, 0);
    toy_outcome serial;
    toy_outcome_make(&serial, &model);
    toy_run_serial(&serial, &job);
    for (int kind = 0; kind < TSR_OP_COUNT; kind++)
        for (uint64_t index = 0; index < 3; index++) {
            toy_report report[MAX_RANKS];
            toy_outcome out;
            toy_outcome_make(&out, &model);
            job = make_job(&model, TSR_FAULT_DELAY, (tsr_op_kind)kind, kind % 3);
            job.debug.index = index;
            job.debug.check = job.debug.poison_slots = true;
            toy_run_threads(report, &out, &job);
            for (int i = 0; i < 3; i++)
                assert_int_equal(report[i].status, TSR_OK);
            assert_true(toy_outcome_equal(&serial, &out));
            toy_outcome_free(&out);
        }
    toy_outcome_free(&serial);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds), cmocka_unit_test(test_fail),
                                       cmocka_unit_test(test_stop), cmocka_unit_test(test_delay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
