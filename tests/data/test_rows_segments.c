/*
 * Rows of segments (input_output): what is tokenised, what is trained, and what is refused.
 */
#include "data/row_case.h"

#define ROW                                                                                        \
    "{\"segments\":[{\"label\":false,\"text\":\"Question: a\\n\"},{\"label\":true,\"text\":\"b"    \
    "<|eot_id|>\"},{\"label\":false,\"text\":\"\"},{\"label\":false,\"text\":\" c\"},"             \
    "{\"label\":true,\"text\":\"d\"}]}\n"

static void labels_decide(void **state)
{
    (void)state;
    tsr_dataset *data = load(ROW, plain, (tsr_dataset_options){0});
    assert_int_equal(tsr_dataset_format(data), TSR_DATA_INPUT_OUTPUT);
    check_text(data, 0, "Question: a\nb<|eot_id|> cd"); /* neither a first token nor a last one */
    check_row(data, 0, ".b<|eot_id|>.d");
    tsr_dataset_destroy(data);
    data = load(ROW, plain, (tsr_dataset_options){.completion_only = TSR_LOSS_NO});
    check_row(data, 0, ".uestion: a\nb<|eot_id|> cd"); /* a first token is no label */
    tsr_dataset_destroy(data);
}

/* The tokens of each are those of its text alone. */
static void tokens_are_each_segments(void **state)
{
    (void)state;
    tsr_tokens tokens = {0};
    tsr_dataset *data = load(
        "{\"segments\":[{\"label\":false,\"text\":\"answ\"},{\"label\":true,\"text\":\"er\"}]}\n",
        plain, (tsr_dataset_options){0});
    assert_int_equal(tsr_tokenizer_encode(&tokens, tokenizer, "answ", 4, false), TSR_OK);
    size_t first = tokens.count;
    assert_int_equal(tsr_tokenizer_encode(&tokens, tokenizer, "er", 2, false), TSR_OK);
    tsr_sample s = tsr_dataset_sample(data, 0);
    assert_int_equal(s.token_count, tokens.count);
    for (size_t i = 0; i < tokens.count; i++) {
        assert_int_equal(s.ids[i], tokens.ids[i]);
        assert_int_equal(s.labels[i], i < first ? -100 : tokens.ids[i]);
    }
    tsr_tokens_free(&tokens);
    tsr_dataset_destroy(data);
}

static void broken_segments(void **state)
{
    (void)state;
    const tsr_dataset_options none = {0};
    refuses(ROW "{\"segments\":[{\"label\":true,\"text\":\"a\"},{\"text\":\"b\"}]}\n", plain, none,
            TSR_EDATA, (const char *const[]){"rows.jsonl:2", "\"segments\"[1]", "\"label\"", NULL});
    refuses("{\"segments\":[{\"label\":1,\"text\":\"a\"}]}\n", plain, none, TSR_EDATA,
            (const char *const[]){"rows.jsonl:1", "true or false", NULL});
    refuses("{\"segments\":[]}\n", plain, none, TSR_EDATA,
            (const char *const[]){"rows.jsonl:1", "no text", NULL});
    refuses("{\"segments\":\"a\"}\n", plain, none, TSR_EDATA,
            (const char *const[]){"rows.jsonl:1", "segments", NULL});
    refuses(ROW, plain, (tsr_dataset_options){.assistant_only = TSR_LOSS_YES}, TSR_ECONFIG,
            (const char *const[]){"assistant_only_loss", "input_output", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_decide),
        cmocka_unit_test(tokens_are_each_segments),
        cmocka_unit_test(broken_segments),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
