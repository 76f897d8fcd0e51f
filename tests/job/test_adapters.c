/*
 * Several adapters on one base, in turns: each has the losses, evaluations and bytes of a job of its own, on one rank and
 * on three, wherever the base lies, also stopped and resumed; what they share lasts for a step at most; the memory is the
 * plan's; and every list of adapters that is refused.
 *
 *     test_job_adapters [cuda DTYPE RANKS]
 */
#include "job/members.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMBERS 4

/* What all have, and each one's own keys: lines of a job of its own, and of an entry of the list. */
#define COMMON                                                                                     \
    "model_name_or_path: " JOB_SHALLOW "\ntotal_batch_size: 3\nper_device_train_batch_size: 1\n"   \
    "max_grad_norm: 1\n"

static const char *const members[MEMBERS][12] = {
    {"dataset: %s/rows.jsonl", "eval_dataset: %s/held_out.jsonl", "lora_r: 4", "max_steps: 3",
     "eval_steps: 2", "eval_strategy: steps"},
    {"dataset: %s/other.jsonl", "eval_dataset: %s/rows.jsonl", "use_dora: true", "lora_r: 8",
     "max_steps: 5", "seed: 7", "learning_rate: 1e-3", "lr_scheduler_type: cosine",
     "weight_decay: 0.1"},
    {"dataset: " TSR_SOURCE_DIR "/tests/golden/objectives/data/preference_conversational.jsonl",
     "objective: dpo", "lora_r: 2", "lora_target_modules: [q_proj, v_proj, down_proj]",
     "max_steps: 2", "truncation: drop", "max_length: 512"},
    {"dataset: %s/rows.jsonl", "packing: true", "max_length: %d", "lora_dropout: 0.1", "lora_r: 16",
     "max_steps: 4", "optimizer_offload: true", "gradient_checkpointing: full"}};

static void configure_one(tsr_text *out, int member)
{
    tsr_text_puts(out, COMMON "save_strategy: no\n");
    for (int i = 0; members[member][i]; i++)
        members_put_key(out, "", members[member][i]);
}

static void configure_all(tsr_text *out, const char *more)
{
    tsr_text_puts(out, COMMON);
    tsr_text_puts(out, more);
    tsr_text_puts(out, "adapters:\n");
    for (int m = 0; m < MEMBERS; m++) {
        tsr_text_printf(out, "- name: member%d\n", m);
        for (int i = 0; members[m][i]; i++)
            members_put_key(out, "  ", members[m][i]);
    }
}

/* Each one's own job, on one rank. */
static job_result single[MEMBERS];

static void run_singles(void)
{
    for (int m = 0; m < MEMBERS; m++) {
        tsr_auto_text config = {0};
        configure_one(&config, m);
        job_run(&single[m], 1, tsr_text_string(&config));
        if (single[m].status != 0)
            fail_msg("member %d: %s", m, single[m].message);
    }
}

/* ---- tests ---- */

static void test_same_bits(void **state)
{
    static const char *const ways[] = {"", "offload: full\nunit_policy: 2\n", "offload: sharded\n"};
    (void)state;
    for (int w = 0; w < 3; w++) {
        tsr_auto_text config = {0};
        members_run all;
        configure_all(&config, ways[w]);
        members_run_all(
            &all, job_ranks(w == 2 ? 3 : 1),
            (members_run){.count = MEMBERS, .config = tsr_text_string(&config), .poison = true});
        for (int m = 0; m < MEMBERS; m++) {
            char what[64];
            snprintf(what, sizeof what, "%s, member %d", ways[w], m);
            job_assert_same(&single[m], &all.result[m], what);
        }
        members_free(&all);
    }
}

