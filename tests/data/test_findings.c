/* What is said about rows that are kept: keys that are not read, turns without words, what a template leaves out. */
#include "data/tiny_llama.h"

#include "base/log.h"
#include "base/text.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

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

static char warnings[4096];

static void note(void *user, tsr_log_level level, const char *line)
{
    (void)user;
    if (level <= TSR_LOG_INFO)
        strncat(warnings, line, sizeof warnings - strlen(warnings) - 1);
}

/* What rows say about training: SlimOrca's weights are honoured, and what is not read is named once. */
static void training_keys(void **state)
{
    (void)state;
    const char *text = "{\"conversations\":[{\"from\":\"system\",\"value\":\"s\",\"weight\":null},"
                       "{\"from\":\"human\",\"value\":\"a\",\"weight\":0.0},"
                       "{\"from\":\"gpt\",\"value\":\"b\",\"weight\":0.0},"
                       "{\"from\":\"human\",\"value\":\"c\",\"weight\":0.0,\"loss_mask\":1},"
                       "{\"from\":\"gpt\",\"value\":\"4\",\"weight\":1.0}]}\n"
                       "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\",\"train\":true},"
                       "{\"from\":\"gpt\",\"value\":\"b\",\"is_trained\":false}],\"Weight\":1}\n";
    warnings[0] = 0;
    tsr_log_set(note, NULL, TSR_LOG_WARNING);
    tsr_dataset *data = load(text, (tsr_dataset_options){0});
    tsr_log_set(NULL, NULL, TSR_LOG_WARNING);
    assert_int_equal(tsr_dataset_sample(data, 0).label_count, 2); /* "4" and the end of the turn */
    assert_int_equal(tsr_dataset_sample(data, 1).label_count, 2);
    assert_non_null(strstr(warnings, "dataset: 2 of 2 rows have keys that seem to say what is "
                                     "trained, and are not read: \"loss_mask\", \"Weight\", "
                                     "\"is_trained\" (first "));
    assert_non_null(strstr(warnings, "dataset: 1 of 2 rows ask to train a message that is not the "
                                     "assistant's"));
    assert_non_null(strstr(warnings, "rows.jsonl:2)"));
    const tsr_dataset_stats *stats = tsr_dataset_stats_of(data);
    assert_int_equal(stats->found[TSR_FINDING_KEYS].line, 1);
    assert_int_equal(stats->found[TSR_FINDING_IN_VAIN].line, 2);
    tsr_dataset_destroy(data);
    /* A row's own keys are told from the key of its text. */
    data =
        load("{\"training_text\":\"a b\"}", (tsr_dataset_options){.text_field = "training_text"});
    assert_int_equal(tsr_dataset_stats_of(data)->found[TSR_FINDING_KEYS].rows, 0);
    tsr_dataset_destroy(data);
}

#define ASKED "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
#define CALLS                                                                                      \
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":\"function\","             \
    "\"function\":"                                                                                \
    "{\"name\":\"f\",\"arguments\":{}}}]}"
#define ANSWER "{\"role\":\"assistant\",\"content\":\"b\"}"
#define SILENT "{\"role\":\"assistant\",\"content\":\" \"}"

/* Turns without a word: the template of the model knows no tool_calls. */
static void empty_turns(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words; /* of the warnings; NULL: none */
        int64_t bare, calls;
        tsr_dataset_options options;
    } cases[] = {
        {ASKED CALLS "," ANSWER "]}\n" ASKED ANSWER "]}\n" ASKED CALLS "]}\n",
         "dataset: 2 of 3 rows train an empty turn or completion: what ends it alone (first ",
         2,
         2,
         {0}},
        {ASKED ANSWER "]}\n" ASKED SILENT "]}\n", "rows.jsonl:2)", 1, 0, {0}},
        {ASKED SILENT "]}\n" ASKED ANSWER "]}\n", NULL, 0, 0, {.assistant_only = TSR_LOSS_NO}},
        {ASKED "{\"role\":\"assistant\",\"content\":\"\",\"weight\":0}," ANSWER "]}\n",
         NULL,
         0,
         0,
         {0}},
        {ASKED "{\"role\":\"assistant\",\"content\":\"let me see\",\"tool_calls\":[{\"function\":"
               "{\"name\":\"f\",\"arguments\":{}}}]}]}",
         "dataset: 1 of 1 rows have tool_calls that the chat template leaves out",
         0,
         1,
         {0}},
        {"{\"prompt\":\"a\",\"completion\":\"\"}\n{\"prompt\":\"a\",\"completion\":\"b\"}\n",
         "rows.jsonl:1)",
         1,
         0,
         {0}},
        {"{\"prompt\":\"a\",\"completion\":\"\"}\n", NULL, 0, 0, {.completion_only = TSR_LOSS_NO}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        warnings[0] = 0;
        tsr_log_set(note, NULL, TSR_LOG_WARNING);
        tsr_dataset *data = load(cases[i].text, cases[i].options);
        tsr_log_set(NULL, NULL, TSR_LOG_WARNING);
        const tsr_found *found = tsr_dataset_stats_of(data)->found;
        assert_int_equal(found[TSR_FINDING_BARE].rows, cases[i].bare);
        assert_int_equal(found[TSR_FINDING_CALLS].rows, cases[i].calls);
        if (cases[i].words && !strstr(warnings, cases[i].words))
            fail_msg("%s: %s", cases[i].text, warnings);
        if (!cases[i].words)
            assert_string_equal(warnings, "");
        tsr_dataset_destroy(data);
    }
    static const struct {
        const char *text;
        const char *words[MOST_WORDS];
    } refused[] = {
        {ASKED SILENT "]}\n" ASKED SILENT "]}\n",
         {"every row (", "rows.jsonl:1 and on)", "only empty turns or completions"}},
        {ASKED CALLS "]}\n{\"messages\":[{\"role\":\"user\",\"content\":\"no answer\"}]}\n",
         {"rows.jsonl:1 and on", "leaves out their tool_calls", "chat_template"}},
        {"{\"instruction\":\"a\",\"output\":\"\"}\n{\"instruction\":\"b\",\"output\":\"\\n\"}\n",
         {"rows.jsonl:1 and on", "what ends them is all"}},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        tsr_dataset *data = NULL;
        check_error(refused[i].text, load_with(&data, refused[i].text, (tsr_dataset_options){0}),
                    TSR_EDATA, refused[i].words);
        assert_null(data);
    }
}

/* A template that renders the calls: nothing is empty, and nothing left out. */
static void rendered_calls(void **state)
{
    (void)state;
    const char *template = scratch_path("calls.jinja");
    write_text(template,
               "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls "
               "or [] %}{{ c.function.name }}{% endfor %}<|eot_id|>{% endfor %}"
               "{% if add_generation_prompt %}<assistant>{% endif %}");
    tsr_chat *before = chat;
    tsr_chat_options options = {.template = template};
    assert_int_equal(tsr_chat_create(&chat, tokenizer, &options), TSR_OK);
    tsr_dataset *data = load(ASKED CALLS "]}\n", (tsr_dataset_options){0});
    const tsr_found *found = tsr_dataset_stats_of(data)->found;
    for (int i = 0; i < TSR_FINDING_COUNT; i++)
        assert_int_equal(found[i].rows, 0);
    tsr_dataset_destroy(data);
    tsr_chat_destroy(chat);
    chat = before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_keys),
        cmocka_unit_test(empty_turns),
        cmocka_unit_test(rendered_calls),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
