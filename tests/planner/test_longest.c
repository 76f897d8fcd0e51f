/*
 * The longest row that fits: a plan of that length fits and is the one that was named, a plan of the next one does not, on one
 * and on two ranks, for pairs too; and a training at exactly that length runs inside the budget.
 */
#include "support/scratch.h"
#include "tessera.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <jansson.h>

/* A directory with nothing but the config.json of a small model; more: keys of it. */
static const char *model_of(const char *name, const char *more)
{
    char file[64], text[1024];
    const char *directory = scratch_path(name);
    assert_true(mkdir(directory, 0777) == 0 || errno == EEXIST);
    snprintf(text, sizeof text,
             "{\"model_type\": \"llama\", \"vocab_size\": 1000, \"hidden_size\": 64,"
             "\"intermediate_size\": 160, \"num_hidden_layers\": 6, \"num_attention_heads\": 4,"
             "\"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", %s}",
             more);
    snprintf(file, sizeof file, "%s/config.json", name);
    write_text(scratch_path(file), text);
    return directory;
}

static const char *small_model(void)
{
    return model_of("small", "\"max_position_embeddings\": 8192");
}

static tsr_job_options options_of(const char *config, int ranks)
{
    return (tsr_job_options){.size = sizeof(tsr_job_options),
                             .config_text = config,
                             .purpose = TSR_JOB_PLAN,
                             .plan_ranks = ranks,
                             .threads = 1};
}

static void put_config(char config[4096], const char *model, const char *more)
{
    snprintf(config, 4096, "model_name_or_path: %s\nbackend: cpu\n%s", model, more);
}

/* NULL: *status says why. */
static char *longest(int *status, const char *model, int ranks, const char *more, int form)
{
    char config[4096], *text = NULL;
    put_config(config, model, more);
    tsr_job_options options = options_of(config, ranks);
    *status = tsr_plan_longest(&options, form, &text);
    assert_int_equal(text != NULL, *status == 0);
    return text;
}

static json_t *found_of(const char *model, int ranks, const char *more)
{
    int status;
    json_error_t error;
    char *text = longest(&status, model, ranks, more, TSR_PLAN_JSON);
    if (!text)
        fail_msg("%s: %s", more, tsr_last_error());
    json_t *found = json_loads(text, 0, &error);
    if (!found)
        fail_msg("%s in: %s", error.text, text);
    free(text);
    return found;
}

static int64_t number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* The plan of a job with rows of that length, and nothing else changed. */
static int plan_at(tsr_job_plan_info *info, const char *model, int ranks, const char *more,
                   int64_t length)
{
    char config[4096], keys[64];
    const char *overrides[] = {keys, "per_device_train_batch_size=1"};
    put_config(config, model, more);
    snprintf(keys, sizeof keys, "max_length=%" PRId64, length);
    tsr_job_options options = options_of(config, ranks);
    options.overrides = overrides;
    options.override_count = 2;
    tsr_job *job;
    if (tsr_job_create(&job, &options) < 0)
        fail_msg("%s", tsr_last_error());
    int status = tsr_job_plan(job, info);
    if (status < 0 && !strstr(tsr_last_error(), "memory_budget allows"))
        fail_msg("%s", tsr_last_error());
    tsr_job_destroy(job);
    return status;
}

/* ---- what is found ---- */

/* The next four of those that are tried and every eighth behind them are refused; the named one is planned as it was said. */
static int64_t check_found(const char *model, int ranks, const char *more)
{
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    json_t *found = found_of(model, ranks, more);
    const json_t *plan = json_object_get(found, "plan");
    int64_t length = number(found, "max_length"), limit = number(found, "limit");
    assert_int_equal(plan_at(&info, model, ranks, more, length), 0);
    assert_int_equal(info.device_peak_bytes, number(plan, "device_peak_bytes"));
    assert_int_equal(info.device_peak_bytes, number(found, "device_bytes"));
    assert_int_equal(info.host_peak_bytes, number(found, "host_bytes"));
    assert_int_equal(number(plan, "ranks"), ranks);
    char hash[32];
    snprintf(hash, sizeof hash, "%016" PRIx64, info.plan_hash);
    assert_string_equal(json_string_value(json_object_get(plan, "plan_hash")), hash);
    if (length == limit) {
        assert_true(json_is_null(json_object_get(found, "does_not_fit")));
    } else {
        int64_t step = length < 256 ? 16 : 256;
        assert_int_equal(length % step, 0);
        assert_int_equal(number(found, "does_not_fit"), length + step);
        for (int64_t i = 1; length + i * step <= limit; i += i < 4 ? 1 : 8)
            if (plan_at(&info, model, ranks, more, length + i * step) == 0)
                fail_msg("%s: %" PRId64 " tokens fit, %" PRId64 " were named", more,
                         length + i * step, length);
    }
    json_decref(found);
    return length;
}

