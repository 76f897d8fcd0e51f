/* Several data sets as one, and rows under other names. */
#include "support/scratch.h"

#include "base/text.h"
#include "data/columns.h"
#include "data/mix.h"

#include <string.h>

static int setup(void **state)
{
    (void)state;
    scratch_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

/* Row i of part p is 100 p + i + 1, twice. */
static tsr_dataset *load(int part, int rows)
{
    char name[32];
    tsr_text text = {0};
    tsr_dataset *data = NULL;
    snprintf(name, sizeof name, "part%d.jsonl", part);
    const char *path = scratch_path(name);
    for (int i = 0; i < rows; i++)
        tsr_text_printf(&text, "{\"input_ids\":[%d,%d]}\n", 100 * part + i + 1, 100 * part + i + 1);
    write_text(path, tsr_text_string(&text));
    tsr_text_free(&text);
    const tsr_dataset_options options = {.files = &path, .file_count = 1};
    if (tsr_dataset_load(&data, &options) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return data;
}

/* Parts of 4, 3 and 6 rows. */
static tsr_dataset *mix(bool interleave, const double *weights, uint64_t seed, int64_t most)
{
    tsr_dataset *parts[] = {load(0, 4), load(1, 3), load(2, 6)}, *out = NULL;
    const tsr_mix_options options = {interleave, weights, seed, most};
    if (tsr_dataset_mix(&out, parts, 3, &options) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return out;
}

static void check_order(tsr_dataset *data, const char *expected)
{
    tsr_text found = {0};
    for (int64_t i = 0; i < tsr_dataset_sample_count(data); i++) {
        tsr_sample s = tsr_dataset_sample(data, i);
        tsr_text_printf(&found, "%s%d", i ? " " : "", s.ids[0]);
        assert_int_equal(s.file, s.ids[0] / 100);
        assert_int_equal(s.line, s.ids[0] % 100);
    }
    assert_string_equal(tsr_text_string(&found), expected);
    tsr_text_free(&found);
    assert_int_equal(tsr_dataset_stats_of(data)->tokens, 2 * tsr_dataset_sample_count(data));
    tsr_dataset_destroy(data);
}

static void concatenated(void **state)
{
    (void)state;
    check_order(mix(false, (double[]){0, 0, 0}, 1, 0),
                "1 2 3 4 101 102 103 201 202 203 204 205 206");
    check_order(mix(false, (double[]){0.5, 2, 0.17}, 1, 0), "1 2 101 102 103 101 102 103 201");
    check_order(mix(false, (double[]){0, 0, 0}, 1, 5), "1 2 3 4 101");
}

static void interleaved(void **state)
{
    (void)state;
    check_order(mix(true, (double[]){0, 0, 0}, 1, 0), "1 101 201 2 102 202 3 103 203");
    check_order(mix(true, (double[]){0, 0, 0}, 1, 4), "1 101 201 2");
    /* A set that is nearly never drawn; the run ends with the last sample of another. */
    check_order(mix(true, (double[]){1e6, 1e-6, 1e-6}, 1, 0), "1 2 3 4");
}

/* Draws follow the weights, each set keeps its order, and the seed decides. */
static void drawn(void **state)
{
    (void)state;
    int of_first = 0, all = 0;
    uint64_t hashes[2] = {0};
    for (uint64_t seed = 0; seed < 300; seed++) {
        tsr_dataset *data = mix(true, (double[]){3, 1, 1}, seed, 3);
        int last[3] = {0};
        for (int64_t i = 0; i < tsr_dataset_sample_count(data); i++) {
            int id = tsr_dataset_sample(data, i).ids[0];
            assert_int_equal(id % 100, ++last[id / 100]);
            of_first += id < 100;
            all++;
        }
        if (seed < 2)
            hashes[seed] = tsr_dataset_hash(data);
        tsr_dataset_destroy(data);
    }
    assert_in_range(of_first * 100 / all, 53, 67); /* 60 % */
    tsr_dataset *again = mix(true, (double[]){3, 1, 1}, 0, 3);
    assert_true(tsr_dataset_hash(again) == hashes[0]);
    tsr_dataset_destroy(again);
}

static void check_row(const char *row, const tsr_columns *columns, const char *expected)
{
    json_t *object = json_loads(row, 0, NULL), *want = json_loads(expected, 0, NULL);
    tsr_status status = tsr_columns_map(&object, columns, "rows.jsonl:7");
    if (want) {
        if (status != TSR_OK || !json_equal(object, want))
            fail_msg("%s: %s", row, status < 0 ? tsr_last_error() : json_dumps(object, 0));
    } else {
        assert_int_equal(status, TSR_EDATA);
        assert_null(object);
        if (!strstr(tsr_last_error(), expected))
            fail_msg("expected \"%s\" in: %s", expected, tsr_last_error());
    }
    json_decref(object);
    json_decref(want);
}

static void columns(void **state)
{
    static const tsr_rename roles[] = {{"asker", "user", "roles", true}};
    const tsr_columns chats = {.columns = {{"talk", "messages", "field_messages", false},
                                           {"sys", "system", "field_system", true}},
                               .column_count = 2,
                               .members = {{"who", "role", "message_property_mappings", false},
                                           {"says", "content", "message_property_mappings", true}},
                               .member_count = 2,
                               .roles = roles,
                               .role_count = 1,
                               .list = "messages",
                               .role = "role"};
    const tsr_columns swapped = {.columns = {{"output", "instruction", "field_instruction", false},
                                             {"instruction", "output", "field_output", false}},
                                 .column_count = 2,
                                 .list = "messages",
                                 .role = "role"};
    const tsr_columns chat = {.list = "messages", .role = "role", .chat = true};
    (void)state;
    check_row("{\"talk\":[{\"who\":\"asker\",\"says\":\"a\",\"weight\":0}],\"sys\":\"S\"}", &chats,
              "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"
              "{\"role\":\"user\",\"content\":\"a\",\"weight\":0}],\"system\":\"S\"}");
    check_row("{\"talk\":[{\"who\":\"system\",\"says\":\"T\"}],\"sys\":\"S\"}", &chats,
              "{\"messages\":[{\"role\":\"system\",\"content\":\"T\"}],\"system\":\"S\"}");
    check_row("{\"chat\":[]}", &chats, "rows.jsonl:7: has no \"talk\", which field_messages names");
    check_row("{\"talk\":[{\"says\":\"a\"}]}", &chats, "\"messages\"[0]: has no \"who\"");
    check_row("{\"talk\":[7]}", &chats, "\"messages\"[0] is");
    check_row("{\"talk\":\"a\"}", &chats, "key 'messages' is");
    check_row("{\"instruction\":\"a\",\"output\":\"b\"}", &swapped,
              "{\"instruction\":\"b\",\"output\":\"a\"}");
    check_row("{\"instruction\":\"a\",\"input\":\"b\",\"output\":\"c\",\"system\":\"S\","
              "\"history\":[[\"d\",\"e\"]],\"tools\":[]}",
              &chat,
              "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"
              "{\"role\":\"user\",\"content\":\"d\"},{\"role\":\"assistant\",\"content\":\"e\"},"
              "{\"role\":\"user\",\"content\":\"a\\nb\"},"
              "{\"role\":\"assistant\",\"content\":\"c\"}],\"tools\":[]}");
    check_row("{\"instruction\":\"a\",\"output\":\"c\",\"history\":[[\"d\"]]}", &chat,
              "\"history\"[0] is not a question and an answer");
    check_row("{\"output\":\"c\"}", &chat, "\"instruction\" is missing or empty");
}

#define USER(text)      "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define SYSTEM(text)    "{\"role\":\"system\",\"content\":\"" text "\"}"

/* Rows of preferences that become chats, or that have other names alone. */
static void pairs(void **state)
{
    static const tsr_rename roles[] = {{"asker", "user", "roles", true}};
    static const tsr_columns named = {
        .columns = {{"q", "prompt", "field_prompt", false}, {"bad", "rejected", "field_rejected"}},
        .column_count = 2,
        .role = "role",
        .pairs = true,
        .names_prompt = true};
    tsr_columns chat = {.role = "role", .pairs = true, .chat = true};
    tsr_columns asked = chat, talks = chat, whole = chat, instructed = chat;
    (void)state;
    check_row("{\"q\":\"a\",\"prompt\":\"z\",\"chosen\":\"b\",\"bad\":\"c\"}", &named,
              "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}");
    check_row("{\"chosen\":\"b\",\"bad\":\"c\"}", &named, "has no \"q\", which field_prompt names");
    /* texts, a message, and lists that repeat the prompt */
    asked.columns[asked.column_count++] = (tsr_rename){"question", "prompt", "field_prompt", true};
    asked.names_prompt = asked.names_system = true;
    check_row("{\"question\":\"a\",\"system\":\"S\",\"chosen\":\"b\",\"rejected\":\"c\"}", &asked,
              "{\"system\":\"S\",\"prompt\":[" SYSTEM("S") "," USER("a") "],\"chosen\":[" ASSISTANT(
                  "b") "],\"rejected\":[" ASSISTANT("c") "]}");
    check_row("{\"question\":\"a\",\"system\":\"\",\"chosen\":[" USER("a") "," ASSISTANT(
                  "b") "],\"rejected\":" ASSISTANT("c") "}",
              &asked,
              "{\"system\":\"\",\"prompt\":[" USER("a") "],\"chosen\":[" ASSISTANT(
                  "b") "],\"rejected\":[" ASSISTANT("c") "]}");
    check_row("{\"system\":\"S\",\"chosen\":[" USER("a") "," ASSISTANT("b") "],\"rejected\":[" USER(
                  "a") "," ASSISTANT("c") "]}",
              &asked,
              "{\"system\":\"S\",\"chosen\":[" SYSTEM("S") "," USER("a") "," ASSISTANT(
                  "b") "],\"rejected\":[" SYSTEM("S") "," USER("a") "," ASSISTANT("c") "]}");
    check_row("{\"question\":\"a\",\"system\":7,\"chosen\":\"b\",\"rejected\":\"c\"}", &asked,
              "key 'system' is");
    /* without a name for the prompt the lists are whole, and a system prompt is another column */
    check_row("{\"prompt\":\"z\",\"system\":\"S\",\"chosen\":[" USER("a") "," ASSISTANT(
                  "b") "],\"rejected\":[" USER("a") "," ASSISTANT("c") "]}",
              &chat,
              "{\"system\":\"S\",\"chosen\":[" USER("a") "," ASSISTANT("b") "],\"rejected\":[" USER(
                  "a") "," ASSISTANT("c") "]}");
    check_row("{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}", &chat,
              "{\"prompt\":[" USER("a") "],\"chosen\":[" ASSISTANT(
                  "b") "],\"rejected\":[" ASSISTANT("c") "]}");
    /* a prompt of messages: answers of several stay whole */
    check_row("{\"prompt\":[" USER("a") "],\"chosen\":[" ASSISTANT("b") "," USER("d") "," ASSISTANT(
                  "e") "],\"rejected\":[" ASSISTANT("c") "]}",
              &chat,
              "{\"prompt\":[" USER("a") "],\"chosen\":[" ASSISTANT("b") "," USER("d") "," ASSISTANT(
                  "e") "],\"rejected\":[" ASSISTANT("c") "]}");
    /* LLaMA-Factory's */
    talks.columns[talks.column_count++] = (tsr_rename){"conversations", "prompt", "f", true};
    talks.members[talks.member_count++] = (tsr_rename){"from", "role", "m", false};
    talks.members[talks.member_count++] = (tsr_rename){"value", "content", "m", true};
    talks.roles = roles;
    talks.role_count = 1;
    check_row(
        "{\"conversations\":[{\"from\":\"asker\",\"value\":\"a\"}],\"chosen\":{\"from\":"
        "\"assistant\",\"value\":\"b\"},\"rejected\":{\"from\":\"assistant\",\"value\":\"c\"}}",
        &talks,
        "{\"prompt\":[" USER("a") "],\"chosen\":[" ASSISTANT("b") "],\"rejected\":[" ASSISTANT(
            "c") "]}");
    check_row("{\"conversations\":[],\"chosen\":{\"value\":\"b\"}}", &talks,
              "\"chosen\"[0]: has no \"from\"");
    whole.columns[whole.column_count++] = (tsr_rename){"messages", "completion", "f", false};
    check_row("{\"messages\":[" USER("a") "," ASSISTANT("b") "," USER("d") "," ASSISTANT(
                  "e") "],\"label\":true}",
              &whole,
              "{\"label\":true,\"prompt\":[" USER("a") "," ASSISTANT("b") "," USER(
                  "d") "],\"completion\":[" ASSISTANT("e") "]}");
    instructed.asks = true;
    check_row(
        "{\"instruction\":\"a\",\"input\":\"b\",\"system\":\"S\",\"history\":7,"
        "\"completion\":\"c\"}",
        &instructed,
        "{\"instruction\":\"a\",\"prompt\":[" USER("a") "],\"completion\":[" ASSISTANT("c") "]}");
    instructed.names_system = instructed.names_input = instructed.names_history = true;
    check_row("{\"instruction\":\"a\",\"input\":\"b\",\"system\":\"S\",\"history\":[[\"d\",\"e\"]],"
              "\"completion\":\"c\",\"label\":false}",
              &instructed,
              "{\"instruction\":\"a\",\"input\":\"b\",\"system\":\"S\",\"history\":[[\"d\",\"e\"]],"
              "\"label\":false,\"prompt\":[" SYSTEM("S") "," USER("d") "," ASSISTANT("e") "," USER(
                  "a\\nb") "],\"completion\":[" ASSISTANT("c") "]}");
    check_row("{\"chosen\":\"b\",\"rejected\":\"c\"}", &instructed, "\"instruction\" is missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(concatenated),
                                       cmocka_unit_test(interleaved), cmocka_unit_test(drawn),
                                       cmocka_unit_test(columns), cmocka_unit_test(pairs)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
