/*
 * What a run writes and prints, through the whole program: metrics.jsonl, job.yaml that can be run
 * again, plan.json, the adapter's configuration, and the command that evaluates it.
 */
#include "multi/cli.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void write_eval_data(void)
{
    cli_write("eval.jsonl", "{\"input_ids\": [60, 61, 62, 63]}\n"
                            "{\"input_ids\": [70, 71, 72]}\n"
                            "{\"input_ids\": [80, 81, 82, 83, 84, 85, 86]}\n");
}

static void run_ok(int ranks, const char *words)
{
    cli_output output;
    cli_run(&output, ranks, NULL, words);
    if (output.code != 0)
        cli_fail("%s: exit code %d\n%s", words, output.code, output.err);
    if (output.out[0])
        cli_fail("%s: standard output has %s", words, output.out);
    cli_output_free(&output);
}

static json_t *load_json(const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (!root)
        cli_fail("%s:%d: %s", path, error.line, error.text);
    return root;
}

static void same_files(const char *a, const char *b)
{
    size_t a_bytes = 0, b_bytes = 0;
    char *x = cli_read(a, &a_bytes), *y = cli_read(b, &b_bytes);
    if (!x || !y || a_bytes != b_bytes || memcmp(x, y, a_bytes) != 0)
        cli_fail("%s and %s differ", a, b);
    free(x);
    free(y);
}

/* ---- metrics.jsonl ---- */

/* Significant digits of the longest number in a line. */
static int most_digits(const char *line)
{
    int most = 0;
    for (const char *p = strchr(line, ':'); p; p = strchr(p + 1, ':')) {
        int digits = 0;
        const char *d = p + 1 + (p[1] == '-');
        bool real = false;
        for (; (*d >= '0' && *d <= '9') || *d == '.'; d++) {
            real |= *d == '.';
            digits += *d != '.' && (digits > 0 || *d != '0');
        }
        if (real && digits > most)
            most = digits;
    }
    return most;
}

static void check_keys(const json_t *object, const char *const *keys, int count, const char *line)
{
    const char *key;
    json_t *value;
    int i = 0;
    json_object_foreach((json_t *)object, key, value)
    {
        if (i >= count || strcmp(key, keys[i]) != 0)
            cli_fail("key %d is %s, expected %s in %s", i, key, i < count ? keys[i] : "none", line);
        i++;
    }
    if (i != count)
        cli_fail("%d keys, expected %d in %s", i, count, line);
}

static void check_line(int index, const char *line, const json_t *object)
{
    static const char *const start[] = {
        "event",     "version",     "commit", "ranks",       "device",
        "plan_hash", "config_hash", "model",  "total_steps", "trainable_parameters"};
    static const char *const step[] = {
        "step",         "epoch",        "loss",   "grad_norm",    "learning_rate", "label_tokens",
        "input_tokens", "tokens_per_s", "step_s", "device_bytes", "exposed_s"};
    static const char *const eval[] = {"step", "eval_loss", "eval_label_tokens"};
    static const char *const last[] = {"event", "status"};
    /* start, the evaluation before step 1, two steps with one each, the end */
    if (index == 0)
        check_keys(object, start, 10, line);
    else if (index == 2 || index == 4)
        check_keys(object, step, 11, line);
    else if (index == 6)
        check_keys(object, last, 2, line);
    else
        check_keys(object, eval, 3, line);
    if (index > 0 && index < 6 && json_integer_value(json_object_get(object, "step")) != index / 2)
        cli_fail("expected step %d in %s", index / 2, line);
    if (most_digits(line) > 9 || (index == 2 && most_digits(line) < 8))
        cli_fail("expected 9 significant digits in %s", line);
}

