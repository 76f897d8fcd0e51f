/*
 * What the head is told to do, and what it reports beside the loss, in whole jobs: against Transformers, TRL and PEFT in
 * float64, and the same bits on any number of ranks and after a checkpoint.
 * Golden: tests/golden/head_tiny_llama.json (tools/make_head_golden.py).
 */
#include "job/fixture.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Of a mean over tokens; of the norm, which has rounding of the whole backward. */
#define MEAN_TOLERANCE 2e-5
#define NORM_TOLERANCE 1e-4
#define MOST           8

static json_t *golden;

static int setup(void **state)
{
    json_error_t error;
    (void)state;
    scratch_make();
    golden = json_load_file(TSR_SOURCE_DIR "/tests/golden/head_tiny_llama.json", 0, &error);
    if (!golden)
        fail_msg("%s", error.text);
    FILE *file = fopen(scratch_path("rows.jsonl"), "w");
    size_t i;
    const json_t *row;
    assert_non_null(file);
    json_array_foreach(json_object_get(golden, "rows"), i, row)
    {
        assert_int_equal(json_dumpf(row, file, JSON_COMPACT), 0);
        fputs("\n", file);
    }
    assert_int_equal(fclose(file), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(golden);
    scratch_remove();
    return 0;
}

/* The golden rows in micro-batches of two, three of them a step. */
static const char *config_text(const char *more)
{
    static char text[4096];
    char rows[512];
    snprintf(rows, sizeof rows, "%s", scratch_path("rows.jsonl"));
    snprintf(text, sizeof text,
             "model_name_or_path: " JOB_MODEL "\ndataset: %s\neval_dataset: %s\n"
             "load_in_4bit: false\ninit_adapter: " JOB_TRACES "/init/lora_r8\nshuffle: false\n"
             "max_grad_norm: null\nper_device_train_batch_size: 2\ntotal_batch_size: 6\n%s",
             rows, rows, more);
    return text;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s is no number in the golden file", key);
    return json_number_value(value);
}

static void expect(const char *what, const char *key, double got, const json_t *want,
                   double tolerance)
{
    double off = fabs(got - number(want, key));
    if (!(off <= tolerance))
        fail_msg("%s: %s is %.9g, %.9g in the golden file", what, key, got, number(want, key));
}

/* A key's value in the golden file as a line of job.yaml; null is left out. */
static void put_key(char *text, size_t bytes, const json_t *entry, const char *key)
{
    const json_t *value = json_object_get(entry, key);
    size_t length = strlen(text);
    if (json_is_number(value) && json_number_value(value) != 0)
        snprintf(text + length, bytes - length, "%s: %g\n", key, json_number_value(value));
}

static void first_step_is_transformers(void **state)
{
    (void)state;
    size_t i;
    const json_t *want;
    json_array_foreach(json_object_get(golden, "steps"), i, want)
    {
        char more[512] = "max_steps: 1\neval_strategy: no\n", what[64];
        job_result one = {0}, three = {0};
        put_key(more, sizeof more, want, "label_smoothing_factor");
        put_key(more, sizeof more, want, "neftune_noise_alpha");
        snprintf(what, sizeof what, "step %zu", i);
        job_run(&one, 1, config_text(more));
        if (one.status != 0)
            fail_msg("%s", one.message);
        const tsr_job_report *got = &one.step[0];
        expect(what, "loss", got->loss, want, MEAN_TOLERANCE);
        expect(what, "entropy", got->entropy, want, MEAN_TOLERANCE);
        expect(what, "mean_token_accuracy", got->mean_token_accuracy, want, 1e-9);
        expect(what, "grad_norm", got->grad_norm, want, NORM_TOLERANCE);
        job_assert_plan(&one, 1, what);
        job_run(&three, job_ranks(3), config_text(more));
        job_assert_same(&one, &three, what);
        job_result_free(&one);
        job_result_free(&three);
    }
}

/* Before the first step, so of the adapter as it was given. */
static void evaluation_is_transformers(void **state)
{
    (void)state;
    size_t i;
    const json_t *want;
    json_array_foreach(json_object_get(golden, "evaluations"), i, want)
    {
        char more[512] = "max_steps: 1\neval_on_start: true\nper_device_eval_batch_size: 2\n";
        char what[64];
        job_result r = {0};
        put_key(more, sizeof more, want, "label_smoothing_factor");
        snprintf(what, sizeof what, "evaluation %zu", i);
        job_run(&r, job_ranks(2), config_text(more));
        if (r.status != 0)
            fail_msg("%s", r.message);
        const tsr_job_evaluation *got = &r.eval[0];
        assert_int_equal(got->label_tokens, number(want, "label_tokens"));
        expect(what, "loss", got->loss, want, MEAN_TOLERANCE);
        expect(what, "entropy", got->entropy, want, MEAN_TOLERANCE);
        expect(what, "mean_token_accuracy", got->mean_token_accuracy, want, 1e-9);
        job_result_free(&r);
    }
}

#define BOTH "label_smoothing_factor: 0.1\nneftune_noise_alpha: 5\nmax_steps: 4\neval_steps: 2\n"

/* Smoothed and noisy steps: stopped on two ranks and gone on with on three, and with everything recomputed. */
static void resumed_and_recomputed_bits_are_the_same(void **state)
{
    (void)state;
    job_event stop = {.stop_after = 1};
    job_result whole = {0}, first = {0}, second = {0}, recomputed = {0}, other = {0};
    job_run(&whole, 1, config_text(BOTH));
    job_run_in(&first, job_ranks(2), config_text(BOTH), "stopped", &stop);
    assert_true(first.stopped && first.step_count == 2);
    job_run_in(&second, job_ranks(3), config_text(BOTH "resume_from_checkpoint: true\n"), "stopped",
               NULL);
    assert_int_equal(second.resumed, 2);
    job_assert_part(&whole, &first, 0, false, "until it was stopped");
    job_assert_part(&whole, &second, 2, true, "resumed");
    job_run(&recomputed, 1, config_text(BOTH "gradient_checkpointing: full\n"));
    job_assert_same(&whole, &recomputed, "recomputed");
    job_run_in(&other, 1,
               config_text("max_steps: 4\neval_steps: 2\nlabel_smoothing_factor: 0.1\n"
                           "resume_from_checkpoint: true\n"),
               "stopped", NULL); /* without the noise it is another run */
    assert_int_equal(other.status, TSR_ECONFIG);
    assert_non_null(strstr(other.message, "neftune_noise_alpha"));
    job_result_free(&whole);
    job_result_free(&first);
    job_result_free(&second);
    job_result_free(&recomputed);
    job_result_free(&other);
}

/* Gemma 2 caps its logits. */
static void smoothing_with_a_softcap_is_refused(void **state)
{
    (void)state;
    job_result r = {0};
    char text[1024];
    snprintf(text, sizeof text,
             "model_name_or_path: " TSR_SOURCE_DIR "/tests/golden/families/gemma2/checkpoint\n"
             "dataset: " TSR_SOURCE_DIR "/tests/golden/families/gemma2/train.jsonl\n"
             "max_steps: 1\nlabel_smoothing_factor: 0.1\n");
    job_run(&r, 1, text);
    assert_int_equal(r.status, TSR_ECONFIG);
    if (!strstr(r.message, "label_smoothing_factor: found 0.1, but ") ||
        !strstr(r.message, "final_logit_softcapping 3)") ||
        !strstr(r.message, "write label_smoothing_factor: 0"))
        fail_msg("%s", r.message);
    job_result_free(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_step_is_transformers),
        cmocka_unit_test(evaluation_is_transformers),
        cmocka_unit_test(resumed_and_recomputed_bits_are_the_same),
        cmocka_unit_test(smoothing_with_a_softcap_is_refused),
    };
    job_choose_backend(argc, argv);
    return cmocka_run_group_tests(tests, setup, teardown);
}
