/*
 * The best evaluation of a run: its adapter is what a run up to there would have written, also where the run
 * was interrupted; and runs that end early.
 */
#include "job/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Rows of random tokens: what is learnt of them makes the loss of others fall, and then rise. */
static const char *config_text(const char *more)
{
    static char text[2048];
    char train[512];
    snprintf(train, sizeof train, "%s", scratch_path("train.jsonl"));
    snprintf(text, sizeof text,
             "model_name_or_path: " JOB_MODEL "\ndataset: %s\neval_dataset: %s\n"
             "total_batch_size: 4\nlora_r: 3\nlearning_rate: 0.015\nlr_scheduler_type: constant\n"
             "eval_steps: 1\nmax_grad_norm: null\n%s",
             train, scratch_path("eval.jsonl"), more);
    return text;
}

static void run(job_result *out, int ranks, const char *more, const char *output,
                const job_event *event)
{
    job_run_in(out, ranks, config_text(more), output, event);
    if (out->status != 0)
        fail_msg("%s: %s", output, out->message);
}

/* Evaluation 0 is that before step 1, which does not count. */
static int best_of(const job_result *r)
{
    int best = 1;
    for (int i = 2; i < r->eval_count; i++)
        if (r->eval[i].loss < r->eval[best].loss)
            best = i;
    return best;
}

static bool exists(const char *output, int step)
{
    char name[128];
    snprintf(name, sizeof name, "%s/checkpoint-%d", output, step);
    return access(scratch_path(name), F_OK) == 0;
}

static void assert_adapter(const job_result *a, const job_result *b, const char *what)
{
    if (a->adapter_bytes != b->adapter_bytes || memcmp(a->adapter, b->adapter, a->adapter_bytes))
        fail_msg("%s: another adapter", what);
}

#define BEST "load_best_model_at_end: true\n"

static void test_best_is_written(void **state)
{
    (void)state;
    job_result plain, whole, upto, parts, rest;
    char length[64];
    run(&plain, 1, "max_steps: 8\n", "plain", NULL);
    int best = best_of(&plain);
    if (best == 1 || best == 8)
        fail_msg("the loss must fall and rise; the least is at step %d", best);
    snprintf(length, sizeof length, "max_steps: %d\n", best);
    run(&upto, 1, length, "upto", NULL);
    run(&whole, 3, BEST "max_steps: 8\n", "whole", NULL);
    assert_adapter(&upto, &whole, "the best of a run");
    for (int i = 1, least = 0; i <= 8; i++) {
        bool better = !least || plain.eval[i].loss < plain.eval[least].loss;
        least = better ? i : least;
        assert_int_equal(whole.eval[i].save, better);
        assert_int_equal(whole.eval[i].best_step, least);
        assert_true(whole.eval[i].best_loss == plain.eval[least].loss);
    }
    for (int step = 1; step <= 8; step++) /* of save_strategy: no only the best stays */
        assert_int_equal(exists("whole", step), step == best);
    /* Stopped after the best, and gone on with. */
    run(&parts, 1, BEST "max_steps: 8\nsave_steps: 1\nsave_total_limit: 1\n", "parts",
        &(job_event){.stop_after = best}); /* which ends with the next step */
    assert_int_equal(parts.step_count, best + 1);
    assert_true(exists("parts", best) && exists("parts", best + 1) && !exists("parts", best - 1));
    run(&rest, 2, BEST "max_steps: 8\nresume_from_checkpoint: true\n", "parts", NULL);
    assert_adapter(&upto, &rest, "the best before a stop");
    job_result *all[] = {&plain, &whole, &upto, &parts, &rest};
    for (int i = 0; i < 5; i++)
        job_result_free(all[i]);
}

static void test_early_end(void **state)
{
    (void)state;
    job_result plain, early;
    run(&plain, 1, "max_steps: 8\n", "plain2", NULL);
    int best = best_of(&plain);
    run(&early, 2, "max_steps: 8\nearly_stopping_patience: 2\nsave_steps: 8\n", "early", NULL);
    assert_int_equal(early.step_count, best + 2);
    assert_int_equal(early.eval[best + 2].last, 1);
    assert_int_equal(early.eval[best + 1].last, 0);
    assert_true(exists("early", best + 2));
    job_result_free(&early);
    /* No step is so much better. */
    run(&early, 1, "max_steps: 8\nearly_stopping_patience: 3\nearly_stopping_threshold: 9\n", "far",
        NULL);
    assert_int_equal(early.step_count, 4);
    job_result_free(&early);
    job_result_free(&plain);
}

static void test_refusals(void **state)
{
    (void)state;
    job_result result;
    static const struct {
        const char *keys, *words;
    } wrong[] = {
        {BEST "eval_strategy: no\n", "load_best_model_at_end: needs evaluations during the run"},
        {"early_stopping_patience: 1\neval_strategy: no\n", "early_stopping_patience: needs"},
        {"metric_for_best_model: rouge\n", "expected one of loss, eval_loss"},
        {"greater_is_better: true\n", "less is better"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        job_run_in(&result, 1, config_text(wrong[i].keys), "wrong", NULL);
        assert_int_equal(result.status, TSR_ECONFIG);
        if (!strstr(result.message, wrong[i].words))
            fail_msg("%s is not in %s", wrong[i].words, result.message);
    }
}

/* Its checkpoint is gone: the end says so, and does not write the last step's adapter in its place. */
static void test_missing(void **state)
{
    (void)state;
    job_result result;
    char command[1024];
    run(&result, 1, BEST "max_steps: 8\nsave_steps: 1\n", "missing", &(job_event){.stop_after = 7});
    int best = best_of(&result);
    job_result_free(&result);
    snprintf(command, sizeof command, "rm -r '%s/checkpoint-%d'", scratch_path("missing"), best);
    assert_int_equal(system(command), 0);
    job_run_in(&result, 1,
               config_text(BEST "max_steps: 8\nsave_steps: 1\nresume_from_checkpoint: true\n"),
               "missing", NULL);
    assert_int_equal(result.status, TSR_EDATA);
    assert_non_null(strstr(result.message, "checkpoint-"));
}

static int setup(void **state)
{
    scratch_setup(state);
    job_write_documents("train.jsonl", 10, 4096, 3);
    job_write_documents("eval.jsonl", 10, 4096, 7);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_is_written), cmocka_unit_test(test_early_end),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_missing)};
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
