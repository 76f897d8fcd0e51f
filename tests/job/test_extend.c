/*
 * A run that goes on longer than it was to be: the longer run's schedule from there on, the data in their
 * order, and the longer run's bits where the schedule has no length; and one that has ended.
 */
#include "job/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 10 samples, 4 a step: 3 steps an epoch. */
static const char *config_text(const char *more, const char *length)
{
    static char text[2][2048];
    static int next;
    char *out = text[next++ % 2];
    snprintf(out, sizeof text[0],
             "model_name_or_path: " JOB_SHALLOW "\ndataset: %s\ntotal_batch_size: 4\nlora_r: 3\n"
             "learning_rate: 1e-2\nlora_dropout: 0.1\n%s%s",
             scratch_path("train.jsonl"), more, length);
    return out;
}

static void run(job_result *out, int ranks, const char *more, const char *length,
                const char *output)
{
    job_run_in(out, ranks, config_text(more, length), output, NULL);
    if (out->status != 0)
        fail_msg("%s, %s: %s", output, length, out->message);
}

#define GOES_ON "resume_from_checkpoint: true\n"

/* `keys` for `before`, then gone on with for `after`; all steps of the two parts. */
static void run_parts(job_result *first, job_result *second, const char *keys, const char *before,
                      const char *after, const char *output)
{
    char more[512];
    snprintf(more, sizeof more, "%ssave_strategy: epoch\n", keys);
    run(first, 2, more, before, output);
    snprintf(more, sizeof more, "%s" GOES_ON, keys);
    run(second, 1, more, after, output);
    assert_int_equal(second->resumed, first->step_count);
}

/* The bits of a run that was so long from the start. */
static void check_bits(const char *keys, const char *before, const char *after, const char *output)
{
    job_result whole, first, second;
    char name[64];
    snprintf(name, sizeof name, "%s-whole", output);
    run(&whole, 1, keys, after, name);
    run_parts(&first, &second, keys, before, after, output);
    assert_int_equal(second.resumed + second.step_count, whole.step_count);
    job_assert_part(&whole, &second, (int)second.resumed, true, output);
    job_result_free(&whole);
    job_result_free(&first);
    job_result_free(&second);
}

static void test_constant(void **state)
{
    (void)state;
    check_bits("lr_scheduler_type: constant_with_warmup\nwarmup_steps: 2\n", "max_steps: 1\n",
               "max_steps: 4\n", "steps");
    check_bits("lr_scheduler_type: constant\n", "num_train_epochs: 0.5\n", "num_train_epochs: 2\n",
               "epochs");
}

static void check_rates(const char *keys, const char *before, const char *after, const char *output,
                        const double *multiplier)
{
    job_result first, second;
    run_parts(&first, &second, keys, before, after, output);
    for (int i = 0; i < second.step_count; i++)
        if (second.step[i].learning_rate != 1e-2 * multiplier[i])
            fail_msg("%s: step %d has learning rate %.17g, expected %.17g", output,
                     (int)second.step[i].step, second.step[i].learning_rate, 1e-2 * multiplier[i]);
    job_result_free(&first);
    job_result_free(&second);
}

/* The rate of a step is the longer schedule's: a warm-up in steps is over, one that is a share of the run
 * has become longer with it. */
static void test_rates(void **state)
{
    (void)state;
    check_rates("warmup_steps: 1\n", "max_steps: 2\n", "max_steps: 4\n", "linear",
                (const double[]){2. / 3, 1. / 3});
    check_rates("warmup_ratio: 0.5\n", "max_steps: 2\n", "max_steps: 6\n", "share",
                (const double[]){2. / 3, 1, 2. / 3, 1. / 3});
}

static void test_shorter(void **state)
{
    (void)state;
    job_result result;
    run(&result, 1, "save_steps: 2\n", "max_steps: 2\n", "shorter");
    job_result_free(&result);
    job_run_in(&result, 2, config_text(GOES_ON, "max_steps: 1\n"), "shorter", NULL);
    assert_int_equal(result.status, TSR_ECONFIG);
    if (!strstr(result.message, "max_steps: this run ends at step 1, the one of ") ||
        !strstr(result.message, "checkpoint-2 at 2: a resumed run may become longer, not shorter"))
        fail_msg("%s", result.message);
}

/* What tsr_job_finished says of a job in `output`; a refusal is its status. */
static int finished(const char *output, const char *length)
{
    char keys[512];
    tsr_job *job;
    snprintf(keys, sizeof keys, GOES_ON "backend: cpu\noutput_dir: %s\n", scratch_path(output));
    const tsr_job_options options = {
        .size = sizeof(tsr_job_options), .config_text = config_text(keys, length), .threads = 1};
    int status = tsr_job_create(&job, &options);
    if (status < 0)
        return status;
    status = tsr_job_finished(job);
    tsr_job_destroy(job);
    return status;
}

static void test_finished(void **state)
{
    (void)state;
    job_result result;
    run(&result, 1, "save_steps: 1\n", "max_steps: 2\n", "finished");
    job_result_free(&result);
    assert_int_equal(finished("finished", "max_steps: 2\n"), 1);
    assert_int_equal(finished("finished", "max_steps: 3\n"), 0);
    /* An older checkpoint is no reason to do again what is done. */
    assert_int_equal(rename(scratch_path("finished/checkpoint-2"), scratch_path("aside")), 0);
    assert_int_equal(finished("finished", "max_steps: 2\n"), 1);
    assert_int_equal(rename(scratch_path("finished/checkpoint-1"), scratch_path("aside1")), 0);
    assert_int_equal(finished("finished", "max_steps: 2\n"), 1);
    assert_int_equal(finished("finished", "max_steps: 3\n"), TSR_ECONFIG);
    assert_non_null(
        strstr(tsr_last_error(), "ended after 2 steps, and no checkpoint to continue from"));
    /* Before its adapter is there a run has not ended. */
    assert_int_equal(unlink(scratch_path("finished/adapter_model.safetensors")), 0);
    assert_int_equal(finished("finished", "max_steps: 2\n"), 0);
    assert_int_equal(finished("nowhere", "max_steps: 2\n"), 0);
}

static int setup(void **state)
{
    scratch_setup(state);
    job_write_documents("train.jsonl", 10, 4096, 3);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_constant),
                                       cmocka_unit_test(test_rates), cmocka_unit_test(test_shorter),
                                       cmocka_unit_test(test_finished)};
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
