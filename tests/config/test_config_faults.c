/* Whichever allocation fails while a configuration is loaded: it is loaded as ever, or out of memory. */
#include "config/config.h"
#include "job/faulty_system.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char text[] = "model_name_or_path: /models/a\n"
                           "dataset: [one.jsonl, two.jsonl]\n"
                           "output_dir: out\n"
                           "init_adapter: before\n"
                           "lora_target_modules: [q_proj, v_proj]\n"
                           "alpha_pattern: {q_proj: 8}\n"
                           "resume_from_checkpoint: last\n"
                           "gradient_checkpointing: true\n"
                           "defaults: trl\n";

/* What makes lists and maps of its own. */
static const char axolotl[] =
    "base_model: /models/a\n"
    "adapter: lora\n"
    "datasets: [{path: a.jsonl, type: alpaca}, {path: b.jsonl, type: alpaca}]\n"
    "optimizer: adamw_8bit\n"
    "cosine_min_lr_ratio: 0.1\n"
    "saves_per_epoch: 2\n"
    "wandb_project: p\n"
    "output_dir: out\n";

static const char llamafactory[] = "model_name_or_path: /models/a\n"
                                   "stage: sft\n"
                                   "lora_rank: 8\n"
                                   "lora_target: q_proj, v_proj\n"
                                   "dataset: a.jsonl,b.jsonl\n"
                                   "template: glm4\n"
                                   "plot_loss: true\n"
                                   "output_dir: out\n";

static const char preferences[] =
    "base_model: /models/a\n"
    "adapter: lora\n"
    "rl: dpo\n"
    "datasets: [{path: a.jsonl, type: chatml.intel}, {path: b.jsonl, type: {field_prompt: q}}]\n"
    "dpo_loss_type: [sigmoid, sft]\n"
    "output_dir: out\n";

static const char smoothed[] = "model_name_or_path: /models/a\n"
                               "stage: dpo\n"
                               "finetuning_type: lora\n"
                               "dataset: a.jsonl\n"
                               "dpo_label_smoothing: 0.1\n"
                               "pref_ftx: 0.1\n"
                               "per_device_train_batch_size: 1\n"
                               "output_dir: out\n";

static void fail_each(const char *file)
{
    static const char *const overrides[] = {"model_name_or_path=/models/b", "trace=trace.json"};
    tsr_config_source source = {.text = file, .overrides = overrides, .override_count = 2};
    int nth = 1;
    for (bool came = true; came; nth++) {
        tsr_config config;
        system_fail(SYSTEM_MALLOC, nth, ENOMEM);
        tsr_status status = tsr_config_load(&config, &source);
        came = system_clear();
        if (status == TSR_OK) {
            assert_string_equal(config.model_name_or_path, "/models/b");
            assert_string_equal(config.trace, "trace.json");
            tsr_config_free(&config);
        } else if (!came || status != TSR_ENOMEM)
            fail_msg("allocation %d: %s", nth, tsr_last_error());
    }
    print_message("%d allocations\n", nth - 2);
    assert_true(nth > 20);
}

static void test_each_allocation(void **state)
{
    (void)state;
    fail_each(text);
    fail_each(axolotl);
    fail_each(llamafactory);
    fail_each(preferences);
    fail_each(smoothed);
}

static void test_translation(void **state)
{
    tsr_config_source source = {.text = axolotl};
    (void)state;
    bool came = true;
    for (int nth = 1; came; nth++) {
        tsr_text out = {0};
        system_fail(SYSTEM_MALLOC, nth, ENOMEM);
        tsr_status status = tsr_config_translate(&out, &source);
        came = system_clear();
        if (status == TSR_OK)
            assert_non_null(strstr(tsr_text_string(&out), "dataset: [a.jsonl, b.jsonl]"));
        else if (!came || status != TSR_ENOMEM)
            fail_msg("allocation %d: %s", nth, tsr_last_error());
        tsr_text_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation),
                                       cmocka_unit_test(test_translation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
