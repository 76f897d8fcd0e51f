/*
 * Rows of chats in the shapes in which data sets have them: contents of parts, messages under ShareGPT's key.
 */
#include "data/row_case.h"

#define NONE                                                                                       \
    (tsr_dataset_options)                                                                          \
    {                                                                                              \
        0                                                                                          \
    }

static void parts_are_joined(void **state)
{
    (void)state;
    tsr_dataset *data =
        load("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a \"},"
             "{\"type\":\"text\",\"text\":\"b\",\"image_url\":null}]},"
             "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}]}]}\n"
             "{\"messages\":[{\"role\":\"user\",\"content\":[]},"
             "{\"role\":\"assistant\",\"content\":\"d\"}]}\n",
             plain, NONE);
    check_text(data, 0, "<user>a b<|eot_id|>\n<assistant>c<|eot_id|>\n");
    check_row(data, 0, ".c<|eot_id|>\n");
    check_text(data, 1, "<user><|eot_id|>\n<assistant>d<|eot_id|>\n");
    tsr_dataset_destroy(data);
    data =
        load("{\"prompt\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}],"
             "\"completion\":[{\"role\":\"assistant\",\"content\":\"b\"}]}\n",
             plain, NONE);
    check_text(data, 0, "<user>a<|eot_id|>\n<assistant>b<|eot_id|>\n");
    tsr_dataset_destroy(data);
}

#define ROW(content)                                                                               \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"    \
    "\"b\"}]}\n{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","         \
    "\"content\":" content "},{\"role\":\"assistant\",\"content\":\"c\"}]}\n"

static void other_parts_are_named(void **state)
{
    (void)state;
    refuses(ROW("[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image_url\",\"image_url\":{}}]"),
            plain, NONE, TSR_EDATA,
            (const char *const[]){"rows.jsonl:2", "messages[1]", "\"content\"[1]",
                                  "of type \"image_url\"", "rows are text", NULL});
    refuses(
        ROW("[{\"text\":\"x\"}]"), plain, NONE, TSR_EDATA,
        (const char *const[]){"rows.jsonl:2", "messages[1]", "\"content\"[0] is no part", NULL});
    refuses(ROW("[\"x\"]"), plain, NONE, TSR_EDATA,
            (const char *const[]){"rows.jsonl:2", "\"content\"[0] is no part", NULL});
    refuses(ROW("[{\"type\":\"text\"}]"), plain, NONE, TSR_EDATA,
            (const char *const[]){"rows.jsonl:2", "type text without", NULL});
}

static void messages_as_conversations(void **state)
{
    (void)state;
    tsr_dataset *data =
        load("{\"conversations\":[{\"role\":\"user\",\"content\":\"a\"},"
             "{\"role\":\"assistant\",\"content\":\"b\"},{\"from\":\"human\",\"value\":\"c\"},"
             "{\"role\":\"gpt\",\"content\":\"d\"}]}\n"
             "{\"system\":\"s\",\"conversations\":[{\"role\":\"user\",\"content\":\"a\"},"
             "{\"role\":\"assistant\",\"content\":\"b\",\"weight\":0},"
             "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}\n"
             "{\"system\":\"s\",\"conversations\":[{\"role\":\"system\",\"content\":\"t\"},"
             "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n",
             plain, NONE);
    assert_int_equal(tsr_dataset_format(data), TSR_DATA_SHAREGPT);
    check_text(data, 0,
               "<user>a<|eot_id|>\n<assistant>b<|eot_id|>\n<user>c<|eot_id|>\n"
               "<assistant>d<|eot_id|>\n");
    check_row(data, 1, ".d<|eot_id|>\n");
    check_text(data, 2, "<system>t<|eot_id|>\n<user>a<|eot_id|>\n<assistant>b<|eot_id|>\n");
    tsr_dataset_destroy(data);
    refuses("{\"conversations\":[{\"says\":\"a\"}]}\n", plain, NONE, TSR_EDATA,
            (const char *const[]){"rows.jsonl:1", "\"conversations\"[0]", "\"from\"", "\"role\"",
                                  NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_joined),
        cmocka_unit_test(other_parts_are_named),
        cmocka_unit_test(messages_as_conversations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
