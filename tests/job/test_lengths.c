/*
 * Rows up to the longest that plan names for a memory: each trains a step in exactly the memory that was planned, within the
 * budget, and the next one is refused before it takes any.
 */
#include "job/fixture.h"

#include "tessera.h"

#include <inttypes.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KEYS                                                                                       \
    "model_name_or_path: " JOB_SHALLOW "\nbackend: cpu\nlora_r: 4\nmax_steps: 1\n"                 \
    "per_device_train_batch_size: 1\n"

static int64_t number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* *next: the next length, which does not fit. */
static int64_t longest(int64_t *next, int ranks, const char *keys)
{
    char config[4096], *text = NULL;
    json_error_t error;
    snprintf(config, sizeof config, KEYS "%s", keys);
    const tsr_job_options options = {.size = sizeof options,
                                     .config_text = config,
                                     .purpose = TSR_JOB_PLAN,
                                     .plan_ranks = ranks,
                                     .threads = 1};
    if (tsr_plan_longest(&options, TSR_PLAN_JSON, &text) < 0)
        fail_msg("%s: %s", keys, tsr_last_error());
    json_t *found = json_loads(text, 0, &error);
    assert_non_null(found);
    int64_t length = number(found, "max_length");
    *next = number(found, "does_not_fit");
    json_decref(found);
    tsr_free(text);
    return length;
}

/* One row of so many tokens for every rank. */
static void train(job_result *out, int ranks, const char *keys, int64_t length)
{
    char config[4096];
    FILE *file = fopen(scratch_path("rows.jsonl"), "w");
    assert_non_null(file);
    for (int row = 0; row < ranks; row++) {
        for (int64_t t = 0; t < length; t++)
            fprintf(file, "%s%d", t ? "," : "{\"input_ids\":[", (int)((7 * t + row) % 251));
        fputs("]}\n", file);
    }
    fclose(file);
    snprintf(config, sizeof config, KEYS "%sdataset: %s\nmax_length: %" PRId64 "\n", keys,
             scratch_path("rows.jsonl"), length);
    job_run(out, ranks, config);
}

static void sweep(int ranks, const char *more, uint64_t budget)
{
    char keys[512], what[640];
    int64_t next, most;
    job_result result;
    snprintf(keys, sizeof keys, "%smemory_budget: %" PRIu64 "MiB\n", more, budget);
    most = longest(&next, ranks, keys);
    print_message("    %d ranks, %" PRIu64 " MiB, %s: %" PRId64 " tokens\n", ranks, budget, more,
                  most);
    for (int64_t length = most; length > most / 8; length = length * 5 / 8) {
        snprintf(what, sizeof what, "%" PRId64 " tokens of %" PRId64 " on %d ranks, %s", length,
                 most, ranks, keys);
        train(&result, ranks, keys, length);
        if (result.status != 0)
            fail_msg("%s: %s", what, result.message);
        job_assert_plan(&result, ranks, what);
        for (int r = 0; r < ranks; r++)
            if (result.memory[r].device_high > budget << 20)
                fail_msg("%s: rank %d took %" PRIu64 " bytes", what, r,
                         result.memory[r].device_high);
        job_result_free(&result);
    }
    train(&result, ranks, keys, next);
    assert_int_equal(result.status, TSR_ECONFIG);
    assert_non_null(strstr(result.message, "memory_budget allows"));
    assert_true(result.memory[0].device_high == 0);
    job_result_free(&result);
}

static void test_sweep(void **state)
{
    (void)state;
    sweep(1, "", 24);
    sweep(1, "context_span: 128\nuse_dora: true\n", 24);
    sweep(2, "context_span: 64\noffload: sharded\nactivation_offloading: true\n", 16);
    sweep(2, "context_span: 64\ncontext_parallel_size: 2\n", 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sweep)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