static void test_found(void **state)
{
    static const char everything[] = "lora_r: 4\n";
    static const struct {
        const char *keys, *budget;
        int ranks;
    } cases[] = {
        {everything, "6000KiB", 1},
        {everything, "8MiB", 1},
        {everything, "12MiB", 1},
        {everything, "12MiB", 2},
        {"lora_r: 4\ngradient_checkpointing: full\noffload: none\nactivation_offloading: false\n"
         "optimizer_offload: false\n",
         "12MiB", 1},
        {"use_dora: true\ngradient_checkpointing: none\noffload: none\n", "24MiB", 2},
        {"objective: dpo\n", "12MiB", 1},
        {"packing: true\noffload: sharded\nper_device_train_batch_size: 8\n", "16MiB", 1},
        {"lora_r: 4\ncontext_span: 64\n", "12MiB", 2},
        {"lora_r: 4\ncontext_span: 64\ncontext_parallel_size: 2\n", "12MiB", 2},
    };
    int64_t length[sizeof cases / sizeof *cases];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char keys[512];
        snprintf(keys, sizeof keys, "%smemory_budget: %s\n", cases[i].keys, cases[i].budget);
        length[i] = check_found(small_model(), cases[i].ranks, keys);
        print_message("%s on %d ranks, %s: %" PRId64 "\n", cases[i].budget, cases[i].ranks,
                      cases[i].keys, length[i]);
        assert_in_range(length[i], 16, 8191);
    }
    assert_true(length[0] < 256 && length[0] < length[1] && length[1] < length[2]);
    assert_true(length[4] < length[2]);         /* what is on auto makes room */
    assert_true(length[9] > 6 * length[8] / 5); /* as do ranks that share a row */
}

/* A large budget: the model is what limits, and the key is named. */
static void test_limits(void **state)
{
    static const struct {
        const char *name, *config, *key;
        int64_t limit;
    } cases[] = {
        {"of_3000", "\"max_position_embeddings\": 3000", "max_position_embeddings", 3000},
        {"of_100", "\"max_position_embeddings\": 100", "max_position_embeddings", 100},
        {"of_yarn",
         "\"max_position_embeddings\": 4096, \"rope_scaling\": {\"rope_type\": \"yarn\", "
         "\"factor\": 4.0, \"original_max_position_embeddings\": 4096}",
         "rope_scaling", 16384},
        {"of_llama3",
         "\"max_position_embeddings\": 16384, \"rope_scaling\": {\"rope_type\": \"llama3\", "
         "\"factor\": 4.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
         "\"original_max_position_embeddings\": 4096}",
         "max_position_embeddings", 16384},
        {"of_dynamic",
         "\"max_position_embeddings\": 2048, \"rope_scaling\": {\"rope_type\": \"dynamic\", "
         "\"factor\": 4.0}",
         "max_position_embeddings", 2048},
        {"of_all", "\"max_position_embeddings\": 4194304", NULL, 1 << 20},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char keys[128];
        int status;
        snprintf(keys, sizeof keys, "lora_r: 4\nmemory_budget: 900GiB\n");
        const char *model = model_of(cases[i].name, cases[i].config);
        assert_int_equal(check_found(model, 1, keys), cases[i].limit);
        json_t *found = found_of(model, 1, keys);
        assert_int_equal(number(found, "limit"), cases[i].limit);
        const char *key = json_string_value(json_object_get(found, "limit_key"));
        assert_true(cases[i].key ? !strcmp(key, cases[i].key) : !key);
        json_decref(found);
        char *text = longest(&status, model, 1, keys, TSR_PLAN_SCREEN);
        assert_non_null(strstr(text, cases[i].key ? cases[i].key : " fits or more"));
        free(text);
    }
}

