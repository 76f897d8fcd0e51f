/* Rows to samples: formats, labels, truncation, and every broken row that must be named. */
#include "data/tiny_llama.h"

#include "base/log.h"
#include "base/text.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static tsr_status load_with(tsr_dataset **out, const char *text, tsr_dataset_options options)
{
    const char *path = scratch_path("rows.jsonl");
    write_text(path, text);
    options.files = &path;
    options.file_count = 1;
    options.chat = chat;
    options.tokenizer = tokenizer;
    options.eos_id = tsr_tokenizer_eos(tokenizer);
    return tsr_dataset_load(out, &options);
}

static tsr_dataset *load(const char *text, tsr_dataset_options options)
{
    tsr_dataset *data = NULL;
    if (load_with(&data, text, options) != TSR_OK)
        fail_msg("%s: %s", text, tsr_last_error());
    return data;
}

static void check_ints(const int32_t *found, const int32_t *expected, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        assert_int_equal(found[i], expected[i]);
}

static void pretokenized_rows(void **state)
{
    (void)state;
    tsr_dataset *data =
        load("\xef\xbb\xbf{\"input_ids\":[5,6,7]}\n"
             "\n  \r\n"
             "{\"id\":3,\"input_ids\":[1,2,3,4,5],\"labels\":[1,2,-100,4,5],\"seq_lengths\":[2,3],"
             "\"attention_mask\":[1,1,1,1,1],\"position_ids\":[0,1,0,1,2]}\r\n"
             "{\"input_ids\":[9],\"labels\":null}",
             (tsr_dataset_options){.vocab_size = 10});
    assert_int_equal(tsr_dataset_format(data), TSR_DATA_PRETOKENIZED);
    assert_int_equal(tsr_dataset_sample_count(data), 3);
    tsr_sample s = tsr_dataset_sample(data, 0);
    assert_int_equal(s.line, 1);
    assert_int_equal(s.token_count, 3);
    assert_int_equal(s.label_count, 2);
    check_ints(s.ids, (int32_t[]){5, 6, 7}, 3);
    check_ints(s.labels, (int32_t[]){-100, 6, 7}, 3);
    s = tsr_dataset_sample(data, 1);
    assert_int_equal(s.line, 4);
    assert_int_equal(s.document_count, 2);
    check_ints(s.lengths, (int32_t[]){2, 3}, 2);
    check_ints(s.labels, (int32_t[]){-100, 2, -100, 4, 5}, 5);
    assert_int_equal(s.label_count, 3);
    s = tsr_dataset_sample(data, 2);
    assert_int_equal(s.label_count, 0);
    const tsr_dataset_stats *stats = tsr_dataset_stats_of(data);
    assert_int_equal(stats->rows, 3);
    assert_int_equal(stats->samples, 3);
    assert_int_equal(stats->documents, 4);
    assert_int_equal(stats->tokens, 9);
    assert_int_equal(stats->label_tokens, 5);
    assert_int_equal(stats->longest_sample, 5);
    assert_int_equal(stats->longest_document, 3);
    assert_int_equal(stats->unlabelled, 1);
    assert_int_equal(tsr_dataset_bytes(data), 9 * 8 + 4 * 4 + 3 * 48);
    tsr_dataset_destroy(data);
}

/* TRL's masks: 0 is not trained, with labels or without. */
static void masks(void **state)
{
    (void)state;
    const char *text = "{\"input_ids\":[1,2,3,4],\"completion_mask\":[0,0,1,1]}\n"
                       "{\"input_ids\":[1,2,3,4],\"assistant_masks\":[0,1,0,1]}\n"
                       "{\"input_ids\":[1,2,3,4],\"labels\":[1,2,-100,5],"
                       "\"completion_mask\":[0,1,1,1],\"assistant_masks\":[1,0,1,1]}\n"
                       "{\"input_ids\":[1,2,3,4],\"completion_mask\":null}\n";
    static const int32_t want[2][4][4] = {
        {{-100, -100, 3, 4}, {-100, 2, -100, 4}, {-100, -100, -100, 5}, {-100, 2, 3, 4}},
        {{-100, 2, 3, 4}, {-100, 2, -100, 4}, {-100, -100, -100, 5}, {-100, 2, 3, 4}}};
    for (int all = 0; all < 2; all++) {
        tsr_dataset *data =
            load(text, (tsr_dataset_options){.completion_only = all ? TSR_LOSS_NO : TSR_LOSS_AUTO});
        for (int i = 0; i < 4; i++)
            check_ints(tsr_dataset_sample(data, i).labels, want[all][i], 4);
        tsr_dataset_destroy(data);
    }
}