static void check_metrics(const char *path, double *last_eval)
{
    char *text = cli_read(path, NULL), *state = NULL;
    int index = 0;
    for (char *line = strtok_r(text, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
        json_error_t error;
        json_t *object = json_loads(line, 0, &error);
        if (!object) {
            cli_fail("%s: %s", error.text, line);
            continue;
        }
        check_line(index++, line, object);
        if (json_object_get(object, "eval_loss"))
            *last_eval = json_number_value(json_object_get(object, "eval_loss"));
        json_decref(object);
    }
    if (index != 7)
        cli_fail("%d lines in metrics.jsonl, expected 7", index);
    free(text);
}

/* TensorBoard's file: frames of 16 bytes around each record, the version first, then five values a
 * step and one an evaluation. */
static void check_events(const char *path)
{
    size_t bytes = 0, at = 0;
    int records = 0;
    char *text = cli_read(path, &bytes);
    for (; text && at + 16 <= bytes; records++) {
        uint64_t length;
        memcpy(&length, text + at, sizeof length);
        at += length + 16;
    }
    if (records != 1 + 2 * 5 + 3 || at != bytes)
        cli_fail("%s: %d records, expected 14, in %zu bytes of %zu", path, records, at, bytes);
    if (text && !memmem(text, bytes, "train/loss", 10))
        cli_fail("%s: no train/loss", path);
    free(text);
}

/* The whole of a run's output, and the evaluation that it proposes. */
static void contract(void)
{
    double last_eval = NAN;
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    write_eval_data();
    cli_run(&output, 2, NULL,
            "train job.yaml use_dora=true eval_dataset=eval.jsonl eval_strategy=steps eval_steps=1 "
            "report_to=tensorboard");
    if (output.code != 0)
        cli_fail("exit code %d\n%s", output.code, output.err);
    check_metrics("out/metrics.jsonl", &last_eval);
    check_events("out/runs/events.out.tfevents.tessera");
    char *line = cli_line(output.err, "evaluate "), expected[64];
    cli_output evaluation;
    cli_type(&evaluation, line);
    snprintf(expected, sizeof expected, "eval_loss %.6f  ", last_eval);
    if (evaluation.code != 0 || !strstr(line, "/launch/run -n 2 ") ||
        !strstr(evaluation.out, expected))
        cli_fail("%s: %d: expected %s in %s\n%s", line, evaluation.code, expected, evaluation.out,
                 evaluation.err);
    cli_output_free(&evaluation);
    free(line);
    json_t *config = load_json("out/adapter_config.json");
    const json_t *targets = json_object_get(config, "target_modules");
    if (json_array_size(targets) != 7 || !json_is_true(json_object_get(config, "use_dora")))
        cli_fail("adapter_config.json does not list the seven linears of a DoRA");
    for (size_t i = 0; i < json_array_size(targets); i++)
        if (!strcmp(json_string_value(json_array_get(targets, i)), "lm_head"))
            cli_fail("adapter_config.json lists lm_head");
    json_decref(config);
    cli_output_free(&output);
    cli_case_end();
}

/* ---- job.yaml ---- */

static void run_again(int ranks, int ranks_again, const char *words)
{
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    write_eval_data();
    cli_link_all(CLI_TRACES "/init/dora_r8", "adapter");
    run_ok(ranks, words);
    run_ok(ranks_again, "train out/job.yaml output_dir=again");
    same_files("out/adapter_model.safetensors", "again/adapter_model.safetensors");
    same_files("out/adapter_config.json", "again/adapter_config.json");
    cli_run(&output, 1, NULL, "eval out/job.yaml eval_dataset=eval.jsonl");
    if (output.code != 0 || strncmp(output.out, "eval_loss ", 10) != 0 ||
        !strstr(output.err, "\nevaluating the adapter out on model\n"))
        cli_fail("eval: exit code %d: %s\n%s", output.code, output.out, output.err);
    cli_output_free(&output);
    cli_case_end();
}

static void again(void)
{
    run_again(2, 2,
              "train job.yaml use_dora=true lora_dropout=0.1 lora_target_modules=[q_proj,up_proj]");
    run_again(2, 1, "train job.yaml lora_target_modules=.*\\.(q|v)_proj lora_alpha=3 offload=full");
    cli_name("again, from an adapter");
    cli_case_begin(CLI_TINY_LLAMA);
    cli_edit("job.yaml", "lora_r: 2\n", "");
    cli_link_all(CLI_TRACES "/init/dora_r8", "adapter");
    run_ok(1, "train job.yaml init_adapter=adapter");
    run_ok(1, "train out/job.yaml output_dir=again");
    same_files("out/adapter_model.safetensors", "again/adapter_model.safetensors");
    cli_case_end();
}

/* A finished run is replaced when that is asked for, and then only its own files. */
static void overwritten(void)
{
    cli_case_begin(CLI_TINY_LLAMA);
    run_ok(1, "train job.yaml");
    cli_write("out/notes.txt", "mine\n");
    run_ok(1, "train job.yaml overwrite_output_dir=true lora_r=3 output_dir=out/");
    json_t *config = load_json("out/adapter_config.json");
    if (json_integer_value(json_object_get(config, "r")) != 3)
        cli_fail("the adapter was not replaced");
    json_decref(config);
    if (!cli_exists("out/notes.txt"))
        cli_fail("a file that is not the run's was removed");
    char *card = cli_read("out/README.md", NULL);
    if (!card || !strstr(card, "Rank 3"))
        cli_fail("the README.md of the run before is still there");
    free(card);
    cli_write("out/README.md", "mine\n");
    run_ok(1, "train job.yaml overwrite_output_dir=true");
    card = cli_read("out/README.md", NULL);
    if (!card || strcmp(card, "mine\n") != 0)
        cli_fail("a README.md that is not the run's was replaced");
    free(card);
    cli_case_end();
}

/* A job.yaml that a person wrote into output_dir is not replaced by the resolved one; a run's own is. */
static void given_in_output(void)
{
    static const char *const words[] = {"train out/job.yaml",
                                        "train out/job.yaml overwrite_output_dir=true",
                                        "train out/job.yaml resume_from_checkpoint=true"};
    cli_case_begin(CLI_TINY_LLAMA);
    mkdir("out", 0777);
    char *text = cli_read("job.yaml", NULL);
    cli_write("out/job.yaml", text);
    free(text);
    for (int i = 0; i < 3; i++) {
        cli_output output;
        cli_run(&output, 1, NULL, words[i]);
        if (output.code != 78 || !strstr(output.err, "over the file that was given"))
            cli_fail("%s: %d\n%s", words[i], output.code, output.err);
        cli_output_free(&output);
        same_files("job.yaml", "out/job.yaml");
    }
    cli_remove("out");
    run_ok(1, "train job.yaml");
    run_ok(1, words[1]);
    cli_case_end();
}

/* A run that was killed while its adapter appeared, without a checkpoint: its files, whole and
 * unfinished, are no run that has ended. */
static void killed_at_the_end(void)
{
    static const char *const files[] = {"out/job.yaml", "out/metrics.jsonl", "out/README.md",
                                        "out/adapter_config.json",
                                        "out/.adapter_model.safetensors.4711.0.tmp"};
    cli_case_begin(CLI_TINY_LLAMA);
    cli_remove("out");
    mkdir("out", 0777);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        cli_write(files[i], "{}\n");
    cli_write("out/.adapter_model.safetensors.mine.tmp", "mine\n");
    run_ok(1, "train job.yaml resume_from_checkpoint=true");
    if (cli_exists(files[4]) || !cli_exists("out/.adapter_model.safetensors.mine.tmp"))
        cli_fail("not the run's unfinished file alone was removed");
    if (!cli_exists("out/adapter_model.safetensors"))
        cli_fail("no adapter");
    cli_case_end();
}

/* Before step 1 a person reads six lines; how things were decided is there for who asks. */
static void quiet(void)
{
    static const struct {
        const char *words;
        bool details;
    } ways[] = {{"train job.yaml", false},
                {"train job.yaml -v output_dir=verbose", true},
                {"train job.yaml log_level=debug output_dir=debug", true},
                {"train job.yaml log_level=error output_dir=quiet", false}};
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        cli_run(&output, 1, NULL, ways[i].words);
        bool notes = strstr(output.err, "defaults that differ from TRL");
        bool graphs = strstr(output.err, "adapters forward by ");
        bool plan = strstr(output.err, "plan: ");
        const char *step = strstr(output.err, "step ");
        int lines = 0;
        for (const char *p = output.err; step && p < step; p++)
            lines += *p == '\n';
        if (output.code != 0 || notes != ways[i].details || graphs != ways[i].details ||
            plan != ways[i].details || (!ways[i].details && lines > 7)) /* with launch/run's own */
            cli_fail("%s: exit code %d, %d lines\n%s", ways[i].words, output.code, lines,
                     output.err);
        cli_output_free(&output);
    }
    cli_case_end();
}

