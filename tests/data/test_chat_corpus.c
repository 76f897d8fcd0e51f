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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_roles)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