static void chats(void **state)
{
    (void)state;
    const char *text = "{\"messages\":[{\"role\":\"user\",\"content\":\"2 + 2?\"},"
                       "{\"role\":\"assistant\",\"content\":\"4\"}]}\n"
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"no answer\"}]}\n";
    tsr_dataset *data = load(text, (tsr_dataset_options){0});
    assert_int_equal(tsr_dataset_format(data), TSR_DATA_MESSAGES);
    tsr_sample s = tsr_dataset_sample(data, 0);
    assert_int_equal(s.label_count, 2); /* "4" and the end of the turn */
    assert_int_equal(s.labels[0], -100);
    for (int32_t i = 0; i < s.token_count; i++)
        assert_true(s.labels[i] == -100 || s.labels[i] == s.ids[i]);
    assert_int_equal(tsr_dataset_sample(data, 1).label_count, 0);
    tsr_dataset_destroy(data);
    data = load(text, (tsr_dataset_options){.assistant_only = TSR_LOSS_NO});
    for (int i = 0; i < 2; i++) {
        s = tsr_dataset_sample(data, i);
        assert_int_equal(s.label_count, s.token_count - 1);
    }
    tsr_dataset_destroy(data);
}

/* " sold" begins in the prompt: it is not trained, and what follows is. */
static void token_over_the_edge(void **state)
{
    (void)state;
    tsr_dataset *data = load("{\"prompt\":\"Natalia so\",\"completion\":\"ld\"}\n"
                             "{\"prompt\":\"Natalia\",\"completion\":\" sold\"}\n",
                             (tsr_dataset_options){0});
    tsr_sample s = tsr_dataset_sample(data, 0);
    assert_int_equal(s.token_count, 7);
    check_ints(s.ids, (int32_t[]){0, 51, 275, 287, 406, 1441, 4}, 7);
    check_ints(s.labels, (int32_t[]){-100, -100, -100, -100, -100, -100, 4}, 7);
    s = tsr_dataset_sample(data, 1);
    check_ints(s.labels, (int32_t[]){-100, -100, -100, -100, -100, 1441, 4}, 7);
    tsr_dataset_destroy(data);
}

/* The text of a chat's only row under a template that shows all that the row gave. */
static void check_rendering(const char *row, const char *want)
{
    const char *template = scratch_path("all.jinja");
    write_text(template,
               "{{ tools | tojson }}{% for m in messages %}|{% if m.role == 'assistant' %}"
               "{% generation %}{{ m | tojson }}{% endgeneration %}{% else %}"
               "{{ m | tojson }}{% endif %}{% endfor %}");
    tsr_chat *before = chat;
    tsr_text text = {0};
    tsr_chat_options options = {.template = template};
    assert_int_equal(tsr_chat_create(&chat, tokenizer, &options), TSR_OK);
    tsr_dataset *data = load(row, (tsr_dataset_options){0});
    tsr_sample s = tsr_dataset_sample(data, 0);
    tsr_tokenizer_decode(&text, tokenizer, s.ids, (size_t)s.token_count, false);
    assert_string_equal(tsr_text_string(&text), want);
    tsr_text_free(&text);
    tsr_dataset_destroy(data);
    tsr_chat_destroy(chat);
    chat = before;
}

static void sharegpt_tools(void **state)
{
    (void)state;
    check_rendering(
        "{\"system\":\"s\",\"tools\":\"[{\\\"name\\\": \\\"f\\\"}]\",\"conversations\":["
        "{\"from\":\"human\",\"value\":\"h\"},{\"from\":\"function_call\",\"value\":"
        "\"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"a\\\": 1}}\"},"
        "{\"from\":\"observation\",\"value\":\"o\"}]}",
        "[{\"name\": \"f\"}]|{\"role\": \"system\", \"content\": \"s\"}"
        "|{\"role\": \"user\", \"content\": \"h\"}"
        "|{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", "
        "\"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}]}"
        "|{\"role\": \"tool\", \"content\": \"o\"}");
    check_rendering(
        "{\"system\":\"key\",\"conversations\":[{\"from\":\"system\",\"value\":\"turn\"},"
        "{\"from\":\"gpt\",\"value\":\"g\"}]}",
        "null|{\"role\": \"system\", \"content\": \"turn\"}"
        "|{\"role\": \"assistant\", \"content\": \"g\"}");
    check_rendering("{\"conversations\":[{\"from\":\"User\",\"value\":\"u\"},{\"from\":\"bard\","
                    "\"value\":\"b\"},{\"from\":\"function_response\",\"value\":\"f\"},"
                    "{\"from\":\"ASSISTANT\",\"value\":\"a\"}]}",
                    "null|{\"role\": \"user\", \"content\": \"u\"}"
                    "|{\"role\": \"assistant\", \"content\": \"b\"}"
                    "|{\"role\": \"tool\", \"content\": \"f\"}"
                    "|{\"role\": \"assistant\", \"content\": \"a\"}");
    check_rendering("{\"tools\":[1],\"conversations\":[{\"from\":\"gpt\",\"value\":\"g\"}]}",
                    "[1]|{\"role\": \"assistant\", \"content\": \"g\"}");
    check_rendering("{\"tools\":[2],\"prompt\":[{\"role\":\"user\",\"content\":\"u\"}],"
                    "\"completion\":[{\"role\":\"assistant\",\"content\":\"a\"}]}",
                    "[2]|{\"role\": \"user\", \"content\": \"u\"}|{\"role\": \"assistant\", "
                    "\"content\": \"a\"}");
    /* In a string in other formats too, as in TRL. */
    check_rendering("{\"tools\":\"[3]\",\"prompt\":[{\"role\":\"user\",\"content\":\"u\"}],"
                    "\"completion\":[{\"role\":\"assistant\",\"content\":\"a\"}]}",
                    "[3]|{\"role\": \"user\", \"content\": \"u\"}|{\"role\": \"assistant\", "
                    "\"content\": \"a\"}");
    check_rendering("{\"tools\":\"[4]\",\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}",
                    "[4]|{\"role\": \"assistant\", \"content\": \"a\"}");
    check_rendering(
        "{\"tools\":\"null\",\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}",
        "null|{\"role\": \"assistant\", \"content\": \"a\"}");
}