/* Two ranks that share the micro-batches of two adapters. */
static void test_shared(void **state)
{
    char spans[64];
    tsr_auto_text list = {0};
    members_run all;
    (void)state;
    snprintf(spans, sizeof spans, "context_span: %d\n", job_tokens(16));
    tsr_text_printf(&list, COMMON "%scontext_parallel_size: %d\nadapters:\n", spans, job_ranks(2));
    for (int m = 0; m < 2; m++) {
        tsr_text_printf(&list, "- name: member%d\n", m);
        for (int i = 0; members[m][i]; i++)
            members_put_key(&list, "  ", members[m][i]);
    }
    members_run_all(&all, job_ranks(2),
                    (members_run){.count = 2, .config = tsr_text_string(&list), .poison = true});
    for (int m = 0; m < 2; m++) {
        tsr_auto_text config = {0};
        job_result alone;
        configure_one(&config, m);
        tsr_text_puts(&config, spans);
        job_run(&alone, 1, tsr_text_string(&config));
        job_assert_same(&alone, &all.result[m], "of two adapters whose rows two ranks share");
        job_result_free(&alone);
    }
    members_free(&all);
}

/* The second finds the experts that the first has decoded. */
static void test_decoded_experts(void **state)
{
    static const char *const keys[2][4] = {
        {"dataset: %s/few.jsonl", "lora_r: 4", "max_steps: 3"},
        {"dataset: %s/few.jsonl", "lora_r: 8", "max_steps: 2", "seed: 7"}};
    static const char common[] =
        "model_name_or_path: " TSR_SOURCE_DIR "/tests/golden/families/qwen3_moe/checkpoint\n"
        "total_batch_size: 3\nper_device_train_batch_size: 1\n";
    tsr_auto_text list = {0};
    members_run all;
    (void)state;
    job_write_documents("few.jsonl", 10, 256, 1);
    tsr_text_printf(&list, "%sdecoded_layers: 2\nadapters:\n", common);
    for (int m = 0; m < 2; m++) {
        tsr_text_printf(&list, "- name: member%d\n", m);
        for (int i = 0; i < 4 && keys[m][i]; i++)
            members_put_key(&list, "  ", keys[m][i]);
    }
    members_run_all(&all, 1,
                    (members_run){.count = 2, .config = tsr_text_string(&list), .poison = true});
    for (int m = 0; m < 2; m++) {
        tsr_auto_text config = {0};
        job_result alone;
        tsr_text_printf(&config, "%ssave_strategy: no\n", common);
        for (int i = 0; i < 4 && keys[m][i]; i++)
            members_put_key(&config, "", keys[m][i]);
        job_run(&alone, 1, tsr_text_string(&config));
        job_assert_same(&alone, &all.result[m], "of two adapters on decoded experts");
        job_result_free(&alone);
    }
    members_free(&all);
}

/* Stopped after two rounds, when the shortest has done all its steps, and resumed. */
static void test_resume(void **state)
{
    (void)state;
    tsr_auto_text config = {0};
    members_run first, second;
    configure_all(&config, "");
    members_run_all(
        &first, job_ranks(2),
        (members_run){.count = MEMBERS, .config = tsr_text_string(&config), .stop_after = 1});
    for (int m = 0; m < MEMBERS; m++)
        assert_int_equal(first.result[m].step_count, 2);
    members_run_all(
        &second, 1,
        (members_run){.count = MEMBERS, .config = tsr_text_string(&config), .resume = true});
    for (int m = 0; m < MEMBERS; m++) {
        char what[32];
        snprintf(what, sizeof what, "member %d", m);
        job_assert_part(&single[m], &first.result[m], 0, false, what);
        job_assert_part(&single[m], &second.result[m], 2, true,
                        what); /* none of one that had ended */
    }
    members_free(&first);
    members_free(&second);
}

