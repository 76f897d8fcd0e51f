/*
 * The simulation of a plan against times that were worked out by hand.
 *
 * Three layers and two chunks of the head, two ranks, two slots. A step that runs in begins with units 0
 * and 1 in slots (test_plan, test_sharded):
 *
 *     F0  G2 F1  G3 F2  G4 H3  G2 H4  G1 B2 R2  G0 B1 R1  B0 R0  norm control word optim T0 T1
 *
 * and each G waits for the slot that the use before its neighbour leaves. Below every use of a unit takes
 * c, every gather g, and what is not named nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shard/random_plan.h"
#include "shard/simulate.h"

#include <math.h>

/* What each kind of op costs; a use of a unit in `unit`. */
typedef struct {
    double kind[TSR_OP_COUNT], unit[MAX_UNITS], slows;
} costs;

static tsr_op_cost cost_of(void *user, const tsr_plan_op *op)
{
    const costs *c = user;
    double seconds = c->kind[op->kind];
    if (op->kind == TSR_OP_COMPUTE && c->unit[op->unit] > 0)
        seconds = c->unit[op->unit];
    return (tsr_op_cost){.seconds = seconds,
                         .slows = op->stream == TSR_STREAM_COMPUTE ? 0 : c->slows};
}

static tsr_simulation simulate(const random_model *model, const costs *c, int64_t rounds)
{
    tsr_simulation out;
    tsr_plan *plan;
    if (tsr_plan_compile(&plan, &model->options) < 0 ||
        tsr_plan_simulate(&out, plan, rounds, cost_of, (void *)c) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_plan_destroy(plan);
    return out;
}

static void expect(double found, double expected)
{
    if (!(fabs(found - expected) < 1e-9))
        fail_msg("%.12g, not %.12g", found, expected);
}

/* Gathers that are no longer than a use hide behind it: 3 F, 2 H, 3 B. */
static void test_computation_bounds(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 3, 2, 2, TSR_HOME_SHARDED);
    for (double g = 0; g <= 5; g += 2.5) {
        const costs c = {.kind = {[TSR_OP_COMPUTE] = 5, [TSR_OP_GATHER] = g}};
        tsr_simulation s = simulate(&model, &c, 1);
        expect(s.step, 8 * 5);
        expect(s.busy[TSR_STREAM_COMPUTE], 8 * 5);
        expect(s.busy[TSR_STREAM_COMM], 6 * g);
        expect(s.exposed[TSR_CAUSE_GATHER], 0);
    }
    /* A second micro-batch begins where the first ended, and gathers and computes the same. */
    const costs c = {.kind = {[TSR_OP_COMPUTE] = 5, [TSR_OP_GATHER] = 5}};
    expect(simulate(&model, &c, 3).step, 3 * 8 * 5);
    expect(simulate(&model, &c, 1000).step, 1000 * 8 * 5); /* not one by one */
    expect(simulate(&model, &c, 1000).busy[TSR_STREAM_COMPUTE], 1000 * 8 * 5);
}

/* Longer ones follow each other without a gap from the end of F0 to B0: c + 6 g + c, of which 8 c are
 * computation. */
static void test_gathers_bound(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 3, 2, 2, TSR_HOME_SHARDED);
    const costs c = {.kind = {[TSR_OP_COMPUTE] = 5, [TSR_OP_GATHER] = 8}};
    tsr_simulation s = simulate(&model, &c, 1);
    expect(s.step, 5 + 6 * 8 + 5);
    expect(s.exposed[TSR_CAUSE_GATHER], 6 * 8 - 6 * 5);
}

/* While F1 takes 20, one slot is its own and the other is filled already: G3 begins when F1 ends and
 * not before, F2 covers 5 of its 8, and H3 waits for 3. Then as above, with a gather of 8 for each
 * use of 5 until B0; B1 takes 20 as well and covers G0. */
static void test_two_slots_limit(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 3, 2, 2, TSR_HOME_SHARDED);
    const costs c = {.kind = {[TSR_OP_COMPUTE] = 5, [TSR_OP_GATHER] = 8}, .unit = {[1] = 20}};
    tsr_simulation s = simulate(&model, &c, 1);
    /* F0 5, F1 25, G3 25-33, F2 30, H3 33-38, G4 33-41, H4 41-46, G2 41-49, B2 49-54, G1 49-57, B1
     * 57-77, G0 57-65, B0 82 */
    expect(s.step, 82);
    expect(s.exposed[TSR_CAUSE_GATHER], 3 + 3 + 3 + 3);
    /* With a third slot G3 is there when F2 ends, and what follows is ahead as well. */
    model.options.slots = 3;
    assert_true(simulate(&model, &c, 1).step < 82);
}

