/*
 * What `inspect` and `env` say: every kind of path, metrics.jsonl as runs leave it and as it breaks,
 * the plot, and how a report looks to people.
 */
#include "support/comma_locale.h"
#include "support/scratch.h"

#include "io/json.h"
#include "report/metrics_read.h"
#include "report/plot.h"
#include "report/report.h"
#include "tessera.h"

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL  TSR_SOURCE_DIR "/examples/tiny-llama"
#define GOLDEN TSR_SOURCE_DIR "/tests/golden"

static void succeed(int status)
{
    if (status < 0)
        fail_msg("%s", tsr_last_error());
}

static json_t *inspect(const char *path)
{
    char *text;
    json_t *root;
    succeed(tsr_inspect(path, NULL, 1, &text));
    succeed(tsr_json_parse(&root, text, strlen(text), "the report"));
    free(text);
    succeed(tsr_inspect(path, NULL, 0, &text)); /* people's too */
    assert_true(strlen(text) > 100);
    free(text);
    return root;
}

/* "a.b.c" */
static const json_t *at(const json_t *root, const char *path)
{
    char copy[200], *state = NULL;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *word = strtok_r(copy, ".", &state); word; word = strtok_r(NULL, ".", &state)) {
        root = *word >= '0' && *word <= '9' ? json_array_get(root, (size_t)atoi(word))
                                            : json_object_get(root, word);
        if (!root)
            fail_msg("the report has no %s of %s", word, path);
    }
    return root;
}

static void is_text(const json_t *root, const char *path, const char *expected)
{
    assert_string_equal(json_string_value(at(root, path)), expected);
}

static void is_int(const json_t *root, const char *path, long long expected)
{
    assert_int_equal(json_integer_value(at(root, path)), expected);
}

static void is_real(const json_t *root, const char *path, double expected)
{
    double found = json_number_value(at(root, path));
    if (!(fabs(found - expected) <= 1e-12 * fabs(expected)))
        fail_msg("%s is %g, expected %g", path, found, expected);
}

/* ---- kinds ---- */

static void test_file(void **state)
{
    (void)state;
    const char *path = scratch_path("a.safetensors");
    write_safetensors(path,
                      "{\"__metadata__\":{\"format\":\"pt\",\"by\":\"hand\"},"
                      "\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                      "\"y\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[24,25]}}",
                      TRUE_LENGTH, 25);
    json_t *r = inspect(path);
    is_text(r, "kind", "safetensors");
    is_int(r, "tensor_count", 2);
    is_int(r, "elements", 7);
    is_int(r, "data_bytes", 25);
    is_text(r, "metadata.by", "hand");
    is_int(r, "dtypes.F32_bytes", 24);
    is_text(r, "tensors.0.name", "x");
    is_text(r, "tensors.0.dtype", "F32");
    is_int(r, "tensors.0.shape.1", 3);
    is_int(r, "tensors.1.bytes", 1);
    json_decref(r);
}

static void test_model(void **state)
{
    (void)state;
    json_t *r = inspect(MODEL);
    is_text(r, "kind", "model");
    assert_non_null(strstr(json_string_value(at(r, "architecture")),
                           "llama: 6 layers of width 256, MLP of 704, 4 heads of 64 that share 2"));
    is_int(r, "parameters", 6524160);
    is_int(r, "parameters_in_4_bits", 0);
    is_text(r, "quantization", "none");
    assert_int_equal(json_array_size(at(r, "shards")), 4);
    assert_int_equal(json_array_size(at(r, "tensors")), 57);
    json_decref(r);
    r = inspect(GOLDEN "/prequantized-tiny-llama");
    is_text(r, "quantization", "bitsandbytes nf4, double quantized");
    is_int(r, "parameters", 2 * 737792 + 256 + 2 * 384 * 256);
    is_int(r, "parameters_in_4_bits", 2 * 737280);
    assert_int_equal(json_array_size(at(r, "shards")), 1);
    json_decref(r);
    /* plain weights beside a config.json that still says 4 bits, and the reverse */
    static const char *const mixed[][3] = {{"left-over", MODEL, GOLDEN "/prequantized-tiny-llama"},
                                           {"unsaid", GOLDEN "/prequantized-tiny-llama", MODEL}};
    static const char *const stored[] = {"none", "bitsandbytes nf4, double quantized"};
    for (int i = 0; i < 2; i++) {
        char command[2000];
        const char *to = scratch_path(mixed[i][0]);
        snprintf(command, sizeof command,
                 "mkdir %s && ln -s %s/model*.s* %s && ln -s %s/config.json %s", to, mixed[i][1],
                 to, mixed[i][2], to);
        assert_int_equal(system(command), 0);
        r = inspect(to);
        is_text(r, "quantization", stored[i]);
        json_decref(r);
    }
    /* config.json alone, and one of another kind of model */
    mkdir(scratch_path("config"), 0777);
    write_text(scratch_path("config/config.json"), "{\"model_type\": \"gpt2\"}");
    r = inspect(scratch_path("config"));
    assert_true(json_is_false(at(r, "supported")));
    assert_non_null(strstr(json_string_value(at(r, "refused")), "gpt2"));
    assert_true(json_is_false(at(r, "has_weights")));
    json_decref(r);
}