/* The second of two entries. */
static void expect_refused(const char *entries, tsr_status wanted, const char *words)
{
    tsr_auto_text config = {0};
    tsr_job *job[2] = {NULL};
    const char *overrides[] = {"backend=cpu"};
    tsr_text_printf(&config, "%sdataset: %s\n", COMMON, scratch_path("rows.jsonl"));
    tsr_text_printf(&config, "output_dir: %s\nadapters:\n%s", scratch_path("refused"), entries);
    tsr_job_options options = {.size = sizeof options,
                               .config_text = tsr_text_string(&config),
                               .overrides = overrides,
                               .override_count = 1,
                               .threads = 1};
    tsr_status status = tsr_job_create(&job[0], &options);
    options.base = job[0];
    options.entry = 1;
    if (status == TSR_OK)
        status = tsr_job_create(&job[1], &options);
    if (status != wanted || !strstr(tsr_last_error(), words))
        fail_msg("%s\nended with %d: %s\nexpected %d: %s", entries, status, tsr_last_error(),
                 wanted, words);
    tsr_job_destroy(job[0]);
    assert_int_not_equal(access(scratch_path("refused"), F_OK), 0);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const refused[][2] = {
        {"- name: a\n- name: a\n", "entries 1 and 2 are both called a"},
        {"- name: a\n- lora_r: 4\n", "entry 2 has no name"},
        {"- name: a\n- name: ../b\n", "name of entry 2: found '../b'"},
        {"- name: a\n- name: [b]\n", "name of entry 2"},
        {"  a: 1\n", "expected a list of 1 to 64 maps"},
        {"- name: a\n- 5\n", "entry 2 has no name"},
        {"- name: a\n- name: b\n  memory_budget: 1GiB\n",
         "memory_budget: is the same for all adapters"},
        {"- name: a\n- name: b\n  lora_rank: 4\n", "no key 'lora_rank'; did you mean lora_r?"},
        {"- name: a\n- name: b\n  lora_r: 4\n  lora_r: 5\n", "lora_r"},
        {"- name: a\n- name: b\n  output_dir: OUT/a\n", "is the directory of a too"},
        {"- name: a\n- name: b\n  init_lora_weights: pissa\n", "pissa changes the base"},
        {"- name: a\n- name: b\n  modules_to_save: [embed_tokens, lm_head]\n",
         "adapters a and b: their base does not have the same units"},
        {"- name: a\n- name: b\n  dataset: missing.jsonl\n", "missing.jsonl"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        tsr_auto_text entries = {0};
        const char *at = strstr(refused[i][0], "OUT");
        tsr_text_append(&entries, refused[i][0],
                        at ? (size_t)(at - refused[i][0]) : strlen(refused[i][0]));
        if (at)
            tsr_text_printf(&entries, "%s%s", scratch_path("refused"), at + 3);
        bool data = strstr(refused[i][1], ".jsonl") != NULL;
        expect_refused(tsr_text_string(&entries), data ? TSR_EDATA : TSR_ECONFIG, refused[i][1]);
    }
    expect_refused("- name: a\n- name: b\ntrace: t.json\n", TSR_ECONFIG,
                   "a trace is of one adapter");
}

/* What a list takes, or *status and the message of a plan that is refused. */
static uint64_t plan_of(tsr_status *status, const char *entries, int count, uint64_t budget)
{
    tsr_auto_text config = {0};
    tsr_job *job[2] = {NULL};
    const char *overrides[] = {"backend=cpu"};
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    tsr_text_printf(&config,
                    "%sdataset: %s\noutput_dir: %s\ngradient_checkpointing: none\noffload: none\n"
                    "optimizer_offload: false\nactivation_offloading: false\n",
                    COMMON, scratch_path("rows.jsonl"), scratch_path("planned"));
    if (budget)
        tsr_text_printf(&config, "memory_budget: %lluMiB\n", (unsigned long long)(budget >> 20));
    tsr_text_printf(&config, "adapters:\n%s", entries);
    tsr_job_options options = {.size = sizeof options,
                               .config_text = tsr_text_string(&config),
                               .overrides = overrides,
                               .override_count = 1,
                               .threads = 1};
    for (int i = 0; i < count; i++) {
        options.entry = i;
        assert_int_equal(tsr_job_create(&job[i], &options), TSR_OK);
        options.base = job[0];
    }
    *status = tsr_job_plan(job[0], &info);
    for (int i = 0; i < count; i++)
        tsr_job_destroy(job[i]);
    return info.device_peak_bytes;
}

/* Memory for one is not enough for two, which is said; for what both take it is. */
static void test_budget(void **state)
{
    (void)state;
    static const char two[] = "- {name: a, lora_r: 64}\n- {name: b, lora_r: 64}\n";
    tsr_status status;
    uint64_t one = plan_of(&status, two, 1, 0), both = plan_of(&status, two, 2, 0);
    const uint64_t mib = 1 << 20;
    assert_int_equal(status, TSR_OK);
    assert_true(one < both && both < 2 * one);
    plan_of(&status, two, 2, (one / mib + 1) * mib);
    assert_int_equal(status, TSR_ECONFIG);
    if (!strstr(tsr_last_error(), "adapter a: ") ||
        !strstr(tsr_last_error(), " that the other adapters have"))
        fail_msg("%s", tsr_last_error());
    assert_int_equal(plan_of(&status, two, 2, (both / mib + 1) * mib), both);
    assert_int_equal(status, TSR_OK);
}

/* Calls in an order that cannot be. */
static void test_order(void **state)
{
    (void)state;
    char output[600];
    snprintf(output, sizeof output, "output_dir=%s", scratch_path("order"));
    const char *overrides[] = {output, "backend=cpu"};
    tsr_auto_text config = {0};
    tsr_job *first = NULL, *second = NULL, *third = NULL;
    tsr_text_printf(&config,
                    "%sdataset: %s\nmax_steps: 1\nadapters:\n- name: a\n- name: b\n- name: c\n",
                    COMMON, scratch_path("rows.jsonl"));
    tsr_job_options options = {.size = sizeof options,
                               .config_text = tsr_text_string(&config),
                               .overrides = overrides,
                               .override_count = 2,
                               .threads = 1};
    assert_int_equal(tsr_job_create(&first, &options), TSR_OK);
    options.base = first;
    options.entry = 1;
    options.purpose = TSR_JOB_PLAN;
    assert_int_equal(tsr_job_create(&second, &options), TSR_EINVAL);
    options.purpose = TSR_JOB_TRAIN;
    assert_int_equal(tsr_job_create(&second, &options), TSR_OK);
    options.base = second;
    options.entry = 2;
    assert_int_equal(tsr_job_create(&third, &options), TSR_EINVAL);
    assert_int_equal(tsr_job_start(second), TSR_EINVAL);
    options.base = first;
    assert_int_equal(tsr_job_create(&third, &options), TSR_EINVAL); /* planned already */
    tsr_job_destroy(second);
    tsr_job_destroy(first);
}

/* Jobs of two files. */
static void expect_apart(const char *own, const char *its, const char *words)
{
    const char *keys[] = {its, own};
    tsr_job *job[2] = {NULL};
    tsr_status status = TSR_OK;
    for (int i = 0; i < 2; i++) {
        char output[600];
        tsr_auto_text config = {0};
        snprintf(output, sizeof output, "output_dir=%s/%d", scratch_path("apart"), i);
        const char *overrides[] = {output, "backend=cpu"};
        tsr_text_printf(&config, "%sdataset: %s\n%s", COMMON, scratch_path("rows.jsonl"), keys[i]);
        const tsr_job_options options = {.size = sizeof options,
                                         .config_text = tsr_text_string(&config),
                                         .overrides = overrides,
                                         .override_count = 2,
                                         .threads = 1,
                                         .base = job[0]};
        assert_int_equal(status, TSR_OK);
        status = tsr_job_create(&job[i], &options);
    }
    if (words ? status != TSR_ECONFIG || !strstr(tsr_last_error(), words) : status != TSR_OK)
        fail_msg("%d: %s", status, tsr_last_error());
    tsr_job_destroy(job[0]);
    if (!words)
        tsr_job_destroy(job[1]);
}

static void test_without_a_list(void **state)
{
    (void)state;
    expect_apart("lora_r: 4\n", "use_dora: true\n", NULL);
    expect_apart("unit_policy: 2\n", "", "but the job whose base is shared has layer");
    expect_apart("init_lora_weights: pissa\n", "", "pissa changes the base");
    expect_apart("", "init_lora_weights: pissa\n", "pissa changes the base");
    expect_apart("trace: t.json\n", "trace: t.json\n", "a trace is of one adapter");
}

static int set_up(void **state)
{
    scratch_setup(state);
    job_write_documents("rows.jsonl", 40, 512, 3);
    job_write_documents("other.jsonl", 60, 512, 5);
    job_write_documents("held_out.jsonl", 7, 512, 9);
    run_singles();
    return 0;
}

static int tear_down(void **state)
{
    for (int m = 0; m < MEMBERS; m++)
        job_result_free(&single[m]);
    return scratch_teardown(state);
}

int main(int argc, char **argv)
{
    job_choose_backend(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),       cmocka_unit_test(test_shared),
        cmocka_unit_test(test_decoded_experts), cmocka_unit_test(test_resume),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_order),           cmocka_unit_test(test_without_a_list)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