static char warnings[4096];

static void note(void *user, tsr_log_level level, const char *line)
{
    (void)user;
    if (level <= TSR_LOG_INFO)
        strncat(warnings, line, sizeof warnings - strlen(warnings) - 1);
}

static void truncation(void **state)
{
    (void)state;
    const char *text = "{\"input_ids\":[1,2,3,4,5,6],\"seq_lengths\":[3,3]}\n"
                       "{\"input_ids\":[1,2,3,4,5,6],\"labels\":[-100,-100,-100,-100,5,6]}\n"
                       "{\"input_ids\":[1,2,3,4,5,6],\"labels\":[1,-100,-100,-100,-100,-100]}\n"
                       "{\"input_ids\":[1,2]}\n";
    warnings[0] = 0;
    tsr_log_set(note, NULL, TSR_LOG_WARNING);
    tsr_dataset *data =
        load(text, (tsr_dataset_options){.max_length = 4, .truncation = TSR_TRUNCATE_RIGHT});
    tsr_log_set(NULL, NULL, TSR_LOG_WARNING);
    /* The second row lost its labels and is gone; the third never had any and is kept. */
    assert_int_equal(tsr_dataset_sample_count(data), 3);
    tsr_sample s = tsr_dataset_sample(data, 0);
    assert_int_equal(s.token_count, 4);
    assert_int_equal(s.document_count, 2);
    check_ints(s.lengths, (int32_t[]){3, 1}, 2);
    check_ints(s.labels, (int32_t[]){-100, 2, 3, -100}, 4);
    assert_int_equal(s.label_count, 2);
    assert_int_equal(tsr_dataset_sample(data, 1).line, 3);
    assert_int_equal(tsr_dataset_stats_of(data)->truncated, 2);
    assert_int_equal(tsr_dataset_stats_of(data)->emptied, 1);
    assert_int_equal(tsr_dataset_stats_of(data)->first_cut.line, 1);
    assert_int_equal(tsr_dataset_stats_of(data)->first_cut.rows, 2);
    assert_int_equal(tsr_dataset_stats_of(data)->first_emptied.line, 2);
    assert_int_equal(tsr_dataset_stats_of(data)->first_too_long.rows, 0);
    assert_int_equal(tsr_dataset_stats_of(data)->unlabelled, 1);
    assert_non_null(strstr(warnings, "1 of 3 rows have no token to train"));
    assert_non_null(strstr(warnings, "max_length 4 cut 2 rows and dropped 1 of 4"));
    tsr_dataset_destroy(data);
    data = load(text, (tsr_dataset_options){.max_length = 3, .truncation = TSR_TRUNCATE_RIGHT});
    assert_int_equal(tsr_dataset_sample(data, 0).document_count, 1);
    tsr_dataset_destroy(data);
    data = load(text, (tsr_dataset_options){.max_length = 4, .truncation = TSR_TRUNCATE_DROP});
    assert_int_equal(tsr_dataset_sample_count(data), 1);
    assert_int_equal(tsr_dataset_stats_of(data)->too_long, 3);
    tsr_dataset_destroy(data);
    data = load(text, (tsr_dataset_options){.max_length = 6});
    assert_int_equal(tsr_dataset_stats_of(data)->truncated, 0);
    tsr_dataset_destroy(data);
    check_error(
        "too long", load_with(&data, text, (tsr_dataset_options){.max_length = 5}), TSR_EDATA,
        (const char *[MOST_WORDS]){"rows.jsonl:1:", "6 tokens, max_length is 5",
                                   "raise max_length (this row needs 6)", "2 more bad rows"});
    check_error("the longest",
                load_with(&data, "{\"input_ids\":[1,2,3]}\n{\"input_ids\":[1,2,3,4,5]}\n",
                          (tsr_dataset_options){.max_length = 2}),
                TSR_EDATA,
                (const char *[MOST_WORDS]){"rows.jsonl:1:", "raise max_length (this row needs 3)",
                                           "rows.jsonl:2; the longest row has 5 tokens"});
}

