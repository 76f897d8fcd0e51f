/*
 * How jobs end: stopped, out of time, with numbers that are not finite, with a rank that fails; and
 * that the next one in the same process finds nothing left of them.
 */
#include "job/fixture.h"

#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *config_text(const char *more)
{
    static char text[4096];
    snprintf(text, sizeof text,
             "model_name_or_path: " JOB_SHALLOW "\nlora_r: 2\ntotal_batch_size: 4\n"
             "dataset: %s\n%s",
             scratch_path("train.jsonl"), more);
    return text;
}

/* The last line of the run's metrics.jsonl holds `words`. */
static void assert_last_line(const char *words)
{
    FILE *file = fopen(scratch_path("output/metrics.jsonl"), "r");
    char line[1024] = "";
    if (!file)
        fail_msg("no metrics.jsonl");
    while (fgets(line, sizeof line, file))
        ;
    fclose(file);
    if (!strstr(line, words))
        fail_msg("metrics.jsonl ends with %s instead of %s", line, words);
}

static void assert_no_adapter(void)
{
    assert_int_equal(access(scratch_path("output/adapter_model.safetensors"), F_OK), -1);
    assert_int_equal(access(scratch_path("output/adapter_config.json"), F_OK), -1);
}

/* ---- the end of a run ---- */

static void test_stop(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        /* The flag of one rank, set between two steps, stops all after the next one. */
        job_event event = {.rank = ranks - 1, .stop_after = 2};
        job_result result;
        job_run_with(&result, ranks, config_text("max_steps: 7\n"), &event);
        if (result.status != 0)
            fail_msg("%s", result.message);
        assert_int_equal(result.step_count, 3);
        assert_true(result.stopped);
        assert_last_line("{\"event\":\"end\",\"status\":\"saved\"}");
        job_result_free(&result);
    }
}

static void test_stop_at_the_end(void **state)
{
    (void)state;
    job_event event = {.stop_after = 3};
    job_result result;
    job_run_with(&result, 1, config_text("max_steps: 4\n"), &event);
    assert_int_equal(result.status, 0);
    assert_int_equal(result.step_count, 4);
    assert_false(result.stopped);
    assert_last_line("{\"event\":\"end\",\"status\":\"done\"}");
    job_result_free(&result);
}

static void test_time_limit(void **state)
{
    (void)state;
    job_result result;
    job_run(&result, 2, config_text("max_steps: 7\ntime_limit: 0.000001\n"));
    if (result.status != 0)
        fail_msg("%s", result.message);
    assert_int_equal(result.step_count, 1);
    assert_true(result.stopped);
    assert_last_line("\"saved\"");
    job_result_free(&result);
}

/* ---- numbers that are not finite ---- */

static const char overflowing[] = "max_steps: 8\nlearning_rate: 1000\nlora_alpha: 1e9\n"
                                  "lr_scheduler_type: constant\nmax_skipped_steps: 2\n";

static void test_not_finite(void **state)
{
    (void)state;
    char alone[4096];
    for (int ranks = 1; ranks <= 4; ranks++) {
        job_result result;
        job_run(&result, ranks, config_text(overflowing));
        assert_int_equal(tsr_status_exit_code(result.status), 71);
        assert_int_equal(result.reporters, 1);
        if (!strstr(result.message, "not finite in 3 steps in a row (max_skipped_steps is 2)"))
            fail_msg("%s", result.message);
        const char *named = strstr(result.message, "first, from the output back, the gradient of ");
        if (!named || !strstr(named, "base_model.model.model.layers.2."))
            fail_msg("%s", result.message);
        if (ranks == 1)
            strcpy(alone, named);
        assert_string_equal(named, alone); /* whoever saw it */
        for (int i = 0; i < result.step_count; i++) {
            assert_int_equal(result.step[i].skipped, 1);
            assert_int_equal(result.step[i].skipped_steps, i + 1);
            assert_false(isfinite(result.step[i].loss));
            assert_false(isfinite(result.step[i].grad_norm));
        }
        assert_last_line("{\"event\":\"end\",\"status\":\"failed\"}");
        assert_no_adapter();
    }
}

