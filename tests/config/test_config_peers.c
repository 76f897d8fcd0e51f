/*
 * A configuration with what transformers' TrainingArguments writes of itself, every key at the value that it has
 * where nothing was chosen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config/config.h"

#define BASE "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: o\n"

static const char written[] =
    BASE "accelerator_config: null\nactivation_checkpointing: null\n"
         "activation_checkpointing_kwargs: null\naverage_tokens_across_devices: true\n"
         "batch_eval_metrics: false\nbf16: false\nbf16_full_eval: false\n"
         "dataloader_in_order: true\ndataloader_multiprocessing_context: null\ndebug: ''\n"
         "do_predict: false\nenable_jit_checkpoint: false\neval_delay: 0\n"
         "eval_do_concat_batches: true\neval_use_gather_object: false\n"
         "fp16_full_eval: false\nfull_determinism: false\ngreater_is_better: null\n"
         "ignore_data_skip: false\ninclude_for_metrics: []\n"
         "include_num_input_tokens_seen: 'no'\nlabel_names: null\n"
         "length_column_name: length\nliger_kernel_config: null\nlocal_rank: 0\n"
         "log_level_replica: warning\nlog_on_each_node: true\nlogging_nan_inf_filter: true\n"
         "metric_for_best_model: null\noptim_target_modules: null\n"
         "parallelism_config: null\nprediction_loss_only: false\nproject: huggingface\n"
         "restore_callback_states_from_checkpoint: false\nsave_on_each_node: false\n"
         "skip_memory_metrics: true\ntorch_empty_cache_steps: null\n"
         "trackio_space_id: trackio\nuse_cpu: false\n";

static tsr_status load(tsr_config *out, const char *text)
{
    return tsr_config_load(out, &(tsr_config_source){.text = text, .name = "job.yaml"});
}

static void test_written_by_transformers(void **state)
{
    (void)state;
    tsr_config c;
    if (load(&c, written) < 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(c.gradient_checkpointing, TSR_CONFIG_RECOMPUTE_AUTO);
    assert_int_equal(c.backend, TSR_CONFIG_BACKEND_AUTO);
    tsr_config_free(&c);
}

static void test_other_names(void **state)
{
    (void)state;
    tsr_config c;
    assert_int_equal(load(&c, BASE "activation_checkpointing: true\nuse_cpu: true\n"), TSR_OK);
    assert_int_equal(c.gradient_checkpointing, TSR_CONFIG_RECOMPUTE_FULL);
    assert_int_equal(c.backend, TSR_CONFIG_BACKEND_CPU);
    tsr_config_free(&c);
    /* what would change the result */
    static const char *const refused[] = {"average_tokens_across_devices: false", "eval_delay: 5",
                                          "ignore_data_skip: true", "bf16_full_eval: true",
                                          "accelerator_config: {split_batches: true}"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char text[256] = BASE;
        assert_int_equal(load(&c, strcat(text, refused[i])), TSR_ECONFIG);
        assert_non_null(strstr(tsr_last_error(), "not supported here"));
    }
}

/* TRL's shuffle_dataset: false leaves its sampler random: file order is shuffle: false, and train_sampling_strategy:
 * sequential. */
static void test_shuffle_dataset(void **state)
{
    (void)state;
    static const struct {
        const char *lines;
        bool shuffle, no_effect;
    } cases[] = {{"shuffle_dataset: false", true, true},
                 {"shuffle_dataset: null", true, false},
                 {"shuffle_dataset: true", true, false},
                 {"shuffle_dataset: false\nshuffle: false", false, true},
                 {"shuffle_dataset: false\ntrain_sampling_strategy: sequential", false, true},
                 {"shuffle_dataset: false\ntrain_sampling_strategy: random", true, true},
                 {"shuffle: false", false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256] = BASE;
        tsr_config c;
        bool said = false;
        assert_int_equal(load(&c, strcat(text, cases[i].lines)), TSR_OK);
        assert_int_equal(c.shuffle, cases[i].shuffle);
        for (int k = 0; k < c.notes.count; k++)
            said |= strstr(c.notes.items[k], "without effect here: shuffle_dataset") != NULL;
        assert_int_equal(said, cases[i].no_effect);
        tsr_config_free(&c);
    }
    static const char *const refused[] = {
        "shuffle_dataset: true\nshuffle: false",
        "shuffle_dataset: true\ntrain_sampling_strategy: sequential", "shuffle_dataset: often"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char text[256] = BASE;
        tsr_config c;
        assert_int_equal(load(&c, strcat(text, refused[i])), TSR_ECONFIG);
        assert_non_null(strstr(tsr_last_error(), "shuffle_dataset"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_by_transformers),
        cmocka_unit_test(test_other_names),
        cmocka_unit_test(test_shuffle_dataset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