/* The summary says how the base is stored, which of a 4-bit checkpoint no key decides. */
static void base_in_summary(void)
{
    static const struct {
        const char *model, *key, *says;
    } bases[] = {{CLI_PREQUANTIZED, "use_bnb_nested_quant=false", "NF4 with double quantization\n"},
                 {CLI_TINY_LLAMA, "use_bnb_nested_quant=false", "base NF4\n"},
                 {CLI_TINY_LLAMA, "load_in_4bit=false", "base as in the checkpoint\n"}};
    for (int i = 0; i < 3; i++) {
        char words[96];
        cli_output output;
        cli_case_begin(bases[i].model);
        snprintf(words, sizeof words, "train job.yaml max_steps=1 %s", bases[i].key);
        cli_run(&output, 1, NULL, words);
        if (output.code != 0 || !strstr(output.err, bases[i].says))
            cli_fail("%s: %d: expected %s in\n%s", words, output.code, bases[i].says, output.err);
        cli_output_free(&output);
        cli_case_end();
    }
}

/* ---- plan ---- */

static int plan_shape(cli_output *output, const char *shape, int rows)
{
    char words[512];
    snprintf(words, sizeof words,
             "plan " TSR_SOURCE_DIR "/examples/shapes/plan.yaml model_name_or_path=" TSR_SOURCE_DIR
             "/examples/shapes/%s backend=cpu memory_budget=60GiB per_device_train_batch_size=%d "
             "--ranks 2 --all",
             shape, rows);
    cli_run(output, 1, NULL, words);
    return output->code;
}