/* Under ThreadSanitizer, which is slow, one kind of what is not finite: the threads are the same. */
#ifdef __SANITIZE_THREAD__
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

#define BAD_TOKEN 4000

/* 12 rows, three steps; the bad token is in row `bad`, or in all of them (-1). */
static const char *bad_config(int bad, const char *more)
{
    static char text[4096];
    const char *path = scratch_path("bad.jsonl");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 12; i++) {
        fprintf(file, "{\"input_ids\": [%d", 10 + i);
        for (int k = 1; k < 8 + i; k++)
            fprintf(file, ", %d", k == 3 && (bad < 0 || i == bad) ? BAD_TOKEN : 100 * i + k);
        fprintf(file, "]}\n");
    }
    assert_int_equal(fclose(file), 0);
    snprintf(text, sizeof text,
             "model_name_or_path: " JOB_SHALLOW "\nlora_r: 2\ntotal_batch_size: 4\n"
             "shuffle: false\ndataset: %s\nmax_steps: 3\n%s",
             path, more);
    return text;
}

/* The loss of one row, on one rank, is no number: that step alone is skipped, on all ranks. */
static void test_loss_not_finite_once(void **state)
{
    (void)state;
    const job_event event = {.spoil_token = BAD_TOKEN};
    job_result alone, result;
    for (int ranks = 1; ranks <= 3; ranks++) {
        job_run_with(&result, ranks, bad_config(5, ""), &event);
        if (result.status != 0)
            fail_msg("%d ranks: %s", ranks, result.message);
        assert_int_equal(result.step_count, 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(result.step[i].skipped, i == 1);
            assert_int_equal(result.step[i].skipped_steps, i >= 1);
            assert_int_equal(isfinite(result.step[i].loss) != 0, i != 1);
            assert_int_equal(isfinite(result.step[i].grad_norm) != 0, i != 1);
        }
        if (ranks == 1)
            alone = result;
        else
            job_assert_same(&alone, &result, "a loss that is no number");
        if (ranks > 1)
            job_result_free(&result);
    }
    job_result_free(&alone);
}

/* Nothing is ever updated: whether the run gives up or comes to its last step, it ends alike, without an adapter. */
static void test_loss_never_finite(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *words;
        int reported; /* steps; the last one ends the run, or saving does */
    } cases[] = {{"max_skipped_steps: 1\n",
                  "step 2: the loss or a gradient was not finite in 2 steps in a row", 1},
                 {"", "step 3: the loss or a gradient was not finite in 3 steps in a row", 3}};
    const job_event event = {.spoil_token = BAD_TOKEN};
    for (int i = 0; i < 6; i++) {
        job_result result;
        int ranks = 1 + i % 3;
        job_run_with(&result, ranks, bad_config(-1, cases[i / 3].keys), &event);
        assert_int_equal(tsr_status_exit_code(result.status), 71);
        assert_int_equal(result.reporters, 1);
        assert_int_equal(result.step_count, cases[i / 3].reported);
        assert_int_equal(result.step[0].skipped, 1);
        const char *said = strstr(result.message, cases[i / 3].words);
        if (!said || !strstr(said, "no step has updated anything") ||
            !strstr(said, "in this one the loss and first, from the output back, the gradient of "
                          "base_model.model.model.layers.2."))
            fail_msg("%d ranks: %s", ranks, result.message);
        assert_last_line("{\"event\":\"end\",\"status\":\"failed\"}");
        assert_no_adapter();
    }
}

static bool is_there(const char *name)
{
    return access(scratch_path(name), F_OK) == 0;
}

