/*
 * test_allocations.c: nothing allocates after start-up. Every allocation of this program is counted while
 * steps and an evaluation run; the count must stay 0, on every thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "job/fixture.h"

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_int counting, counted;

static void count(void)
{
    if (atomic_load(&counting))
        atomic_fetch_add(&counted, 1);
}

void *malloc(size_t bytes)
{
    count();
    return __libc_malloc(bytes);
}

void *calloc(size_t number, size_t bytes)
{
    count();
    return __libc_calloc(number, bytes);
}

void *realloc(void *old, size_t bytes)
{
    count();
    return __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    count();
    return __libc_memalign(alignment, bytes);
}

static tsr_job *start_job(const char *extra)
{
    const char *overrides[] = {"model_name_or_path=" JOB_MODEL,
                               "dataset=" JOB_TRACES "/padded.jsonl",
                               "eval_dataset=" JOB_TRACES "/packed.jsonl",
                               "per_device_train_batch_size=2",
                               "total_batch_size=4",
                               "num_train_epochs=3",
                               "overwrite_output_dir=true",
                               NULL,
                               extra};
    char output[512];
    tsr_job *job = NULL;
    snprintf(output, sizeof output, "output_dir=%s", scratch_path("allocations"));
    overrides[7] = output;
    tsr_job_options options = {
        .size = sizeof(tsr_job_options), .overrides = overrides, .override_count = 9};
    if (tsr_job_create(&job, &options) != 0 || tsr_job_start(job) != 0)
        fail_msg("%s", tsr_last_error());
    return job;
}

/* The sixth step begins the second epoch, with an order of its own. */
static void test_steps(void **state)
{
    const char *extras[] = {"use_dora=true",
                            "lora_r=5",
                            "lora_dropout=0.1",
                            "packing=true",
                            "offload=sharded",
                            "activation_offloading=true",
                            "optimizer_offload=true",
                            "report_to=tensorboard",
                            NULL};
    char trace[512];
    (void)state;
    snprintf(trace, sizeof trace, "trace=%s", scratch_path("trace.json"));
    extras[sizeof extras / sizeof *extras - 1] = trace;
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
        tsr_job *job = start_job(extras[i]);
        atomic_store(&counted, 0);
        atomic_store(&counting, 1);
        int status = 0;
        for (int step = 0; step < 6 && status == 0; step++)
            status = tsr_job_step(job, &report);
        if (status >= 0)
            status = tsr_job_evaluate(job, &evaluation);
        atomic_store(&counting, 0);
        print_message("%s: %d allocations\n", extras[i], atomic_load(&counted));
        assert_true(status >= 0);
        assert_int_equal(atomic_load(&counted), 0);
        tsr_job_destroy(job);
    }
}

/* The count can fail. */
static void test_counts(void **state)
{
    (void)state;
    atomic_store(&counted, 0);
    atomic_store(&counting, 1);
    void *volatile memory = malloc(1);
    atomic_store(&counting, 0);
    free(memory);
    assert_int_equal(atomic_load(&counted), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts), cmocka_unit_test(test_steps)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