static uint64_t hash_of(const char *text)
{
    tsr_dataset *data = load(text, (tsr_dataset_options){0});
    uint64_t hash = tsr_dataset_hash(data);
    tsr_dataset_destroy(data);
    return hash;
}

static void hash_sees_every_change(void **state)
{
    (void)state;
    const char *same[] = {"{\"input_ids\":[1,2,3,4]}\n{\"input_ids\":[5,6]}",
                          "{\"labels\":[1,2,3,4], \"input_ids\":[1,2,3,4]}\n\n"
                          "{\"input_ids\":[5,6],\"seq_lengths\":[2]}\n"};
    const char *other[] = {
        "{\"input_ids\":[1,2,3,7]}\n{\"input_ids\":[5,6]}",
        "{\"input_ids\":[1,2,3]}\n{\"input_ids\":[4,5,6]}",
        "{\"input_ids\":[5,6]}\n{\"input_ids\":[1,2,3,4]}",
        "{\"input_ids\":[1,2,3,4],\"labels\":[1,2,3,-100]}\n{\"input_ids\":[5,6]}",
        "{\"input_ids\":[1,2,3,4],\"labels\":[1,2,3,4],\"seq_lengths\":[2,2]}\n"
        "{\"input_ids\":[5,6]}",
        "{\"input_ids\":[1,2,3,4]}"};
    uint64_t hash = hash_of(same[0]);
    assert_true(hash == hash_of(same[1]));
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        assert_true(hash != hash_of(other[i]));
}

/* Whatever the format of its file, a row is the same sample; messages say where it is. */
static void other_formats(void **state)
{
    (void)state;
    const char *files[] = {scratch_path("a.json"), scratch_path("b.csv"), scratch_path("c.txt")};
    static const char *const texts[] = {"[{\"text\":\"one\"},\n{\"text\":\"two\"}]",
                                        "id,text\n\n1,one\n2,two\n", "one\n\ntwo\n"};
    static const int64_t places[][2] = {{1, 2}, {3, 4}, {1, 3}};
    tsr_dataset *lines = load("{\"text\":\"one\"}\n{\"text\":\"two\"}\n", (tsr_dataset_options){0});
    for (int i = 0; i < 3; i++) {
        tsr_dataset *data;
        tsr_dataset_options options = {.files = &files[i],
                                       .file_count = 1,
                                       .tokenizer = tokenizer,
                                       .eos_id = tsr_tokenizer_eos(tokenizer)};
        write_text(files[i], texts[i]);
        if (tsr_dataset_load(&data, &options) != TSR_OK)
            fail_msg("%s", tsr_last_error());
        assert_true(tsr_dataset_hash(data) == tsr_dataset_hash(lines));
        for (int row = 0; row < 2; row++)
            assert_int_equal(tsr_dataset_sample(data, row).line, places[i][row]);
        tsr_dataset_destroy(data);
    }
    tsr_dataset_destroy(lines);
    tsr_dataset *data = NULL;
    tsr_dataset_options options = {.files = &files[0],
                                   .file_count = 1,
                                   .tokenizer = tokenizer,
                                   .eos_id = tsr_tokenizer_eos(tokenizer)};
    write_text(files[0], "[{\"text\":\"one\"},{\"text\":1},{\"text\"},{\"text\":\"four\"}]");
    check_error(
        "array", tsr_dataset_load(&data, &options), TSR_EDATA,
        (const char *[MOST_WORDS]){"a.json: row 2: ", "and 1 more bad rows: ", "a.json: row 3)"});
}

static void several_files(void **state)
{
    (void)state;
    const char *files[] = {scratch_path("a.jsonl"), scratch_path("b.jsonl")};
    write_text(files[0], "{\"input_ids\":[1,2]}\n{\"input_ids\":[3,4]}\n");
    write_text(files[1], "\n{\"input_ids\":[5,6]}\n{\"input_ids\":[7,8]}\n");
    tsr_dataset *data;
    tsr_dataset_options options = {.files = files, .file_count = 2};
    assert_int_equal(tsr_dataset_load(&data, &options), TSR_OK);
    assert_int_equal(tsr_dataset_sample_count(data), 4);
    tsr_sample s = tsr_dataset_sample(data, 2);
    assert_string_equal(tsr_dataset_file(data, s.file), files[1]);
    assert_int_equal(s.line, 2);
    tsr_dataset_destroy(data);
    options.max_rows = 3;
    assert_int_equal(tsr_dataset_load(&data, &options), TSR_OK);
    assert_int_equal(tsr_dataset_sample_count(data), 3);
    tsr_dataset_destroy(data);
    options.max_rows = 0;
    write_text(files[1], "{\"input_ids\":[5,6]}\n{\"input_ids\":[7,8}\n{}\n");
    check_error("second file", tsr_dataset_load(&data, &options), TSR_EDATA,
                (const char *[MOST_WORDS]){"b.jsonl:2:", "and 1 more bad rows: ", "b.jsonl:3)"});
    write_text(files[1], "\n\n");
    check_error("empty file", tsr_dataset_load(&data, &options), TSR_EDATA,
                (const char *[MOST_WORDS]){"dataset: ", "b.jsonl has no row"});
}

