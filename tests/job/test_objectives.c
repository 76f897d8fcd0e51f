/*
 * Objectives over preferences, in whole jobs: beside other features and in several families the same bits on any number of ranks
 * and across a stop; evaluations; and what is refused. That the numbers are TRL's is test_objective_traces.c.
 *
 *     test_job_objectives [cuda DTYPE RANKS]
 */
#include "job/fixture.h"

#include "base/text.h"
#include "support/golden.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* In the scratch directory: pairs of tokens below `vocab`, of unequal length, so many times as long as on the CPU. */
static const char *write_long_pairs(int rows, unsigned vocab, int times)
{
    tsr_auto_text text = {0};
    unsigned seed = 7;
    for (int row = 0; row < rows; row++) {
        static const char *const keys[] = {
            "{\"prompt_ids\":", ",\"chosen_ids\":", ",\"rejected_ids\":"};
        for (int k = 0; k < 3; k++) {
            tsr_text_printf(&text, "%s[", keys[k]);
            for (int t = 0; t < times * (3 + (5 * row + 7 * k) % 11); t++) {
                seed = seed * 1664525u + 1013904223u;
                tsr_text_printf(&text, "%s%u", t ? "," : "", (seed >> 8) % vocab);
            }
            tsr_text_puts(&text, "]");
        }
        tsr_text_puts(&text, "}\n");
    }
    assert_false(text.failed);
    write_text(scratch_path("pairs.jsonl"), tsr_text_string(&text));
    return scratch_path("pairs.jsonl");
}

static const char *write_pairs(int rows, unsigned vocab)
{
    return write_long_pairs(rows, vocab, 1);
}

#define FAMILIES TSR_SOURCE_DIR "/tests/golden/families/"

static const struct {
    const char *name, *model, *keys;
} kinds[] = {
    {"a fresh DoRA, rsLoRA", JOB_SHALLOW, "objective: dpo\nuse_dora: true\nuse_rslora: true\n"},
    {"packed", JOB_SHALLOW, "objective: dpo\npacking: true\nmax_length: 30\n"},
    {"fp8", JOB_SHALLOW, "objective: dpo\nbase_compute: fp8\n"},
    {"dropout", JOB_SHALLOW,
     "objective: cpo\nloss_type: simpo\ndisable_dropout: false\nlora_dropout: 0.1\n"},
    {"experts", FAMILIES "qwen3_moe/checkpoint", "objective: dpo\nrouter_aux_loss_coef: 0.01\n"},
    {"experts, ORPO", FAMILIES "glm4_moe/checkpoint",
     "objective: orpo\nrouter_bias_update_rate: 0.01\n"},
    {"a delta rule", FAMILIES "qwen3_5/checkpoint", "objective: kto\n"},
    {"PiSSA", JOB_SHALLOW, "objective: dpo\ninit_lora_weights: pissa\n"},
    {"a trained embedding", JOB_SHALLOW, "objective: dpo\ntrainable_token_indices: [3, 17, 101]\n"},
};

#define KINDS (sizeof kinds / sizeof *kinds)

static void configure_kind(tsr_text *out, size_t kind, const char *more)
{
    tsr_text_printf(out,
                    "model_name_or_path: %s\ndataset: %s\n%sdtype: float32\nlora_r: 4\n"
                    "learning_rate: 2e-3\nmax_steps: 4\nper_device_train_batch_size: 2\n"
                    "total_batch_size: 6\n%s",
                    kinds[kind].model, write_pairs(9, 250), kinds[kind].keys, more);
    assert_false(out->failed);
}

static void run_kind(job_result *out, int ranks, size_t kind, const char *more, const char *output,
                     const job_event *event)
{
    tsr_auto_text config = {0};
    char directory[64];
    configure_kind(&config, kind, more);
    snprintf(directory, sizeof directory, "%zu_%s", kind, output);
    job_run_in(out, ranks, tsr_text_string(&config), directory, event);
    if (out->status != 0)
        fail_msg("%s: %s", kinds[kind].name, out->message);
}

