/*
 * Proof 1 of the scheduler: over thousands of random plans every pair of conflicting accesses is
 * ordered, every read finds what it must, and no wait is useless: without any one of them there is
 * a race, or it is implied by others. Inside a program none is implied; an implied one can only be
 * a wait for what happened before the program, which must hold whatever program that was.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shard/checker.h"
#include "shard/random_plan.h"

#ifdef TSR_SANITIZED
#define PLANS      600
#define EDGE_PLANS 60
#else
#define PLANS      6000
#define EDGE_PLANS 400
#endif

static const random_limits all_plans = {.max_layers = 12,
                                        .max_chunks = 4,
                                        .max_ranks = 8,
                                        .max_replicas = 3,
                                        .home = -1,
                                        .groups = true};
static const random_limits small_plans = {.max_layers = 5,
                                          .max_chunks = 3,
                                          .max_ranks = 3,
                                          .max_replicas = 2,
                                          .home = -1,
                                          .groups = true};

static tsr_plan *compile(random_model *model, random_source *random, const random_limits *limits)
{
    random_model_make(model, random, limits);
    tsr_plan *plan;
    if (tsr_plan_compile(&plan, &model->options) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)random->key, tsr_last_error());
    return plan;
}

static void test_no_race(void **state)
{
    (void)state;
    uint64_t ops = 0;
    for (uint64_t seed = 1; seed <= PLANS; seed++) {
        random_source random = {.key = seed};
        random_model model;
        tsr_plan *plan = compile(&model, &random, &all_plans);
        uint8_t kinds[64];
        int count = random_walk(kinds, 64, plan, &random);
        check_result result;
        check_sequence(&result, plan, kinds, count, NULL);
        if (result.failed)
            fail_msg("seed %llu: %s", (unsigned long long)seed, result.message);
        assert_in_range(result.live_most, 0, model.options.slots);
        ops += result.ops;
        tsr_plan_destroy(plan);
    }
    print_message("%d plans, %llu ops\n", PLANS, (unsigned long long)ops);
    assert_true(ops > 1000u * PLANS / 10);
}

#define WALKS 4
#define STEPS 32 /* programs of one walk */

typedef struct {
    uint8_t kinds[WALKS][STEPS];
    int length[WALKS];
} walk_set;

typedef struct {
    uint64_t races, implied;
} edge_counts;

/* One wait is left out of several sequences. */
static void leave_out(edge_counts *counts, const tsr_plan *plan, const check_edge *edge,
                      const walk_set *walks, uint64_t seed)
{
    const tsr_plan_op *op = &plan->program[edge->program].op[edge->op];
    const tsr_plan_wait *wait = &op->wait[edge->wait];
    uint64_t seen = 0, implied = 0;
    for (int w = 0; w < WALKS; w++) {
        check_result result;
        check_sequence(&result, plan, walks->kinds[w], walks->length[w], edge);
        if (result.failed) {
            counts->races++;
            return;
        }
        seen += result.edge_count;
        implied += result.edge_implied;
    }
    if (seen > 0 && implied == seen && wait->count == 0) {
        counts->implied++;
        return;
    }
    tsr_text text = {0};
    tsr_plan_op_print(&text, op);
    fail_msg("seed %llu, %s from state %d: wait %d of '%s' is useless: no race in %llu uses, %llu "
             "of them implied",
             (unsigned long long)seed, tsr_program_name(plan->program[edge->program].kind),
             plan->program[edge->program].entry, edge->wait, tsr_text_string(&text),
             (unsigned long long)seen, (unsigned long long)implied);
}

static void leave_out_each(edge_counts *counts, const tsr_plan *plan, int program,
                           random_source *random)
{
    walk_set walks;
    for (int w = 0; w < WALKS; w++)
        walks.length[w] = random_walk_through(walks.kinds[w], STEPS, plan, program, random);
    check_edge edge = {.program = program};
    for (; edge.op < plan->program[program].op_count; edge.op++)
        for (edge.wait = 0; edge.wait < plan->program[program].op[edge.op].wait_count; edge.wait++)
            leave_out(counts, plan, &edge, &walks, random->key);
}

static void test_no_useless_wait(void **state)
{
    (void)state;
    edge_counts counts = {0};
    for (uint64_t seed = 1; seed <= EDGE_PLANS; seed++) {
        random_source random = {.key = 1000000 + seed};
        random_model model;
        tsr_plan *plan = compile(&model, &random, &small_plans);
        for (int program = 0; program < plan->program_count; program++)
            leave_out_each(&counts, plan, program, &random);
        tsr_plan_destroy(plan);
    }
    print_message("waits: %llu race when left out, %llu are implied by what ran before\n",
                  (unsigned long long)counts.races, (unsigned long long)counts.implied);
    assert_true(counts.races > 10 * counts.implied);
}

/* The checker itself: a plan with its slots swapped, or a program out of place, is caught. */
static void test_checker_sees(void **state)
{
    (void)state;
    random_source random = {.key = 7};
    random_model model;
    tsr_plan *plan;
    do {
        plan = compile(&model, &random, &small_plans);
        if (model.options.ranks > 1 && model.unit[0].home == TSR_HOME_SHARDED &&
            model.options.train)
            break;
        tsr_plan_destroy(plan);
    } while (1);
    uint8_t kinds[] = {TSR_PROGRAM_PROLOGUE, TSR_PROGRAM_TRAIN_FIRST, TSR_PROGRAM_STEP_END,
                       TSR_PROGRAM_TRAIN_FIRST};
    check_result result;
    check_sequence(&result, plan, kinds, 4, NULL);
    assert_false(result.failed);
    tsr_plan_op *gather = plan->program[plan->program_at[TSR_PROGRAM_PROLOGUE]].op;
    assert_int_equal(gather->kind, TSR_OP_GATHER);
    gather->unit = model.options.unit_count - 1;
    check_sequence(&result, plan, kinds, 4, NULL);
    assert_true(result.failed);
    tsr_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_race),
                                       cmocka_unit_test(test_no_useless_wait),
                                       cmocka_unit_test(test_checker_sees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
