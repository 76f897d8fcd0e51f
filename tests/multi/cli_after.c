/*
 * What comes after a run, through the whole program: its own job.yaml evaluated and merged, another run
 * from its adapter, and the lines that it printed to go on with.
 */
#include "multi/cli.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void same_files(const char *a, const char *b)
{
    size_t a_bytes = 0, b_bytes = 0;
    char *x = cli_read(a, &a_bytes), *y = cli_read(b, &b_bytes);
    if (!x || !y || a_bytes != b_bytes || memcmp(x, y, a_bytes) != 0)
        cli_fail("%s and %s differ", a, b);
    free(x);
    free(y);
}

/* The result of an evaluation as JSON, which says of what it is. */
static double evaluated(const char *words, const char *adapter)
{
    char line[256];
    cli_output output;
    snprintf(line, sizeof line, "eval %s eval_dataset=eval.jsonl --json", words);
    cli_run(&output, 1, NULL, line);
    json_t *root = json_loads(output.out, 0, NULL);
    const char *said = json_string_value(json_object_get(root, "adapter"));
    if (output.code != 0 || strcmp(said ? said : "", adapter) != 0)
        cli_fail("%s: exit code %d, adapter %s\n%s", line, output.code, said, output.err);
    double loss = json_number_value(json_object_get(root, "eval_loss"));
    json_decref(root);
    cli_output_free(&output);
    return loss;
}

/* A run's own job.yaml is evaluated, and merged, with what the run trained, wherever it was moved to. */
static void own_job(void)
{
    cli_case_begin(CLI_TINY_LLAMA);
    write_eval_data();
    run_ok(1, "train job.yaml learning_rate=1e-2 save_strategy=steps save_steps=1");
    double base = evaluated("job.yaml", ""),
           trained = evaluated("job.yaml init_adapter=out", "out");
    if (base == trained || evaluated("out/job.yaml", "out") != trained ||
        evaluated("out/job.yaml init_adapter=none", "") != base)
        cli_fail("out/job.yaml is not the run in out: %g, base %g", trained, base);
    if (rename("out", "moved") != 0 || evaluated("moved/job.yaml", "moved") != trained)
        cli_fail("moved/job.yaml is not the run in moved");
    cli_remove("moved/adapter_model.safetensors");
    if (evaluated("moved/job.yaml", "moved/checkpoint-2") != trained)
        cli_fail("the newest checkpoint is not what is evaluated");
    cli_output output;
    cli_run(&output, 1, NULL, "merge moved/job.yaml output_dir=merged --json");
    if (output.code != 0 || !strstr(output.out, "\"moved/checkpoint-2\""))
        cli_fail("merge: %d: %s\n%s", output.code, output.out, output.err);
    cli_output_free(&output);
    cli_case_end();
}

/* The line that a run proposed, word for word, elsewhere. */
static void run_proposed(const char *err, const char *what)
{
    cli_output output;
    char *line = cli_line(err, "evaluate ");
    cli_type(&output, line);
    if (output.code != 0 || strncmp(output.out, "eval_loss ", 10) != 0)
        cli_fail("%s: %s: exit code %d: %s\n%s", what, line, output.code, output.out, output.err);
    cli_output_free(&output);
    free(line);
}

/* However the program was started, it proposes the same way: by launch/run, by mpirun itself, by a name in
 * PATH; from a directory and into one whose names a shell takes apart. */
static void proposed(void)
{
    char launched[4096], plain[4096], path[4096], *before = strdup(getenv("PATH"));
    const char *const starts[] = {launched, plain, "tessera"};
    cli_case_begin(CLI_TINY_LLAMA);
    write_eval_data();
    cli_write("job.yaml", "model_name_or_path: ../model\ndataset: ../data.jsonl\nmax_steps: 1\n"
                          "eval_dataset: ../eval.jsonl\noutput_dir: \"that run's\"\nlora_r: 2\n");
    if (system("mkdir 'a b' && mv job.yaml 'a b'") != 0)
        cli_fail("no directory");
    snprintf(launched, sizeof launched, "%s -n 2 %s", cli_launcher(), cli_program());
    snprintf(plain, sizeof plain, "mpirun --allow-run-as-root --oversubscribe -n 2 %s",
             cli_program());
    const char *end = strrchr(cli_program(), '/');
    snprintf(path, sizeof path, "%.*s:%s", (int)(end - cli_program()), cli_program(), before);
    setenv("PATH", path, 1);
    setenv("OMPI_MCA_plm_rsh_agent", "true", 1); /* mpirun looks for ssh */
    for (int i = 0; i < 3; i++) {
        char line[8192];
        cli_output output;
        snprintf(line, sizeof line, "cd '%s/a b' && rm -rf that* && %s train job.yaml", cli_here(),
                 starts[i]);
        cli_type(&output, line);
        if (output.code != 0)
            cli_fail("%s: exit code %d\n%s", line, output.code, output.err);
        run_proposed(output.err, starts[i]);
        cli_output_free(&output);
    }
    unsetenv("OMPI_MCA_plm_rsh_agent");
    setenv("PATH", before, 1);
    free(before);
    cli_case_end();
}