/* Each learns, has the bits of one rank on three, and those of no stop after one. A fresh adapter is its own reference. */
static void test_kinds(void **state)
{
    (void)state;
    for (size_t kind = 0; kind < KINDS; kind++) {
        job_result one, three;
        run_kind(&one, 1, kind, "", "one", NULL);
        double loss = one.step[0].loss;
        if (strstr(kinds[kind].keys, "dpo") && !strstr(kinds[kind].keys, "fp8"))
            judge("log 2 at step 1", fabs(loss - log(2)), 2e-6);
        assert_true(one.step[0].preference.present);
        job_assert_plan(&one, 1, kinds[kind].name);
        if (HAS_HALF(kind, 0)) {
            run_kind(&three, job_ranks(3), kind, "gradient_checkpointing: full\n", "three", NULL);
            job_assert_same(&one, &three, kinds[kind].name);
            job_assert_plan(&three, job_ranks(3), kinds[kind].name);
            job_result_free(&three);
        }
        if (HAS_HALF(kind, 1))
            job_check_resumed(&one, kind, kinds[kind].name, run_kind);
        job_result_free(&one);
    }
}

static void run_on(job_result *out, int ranks, const char *objective, const char *model,
                   const char *data, const char *keys)
{
    tsr_auto_text config = {0};
    tsr_text_printf(
        &config,
        "model_name_or_path: %s\ndataset: %s\nobjective: %s\ndtype: float32\nlora_r: 4\n"
        "learning_rate: 2e-3\nmax_steps: 2\nper_device_train_batch_size: 2\n"
        "total_batch_size: 6\noverwrite_output_dir: true\n%s",
        model, data, objective, keys);
    assert_false(config.failed);
    job_run_in(out, ranks, tsr_text_string(&config), "cell", NULL);
    if (out->status != 0)
        fail_msg("%s, %s: %s", objective, keys, out->message);
}

/* One cell of docs/objectives.md's table. */
static void run_cell(job_result *out, int ranks, const char *objective, const char *model,
                     const char *keys)
{
    run_on(out, ranks, objective, model, write_pairs(9, 250), keys);
}

static void run_long_cell(job_result *out, int ranks, const char *objective, const char *keys)
{
    run_on(out, ranks, objective, JOB_SHALLOW, write_long_pairs(9, 250, job_tokens(1)), keys);
}

/* Sanitizers are slow: there a quarter of the cells and of the ways to share, others for each objective. */
#ifdef TSR_SANITIZED
#define STRIDE 4
#else
#define STRIDE 1
#endif

/* Every objective beside every feature: the bits of one rank on three; where the feature changes no bits, those without it. */
static void test_table(void **state)
{
    (void)state;
    static const char *const objectives[] = {"dpo", "orpo", "cpo", "kto"};
    static const struct {
        const char *model, *keys;
        bool same; /* as without it */
    } features[] = {
        {JOB_SHALLOW, "gradient_checkpointing: full\n", true},
        {JOB_SHALLOW, "offload: sharded\nactivation_offloading: true\noptimizer_offload: true\n",
         true},
        {JOB_SHALLOW, "use_dora: true\n", false},
        {JOB_SHALLOW, "base_compute: fp8\n", false},
        {JOB_SHALLOW, "packing: true\nmax_length: 30\n", false},
        {FAMILIES "mixtral/checkpoint", "", false},
    };
    for (size_t o = 0; o < sizeof objectives / sizeof *objectives; o++) {
        job_result plain, one, three;
        run_cell(&plain, 1, objectives[o], JOB_SHALLOW, "");
        for (size_t f = o % STRIDE; f < sizeof features / sizeof *features; f += STRIDE) {
            tsr_auto_text what = {0};
            tsr_text_printf(&what, "%s, %s%s", objectives[o], features[f].keys, features[f].model);
            if (!features[f].same)
                run_cell(&one, 1, objectives[o], features[f].model, features[f].keys);
            run_cell(&three, job_ranks(3), objectives[o], features[f].model, features[f].keys);
            job_assert_same(features[f].same ? &plain : &one, &three, tsr_text_string(&what));
            if (!features[f].same)
                job_result_free(&one);
            job_result_free(&three);
        }
        job_result_free(&plain);
    }
}