/* One row for what the experts of a layer have each. */
static void test_experts(void **state)
{
    (void)state;
    json_t *r = inspect(GOLDEN "/families/qwen3_moe/checkpoint");
    is_text(r, "experts", "8 of width 24 in each of 2 layers, 3 of a token");
    is_int(r, "parameters", 181840);
    is_int(r, "active_parameters", 181840 - 2 * (8 - 3) * 3 * 64 * 24);
    is_int(r, "shards.0.tensors", 80);
    assert_int_equal(json_array_size(at(r, "tensors")), 80 - 2 * 7 * 3);
    is_text(r, "tensors.3.name", "model.layers.0.mlp.experts.*.down_proj.weight");
    is_int(r, "tensors.3.experts", 8);
    is_int(r, "tensors.3.bytes", 8 * 2 * 64 * 24);
    is_int(r, "tensors.3.shape.1", 24);
    is_text(r, "tensors.6.name", "model.layers.0.mlp.gate.weight");
    assert_null(json_object_get(at(r, "tensors.6"), "experts"));
    json_decref(r);
}

static void test_adapter(void **state)
{
    (void)state;
    json_t *r = inspect(GOLDEN "/traces/init/dora_patterns");
    is_text(r, "kind", "adapter");
    is_text(r, "method", "DoRA");
    is_text(r, "base_model", "tiny-llama");
    is_int(r, "r", 16);
    is_real(r, "lora_alpha", 32);
    is_real(r, "rank_pattern.down_proj", 8);
    assert_int_equal(json_array_size(at(r, "target_modules")), 4);
    is_int(r, "modules", 24);
    assert_int_equal(json_array_size(at(r, "tensors")), 72);
    json_decref(r);
    r = inspect(GOLDEN "/traces/init/rslora_r16");
    is_text(r, "method", "rsLoRA");
    is_int(r, "layers_to_transform.1", 4);
    is_int(r, "modules", 14);
    json_decref(r);
    r = inspect(GOLDEN "/objectives/init/reward_r8_b");
    is_text(r, "task_type", "SEQ_CLS");
    is_text(r, "modules_to_save.1", "score");
    is_int(r, "trainable_parameters", 224512); /* 256 of them the score's */
    assert_int_equal(json_array_size(at(r, "tensors")), 85);
    json_decref(r);
}

/* ---- runs ---- */

#define START                                                                                      \
    "{\"event\":\"start\",\"version\":\"1\",\"ranks\":2,\"device\":\"CPU\",\"model\":\"m\","       \
    "\"total_steps\":4,\"trainable_parameters\":10}\n"
#define RESUMED "{\"event\":\"start\",\"version\":\"1\",\"resumed_step\":1}\n"
#define STEP(n, loss, rate)                                                                        \
    "{\"step\":" #n ",\"epoch\":0.5,\"loss\":" #loss ",\"grad_norm\":1,\"learning_rate\":" #rate   \
    ",\"label_tokens\":3,\"input_tokens\":100,\"tokens_per_s\":50,\"step_s\":2,"                   \
    "\"device_bytes\":7,\"exposed_s\":0}\n"