/* Data are not read, whatever is said of them, and other keys stay as they are. */
static void test_without_data(void **state)
{
    static const char plain[] = "lora_r: 4\nmemory_budget: 8MiB\n";
    char keys[1024];
    (void)state;
    int64_t length = check_found(small_model(), 1, plain);
    snprintf(keys, sizeof keys,
             "%sdataset: nowhere.jsonl\neval_dataset: none.jsonl\neval_strategy: steps\n"
             "per_device_train_batch_size: 4\ntotal_batch_size: 8\nmax_length: 64\n"
             "per_device_eval_batch_size: 2\nmax_steps: 3\n",
             plain);
    json_t *found = found_of(small_model(), 1, keys);
    assert_int_equal(number(found, "max_length"), length);
    char expected[128];
    snprintf(expected, sizeof expected,
             "max_length=%" PRId64 " per_device_train_batch_size=1 per_device_eval_batch_size=1",
             length);
    assert_string_equal(json_string_value(json_object_get(found, "keys")), expected);
    json_decref(found);
}

/* ---- what is said ---- */

static void test_text(void **state)
{
    int status;
    unsigned long long length, beyond, device, host;
    char keys[128];
    (void)state;
    char *text =
        longest(&status, small_model(), 1, "lora_r: 4\nmemory_budget: 8MiB\n", TSR_PLAN_SCREEN);
    if (sscanf(text, "longest  a row of %llu tokens fits; %llu do not fit\n", &length, &beyond) !=
        2)
        fail_msg("%s", text);
    snprintf(keys, sizeof keys, "\nkeys     max_length=%llu per_device_train_batch_size=1\nbytes ",
             length);
    const char *bytes = strstr(text, keys);
    if (!bytes || sscanf(bytes + strlen(keys), "%llu on the device, %llu in host memory\nfits",
                         &device, &host) != 2)
        fail_msg("%s", text);
    assert_true(beyond == length + 256 && device <= 8 << 20 && host > 0);
    assert_non_null(strstr(text, "\nfits     peak "));
    assert_non_null(strstr(text, "\nchosen   "));
    free(text);
    text = longest(&status, small_model(), 1, "objective: dpo\nmemory_budget: 12MiB\n",
                   TSR_PLAN_BUFFERS);
    assert_non_null(strstr(text, "longest  a row of two documents of "));
    assert_non_null(strstr(text, "device peak "));
    free(text);
}

/* A line to paste, with the job and all its keys. */
static void test_command(void **state)
{
    char config[4096], expected[1024], *text = NULL;
    const char *overrides[] = {"lora_r=4", "output_dir=a run"};
    (void)state;
    put_config(config, small_model(), "memory_budget: 900GiB\n");
    write_text(scratch_path("job.yaml"), config);
    tsr_job_options options = options_of(NULL, 2);
    options.config_path = scratch_path("job.yaml");
    options.overrides = overrides;
    options.override_count = 2;
    assert_int_equal(tsr_plan_longest(&options, TSR_PLAN_SCREEN, &text), 0);
    snprintf(expected, sizeof expected,
             "\ntrain    mpirun -n 2 tessera train %s lora_r=4 'output_dir=a run' max_length=8192 "
             "per_device_train_batch_size=1\n",
             options.config_path);
    if (!strstr(text, expected))
        fail_msg("no%s in: %s", expected, text);
    free(text);
}