/* Evaluations compare with the reference too; that of the data that are trained, before a step, is the step's. */
static void test_evaluations(void **state)
{
    (void)state;
    job_result got, three;
    const char *more = "eval_strategy: steps\neval_steps: 1\neval_on_start: true\n";
    tsr_auto_text keys = {0};
    tsr_text_printf(&keys, "%seval_dataset: %s\nshuffle: false\nper_device_eval_batch_size: 2\n",
                    more, scratch_path("pairs.jsonl"));
    run_kind(&got, 1, 0, tsr_text_string(&keys), "eval", NULL);
    assert_int_equal(got.eval_count, 5);
    judge("loss before step 1", fabs(got.eval[0].loss - log(2)), 2e-6);
    assert_true(got.eval[0].preference.present);
    assert_true(got.eval[0].preference.reward_margin == 0);
    assert_true(got.eval[3].preference.reward_margin > 0.01);
    assert_true(got.eval[3].loss < got.eval[0].loss);
    run_kind(&three, job_ranks(3), 0, tsr_text_string(&keys), "eval_three", NULL);
    job_assert_same(&got, &three, "evaluations");
    for (int i = 0; i < got.eval_count; i++)
        assert_true(got.eval[i].preference.reward_margin == three.eval[i].preference.reward_margin);
    job_result_free(&got);
    job_result_free(&three);
}

/* ref_adapter: a directory. The adapter of a run as the reference of one that goes on from it is what goes without saying. A
 * fresh adapter against it is as far from it as it is from the base. */
static void test_reference(void **state)
{
    (void)state;
    job_result first, goes_on, same, fresh, three, away, wrong;
    tsr_auto_text init = {0}, both = {0}, reference = {0}, base = {0}, other = {0};
    run_kind(&first, 1, 0, "", "first", NULL);
    const char *directory = scratch_path("0_first");
    tsr_text_printf(&init, "init_adapter: %s\n", directory);
    tsr_text_printf(&base, "init_adapter: %s\nref_adapter: base\n", directory);
    tsr_text_printf(&both, "init_adapter: %s\nref_adapter: %s\n", directory, directory);
    tsr_text_printf(&reference, "ref_adapter: %s\n", directory);
    run_kind(&goes_on, 1, 0, tsr_text_string(&init), "goes_on", NULL);
    run_kind(&same, job_ranks(2), 0, tsr_text_string(&both), "same", NULL);
    job_assert_same(&goes_on, &same, "the adapter that it begins with");
    run_kind(&fresh, 1, 0, tsr_text_string(&reference), "fresh", NULL);
    run_kind(&three, job_ranks(3), 0, tsr_text_string(&reference), "fresh_three", NULL);
    job_assert_same(&fresh, &three, "a reference of another run");
    run_kind(&away, 1, 0, tsr_text_string(&base), "away", NULL);
    assert_true(away.step[0].preference.reward_margin > 0.001);
    judge("the same way back",
          fabs(away.step[0].preference.reward_margin + fresh.step[0].preference.reward_margin),
          1e-6);
    tsr_text_printf(&other, "ref_adapter: %s\nlora_target_modules: [q_proj]\n", directory);
    tsr_auto_text config = {0};
    configure_kind(&config, 0, tsr_text_string(&other));
    job_run_in(&wrong, 1, tsr_text_string(&config), "wrong", NULL);
    assert_int_equal(wrong.status, TSR_ECONFIG);
    assert_non_null(
        strstr(wrong.message, "which is not trained; a reference adapter needs the same modules"));
    job_result_free(&wrong);
    job_result_free(&first), job_result_free(&goes_on), job_result_free(&same);
    job_result_free(&fresh), job_result_free(&three), job_result_free(&away);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *words[3];
    } wrong[] = {
        {"modules_to_save: [lm_head]\n", {"objective: dpo does not train lm_head"}},
        {"trainable_token_indices: [3]\nref_adapter: base\n", {"ref_adapter: base", "embedding"}},
        {"loss_type: simpo\n", {"loss_type: found 'simpo'", "dpo has sigmoid, hinge"}},
        {"loss_type: [sigmoid, sft]\nloss_weights: [1]\n", {"found 1 of them", "2 losses"}},
        {"loss_type: exo_pair\n", {"label_smoothing: found 0", "exo_pair"}},
        {"label_smoothing_factor: 0.1\n", {"label_smoothing_factor does not go with"}},
        {"neftune_noise_alpha: 5\n", {"neftune_noise_alpha does not go with"}},
        {"response_template: \"A:\"\n", {"response_template does not go with"}},
        {"roles_to_train: [assistant]\n", {"roles_to_train does not go with"}},
        {"balance: tokens\n", {"balance: tokens", "does not go with objective: dpo"}},
        {"cpo_alpha: 0.5\n", {"cpo_alpha: found 0.5", "belongs to cpo"}},
        {"wrap_conversations: false\n",
         {"wrap_conversations: found false", "belongs to orpo, cpo"}},
        {"f_divergence_type: alpha_divergence\nf_alpha_divergence_coef: 1\n", {"found 1"}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tsr_auto_text config = {0};
        job_result got;
        configure_kind(&config, 0, wrong[i].keys);
        job_run_in(&got, 1, tsr_text_string(&config), "wrong", NULL);
        assert_int_equal(got.status, TSR_ECONFIG);
        for (int w = 0; w < 3 && wrong[i].words[w]; w++)
            if (!strstr(got.message, wrong[i].words[w]))
                fail_msg("'%s' is not in: %s", wrong[i].words[w], got.message);
        job_result_free(&got);
    }
}