/* The shapes that come with the tree; as many rows fit as the plan says, and no more. */
static void plan_shapes(void)
{
    static const char *const shapes[] = {"llama3-8b", "llama2-13b", "llama3-70b"};
    cli_case_begin(CLI_TINY_LLAMA);
    for (int i = 0; i < 3; i++) {
        cli_output output, fits, more;
        int rows = 0;
        if (plan_shape(&output, shapes[i], 1) != 0)
            cli_fail("%s: %d\n%s", shapes[i], output.code, output.err);
        const char *most = strstr(output.out, "tokens fit (this job's: 2048), ");
        if (!most || sscanf(strchr(most, ')'), "), %d rows of 2048", &rows) != 1 || rows < 2)
            cli_fail("%s: no rows in\n%s", shapes[i], output.out);
        if (plan_shape(&fits, shapes[i], rows) != 0 || plan_shape(&more, shapes[i], rows + 1) != 78)
            cli_fail("%s: %d rows: %d, one more: %d\n%s", shapes[i], rows, fits.code, more.code,
                     more.err);
        cli_output_free(&output);
        cli_output_free(&fits);
        cli_output_free(&more);
    }
    cli_case_end();
}

/* The same plan before the weights are there. */
static void check_planned_ahead(const char *options, const char *expected)
{
    char words[256];
    cli_output ahead;
    for (int i = 1; i <= 4; i++) {
        snprintf(words, sizeof words, "model/model-%05d-of-00004.safetensors", i);
        cli_remove(words);
    }
    cli_remove("model/model.safetensors.index.json");
    snprintf(words, sizeof words, "plan job.yaml --ranks 3 --json %s", options);
    cli_run(&ahead, 1, NULL, words);
    if (ahead.code != 0 || !strstr(ahead.err, "has no weights: planned for what its config.json"))
        cli_fail("{%s}: %d without weights\n%s", options, ahead.code, ahead.err);
    if (strcmp(ahead.out, expected) != 0)
        cli_fail("{%s}: another plan without weights:\n%s", options, ahead.out);
    cli_output_free(&ahead);
}