/* A master of one rank that is no number is in no checkpoint and in no adapter; what was saved before stays. */
static void test_broken_state_is_not_saved(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        job_result result;
        const job_event early = {.rank = ranks - 1, .spoil_after = 2};
        job_run_with(&result, ranks,
                     config_text("max_steps: 4\nsave_strategy: steps\nsave_steps: 1\n"), &early);
        assert_int_equal(tsr_status_exit_code(result.status), 71);
        assert_int_equal(result.reporters, 1);
        if (!strstr(result.message, "step 2: base_model.model.model.layers.0.") ||
            !strstr(result.message, ".master: element ") || !strstr(result.message, " is nan"))
            fail_msg("%s", result.message);
        assert_true(is_there("output/checkpoint-1/manifest.json"));
        assert_false(is_there("output/checkpoint-2"));
        assert_false(is_there("output/.checkpoint-2.tmp"));
        assert_last_line("{\"event\":\"end\",\"status\":\"failed\"}");
        assert_no_adapter();
        const job_event last = {.spoil_after = 1};
        job_run_with(&result, ranks, config_text("max_steps: 1\n"), &last);
        assert_int_equal(tsr_status_exit_code(result.status), 71);
        assert_int_equal(result.reporters, 1);
        if (!strstr(result.message, "step 1: base_model.model.model.layers.0."))
            fail_msg("%s", result.message);
        assert_no_adapter();
    }
}

/* A skipped step leaves masters and moments as they are, wherever they live: the steps after it, and
 * the adapter, are the same. */
static void test_skipped_step_changes_nothing(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "max_steps: 5\n", "max_steps: 5\nactivation_offloading: true\noptimizer_offload: true\n"};
    job_event event = {.rank = 1, .overflow_after = 2};
    job_result result[2];
    for (int i = 0; i < 2; i++) {
        job_run_with(&result[i], 3, config_text(keys[i]), &event);
        if (result[i].status != 0)
            fail_msg("%s", result[i].message);
        for (int step = 0; step < 5; step++)
            assert_int_equal(result[i].step[step].skipped, step == 2);
    }
    job_assert_same(&result[0], &result[1], "a skipped step");
    job_result_free(&result[0]);
    job_result_free(&result[1]);
}

/* ---- a rank that fails ---- */

static void test_a_rank_fails(void **state)
{
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        job_event event = {.rank = rank, .fail_after = 2};
        job_result result;
        char words[64];
        job_run_with(&result, 3, config_text("max_steps: 8\n"), &event);
        assert_int_equal(result.status, TSR_EDATA);
        assert_int_equal(result.reporters, 1);
        snprintf(words, sizeof words, "row 9 is bad");
        if (!strstr(result.message, words))
            fail_msg("%s", result.message);
        assert_last_line("\"failed\"");
        assert_no_adapter();
    }
}

static void test_ranks_that_were_told_differently(void **state)
{
    (void)state;
    static const struct {
        const char *override, *words;
    } cases[] = {
        {"learning_rate=1e-3", "learning_rate differs between the ranks"},
        {"dataset=[]", "dataset"},
        {"lora_r=0", "lora_r"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job_event event = {.rank = 1, .override = cases[i].override};
        job_result result;
        job_run_with(&result, 3, config_text("max_steps: 2\n"), &event);
        assert_int_equal(result.status, i ? TSR_ECONFIG : TSR_ERANKS);
        assert_int_equal(result.reporters, 1);
        if (!strstr(result.message, cases[i].words))
            fail_msg("%s", result.message);
    }
}

/* ---- one after the other ---- */

static int train_two_steps(int ranks)
{
    job_result result;
    job_run(&result, ranks, config_text("max_steps: 2\nuse_dora: true\n"));
    int status = result.status;
    job_result_free(&result);
    return status;
}

static void test_jobs_leave_nothing(void **state)
{
    (void)state;
    job_event event = {.rank = 1, .fail_after = 1};
    job_result result;
    int threads = job_thread_count();
    assert_int_equal(train_two_steps(2), 0);
    assert_int_equal(job_thread_count(), threads);
    job_run(&result, 2, config_text("max_steps: 2\nmemory_budget: 1MiB\n"));
    assert_int_equal(result.status, TSR_ECONFIG);
    assert_int_equal(job_thread_count(), threads);
    job_run(&result, 2, config_text("max_length: 4\n"));
    assert_int_equal(result.status, TSR_EDATA);
    assert_int_equal(job_thread_count(), threads);
    job_run_with(&result, 2, config_text("max_steps: 5\n"), &event);
    assert_int_equal(result.status, TSR_EDATA);
    assert_int_equal(job_thread_count(), threads);
    job_run(&result, 3, config_text(overflowing));
    assert_int_equal(result.status, TSR_EDEVICE);
    assert_int_equal(job_thread_count(), threads);
    assert_int_equal(train_two_steps(3), 0);
    assert_int_equal(job_thread_count(), threads);
}

/* Calls in the wrong order are refused and change nothing. */
static void test_wrong_order(void **state)
{
    (void)state;
    char output[600];
    snprintf(output, sizeof output, "output_dir=%s", scratch_path("order"));
    const char *overrides[] = {output, "max_steps=1"};
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .config_text = config_text(""),
                               .overrides = overrides,
                               .override_count = 2,
                               .threads = 1};
    tsr_job *job;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    assert_int_equal(tsr_job_create(&job, &options), 0);
    assert_int_equal(tsr_job_step(job, &report), TSR_EINVAL);
    assert_int_equal(tsr_job_save(job), TSR_EINVAL);
    assert_int_equal(tsr_job_start(job), 0);
    assert_int_equal(tsr_job_start(job), TSR_EINVAL);
    assert_int_equal(tsr_job_evaluate(job, &evaluation), TSR_ECONFIG);
    assert_int_equal(tsr_job_step(job, &report), 0);
    assert_int_equal(tsr_job_step(job, &report), TSR_JOB_DONE);
    assert_int_equal(tsr_job_save(job), 0);
    tsr_job_destroy(job);
    tsr_job_destroy(NULL);
}