static void test_refused(void **state)
{
    int status;
    char config[4096], *text = NULL;
    (void)state;
    assert_null(longest(&status, small_model(), 1, "memory_budget: 1MiB\n", TSR_PLAN_SCREEN));
    assert_int_equal(status, TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), "memory_budget allows 1.00 MiB"));
    assert_non_null(strstr(tsr_last_error(), "smallest change that fits: memory_budget: "));
    /* Between what fits on one rank and what two can share (test_found). */
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    static const char spans[] = "lora_r: 4\ncontext_span: 64\nmemory_budget: 12MiB\n";
    assert_int_equal(plan_at(&info, small_model(), 2, spans, 2560), TSR_ECONFIG);
    assert_non_null(
        strstr(tsr_last_error(), "change that fits: context_parallel_size: 2 (2 ranks"));
    assert_int_equal(plan_at(&info, small_model(), 1, spans, 2560), TSR_ECONFIG);
    assert_null(strstr(tsr_last_error(), "context_parallel_size"));
    assert_null(longest(&status, small_model(), 1,
                        "output_dir: runs\nadapters: [{name: a}, {name: b}]\n", TSR_PLAN_SCREEN));
    assert_int_equal(status, TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), "adapters: --longest is for one adapter"));
    assert_null(longest(&status, small_model(), 1, "lora_r: 4\n", 3));
    assert_int_equal(status, TSR_EINVAL);
    put_config(config, small_model(), "");
    tsr_job_options options = options_of(config, 1);
    options.purpose = TSR_JOB_EVALUATE;
    assert_int_equal(tsr_plan_longest(&options, TSR_PLAN_SCREEN, &text), TSR_EINVAL);
    assert_null(text);
}

/* ---- a run ---- */

#define TINY TSR_SOURCE_DIR "/examples/tiny-llama"

/* One row of so many tokens, all of them labels. */
static void write_row(const char *path, int64_t length)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"input_ids\": [", file);
    for (int64_t i = 0; i < length; i++)
        fprintf(file, "%s%d", i ? "," : "", (int)(100 + i * 7919 % 3000));
    fputs("]}\n", file);
    assert_int_equal(fclose(file), 0);
}

/* A step on a row of `length` tokens. */
static int train(tsr_job_report *report, const char *keys, int64_t length)
{
    char config[4096], more[1024];
    tsr_job *job;
    write_row(scratch_path("row.jsonl"), length);
    snprintf(more, sizeof more,
             "%sdataset: %s\nmax_length: %" PRId64
             "\nper_device_train_batch_size: 1\nmax_steps: 1\n"
             "output_dir: %s\noverwrite_output_dir: true\n",
             keys, scratch_path("row.jsonl"), length, scratch_path("run"));
    put_config(config, TINY, more);
    tsr_job_options options = options_of(config, 0);
    options.purpose = TSR_JOB_TRAIN;
    if (tsr_job_create(&job, &options) < 0)
        fail_msg("%s", tsr_last_error());
    int status = tsr_job_start(job);
    if (status == 0)
        status = tsr_job_step(job, report);
    tsr_job_destroy(job);
    return status;
}

static void test_training(void **state)
{
    static const char *const keys[] = {
        "lora_r: 4\nmemory_budget: 24MiB\n",
        "lora_r: 4\nmemory_budget: 24MiB\noffload: none\nactivation_offloading: false\n"
        "gradient_checkpointing: full\noptimizer_offload: false\n",
        "lora_r: 4\nmemory_budget: 24MiB\ncontext_span: 64\n"};
    static const int64_t tiles[] = {0, 0, 64};
    int64_t whole = 0;
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        json_t *found = found_of(TINY, 1, keys[i]);
        int64_t length = number(found, "max_length");
        print_message("a training at %" PRId64 " tokens\n", length);
        assert_int_equal(number(json_object_get(found, "plan"), "tile_rows"), tiles[i]);
        assert_true(!tiles[i] || length > whole);
        whole = length > whole ? length : whole;
        if (train(&report, keys[i], length) < 0)
            fail_msg("%s", tsr_last_error());
        assert_true(report.input_tokens == length && report.loss > 0 && !report.skipped);
        assert_in_range(report.device_bytes, 1, 24 << 20);
        if (strstr(keys[i],
                   "offload: none")) /* else time decides, and fewer tokens are labels here */
            assert_in_range(report.device_bytes, 1, number(found, "device_bytes"));
        assert_int_equal(train(&report, keys[i], number(found, "does_not_fit")), TSR_ECONFIG);
        assert_non_null(strstr(tsr_last_error(), "memory_budget allows"));
        json_decref(found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found),        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_without_data), cmocka_unit_test(test_text),
        cmocka_unit_test(test_command),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_training),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
