/*
 * Rows that are trained behind a marker (response_template), and the system prompt of chats that have none.
 */
#include "data/row_case.h"

#include <stdlib.h>

#define MARKER "### Response:\n"
#define MARKED                                                                                     \
    (tsr_dataset_options)                                                                          \
    {                                                                                              \
        .response_template = MARKER                                                                \
    }

/* What TRL's DataCollatorForCompletionOnlyLM trained: the tokens behind the last place of the marker's own tokens. */
static void check_as_trl(const tsr_sample *s)
{
    tsr_tokens marker = {0};
    int32_t end = -1;
    assert_int_equal(tsr_tokenizer_encode(&marker, tokenizer, MARKER, strlen(MARKER), false),
                     TSR_OK);
    int32_t count = (int32_t)marker.count;
    for (int32_t i = 0; i + count <= s->token_count; i++)
        if (!memcmp(s->ids + i, marker.ids, marker.count * sizeof *marker.ids))
            end = i + count;
    assert_true(end > 0);
    for (int32_t i = 0; i < s->token_count; i++)
        assert_int_equal(s->labels[i], i < end ? -100 : s->ids[i]);
    tsr_tokens_free(&marker);
}

static void texts(void **state)
{
    (void)state;
    tsr_dataset *data = load("{\"text\":\"Q\\n### Response:\\nno\\n### Response:\\nyes\"}\n"
                             "{\"text\":\"### Response:\\n\"}\n"
                             "{\"text\":\"a b\\n### Response:\\nc d\"}\n",
                             plain, MARKED);
    check_row(data, 0, ".yes<|eot_id|>");
    check_row(data, 1, ".<|eot_id|>");
    check_row(data, 2, ".c d<|eot_id|>");
    for (int i = 0; i < 3; i++) {
        tsr_sample s = tsr_dataset_sample(data, i);
        check_as_trl(&s);
    }
    tsr_dataset_destroy(data);
}

/* Nothing else decides: neither the completion nor the assistant's turns. */
static void other_formats(void **state)
{
    (void)state;
    tsr_dataset *data =
        load("{\"prompt\":\"a\",\"completion\":\" b\\n### Response:\\nc\"}\n", plain, MARKED);
    check_row(data, 0, ".c<|eot_id|>");
    tsr_dataset_destroy(data);
    data = load("{\"instruction\":\"a\",\"output\":\"b\"}\n", plain,
                (tsr_dataset_options){.response_template = "### Response:"});
    check_row(data, 0, ".b<|eot_id|>");
    tsr_dataset_destroy(data);
    data = load("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
                "{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},"
                "{\"role\":\"assistant\",\"content\":\"d\"}]}\n",
                plain, (tsr_dataset_options){.response_template = "<assistant>"});
    check_row(data, 0, ".d<|eot_id|>\n");
    tsr_dataset_destroy(data);
    data = load("{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],"
                "\"completion\":[{\"role\":\"assistant\",\"content\":\"b\"}]}\n",
                plain, (tsr_dataset_options){.response_template = "<user>"});
    check_row(data, 0, ".a<|eot_id|>\n<assistant>b<|eot_id|>\n");
    tsr_dataset_destroy(data);
}

static void without_marker(void **state)
{
    (void)state;
    tsr_dataset *data = load("{\"text\":\"a\\n### Response:\\nb\"}\n{\"text\":\"no marker\"}\n"
                             "{\"text\":\"nor here\"}\n",
                             plain, MARKED);
    const tsr_dataset_stats *stats = tsr_dataset_stats_of(data);
    const tsr_found *found = &stats->found[TSR_FINDING_UNMARKED];
    tsr_text said = {0};
    assert_int_equal(stats->unlabelled, 2);
    assert_int_equal(found->rows, 2);
    assert_int_equal(found->line, 2);
    assert_int_equal(tsr_dataset_sample(data, 1).label_count, 0);
    tsr_findings_put(&said, data);
    assert_non_null(strstr(tsr_text_string(&said), "2 of 3 rows have no response_template"));
    assert_non_null(strstr(tsr_text_string(&said), "rows.jsonl:2)"));
    tsr_text_free(&said);
    tsr_dataset_destroy(data);
    refuses("{\"text\":\"a\"}\n{\"text\":\"b\"}\n", plain, MARKED, TSR_EDATA,
            (const char *const[]){"rows.jsonl:1", "rows.jsonl:2", "response_template", NULL});
    refuses("{\"input_ids\":[1,2,3]}\n", plain, MARKED, TSR_ECONFIG,
            (const char *const[]){"response_template", "pretokenized", NULL});
    refuses("{\"segments\":[{\"label\":true,\"text\":\"a\"}]}\n", plain, MARKED, TSR_ECONFIG,
            (const char *const[]){"response_template", "input_output", NULL});
}