#define EVAL(n, loss) "{\"step\":" #n ",\"eval_loss\":" #loss ",\"eval_label_tokens\":9}\n"

#define REPORTED(n)                                                                                \
    "{\"step\":" #n ",\"loss\":2,\"mean_token_accuracy\":0.25,\"entropy\":1.5}\n"                  \
    "{\"step\":" #n ",\"eval_loss\":3,\"eval_mean_token_accuracy\":0.5,\"eval_entropy\":2.5}\n"

#define EXPERTS(n, load, aux)                                                                      \
    "{\"step\":" #n ",\"loss\":2,\"learning_rate\":1,\"expert_load_over_mean\":" #load             \
    ",\"expert_empty_share\":0.25,\"expert_dropped\":3" aux "}\n"

static const char *run_of(const char *metrics)
{
    mkdir(scratch_path("run"), 0777);
    write_text(scratch_path("run/metrics.jsonl"), metrics);
    return scratch_path("run");
}

static void test_run(void **state)
{
    (void)state;
    json_t *r = inspect(run_of(START EVAL(0, 3) STEP(1, 2.5, 1e-3) STEP(2, 2, 2e-3) EVAL(
        2, 2.25) STEP(3, 2.125, 1e-3) EVAL(3, 2.5) "{\"event\":\"end\",\"status\":\"done\"}\n"));
    is_text(r, "kind", "run");
    is_text(r, "status", "done");
    is_int(r, "ranks", 2);
    is_int(r, "steps_done", 3);
    is_int(r, "total_steps", 4);
    is_real(r, "training.first_loss", 2.5);
    is_real(r, "training.last_loss", 2.125);
    is_real(r, "training.lowest_loss", 2);
    is_int(r, "training.input_tokens", 300);
    is_real(r, "training.tokens_per_s", 50);
    is_int(r, "evaluation.times", 3);
    is_real(r, "evaluation.lowest_loss", 2.25);
    is_int(r, "evaluation.lowest_at_step", 2);
    is_text(r, "files.0.name", "metrics.jsonl");
    json_decref(r);
    r = inspect(run_of(START STEP(1, 2.5, 1e-3) EVAL(1, 3)));
    assert_null(json_object_get(at(r, "training"), "last_entropy")); /* of an earlier version */
    assert_null(json_object_get(at(r, "evaluation"), "last_mean_token_accuracy"));
    json_decref(r);
    r = inspect(run_of(START STEP(1, 2.5, 1e-3) REPORTED(2)));
    is_real(r, "training.last_mean_token_accuracy", 0.25);
    is_real(r, "training.last_entropy", 1.5);
    is_real(r, "evaluation.last_mean_token_accuracy", 0.5);
    is_real(r, "evaluation.last_entropy", 2.5);
    json_decref(r);
    assert_null(json_object_get(at(r = inspect(run_of(START REPORTED(2))), "training"),
                                "last_expert_load_over_mean"));
    json_decref(r);
    r = inspect(run_of(START EXPERTS(1, 4.5, "") EXPERTS(2, 2.5, ",\"aux_loss\":3.5")));
    is_real(r, "training.last_expert_load_over_mean", 2.5);
    is_real(r, "training.largest_expert_load_over_mean", 4.5);
    is_real(r, "training.last_expert_empty_share", 0.25);
    is_real(r, "training.last_aux_loss", 3.5);
    is_int(r, "training.expert_dropped", 6);
    json_decref(r);
    /* resumed from step 1; then killed in the middle of a line */
    r = inspect(run_of(START STEP(1, 2.5, 1e-3) EVAL(1, 3) STEP(2, 1, 1e-3) EVAL(2, 1)
                           RESUMED STEP(2, 2.25, 1e-3) STEP(3, null, 1e-3) "{\"step\":4,\"lo"));
    is_int(r, "resumed_times", 1);
    is_int(r, "steps_done", 3);
    is_text(r, "status", "running, or ended abruptly");
    is_real(r, "training.lowest_loss", 2.25);
    assert_true(json_is_null(at(r, "training.last_loss")));
    is_int(r, "training.steps_not_finite", 1);
    is_int(r, "evaluation.times", 1);
    is_real(r, "evaluation.last_loss", 3);
    json_decref(r);
}

