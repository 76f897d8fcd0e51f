/*
 * One of two ranks has no memory while a job is created or started, in a place that has no collective
 * of its own: both end with the same message, long before the deadline, and one of them reports.
 */
#include "job/faulty_system.h"
#include "job/fixture.h"

#include "base/clock.h"
#include "inputs/same.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DEADLINE 60 /* job_fixture's */

/* ---- where it is: functions of the library, each through the linker's --wrap (CMakeLists.txt) ---- */

typedef struct {
    const char *function;
    int nth; /* allocation: within the function, or, of wait_word, after it */
} place;

static const place places[] = {
    {"device_create_cpu", 1}, {"stream_create", 1}, {"same_config", 1},     {"same_config", 2},
    {"model_start", 1},       {"load_finish", 1},   {"executor_create", 1}, {"executor_create", 2},
    {"wait_word", 1},         {"wait_word", 2},
};

static const place *chosen;
static _Thread_local bool armed, came; /* armed: this thread is the rank that fails */

static void begin(const char *function)
{
    if (armed && strcmp(chosen->function, function) == 0)
        system_fail(SYSTEM_MALLOC, chosen->nth, ENOMEM);
}

static tsr_status end(tsr_status status)
{
    came |= system_clear();
    return status;
}

#define WRAP(name, function, parameters, arguments)                                                \
    tsr_status __real_##function parameters;                                                       \
    tsr_status __wrap_##function parameters;                                                       \
    tsr_status __wrap_##function parameters                                                        \
    {                                                                                              \
        begin(name);                                                                               \
        return end(__real_##function arguments);                                                   \
    }

WRAP("device_create_cpu", tsr_device_create_cpu,
     (tsr_device * *out, const tsr_device_options *options), (out, options))
WRAP("stream_create", tsr_stream_create, (tsr_stream * *out, tsr_device *device, const char *name),
     (out, device, name))
WRAP("same_config", tsr_same_config,
     (const tsr_config *config, tsr_comm *world, tsr_stream *stream), (config, world, stream))
WRAP("model_start", tsr_model_start,
     (tsr_model * model, tsr_stream *compute, tsr_stream *h2d, const tsr_host_tables *tables,
      tsr_model_sums sums),
     (model, compute, h2d, tables, sums))
WRAP("load_finish", tsr_load_finish,
     (const tsr_store *store, tsr_comm *world, tsr_comm *shard, tsr_stream *stream),
     (store, world, shard, stream))
WRAP("executor_create", tsr_executor_create,
     (tsr_executor * *out, const tsr_executor_options *options), (out, options))

/* Before the first step it waits for the pass over the norms alone, which then are taken. */
tsr_status __real_tsr_executor_wait_word(tsr_executor *executor, int64_t *word);
tsr_status __wrap_tsr_executor_wait_word(tsr_executor *executor, int64_t *word);
tsr_status __wrap_tsr_executor_wait_word(tsr_executor *executor, int64_t *word)
{
    tsr_status status = __real_tsr_executor_wait_word(executor, word);
    begin("wait_word");
    return status;
}

tsr_status __real_tsr_job_create_on(tsr_job **out, const tsr_job_options *options, tsr_comm *world);
tsr_status __wrap_tsr_job_create_on(tsr_job **out, const tsr_job_options *options, tsr_comm *world);
tsr_status __wrap_tsr_job_create_on(tsr_job **out, const tsr_job_options *options, tsr_comm *world)
{
    armed = tsr_comm_rank(world) == 1;
    return __real_tsr_job_create_on(out, options, world);
}

static _Atomic int came_count;

int __real_tsr_job_start(tsr_job *job);
int __wrap_tsr_job_start(tsr_job *job);
int __wrap_tsr_job_start(tsr_job *job)
{
    return end(__real_tsr_job_start(job));
}

void __real_tsr_job_destroy(tsr_job *job);
void __wrap_tsr_job_destroy(tsr_job *job);
void __wrap_tsr_job_destroy(tsr_job *job)
{
    came_count += came;
    came = armed = false;
    __real_tsr_job_destroy(job);
}

/* ---- the test ---- */

static void test_one_rank_fails(void **state)
{
    (void)state;
    char config[1024];
    snprintf(config, sizeof config,
             "model_name_or_path: " JOB_MODEL "\nlora_r: 2\nuse_dora: true\nresident_units: 2\n"
             "max_steps: 1\ndataset: %s\n",
             scratch_path("train.jsonl"));
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        job_result result;
        double start = tsr_now();
        chosen = &places[i];
        came_count = 0;
        job_run(&result, 2, config);
        double seconds = tsr_now() - start;
        print_message("%s %d: %.1f s: %s\n", chosen->function, chosen->nth, seconds,
                      result.message);
        assert_int_equal(came_count, 1);
        assert_true(result.status < 0);
        assert_int_equal(tsr_job_exit_code(result.status), 71);
        assert_non_null(strstr(result.message, "rank 1: "));
        assert_non_null(strstr(result.message, "memory"));
        assert_int_equal(result.reporters, 1);
        assert_true(seconds < DEADLINE / 2.0);
        job_result_free(&result);
    }
}

static int set_up(void **state)
{
    if (scratch_setup(state) != 0)
        return -1;
    job_write_documents("train.jsonl", 10, 4096, 7);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_rank_fails)};
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
