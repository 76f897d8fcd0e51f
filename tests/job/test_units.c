/*
 * unit_policy changes what is gathered together and nothing else: the same bits, exactly the planned memory, and
 * checkpoints that any policy goes on from.
 *
 *     test_job_units                        on the CPU
 *     test_job_units BACKEND DTYPE RANKS    on the ranks that a machine has GPUs for
 */
#include "job/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Of a model of 6 layers, or the first 3, and 1 chunk of the head. */
static const struct {
    const char *policy;
    int units, shallow;
} policies[] = {
    {"2", 4, 3},
    {"4", 3, 2},
    {"100", 2, 2},
    {"self_attn, mlp", 13, 7},
    {"[mlp, down_proj]", 19, 10},
    {"fine", 0, 0}, /* bytes that cut a layer of the base; how many units depends on the adapter */
    {"coarse", 0, 0},
};

/* A base, by what its layers take. */
typedef struct {
    const char *fine, *coarse;
} sizes;

static const sizes nf4 = {"260KiB", "1300KiB"}, bf16 = {"800KiB", "4MiB"};

static const char *policy_of(size_t index, const sizes *base)
{
    const char *policy = policies[index].policy;
    return !strcmp(policy, "fine") ? base->fine : !strcmp(policy, "coarse") ? base->coarse : policy;
}

/* What each is tried with: recomputation, homes, slots, replicas, what is offloaded, and adapters that are kept. */
static const struct {
    int ranks;
    const char *config;
} uses[] = {
    {1, "gradient_checkpointing: false\noffload: sharded\n"},
    {3, "gradient_checkpointing: true\noffload: none\n"},
    {3, "gradient_checkpointing: selective\noffload: sharded\nresident_units: 2\n"
        "activation_offloading: true\noptimizer_offload: true\n"},
    {1, "gradient_checkpointing: sqrt\noffload: full\nslots: 3\n"},
    {3, "gradient_checkpointing: false\nmemory_budget: 4GiB\n"},
    {4, "gradient_checkpointing: true\noffload: full\nshard_group_size: 2\n"
        "activation_offloading: true\n"},
    {3, "gradient_checkpointing: sqrt\noffload: sharded\n"},
};

/* Layers between others take all six. */
static bool is_shallow(const char *keys)
{
    return !strstr(keys, "layers_to_transform");
}

/* Two steps: the second has what the first left in the adapter, in its moments and in host memory. */
static void configure(char out[4096], const char *keys, const char *use, const char *policy)
{
    const char *steps = strstr(keys, "max_steps") ? "" : "max_steps: 2\n";
    snprintf(out, 4096,
             "%slearning_rate: 1e-2\ntotal_batch_size: 4\nmodel_name_or_path: %s\n"
             "dataset: %s\n%s%s%s%s\n",
             steps, is_shallow(keys) ? JOB_SHALLOW : JOB_MODEL, scratch_path("train.jsonl"), keys,
             use, *policy ? "unit_policy: " : "", policy);
}

/* Each policy has every second of the uses, the next one the others; sanitizers are slow. */
#ifdef TSR_SANITIZED
#define SHARE 15
#else
#define SHARE 2
#endif

static void run_adapter(const char *name, const sizes *base, const char *keys)
{
    char config[4096], what[512];
    job_result reference, result;
    static size_t turn;
    configure(config, keys, "", "");
    job_run(&reference, 1, config);
    assert_int_equal(reference.status, 0);
    assert_true(reference.step[0].loss != reference.step[1].loss);
    for (size_t p = 0; p < COUNT(policies); p++)
        for (size_t u = turn++ % SHARE; u < COUNT(uses); u += SHARE) {
            int ranks = uses[u].ranks;
            if (job_ranks(ranks) != ranks)
                continue;
            configure(config, keys, uses[u].config, policy_of(p, base));
            snprintf(what, sizeof what, "%s, unit_policy %s on %d ranks with {%s}", name,
                     policy_of(p, base), ranks, uses[u].config);
            job_run(&result, ranks, config);
            if (result.status != 0)
                fail_msg("%s: %s", what, result.message);
            job_assert_plan(&result, ranks, what);
            job_assert_same(&reference, &result, what);
            int units = is_shallow(keys) ? policies[p].shallow : policies[p].units;
            if (units)
                assert_int_equal(result.memory[0].info.unit_count, units);
            else
                assert_int_not_equal(result.memory[0].info.unit_count, is_shallow(keys) ? 4 : 7);
            job_result_free(&result);
        }
    job_result_free(&reference);
}

