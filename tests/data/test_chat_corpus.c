/* What chats do with the templates of published models (tests/golden/corpus). */
#include "data/chat_parts.h"
#include "data/golden_lines.h"

#define DIR "tests/golden/corpus/"

static tsr_tokenizer *tokenizer;

static int setup(void **state)
{
    (void)state;
    return tsr_tokenizer_open(&tokenizer, TSR_SOURCE_DIR "/examples/tiny-llama");
}

static int teardown(void **state)
{
    (void)state;
    tsr_tokenizer_destroy(tokenizer);
    return 0;
}

static tsr_chat *open_chat(const char *name)
{
    tsr_chat *chat;
    char path[1024];
    snprintf(path, sizeof path, "%s/" DIR "%s.jinja", TSR_SOURCE_DIR, name);
    tsr_chat_options options = {.template_path = path, .now = 1721952000}; /* 2024-07-26 */
    if (tsr_chat_create(&chat, tokenizer, &options) < 0)
        fail_msg("%s", tsr_last_error());
    chat->chosen = chat->template;
    return chat;
}

/* ---- roles ---- */

/* The templates that have a role of their own; to the others every word here is the standard one. */
static const char *const own_roles[][2] = {{"gemma4", "developer"}, {"gpt-oss", "developer"},
                                           {"llama3.1", "ipython"}, {"llama3.2-vision", "ipython"},
                                           {"llama3.2", "ipython"}, {"llama4", "ipython"}};

static const struct {
    const char *word, *standard; /* NULL: nobody knows it */
} words[] = {{"system", "system"},     {"user", "user"},           {"assistant", "assistant"},
             {"tool", "tool"},         {"developer", "system"},    {"ipython", "tool"},
             {"model", "assistant"},   {"Assistant", "assistant"}, {"gpt", "assistant"},
             {"CHATBOT", "assistant"}, {"Human", "user"},          {"function", "tool"},
             {"observation", "tool"},  {"wizard", NULL},           {"", NULL},
             {"assistant turn", NULL}};

static bool is_own(const char *template, const char *word)
{
    for (size_t i = 0; i < sizeof own_roles / sizeof *own_roles; i++)
        if (!strcmp(own_roles[i][0], template) && !strcmp(own_roles[i][1], word))
            return true;
    return false;
}

static void test_roles(void **state)
{
    (void)state;
    json_t *lines = golden_lines(DIR "expected.jsonl");
    for (size_t i = 1; i < json_array_size(lines); i++) { /* the first has versions */
        const char *name = json_string_value(json_object_get(json_array_get(lines, i), "template"));
        tsr_chat *chat = open_chat(name);
        for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
            const char *role, *word = words[w].word;
            const char *want = is_own(name, word) ? word : words[w].standard;
            assert_int_equal(tsr_chat_role(&role, chat, word), TSR_OK);
            if (!role != !want || (role && strcmp(role, want)))
                fail_msg("%s: %s is %s", name, word, role ? role : "unknown");
        }
        tsr_chat_destroy(chat);
    }
    json_decref(lines);
}

/* ---- where turns are ---- */

/* Renders the conversation as a row is; false: it cannot be. */
static bool open_row(tsr_conversation *c, tsr_chat *chat, tsr_chat_row *row, json_t *variables)
{
    json_decref(chat->names);
    chat->names = json_deep_copy(variables);
    *c = (tsr_conversation){
        .chat = chat, .row = row, .messages = json_object_get(variables, "messages")};
    if (tsr_chat_see(&c->seen, chat, c->messages) < 0)
        return false;
    if (tsr_chat_render(&row->scratch[0], chat, c->seen, json_array_size(c->seen), false) < 0)
        return false;
    tsr_text text = row->text;
    row->text = row->scratch[0].text;
    row->scratch[0].text = text;
    return true;
}

typedef struct {
    int same, differ, places, prefix, neither;
} outcomes;

static void compare_turn(outcomes *o, tsr_conversation *c, size_t index, const char *name,
                         size_t set)
{
    bool found;
    tsr_span a, b;
    assert_int_equal(tsr_chat_turn_by_places(&found, &a, c, index), TSR_OK);
    tsr_status status = tsr_chat_turn_by_prefix(&b, c, index);
    bool same = found && status == TSR_OK && a.begin == b.begin && a.end == b.end;
    assert_true(status == TSR_OK || status == TSR_EDATA);
    o->same += same;
    o->places += found && status < 0;
    o->prefix += !found && status == TSR_OK;
    o->neither += !found && status < 0;
    if (!found || status < 0 || same)
        return;
    o->differ++;
    print_error("%s %zu, turn %zu: \"%.*s\" by places, \"%.*s\" by prefix\n", name, set, index,
                (int)(a.end - a.begin), c->row->text.data + a.begin, (int)(b.end - b.begin),
                c->row->text.data + b.begin);
}

/* Every turn of every conversation under every template without marks, in both ways: where both tell, they tell the
 * same. The counts are of what was looked at; another one is to be looked at again. */
