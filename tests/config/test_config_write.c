/*
 * The resolved configuration as it is written: the marks of what nobody set, and what it does not carry.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "config/config.h"

static tsr_config load_text(const char *text)
{
    tsr_config config;
    const tsr_config_source source = {.text = text};
    if (tsr_config_load(&config, &source) < 0)
        fail_msg("%s", tsr_last_error());
    return config;
}

/* With what is required. */
static tsr_config load(const char *more)
{
    char text[400];
    snprintf(text, sizeof text, "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: o\n%s", more);
    return load_text(text);
}

static void test_marks(void **state)
{
    (void)state;
    tsr_config c = load("lora_r: 16\n");
    uint64_t before = tsr_config_hash(&c);
    c.dtype = TSR_CONFIG_DTYPE_FLOAT32; /* as the job resolves it */
    assert_true(tsr_config_hash(&c) != before);
    tsr_text text = {0};
    assert_int_equal(tsr_config_write(&text, &c), TSR_OK);
    assert_non_null(strstr(text.data, "\nlora_r: 16\n"));
    assert_non_null(strstr(text.data, "\nlora_alpha: 32  # default\n"));
    assert_non_null(strstr(text.data, "\ndtype: float32  # resolved\n"));
    assert_non_null(strstr(text.data, "\ndata_seed: 42  # default: as seed\n"));
    tsr_text_free(&text);
    tsr_config_free(&c);
}

/* What was meant for one start is not of the run: who starts from its file says so again. */
static void test_one_start(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_config plain = load("");
    tsr_config c = load("overwrite_output_dir: true\nresume_from_checkpoint: o/x\n");
    assert_int_equal(tsr_config_hash(&c), tsr_config_hash(&plain));
    assert_int_equal(tsr_config_write(&text, &c), TSR_OK);
    assert_non_null(strstr(text.data, "\n# overwrite_output_dir: for one start alone"));
    assert_non_null(strstr(text.data, "\n# resume_from_checkpoint: for one start alone"));
    tsr_config again = load_text(text.data);
    assert_false(again.overwrite_output_dir);
    assert_null(again.resume_from_checkpoint);
    tsr_text_free(&text);
    tsr_config_free(&plain);
    tsr_config_free(&c);
    tsr_config_free(&again);
}

/* What is trained, of the job and of a data set, is read back as it was; an empty list of roles is not the same as none. */
static void test_trained(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_config c =
        load_text("model_name_or_path: m\noutput_dir: o\nroles_to_train: []\ntrain_on_eot: no\n"
                  "dataset: [{path: a.jsonl, roles_to_train: [user, gpt], train_on_eot: all, "
                  "field_history: h}, {path: b.jsonl, roles_to_train: []}, {path: c.jsonl}]\n"
                  "response_template: null\ndefault_system: 'a: b'\n");
    assert_int_equal(tsr_config_write(&text, &c), TSR_OK);
    assert_non_null(strstr(text.data, "\nroles_to_train: []\n"));
    assert_non_null(strstr(text.data, "\ntrain_on_eot: none\n"));
    tsr_config again = load_text(text.data);
    assert_int_equal(tsr_config_hash(&c), tsr_config_hash(&again));
    assert_non_null(again.roles_to_train.items);
    assert_int_equal(again.roles_to_train.count, 0);
    assert_int_equal(again.train_on_eot, TSR_CONFIG_EOT_NONE);
    assert_string_equal(again.default_system, "a: b");
    const tsr_config_set *sets = again.dataset.sets;
    assert_int_equal(sets[0].roles_to_train.count, 2);
    assert_string_equal(sets[0].roles_to_train.items[1], "gpt");
    assert_string_equal(sets[0].field_history, "h");
    assert_int_equal(sets[0].train_on_eot, TSR_CONFIG_EOT_ALL);
    assert_non_null(sets[1].roles_to_train.items);
    assert_int_equal(sets[1].roles_to_train.count, 0);
    assert_null(sets[2].roles_to_train.items);
    assert_int_equal(sets[2].train_on_eot, TSR_CONFIG_EOT_UNSET);
    tsr_text_free(&text);
    tsr_config_free(&c);
    tsr_config_free(&again);
    c = load("train_on_eos: true\n");
    assert_int_equal(c.train_on_eot, TSR_CONFIG_EOT_TURN);
    assert_null(c.roles_to_train.items);
    tsr_config_free(&c);
}

/* Keys of models with experts are read back as they were. */
static void test_experts(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_config plain = load("");
    assert_int_equal(tsr_config_write(&text, &plain), TSR_OK);
    assert_non_null(strstr(text.data, "\nlora_target_parameters: null  # default\n"));
    assert_non_null(strstr(text.data, "\nexpert_lora_r: null  # default: as lora_r\n"));
    assert_non_null(strstr(text.data, "\nrouter_bias_update_rate: 0  # default\n"));
    tsr_text_clear(&text);
    tsr_config c =
        load("lora_target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]\n"
             "lora_target_modules: [all-linear-peft]\nexpert_lora_r: 4\n"
             "expert_lora_alpha: 8.5\nrouter_aux_loss_coef: 0.02\n"
             "router_bias_update_rate: 1e-3\nmoe_capacity_factor: 1.25\n");
    assert_int_equal(c.lora_target_modules.kind, TSR_CONFIG_MODULES_ALL_LINEAR_PEFT);
    assert_int_equal(tsr_config_write(&text, &c), TSR_OK);
    assert_non_null(strstr(text.data, "\nlora_target_modules: all-linear-peft\n"));
    tsr_config again = load_text(text.data);
    assert_int_equal(tsr_config_hash(&c), tsr_config_hash(&again));
    assert_true(tsr_config_hash(&c) != tsr_config_hash(&plain));
    assert_int_equal(again.lora_target_parameters.count, 2);
    assert_string_equal(again.lora_target_parameters.items[1], "mlp.experts.down_proj");
    assert_int_equal(again.lora_target_modules.kind, TSR_CONFIG_MODULES_ALL_LINEAR_PEFT);
    assert_int_equal(again.expert_lora_r, 4);
    assert_true(again.expert_lora_alpha == 8.5 && again.router_aux_loss_coef == 0.02);
    assert_true(again.router_bias_update_rate == 1e-3 && again.moe_capacity_factor == 1.25);
    tsr_text_free(&text);
    tsr_config_free(&plain);
    tsr_config_free(&c);
    tsr_config_free(&again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_marks), cmocka_unit_test(test_one_start),
        cmocka_unit_test(test_trained), cmocka_unit_test(test_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