static void default_system(void **state)
{
    (void)state;
    const tsr_dataset_options options = {.default_system = "Be brief."};
    tsr_dataset *data =
        load("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
             "{\"role\":\"assistant\",\"content\":\"b\"}]}\n"
             "{\"messages\":[{\"role\":\"developer\",\"content\":\"s\"},"
             "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n",
             plain, options);
    check_text(data, 0, "<system>Be brief.<|eot_id|>\n<user>a<|eot_id|>\n<assistant>b<|eot_id|>\n");
    check_row(data, 0, ".b<|eot_id|>\n");
    check_text(data, 1, "<system>s<|eot_id|>\n<user>a<|eot_id|>\n<assistant>b<|eot_id|>\n");
    tsr_dataset_destroy(data);
    data = load("{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},"
                "{\"from\":\"gpt\",\"value\":\"b\"}]}\n"
                "{\"system\":\"own\",\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},"
                "{\"from\":\"gpt\",\"value\":\"b\"}]}\n",
                plain, options);
    check_text(data, 0, "<system>Be brief.<|eot_id|>\n<user>a<|eot_id|>\n<assistant>b<|eot_id|>\n");
    check_text(data, 1, "<system>own<|eot_id|>\n<user>a<|eot_id|>\n<assistant>b<|eot_id|>\n");
    tsr_dataset_destroy(data);
    /* The prompt is longer by it. */
    data = load("{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],"
                "\"completion\":[{\"role\":\"assistant\",\"content\":\"b\"}]}\n",
                plain, options);
    check_row(data, 0, ".b<|eot_id|>\n");
    tsr_dataset_destroy(data);
}

/* A system turn that a chat begins with goes; the default one may take its place. */
static void drop_system(void **state)
{
    (void)state;
    const char *rows =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
        "\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n"
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
        "{\"role\":\"assistant\",\"content\":\"b\"}]}\n";
    tsr_dataset_options options = {.drop_system = true};
    tsr_dataset *data = load(rows, plain, options);
    for (int i = 0; i < 2; i++)
        check_text(data, i, "<user>a<|eot_id|>\n<assistant>b<|eot_id|>\n");
    tsr_dataset_destroy(data);
    options.default_system = "d";
    data = load(rows, plain, options);
    for (int i = 0; i < 2; i++)
        check_text(data, i, "<system>d<|eot_id|>\n<user>a<|eot_id|>\n<assistant>b<|eot_id|>\n");
    tsr_dataset_destroy(data);
    options.default_system = NULL;
    data = load("{\"prompt\":[{\"role\":\"system\",\"content\":\"s\"},"
                "{\"role\":\"user\",\"content\":\"a\"}],"
                "\"completion\":[{\"role\":\"assistant\",\"content\":\"b\"}]}\n",
                plain, options);
    check_text(data, 0, "<user>a<|eot_id|>\n<assistant>b<|eot_id|>\n");
    check_row(data, 0, ".b<|eot_id|>\n");
    tsr_dataset_destroy(data);
    refuses("{\"messages\":[{\"role\":\"system\",\"content\":\"s\"}]}\n", plain, options, TSR_EDATA,
            (const char *const[]){"rows.jsonl:1", "is empty", "which is dropped", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),          cmocka_unit_test(other_formats),
        cmocka_unit_test(without_marker), cmocka_unit_test(default_system),
        cmocka_unit_test(drop_system),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
