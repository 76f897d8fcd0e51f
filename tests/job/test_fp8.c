/*
 * What an fp8 base costs in loss: the example's job with `base_compute: fp8` and without, the same seeds;
 * held-out losses are within a limit of each other, and not the same. On a GPU also: an fp8 base's losses,
 * before and after, are those of the CPU.
 *
 *     test_job_fp8                                   two short runs
 *     test_job_fp8 STEPS SEEDS [BACKEND DTYPE [BASE_COMPUTE]]    the guard: 200 3; 77 without such a GPU
 */
#include "kernels/kernels.h"
#include "support/scratch.h"
#include "tessera.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EXAMPLES TSR_SOURCE_DIR "/examples"
#define LIMIT    4e-3 /* of the loss, after 100 steps or more */
#define EARLY    1e-2 /* the adapter has not made up for it yet */
#define BEFORE   5e-3 /* on two backends: other sums, and so other codes beside a threshold; bf16 */
#define AFTER    1e-2

/* DoRA and LoRA: o_proj's gradient comes from elsewhere. */
enum { SEEDS = 2, ROWS = 4, EVAL_ROWS = 32 };
static int steps = 12, seeds = SEEDS;

typedef struct {
    const char *name, *dtype;
} backend;

typedef struct {
    double before, after;
} losses;

static const backend cpu = {"cpu", "float32"};
static backend wanted = {"cpu", "float32"};
static const char *fp8 = "fp8"; /* or fp8_fast */

static void need(int status)
{
    if (status < 0)
        fail_msg("%s", tsr_last_error());
}

static double evaluate(tsr_job *job)
{
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    need(tsr_job_evaluate(job, &evaluation));
    return evaluation.loss;
}

static losses held_out(const backend *on, const char *base_compute, const char *adapter, int seed)
{
    char config[2048];
    tsr_job_options options = {
        .size = sizeof(tsr_job_options), .config_text = config, .purpose = TSR_JOB_TRAIN};
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    tsr_job *job;
    int status;
    snprintf(config, sizeof config,
             "model_name_or_path: " EXAMPLES "/tiny-llama\n"
             "dataset: " EXAMPLES "/data/gsm8k_train.jsonl\n"
             "eval_dataset: " EXAMPLES "/data/gsm8k_eval.jsonl\n"
             "max_eval_samples: %d\nmax_length: 1024\nassistant_only_loss: true\n"
             "lora_r: 8\nlora_alpha: 16\n%s\nlearning_rate: 2e-3\nlr_scheduler_type: cosine\n"
             "warmup_steps: 10\nmax_steps: %d\nper_device_train_batch_size: %d\n"
             "total_batch_size: %d\nseed: %d\nbackend: %s\ndtype: %s\nbase_compute: %s\n"
             "output_dir: %s\noverwrite_output_dir: true\n",
             steps < 100 ? EVAL_ROWS : 400, adapter, steps, ROWS, 2 * ROWS, seed, on->name,
             on->dtype, base_compute, scratch_path("out"));
    need(tsr_job_create(&job, &options));
    need(tsr_job_start(job));
    losses out = {.before = evaluate(job)};
    while ((status = tsr_job_step(job, &report)) == 0)
        ;
    need(status);
    out.after = evaluate(job);
    tsr_job_destroy(job);
    assert_true(out.after < 0.9 * out.before); /* it learns */
    return out;
}

static const char *const adapters[] = {"use_dora: true", "use_dora: false", "lora_dropout: 0.05"};

static void test_guard(void **state)
{
    (void)state;
    for (int seed = 1; seed <= seeds; seed++) {
        const char *adapter = adapters[(seed - 1) % 3];
        double plain = held_out(&wanted, "dtype", adapter, seed).after;
        double with = held_out(&wanted, fp8, adapter, seed).after;
        double off = with / plain - 1;
        print_message("seed %d, %-18s  held-out loss %.6f, with an fp8 base %.6f: %+.3f %%\n", seed,
                      adapter, plain, with, 100 * off);
        if (!(fabs(off) <= (steps < 100 ? EARLY : LIMIT)))
            fail_msg("off by %.3f %%", 100 * off);
        assert_true(off != 0);
    }
}

static void test_against_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof adapters / sizeof *adapters; i++) {
        losses here = held_out(&wanted, fp8, adapters[i], 1);
        losses there = held_out(&cpu, "fp8", adapters[i], 1);
        double before = here.before / there.before - 1, after = here.after / there.after - 1;
        print_message("%-18s  before %.6f, on the CPU %.6f: %+.4f %%; after %.6f, %.6f: %+.4f %%\n",
                      adapters[i], here.before, there.before, 100 * before, here.after, there.after,
                      100 * after);
        assert_true(fabs(before) <= BEFORE);
        assert_true(fabs(after) <= AFTER);
    }
}

static bool gpu_has_fp8(void)
{
    tsr_device *gpu;
    if (tsr_device_create_cuda(&gpu, &(tsr_device_options){.local_rank_count = 1}) < 0)
        return false;
    bool has = tsr_kernels_fp8_supported(gpu) == TSR_OK;
    tsr_device_destroy(gpu);
    return has;
}

int main(int count, char **arguments)
{
    const struct CMUnitTest guard[] = {cmocka_unit_test(test_guard)};
    const struct CMUnitTest on_gpu[] = {cmocka_unit_test(test_guard),
                                        cmocka_unit_test(test_against_cpu)};
    if (count >= 3) {
        steps = atoi(arguments[1]);
        seeds = atoi(arguments[2]);
    }
    if (count >= 5)
        wanted = (backend){arguments[3], arguments[4]};
    if (count >= 6)
        fp8 = arguments[5];
    if (!strcmp(wanted.name, cpu.name))
        return cmocka_run_group_tests(guard, scratch_setup, scratch_teardown);
    return gpu_has_fp8() ? cmocka_run_group_tests(on_gpu, scratch_setup, scratch_teardown) : 77;
}