/* A caller that rounds in another way and traps what is not finite gets the same bits, and has both
 * back after each call. */
static void test_arithmetic_of_the_caller(void **state)
{
    enum { TRAPS = FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW };
    const char *text = config_text("use_dora: true\nmax_steps: 2\noverwrite_output_dir: true\n");
    tsr_job_report report[2] = {TSR_JOB_REPORT_INIT, TSR_JOB_REPORT_INIT};
    (void)state;
    for (int other = 0; other < 2; other++) {
        const char *overrides[] = {scratch_path("output")};
        char output[600];
        tsr_job *job = NULL;
        snprintf(output, sizeof output, "output_dir=%s", overrides[0]);
        overrides[0] = output;
        tsr_job_options options = {.size = sizeof(tsr_job_options),
                                   .config_text = text,
                                   .overrides = overrides,
                                   .override_count = 1,
                                   .threads = 2};
        if (other) {
            fesetround(FE_UPWARD);
            feenableexcept(TRAPS);
        }
        int status = tsr_job_create(&job, &options);
        if (status == 0)
            status = tsr_job_start(job);
        for (int i = 0; i < 2 && status == 0; i++)
            status = tsr_job_step(job, &report[other]);
        if (status == 0)
            status = tsr_job_save(job);
        tsr_job_destroy(job);
        bool kept = fegetround() == (other ? FE_UPWARD : FE_TONEAREST) &&
                    (fegetexcept() & TRAPS) == (other ? TRAPS : 0);
        fesetenv(FE_DFL_ENV);
        if (status != 0)
            fail_msg("%s", tsr_last_error());
        assert_true(kept);
    }
    assert_true(report[0].loss == report[1].loss);
    assert_true(report[0].grad_norm == report[1].grad_norm);
}

static int set_up(void **state)
{
    (void)state;
    scratch_make();
    job_write_documents("train.jsonl", 10, 4096, 7);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stop_at_the_end),
        cmocka_unit_test(test_time_limit),
        cmocka_unit_test(test_not_finite),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(test_loss_not_finite_once),
        cmocka_unit_test(test_loss_never_finite),
        cmocka_unit_test(test_broken_state_is_not_saved),
        cmocka_unit_test(test_skipped_step_changes_nothing),
#endif
        cmocka_unit_test(test_a_rank_fails),
        cmocka_unit_test(test_ranks_that_were_told_differently),
        cmocka_unit_test(test_jobs_leave_nothing),
        cmocka_unit_test(test_wrong_order),
        cmocka_unit_test(test_arithmetic_of_the_caller),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
