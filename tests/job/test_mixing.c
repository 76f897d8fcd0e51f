/*
 * Micro-batches that rows of several adapters share: each adapter has the losses of a job of its own within rounding, and
 * the same bits on one rank and on three, wherever the base lies, and stopped and resumed; every one has its own data, rank,
 * targets, dropout, schedule and batch size; the memory is the plan's; and what cannot share micro-batches is refused.
 *
 *     test_job_mixing [cuda DTYPE RANKS]
 */
#include "data/adapter_schedule.h"
#include "job/members.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define MEMBERS 4
#define EXPERTS                                                                                    \
    TSR_SOURCE_DIR "/tests/golden/families/qwen3_moe/checkpoint" /* two of three layers have them */

#define COMMON                                                                                     \
    "model_name_or_path: " JOB_SHALLOW "\nper_device_train_batch_size: 1\nmax_grad_norm: 1\n"
#define EVALUATES "eval_strategy: steps\neval_dataset: %s\n"

static const char *const members[MEMBERS][12] = {
    {"dataset: %s/rows.jsonl", "eval_steps: 2", "lora_r: 4", "max_steps: 3", "total_batch_size: 4"},
    {"dataset: %s/other.jsonl", "eval_steps: 1", "lora_r: 8", "max_steps: 5", "total_batch_size: 4",
     "seed: 7", "learning_rate: 1e-3", "lr_scheduler_type: cosine", "weight_decay: 0.1",
     "lora_target_modules: [q_proj, v_proj, down_proj]"},
    {"dataset: %s/rows.jsonl", "eval_steps: 1", "lora_r: 2", "lora_dropout: 0.1", "data_seed: 3",
     "max_steps: 4", "max_train_samples: 9", "total_batch_size: 7"},
    {"dataset: %s/rows.jsonl", "packing: true", "max_length: %d", "eval_steps: 1", "lora_r: 16",
     "max_steps: 4", "total_batch_size: 4", "optimizer_offload: true"}};

static void configure(tsr_text *out, const char *more)
{
    tsr_text_printf(out, COMMON EVALUATES "adapter_mixing: tokens\n%sadapters:\n",
                    scratch_path("held_out.jsonl"), more);
    for (int m = 0; m < MEMBERS; m++) {
        tsr_text_printf(out, "- name: member%d\n", m);
        for (int i = 0; members[m][i]; i++)
            members_put_key(out, "  ", members[m][i]);
    }
}

static void run_mixed(members_run *out, int ranks, const char *more, members_run prototype)
{
    tsr_auto_text config = {0};
    configure(&config, more);
    prototype.config = tsr_text_string(&config);
    prototype.count = MEMBERS;
    members_run_all(out, ranks, prototype);
}

/* All mixed, on one rank. */
static members_run mixed;

/* ---- tests ---- */

static void expect_near(double found, double wanted, double tolerance, const char *what, int member,
                        int step)
{
    if (!(fabs(found - wanted) <= tolerance * fabs(wanted)))
        fail_msg("member %d, step %d: %s is %.9g, alone %.9g", member, step + 1, what, found,
                 wanted);
}

/* As a job of its own has them; its numbers differ by what is rounded where rows lie elsewhere among the others. */
static void expect_as_alone(const job_result *own, int member, const char *config)
{
    double loss = job_on_gpu() ? 2e-2 : 1e-5, norm = job_on_gpu() ? 5e-2 : 1e-4;
    job_result single;
    job_run(&single, 1, config);
    if (single.status != 0)
        fail_msg("member %d alone: %s", member, single.message);
    assert_int_equal(own->step_count, single.step_count);
    assert_int_equal(own->eval_count, single.eval_count);
    for (int i = 0; i < own->step_count; i++) {
        const tsr_job_report *a = &own->step[i], *b = &single.step[i];
        expect_near(a->loss, b->loss, loss, "the loss", member, i);
        expect_near(a->grad_norm, b->grad_norm, norm, "the norm", member, i);
        /* In 16 bits two tokens of nearly the same probability may change places. */
        double one = job_on_gpu() ? 1.01 / (double)a->label_tokens : 0;
        if (fabs(a->mean_token_accuracy - b->mean_token_accuracy) > one)
            expect_near(a->mean_token_accuracy, b->mean_token_accuracy, norm, "accuracy", member,
                        i);
        assert_true(a->learning_rate == b->learning_rate);
        assert_int_equal(a->label_tokens, b->label_tokens);
        assert_int_equal(a->input_tokens, b->input_tokens);
    }
    for (int i = 0; i < own->eval_count; i++)
        expect_near(own->eval[i].loss, single.eval[i].loss, loss, "an evaluation", member, i);
    assert_int_equal(own->adapter_bytes, single.adapter_bytes);
    job_result_free(&single);
}