/* Types the line in the case's directory; what it printed is the caller's to free. */
static void type_here(cli_output *output, const char *line)
{
    char typed[8192];
    snprintf(typed, sizeof typed, "cd '%s' && %s", cli_here(), line);
    cli_type(output, typed);
    if (output->code != 0)
        cli_fail("%s: exit code %d\n%s", line, output->code, output->err);
}

/* Every line under "Example:" of a command's help. */
static void run_examples(const char *command)
{
    static const char title[] = "\nExample:\n";
    char words[32], *state = NULL;
    cli_output help, output;
    snprintf(words, sizeof words, "%s --help", command);
    cli_run(&help, 1, NULL, words);
    char *lines = strstr(help.out, title);
    if (!lines)
        cli_fail("%s shows no example", words);
    lines = lines ? lines + sizeof title - 1 : help.out;
    for (char *line = strtok_r(lines, "\n", &state); line && !strncmp(line, "    ", 4);
         line = strtok_r(NULL, "\n", &state)) {
        type_here(&output, line);
        cli_output_free(&output);
    }
    cli_output_free(&help);
}

/* In a directory with the files that they name. That of env is typed in test_multi_cli_tools. */
static void examples(void)
{
    static const char *const commands[] = {"train", "plan",     "eval",   "data",
                                           "merge", "quantize", "inspect"};
    cli_case_begin(CLI_TINY_LLAMA);
    write_eval_data();
    cli_edit("job.yaml", "lora_r: 2\n", "eval_dataset: eval.jsonl\nbackend: cpu\nmax_length: 64\n");
    run_ok(1, "train job.yaml output_dir=runs/first max_steps=1");
    run_ok(1, "train job.yaml output_dir=runs/traced max_steps=1 trace=before.json");
    cli_link_all("model", "Llama-3.2-1B");
    if (symlink("data.jsonl", "train.jsonl") != 0 || symlink("before.json", "after.json") != 0)
        cli_fail("no train.jsonl or after.json");
    cli_write("h200.json", "{\"copy_bytes_per_s\": 1e10, \"matmul_float32_flops_per_s\": 1e11}");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        run_examples(commands[i]);
    cli_case_end();
}

/* Lines in messages: where all keys are listed; and what launch/run did, which does it again. */
static void messages(void)
{
    cli_output output, again;
    char line[4096];
    cli_case_begin(CLI_TINY_LLAMA);
    cli_run(&output, 1, NULL, "plan job.yaml xyzzy=1");
    const char *quoted = strchr(output.err, '`');
    snprintf(line, sizeof line, "%.*s", quoted ? (int)strcspn(quoted + 1, "`") : 0, quoted + 1);
    type_here(&again, line);
    if (!strstr(again.out, "\n  lora_r "))
        cli_fail("%s lists no keys", line);
    cli_output_free(&again);
    cli_output_free(&output);
    snprintf(line, sizeof line, "%s -n 2 %s train job.yaml \"output_dir=it's a run\"",
             cli_launcher(), cli_program());
    type_here(&output, line);
    cli_remove("it's a run");
    if (strncmp(output.err, "+ ", 2) != 0)
        cli_fail("launch/run does not say what it does:\n%s", output.err);
    output.err[strcspn(output.err, "\n")] = 0;
    type_here(&again, output.err + 1);
    if (!cli_exists("it's a run/job.yaml"))
        cli_fail("%s did something else", output.err);
    cli_output_free(&again);
    cli_output_free(&output);
    cli_case_end();
}

static void train_again(const char *words, const char *warning)
{
    char line[256];
    cli_output output;
    snprintf(line, sizeof line, "train job.yaml max_steps=1 overwrite_output_dir=true %s", words);
    cli_run(&output, 1, NULL, line);
    if (output.code != 0 ||
        (warning ? !strstr(output.err, warning) : strstr(output.err, "which no run wrote") != NULL))
        cli_fail("%s: exit code %d\n%s", line, output.code, output.err);
    cli_output_free(&output);
}