static void plan(void)
{
    static const char *const options[] = {"", "offload=sharded slots=3",
                                          "gradient_checkpointing=true"};
    for (int i = 0; i < 3; i++) {
        char words[256], peak[128];
        cli_output text, json;
        cli_case_begin(CLI_TINY_LLAMA);
        snprintf(words, sizeof words, "train job.yaml %s", options[i]);
        run_ok(3, words);
        snprintf(words, sizeof words, "plan job.yaml --ranks 3 --json %s", options[i]);
        cli_run(&json, 1, NULL, words);
        snprintf(words, sizeof words, "plan job.yaml --all --ranks 3 %s", options[i]);
        cli_run(&text, 1, NULL, words);
        json_error_t error;
        json_t *planned = json_loads(json.out, 0, &error), *ran = load_json("out/plan.json");
        static const char *const same[] = {
            "ranks", "device_peak_bytes", "host_peak_bytes", "node_bytes",  "plan_hash", "slots",
            "units", "buffers",           "expected",        "alternatives"};
        for (int k = 0; k < 10; k++)
            if (!json_equal(json_object_get(planned, same[k]), json_object_get(ran, same[k])))
                cli_fail("{%s}: %s of plan is not that of the run", options[i], same[k]);
        snprintf(peak, sizeof peak, "device peak %lld bytes, host peak %lld bytes",
                 (long long)json_integer_value(json_object_get(ran, "device_peak_bytes")),
                 (long long)json_integer_value(json_object_get(ran, "host_peak_bytes")));
        if (!strstr(text.out, peak))
            cli_fail("expected '%s' in %s", peak, text.out);
        /* What was measured. */
        char *metrics = cli_read("out/metrics.jsonl", NULL);
        snprintf(peak, sizeof peak, "\"device_bytes\":%lld,",
                 (long long)json_integer_value(json_object_get(ran, "device_peak_bytes")));
        if (!metrics || cli_count(metrics, peak) != 2)
            cli_fail("{%s}: expected %s in each step of %s", options[i], peak, metrics);
        free(metrics);
        check_planned_ahead(options[i], json.out);
        json_decref(planned);
        json_decref(ran);
        cli_output_free(&text);
        cli_output_free(&json);
        cli_case_end();
    }
    plan_shapes();
}

/* What a checkpoint says of itself, and that a byte of it has changed. */
static void checkpoint_inspected(void)
{
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    run_ok(2, "train job.yaml save_strategy=steps save_steps=1 max_steps=1");
    cli_run(&output, 1, NULL, "inspect out/checkpoint-1 --json");
    json_t *root = json_loads(output.out, 0, NULL);
    if (json_integer_value(json_object_get(root, "step")) != 1 ||
        json_integer_value(json_object_get(root, "ranks")) != 2 ||
        json_array_size(json_object_get(root, "files")) != 5 ||
        !json_is_object(json_object_get(root, "adapter")))
        cli_fail("%d: %s%s", output.code, output.out, output.err);
    json_decref(root);
    cli_output_free(&output);
    cli_poke("out/checkpoint-1/state-00002-of-00002.safetensors", 100000, "x", 1);
    cli_run(&output, 1, NULL, "inspect out/checkpoint-1");
    if (output.code != 65 || !strstr(output.err, "state-00002-of-00002.safetensors: the hash of"))
        cli_fail("damaged: %d\n%s", output.code, output.err);
    cli_output_free(&output);
    cli_case_end();
}

/* The same on any number of ranks, through MPI, and however they are cut into shard groups: 2 replicas
 * of 2 ranks, 3 of 2 and 2 of 3. */
static void ranks(void)
{
    static const int runs[][2] = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {4, 2}, {6, 2}, {6, 3}};
    cli_case_begin(CLI_TINY_LLAMA);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        int n = runs[i][0], group = runs[i][1];
        char words[256];
        snprintf(words, sizeof words,
                 "train job.yaml use_dora=true lora_dropout=0.1 shard_group_size=%d "
                 "output_dir=on%d_%d",
                 group, n, group);
        run_ok(n, words);
        snprintf(words, sizeof words, "on%d_%d/adapter_model.safetensors", n, group);
        same_files("on1_1/adapter_model.safetensors", words);
    }
    cli_case_end();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"contract", contract},
        {"again", again},
        {"overwritten", overwritten},
        {"given_in_output", given_in_output},
        {"killed_at_the_end", killed_at_the_end},
        {"quiet", quiet},
        {"base_in_summary", base_in_summary},
        {"plan", plan},
        {"ranks", ranks},
        {"checkpoint_inspected", checkpoint_inspected},
    };
    cli_open(argc, argv);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (cli_only() && strcmp(cli_only(), tests[i].name) != 0)
            continue;
        cli_name(tests[i].name);
        double start = cli_now();
        tests[i].run();
        printf("%s: %.1f s\n", tests[i].name, cli_now() - start);
    }
    cli_close();
    return cli_failures() > 0;
}
