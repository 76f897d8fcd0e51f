/*
 * What an fp8 base costs in loss: the example's job with `base_compute: fp8` and without, the same seeds;
 * held-out losses are within a limit of each other, and not the same.
 *
 *     test_train_job_fp8                                   one short run
 *     test_train_job_fp8 STEPS SEEDS [BACKEND DTYPE]       the guard: 200 3; 77 where there is no such GPU
 */
#include "device/device.h"
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

static int steps = 12, seeds = 1;
static const char *backend = "cpu", *dtype = "float32";

static void need(int status)
{
    if (status < 0)
        fail_msg("%s", tsr_last_error());
}

static double evaluate(tsr_job *job)
{
    tsr_job_evaluation evaluation;
    need(tsr_job_evaluate(job, &evaluation));
    return evaluation.loss;
}

static double held_out_loss(const char *base_compute, const char *adapter, int seed)
{
    char config[2048];
    tsr_job_options options = {.config_text = config, .purpose = TSR_JOB_TRAIN};
    tsr_job_report report;
    tsr_job *job;
    int status;
    snprintf(config, sizeof config,
             "model_name_or_path: " EXAMPLES "/tiny-llama\n"
             "dataset: " EXAMPLES "/data/gsm8k_train.jsonl\n"
             "eval_dataset: " EXAMPLES "/data/gsm8k_eval.jsonl\n"
             "max_eval_samples: %d\nmax_length: 1024\nassistant_only_loss: true\n"
             "lora_r: 8\nlora_alpha: 16\n%s\nlearning_rate: 2e-3\nlr_scheduler_type: cosine\n"
             "warmup_steps: 10\nmax_steps: %d\nper_device_train_batch_size: 4\n"
             "total_batch_size: 8\nseed: %d\nbackend: %s\ndtype: %s\nbase_compute: %s\n"
             "output_dir: %s\noverwrite_output_dir: true\n",
             steps < 100 ? 32 : 400, adapter, steps, seed, backend, dtype, base_compute,
             scratch_path("out"));
    need(tsr_job_create(&job, &options));
    need(tsr_job_start(job));
    double before = evaluate(job);
    while ((status = tsr_job_step(job, &report)) == 0)
        ;
    need(status);
    double after = evaluate(job);
    tsr_job_destroy(job);
    assert_true(after < 0.9 * before); /* it learns */
    return after;
}

static void test_guard(void **state)
{
    static const char *const adapters[] = {"use_dora: true", "use_dora: false",
                                           "lora_dropout: 0.05"};
    (void)state;
    for (int seed = 1; seed <= seeds; seed++) {
        const char *adapter = adapters[(seed - 1) % 3];
        double plain = held_out_loss("dtype", adapter, seed);
        double fp8 = held_out_loss("fp8", adapter, seed);
        double off = fp8 / plain - 1;
        print_message("seed %d, %-18s  held-out loss %.6f, with an fp8 base %.6f: %+.3f %%\n", seed,
                      adapter, plain, fp8, 100 * off);
        if (!(fabs(off) <= (steps < 100 ? EARLY : LIMIT)))
            fail_msg("off by %.3f %%", 100 * off);
        assert_true(off != 0);
    }
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_guard)};
    if (count >= 3) {
        steps = atoi(arguments[1]);
        seeds = atoi(arguments[2]);
    }
    if (count >= 5) {
        int gpus = 0;
        backend = arguments[3];
        dtype = arguments[4];
        if (!strcmp(backend, "cuda") && (tsr_device_cuda_count(&gpus) < 0 || gpus == 0))
            return 77;
    }
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
