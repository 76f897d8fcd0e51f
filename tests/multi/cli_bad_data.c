/*
 * Data that cannot be trained on.
 */
#include "multi/cli.h"
#include "multi/cli_bad.h"

#include <stdio.h>

#define ROW "{\"input_ids\": [10, 11, 12, 13, 14]}\n"

#define DATA(function, text)                                                                       \
    static void function(void)                                                                     \
    {                                                                                              \
        cli_write("data.jsonl", text);                                                             \
    }

DATA(empty, "")
DATA(only_blank_lines, "\n\n")
DATA(bad_json, ROW ROW "{\"input_ids\": [10, 11,}\n" ROW)
DATA(cut_json, ROW ROW "{\"input_ids\": [10, 11")
DATA(not_an_object, ROW "[1, 2, 3]\n")
DATA(other_columns, "{\"question\": \"a\", \"answer\": \"b\"}\n")
DATA(column_missing, ROW ROW "{\"ids\": [1, 2, 3]}\n")
DATA(ids_are_text, ROW "{\"input_ids\": \"1 2 3\"}\n")
DATA(fraction, ROW "{\"input_ids\": [1, 2.5, 3]}\n")
DATA(beyond_vocabulary, ROW ROW ROW "{\"input_ids\": [10, 4096, 12]}\n")
DATA(negative_id, ROW "{\"input_ids\": [10, -1, 12]}\n")
DATA(label_beyond, ROW "{\"input_ids\": [1, 2, 3], \"labels\": [1, 2, 5000]}\n")
DATA(labels_too_few, ROW "{\"input_ids\": [1, 2, 3], \"labels\": [1, 2]}\n")
DATA(lengths_do_not_add_up, ROW "{\"input_ids\": [1, 2, 3], \"seq_lengths\": [1, 1]}\n")
DATA(no_tokens, ROW "{\"input_ids\": []}\n")
DATA(all_masked, "{\"input_ids\": [1, 2, 3], \"labels\": [-100, -100, -100]}\n"
                 "{\"input_ids\": [1, 2, 3], \"labels\": [1, -100, -100]}\n")
DATA(masked_step, ROW ROW ROW ROW "{\"input_ids\": [1, 2, 3], \"labels\": [-100, -100, -100]}\n")
DATA(no_messages, "{\"messages\": []}\n")
DATA(odd_role, "{\"messages\": [{\"role\": \"wizard\", \"content\": \"a\"}]}\n")
DATA(no_content, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                 "{\"role\": \"assistant\"}]}\n")
DATA(not_utf8, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\xff\xfe\"}, "
               "{\"role\": \"assistant\", \"content\": \"b\"}]}\n")

#define CHAT                                                                                       \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"2 + 2?\"}, "                              \
    "{\"role\": \"assistant\", \"content\": \"4\"}]}\n"

DATA(mixed_formats, CHAT ROW)

