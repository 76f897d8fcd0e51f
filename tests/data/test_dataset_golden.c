/*
 * Rows of every format against transformers and TRL's rules: tests/golden/data_formats.jsonl, made
 * by tools/make_data_golden.py; and what axolotl itself trains of chats and segments: axolotl_labels.jsonl, by
 * tools/make_axolotl_golden.py. The same tokens and the same labels, none more.
 */
#include "data/golden_lines.h"
#include "support/scratch.h"

#include "data/dataset.h"

static tsr_tokenizer *tokenizer;
static tsr_chat *chat;

static tsr_loss_choice choice(const json_t *options, const char *key)
{
    const json_t *value = json_object_get(options, key);
    return !value ? TSR_LOSS_AUTO : json_is_true(value) ? TSR_LOSS_YES : TSR_LOSS_NO;
}

/* roles_to_train and train_on_eot; neither: as without. */
static tsr_chat_training training_of(const json_t *options)
{
    static const char *const words[] = {"turn", "all", "last", "none"};
    const json_t *roles = json_object_get(options, "roles_to_train");
    const char *ends = json_string_value(json_object_get(options, "train_on_eot"));
    tsr_chat_training training = {.roles = roles ? TSR_CHAT_ROLES_CHOSEN : 0};
    for (size_t i = 0; i < json_array_size(roles); i++)
        training.roles |= tsr_chat_role_bit(json_string_value(json_array_get(roles, i)));
    for (int i = 0; ends && i < 4; i++)
        if (!strcmp(ends, words[i]))
            training.ends = (tsr_chat_ends)i;
    return training;
}

static void write_rows(const char *path, const json_t *rows)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        assert_int_equal(json_dumpf(json_array_get(rows, i), file, JSON_COMPACT), 0);
        fputc('\n', file);
    }
    assert_int_equal(fclose(file), 0);
}

static void check_list(const char *what, size_t row, const int32_t *found, int32_t count,
                       const json_t *expected)
{
    if ((size_t)count != json_array_size(expected))
        fail_msg("%s of row %zu: %d tokens, expected %zu", what, row, count,
                 json_array_size(expected));
    for (int32_t i = 0; i < count; i++)
        if (found[i] != json_integer_value(json_array_get(expected, (size_t)i)))
            fail_msg("%s[%d] of row %zu is %d", what, i, row, found[i]);
}

static void check_line(const json_t *line)
{
    const json_t *given = json_object_get(line, "options");
    const json_t *samples = json_object_get(line, "samples");
    const char *path = scratch_path("rows.jsonl");
    const char *format = json_string_value(json_object_get(line, "format"));
    write_rows(path, json_object_get(line, "rows"));
    tsr_dataset *data;
    tsr_dataset_options options = {
        .files = &path,
        .file_count = 1,
        .text_field = json_string_value(json_object_get(given, "dataset_text_field")),
        .chat = chat,
        .tokenizer = tokenizer,
        .eos_id = tsr_tokenizer_eos(tokenizer),
        .assistant_only = choice(given, "assistant_only_loss"),
        .completion_only = choice(given, "completion_only_loss"),
        .training = training_of(given),
        .vocab_size = 4096};
    if (tsr_dataset_load(&data, &options) != TSR_OK)
        fail_msg("%s: %s", format, tsr_last_error());
    assert_string_equal(tsr_data_format_name(tsr_dataset_format(data)), format);
    assert_int_equal(tsr_dataset_sample_count(data), json_array_size(samples));
    for (size_t i = 0; i < json_array_size(samples); i++) {
        tsr_sample s = tsr_dataset_sample(data, (int64_t)i);
        const json_t *want = json_array_get(samples, i);
        check_list("input_ids", i, s.ids, s.token_count, json_object_get(want, "input_ids"));
        check_list("labels", i, s.labels, s.token_count, json_object_get(want, "labels"));
    }
    tsr_dataset_destroy(data);
}

static void check_file(const char *path, size_t least)
{
    json_t *lines = golden_lines(path);
    assert_true(json_array_size(lines) >= least);
    for (size_t i = 0; i < json_array_size(lines); i++)
        check_line(json_array_get(lines, i));
    json_decref(lines);
}

static void formats(void **state)
{
    (void)state;
    check_file("tests/golden/data_formats.jsonl", 13);
}

static void axolotl(void **state)
{
    (void)state;
    check_file("tests/golden/axolotl_labels.jsonl", 26);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(formats), cmocka_unit_test(axolotl)};
    scratch_make();
    assert_int_equal(tsr_tokenizer_open(&tokenizer, TSR_SOURCE_DIR "/examples/tiny-llama", false),
                     TSR_OK);
    assert_int_equal(tsr_chat_create(&chat, tokenizer, NULL), TSR_OK);
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    tsr_chat_destroy(chat);
    tsr_tokenizer_destroy(tokenizer);
    scratch_remove();
    return failures;
}
