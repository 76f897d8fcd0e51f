/*
 * optim: adamw_8bit: the same bits on any number of ranks, with masters and moments in device or host memory, and resumed on other
 * ranks; which tensors keep fp32 moments; a resumed run with another optimizer is refused.
 *
 *     test_job_adamw_8bit                        on the CPU
 *     test_job_adamw_8bit BACKEND DTYPE RANKS    on at most RANKS ranks
 */
#include "io/safetensors.h"
#include "job/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Coded are A and B of the layers; magnitudes are too small. */
#define DORA  "optim: adamw_8bit\nuse_dora: true\nlora_r: 16\nweight_decay: 0.1\n"
#define WHOLE "optim: paged_adamw_8bit\nlora_r: 8\nmodules_to_save: [embed_tokens, lm_head]\n"

static const char *config_text(const char *keys, const char *more)
{
    static char text[2048];
    snprintf(text, sizeof text,
             "max_steps: 6\nlearning_rate: 1e-2\nmodel_name_or_path: " JOB_SHALLOW "\n"
             "total_batch_size: 4\ndataset: %s\n%s%s",
             scratch_path("train.jsonl"), keys, more);
    return text;
}

static void run(job_result *out, int ranks, const char *config, const char *output,
                const job_event *event)
{
    job_run_in(out, ranks, config, output, event);
    if (out->status != 0)
        fail_msg("%s on %d ranks: %s", output, ranks, out->message);
}

/* Stopped on `saved` ranks, resumed on `resumed`, both with `more`. */
static void check_ranks(const job_result *whole, const char *keys, int saved, int resumed,
                        const char *more)
{
    char before[2048], both[256];
    snprintf(before, sizeof before, "%s", config_text(keys, more));
    snprintf(both, sizeof both, "resume_from_checkpoint: true\n%s", more);
    job_assert_resumed(whole, job_ranks(saved), before, job_ranks(resumed),
                       config_text(keys, both));
}

static void test_dora(void **state)
{
    (void)state;
    job_result whole, plain;
    run(&whole, 1, config_text(DORA, ""), "whole", NULL);
    check_ranks(&whole, DORA, 3, 2, "");
    check_ranks(&whole, DORA, 2, 3, "optimizer_offload: true\n");
    run(&plain, 1, config_text("use_dora: true\nlora_r: 16\nweight_decay: 0.1\n", ""), "plain",
        NULL);
    assert_true(plain.step[0].loss == whole.step[0].loss);
    assert_true(plain.step[5].loss != whole.step[5].loss);
    assert_true(whole.memory[0].planned_device < plain.memory[0].planned_device);
    job_result_free(&plain);
    job_result_free(&whole);
}

static tsr_dtype dtype_of(const tsr_safetensors *file, const char *part, const char *state)
{
    for (uint64_t i = 0; i < tsr_safetensors_count(file); i++) {
        const tsr_tensor *tensor = tsr_safetensors_at(file, i);
        size_t length = strlen(tensor->name), end = strlen(state);
        if (strstr(tensor->name, part) && length > end &&
            !strcmp(tensor->name + length - end, state))
            return tensor->dtype;
    }
    fail_msg("no %s of %s in the checkpoint", state, part);
    return TSR_F32;
}

/* A head that is trained whole is coded, an embedding is not. */
static void test_whole_tables(void **state)
{
    (void)state;
    job_result whole;
    tsr_safetensors *file;
    run(&whole, 1, config_text(WHOLE, ""), "tables", NULL);
    check_ranks(&whole, WHOLE, 1, 3, "");
    job_result_free(&whole);
    run(&whole, 1, config_text(WHOLE, ""), "kept", &(job_event){.stop_after = 2});
    job_result_free(&whole);
    const char *path = scratch_path("kept/checkpoint-3/state-00001-of-00001.safetensors");
    if (tsr_safetensors_open(&file, path) < 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(dtype_of(file, "embed_tokens", ".exp_avg"), TSR_F32);
    assert_int_equal(dtype_of(file, "lm_head", ".exp_avg"), TSR_U8);
    assert_int_equal(dtype_of(file, "lm_head", ".absmax"), TSR_F32);
    assert_int_equal(dtype_of(file, "layers.0.mlp.up_proj.lora_A", ".exp_avg_sq"), TSR_F32);
    assert_int_equal(dtype_of(file, "layers.0.mlp.down_proj.lora_A", ".exp_avg_sq"), TSR_U8);
    tsr_safetensors_close(file);
}

static void test_another_optimizer(void **state)
{
    (void)state;
    job_result result;
    run(&result, 1, config_text(DORA, ""), "other", &(job_event){.stop_after = 2});
    job_result_free(&result);
    job_run_in(&result, 1,
               config_text("use_dora: true\nlora_r: 16\nweight_decay: 0.1\n",
                           "resume_from_checkpoint: true\n"),
               "other", NULL);
    assert_int_equal(result.status, TSR_ECONFIG);
    assert_non_null(strstr(result.message, "optim: found adamw_torch, the checkpoint was made with "
                                           "adamw_8bit"));
    job_result_free(&result);
}

static int set_up(void **state)
{
    (void)state;
    scratch_make();
    job_write_documents("train.jsonl", 10, 4096, 7);
    return 0;
}

int main(int argc, char **argv)
{
    job_choose_backend(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dora),
        cmocka_unit_test(test_whole_tables),
        cmocka_unit_test(test_another_optimizer),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