/* What a gather waits for its copy is the copy's blame. The first of a step has nothing to do with the
 * step before: copies go ahead of slots. */
static void test_copies_bound(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 3, 2, 2, TSR_HOME_HOST_SHARDED);
    const costs c = {.kind = {[TSR_OP_COMPUTE] = 5, [TSR_OP_H2D] = 12, [TSR_OP_GATHER] = 1}};
    tsr_simulation s = simulate(&model, &c, 1);
    expect(s.step, 6 * 12); /* the copies never stop */
    expect(s.busy[TSR_STREAM_H2D], 6 * 12);
    double waited =
        s.exposed[TSR_CAUSE_H2D] + s.exposed[TSR_CAUSE_GATHER] + s.exposed[TSR_CAUSE_OTHER];
    expect(waited, 6 * 12 - 8 * 5);
    assert_true(s.exposed[TSR_CAUSE_H2D] > s.exposed[TSR_CAUSE_GATHER]);
}

/* Nothing to gather: a chain, and the update at its end, which the next step waits for. */
static void test_one_rank(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 3, 2, 1, TSR_HOME_SHARDED);
    const costs c = {.kind = {[TSR_OP_COMPUTE] = 5,
                              [TSR_OP_REDUCE] = 2,
                              [TSR_OP_GRAD_NORM] = 1,
                              [TSR_OP_CONTROL] = 0.5,
                              [TSR_OP_OPTIM] = 3}};
    tsr_simulation s = simulate(&model, &c, 1);
    expect(s.step, 8 * 5 + 2 + 1 + 0.5 + 3);
    expect(s.exposed[TSR_CAUSE_OTHER], 2 + 1 + 0.5 + 3);
    expect(simulate(&model, &c, 4).step, 4 * 8 * 5 + 2 + 1 + 0.5 + 3);
}

/* REDUCE of the layer before last holds its gradient buffer: with reductions of 12, B0 must wait for
 * that of B2, and the step for the other two. */
static void test_reductions(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 3, 2, 1, TSR_HOME_SHARDED);
    const costs c = {.kind = {[TSR_OP_COMPUTE] = 5, [TSR_OP_REDUCE] = 12}};
    tsr_simulation s = simulate(&model, &c, 1);
    /* F, H 25; B2 30, R2 42; B1 35, R1 54; B0 42-47, R0 66 */
    expect(s.step, 66);
    expect(s.exposed[TSR_CAUSE_REDUCE], 7);
    expect(s.exposed[TSR_CAUSE_OTHER], 66 - 47);
}

/* Three layers of two chunks of optimizer state each, and two buffers. The first layer's state is there when the norm
 * is known. Then copies run both ways at once, each behind what leaves its buffer: chunk c + 2 arrives 2 copies after
 * chunk c does. */
static void test_state_travels(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 3, 2, 1, TSR_HOME_SHARDED);
    model.options.chunk_elements = 3 * TSR_GRANULE_ELEMENTS;
    model.options.state_buffers = 2;
    costs c = {
        .kind = {[TSR_OP_COMPUTE] = 5, [TSR_OP_LOAD_STATE] = 2.5, [TSR_OP_SAVE_STATE] = 2.5}};
    /* F1 wants chunk 3: 0 and 1 are stored at 2.5 and 5, 2 and 3 there at 5 and 7.5; 5 at 12.5. */
    tsr_simulation s = simulate(&model, &c, 1);
    expect(s.step, 8 * 5 + 2.5);
    expect(s.exposed[TSR_CAUSE_OTHER], 2.5);
    expect(s.busy[TSR_STREAM_STATE_IN], 6 * 2.5);
    expect(s.busy[TSR_STREAM_STATE_OUT], 6 * 2.5);
    /* With a buffer more, all that F1 wants is there one copy earlier. */
    model.options.state_buffers = 3;
    expect(simulate(&model, &c, 1).step, 8 * 5);
    /* With buffers for all nothing comes from the host between two steps, whatever it takes. */
    model.options.state_buffers = 6;
    c.kind[TSR_OP_SAVE_STATE] = 4;
    expect(simulate(&model, &c, 1).step, 8 * 5);
    /* Ones that are slower than the forward bound it, not the sum of both ways: of 6 chunks 4 go behind the first
     * copy out. */
    model.options.state_buffers = 2;
    c.kind[TSR_OP_LOAD_STATE] = c.kind[TSR_OP_SAVE_STATE] = 4;
    expect(simulate(&model, &c, 1).exposed[TSR_CAUSE_OTHER], 4 + 4 * 4 - 2 * 5);
}