static void test_losses(void **state)
{
    (void)state;
    for (int m = 0; m < MEMBERS; m++) {
        tsr_auto_text config = {0};
        tsr_text_printf(&config, COMMON EVALUATES "save_strategy: no\n",
                        scratch_path("held_out.jsonl"));
        for (int i = 0; members[m][i]; i++)
            members_put_key(&config, "", members[m][i]);
        expect_as_alone(&mixed.result[m], m, tsr_text_string(&config));
    }
}

/* Adapters of the attention of a model with experts, each on some of its layers. */
static void test_experts(void **state)
{
    static const char *const keys[2] = {"lora_target_modules: [q_proj, o_proj]\nlora_r: 4\n",
                                        "lora_target_modules: [v_proj]\nlora_r: 8\n"
                                        "layers_to_transform: [1]\nlearning_rate: 1e-2\n"};
    (void)state;
    tsr_auto_text common = {0}, config = {0};
    members_run run[2];
    tsr_text_printf(&common,
                    "model_name_or_path: " EXPERTS "\ndataset: %s\ntotal_batch_size: 4\n"
                    "per_device_train_batch_size: 1\nmax_steps: 3\n",
                    scratch_path("small.jsonl"));
    tsr_text_printf(&config, "%sadapter_mixing: tokens\nadapters:\n", tsr_text_string(&common));
    for (int m = 0; m < 2; m++) {
        tsr_text_printf(&config, "- name: member%d\n  ", m);
        for (const char *c = keys[m]; *c; c++)
            tsr_text_printf(&config, *c == '\n' && c[1] ? "\n  " : "%c", *c);
    }
    for (int r = 0; r < 2; r++)
        members_run_all(&run[r], job_ranks(1 + r),
                        (members_run){.count = 2, .config = tsr_text_string(&config)});
    for (int m = 0; m < 2; m++) {
        tsr_auto_text alone = {0};
        tsr_text_printf(&alone, "%s%ssave_strategy: no\n", tsr_text_string(&common), keys[m]);
        job_assert_same(&run[0].result[m], &run[1].result[m], "on two ranks");
        expect_as_alone(&run[0].result[m], m, tsr_text_string(&alone));
    }
    members_free(&run[0]);
    members_free(&run[1]);
}

static void expect_same(const members_run *run, const char *what)
{
    for (int m = 0; m < MEMBERS; m++) {
        char name[96];
        snprintf(name, sizeof name, "%s, member %d", what, m);
        job_assert_same(&mixed.result[m], &run->result[m], name);
    }
}

/* Sanitizers are slow: there every second of the ways. */
#ifdef TSR_SANITIZED
#define EVERY 2
#else
#define EVERY 1
#endif

static void test_same_bits(void **state)
{
    static const struct {
        int ranks;
        const char *keys;
    } ways[] = {{3, "offload: sharded\n"},
                {2, "offload: full\nunit_policy: 2\n"},
                {1, "gradient_checkpointing: full\nunit_policy: [mlp]\n"
                    "activation_offloading: true\n"},
                {4, "shard_group_size: 2\n"}};
    (void)state;
    for (int w = 0; w < (job_on_gpu() ? 3 : 4); w += EVERY) {
        members_run run;
        run_mixed(&run, job_ranks(ways[w].ranks), ways[w].keys, (members_run){.poison = true});
        expect_same(&run, ways[w].keys);
        members_free(&run);
    }
}

