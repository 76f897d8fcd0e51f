/*
 * Jobs on a model with experts: the same bits and exactly the planned memory for every recomputation, home and
 * unit_policy, with what is offloaded, on 1 to 4 ranks; with adapters on attention alone, on everything and on experts
 * alone.
 *
 *     test_job_experts                        on the CPU
 *     test_job_experts BACKEND DTYPE RANKS    on the ranks that a machine has GPUs for
 */
#include "job/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Of 3 layers, the second of which is dense, and 1 chunk of the head. */
#define MODEL TSR_SOURCE_DIR "/tests/golden/families/qwen3_moe/checkpoint"

static const struct {
    int ranks;
    const char *config;
    int units; /* 0: by the adapter */
} uses[] = {
    {3, "gradient_checkpointing: none\noffload: none\n", 4},
    {1, "gradient_checkpointing: full\noffload: sharded\n", 4},
    {3,
     "gradient_checkpointing: selective\noffload: sharded\nresident_units: 2\n"
     "activation_offloading: true\noptimizer_offload: true\n",
     4},
    {1, "gradient_checkpointing: sqrt\noffload: full\nslots: 3\n", 4},
    {3, "gradient_checkpointing: sqrt\nunit_policy: 2\n", 3},
    {3, "gradient_checkpointing: selective\nunit_policy: [self_attn, mlp.experts]\n", 7},
    {1, "gradient_checkpointing: none\nunit_policy: [mlp.experts.down_proj]\noffload: sharded\n",
     0},
    {3, "gradient_checkpointing: full\nunit_policy: [experts]\nactivation_offloading: true\n", 0},
    {3, "gradient_checkpointing: full\nunit_policy: fine\noffload: full\n", 0},
    {4,
     "gradient_checkpointing: selective\nunit_policy: fine\noffload: sharded\n"
     "shard_group_size: 2\nactivation_offloading: true\n",
     0},
    {3, "gradient_checkpointing: none\nmemory_budget: 4GiB\n", 4},
};

/* fine: a size of units that cuts layers. */
static void configure(char out[4096], const char *keys, const char *use, const char *fine)
{
    char text[1024];
    const char *hole = strstr(use, "fine");
    snprintf(text, sizeof text, "%.*s%s%s", hole ? (int)(hole - use) : (int)strlen(use), use,
             hole ? fine : "", hole ? hole + strlen("fine") : "");
    snprintf(out, 4096,
             "max_steps: 3\nlearning_rate: 1e-2\ntotal_batch_size: 4\nmodel_name_or_path: " MODEL
             "\ndataset: %s\nlora_r: 4\n%s%s",
             scratch_path("train.jsonl"), keys, text);
}

static void run_adapter(const char *name, const char *keys, const char *fine)
{
    char config[4096], what[512];
    job_result reference, result;
    configure(config, keys, "", fine);
    job_run(&reference, 1, config);
    if (reference.status != 0)
        fail_msg("%s: %s", name, reference.message);
    assert_true(reference.step[0].loss != reference.step[1].loss);
    job_assert_plan(&reference, 1, name);
    for (size_t u = 0; u < COUNT(uses); u++) {
        int ranks = uses[u].ranks;
        if (job_ranks(ranks) != ranks)
            continue;
        configure(config, keys, uses[u].config, fine);
        snprintf(what, sizeof what, "%s on %d ranks with {%s}", name, ranks, uses[u].config);
        job_run(&result, ranks, config);
        if (result.status != 0)
            fail_msg("%s: %s", what, result.message);
        job_assert_plan(&result, ranks, what);
        job_assert_same(&reference, &result, what);
        if (uses[u].units)
            assert_int_equal(result.memory[0].info.unit_count, uses[u].units);
        else
            assert_true(result.memory[0].info.unit_count > 4);
        job_result_free(&result);
    }
    job_result_free(&reference);
}

static void test_attention(void **state)
{
    (void)state;
    run_adapter("LoRA on attention",
                "lora_target_modules: [q_proj, k_proj, v_proj, o_proj]\nlora_dropout: 0.1\n",
                "32KiB");
    run_adapter("DoRA on attention",
                "lora_target_modules: [q_proj, v_proj]\nuse_dora: true\nload_in_4bit: false\n",
                "80KiB");
}

static void test_all(void **state)
{
    (void)state;
    run_adapter("LoRA on all linears and experts", "lora_target_modules: all-linear\n", "80KiB");
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *message[2];
    } refused[] = {
        {"unit_policy: 16KiB\n",
         {"16384 bytes are too few", "mlp.experts.gate_up_proj of layer 0"}},
        {"unit_policy: self_attn, moe\n", {"moe is of no module", "mlp.experts.down_proj"}},
    };
    for (size_t i = 0; i < COUNT(refused); i++) {
        char config[4096];
        job_result result;
        configure(config, "", refused[i].keys, "");
        job_run(&result, 1, config);
        assert_int_equal(result.status, TSR_ECONFIG);
        for (int j = 0; j < 2; j++)
            if (!strstr(result.message, refused[i].message[j]))
                fail_msg("%s: not in '%s'", refused[i].message[j], result.message);
        job_result_free(&result);
    }
}

static int set_up(void **state)
{
    (void)state;
    scratch_make();
    job_write_documents("train.jsonl", 10, 256, 1);
    return 0;
}

int main(int argc, char **argv)
{
    job_choose_backend(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
