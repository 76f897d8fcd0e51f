/*
 * quantize, merge, inspect and env through the whole program: what they write is what a training takes
 * and an evaluation confirms, standard output is one JSON object, and a writer that is killed or runs
 * out of space leaves a whole model or none.
 */
#include "multi/cli.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADAPTER CLI_TRACES "/c1_dora/final"
/* Of a loss, by rounding all weights to bf16; measured 6e-3 on these few random tokens. */
#define ROUNDING 2e-2
#define WITH     "lora_r=8 init_adapter=" ADAPTER

/* Its standard output; the caller's. */
static char *run_ok(const char *words)
{
    cli_output output;
    cli_run(&output, 1, NULL, words);
    if (output.code != 0)
        cli_fail("%s: exit code %d\n%s", words, output.code, output.err);
    char *text = strdup(output.out);
    cli_output_free(&output);
    return text;
}

/* One JSON object and a newline, nothing else. */
static json_t *run_json(const char *words)
{
    char *text = run_ok(words);
    json_error_t error;
    json_t *root = json_loads(text, 0, &error);
    if (!root || !json_is_object(root))
        cli_fail("%s: no JSON: %s\n%s", words, error.text, text);
    free(text);
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

static double number(const json_t *root, const char *key)
{
    return json_number_value(json_object_get(root, key));
}

/* A training on the quantized model is the training that quantizes on load, bit for bit. */
static void check_quantize(void)
{
    cli_name("quantize");
    cli_case_begin(CLI_TINY_LLAMA);
    json_t *report = run_json("quantize job.yaml output_dir=nf4 --json");
    if (number(report, "quantized_weights") != 42)
        cli_fail("%g weights were quantized", number(report, "quantized_weights"));
    json_decref(report);
    free(run_ok("quantize job.yaml output_dir=plain use_bnb_nested_quant=false"));
    free(run_ok("train job.yaml"));
    free(run_ok("train job.yaml model_name_or_path=nf4 output_dir=from_nf4"));
    same_files("out/adapter_model.safetensors", "from_nf4/adapter_model.safetensors");
    free(run_ok("train job.yaml use_bnb_nested_quant=false output_dir=a"));
    free(run_ok("train job.yaml use_bnb_nested_quant=false model_name_or_path=plain output_dir=b"));
    same_files("a/adapter_model.safetensors", "b/adapter_model.safetensors");
    cli_case_end();
}

static double eval_loss(const char *words)
{
    char line[600];
    snprintf(line, sizeof line, "eval job.yaml eval_dataset=data.jsonl --json %s", words);
    json_t *report = run_json(line);
    double loss = number(report, "eval_loss");
    json_decref(report);
    return loss;
}

/* The merged model alone is the model with the adapter, but for the rounding to bf16. */
static void check_merge(void)
{
    cli_name("merge");
    cli_case_begin(CLI_TINY_LLAMA);
    json_t *report = run_json("merge job.yaml " WITH " output_dir=merged --json");
    if (number(report, "merged_modules") != 42 || number(report, "weights_bytes") != 13048320)
        cli_fail("%g modules, %g bytes", number(report, "merged_modules"),
                 number(report, "weights_bytes"));
    json_decref(report);
    double apart = eval_loss("load_in_4bit=false " WITH);
    double merged = eval_loss("load_in_4bit=false model_name_or_path=merged");
    double plain = eval_loss("load_in_4bit=false");
    if (!(fabs(apart - merged) < ROUNDING) || !(fabs(apart - plain) > 0.1))
        cli_fail("losses: with the adapter %g, merged %g, without it %g", apart, merged, plain);
    cli_output output;
    free(run_ok("quantize job.yaml output_dir=nf4"));
    cli_run(&output, 1, NULL, "merge job.yaml model_name_or_path=nf4 " WITH " output_dir=merged4");
    if (output.code != 0 || cli_count(output.err, "warning: ") != 1 ||
        !strstr(output.err, "name the model that was quantized"))
        cli_fail("a 4-bit base: exit code %d\n%s", output.code, output.err);
    cli_output_free(&output);
    apart = eval_loss(WITH);
    merged = eval_loss("load_in_4bit=false model_name_or_path=merged4");
    if (!(fabs(apart - merged) < ROUNDING))
        cli_fail("losses on the 4-bit base: with the adapter %g, merged %g", apart, merged);
    cli_case_end();
}

static void check_inspect(void)
{
    static const struct {
        const char *path, *kind;
    } paths[] = {{"model", "model"},
                 {"out", "run"},
                 {ADAPTER, "adapter"},
                 {"model/model-00002-of-00004.safetensors", "safetensors"}};
    char words[600];
    cli_name("inspect");
    cli_case_begin(CLI_TINY_LLAMA);
    free(run_ok("train job.yaml eval_dataset=data.jsonl"));
    for (int i = 0; i < 4; i++) {
        snprintf(words, sizeof words, "inspect %s --json", paths[i].path);
        json_t *report = run_json(words);
        const char *kind = json_string_value(json_object_get(report, "kind"));
        if (!kind || strcmp(kind, paths[i].kind) != 0)
            cli_fail("%s is said to be %s", paths[i].path, kind ? kind : "nothing");
        json_decref(report);
    }
    json_t *report = run_json("inspect out --plot loss.svg --json");
    const json_t *adapter = json_object_get(report, "adapter");
    if (number(report, "steps_done") != 2 || number(adapter, "trainable_parameters") <= 0 ||
        strcmp(json_string_value(json_object_get(report, "status")), "done") != 0)
        cli_fail("inspect says something else of the run");
    json_decref(report);
    free(run_ok("train job.yaml lora_r=4 max_steps=1 output_dir=other"));
    report = run_json("inspect . --json");
    const json_t *runs = json_object_get(report, "runs"), *row = json_array_get(runs, 1);
    if (json_array_size(runs) != 2 || number(row, "steps") != 2 ||
        strcmp(json_string_value(json_object_get(row, "name")), "out") != 0 ||
        strcmp(json_string_value(json_object_get(row, "state")), "done") != 0)
        cli_fail("inspect lists other runs");
    json_decref(report);
    report = run_json("inspect out other --json");
    const json_t *keys = json_object_get(report, "keys_that_differ"),
                 *curves = json_object_get(report, "curves");
    if (json_array_size(curves) != 3 || /* with the evaluation before step 1 */
        !json_is_null(json_object_get(json_array_get(curves, 2), "loss_b")) ||
        strcmp(json_string_value(json_object_get(json_array_get(keys, 1), "key")), "lora_r") != 0)
        cli_fail("inspect compares other runs: %s", json_dumps(report, 0));
    json_decref(report);
    char *svg = cli_read("loss.svg", NULL);
    if (!svg || strncmp(svg, "<svg ", 5) != 0 || cli_count(svg, "<path") != 3)
        cli_fail("there is no plot");
    free(svg);
    cli_case_end();
}

/* What was measured is known to plans on this machine, and only where it is kept. */
static void check_kept(void)
{
    static const char *const wrappers[] = {"XDG_CACHE_HOME=$PWD/cache exec \"$@\"",
                                           "XDG_CACHE_HOME=$PWD/other exec \"$@\""};
    for (int i = 0; i < 2; i++) {
        cli_output output;
        cli_run(&output, 1, wrappers[i], "plan job.yaml --json");
        json_t *plan = json_loads(output.out, 0, NULL);
        const json_t *expected = json_object_get(plan, "expected");
        if (json_is_true(json_object_get(expected, "measured")) != (i == 0) ||
            (number(expected, "step_s") > 0) != (i == 0))
            cli_fail("plan %s: %s", i ? "without figures" : "with figures", output.out);
        json_decref(plan);
        cli_output_free(&output);
        cli_run(&output, 1, wrappers[i], "plan job.yaml --ranks 2,4 --json");
        if (output.code != (i ? 78 : 0) || (i && !strstr(output.err, "/tessera env --measure`")))
            cli_fail("plan --ranks 2,4: exit code %d\n%s", output.code, output.err);
        cli_output_free(&output);
    }
}

/* One rank has no plan where two share micro-batches: these are the first row. */
static void check_sharers(void)
{
    cli_output output;
    cli_run(&output, 1, "XDG_CACHE_HOME=$PWD/cache exec \"$@\"",
            "plan job.yaml --ranks 2,4 context_parallel_size=2 --json");
    json_t *plan = json_loads(output.out, 0, NULL);
    const json_t *rows = json_object_get(plan, "scale");
    if (output.code != 0 || json_array_size(rows) != 2 ||
        number(json_array_get(rows, 0), "ranks") != 2 ||
        number(json_array_get(rows, 0), "lost") != 0 ||
        number(json_array_get(rows, 1), "ranks") != 4)
        cli_fail("plan --ranks 2,4 of two that share: %d\n%s%s", output.code, output.out,
                 output.err);
    json_decref(plan);
    cli_output_free(&output);
}

/* The figures, by the example of the help, which a plan without figures proposes too; typed here. */
static void check_env(void)
{
    char line[4096], words[4096], *help, *proposed;
    cli_output output;
    cli_name("env");
    cli_case_begin(CLI_TINY_LLAMA);
    help = run_ok("env --help");
    char *example = cli_line(help, "Example:\n    ");
    cli_write("nothing.json", "{}");
    cli_run(&output, 1, NULL, "plan job.yaml --roofs nothing.json");
    proposed = strstr(output.err, " as `");
    snprintf(words, sizeof words, "%.*s", (int)strcspn(example, ">") - 1, example);
    if (!proposed || strncmp(proposed + 5, words, strlen(words)) != 0)
        cli_fail("expected the words of %s in\n%s", example, output.err);
    cli_output_free(&output);
    snprintf(line, sizeof line, "cd '%s' && export XDG_CACHE_HOME=$PWD/cache && %s", cli_here(),
             example);
    cli_type(&output, line);
    char *machine = cli_read("machine.json", NULL);
    json_t *report = machine ? json_loads(machine, 0, NULL) : NULL;
    if (output.code != 0 || !report)
        cli_fail("%s: exit code %d\n%s", line, output.code, output.err);
    cli_output_free(&output);
    const json_t *roofs = json_array_get(json_object_get(report, "roofs"), 0);
    if (!(number(roofs, "copy_bytes_per_s") > 1e8) ||
        !(number(roofs, "matmul_float32_flops_per_s") > 1e8))
        cli_fail("roofs: %g bytes/s, %g FLOP/s", number(roofs, "copy_bytes_per_s"),
                 number(roofs, "matmul_float32_flops_per_s"));
    json_decref(report);
    free(machine);
    free(example);
    free(help);
    check_kept();
    check_sharers();
    cli_case_end();
}

/* Files of at most so many 512-byte blocks: as a full disk, but for this process only. */
static void check_full(void)
{
    static const char *const words[] = {"quantize job.yaml", "merge job.yaml " WITH};
    static const int blocks[] = {100, 600, 4000};
    for (int i = 0; i < 6; i++) {
        char wrapper[100];
        cli_output output;
        cli_name("full disk");
        cli_case_begin(CLI_TINY_LLAMA);
        char *before = cli_listing();
        snprintf(wrapper, sizeof wrapper, "ulimit -f %d; exec \"$@\"", blocks[i / 2]);
        cli_run(&output, 1, wrapper, words[i % 2]);
        char *after = cli_listing();
        if (output.code != 71 || !strstr(output.err, "writing failed: File too large"))
            cli_fail("%s: exit code %d\n%s", words[i % 2], output.code, output.err);
        if (strcmp(before, after) != 0)
            cli_fail("%s: the files were\n%sand are\n%s", words[i % 2], before, after);
        free(before);
        free(after);
        cli_output_free(&output);
        cli_case_end();
    }
}

/* Killed at any moment: config.json is there only with everything else. */
static void check_kill(void)
{
    int whole = 0, none = 0;
    cli_name("kill");
    cli_case_begin(CLI_TINY_LLAMA);
    for (int i = 0; i < 12; i++) {
        cli_process process;
        cli_output output;
        cli_remove("pid");
        cli_start(&process, 1, "echo $$ >pid.new; mv pid.new pid; exec \"$@\"",
                  "merge job.yaml " WITH " overwrite_output_dir=true");
        for (double end = cli_now() + 10; !cli_exists("pid") && cli_now() < end;)
            cli_sleep(0.001);
        cli_sleep(0.05 * i);
        char *text = cli_read("pid", NULL);
        if (text)
            kill((pid_t)atoi(text), SIGKILL);
        free(text);
        cli_wait(&output, &process, 20);
        cli_output_free(&output);
        if (cli_exists("out/config.json")) {
            free(run_ok("inspect out --json"));
            double loss = eval_loss("load_in_4bit=false model_name_or_path=out");
            if (!isfinite(loss))
                cli_fail("the merged model's loss is %g", loss);
            whole++;
        } else {
            none++;
        }
    }
    printf("killed 12 times: %d whole, %d without a model\n", whole, none);
    cli_write("out/.model-00001-of-00002.safetensors.1.0.tmp", "left by a process of another time");
    free(run_ok("merge job.yaml " WITH " overwrite_output_dir=true"));
    char *files = cli_listing();
    if (strstr(files, ".tmp"))
        cli_fail("what those that were killed had begun to write is still there:\n%s", files);
    free(files);
    cli_case_end();
}

/* ---- what is printed ---- */

#define NAME  "o\033[2J\302\233\342\200\256" /* ESC [ 2 J, C1's CSI, from right to left */
#define SHOWN "o\\x1b[2J\\u{009b}\\u{202e}"

static void expect(const char *text, const char *part)
{
    cli_check_harmless(text);
    if (!strstr(text, part))
        cli_fail("expected '%s' in\n%s", part, text);
}

/* A row, a tensor and paths with what a terminal obeys: harmless as printed, and JSON has them back. */
static void check_escapes(void)
{
    cli_output output;
    cli_name("escapes");
    cli_case_begin(CLI_TINY_LLAMA);
    cli_write(NAME ".jsonl", "{\"prompt\": \"a\", \"completion\": \"\\u001b[2J\\u009b\\u202e\"}\n");
    char *text = run_ok("data job.yaml --show 1 dataset=" NAME ".jsonl");
    expect(text, "-- " SHOWN ".jsonl:1: ");
    expect(text, "\xe2\x9f\xa6\\x1b[2J\\u{009b}\\u{202e}<|eot_id|>\xe2\x9f\xa7");
    free(text);
    text = run_ok("data job.yaml --show 1 --json dataset=" NAME ".jsonl");
    expect(text, "\\u001B[2J\\u009b\\u202e<|eot_id|>");
    json_t *root = json_loads(text, 0, NULL);
    json_t *files = json_object_get(json_array_get(json_object_get(root, "datasets"), 0), "files");
    const char *file = json_string_value(json_array_get(files, 0));
    if (!file || strcmp(file, NAME ".jsonl") != 0)
        cli_fail("the file's name is not in %s", text);
    json_decref(root);
    free(text);

    cli_run(&output, 1, NULL, "train job.yaml output_dir=" NAME);
    expect(output.err, "output   " SHOWN ";");
    expect(output.err, "adapter  " SHOWN "/adapter_model");
    cli_output_free(&output);
    text = cli_read(NAME "/job.yaml", NULL);
    expect(text ? text : "", "output_dir: \"o\\x1b[2J\\x9b\\U0000202e\"");
    free(text);
    cli_edit_header("model/model-00001-of-00004.safetensors", "model.embed_tokens.weight",
                    "\\u001b[2J\\u009b\\n");
    text = run_ok("inspect model/model-00001-of-00004.safetensors");
    expect(text, "\\x1b[2J\\u{009b}\\x0a");
    free(text);
    free(run_ok("inspect " NAME)); /* a run: its job.yaml reads back */
    cli_case_end();
}

int main(int argc, char **argv)
{
    cli_open(argc, argv);
    check_quantize();
    check_merge();
    check_inspect();
    check_env();
    check_escapes();
    check_full();
    check_kill();
    cli_close();
    printf("%d failures\n", cli_failures());
    return cli_failures() != 0;
}