/* Shared micro-batches go through layers whole; evaluations, which are of one adapter, do not. */
static void test_no_tiles(void **state)
{
    (void)state;
    members_run run;
    run_mixed(&run, job_ranks(2), "context_span: 16\n", (members_run){.poison = true});
    for (int m = 0; m < MEMBERS; m++) {
        const job_result *whole = &mixed.result[m], *got = &run.result[m];
        assert_int_equal(got->step_count, whole->step_count);
        for (int i = 0; i < whole->step_count; i++)
            assert_true(got->step[i].loss == whole->step[i].loss);
        assert_int_equal(got->adapter_bytes, whole->adapter_bytes);
        assert_memory_equal(got->adapter, whole->adapter, whole->adapter_bytes);
    }
    members_free(&run);
}

/* Stopped when all have done two steps. */
static void test_resume(void **state)
{
    (void)state;
    members_run first, second;
    run_mixed(&first, job_ranks(2), "", (members_run){.stop_after = 1});
    run_mixed(&second, 1, "", (members_run){.resume = true});
    for (int m = 0; m < MEMBERS; m++) {
        char what[32];
        snprintf(what, sizeof what, "member %d", m);
        assert_int_equal(first.result[m].step_count, 2);
        job_assert_part(&mixed.result[m], &first.result[m], 0, false, what);
        job_assert_part(&mixed.result[m], &second.result[m], 2, true, what);
    }
    members_free(&first);
    members_free(&second);
}

/* One adapter is two steps ahead of the others, as after a run that was killed. */
static void test_uneven(void **state)
{
    (void)state;
    members_run first, ahead, rest;
    tsr_auto_text one = {0};
    run_mixed(&first, 1, "", (members_run){.stop_after = 1});
    tsr_text_printf(&one, COMMON EVALUATES "adapters:\n- name: member1\n",
                    scratch_path("held_out.jsonl"));
    for (int i = 0; members[1][i]; i++)
        members_put_key(&one, "  ", members[1][i]);
    members_run_all(
        &ahead, 1,
        (members_run){
            .count = 1, .config = tsr_text_string(&one), .stop_after = 1, .resume = true});
    assert_int_equal(ahead.result[0].step_count, 2);
    run_mixed(&rest, job_ranks(2), "", (members_run){.resume = true});
    for (int m = 0; m < MEMBERS; m++) {
        const job_result *whole = &mixed.result[m], *part = &rest.result[m];
        int before = whole->step_count - part->step_count;
        assert_int_equal(before, m == 1 ? 4 : 2);
        for (int i = 0; i < part->step_count; i++)
            expect_near(part->step[i].loss, whole->step[before + i].loss,
                        job_on_gpu() ? 2e-2 : 1e-5, "the loss", m, before + i);
    }
    members_free(&first);
    members_free(&ahead);
    members_free(&rest);
}

static void expect_refused(const char *more, const char *entry, const char *words)
{
    tsr_auto_text config = {0};
    tsr_job *job[2] = {NULL};
    const char *overrides[] = {"backend=cpu"};
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    tsr_text_printf(&config, COMMON "dataset: %s\noutput_dir: %s\nadapter_mixing: tokens\n%s",
                    scratch_path("rows.jsonl"), scratch_path("refused"), more);
    tsr_text_printf(&config, "adapters:\n- {name: a}\n- {name: b%s}\n", entry);
    tsr_job_options options = {.size = sizeof options,
                               .config_text = tsr_text_string(&config),
                               .overrides = overrides,
                               .override_count = 1,
                               .threads = 1};
    int status = 0;
    for (int i = 0; i < 2 && status == 0; i++) {
        options.entry = i;
        status = tsr_job_create(&job[i], &options);
        options.base = job[0];
    }
    if (status == 0)
        status = tsr_job_plan(job[1], &info);
    if (status != TSR_ECONFIG || !strstr(tsr_last_error(), words))
        fail_msg("%s%s\nended with %d: %s\nexpected: %s", more, entry, status, tsr_last_error(),
                 words);
    tsr_job_destroy(job[0]);
    tsr_job_destroy(job[1]);
    assert_int_not_equal(access(scratch_path("refused"), F_OK), 0);
}