static void merge(const char *words)
{
    cli_output output;
    cli_run(&output, 1, NULL, words);
    if (output.code != 0)
        cli_fail("%s: exit code %d\n%s", words, output.code, output.err);
    cli_output_free(&output);
}

/* The tokenizer and the template that was used stand beside the adapter, and in what is merged; they are the
 * next run's when that takes the directory, and somebody's own stay. */
static void tokenizer(void)
{
    cli_case_begin(CLI_TINY_LLAMA);
    cli_write("data.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"2 + 3?\"}, "
                            "{\"role\": \"assistant\", \"content\": \"5\"}]}\n");
    cli_write("own.jinja", "{% for m in messages %}<|eot_id|>{{ m.content }}<|eot_id|>{% endfor %}"
                           "{% if add_generation_prompt %}<|eot_id|>{% endif %}\n");
    cli_edit("model/tokenizer_config.json", "{\n", "{\n  \"chat_template\": \"the model's\",\n");
    train_again("chat_template_path=own.jinja", NULL);
    same_files("out/chat_template.jinja", "own.jinja");
    same_files("out/tokenizer.json", "model/tokenizer.json");
    char *config = cli_read("out/tokenizer_config.json", NULL);
    if (!config || strstr(config, "chat_template") || !strstr(config, "19884624838656"))
        cli_fail("tokenizer_config.json is %s", config);
    free(config);
    merge("merge out/job.yaml output_dir=merged");
    merge("merge job.yaml init_adapter=out output_dir=merged2"); /* from beside the adapter */
    same_files("merged/chat_template.jinja", "own.jinja");
    same_files("merged2/chat_template.jinja", "own.jinja");
    same_files("merged/tokenizer_config.json", "out/tokenizer_config.json");
    train_again("", NULL); /* by the model's own */
    same_files("out/chat_template.jinja", "model/chat_template.jinja");
    same_files("out/tokenizer_config.json", "model/tokenizer_config.json");
    cli_write("out/tokenizer.json", "mine\n");
    cli_write("mine", "mine\n");
    train_again("chat_template_path=own.jinja", "out has tokenizer.json, which no run wrote");
    same_files("out/tokenizer.json", "mine");
    same_files("out/chat_template.jinja", "own.jinja");
    cli_case_end();
}

/* What an adapter is made on is the next run's too, in all that it says: the proposed evaluation, the
 * same run again from its job.yaml, a checkpoint of it. */
static void from_adapter(const char *keys, const char *said)
{
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    write_eval_data();
    cli_edit("job.yaml", "lora_r: 2\n", keys);
    run_ok(1, "train job.yaml max_steps=1 output_dir=first");
    cli_edit("job.yaml", keys, "init_adapter: first\neval_dataset: eval.jsonl\n");
    cli_run(&output, 1, NULL, "train job.yaml save_strategy=steps save_steps=1");
    if (output.code != 0)
        cli_fail("%s: exit code %d\n%s", keys, output.code, output.err);
    run_proposed(output.err, keys);
    cli_output_free(&output);
    char *yaml = cli_read("out/job.yaml", NULL);
    if (!yaml || !strstr(yaml, said))
        cli_fail("%s: expected %s in\n%s", keys, said, yaml);
    free(yaml);
    run_ok(1, "train out/job.yaml output_dir=again");
    same_files("out/adapter_model.safetensors", "again/adapter_model.safetensors");
    cli_remove("out/checkpoint-2");
    run_ok(1, "train job.yaml resume_from_checkpoint=true save_strategy=steps save_steps=1");
    same_files("out/adapter_model.safetensors", "again/adapter_model.safetensors");
    cli_case_end();
}

static void adapters(void)
{
    from_adapter("lora_target_modules: [v_proj, q_proj]\n",
                 "\nlora_target_modules: [q_proj, v_proj]  # resolved\n");
    from_adapter("lora_target_modules: .*\\.(q|v)_proj\nrank_pattern: {q_proj: 4}\n",
                 "\nrank_pattern: {q_proj: 4}  # resolved\n");
    from_adapter(
        "alpha_pattern: {v_proj: 3}\nexclude_modules: [k_proj]\nlayers_to_transform: [1]\n",
        "\nlayers_to_transform: [1]  # resolved\n");
}