#define CHAT                                                                                       \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"    \
    "\"b\"}]}\n"

#define SHAREGPT(from, value) "{\"conversations\":[{\"from\":\"" from "\",\"value\":" value "}]}"

/* Each text is a whole file; `words` must all be in the message. */
static const struct {
    const char *text;
    const char *words[MOST_WORDS];
    tsr_status code; /* 0: TSR_EDATA */
} broken[] = {
    {"", {"dataset: ", "rows.jsonl has no row"}},
    {" \n\t\n", {"rows.jsonl has no row"}},
    {"{\"input_ids\":[1,2]", {"rows.jsonl:1:18: not valid JSON"}},
    {"{\"input_ids\":[1,2]}\n{\"input_ids\" [1]}\n", {"rows.jsonl:2:", "not valid JSON"}},
    {"{\"input_ids\":[1,2]} {\"input_ids\":[1,2]}", {"rows.jsonl:1:", "end of file expected"}},
    {"{\"input_ids\":[1,2],\"input_ids\":[3]}", {"rows.jsonl:1:", "duplicate object key"}},
    {"{\"input_ids\":[1,2],\"a\":\"\xff\"}",
     {"rows.jsonl:1:", "not valid UTF-8", "write the file in UTF-8"}},
    {"[\n{\"input_ids\":[1,2]}\n", {"rows.jsonl: row 1: ", "ends inside the array"}},
    {"{\"input_ids\":[1,2]}\n[{}]", {"rows.jsonl:2: ", "a list", "expected an object", "jq"}},
    {"{\n  \"input_ids\": [1,2]\n}", {"rows.jsonl:1:", "an object over several lines", "jq -c ."}},
    {"prompt,completion\na,b\n", {"rows.jsonl:1:", "expected an object {...} on each line"}},
    {"PAR1\x15...", {"rows.jsonl: ", "Parquet", "cut or damaged"}},
    {"\x1f\x8b\x08", {"rows.jsonl: the gzip stream", "at byte 3", "ends before"}},
    {"17", {"rows.jsonl:1: ", "an integer", "expected an object"}},
    {"{}", {"rows.jsonl:1: ", "no known format"}},
    {"{\"question\":\"a\",\"answer\":\"b\"}", {"\"question\", \"answer\"", "\"messages\""}},
    {"{\"input_ids\":[1,2]}\n{\"labels\":[1]}", {"rows.jsonl:2", "input_ids"}},
    {"{\"input_ids\":7}", {"rows.jsonl:1", "input_ids", "a list", "7"}},
    {"{\"input_ids\":[]}", {"rows.jsonl:1: ", "\"input_ids\" is empty"}},
    {"{\"input_ids\":[1,\"2\"]}", {"\"input_ids\"[1] is \"2\"", "expected an integer"}},
    {"{\"input_ids\":[1,2.0]}", {"\"input_ids\"[1] is 2.0"}},
    {"{\"input_ids\":[1,true]}", {"\"input_ids\"[1] is true"}},
    {"{\"input_ids\":[1,-1]}", {"\"input_ids\"[1] is -1", "from 0 to 4095"}},
    {"{\"input_ids\":[1,-100]}", {"\"input_ids\"[1] is -100"}},
    {"{\"input_ids\":[1,4096]}", {"\"input_ids\"[1] is 4096", "from 0 to 4095"}},
    {"{\"input_ids\":[1,99999999999]}", {"\"input_ids\"[1] is 99999999999"}},
    {"{\"input_ids\":[1,2],\"labels\":[1]}", {"\"labels\" has 1 entries", "has 2"}},
    {"{\"input_ids\":[1,2],\"labels\":[1,-99]}", {"\"labels\"[1] is -99", "or -100"}},
    {"{\"input_ids\":[1,2],\"labels\":[1,4096]}", {"\"labels\"[1] is 4096"}},
    {"{\"input_ids\":[1,2],\"labels\":{}}", {"labels", "a list", "{}"}},
    {"{\"input_ids\":[1,2],\"seq_lengths\":[1]}", {"add up to 1", "has 2 tokens"}},
    {"{\"input_ids\":[1,2],\"seq_lengths\":[]}", {"add up to 0"}},
    {"{\"input_ids\":[1,2],\"seq_lengths\":[2,0]}", {"\"seq_lengths\"[1] is 0"}},
    {"{\"input_ids\":[1,2],\"seq_lengths\":[3,-1]}", {"\"seq_lengths\"[1] is -1"}},
    {"{\"input_ids\":[1,2],\"attention_mask\":[1,0]}", {"\"attention_mask\"[1] is 0", "padded"}},
    {"{\"input_ids\":[1,2],\"attention_mask\":[1]}", {"\"attention_mask\" has 1"}},
    {"{\"input_ids\":[1,2],\"completion_mask\":[1]}", {"\"completion_mask\" has 1", "has 2"}},
    {"{\"input_ids\":[1,2],\"assistant_masks\":[0,2]}", {"\"assistant_masks\"[1] is 2", "0 or 1"}},
    {"{\"input_ids\":[1,2],\"assistant_masks\":[true,1]}", {"\"assistant_masks\"[0] is true"}},
    {"{\"input_ids\":[1,2],\"completion_mask\":1}", {"completion_mask", "a list"}},
    {"{\"input_ids\":[1,2],\"position_ids\":[0,0]}", {"\"position_ids\"[1] is 0", "seq_lengths"}},
    {"{\"input_ids\":[1,2],\"labels\":[1,-100]}\n{\"input_ids\":[3]}",
     {"no token of the 2 rows", "rows.jsonl:1 to", "rows.jsonl:2"}},
    {CHAT "{\"messages\":[]}", {"rows.jsonl:2: \"messages\" is empty"}},
    {CHAT "{\"messages\":{}}", {"rows.jsonl:2", "messages", "a list"}},
    {CHAT "{\"input_ids\":[1]}", {"rows.jsonl:2", "messages"}},
    {CHAT "{\"messages\":[{\"content\":\"a\"}]}", {"rows.jsonl:2: ", "role"}},
    {CHAT "{\"messages\":[{\"role\":\"user\"}]}", {"rows.jsonl:2: ", "content"}},
    {CHAT "{\"messages\":[\"hello\"]}", {"rows.jsonl:2: "}},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
     {"no token of the 1 rows", "assistant_only_loss"}},
    {CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":{}}",
     {"rows.jsonl:2: ", "chat_template_kwargs"}},
    {CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":\"{}\"}",
     {"rows.jsonl:2: \"tools\" is a string", "a list"}},
    {CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":{}}",
     {"rows.jsonl:2", "tools", "a list"}},
    {"{\"conversations\":[]}", {"rows.jsonl:1: \"conversations\" is empty"}},
    {"{\"conversations\":{}}", {"rows.jsonl:1", "conversations", "a list"}},
    {SHAREGPT("human", "1"), {"rows.jsonl:1: \"conversations\"[0]", "\"value\""}},
    {SHAREGPT("robot", "\"a\""), {"\"conversations\"[0] is from \"robot\"", "human, gpt", "bard"}},
    {CHAT "{\"messages\":[{\"role\":\"wizard\",\"content\":\"a\"}]}",
     {"rows.jsonl:2: messages[0]: \"role\" is \"wizard\"", "assistant or tool"}},
    {SHAREGPT("function_call", "\"{\""), {"rows.jsonl:1: ", "[0] is a function_call", "arguments"}},
    {SHAREGPT("function_call", "\"{\\\"name\\\":\\\"f\\\"}\""), {"[0] is a function_call"}},
    {SHAREGPT("function_call", "\"[]\""), {"[0] is a function_call"}},
    {SHAREGPT("gpt", "\"a\",\"weight\":2"), {"rows.jsonl:1: ", "\"weight\" is 2"}},
    {"{\"tools\":\"{}\",\"conversations\":[{\"from\":\"gpt\",\"value\":\"a\"}]}",
     {"rows.jsonl:1: \"tools\" is a string"}},
    {"{\"tools\":\"[]\",\"chat_template_kwargs\":{},\"conversations\":"
     "[{\"from\":\"gpt\",\"value\":\"a\"}]}",
     {"rows.jsonl:1: ", "chat_template_kwargs"}},
    {"{\"system\":[],\"conversations\":[{\"from\":\"gpt\",\"value\":\"a\"}]}",
     {"rows.jsonl:1", "'system'", "a string"}},
    {"{\"instruction\":1,\"output\":\"b\"}", {"rows.jsonl:1", "'instruction'", "a string"}},
    {"{\"instruction\":\"a\",\"output\":[]}", {"rows.jsonl:1", "'output'", "a string"}},
    {"{\"instruction\":\"a\",\"output\":\"b\",\"input\":{}}", {"'input'", "a string"}},
    {"{\"instruction\":\"a\",\"output\":\"b\",\"system\":\"c\"}", {"\"system\" has no place"}},
    {"{\"prompt\":[],\"completion\":[{}]}", {"rows.jsonl:1: \"prompt\" is empty"}},
    {"{\"prompt\":\"a\",\"completion\":[]}", {"\"prompt\" is a string and \"completion\" a list"}},
    {"{\"prompt\":true,\"completion\":true}", {"\"prompt\" is true", "two strings"}},
    {"{\"text\":\"\"}", {"rows.jsonl:1: \"text\" is empty"}},
    {"{\"text\":5}", {"rows.jsonl:1", "'text'", "a string"}},
    {"{\"text\":\"a\"}\n{\"prompt\":\"a\",\"completion\":\"b\"}",
     {"rows.jsonl:2: a row of the format text has \"text\"", "prompt_completion"}},
    {"{\"text\":\"a\"}\n{\"id\":1,\"text\":null}",
     {"rows.jsonl:2: a row of the format text has \"text\"; this one has \"id\", \"text\" (null)"}},
    {"{\"text\":null,\"id\":1}", {"no known format", "(\"text\" (null), \"id\")"}},
    {"{\"id\":123456789012345678901234567890,\"text\":\"a\"}",
     {"rows.jsonl:1:", "a number is too large", "64 bits", "as a string"}},
    {"{\"id\":1e999,\"text\":\"a\"}", {"a number is too large"}},
};

