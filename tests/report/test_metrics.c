/*
 * metrics.jsonl: the exact lines, numbers that are not finite, strings, and errors.
 */
#include "support/folder.h"

#include "report/metrics.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define NAME "metrics.jsonl"

static const char *path;
static tsr_folder *folder;

static int make_folder(void **state)
{
    folder = open_folder(scratch_make());
    path = strdup(scratch_path(NAME));
    (void)state;
    return 0;
}

static int remove_folder(void **state)
{
    tsr_folder_close(folder);
    free((char *)path);
    return scratch_teardown(state);
}

/* Appended to, or a new one. */
static tsr_metrics *create(bool append)
{
    tsr_metrics *metrics;
    if (!append)
        unlink(path);
    assert_int_equal(tsr_metrics_create(&metrics, folder, NAME, append), TSR_OK);
    return metrics;
}

static void expect_file(const char *expected)
{
    char buffer[4096];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t got = fread(buffer, 1, sizeof buffer - 1, file);
    fclose(file);
    buffer[got] = 0;
    assert_string_equal(buffer, expected);
}

static const tsr_job_report step = {.step = 1,
                                    .epoch = 0.01,
                                    .loss = 2.34567891234,
                                    .grad_norm = 0.91,
                                    .learning_rate = 2e-4,
                                    .label_tokens = 512,
                                    .input_tokens = 2048,
                                    .tokens_per_s = 3100.5,
                                    .step_s = 0.66,
                                    .device_bytes = 123,
                                    .exposed_s = 0.001,
                                    .mean_token_accuracy = 0.625,
                                    .entropy = 1.5};
static const tsr_job_evaluation third = {
    .loss = 1.0 / 3, .label_tokens = 777, .mean_token_accuracy = 0.75, .entropy = 0.125};
static const tsr_job_evaluation two = {
    .loss = 2, .label_tokens = 3, .mean_token_accuracy = 0.5, .entropy = NAN};
#define TWO                                                                                        \
    "{\"step\":1,\"eval_loss\":2,\"eval_label_tokens\":3,"                                         \
    "\"eval_mean_token_accuracy\":0.5,\"eval_entropy\":null}\n"

#define STEP                                                                                       \
    "{\"step\":1,\"epoch\":0.01,\"loss\":2.34567891,\"grad_norm\":0.91,\"learning_rate\":0.0002,"  \
    "\"label_tokens\":512,\"input_tokens\":2048,\"tokens_per_s\":3100.5,\"step_s\":0.66,"          \
    "\"device_bytes\":123,\"exposed_s\":0.001,\"mean_token_accuracy\":0.625,\"entropy\":1.5}\n"
#define START                                                                                      \
    "{\"event\":\"start\",\"version\":\"0.1.0\",\"commit\":\"abc\",\"ranks\":2,\"device\":\"cpu "  \
    "\\\"x\\\\\\u000a\\ufffd\xc3\xbc\",\"plan_hash\":\"00000000000000ff\",\"config_hash\":"        \
    "\"0000000000000001\",\"total_steps\":20,\"trainable_parameters\":1000}\n"

static void test_lines(void **state)
{
    (void)state;
    tsr_metrics *metrics = create(false);
    const tsr_metrics_start start = {.version = "0.1.0",
                                     .commit = "abc",
                                     .ranks = 2,
                                     .device = "cpu \"x\\\n\xff\xc3\xbc",
                                     .plan_hash = 255,
                                     .config_hash = 1,
                                     .total_steps = 20,
                                     .trainable_count = 1000};
    assert_int_equal(tsr_metrics_write_start(metrics, &start), TSR_OK);
    expect_file(START); /* each line is there at once */
    assert_int_equal(tsr_metrics_write_step(metrics, &step), TSR_OK);
    expect_file(START STEP);
    assert_int_equal(tsr_metrics_write_eval(metrics, 50, &third), TSR_OK);
    assert_int_equal(tsr_metrics_write_end(metrics, TSR_METRICS_DONE), TSR_OK);
#define EVAL                                                                                       \
    "{\"step\":50,\"eval_loss\":0.333333333,\"eval_label_tokens\":777,"                            \
    "\"eval_mean_token_accuracy\":0.75,\"eval_entropy\":0.125}\n"
#define DONE "{\"event\":\"end\",\"status\":\"done\"}\n"
    expect_file(START STEP EVAL DONE);
    tsr_metrics_destroy(metrics);

    metrics = create(true); /* goes on */
    assert_int_equal(tsr_metrics_write_end(metrics, TSR_METRICS_SAVED), TSR_OK);
    tsr_metrics_destroy(metrics);
    expect_file(START STEP EVAL DONE "{\"event\":\"end\",\"status\":\"saved\"}\n");

    assert_int_equal(tsr_metrics_create(&metrics, folder, NAME, false), TSR_EIO); /* it is there */
    metrics = create(false);                                                      /* starts again */
    assert_int_equal(tsr_metrics_write_end(metrics, TSR_METRICS_FAILED), TSR_OK);
    tsr_metrics_destroy(metrics);
    expect_file("{\"event\":\"end\",\"status\":\"failed\"}\n");
}

