/*
 * Which adapter an evaluation and a merge of a run's own job.yaml take: made-up runs of every state.
 */
#include "inputs/earlier.h"
#include "support/scratch.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP(n) "{\"step\":" #n ",\"epoch\":0.5,\"loss\":1}\n"
#define DONE    "{\"event\":\"end\",\"status\":\"done\"}\n"
#define SAVED   "{\"event\":\"end\",\"status\":\"saved\"}\n"

static void make(const char *name)
{
    assert_int_equal(mkdir(scratch_path(name), 0777), 0);
}

static void write_in(const char *directory, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    write_text(scratch_path(path), text);
}

static void write_job(const char *directory, const char *name, const char *first_line)
{
    char text[1024];
    snprintf(text, sizeof text,
             "%smodel_name_or_path: m\neval_dataset: e.jsonl\noutput_dir: %s\n"
             "init_adapter: where-the-run-began\n",
             first_line, scratch_path("named"));
    write_in(directory, name, text);
}

static void write_adapter(const char *directory)
{
    write_in(directory, "adapter_config.json", "{}");
    write_in(directory, "adapter_model.safetensors", "");
}

static void write_checkpoint(const char *name)
{
    make(name);
    write_in(name, "manifest.json", "{}");
}

/* What is evaluated, below the scratch directory; NULL: the base alone. */
static void takes(const char *job, const char *override, const char *adapter)
{
    tsr_config config;
    char expected[256];
    const char *overrides[] = {override};
    const tsr_config_source source = {.path = scratch_path(job),
                                      .overrides = overrides,
                                      .override_count = override != NULL,
                                      .use = TSR_CONFIG_EVAL};
    if (tsr_earlier_config(&config, &source) < 0)
        fail_msg("%s: %s", job, tsr_last_error());
    snprintf(expected, sizeof expected, "%s", adapter ? scratch_path(adapter) : "");
    if (strcmp(config.init_adapter ? config.init_adapter : "", expected) != 0)
        fail_msg("%s: %s, expected %s", job, config.init_adapter, expected);
    tsr_config_free(&config);
}

static void test_states(void **state)
{
    (void)state;
    make("run");
    write_job("run", "job.yaml", TSR_CONFIG_HEADER);
    write_in("run", "metrics.jsonl", STEP(1) STEP(2));
    check_error("no adapter",
                tsr_earlier_config(&(tsr_config){0},
                                   &(tsr_config_source){.path = scratch_path("run/job.yaml"),
                                                        .use = TSR_CONFIG_EVAL}),
                TSR_ECONFIG,
                (const char *const[MOST_WORDS]){"run/job.yaml", "no adapter and no checkpoint yet",
                                                "init_adapter=DIRECTORY", "init_adapter=none"});
    takes("run/job.yaml", "init_adapter=none", NULL);
    write_checkpoint("run/checkpoint-2");
    write_checkpoint("run/checkpoint-10");
    takes("run/job.yaml", NULL, "run/checkpoint-10");
    write_adapter("run"); /* of an earlier end */
    write_in("run", "metrics.jsonl", STEP(2) DONE STEP(3) SAVED);
    takes("run/job.yaml", NULL, "run/checkpoint-10");
    write_in("run", "metrics.jsonl", STEP(2) DONE STEP(11) DONE);
    takes("run/job.yaml", NULL, "run");
    takes("run/job.yaml", "init_adapter=none", NULL);
    char other[256];
    snprintf(other, sizeof other, "init_adapter=%s", scratch_path("run/checkpoint-2"));
    takes("run/job.yaml", other, "run/checkpoint-2");
}

/* The directory that holds the file counts before the one that it names, which counts for a copy. */
static void test_places(void **state)
{
    (void)state;
    make("named");
    write_adapter("named");
    make("moved");
    write_adapter("moved");
    write_job("moved", "job.yaml", TSR_CONFIG_HEADER);
    takes("moved/job.yaml", NULL, "moved");
    make("copies");
    write_job("copies", "copy.yaml", TSR_CONFIG_HEADER);
    takes("copies/copy.yaml", NULL, "named");
    /* Somebody's own beside a run is no run's. */
    write_job("moved", "mine.yaml", "");
    tsr_config config;
    assert_int_equal(
        tsr_earlier_config(&config, &(tsr_config_source){.path = scratch_path("moved/mine.yaml"),
                                                         .use = TSR_CONFIG_EVAL}),
        TSR_OK);
    assert_string_equal(config.init_adapter, "where-the-run-began");
    tsr_config_free(&config);
}

/* A merge writes beside the run, unless it is said where. */
static void test_merged(void **state)
{
    (void)state;
    tsr_config config;
    char expected[256];
    const char *override = "output_dir=elsewhere";
    tsr_config_source source = {
        .path = scratch_path("moved/job.yaml"), .overrides = &override, .use = TSR_CONFIG_MERGE};
    snprintf(expected, sizeof expected, "%s", scratch_path("moved-merged"));
    for (int said = 0; said < 2; said++) {
        source.override_count = said;
        assert_int_equal(tsr_earlier_config(&config, &source), TSR_OK);
        assert_string_equal(config.output_dir, said ? "elsewhere" : expected);
        tsr_config_free(&config);
    }
}

/* A training from a run's own job.yaml begins as that run did. */
static void test_other_uses(void **state)
{
    (void)state;
    tsr_config config;
    const tsr_config_source source = {.path = scratch_path("moved/job.yaml"),
                                      .use = TSR_CONFIG_PLAN};
    assert_int_equal(tsr_earlier_config(&config, &source), TSR_OK);
    assert_string_equal(config.init_adapter, "where-the-run-began");
    tsr_config_free(&config);
}

/* metrics.jsonl as runs leave it. */
static void test_ends(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tsr_earlier_state state;
        int step;
    } ends[] = {
        {"", TSR_EARLIER_OPEN, 0},
        {"{\"event\":\"start\"}\n", TSR_EARLIER_OPEN, 0},
        {STEP(7) "{\"step\":7,\"eval_loss\":1,\"eval_label_tokens\":2}\n" DONE, TSR_EARLIER_DONE,
         7},
        {STEP(7) DONE STEP(8), TSR_EARLIER_OPEN, 8},
        {STEP(7) SAVED, TSR_EARLIER_OPEN, 7},
        {STEP(7) "{\"event\":\"end\",\"sta", TSR_EARLIER_OPEN, 7},
    };
    tsr_earlier_state found;
    int64_t step;
    make("ends");
    assert_int_equal(tsr_earlier_end(&found, &step, scratch_path("ends")), TSR_OK);
    assert_int_equal(found, TSR_EARLIER_NONE);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        write_in("ends", "metrics.jsonl", ends[i].text);
        assert_int_equal(tsr_earlier_end(&found, &step, scratch_path("ends")), TSR_OK);
        if (found != ends[i].state || step != ends[i].step)
            fail_msg("%s: %d at step %lld", ends[i].text, (int)found, (long long)step);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_states), cmocka_unit_test(test_places),
                                       cmocka_unit_test(test_other_uses),
                                       cmocka_unit_test(test_merged), cmocka_unit_test(test_ends)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