static void broken_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        tsr_dataset *data = NULL;
        tsr_status status =
            load_with(&data, broken[i].text, (tsr_dataset_options){.vocab_size = 4096});
        check_error(broken[i].text, status, broken[i].code ? broken[i].code : TSR_EDATA,
                    broken[i].words);
        assert_null(data);
    }
}

static void broken_places(void **state)
{
    (void)state;
    tsr_dataset *data = NULL;
    const char *path = scratch_path("missing.jsonl");
    tsr_dataset_options options = {.files = &path, .file_count = 1, .key = "eval_dataset"};
    check_error("missing", tsr_dataset_load(&data, &options), TSR_EDATA,
                (const char *[MOST_WORDS]){"eval_dataset: ", "missing.jsonl: No such file"});
    path = "no/such/file.jsonl";
    check_error("relative", tsr_dataset_load(&data, &options), TSR_EDATA,
                (const char *[MOST_WORDS]){"no/such/file.jsonl", "working directory"});
    path = scratch_path(".");
    check_error("directory", tsr_dataset_load(&data, &options), TSR_EDATA,
                (const char *[MOST_WORDS]){"is a directory"});
    path = scratch_path("zero.jsonl");
    write_bytes(path, "{\"input_ids\":[1,2\0]}\n", 20);
    check_error("zero byte", tsr_dataset_load(&data, &options), TSR_EDATA,
                (const char *[MOST_WORDS]){"zero.jsonl:1: byte 17 is zero"});
    write_text(path, "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n");
    check_error(
        "pointer", tsr_dataset_load(&data, &options), TSR_EDATA,
        (const char *[MOST_WORDS]){"zero.jsonl: this is a Git LFS pointer", "git lfs pull"});
    /* That the system has no descriptor left is no fault of the file's. */
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, limit.rlim_max}), 0);
    tsr_status status = tsr_dataset_load(&data, &options);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    check_error("no descriptor", status, TSR_EIO,
                (const char *[MOST_WORDS]){"eval_dataset: ", "zero.jsonl: Too many open files"});
    options.file_count = 0;
    check_error("none", tsr_dataset_load(&data, &options), TSR_EDATA,
                (const char *[MOST_WORDS]){"no file is given"});
    options.format = TSR_DATA_PRETOKENIZED;
    check_error("none", tsr_dataset_load(&data, &options), TSR_EDATA,
                (const char *[MOST_WORDS]){"no file is given"});
    check_error("vocabulary", load_with(&data, CHAT, (tsr_dataset_options){.vocab_size = 6}),
                TSR_EDATA,
                (const char *[MOST_WORDS]){"rows.jsonl:1: token", "vocabulary ends at 5"});
    check_error("all dropped",
                load_with(&data, "{\"input_ids\":[1,2,3]}\n",
                          (tsr_dataset_options){.max_length = 2, .truncation = TSR_TRUNCATE_DROP}),
                TSR_EDATA, (const char *[MOST_WORDS]){"none of the 1 rows", "max_length 2"});
    /* What truncation took is named, not what the rows that are left lack. */
    const char *mixed = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n" CHAT;
    for (int drop = 0; drop < 2; drop++) {
        tsr_truncation how = drop ? TSR_TRUNCATE_DROP : TSR_TRUNCATE_RIGHT;
        check_error(
            "all labels dropped",
            load_with(&data, mixed, (tsr_dataset_options){.max_length = 8, .truncation = how}),
            TSR_EDATA,
            (const char *[MOST_WORDS]){"max_length 8 dropped 1 of 2 rows", "rows.jsonl:1 to",
                                       "raise max_length"});
        assert_null(strstr(tsr_last_error(), "assistant_only_loss"));
    }
    assert_null(data);
}

