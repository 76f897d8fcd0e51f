/*
 * What is said about the data and their chats, through the whole program; and the README's example, as it is
 * printed there.
 */
#include "multi/cli.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void run_data(cli_output *output, const char *words)
{
    char line[256];
    snprintf(line, sizeof line, "data job.yaml %s", words);
    cli_run(output, 1, NULL, line);
    if (output->code != 0)
        cli_fail("%s: exit code %d\n%s", line, output->code, output->err);
}

static void expect(const char *text, const char *part)
{
    if (!text || !strstr(text, part))
        cli_fail("expected '%s' in\n%s", part, text ? text : "");
}

/* What is said about the data, in words and as JSON; nothing is written. */
static void data(void)
{
    cli_output text, json;
    json_error_t error;
    cli_case_begin(CLI_TINY_LLAMA);
    cli_write("data.jsonl", "{\"prompt\": \"The sky is\", \"completion\": \" blue.\"}\n"
                            "{\"prompt\": \"Grass\", \"completion\": \" is \\u001b[31mgreen\"}\n");
    cli_write("eval.jsonl", "{\"input_ids\": [60, 61, 62, 63]}\n"
                            "{\"input_ids\": [70, 71, 72]}\n"
                            "{\"input_ids\": [80, 81, 82, 83, 84, 85, 86]}\n");
    cli_write("more.jsonl", "{\"input_ids\": [60, 61]}\n{\"input_ids\": [62, 63]}\n");
    char *before = cli_listing();
    run_data(&text, "--show 5 packing=true max_length=64");
    run_data(&json, "--json --show 2 packing=true max_length=64 "
                    "eval_dataset=[eval.jsonl,more.jsonl] max_eval_samples=4");
    char *after = cli_listing();
    if (strcmp(before, after) != 0)
        cli_fail("the files were\n%sand are\n%s", before, after);
    expect(text.err, "dataset: format prompt_completion, because the first row (data.jsonl:1) has "
                     "\"prompt\" and \"completion\"");
    expect(text.out, "samples    2 of 2 rows");
    expect(text.out, "1 rows of 64 tokens");
    expect(text.out, "<|begin_of_text|>The sky is\xe2\x9f\xa6 blue.<|eot_id|>\xe2\x9f\xa7");
    expect(text.out, "is \\x1b[31mgreen");
    if (strchr(text.out, '\033'))
        cli_fail("an escape character when piped: %s", text.out);
    json_t *root = json_loads(json.out, 0, &error);
    json_t *sets = json_object_get(root, "datasets");
    json_t *first = json_array_get(sets, 0), *second = json_array_get(sets, 1);
    if (json_array_size(sets) != 2 || json_integer_value(json_object_get(second, "samples")) != 4)
        cli_fail("the sets are %s", json.out);
    json_t *packing = json_object_get(first, "packing");
    double fill = json_real_value(json_object_get(packing, "fill"));
    double tokens = (double)json_integer_value(json_object_get(first, "tokens"));
    if (fabs(fill - tokens / 64) > 1e-8 ||
        json_integer_value(json_object_get(packing, "rows")) != 1)
        cli_fail("packing is %g of %g tokens", fill, tokens);
    json_decref(root);
    free(before);
    free(after);
    cli_output_free(&text);
    cli_output_free(&json);
    /* A run says the fill rate too. */
    cli_run(&text, 1, NULL, "train job.yaml packing=true max_length=64 -v");
    expect(text.err, "dataset: 2 samples packed into 1 rows of 64 tokens, ");
    cli_output_free(&text);
    cli_case_end();
}

