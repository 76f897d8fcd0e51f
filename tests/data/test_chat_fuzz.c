/*
 * Mutations of templates, of tokenizer.json and of rows of every format, seeded and bounded in
 * time: whatever comes out is TSR_OK or an error of the data with a message, and nothing is read or
 * written out of place (the sanitizers look on).
 */
#include "base/clock.h"
#include "base/philox.h"
#include "data/dataset.h"
#include "data/golden_lines.h"
#include "support/scratch.h"

#define SECONDS 1.0 /* for each of the three */

static uint64_t seed = 1;

static size_t draw(size_t below)
{
    seed = tsr_mix(seed + 0x9e3779b97f4a7c15u);
    return below ? (size_t)(seed % below) : 0;
}

/* Changes `text` of `bytes` bytes in place, within `capacity`: bytes, cuts, copies of parts. */
static size_t mutate(char *text, size_t bytes, size_t capacity)
{
    static const char *const words[] = {
        "{% ", " %}", "{{ ",  " }}",      "for ", "endfor", "| ",   "is ",      "[::-1]", "(",
        ")",   "'",   "{",    "}",        "[",    "]",      "null", "-1",       "\"",     "\\",
        "-%}", "{#",  "loop", "messages", "1e9",  "true",   ",",    "\xc3\xa9", "not ",   "\n"};
    for (size_t change = 0, changes = 1 + draw(4); change < changes && bytes; change++) {
        size_t at = draw(bytes), length = 1 + draw(20);
        length = length < bytes - at ? length : bytes - at;
        switch (draw(4)) {
        case 0:
            text[at] = (char)draw(256);
            break;
        case 1:
            memmove(text + at, text + at + length, bytes - at - length);
            bytes -= length;
            break;
        case 2: {
            const char *word = words[draw(sizeof words / sizeof *words)];
            size_t more = strlen(word);
            if (bytes + more > capacity)
                break;
            memmove(text + at + more, text + at, bytes - at);
            memcpy(text + at, word, more);
            bytes += more;
            break;
        }
        default:
            memmove(text + draw(bytes - length + 1), text + at, length);
        }
    }
    return bytes;
}

static void check_status(tsr_status status)
{
    if (status == TSR_OK)
        return;
    assert_int_equal(status, TSR_EDATA);
    assert_true(strlen(tsr_last_error()) > 5);
}

#define CORPUS "tests/golden/corpus/"

static void test_templates(void **state)
{
    (void)state;
    size_t bytes;
    static char copy[1 << 16];
    char *text = golden_file(CORPUS "conversations.json", &bytes);
    json_t *sets = json_loadb(text, bytes, 0, NULL);
    json_t *lines = golden_lines(CORPUS "expected.jsonl");
    tsr_rendering got = {0};
    int64_t runs = 0, parsed = 0;
    for (double end = tsr_now() + SECONDS; tsr_now() < end; runs++) {
        char path[128];
        const json_t *line = json_array_get(lines, 1 + draw(json_array_size(lines) - 1));
        snprintf(path, sizeof path, CORPUS "%s.jinja",
                 json_string_value(json_object_get(line, "template")));
        char *source = golden_file(path, &bytes);
        assert_true(bytes < sizeof copy);
        memcpy(copy, source, bytes);
        free(source);
        bytes = mutate(copy, bytes, sizeof copy);
        tsr_template *t;
        tsr_status status = tsr_template_parse(&t, path, copy, bytes);
        check_status(status);
        if (status < 0)
            continue;
        parsed++;
        check_status(tsr_template_render(&got, t, json_array_get(sets, draw(json_array_size(sets))),
                                         1, NULL));
        tsr_template_destroy(t);
    }
    assert_true(runs > 20 && parsed > 0);
    tsr_rendering_free(&got);
    json_decref(lines);
    json_decref(sets);
    free(text);
}

/* Rows of the formats, with what they may have. */
static const char *const rows[] = {
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
    "null,\"tool_calls\":[{}]}],\"tools\":[{}]}",
    "{\"system\":\"s\",\"tools\":\"[]\",\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},"
    "{\"from\":\"function_call\",\"value\":\"{\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{}}\"},"
    "{\"from\":\"observation\",\"value\":\"o\"},{\"from\":\"gpt\",\"value\":\"b\"}]}",
    "{\"messages\":[{\"role\":\"human\",\"content\":\"a \",\"weight\":0.0},{\"role\":\"model\","
    "\"content\":\"<think>r</think>b\",\"train\":false},{\"role\":\"tool\",\"content\":\"c\"},"
    "{\"role\":\"assistant\",\"content\":\" d\\n\",\"reasoning\":\"s\",\"weight\":1}]}",
    "{\"instruction\":\"a\",\"input\":\"b\",\"output\":\"c\",\"history\":[],\"system\":\"\"}",
    "{\"prompt\":\"a\",\"completion\":\" b\"}",
    "{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],\"completion\":[{\"role\":"
    "\"assistant\",\"content\":\"b\"}]}",
    "{\"text\":\"a <|eot_id|> caf\\u00e9\"}",
    "{\"input_ids\":[1,2,3,4],\"labels\":[1,-100,3,4],\"seq_lengths\":[2,2],\"attention_mask\":"
    "[1,1,1,1],\"position_ids\":[0,1,0,1]}"};