/* A frozen part that comes from the host beside the state has half of the link, and does not wait behind it. */
static void test_link_is_shared(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 3, 2, 1, TSR_HOME_HOST_FULL);
    model.options.chunk_elements = 3 * TSR_GRANULE_ELEMENTS;
    model.options.state_buffers = 2;
    costs c = {.kind = {[TSR_OP_COMPUTE] = 5, [TSR_OP_H2D] = 2, [TSR_OP_LOAD_STATE] = 1}};
    tsr_simulation s = simulate(&model, &c, 1);
    expect(s.step, 8 * 5);
    assert_true(s.busy[TSR_STREAM_H2D] > 6 * 2);
    assert_true(s.busy[TSR_STREAM_H2D] < 6 * 2 + 6 * 1 + 1e-9);
}

/* Six gathers of 2 beside computation that they slow to the half: 1 more each. */
static void test_slowed(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 3, 2, 2, TSR_HOME_SHARDED);
    const costs c = {.kind = {[TSR_OP_COMPUTE] = 5, [TSR_OP_GATHER] = 2}, .slows = 0.5};
    tsr_simulation s = simulate(&model, &c, 1);
    expect(s.step, 8 * 5 + 6 * 1);
    expect(s.slowed, 6 * 1);
    /* Copies that are ahead of their slots, too. */
    plain_model_make(&model, 3, 2, 2, TSR_HOME_HOST_SHARDED);
    const costs ahead = {.kind = {[TSR_OP_COMPUTE] = 5, [TSR_OP_H2D] = 2}, .slows = 0.5};
    expect(simulate(&model, &ahead, 1).step, 8 * 5 + 6 * 1);
}

/* Of any plan: compute works or stands waiting, all the time, and no stream works longer than a step. */
static void test_any_plan(void **unused)
{
    (void)unused;
    const random_limits limits = {
        .max_layers = 6, .max_chunks = 3, .max_ranks = 4, .max_replicas = 2, .home = -1};
    for (uint64_t seed = 0; seed < 300; seed++) {
        random_source random = {.key = seed};
        random_model model;
        costs c = {.slows = (double)random_below(&random, 4) / 8};
        random_model_make(&model, &random, &limits);
        for (int i = 0; i < TSR_OP_COUNT; i++)
            c.kind[i] = (double)random_below(&random, 9);
        c.kind[TSR_OP_COMPUTE] += 1;
        tsr_simulation s = simulate(&model, &c, 1 + (int64_t)random_below(&random, 3));
        double compute = s.busy[TSR_STREAM_COMPUTE];
        for (int i = 0; i < TSR_CAUSE_COUNT; i++)
            compute += s.exposed[i];
        for (int i = 0; i < TSR_STREAM_COUNT; i++)
            assert_true(s.busy[i] < s.step * (1 + 1e-9));
        /* The four steps that are averaged may begin and end within an op, of at most 9. */
        assert_true(fabs(compute - s.step) <= 9.0 / 4);
    }
}

/* An evaluation: three F and two H; the gathers of 2, 3, 4, 0 and 1. */
static void test_evaluation(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 3, 2, 2, TSR_HOME_SHARDED);
    model.options.train = false;
    const costs c = {.kind = {[TSR_OP_COMPUTE] = 5, [TSR_OP_GATHER] = 2}};
    tsr_simulation s = simulate(&model, &c, 2);
    expect(s.step, 2 * 5 * 5);
    expect(s.busy[TSR_STREAM_COMM], 2 * 5 * 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_computation_bounds),
                                       cmocka_unit_test(test_gathers_bound),
                                       cmocka_unit_test(test_two_slots_limit),
                                       cmocka_unit_test(test_copies_bound),
                                       cmocka_unit_test(test_one_rank),
                                       cmocka_unit_test(test_reductions),
                                       cmocka_unit_test(test_state_travels),
                                       cmocka_unit_test(test_link_is_shared),
                                       cmocka_unit_test(test_slowed),
                                       cmocka_unit_test(test_evaluation),
                                       cmocka_unit_test(test_any_plan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