static void test_both_ways(void **state)
{
    (void)state;
    size_t bytes;
    outcomes o = {0};
    tsr_chat_row row = {0};
    char *text = golden_file(DIR "conversations.json", &bytes);
    json_t *sets = json_loadb(text, bytes, 0, NULL), *lines = golden_lines(DIR "expected.jsonl");
    for (size_t i = 1; i < json_array_size(lines); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(lines, i), "template"));
        tsr_chat *chat = open_chat(name);
        for (size_t set = 0; set < json_array_size(sets); set++) {
            tsr_conversation c;
            bool open = open_row(&c, chat, &row, json_array_get(sets, set));
            open = open && !tsr_template_marks_generation(chat->template);
            for (size_t k = 0; open && k < json_array_size(c.messages); k++)
                if (tsr_chat_is_assistant(json_array_get(c.messages, k)))
                    compare_turn(&o, &c, k, name, set);
            tsr_conversation_free(&c);
        }
        tsr_chat_destroy(chat);
    }
    assert_int_equal(o.differ, 0);
    assert_int_equal(o.same, 1300);
    assert_int_equal(o.places, 176);
    assert_int_equal(o.prefix, 128);
    assert_int_equal(o.neither, 101);
    json_decref(lines);
    json_decref(sets);
    free(text);
    tsr_chat_row_free(&row);
}

/* What is trained, turn by turn; NULL: the row is refused. */
static const struct {
    const char *template, *messages, *turns[3];
} trained[] = {
#define TWO                                                                                        \
    "[{'role':'user','content':'a'},{'role':'assistant','content':'b'},"                           \
    "{'role':'user','content':'c'},{'role':'assistant','content':'d'}]"
#define THOUGHT                                                                                    \
    "[{'role':'user','content':'a'},{'role':'assistant','content':'b','reasoning_content':'r'},"   \
    "{'role':'user','content':'c'},{'role':'assistant','content':'d','reasoning_content':'s'}]"
    {"deepseek-r1-distill",
     TWO,
     {"b<\uff5cend\u2581of\u2581sentence\uff5c>", "d<\uff5cend\u2581of\u2581sentence\uff5c>"}},
    {"deepseek-v3",
     TWO,
     {"b<\uff5cend\u2581of\u2581sentence\uff5c>", "d<\uff5cend\u2581of\u2581sentence\uff5c>"}},
    {"qwq", TWO, {"b<|im_end|>\n", "d<|im_end|>\n"}},
    {"qwen3", TWO, {"b<|im_end|>\n", "<think>\n\n</think>\n\nd<|im_end|>\n"}},
    {"qwen3", THOUGHT, {"b<|im_end|>\n", "<think>\ns\n</think>\n\nd<|im_end|>\n"}},
    {"phi3", TWO, {"b<|end|>\n", "d<|end|>\n<|eot_id|>"}},
    {"chatml", TWO, {"b<|im_end|>\n", "d<|im_end|>\n"}},
    {"mistral-v1", TWO, {" b<|eot_id|>", " d<|eot_id|>"}},
};

static void test_trained_turns(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof trained / sizeof *trained; i++) {
        tsr_chat *chat = open_chat(trained[i].template);
        tsr_chat_row row = {0};
        char text[512];
        snprintf(text, sizeof text, "%s", trained[i].messages);
        for (char *p = text; *p; p++)
            *p = *p == '\'' ? '"' : *p;
        json_t *messages = json_loads(text, 0, NULL);
        tsr_conversation c = {.chat = chat, .row = &row, .messages = messages};
        assert_int_equal(tsr_chat_encode(&row, chat, messages, NULL, 0, true), TSR_OK);
        assert_int_equal(tsr_chat_see(&c.seen, chat, messages), TSR_OK);
        for (size_t k = 1, turn = 0; k < json_array_size(messages); k += 2, turn++) {
            tsr_span span;
            assert_int_equal(tsr_chat_turn(&span, &c, k), TSR_OK);
            const char *want = trained[i].turns[turn];
            if (strlen(want) != span.end - span.begin ||
                memcmp(row.text.data + span.begin, want, strlen(want)) != 0)
                fail_msg("%s, turn %zu: \"%.*s\"", trained[i].template, k,
                         (int)(span.end - span.begin), row.text.data + span.begin);
        }
        tsr_conversation_free(&c);
        json_decref(messages);
        tsr_chat_row_free(&row);
        tsr_chat_destroy(chat);
    }
}

/* A chat of 16000 messages, turns with calls among them: its beginnings are not rendered anew for each turn, which took
 * minutes. */
static void test_long_chat(void **state)
{
    (void)state;
    static const char *const templates[] = {"chatml", "qwen3", "qwq"};
    json_t *messages = json_array();
    for (int i = 0; i < 8000; i++) {
        char said[32];
        snprintf(said, sizeof said, "number %d", i);
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", said));
        json_array_append_new(
            messages, i % 4 == 1 ? json_pack("{s:s, s:s, s:[{s:{s:s, s:{}}}]}", "role", "assistant",
                                             "content", "", "tool_calls", "function", "name", said,
                                             "arguments")
                                 : json_pack("{s:s, s:s}", "role", "assistant", "content", said));
    }
    for (size_t t = 0; t < sizeof templates / sizeof *templates; t++) {
        tsr_chat *chat = open_chat(templates[t]);
        tsr_chat_row row = {0};
        json_t *variables = json_pack("{s:O}", "messages", messages);
        tsr_conversation c;
        if (!open_row(&c, chat, &row, variables))
            fail_msg("%s", tsr_last_error());
        for (size_t i = 1; i < json_array_size(messages); i += 2) {
            bool found, calls = i / 2 % 4 == 1;
            tsr_span span;
            assert_int_equal(tsr_chat_turn_by_places(&found, &span, &c, i), TSR_OK);
            assert_true(found || calls); /* of calls it depends on the template */
        }
        tsr_conversation_free(&c);
        json_decref(variables);
        tsr_chat_row_free(&row);
        tsr_chat_destroy(chat);
    }
    json_decref(messages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roles), cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_trained_turns), cmocka_unit_test(test_long_chat)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