#define ROWS (sizeof rows / sizeof *rows)

static void test_rows(void **state)
{
    (void)state;
    const char *path = scratch_path("rows.jsonl");
    tsr_tokenizer *tokenizer;
    tsr_chat *chat;
    assert_int_equal(tsr_tokenizer_open(&tokenizer, TSR_SOURCE_DIR "/examples/tiny-llama", false),
                     TSR_OK);
    assert_int_equal(tsr_chat_create(&chat, tokenizer, NULL), TSR_OK);
    int64_t runs = 0, loaded = 0;
    for (double end = tsr_now() + SECONDS; tsr_now() < end; runs++) {
        char text[4096];
        size_t bytes = 0, of = draw(ROWS); /* mostly rows of one format */
        for (size_t i = 0, lines = 1 + draw(3); i < lines; i++)
            bytes += (size_t)snprintf(text + bytes, sizeof text - bytes, "%s\n",
                                      rows[draw(8) ? of : draw(ROWS)]);
        if (draw(8))
            bytes = mutate(text, bytes, sizeof text);
        write_bytes(path, text, bytes);
        tsr_dataset *data;
        tsr_dataset_options options = {.files = &path,
                                       .file_count = 1,
                                       .chat = chat,
                                       .tokenizer = tokenizer,
                                       .eos_id = 4,
                                       .max_length = (int64_t)draw(3) * 8,
                                       .truncation = (tsr_truncation)draw(3),
                                       .assistant_only = (tsr_loss_choice)draw(3),
                                       .completion_only = (tsr_loss_choice)draw(3),
                                       .vocab_size = 4096};
        tsr_status status = tsr_dataset_load(&data, &options);
        if (status != TSR_ECONFIG)
            check_status(status);
        if (status < 0)
            continue;
        loaded++;
        for (int64_t i = 0; i < tsr_dataset_sample_count(data); i++) {
            tsr_sample s = tsr_dataset_sample(data, i);
            assert_true(s.token_count > 0 && s.document_count > 0);
            assert_int_equal(s.labels[0], TSR_LABEL_IGNORED);
        }
        tsr_dataset_destroy(data);
    }
    assert_true(runs > 20 && loaded > 0);
    tsr_chat_destroy(chat);
    tsr_tokenizer_destroy(tokenizer);
}

static void test_tokenizers(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2_prefix_space", "nfc_qwen",         "digits",
                                        "behaviors",         "added_flags",      "families/gemma2",
                                        "families/phi3",     "families/mistral", "families/glm4"};
    static const char text[] = "Natalia sold 48/2 <both> cafe\xcc\x81 <left>\xe2\x80\x83 don't\n\n";
    tsr_tokens tokens = {0};
    int64_t runs = 0, loaded = 0;
    for (double end = tsr_now() + SECONDS; tsr_now() < end; runs++) {
        char path[128], copy[16384];
        size_t bytes;
        snprintf(path, sizeof path, "tests/golden/tokenizers/%s.json",
                 names[runs % (int)(sizeof names / sizeof *names)]);
        char *source = golden_file(path, &bytes);
        assert_true(bytes < sizeof copy);
        memcpy(copy, source, bytes);
        free(source);
        bytes = mutate(copy, bytes, sizeof copy);
        tsr_tokenizer *t;
        tsr_status status = tsr_tokenizer_parse(&t, path, copy, bytes, NULL, 0);
        check_status(status);
        if (status < 0)
            continue;
        loaded++;
        tsr_tokens_clear(&tokens);
        check_status(tsr_tokenizer_encode(&tokens, t, text, sizeof text - 1, true));
        for (size_t i = 0; i < tokens.count; i++) {
            assert_in_range(tokens.ids[i], 0, tsr_tokenizer_vocab_count(t) - 1);
            assert_true(tokens.spans[i].begin <= tokens.spans[i].end);
            assert_true(tokens.spans[i].end < sizeof text);
        }
        tsr_tokenizer_destroy(t);
    }
    assert_true(runs > 20 && loaded > 0);
    tsr_tokens_free(&tokens);
}

/* Text at random, valid or not, through every tokenizer. */
static void test_texts(void **state)
{
    (void)state;
    size_t bytes;
    char *json = golden_file("tests/golden/tokenizers/nfc_qwen.json", &bytes);
    tsr_tokenizer *t;
    tsr_tokens tokens = {0};
    assert_int_equal(tsr_tokenizer_parse(&t, "nfc", json, bytes, NULL, 0), TSR_OK);
    for (int i = 0; i < 20000; i++) {
        char text[64];
        size_t length = draw(sizeof text);
        for (size_t j = 0; j < length; j++)
            text[j] = (char)(draw(3) ? 0xcc + (draw(2) ? 0 : -0xcc + 0x80 + (int)draw(32)) : 'a');
        tsr_tokens_clear(&tokens);
        check_status(tsr_tokenizer_encode(&tokens, t, text, length, true));
    }
    tsr_tokens_free(&tokens);
    tsr_tokenizer_destroy(t);
    free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_tokenizers),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