/* Lines are read in memory with a limit: 1 GiB without a newline takes neither that nor long. */
static void long_lines(void **state)
{
    (void)state;
    static const char row[] = "{\"input_ids\":[1,2]}\n";
    const char *path = scratch_path("long.jsonl");
    tsr_dataset_options options = {.files = &path, .file_count = 1};
    tsr_dataset *data = NULL;
    write_text(path, row);
    assert_int_equal(truncate(path, 1 << 30), 0);
    check_error(
        "a line of zeros", tsr_dataset_load(&data, &options), TSR_EDATA,
        (const char *[MOST_WORDS]){"long.jsonl:2: the line is longer than 64 MiB", "several rows"});
    assert_null(data);
}

static void detection(void **state)
{
    (void)state;
    const char *path = scratch_path("detect.jsonl");
    tsr_dataset_options options = {.files = &path, .file_count = 1};
    tsr_data_format format;
    bool is_chat;
    write_text(path, "\n" CHAT);
    assert_int_equal(tsr_dataset_detect(&format, &is_chat, &options), TSR_OK);
    assert_string_equal(tsr_data_format_name(format), "messages");
    write_text(path, "{\"input_ids\":[1]}");
    assert_int_equal(tsr_dataset_detect(&format, &is_chat, &options), TSR_OK);
    assert_string_equal(tsr_data_format_name(format), "pretokenized");
    write_text(path, "{\"body\":\"x\"}");
    options.text_field = "body";
    assert_int_equal(tsr_dataset_detect(&format, &is_chat, &options), TSR_OK);
    assert_string_equal(tsr_data_format_name(format), "text");
    assert_false(is_chat);
    options.text_field = NULL;
    /* Of several formats' keys the first of a fixed order counts, and the reason is said. */
    warnings[0] = 0;
    tsr_log_set(note, NULL, TSR_LOG_INFO);
    write_text(path, "{\"text\":\"x\",\"instruction\":\"a\",\"input\":\"\",\"output\":\"b\"}");
    assert_int_equal(tsr_dataset_detect(&format, &is_chat, &options), TSR_OK);
    tsr_log_set(NULL, NULL, TSR_LOG_WARNING);
    assert_int_equal(format, TSR_DATA_ALPACA);
    assert_non_null(strstr(warnings, "format alpaca, because the first row ("));
    assert_non_null(strstr(warnings, "detect.jsonl:1) has \"instruction\" and \"output\""));
    write_text(path, "{\"prompt\":[],\"completion\":[]}");
    assert_int_equal(tsr_dataset_detect(&format, &is_chat, &options), TSR_OK);
    assert_true(is_chat);
    options.text_field = "body";
    write_text(path, "{\"body\":\"x\"}");
    /* A format that is asked for is not guessed. */
    options.format = TSR_DATA_PRETOKENIZED;
    tsr_dataset *data;
    check_error("asked for", tsr_dataset_load(&data, &options), TSR_EDATA,
                (const char *[MOST_WORDS]){"detect.jsonl:1", "input_ids"});
}