/* A run's adapter is summed up; its tensors, hundreds, are for who looks at the adapter itself. */
static void test_adapter_of_run(void **state)
{
    (void)state;
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    char from[512], to[512];
    const char *run = run_of(START STEP(1, 2.5, 1e-3));
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, GOLDEN "/traces/init/dora_patterns/%s", names[i]);
        snprintf(to, sizeof to, "%s/%s", run, names[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    json_t *r = inspect(run);
    is_text(r, "kind", "run");
    is_int(r, "adapter.modules", 24);
    assert_null(json_object_get(at(r, "adapter"), "tensors"));
    json_decref(r);
    for (int i = 0; i < 2; i++) {
        snprintf(to, sizeof to, "%s/%s", run, names[i]);
        assert_int_equal(unlink(to), 0);
    }
}

static void test_broken(void **state)
{
    (void)state;
    static const struct {
        const char *metrics;
        const char *const words[MOST_WORDS];
    } lines[] = {
        {START "nonsense\n", {"metrics.jsonl:2"}},
        {START STEP(1, 2, 1) "{\"loss\": 3}\n", {"metrics.jsonl:3", "\"event\" or \"step\""}},
        {"[1]\n", {"metrics.jsonl:1"}},
    };
    char *text;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        check_error(lines[i].metrics, tsr_inspect(run_of(lines[i].metrics), NULL, 1, &text),
                    TSR_EDATA, lines[i].words);
    mkdir(scratch_path("empty"), 0777);
    static const char *const kinds[MOST_WORDS] = {"metrics.jsonl", "adapter_config.json",
                                                  "config.json", "contains no runs"};
    check_error("an empty directory", tsr_inspect(scratch_path("empty"), NULL, 1, &text), TSR_EDATA,
                kinds);
    static const char *const missing[MOST_WORDS] = {"nowhere", "No such file"};
    check_error("nothing", tsr_inspect(scratch_path("nowhere"), NULL, 1, &text), TSR_EDATA,
                missing);
    static const char *const no_steps[MOST_WORDS] = {"no step to draw"};
    check_error("a plot without steps", tsr_plot(run_of(START), scratch_path("a.svg")), TSR_EDATA,
                no_steps);
    static const char *const no_place[MOST_WORDS] = {"nowhere/a.svg"};
    check_error("a plot into nothing",
                tsr_plot(run_of(STEP(1, 2, 1)), scratch_path("nowhere/a.svg")), TSR_EIO, no_place);
}

/* ---- the plot ---- */

static int count(const char *text, const char *word)
{
    int found = 0;
    for (; (text = strstr(text, word)); text++)
        found++;
    return found;
}

/* Every opened element is closed in order, attributes are quoted, and no text has a bare & or <. */
static void check_xml(const char *p)
{
    char names[16][32];
    int depth = 0;
    for (; *p; p++) {
        if (*p == '&')
            assert_true(!strncmp(p, "&amp;", 5) || !strncmp(p, "&lt;", 4) ||
                        !strncmp(p, "&gt;", 4) || !strncmp(p, "&quot;", 6));
        if (*p != '<')
            continue;
        const char *end = p;
        for (bool quoted = false; *end && (quoted || *end != '>'); end++)
            quoted ^= *end == '"';
        assert_int_equal(*end, '>');
        bool closes = p[1] == '/';
        char name[32] = "";
        sscanf(p + 1 + closes, "%31[a-z]", name);
        if (closes)
            assert_string_equal(name, names[--depth]);
        else if (end[-1] != '/')
            strcpy(names[depth++], name);
        assert_in_range(depth, 0, 15);
        p = end;
    }
    assert_int_equal(depth, 0);
}

static void test_plot(void **state)
{
    (void)state;
    uint64_t bytes;
    succeed(tsr_plot(run_of(START EVAL(0, 3) STEP(1, 2.5, 1e-3) STEP(2, null, 2e-3)
                                STEP(3, 2.125, 1e-3) EVAL(3, 2.5)),
                     scratch_path("a.svg")));
    char *svg = read_whole(&bytes, scratch_path("a.svg"));
    check_xml(svg);
    assert_int_equal(count(svg, "<path"), 3);
    assert_int_equal(count(svg, "<circle"), 2);
    assert_int_equal(count(svg, ">evaluation loss<"), 1);
    assert_int_equal(count(svg, ">learning rate<"), 1);
    assert_int_equal(count(svg, ">optimizer step<"), 1);
    /* the gap: the loss begins twice */
    const char *loss = strstr(svg, "<path class=\"loss\"");
    char *end = strchr(loss, '>');
    *end = 0;
    assert_int_equal(count(loss, " M"), 2);
    free(svg);
}

/* The load of experts has a panel of its own below. */
static void test_plot_experts(void **state)
{
    (void)state;
    uint64_t bytes;
    succeed(tsr_plot(run_of(START EXPERTS(1, 4.5, "") EXPERTS(2, 2.5, "")), scratch_path("a.svg")));
    char *svg = read_whole(&bytes, scratch_path("a.svg"));
    check_xml(svg);
    assert_int_equal(count(svg, "<path"), 4);
    assert_int_equal(count(svg, "<path class=\"load\" d=\" M90.0"), 1);
    assert_int_equal(count(svg, ">largest expert load / mean<"), 1);
    assert_int_equal(count(svg, ">optimizer step<"), 1);
    assert_int_equal(count(svg, "height=\"756\""), 2);
    free(svg);
}

/* A run as people read it, and its plot; the caller frees both. */
static void show(char *shown[2])
{
    uint64_t bytes;
    const char *run = run_of(START EVAL(0, 3) STEP(1, 2.5, 1e-3) STEP(2, 2.25, 2e-3));
    succeed(tsr_inspect(run, NULL, 0, &shown[0]));
    succeed(tsr_plot(run, scratch_path("a.svg")));
    shown[1] = read_whole(&bytes, scratch_path("a.svg"));
}

/* Of a caller whose decimal point is a comma and who rounds upwards, and who has both back. */
static void test_caller(void **state)
{
    char *want[2], *got[2];
    (void)state;
    locale_t comma = comma_locale();
    if (!comma) {
        print_message("no locale with a decimal comma can be made\n");
        skip();
    }
    show(want);
    locale_t before = uselocale(comma);
    fesetround(FE_UPWARD);
    show(got);
    assert_int_equal(fegetround(), FE_UPWARD);
    fesetround(FE_TONEAREST);
    assert_true(uselocale(before) == comma);
    freelocale(comma);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(got[i], want[i]);
        free(want[i]);
        free(got[i]);
    }
}