/* What a stopped run says to go on with, word for word, though its job.yaml is for a fresh start. */
static void stopped(void)
{
    char says[4200];
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    cli_edit("job.yaml", "lora_r: 2\n", "lora_r: 2\noverwrite_output_dir: true\n");
    cli_run(&output, 1, NULL, "train job.yaml time_limit=0.001");
    snprintf(says, sizeof says, "; to continue: %s resume out\n", cli_program());
    if (output.code != 75 || !strstr(output.err, says))
        cli_fail("exit code %d\n%s", output.code, output.err);
    run_ok(1, "resume out time_limit=null max_steps=2");
    cli_output_free(&output);
    cli_run(&output, 1, NULL, "train out");
    if (output.code != 78 || !strstr(output.err, " resume out, or resume_from_checkpoint: true"))
        cli_fail("a run is begun again: exit code %d\n%s", output.code, output.err);
    cli_output_free(&output);
    cli_case_end();
}

/* Directories where a job.yaml is expected; a moved run goes on where it is. */
static void directories(void)
{
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    write_eval_data();
    run_ok(1, "train job.yaml learning_rate=1e-2 save_strategy=steps save_steps=1");
    if (rename("out", "moved") != 0)
        cli_fail("no run");
    double base = evaluated("job.yaml", ""), trained = evaluated("moved", "moved");
    if (trained == base || evaluated("moved/checkpoint-2", "moved/checkpoint-2") != trained ||
        evaluated("moved/checkpoint-1", "moved/checkpoint-1") == trained)
        cli_fail("another adapter was evaluated");
    run_ok(1, "resume moved max_steps=3");
    if (!cli_exists("moved/checkpoint-3") || cli_exists("out"))
        cli_fail("the run did not go on where it was moved to");
    cli_run(&output, 1, NULL, "merge moved");
    if (output.code != 0 || !cli_exists("moved-merged/config.json"))
        cli_fail("the merged model is not beside the run: %s", output.err);
    cli_output_free(&output);
    cli_run(&output, 1, NULL, "eval .");
    if (output.code == 0 && !strstr(output.err, "without an adapter"))
        cli_fail("eval .: %s", output.err);
    cli_output_free(&output);
    cli_case_end();
}

/* A line on standard error that begins with `begin` and has `words`. */
static void expect_line(const char *err, const char *begin, const char *words)
{
    const char *line = strstr(err, begin);
    const char *found = line ? strstr(line, words) : NULL;
    if (!found || found > line + strcspn(line + 1, "\n"))
        cli_fail("expected %s ... %s in\n%s", begin, words, err);
}

/* A run of 2 steps is finished, and goes on to a third with the same command and more steps. */
static void longer(void)
{
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    run_ok(1, "train job.yaml save_steps=1 learning_rate=0.009");
    char *before = cli_listing(), *metrics = cli_read("out/metrics.jsonl", NULL);
    cli_run(&output, 2, NULL, "train out/job.yaml resume_from_checkpoint=true");
    char *after = cli_listing(), *same = cli_read("out/metrics.jsonl", NULL);
    if (output.code != 0 || strcmp(before, after) != 0 || strcmp(metrics, same) != 0)
        cli_fail("finished: exit code %d\n%s", output.code, output.err);
    expect_line(output.err,
                "\ntessera: ", "the run in out is finished: all of its 2 steps are done");
    cli_output_free(&output);
    cli_run(&output, 2, NULL, "train out/job.yaml resume_from_checkpoint=true max_steps=3");
    if (output.code != 0 || !cli_exists("out/checkpoint-3"))
        cli_fail("longer: exit code %d\n%s", output.code, output.err);
    expect_line(output.err, "\nsteps    3 instead of 2, ",
                "learning rate 0.009 linear, which goes from 0.0045 in step 2 to 0.003 in step 3");
    cli_output_free(&output);
    free(before);
    free(after);
    free(metrics);
    free(same);
    cli_case_end();
}

/* The evaluation that is proposed leaves the training's trace as it is. */
static void traced(void)
{
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    write_eval_data();
    cli_run(&output, 1, NULL, "train job.yaml trace=trace.json eval_dataset=eval.jsonl");
    char *before = cli_read("trace.json", NULL);
    run_proposed(output.err, "traced");
    char *after = cli_read("trace.json", NULL);
    if (!before || !after || strcmp(before, after) != 0)
        cli_fail("the trace was replaced");
    free(before);
    free(after);
    cli_output_free(&output);
    cli_case_end();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"own_job", own_job},     {"directories", directories}, {"proposed", proposed},
        {"examples", examples},   {"messages", messages},       {"adapters", adapters},
        {"tokenizer", tokenizer}, {"stopped", stopped},         {"longer", longer},
        {"traced", traced},
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