/* Of a model with experts; what is not computed is left out. */
static void test_experts(void **state)
{
    (void)state;
    tsr_metrics *metrics = create(false);
    tsr_job_report sparse = step;
    sparse.has_experts = 1;
    sparse.expert_load_over_mean = 2.5;
    sparse.expert_empty_share = 0.125;
    sparse.expert_dropped = 7;
    sparse.aux_loss = NAN;
    assert_int_equal(tsr_metrics_write_step(metrics, &sparse), TSR_OK);
    sparse.expert_load_over_mean = sparse.expert_empty_share = NAN;
    sparse.aux_loss = 3.0625;
    sparse.skipped = 1;
    sparse.skipped_steps = 4;
    assert_int_equal(tsr_metrics_write_step(metrics, &sparse), TSR_OK);
    tsr_metrics_destroy(metrics);
    char expected[2048], line[sizeof STEP];
    snprintf(line, sizeof line, "%.*s", (int)(sizeof STEP - sizeof "}\n"), STEP);
    snprintf(expected, sizeof expected,
             "%s,\"expert_load_over_mean\":2.5,\"expert_empty_share\":0.125,\"expert_dropped\":7}\n"
             "%s,\"expert_load_over_mean\":null,\"expert_empty_share\":null,\"expert_dropped\":7,"
             "\"aux_loss\":3.0625,\"skipped_steps\":4}\n",
             line, line);
    expect_file(expected);
}

static void test_not_finite(void **state)
{
    (void)state;
    tsr_metrics *metrics = create(false);
    tsr_job_report bad = {.step = 2,
                          .loss = NAN,
                          .grad_norm = INFINITY,
                          .step_s = -INFINITY,
                          .mean_token_accuracy = NAN,
                          .entropy = NAN};
    assert_int_equal(tsr_metrics_write_step(metrics, &bad), TSR_OK);
    tsr_metrics_destroy(metrics);
    expect_file("{\"step\":2,\"epoch\":0,\"loss\":null,\"grad_norm\":null,\"learning_rate\":0,"
                "\"label_tokens\":0,\"input_tokens\":0,\"tokens_per_s\":0,\"step_s\":null,"
                "\"device_bytes\":0,\"exposed_s\":0,\"mean_token_accuracy\":null,"
                "\"entropy\":null}\n");
}

static void test_errors(void **state)
{
    (void)state;
    tsr_metrics *metrics;
    assert_int_equal(tsr_metrics_create(&metrics, folder, "no/" NAME, false), TSR_EIO);
    assert_non_null(strstr(tsr_last_error(), "/no/" NAME ": cannot be created: No such file"));
    tsr_metrics_destroy(NULL);
    /* What is no file is neither followed nor written to. */
    unlink(path);
    assert_int_equal(symlink("elsewhere", path), 0);
    assert_int_equal(tsr_metrics_create(&metrics, folder, NAME, true), TSR_EIO);
    assert_int_equal(access(scratch_path("elsewhere"), F_OK), -1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(tsr_metrics_create(&metrics, folder, NAME, true), TSR_EIO);
    assert_non_null(strstr(tsr_last_error(), NAME " is not a file of its own"));
    assert_int_equal(unlink(path), 0);
}

/* A run goes on in a file of its own, whatever other names the one had that was there. */
static void test_other_names(void **state)
{
    (void)state;
    tsr_metrics *metrics = create(false);
    assert_int_equal(tsr_metrics_write_eval(metrics, 1, &two), TSR_OK);
    tsr_metrics_destroy(metrics);
    assert_int_equal(link(path, scratch_path("kept")), 0);
    assert_int_equal(tsr_metrics_create(&metrics, folder, NAME, true), TSR_EIO);
    assert_int_equal(tsr_metrics_cut(folder, NAME, UINT64_MAX), TSR_OK);
    metrics = create(true);
    assert_int_equal(tsr_metrics_write_end(metrics, TSR_METRICS_DONE), TSR_OK);
    tsr_metrics_destroy(metrics);
    expect_file(TWO DONE);
    uint64_t bytes;
    char *kept = read_whole(&bytes, scratch_path("kept"));
    assert_int_equal(bytes, strlen(TWO));
    free(kept);
}

/* A disk that is full in the middle of a line: nothing of it stays, and when there is room again lines follow lines. */
static void test_part_of_a_line(void **state)
{
    (void)state;
    tsr_metrics *metrics = create(false);
    struct rlimit before, few;
    assert_int_equal(tsr_metrics_write_eval(metrics, 1, &two), TSR_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    few = before;
    few.rlim_cur = 100;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
    assert_int_equal(tsr_metrics_write_step(metrics, &step), TSR_EIO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_non_null(strstr(tsr_last_error(), "cannot be written"));
    assert_int_equal(tsr_metrics_write_end(metrics, TSR_METRICS_FAILED), TSR_OK);
    tsr_metrics_destroy(metrics);
    expect_file(TWO "{\"event\":\"end\",\"status\":\"failed\"}\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),       cmocka_unit_test(test_experts),
        cmocka_unit_test(test_not_finite),  cmocka_unit_test(test_errors),
        cmocka_unit_test(test_other_names), cmocka_unit_test(test_part_of_a_line)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