/* However odd the title, the values and the steps. */
static void test_plot_values(void **state)
{
    (void)state;
    static const double values[][2] = {
        {1, 1},     {0, 0},   {-5, 1e-12}, {1e30, 1e-30}, {1, 1.0000000000000002}, {1e308, -1e308},
        {NAN, NAN}, {NAN, 2}, {1e-300, 0}, {3, INFINITY}, {1.5e308, 1.7e308},      {5e-324, 0}};
    const int64_t far = (int64_t)1 << 60;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        tsr_run_step steps[2] = {{.step = 7, .loss = values[i][0], .learning_rate = values[i][1]},
                                 {.step = 8, .loss = values[i][1], .learning_rate = values[i][0]}};
        for (uint64_t n = 1; n <= 3; n++) {
            if (n == 3)
                steps[0].step = far, steps[1].step = far + 512;
            const tsr_run_metrics m = {.steps = steps, .step_count = n < 2 ? n : 2};
            tsr_text svg = {0};
            succeed(tsr_plot_run(&svg, &m, "a <b> & \"c\" \x1b[31m"));
            check_xml(tsr_text_string(&svg));
            assert_null(strstr(tsr_text_string(&svg), "nan"));
            assert_null(strstr(tsr_text_string(&svg), "inf"));
            assert_null(strchr(tsr_text_string(&svg), 0x1b));
            assert_true(svg.length < 40000);
            tsr_text_free(&svg);
        }
    }
}

