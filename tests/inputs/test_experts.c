/*
 * Keys of models with experts are refused of a model that has none, by name, with their value; at a value that asks for
 * nothing they are not.
 */
#include "support/scratch.h"
#include "tessera.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MODEL  TSR_SOURCE_DIR "/examples/tiny-llama"
#define SPARSE TSR_SOURCE_DIR "/tests/golden/families/qwen3_moe/checkpoint"

static tsr_status create_of(const char *model, const char *key)
{
    char config[2048];
    tsr_job *job = NULL;
    snprintf(config, sizeof config,
             "model_name_or_path: %s\noutput_dir: %s\nbackend: cpu\nmax_steps: 1\n%s\n", model,
             scratch_path("out"), key);
    const tsr_job_options options = {.size = sizeof(tsr_job_options),
                                     .config_text = config,
                                     .purpose = TSR_JOB_PLAN,
                                     .threads = 1};
    tsr_status status = tsr_job_create(&job, &options);
    tsr_job_destroy(job);
    return status;
}

static tsr_status create(const char *key)
{
    return create_of(MODEL, key);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *found, *change;
    } cases[] = {
        {"lora_target_parameters: mlp.experts.down_proj", "[mlp.experts.down_proj]",
         "leave it out"},
        {"lora_target_modules: all-linear-peft", "all-linear-peft", "write all-linear"},
        {"expert_lora_r: 4", "4", "leave it out"},
        {"expert_lora_alpha: 8", "8", "leave it out"},
        {"router_aux_loss_coef: 0.02", "0.02", "leave it out"},
        {"router_bias_update_rate: 1e-3", "0.001", "leave it out"},
        {"moe_capacity_factor: 1.5", "1.5", "leave it out"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[700];
        struct stat info;
        int name = (int)strcspn(cases[i].key, ":");
        snprintf(want, sizeof want,
                 "configuration:5: %.*s: found %s, which is for models with experts, but " MODEL
                 " has none; %s",
                 name, cases[i].key, cases[i].found, cases[i].change);
        assert_int_equal(create(cases[i].key), TSR_ECONFIG);
        assert_string_equal(tsr_last_error(), want);
        assert_int_not_equal(stat(scratch_path("out"), &info), 0);
    }
}

static void test_nothing_asked(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "lora_target_parameters: []",
        "lora_target_parameters: null",
        "expert_lora_r: null",
        "expert_lora_alpha: null",
        "router_aux_loss_coef: 0",
        "router_aux_loss_coef: null",
        "router_bias_update_rate: 0",
        "moe_capacity_factor: null",
        "lora_target_modules: [all-linear]",
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (create(keys[i]) < 0)
            fail_msg("%s: %s", keys[i], tsr_last_error());
}

/* Of routers without correction biases there is none to move. */
static void test_correction(void **state)
{
    (void)state;
    static const char *const keys[] = {"moe_capacity_factor: 1.5", "router_aux_loss_coef: 0.02"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (create_of(SPARSE, keys[i]) < 0)
            fail_msg("%s: %s", keys[i], tsr_last_error());
    assert_int_equal(create_of(SPARSE, "router_bias_update_rate: 1e-3"), TSR_ECONFIG);
    assert_string_equal(tsr_last_error(),
                        "configuration:5: router_bias_update_rate: found 0.001, which moves the "
                        "correction biases of routers, but those of " SPARSE
                        " have none; leave it out (router_aux_loss_coef evens out loads too)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_nothing_asked),
                                       cmocka_unit_test(test_correction)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