static void test_refusals(void **state)
{
    (void)state;
    expect_refused("", ", use_dora: true", "does not go with use_dora");
    expect_refused("", ", neftune_noise_alpha: 5", "does not go with neftune_noise_alpha");
    expect_refused("", ", label_smoothing_factor: 0.1", "does not go with label_smoothing_factor");
    expect_refused("", ", modules_to_save: [lm_head]", "does not go with modules_to_save");
    expect_refused("unit_policy: 1MiB\n", "", "does not go with unit_policy");
    expect_refused("", ", router_aux_loss_coef: 0.1", "does not go with router_aux_loss_coef");
    expect_refused("", ", objective: dpo", "does not go with objective");
    expect_refused("", ", lora_target_modules: [q_proj, lm_head]", "it trains a table");
    expect_refused("adapter_capacity: 20\n", "",
                   "adapter_capacity: 20 tokens, but the longest row of adapter a has");
    if (!tsr_adapter_schedule_has_milp())
        expect_refused("adapter_schedule: milp\n", "", "this build has none");
}

/* A job that is destroyed takes the shared micro-batches with it. */
static void test_early_end(void **state)
{
    (void)state;
    char output[600];
    tsr_auto_text config = {0};
    tsr_job *job[2] = {NULL};
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    snprintf(output, sizeof output, "output_dir=%s", scratch_path("early"));
    const char *overrides[] = {"backend=cpu", output};
    tsr_text_printf(&config,
                    COMMON "dataset: %s\nmax_steps: 2\nadapter_mixing: tokens\nadapters:\n"
                           "- {name: a}\n- {name: b}\n",
                    scratch_path("rows.jsonl"));
    tsr_job_options options = {.size = sizeof options,
                               .config_text = tsr_text_string(&config),
                               .overrides = overrides,
                               .override_count = 2,
                               .threads = 1};
    for (options.entry = 0; options.entry < 2; options.entry++) {
        assert_int_equal(tsr_job_create(&job[options.entry], &options), TSR_OK);
        options.base = job[0];
    }
    assert_int_equal(tsr_job_plan(job[0], &info), TSR_OK);
    assert_true(info.mixed_count > 0 && info.mixed_fill > 0 && info.mixed_fill <= 1);
    assert_int_equal(tsr_job_start(job[0]), TSR_OK);
    assert_int_equal(tsr_job_step(job[0], &report), TSR_EINVAL);
    assert_non_null(strstr(tsr_last_error(), "start all jobs"));
    tsr_job_destroy(job[1]);
    assert_int_equal(tsr_job_step(job[0], &report), TSR_EINVAL);
    assert_non_null(strstr(tsr_last_error(), "was destroyed"));
    tsr_job_destroy(job[0]);
}

static int set_up(void **state)
{
    scratch_setup(state);
    job_write_documents("rows.jsonl", 40, 512, 3);
    job_write_documents("other.jsonl", 60, 512, 5);
    job_write_documents("held_out.jsonl", 7, 512, 9);
    job_write_documents("small.jsonl", 20, 256, 1);
    run_mixed(&mixed, 1, "", (members_run){0});
    return 0;
}

static int tear_down(void **state)
{
    members_free(&mixed);
    return scratch_teardown(state);
}

int main(int argc, char **argv)
{
    job_choose_backend(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses),    cmocka_unit_test(test_experts),
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_no_tiles),
        cmocka_unit_test(test_resume),    cmocka_unit_test(test_uneven),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_early_end)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