/* A million steps are as many points as pixels need, and the one high value is among them. */
static void test_plot_long(void **state)
{
    (void)state;
    uint64_t n = 1000000;
    tsr_run_step *steps = calloc(n, sizeof *steps);
    assert_non_null(steps);
    for (uint64_t i = 0; i < n; i++)
        steps[i] = (tsr_run_step){.step = (int64_t)i + 1,
                                  .loss = i == 500123 ? 9 : 2 + (double)(i % 7) / 7,
                                  .learning_rate = 1e-3};
    const tsr_run_metrics m = {.steps = steps, .step_count = n};
    tsr_text svg = {0};
    succeed(tsr_plot_run(&svg, &m, "long"));
    assert_true(svg.length < 150000);
    /* 9 lies 5 % of the range below the top: range 2..9, panel from 44 to 390 pixels */
    char y[16];
    snprintf(y, sizeof y, " %.1f", 390 - 346 * (7 + 0.35) / 7.7);
    assert_non_null(strstr(tsr_text_string(&svg), y));
    tsr_text_free(&svg);
    free(steps);
}

/* ---- the report, and env ---- */

static void test_report(void **state)
{
    (void)state;
    char *text;
    json_t *root = json_object(), *rows;
    tsr_report_string(root, "name", "a\x1b[2Jb\xc2\x9b\xff");
    tsr_report_int(root, "file_bytes", 1536);
    tsr_report_bool(root, "use_dora", true);
    tsr_report_real(root, "copy_bytes_per_s", 2.5e9);
    tsr_report_real(root, "nothing", NAN);
    tsr_report_string(tsr_report_object(root, "inner"), "a\x1b_bytes", "value");
    rows = tsr_report_array(root, "rows");
    tsr_report_int(tsr_report_row(rows), "count", 5);
    json_t *row = tsr_report_row(rows);
    tsr_report_int(row, "count", 1000);
    tsr_report_string(row, "word", "x");
    succeed(tsr_report_print(&text, root, false));
    assert_string_equal(text, "name      a\\x1b[2Jb???\n"
                              "file      1.5 KiB\n"
                              "use_dora  yes\n"
                              "copy      2.5 GB/s\n"
                              "nothing   -\n"
                              "\ninner\n  a\\x1b_bytes  value\n"
                              "\nrows\n  count  word\n      5  \n   1000  x\n");
    free(text);
}

static void test_environment(void **state)
{
    (void)state;
    char *text;
    json_t *r;
    succeed(tsr_environment(NULL, 0, 1, &text));
    succeed(tsr_json_parse(&r, text, strlen(text), "env"));
    free(text);
    is_text(r, "backends.0.name", "cpu");
    assert_true(json_is_true(at(r, "backends.0.usable")));
    is_text(r, "backends.1.name", "cuda");
    assert_true(json_integer_value(at(r, "cpu.cores_usable")) >= 1);
    assert_true(json_integer_value(at(r, "cpu.memory_bytes")) > 1 << 28);
    assert_true(json_integer_value(at(r, "topology.cores")) >=
                json_integer_value(at(r, "cpu.cores_usable")));
    static const char *const libraries[] = {"mpi",     "hwloc",     "openblas", "jansson",
                                            "libyaml", "oniguruma", "utf8proc"};
    for (int i = 0; i < 7; i++) {
        char path[64];
        snprintf(path, sizeof path, "libraries.%s", libraries[i]);
        const char *version = json_string_value(at(r, path));
        assert_true(version && strpbrk(version, "0123456789"));
    }
    /* what cannot be used is said to be missing */
    bool usable = json_is_true(at(r, "backends.1.usable")), missed = false;
    json_t *row;
    size_t i;
    json_array_foreach(at(r, "missing"), i, row) missed |=
        strstr(json_string_value(at(row, "what")), "CUDA") ||
        strstr(json_string_value(at(row, "what")), "GPU");
    assert_int_equal(missed, !usable);
    json_decref(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),         cmocka_unit_test(test_model),
        cmocka_unit_test(test_experts),      cmocka_unit_test(test_adapter),
        cmocka_unit_test(test_run),          cmocka_unit_test(test_adapter_of_run),
        cmocka_unit_test(test_broken),       cmocka_unit_test(test_plot),
        cmocka_unit_test(test_plot_experts), cmocka_unit_test(test_plot_values),
        cmocka_unit_test(test_plot_long),    cmocka_unit_test(test_report),
        cmocka_unit_test(test_environment),  cmocka_unit_test(test_caller)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
