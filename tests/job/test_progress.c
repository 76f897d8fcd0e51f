/*
 * Long work is heard of: every phase of a job's life, and of what looks at its checkpoint, begins, comes forward and
 * ends. What is shown of it is test_progress.c's.
 */
#include "job/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 32

/* What was heard since it was cleared. */
typedef struct {
    const char *phase;
    int reports;
    double done, total;
    bool ended;
} heard;

static heard phases[MOST];
static int phase_count;

static void on_progress(void *user, const char *phase, double done, double total)
{
    assert_ptr_equal(user, phases);
    assert_true(done >= 0 && done <= total);
    int i = 0;
    while (i < phase_count && strcmp(phases[i].phase, phase))
        i++;
    assert_true(i < MOST);
    if (i == phase_count)
        phases[phase_count++] = (heard){.phase = phase, .ended = true};
    heard *h = &phases[i];
    if (!h->ended) /* the same work comes forward; after its end another of the same name may begin */
        assert_true(done >= h->done && total == h->total);
    h->done = done;
    h->total = total;
    h->ended = done == total;
    h->reports++;
}

/* Since the last call: this phase, reported so often or more, and to its end. */
static void expect(const char *phase, int reports)
{
    for (int i = 0; i < phase_count; i++)
        if (!strcmp(phases[i].phase, phase)) {
            if (phases[i].reports < reports || !phases[i].ended)
                fail_msg("%s: %d reports, at %g of %g", phase, phases[i].reports, phases[i].done,
                         phases[i].total);
            return;
        }
    fail_msg("nothing is heard of %s", phase);
}

static void clear(void)
{
    phase_count = 0;
}

static tsr_job *create(int purpose, const char *more)
{
    char config[4096];
    snprintf(config, sizeof config,
             "model_name_or_path: " JOB_MODEL "\ndataset: %s\neval_dataset: %s\noutput_dir: %s\n"
             "max_length: 64\npacking: true\ntruncation: drop\nmax_steps: 3\n%s",
             scratch_path("train.jsonl"), scratch_path("eval.jsonl"), scratch_path("run"), more);
    const tsr_job_options options = {.size = sizeof(tsr_job_options),
                                     .config_text = config,
                                     .purpose = purpose,
                                     .progress = on_progress,
                                     .user = phases};
    tsr_job *job;
    clear();
    if (tsr_job_create(&job, &options) != 0)
        fail_msg("%s", tsr_last_error());
    return job;
}

static void succeed(int status)
{
    if (status != 0)
        fail_msg("%s", tsr_last_error());
}

static void test_training(void **state)
{
    (void)state;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    tsr_job *job = create(TSR_JOB_TRAIN, "");
    expect("reading and tokenizing", 40); /* rows */
    expect("hashing the data", 20);
    expect("packing", 20);
    expect("counting steps", 3);
    clear();
    succeed(tsr_job_start(job));
    expect("reading and quantizing", 7); /* units */
    expect("making the adapter", 7);
    clear();
    succeed(tsr_job_step(job, &report));
    expect(TSR_JOB_TRAINING, 1); /* micro-batches; steps have their own report */
    succeed(tsr_job_evaluate(job, &evaluation));
    expect("evaluating", 3);
    clear();
    succeed(tsr_job_checkpoint(job));
    expect("gathering the adapter", 6);
    expect("writing", 2 * 84 + 2); /* tensors of the adapter, and more of the state */
    expect("hashing", 4);
    clear();
    succeed(tsr_job_save(job));
    expect("gathering the adapter", 6);
    expect("writing", 84);
    tsr_job_destroy(job);
}

static void test_resumed(void **state)
{
    (void)state;
    tsr_job *job = create(TSR_JOB_TRAIN, "resume_from_checkpoint: true\n");
    expect("hashing", 4);
    clear();
    succeed(tsr_job_start(job));
    expect("reading the checkpoint", 6);
    tsr_job_destroy(job);
}

static void test_others(void **state)
{
    (void)state;
    char *text = NULL;
    const tsr_job_options options = {
        .size = sizeof(tsr_job_options), .progress = on_progress, .user = phases};
    tsr_job *job = create(TSR_JOB_DATA, "");
    expect("reading and tokenizing", 40);
    tsr_job_destroy(job);
    clear();
    succeed(tsr_inspect(scratch_path("run/checkpoint-1"), &options, 1, &text));
    expect("hashing", 4);
    free(text);
    clear();
    succeed(tsr_inspect(scratch_path("run/checkpoint-1"), NULL, 1, &text)); /* nobody listens */
    assert_int_equal(phase_count, 0);
    free(text);
}

static int setup(void **state)
{
    scratch_setup(state);
    job_write_documents("train.jsonl", 40, 4096, 1);
    job_write_documents("eval.jsonl", 20, 4096, 2);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_others),
    };
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