/* A gzip stream whose check is wrong: bad rows before its end are not the reason, and the damage is said first. */
static void damaged_packing(void **state)
{
    (void)state;
    static const char rows[] =
        "{\"input_ids\":[1,2]}\n{\"input_ids\":[1,}\n{\"input_ids\":[3,4]}\n";
    const uint8_t length = sizeof rows - 1;
    const uint8_t begin[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, length, 0, (uint8_t)~length,
                             0xff};
    const uint8_t end[] = {1, 2, 3, 4, length, 0, 0, 0};
    const char *path = scratch_path("rows.jsonl");
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(begin, 1, sizeof begin, file), sizeof begin);
    assert_int_equal(fwrite(rows, 1, length, file), length);
    assert_int_equal(fwrite(end, 1, sizeof end, file), sizeof end);
    assert_int_equal(fclose(file), 0);
    tsr_dataset *data = NULL;
    const tsr_dataset_options options = {.files = &path, .file_count = 1};
    assert_int_equal(tsr_dataset_load(&data, &options), TSR_EDATA);
    const char *said = tsr_last_error(), *damage = strstr(said, "the gzip stream is damaged");
    const char *bad = strstr(said, "rows.jsonl:2:");
    if (!damage || !bad || bad < damage || !strstr(said, "1 bad rows"))
        fail_msg("%s", said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pretokenized_rows),
        cmocka_unit_test(masks),
        cmocka_unit_test(chats),
        cmocka_unit_test(token_over_the_edge),
        cmocka_unit_test(sharegpt_tools),
        cmocka_unit_test(truncation),
        cmocka_unit_test(hash_sees_every_change),
        cmocka_unit_test(other_formats),
        cmocka_unit_test(several_files),
        cmocka_unit_test(broken_rows),
        cmocka_unit_test(broken_places),
        cmocka_unit_test(long_lines),
        cmocka_unit_test(detection),
        cmocka_unit_test(damaged_packing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