#define ALPACA "{\"instruction\": \"Add.\", \"input\": \"1 2\", \"output\": \"3\"}\n"
#define SHAREGPT                                                                                   \
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, "                               \
    "{\"from\": \"gpt\", \"value\": \"b\"}]}\n"

DATA(alpaca_without_output, ALPACA "{\"instruction\": \"Add.\"}\n")
DATA(alpaca_history, ALPACA "{\"instruction\": \"a\", \"output\": \"b\", "
                            "\"history\": [[\"c\", \"d\"]]}\n")
DATA(sharegpt_speaker, SHAREGPT "{\"conversations\": [{\"from\": \"robot\", \"value\": \"a\"}]}\n")
DATA(sharegpt_role, SHAREGPT "{\"conversations\": [{\"name\": \"user\", \"content\": \"a\"}]}\n")
DATA(prompt_number, "{\"prompt\": \"a\", \"completion\": \"b\"}\n"
                    "{\"prompt\": 1, \"completion\": \"b\"}\n")
DATA(prompt_half_list, "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], "
                       "\"completion\": \"b\"}\n")
DATA(prompt_list_then_text,
     "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": "
     "[{\"role\": \"assistant\", \"content\": \"b\"}]}\n"
     "{\"prompt\": \"a\", \"completion\": \"b\"}\n")
DATA(prompt_text_then_list,
     "{\"prompt\": \"a\", \"completion\": \"b\"}\n"
     "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": "
     "[{\"role\": \"assistant\", \"content\": \"b\"}]}\n")
DATA(plain_text, "{\"text\": \"a b c\"}\n")
DATA(empty_text, "{\"text\": \"a b c\"}\n{\"text\": \"\"}\n")

static void bad_template(void)
{
    cli_write("data.jsonl", CHAT);
    cli_remove("model/chat_template.jinja");
    cli_write("model/chat_template.jinja",
              "{% for m in messages %}\n{{ m.content }}\n{% endfro %}");
}

static void template_beyond_subset(void)
{
    cli_write("data.jsonl", CHAT);
    cli_write("own.jinja", "{{ bos_token }}\n{% include 'other.jinja' %}\n");
}

static void no_eos(void)
{
    cli_write("data.jsonl", "{\"text\": \"a b c\"}\n");
    cli_edit("model/tokenizer_config.json", "\"eos_token\"", "\"other_token\"");
}

static void foreign_eos(void)
{
    cli_write("data.jsonl", "{\"text\": \"a b c\"}\n");
    cli_edit("model/tokenizer_config.json", "\"<|eot_id|>\"", "\"<end>\"");
}

static void template_raises(void)
{
    cli_write("data.jsonl", CHAT);
    cli_write("own.jinja", "{{ raise_exception('only haiku here') }}");
}

static void no_template(void)
{
    cli_write("data.jsonl", CHAT);
    cli_remove("model/chat_template.jinja");
}

static void no_tokenizer(void)
{
    cli_write("data.jsonl", CHAT);
    cli_remove("model/tokenizer.json");
}

static void bad_tokenizer(void)
{
    cli_write("data.jsonl", CHAT);
    cli_cut("model/tokenizer.json", 100000);
}

static void odd_tokenizer(void)
{
    cli_write("data.jsonl", CHAT);
    cli_edit("model/tokenizer.json", "\"type\": \"BPE\"", "\"type\": \"Unigram\"");
}

static void chat(void)
{
    cli_write("data.jsonl", CHAT);
}

/* Rank 1 stands in a directory where the second of two files is another one. */
static void other_file_on_one_rank(void)
{
    cli_link_all(".", "apart");
    cli_remove("apart/data.jsonl");
    cli_write("apart/data.jsonl", ROW);
}

static void broken_file_on_one_rank(void)
{
    cli_link_all(".", "apart");
    cli_remove("apart/data.jsonl");
    cli_write("apart/data.jsonl", ROW "nonsense\n");
}

static void no_file_on_one_rank(void)
{
    cli_link_all(".", "apart");
    cli_remove("apart/data.jsonl");
}

/* A data set as a map, with `member` in it. */
static void write_set(const char *member)
{
    char set[256];
    snprintf(set, sizeof set, "dataset:\n  - path: texts.jsonl\n    %s\n", member);
    cli_write("texts.jsonl", "{\"text\": \"a\"}\n");
    cli_edit("job.yaml", "dataset: data.jsonl\n", set);
}

static void template_of_texts(void)
{
    write_set("chat_template: chatml");
}

static void roles_of_texts(void)
{
    write_set("roles_to_train: [user]");
}

static void eot_of_texts(void)
{
    write_set("train_on_eot: last");
}

DATA(image_part,
     CHAT "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", "
          "\"image_url\": {}}]}]}\n")

DATA(wrong_gzip, "\x1f\x8bnonsense, and more of it")
DATA(mixed_types, "{\"text\": \"a\"}\n{\"text\": 5}\n{\"text\": \"b\"}\n")

static void ragged_csv(void)
{
    cli_write("rows.csv", "text,other\na,b\nc\nd,e\n");
}

static void cut_parquet(void)
{
    cli_link_all(TSR_SOURCE_DIR "/tests/golden/tables", "tables");
    cli_cut("tables/old_lists.parquet", -1);
}

static void no_parquet(void)
{
    cli_write("rows.parquet", "{\"text\": \"a\"}\n");
}

#define RANK_1_APART "if [ $RANK = 1 ]; then cd apart; fi; exec \"$@\""

const cli_bad_case cli_bad_data[] = {
    {"no_data", NULL, "dataset=nowhere.jsonl", 65, {"nowhere.jsonl"}},
    {"data_is_a_directory", NULL, "dataset=model", 65, {"model"}},
    {"empty", empty, NULL, 65, {"data.jsonl"}},
    {"only_blank_lines", only_blank_lines, NULL, 65, {"data.jsonl"}},
    {"bad_json", bad_json, NULL, 65, {"data.jsonl:3"}},
    {"bad_json_n3", bad_json, NULL, 65, {"data.jsonl:3"}, 3},
    {"cut_json", cut_json, NULL, 65, {"data.jsonl:3"}},
    {"not_an_object", not_an_object, NULL, 65, {"data.jsonl:2"}},
    {"other_columns", other_columns, NULL, 65, {"data.jsonl:1", "\"question\"", "\"messages\""}},
    {"column_missing", column_missing, NULL, 65, {"data.jsonl:3", "input_ids"}},
    {"ids_are_text", ids_are_text, NULL, 65, {"data.jsonl:2", "input_ids"}},
    {"fraction", fraction, NULL, 65, {"data.jsonl:2", "input_ids"}},
    {"beyond_vocabulary", beyond_vocabulary, NULL, 65, {"data.jsonl:4", "4096"}},
    {"negative_id", negative_id, NULL, 65, {"data.jsonl:2", "-1"}},
    {"label_beyond", label_beyond, NULL, 65, {"data.jsonl:2", "5000"}},
    {"labels_too_few", labels_too_few, NULL, 65, {"data.jsonl:2", "labels"}},
    {"lengths_do_not_add_up", lengths_do_not_add_up, NULL, 65, {"data.jsonl:2", "seq_lengths"}},
    {"no_tokens", no_tokens, NULL, 65, {"data.jsonl:2"}},
    {"all_masked", all_masked, NULL, 65, {"label"}},
    {"masked_step", masked_step, "shuffle=false", 65, {"step 2", "data.jsonl"}},
    {"masked_step_n3", masked_step, "shuffle=false", 65, {"step 2", "data.jsonl"}, 3},
    {"over_long", NULL, "max_length=4", 65, {"data.jsonl:1", "max_length", "truncation"}},
    {"no_messages", no_messages, NULL, 65, {"data.jsonl:1"}},
    {"odd_role", odd_role, NULL, 65, {"data.jsonl:1", "\"wizard\"", "user, assistant"}},
    {"no_content", no_content, NULL, 65, {"data.jsonl:1", "content"}},
    {"not_utf8", not_utf8, NULL, 65, {"data.jsonl:1"}},
    {"mixed_formats", mixed_formats, NULL, 65, {"data.jsonl:2", "\"messages\"", "pretokenized"}},
    {"alpaca_without_output", alpaca_without_output, NULL, 65, {"data.jsonl:2", "\"output\""}},
    {"alpaca_history", alpaca_history, NULL, 65, {"data.jsonl:2", "\"history\"", "messages"}},
    {"sharegpt_speaker", sharegpt_speaker, NULL, 65, {"data.jsonl:2", "\"robot\"", "human, gpt"}},
    {"wrong_gzip", wrong_gzip, NULL, 65, {"data.jsonl: the gzip stream is damaged at byte"}},
    {"mixed_types", mixed_types, NULL, 65, {"data.jsonl:2: key 'text' is 5, expected a string"}},
    {"ragged_csv",
     ragged_csv,
     "dataset=rows.csv",
     65,
     {"rows.csv:3: the row has 1 column, the header has 2"}},
    {"cut_parquet",
     cut_parquet,
     "dataset=tables/old_lists.parquet",
     65,
     {"old_lists.parquet: the Parquet file is cut"}},
    {"no_parquet", no_parquet, "dataset=rows.parquet", 65, {"rows.parquet: the file is named"}},
    {"image_part", image_part, NULL, 65, {"data.jsonl:2", "messages[0]", "\"image_url\""}},
    {"template_of_texts", template_of_texts, NULL, 78, {"dataset[0]: chat_template", "text"}},
    {"roles_of_texts", roles_of_texts, NULL, 78, {"dataset[0]: roles_to_train", "texts.jsonl"}},
    {"eot_of_texts", eot_of_texts, NULL, 78, {"dataset[0]: train_on_eot", "as messages"}},
    {"odd_role_to_train",
     chat,
     "roles_to_train=wizard",
     78,
     {"roles_to_train: found 'wizard'", "assistant"}},
    {"roles_of_all",
     chat,
     "roles_to_train=user train_on_inputs=true",
     78,
     {"roles_to_train", "train_on_inputs"}},
    {"no_response_template",
     plain_text,
     "response_template=###",
     65,
     {"response_template \"###\"", "data.jsonl:1"}},
    {"sharegpt_role", sharegpt_role, NULL, 65, {"data.jsonl:2", "\"from\"", "\"role\""}},
    {"prompt_number", prompt_number, NULL, 65, {"data.jsonl:2", "\"prompt\" is an integer"}},
    {"prompt_half_list", prompt_half_list, NULL, 65, {"data.jsonl:1", "\"completion\" a string"}},
    {"prompt_list_then_text",
     prompt_list_then_text,
     NULL,
     65,
     {"data.jsonl:2", "is a string, but"}},
    {"prompt_text_then_list", prompt_text_then_list, NULL, 65, {"data.jsonl:2", "is a list of"}},
    {"empty_text", empty_text, NULL, 65, {"data.jsonl:2", "\"text\" is empty"}},
    {"other_text_field",
     plain_text,
     "dataset_format=text dataset_text_field=body",
     65,
     {"data.jsonl:1", "\"body\"", "\"text\""}},
    {"assistant_of_text",
     plain_text,
     "assistant_only_loss=true",
     78,
     {"assistant_only_loss", "text"}},
    {"completion_of_text", plain_text, "completion_only_loss=true", 78, {"completion_only_loss"}},
    {"completion_of_chats", chat, "completion_only_loss=true", 78, {"completion_only_loss"}},
    {"no_eos", no_eos, NULL, 78, {"eos_token", "names none"}},
    {"foreign_eos",
     foreign_eos,
     NULL,
     78,
     {"eos_token", "names '<end>', which is no token of tokenizer.json"}},
    {"data_command", mixed_formats, NULL, 65, {"data.jsonl:2"}, .command = "data job.yaml"},
    {"data_command_show", NULL, "--show=0", 64, {"--show"}, .command = "data job.yaml"},
    {"bad_template", bad_template, NULL, 65, {"endfro", "chat_template.jinja:3"}},
    {"template_beyond_subset",
     template_beyond_subset,
     "chat_template_path=own.jinja",
     65,
     {"own.jinja:2", "include"}},
    {"template_raises",
     template_raises,
     "chat_template_path=own.jinja",
     65,
     {"only haiku here", "data.jsonl:1"}},
    {"no_such_template",
     chat,
     "chat_template_path=nowhere.jinja",
     78,
     {"'nowhere.jinja'", "no file and no name", "chatml"}},
    {"no_template", no_template, NULL, 78, {"chat_template", "llama3"}},
    {"no_tokenizer", no_tokenizer, NULL, 65, {"tokenizer.json"}},
    {"bad_tokenizer", bad_tokenizer, NULL, 65, {"tokenizer.json"}},
    {"odd_tokenizer", odd_tokenizer, NULL, 65, {"Unigram", "tokenizer.json"}},
    {"odd_eos", chat, "eos_token=<nothing>", 78, {"<nothing>"}},
    {"no_eval_data", NULL, "eval_dataset=nowhere.jsonl", 65, {"nowhere.jsonl", "eval_dataset"}},
    {"other_file_on_one_rank",
     other_file_on_one_rank,
     NULL,
     76,
     {"dataset differs between the ranks", "same files"},
     3,
     NULL,
     RANK_1_APART},
    {"broken_file_on_one_rank",
     broken_file_on_one_rank,
     NULL,
     65,
     {"data.jsonl:2", "rank 1"},
     3,
     NULL,
     RANK_1_APART},
    {"no_file_on_one_rank",
     no_file_on_one_rank,
     NULL,
     65,
     {"data.jsonl", "rank 1"},
     2,
     NULL,
     RANK_1_APART},
};
const size_t cli_bad_data_count = sizeof cli_bad_data / sizeof *cli_bad_data;