/* Asked to stop before the reference is made. */
static void test_stop(void **state)
{
    (void)state;
    tsr_auto_text config = {0};
    char output[600];
    const char *overrides[JOB_BACKEND_KEYS + 1];
    const volatile int stop = 1;
    tsr_job *job;
    job_backend_keys(overrides);
    snprintf(output, sizeof output, "output_dir=%s", scratch_path("stopped"));
    overrides[JOB_BACKEND_KEYS] = output;
    configure_kind(&config, 0, "");
    const tsr_job_options options = {.size = sizeof options,
                                     .config_text = tsr_text_string(&config),
                                     .overrides = overrides,
                                     .override_count = JOB_BACKEND_KEYS + 1,
                                     .threads = 1,
                                     .stop = &stop};
    assert_int_equal(tsr_job_create(&job, &options), TSR_OK);
    assert_int_equal(tsr_job_start(job), TSR_ESTOPPED_UNSAVED);
    assert_non_null(strstr(tsr_last_error(), "nothing was trained or written"));
    tsr_job_destroy(job);
    assert_int_not_equal(access(scratch_path("stopped"), F_OK), 0);
}

/* Micro-batches longer than context_span: on one rank, and on those that share each of them, with more or fewer spans than
 * ranks. Evaluations compare with the reference too. */
static void test_context(void **state)
{
    (void)state;
    static const char *const jobs[] = {
        "dpo\nuse_weighting: true\nld_alpha: 0.5\nloss_type: [sigmoid, sft]\n",
        "kto\nlora_dropout: 0.1\ndisable_dropout: false\n",
        "orpo\npacking: true\n",
        "cpo\nloss_type: simpo\nuse_dora: true\n",
    };
    static const struct {
        int ranks;
        const char *keys;
    } ways[] = {
        {2, "context_parallel_size: 2\n"},
        {3, "context_parallel_size: 3\ngradient_checkpointing: full\noffload: sharded\n"
            "activation_offloading: true\n"},
        {4, "context_parallel_size: 2\ngradient_checkpointing: full\n"},
        {3, ""},
    };
    for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
        job_result alone, shared;
        tsr_auto_text keys = {0};
        tsr_text_printf(&keys,
                        "context_span: %d\nmax_length: %d\neval_strategy: steps\neval_steps: 1\n"
                        "per_device_eval_batch_size: 2\neval_dataset: %s\n",
                        job_tokens(16), job_tokens(64), scratch_path("pairs.jsonl"));
        run_long_cell(&alone, 1, jobs[j], tsr_text_string(&keys));
        for (size_t w = j % STRIDE; w < sizeof ways / sizeof *ways; w += STRIDE) {
            tsr_auto_text more = {0};
            if (job_ranks(ways[w].ranks) != ways[w].ranks)
                continue;
            tsr_text_printf(&more, "%s%s", tsr_text_string(&keys), ways[w].keys);
            run_long_cell(&shared, ways[w].ranks, jobs[j], tsr_text_string(&more));
            job_assert_same(&alone, &shared, jobs[j]);
            job_assert_plan(&shared, ways[w].ranks, jobs[j]);
            job_result_free(&shared);
        }
        job_result_free(&alone);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),       cmocka_unit_test(test_table),
        cmocka_unit_test(test_evaluations), cmocka_unit_test(test_reference),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_stop),
        cmocka_unit_test(test_context)};
    job_choose_backend(argc, argv);
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
