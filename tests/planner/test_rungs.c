/*
 * What layers keep in a plan: the order in which they give it up, the fewest steps that fit against all there are,
 * what `selective` means, and what goes to host memory of long rows.
 */
#include "planner/expect.h"
#include "planner/parts.h"
#include "planner/rungs.h"
#include "support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SHAPES TSR_SOURCE_DIR "/examples/shapes/"

static const tsr_topology_view alone = {1, 0, 1};
static const tsr_room unknown = {.free = TSR_BUDGET_UNKNOWN};

/* Of a job with rows of `length`, as an H200 would run it. */
static void read_job(tsr_inputs *out, tsr_speeds *speeds, const char *shape, int length,
                     const char *more)
{
    char text[1024];
    snprintf(text, sizeof text,
             "model_name_or_path: " SHAPES "%s\noutput_dir: out\nbackend: cpu\nmax_length: %d\n"
             "per_device_train_batch_size: 1\n%s",
             shape, length, more);
    const tsr_config_source source = {
        .text = text, .use = TSR_CONFIG_PLAN, .has_cuda = tsr_device_cuda_built()};
    *out = (tsr_inputs){.compute = TSR_BF16};
    if (tsr_inputs_read_config(out, &source) < 0 || tsr_inputs_read_model(out, true, true) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_inputs_assume_data(out);
    tsr_speeds_default(speeds, true, TSR_BF16);
}

static tsr_decision decide(const char *shape, int length, const char *more, tsr_inputs *inputs)
{
    tsr_speeds speeds;
    tsr_decision d;
    read_job(inputs, &speeds, shape, length, more);
    if (tsr_decide(&d, inputs, &alone, true, &unknown, &speeds) < 0)
        fail_msg("%s", tsr_last_error());
    return d;
}

static void release(tsr_decision *d, tsr_inputs *inputs)
{
    tsr_decision_free(d);
    tsr_inputs_close(inputs);
}

static int ladder_of(const tsr_decision *d, int layer)
{
    return d->rungs->of_layer[layer];
}

static double price_of(const tsr_ladder *ladder, int rung)
{
    const tsr_rung *from = &ladder->rung[rung - 1], *to = from + 1;
    return (to->seconds - from->seconds) / (from->bytes - to->bytes);
}

/* Whether a layer of a decision keeps the value of this name. */
static bool keeps(const tsr_decision *d, int layer, const char *name)
{
    const tsr_layer_program *p = tsr_layer_program_of(d->programs, layer);
    for (int v = 0; v < p->block->value_count; v++)
        if (p->kept[v] && !strcmp(p->block->value[v].name, name))
            return true;
    return false;
}

/* ---- the order of steps ---- */

/* By what a byte costs, whichever layers it is of; each layer goes down rung by rung to its input alone. */
static void test_order(void **state)
{
    static const char *const models[] = {"llama3-8b", "gemma-3-1b", "gemma-4-e4b", "olmo-3-7b"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        tsr_inputs inputs;
        tsr_decision d = decide(models[i], 8192, "gradient_checkpointing: true\n", &inputs);
        const tsr_rungs *r = d.rungs;
        int *rung = calloc((size_t)r->layer_count, sizeof *rung);
        double before = 0;
        assert_non_null(rung);
        for (int s = 0; s < r->step_count; s++) {
            int layer = r->step[s].layer;
            double price = price_of(&r->ladder[ladder_of(&d, layer)], r->step[s].rung);
            assert_int_equal(r->step[s].rung, ++rung[layer]);
            assert_true(price > 0 && price >= before);
            before = price;
        }
        for (int layer = 0; layer < r->layer_count; layer++) {
            assert_int_equal(rung[layer], r->ladder[ladder_of(&d, layer)].count - 1);
            assert_int_equal(d.rung[layer], rung[layer]);
        }
        assert_int_equal(d.full_count, r->layer_count);
        assert_int_equal(r->end[r->end_count - 1], r->step_count);
        free(rung);
        release(&d, &inputs);
    }
}

/* Attention over a window costs less than over all of a long row: its output goes earlier. */
static void test_windows(void **state)
{
    (void)state;
    tsr_inputs inputs;
    tsr_decision d = decide("gemma-3-1b", 32768, "gradient_checkpointing: true\n", &inputs);
    const tsr_rungs *r = d.rungs;
    int gone[2] = {-1,
                   -1}; /* the last steps after which a layer with a window, or without, lost o */
    for (int s = 0; s < r->step_count; s++) {
        int layer = r->step[s].layer, rung = r->step[s].rung;
        const tsr_ladder *ladder = &r->ladder[ladder_of(&d, layer)];
        const tsr_block *b = tsr_layer_program_of(d.programs, layer)->block;
        bool window = tsr_model_config_window(&inputs.layout.config, (uint64_t)layer) > 0;
        for (int v = 0; v < b->value_count; v++)
            if (!strcmp(b->value[v].name, "o") && tsr_keep_has(&ladder->rung[rung - 1].keep, v) &&
                !tsr_keep_has(&ladder->rung[rung].keep, v))
                gone[!window] = s;
    }
    assert_true(gone[0] >= 0 && gone[0] < gone[1]);
    release(&d, &inputs);
}

/* ---- what is chosen ---- */

/* The expected time and the memory of all steps there are, in one plan each. */
static void try_all(double *seconds, uint64_t *bytes, int count, tsr_decision *d,
                    const tsr_inputs *inputs, const tsr_speeds *speeds)
{
    for (int steps = 0; steps <= count; steps++) {
        const tsr_choice c = {.steps = steps, .bounds = inputs->bounds};
        tsr_expectation e;
        assert_int_equal(tsr_decide_try(d, inputs, &alone, &c), TSR_OK);
        assert_int_equal(tsr_plan_complete(d->plan), TSR_OK);
        assert_int_equal(tsr_expect(&e, inputs, d, &alone, speeds), TSR_OK);
        seconds[steps] = e.simulation.step;
        bytes[steps] = tsr_decide_bytes(d);
    }
}

/* Where nothing may move, the plan that is chosen is the fastest of all that fit: the first. */
static void test_fewest_steps(void **state)
{
    enum { BUDGETS = 40, MOST = 1000 };
    static double seconds[MOST];
    static uint64_t bytes[MOST];
    static const char stay[] =
        "offload: none\nactivation_offloading: false\noptimizer_offload: false\n";
    (void)state;
    tsr_inputs inputs;
    tsr_speeds speeds;
    tsr_decision d;
    read_job(&inputs, &speeds, "smollm3-3b", 4096, stay);
    assert_int_equal(tsr_decide_begin(&d, &inputs, &alone, true, &unknown, &speeds), TSR_OK);
    int count = d.rungs->step_count, found = 0;
    assert_true(count < MOST);
    try_all(seconds, bytes, count, &d, &inputs, &speeds);
    tsr_decide_clear(&d, &inputs.layout);
    tsr_decision_free(&d);
    for (int i = 0; i < BUDGETS; i++) {
        uint64_t budget = bytes[count] + (bytes[0] - bytes[count]) / BUDGETS * (uint64_t)i;
        double best = 0;
        int fewest = count;
        for (int steps = count; steps >= 0; steps--)
            if (bytes[steps] <= budget) {
                best = best == 0 || seconds[steps] < best ? seconds[steps] : best;
                fewest = steps;
            }
        inputs.config.memory_budget = budget;
        assert_int_equal(tsr_decide(&d, &inputs, &alone, true, &unknown, &speeds), TSR_OK);
        assert_true(tsr_decide_bytes(&d) <= budget);
        assert_true(d.expected.simulation.step <= best * (1 + 1e-9));
        assert_true(tsr_decide_bytes(&d) == bytes[fewest]);
        found += d.selective_count > 0 && d.full_count == 0;
        tsr_decision_free(&d);
    }
    assert_true(found > BUDGETS / 2);
    tsr_inputs_close(&inputs);
}

/* Without want of memory: what norms and gated units make is made again. With less: more, but never all. */
static void test_selective(void **state)
{
    (void)state;
    tsr_inputs inputs;
    tsr_decision d = decide("llama3-8b", 8192, "gradient_checkpointing: selective\n", &inputs);
    assert_int_equal(d.selective_count, 32);
    for (int i = 0; i < 32; i++) {
        static const char *const stay[] = {"x", "q", "k", "v", "o", "lse", "x_mid"};
        for (size_t j = 0; j < sizeof stay / sizeof *stay; j++)
            assert_true(keeps(&d, i, stay[j]));
        assert_false(keeps(&d, i, "h") || keeps(&d, i, "h2") || keeps(&d, i, "act"));
        assert_true(keeps(&d, i, "z")); /* of gate and up */
    }
    release(&d, &inputs);
    for (int gib = 8; gib < 40; gib += 6) {
        char more[160];
        snprintf(more, sizeof more, "gradient_checkpointing: selective\nmemory_budget: %dGiB\n",
                 gib);
        d = decide("llama3-8b", 8192, more, &inputs);
        assert_int_equal(d.selective_count, 32);
        assert_true(tsr_decide_bytes(&d) <= (uint64_t)gib << 30);
        release(&d, &inputs);
    }
}

/* Long rows whose activations are to go to host memory: attention's output goes along, and attention is not run again. */
static void test_long_rows(void **state)
{
    (void)state;
    tsr_inputs inputs;
    tsr_decision d =
        decide("llama3-8b", 32768, "memory_budget: 22GiB\nactivation_offloading: true\n", &inputs);
    double chosen = d.expected.simulation.step;
    for (int i = 0; i < 32; i++)
        assert_true(keeps(&d, i, "o") && keeps(&d, i, "lse") && !keeps(&d, i, "act"));
    release(&d, &inputs);
    d = decide("llama3-8b", 32768,
               "memory_budget: 22GiB\nactivation_offloading: true\ngradient_checkpointing: true\n",
               &inputs);
    assert_false(keeps(&d, 1, "o"));
    assert_true(chosen < 0.95 * d.expected.simulation.step);
    release(&d, &inputs);
}

static double seconds_of(const char *more)
{
    tsr_inputs inputs;
    char text[256];
    snprintf(text, sizeof text, "memory_budget: 16GiB\noptimizer_offload: false\n%s", more);
    tsr_decision d = decide("llama3-8b", 8192, text, &inputs);
    double seconds = d.expected.simulation.step;
    release(&d, &inputs);
    return seconds;
}

static uint64_t bytes_of(const tsr_decision *d, const char *name)
{
    for (int i = 0; i < d->memory.count; i++)
        if (!strcmp(d->memory.buffer[i].name, name))
            return d->memory.buffer[i].bytes;
    return 0;
}

/* Where some of the activations have to go, the others stay, and both are evenly spread. A region holds the largest layer of
 * those that take turns in it. */
static void test_some_layers_go(void **state)
{
    (void)state;
    tsr_inputs inputs;
    tsr_decision d =
        decide("llama3-8b", 8192, "memory_budget: 16GiB\noptimizer_offload: false\n", &inputs);
    int gone = 0, last = -1;
    uint64_t largest[TSR_REGIONS] = {0};
    assert_in_range(d.offloaded_count, TSR_REGIONS + 1, 31);
    for (int i = 0; i < 32; i++) {
        if (!d.saved_bytes[i])
            continue;
        int apart = i - last, region = gone++ % TSR_REGIONS;
        assert_in_range(apart, 32 / d.offloaded_count, 32 / d.offloaded_count + 1);
        largest[region] = d.saved_bytes[i] > largest[region] ? d.saved_bytes[i] : largest[region];
        last = i;
    }
    assert_int_equal(gone, d.offloaded_count);
    assert_int_equal(bytes_of(&d, "saved activations 0"), largest[0]);
    assert_int_equal(bytes_of(&d, "saved activations 1"), largest[1]);
    double some = d.expected.simulation.step;
    release(&d, &inputs);
    assert_true(some < 0.95 * seconds_of("activation_offloading: false\n"));
    assert_true(some < 0.97 * seconds_of("activation_offloading: true\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_fewest_steps), cmocka_unit_test(test_selective),
        cmocka_unit_test(test_long_rows),    cmocka_unit_test(test_some_layers_go)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