/* What of chats is said: the date, a message that asks in vain, tokens that are none. */
static void chats(void)
{
    cli_output text;
    cli_case_begin(CLI_TINY_LLAMA);
    cli_write("own.jinja",
              "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.role }}:{{ m.content }}"
              "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
    cli_write("chats.jsonl",
              "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"train\": true}, "
              "{\"role\": \"assistant\", \"content\": \"b\"}]}\n");
    run_data(
        &text,
        "dataset=chats.jsonl chat_template_path=own.jinja chat_template_date=2031-01-02 --show 1");
    expect(text.out, "format     messages; chats of 2031-01-02 (chat_template_date)\n");
    expect(text.out, "1 of 1 rows; 1 of 1 rows ask to train a message that is not the assistant's");
    expect(text.out, "2031user:aassistant:");
    cli_output_free(&text);
    /* Tokens of a template that are none: named, and shown in pieces. */
    cli_write("own.jinja",
              "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
              "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    run_data(&text, "dataset=chats.jsonl chat_template_path=own.jinja --show 1");
    expect(text.err, "what is no token of model: <|im_start|> (8 pieces), <|im_end|> (7 pieces)");
    expect(text.out, "the chat template writes what is no token: <|im_start|> (8 pieces), ");
    expect(text.out, "-- tokens are apart by \xc2\xb7\n<\xc2\xb7|\xc2\xb7");
    cli_output_free(&text);
    cli_case_end();
}

/* What is trained, by keys of a set and of the job. */
static void trained(void)
{
    cli_output text;
    cli_case_begin(CLI_TINY_LLAMA);
    cli_write("chats.jsonl",
              "{\"messages\": [{\"role\": \"asker\", \"content\": \"one\"}, "
              "{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"two\"}]}, "
              "{\"role\": \"asker\", \"content\": \"three\"}, "
              "{\"role\": \"assistant\", \"content\": \"four\"}]}\n");
    cli_write("texts.jsonl", "{\"text\": \"five\"}\n");
    cli_write("alpaca.jsonl", "{\"instruction\": \"six\", \"before\": [[\"seven\", \"eight\"]], "
                              "\"output\": \"nine\"}\n");
    cli_edit("job.yaml", "dataset: data.jsonl\n",
             "dataset:\n  - path: chats.jsonl\n    roles: {user: [asker]}\n"
             "    roles_to_train: [asker, assistant]\n    train_on_eot: last\n"
             "  - path: texts.jsonl\n"
             "  - path: alpaca.jsonl\n    chat_template: tokenizer_default\n    field_history: "
             "before\n");
    run_data(&text, "--show 3 default_system=Short. train_on_eot=false");
    expect(text.err, "dataset[1]: default_system has no effect on rows of the format text");
    expect(text.err, "dataset[1]: train_on_eot has no effect on rows of the format text");
    expect(text.out, "<|start_header_id|>system<|end_header_id|>\n\nShort.<|eot_id|>");
    expect(text.out, "\xe2\x9f\xa6one\xe2\x9f\xa7<|eot_id|>");
    expect(text.out, "\xe2\x9f\xa6two\xe2\x9f\xa7<|eot_id|>");
    expect(text.out, "\xe2\x9f\xa6"
                     "four<|eot_id|>\xe2\x9f\xa7");
    expect(text.out, "\xe2\x9f\xa6"
                     "five<|eot_id|>\xe2\x9f\xa7");
    expect(text.out, "\xe2\x9f\xa6"
                     "eight\xe2\x9f\xa7<|eot_id|>");
    cli_output_free(&text);
    cli_case_end();
}

/* What is printed on a terminal; the caller's. */
static char *type_on_terminal(const char *before, const char *words)
{
    char line[4600], *text = calloc(1, 1 << 16);
    cli_output output;
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (!text || terminal < 0 || grantpt(terminal) || unlockpt(terminal)) {
        cli_fail("no pseudo terminal");
        return text;
    }
    int other =
        open(ptsname(terminal), O_RDWR | O_NOCTTY); /* what was written stays while it is open */
    snprintf(line, sizeof line, "cd '%s' && %s %s %s >%s", cli_here(), before, cli_program(), words,
             ptsname(terminal));
    cli_type(&output, line);
    if (output.code != 0)
        cli_fail("%s: exit code %d\n%s", line, output.code, output.err);
    for (ssize_t got = 1, at = 0; got > 0 && at<60000; at += got> 0 ? got : 0)
        got = read(terminal, text + at, (size_t)(60000 - at));
    close(other);
    close(terminal);
    cli_output_free(&output);
    return text;
}

static void train(cli_output *output, int ranks, const char *words)
{
    char line[600];
    snprintf(line, sizeof line,
             "train job.yaml overwrite_output_dir=true max_steps=2 num_train_epochs=1 "
             "per_device_train_batch_size=1 total_batch_size=2 %s",
             words);
    cli_run(output, ranks, NULL, line);
    if (output->code != 0)
        cli_fail("%s: exit code %d\n%s", words, output->code, output->err);
}

/* Rows that are split train the same on any number of ranks; rows beyond the model's positions are trained with a warning. */
static void long_rows(void)
{
    cli_output output;
    size_t bytes[2];
    char *adapter[2];
    cli_case_begin(CLI_TINY_LLAMA);
    for (int i = 0; i < 2; i++) {
        train(&output, 1 + i, "truncation=split max_length=3 packing=true output_dir=out");
        cli_output_free(&output);
        adapter[i] = cli_read("out/adapter_model.safetensors", &bytes[i]);
    }
    if (!adapter[0] || !adapter[1] || bytes[0] != bytes[1] ||
        memcmp(adapter[0], adapter[1], bytes[0]) != 0)
        cli_fail("split rows train other adapters on two ranks");
    free(adapter[0]);
    free(adapter[1]);
    cli_edit("model/config.json", "\"max_position_embeddings\": 2048",
             "\"max_position_embeddings\": 2");
    train(&output, 1, "output_dir=out");
    expect(output.err, "max_length: found ");
    expect(output.err, "the model was made for 2 (max_position_embeddings, ");
    expect(output.err, "write max_length: 2 with truncation: split, right or drop");
    cli_output_free(&output);
    train(&output, 1, "output_dir=out max_length=2 truncation=split");
    if (strstr(output.err, "the model was made for"))
        cli_fail("a warning of rows that are not there:\n%s", output.err);
    cli_output_free(&output);
    cli_case_end();
}

/* Figures of rows: the longest, duplicates, each file; a page of them; colours. */
static void figures(void)
{
    cli_output text, json;
    json_error_t error;
    cli_case_begin(CLI_TINY_LLAMA);
    cli_write("texts.jsonl", "{\"text\": \"one\"}\n{\"text\": \"<script>alert('&')</script>\"}\n"
                             "{\"text\": \"one\"}\n{\"text\": \"\\u001b[31m\"}\n");
    cli_write("pairs.jsonl", "{\"prompt\": \"two\", \"completion\": \" three\"}\n");
    cli_edit("job.yaml", "dataset: data.jsonl\n",
             "dataset: [{path: texts.jsonl}, {path: pairs.jsonl}]\n");
    run_data(&text, "--html page.html --show 4");
    expect(text.out, "format     text, prompt_completion");
    expect(text.out, "  longest    texts.jsonl:2, ");
    expect(text.out, "  duplicates 1 samples have exactly the tokens of an earlier one\n"
                     "             texts.jsonl:3 is texts.jsonl:1\n");
    expect(text.out, "  files      texts.jsonl: text, 4 samples, ");
    expect(text.out, "             pairs.jsonl: prompt_completion, 1 samples, ");
    char *page = cli_read("page.html", NULL);
    expect(page, "<!DOCTYPE html>");
    expect(page, "default-src 'none'");
    expect(page, "<svg ");
    expect(page, "<tr><td>texts.jsonl:3<td>texts.jsonl:1\n");
    expect(page, "<mark>&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;");
    expect(page, "\\x1b[31m");
    if (!page || strstr(page, "<script") || strstr(page, "http://") || strstr(page, "https://") ||
        strstr(page, "src=") || strchr(page, '\033'))
        cli_fail("the page loads or runs something:\n%s", page ? page : "");
    free(page);
    run_data(&json, "--json");
    json_t *root = json_loads(json.out, 0, &error);
    json_t *set = json_array_get(json_object_get(root, "datasets"), 0);
    json_t *found = json_object_get(set, "duplicates");
    json_t *pair = json_array_get(json_object_get(found, "pairs"), 0);
    json_t *longest = json_object_get(set, "longest_samples");
    json_t *files = json_object_get(set, "by_file");
    if (json_integer_value(json_object_get(found, "samples")) != 1 ||
        json_integer_value(json_object_get(json_object_get(pair, "first"), "line")) != 1 ||
        json_integer_value(json_object_get(json_object_get(pair, "again"), "line")) != 3 ||
        json_array_size(longest) != 5 || json_array_size(files) != 2)
        cli_fail("the JSON is %s", json.out);
    const char *format = json_string_value(json_object_get(json_array_get(files, 1), "format"));
    if (!format || strcmp(format, "prompt_completion") != 0)
        cli_fail("the second file is %s", format ? format : "of no format");
    json_decref(root);
    cli_output_free(&text);
    cli_output_free(&json);
    run_data(&text, "truncation=drop max_length=5");
    expect(text.out, "  dropped    2 rows longer than max_length 5 (first texts.jsonl:2)\n");
    run_data(&json, "truncation=drop max_length=5 --json");
    expect(json.out, "\"first_lost\":{\"too_long\":{\"file\":\"texts.jsonl\",\"line\":2}");
    cli_output_free(&text);
    cli_output_free(&json);
    run_data(&text, "truncation=split max_length=5");
    expect(text.out, "  split      2 rows longer than max_length 5, into ");
    expect(text.out, " (first texts.jsonl:2)\n");
    expect(text.out, "texts.jsonl:2 (part 1), 5 tokens, 4 trained\n");
    run_data(&json, "truncation=split max_length=5 --json");
    expect(json.out, "\"split\":{\"file\":\"texts.jsonl\",\"line\":2}");
    cli_output_free(&text);
    cli_output_free(&json);
    char *coloured = type_on_terminal("NO_COLOR=", "data job.yaml dataset=pairs.jsonl --show 1");
    char *grey = type_on_terminal("NO_COLOR=1", "data job.yaml dataset=pairs.jsonl --show 1");
    expect(coloured, "\033[1;32m three<|eot_id|>\033[0m");
    expect(grey, "\xe2\x9f\xa6 three<|eot_id|>\xe2\x9f\xa7");
    free(coloured);
    free(grey);
    cli_case_end();
}

/* The README's job.yaml, over a base model without a chat template. */
static void readme(void)
{
    static const char row[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"What is %d + 1?\"}, "
        "{\"role\": \"assistant\", \"content\": \"%d\"}]}\n";
    char rows[4096] = "";
    size_t bytes;
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    char *text = cli_read(TSR_SOURCE_DIR "/README.md", &bytes);
    char *yaml = strstr(text, "## Training your own");
    yaml = strstr(yaml, "```yaml\n") + strlen("```yaml\n");
    *strstr(yaml, "```") = 0;
    cli_write("job.yaml", yaml);
    cli_link_all(CLI_TINY_LLAMA, "Llama-3.2-1B");
    cli_remove("Llama-3.2-1B/chat_template.jinja");
    for (int i = 0; i < 18; i++)
        snprintf(rows + strlen(rows), sizeof rows - strlen(rows), row, i, i + 1);
    cli_write("chats.jsonl", rows);
    cli_write("held_out.jsonl", rows);
    cli_run(&output, 1, NULL, "train job.yaml");
    if (output.code != 0)
        cli_fail("exit code %d\n%s\nof\n%s", output.code, output.err, yaml);
    expect(output.err, "data     chats.jsonl: 18 samples, ");
    expect(output.err, "step 2/2");
    cli_output_free(&output);
    cli_run(&output, 1, NULL, "train job.yaml chat_template=null output_dir=other");
    if (output.code != 78)
        cli_fail("without chat_template: exit code %d", output.code);
    expect(output.err, "job.yaml:1: chat_template: the model has no chat template");
    expect(output.err, "chat_template: chatml");
    cli_output_free(&output);
    free(text);
    cli_case_end();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {{"data", data},       {"chats", chats},         {"trained", trained},
                 {"figures", figures}, {"long_rows", long_rows}, {"readme", readme}};
    cli_open(argc, argv);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (cli_only() && strcmp(cli_only(), tests[i].name) != 0)
            continue;
        cli_name(tests[i].name);
        tests[i].run();
    }
    cli_close();
    return cli_failures() > 0;
}