static void test_lora(void **state)
{
    (void)state;
    run_adapter("LoRA", &nf4, "lora_r: 4\nlora_dropout: 0.1\n");
}

static void test_dora(void **state)
{
    (void)state;
    run_adapter("DoRA", &nf4, "use_dora: true\nlora_r: 4\n");
}

/* Layers and modules without an adapter, below those that have one, between them and above. */
static void test_few_modules(void **state)
{
    (void)state;
    run_adapter("v and up of two layers", &bf16,
                "load_in_4bit: false\nlora_target_modules: [v_proj, up_proj]\n"
                "layers_to_transform: [1, 4]\n");
    run_adapter("down of one layer", &nf4,
                "lora_target_modules: [down_proj]\nlayers_to_transform: [3]\n");
}

static void test_fp8(void **state)
{
    (void)state;
    if (!job_has_fp8())
        skip();
    run_adapter("DoRA, fp8 base", &nf4,
                "base_compute: fp8\nuse_dora: true\nlora_r: 8\nlora_dropout: 0.1\n");
}

/* Saved under one policy on some ranks, gone on with under another on others. */
static void test_resume(void **state)
{
    (void)state;
    static const struct {
        const char *policy;
        int ranks;
    } runs[] = {{"layer", 1}, {"4", 3}, {"[self_attn, mlp]", 2}, {"layer", 3}};
    static const char resumed[] = "use_dora: true\nlora_r: 3\nmax_steps: 3\n";
    char config[4096];
    job_result whole;
    configure(config, resumed, "", "");
    job_run(&whole, 1, config);
    for (size_t i = 0; i + 1 < COUNT(runs); i++) {
        job_result first, second;
        char output[32];
        int ranks = job_ranks(runs[i].ranks);
        const job_event stop = {.rank = ranks - 1, .stop_after = 1};
        snprintf(output, sizeof output, "stopped-%zu", i);
        configure(config, resumed, "", runs[i].policy);
        job_run_in(&first, ranks, config, output, &stop);
        assert_true(first.stopped);
        configure(config, resumed, "resume_from_checkpoint: true\n", runs[i + 1].policy);
        job_run_in(&second, job_ranks(runs[i + 1].ranks), config, output, NULL);
        if (second.status != 0)
            fail_msg("%s to %s: %s", runs[i].policy, runs[i + 1].policy, second.message);
        assert_int_equal(second.resumed, first.step_count);
        job_assert_part(&whole, &first, 0, false, runs[i].policy);
        job_assert_part(&whole, &second, first.step_count, true, runs[i + 1].policy);
        job_result_free(&first);
        job_result_free(&second);
    }
    job_result_free(&whole);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *policy, *message[3];
    } refused[] = {
        {"0", {"unit_policy: found '0'", "a number of layers (1 or more)", "64MiB"}},
        {"1.5", {"unit_policy: found '1.5'", "layer", "names of modules"}},
        {"64KB.5", {"unit_policy: found '64KB.5'", "layer", "names of modules"}},
        {"'self_attn,'", {"unit_policy: found 'self_attn,'", "layer", "names of modules"}},
        {"10KiB",
         {"10240 bytes are too few", "mlp.gate_proj, mlp.up_proj of layer 0",
          "write that or more"}},
        {"self_attn, moe", {"moe is of no module", "self_attn.q_proj", "mlp.down_proj"}},
        {"attn", {"attn is of no module", "write layer", "layer 0 has"}},
    };
    for (size_t i = 0; i < COUNT(refused); i++) {
        char config[4096];
        job_result result;
        configure(config, "", "", refused[i].policy);
        job_run(&result, 1, config);
        assert_int_equal(result.status, TSR_ECONFIG);
        for (int j = 0; j < 3; j++)
            if (!strstr(result.message, refused[i].message[j]))
                fail_msg("%s: not in '%s'", refused[i].message[j], result.message);
        job_result_free(&result);
    }
}

static int set_up(void **state)
{
    (void)state;
    scratch_make();
    job_write_documents("train.jsonl", 10, 4096, 1);
    return 0;
}

int main(int argc, char **argv)
{
    job_choose_backend(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lora),   cmocka_unit_test(test_dora),
        cmocka_unit_test(test_fp8),    cmocka_unit_test(test_few_modules),
        cmocka_unit_test(test_resume), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
