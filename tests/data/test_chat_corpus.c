/* What chats do with the templates of published models (tests/golden/corpus). */
#include "data/chat_parts.h"
#include "data/golden_lines.h"

#define DIR "tests/golden/corpus/"

static const tsr_chat_training assistants = {.assistant_only = true};

static tsr_tokenizer *tokenizer;

static int setup(void **state)
{
    (void)state;
    return tsr_tokenizer_open(&tokenizer, TSR_SOURCE_DIR "/examples/tiny-llama", false);
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
    tsr_chat_options options = {.template = path, .now = 1721952000}; /* 2024-07-26 */
    if (tsr_chat_create(&chat, tokenizer, &options) < 0)
        fail_msg("%s", tsr_last_error());
    chat->chosen = chat->template;
    return chat;
}

/* ---- roles ---- */

/* The templates that have a role of their own; to the others every word here is the standard one. */
static const char *const own_roles[][2] = {
    {"gemma4", "developer"}, {"gpt-oss", "developer"},       {"gpt-oss-training", "developer"},
    {"llama3.1", "ipython"}, {"llama3.2-vision", "ipython"}, {"llama3.2", "ipython"},
    {"llama4", "ipython"}};

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
    assert_int_equal(o.same, 1375);
    assert_int_equal(o.places, 203);
    assert_int_equal(o.prefix, 140);
    assert_int_equal(o.neither, 109);
    json_decref(lines);
    json_decref(sets);
    free(text);
    tsr_chat_row_free(&row);
}

/* ---- roles and ends of turns that are chosen ---- */

typedef struct {
    int rows, ends, no_ends, users, no_users;
} chosen_outcomes;

/* Encodes with a choice; NULL: the row is refused. The caller frees the mask. */
static uint8_t *mask_of(tsr_chat_row *row, tsr_chat *chat, const json_t *variables,
                        tsr_chat_training training)
{
    const json_t *tools = json_object_get(variables, "tools");
    training.assistant_only = true;
    tsr_status status = tsr_chat_encode(row, chat, json_object_get(variables, "messages"),
                                        json_is_array(tools) ? tools : NULL, 0, &training);
    assert_true(status == TSR_OK || status == TSR_EDATA);
    if (status < 0)
        return NULL;
    uint8_t *mask = malloc(row->tokens.count + 1);
    assert_non_null(mask);
    memcpy(mask, row->mask, row->tokens.count);
    return mask;
}

/* Whether all that `a` trains `b` trains, or with `not_both` nothing of it. */
static bool compare(const uint8_t *a, const uint8_t *b, size_t count, bool not_both)
{
    for (size_t i = 0; i < count; i++)
        if (a[i] && b[i] == not_both)
            return false;
    return true;
}

static void choose_in(chosen_outcomes *o, tsr_chat *chat, tsr_chat_row *row,
                      const json_t *variables, const char *name, size_t set)
{
    const unsigned assistant = TSR_CHAT_ROLES_CHOSEN | TSR_CHAT_ASSISTANT;
    uint8_t *turn = mask_of(row, chat, variables, (tsr_chat_training){0});
    if (!turn)
        return;
    size_t count = row->tokens.count;
    uint8_t *same = mask_of(row, chat, variables, (tsr_chat_training){.roles = assistant});
    if (!same || memcmp(turn, same, count) != 0)
        fail_msg("%s %zu: the assistant's turns are not what is trained without a choice", name,
                 set);
    uint8_t *none = mask_of(row, chat, variables, (tsr_chat_training){.ends = TSR_CHAT_ENDS_NONE});
    uint8_t *last = mask_of(row, chat, variables, (tsr_chat_training){.ends = TSR_CHAT_ENDS_LAST});
    uint8_t *all = mask_of(row, chat, variables, (tsr_chat_training){.ends = TSR_CHAT_ENDS_ALL});
    if (!none != !last)
        fail_msg("%s %zu: an end is known, and is not", name, set);
    if ((none && (!compare(none, last, count, false) || !compare(last, turn, count, false))) ||
        (all && !compare(turn, all, count, false)))
        fail_msg("%s %zu: a choice of fewer ends trains more", name, set);
    uint8_t *user = mask_of(row, chat, variables,
                            (tsr_chat_training){.roles = TSR_CHAT_ROLES_CHOSEN | TSR_CHAT_USER});
    if (user && !compare(user, turn, count, true))
        fail_msg("%s %zu: a token of the user is the assistant's", name, set);
    o->rows++;
    o->ends += none != NULL;
    o->no_ends += none == NULL;
    o->users += user != NULL;
    o->no_users += user == NULL;
    free(turn);
    free(same);
    free(none);
    free(last);
    free(all);
    free(user);
}

/* Every conversation under every template: what holds of any choice. The counts are of what was looked at. */
static void test_chosen(void **state)
{
    (void)state;
    size_t bytes;
    chosen_outcomes o = {0};
    tsr_chat_row row = {0};
    char *text = golden_file(DIR "conversations.json", &bytes);
    json_t *sets = json_loadb(text, bytes, 0, NULL), *lines = golden_lines(DIR "expected.jsonl");
    for (size_t i = 1; i < json_array_size(lines); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(lines, i), "template"));
        tsr_chat *chat = open_chat(name);
        for (size_t set = 0; set < json_array_size(sets); set++)
            choose_in(&o, chat, &row, json_array_get(sets, set), name, set);
        tsr_chat_destroy(chat);
    }
    assert_int_equal(o.rows, 1710);
    assert_int_equal(o.ends, 1662);
    assert_int_equal(o.no_ends, 48);
    assert_int_equal(o.users, 1658);
    assert_int_equal(o.no_users, 52);
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
        assert_int_equal(tsr_chat_encode(&row, chat, messages, NULL, 0, &assistants), TSR_OK);
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

/* A long chat, turns with calls among them: its beginnings are not rendered anew for each turn, which takes time as
 * the square of its length. */
static void test_long_chat(void **state)
{
    (void)state;
    static const char *const templates[] = {"chatml", "qwen3", "qwq"};
    json_t *messages = json_array();
    for (int i = 0; i < 2000; i++) {
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

/* ---- templates by name ---- */

/* A name, the published template of its format, and what of that is another matter. */
static const struct {
    const char *name, *published;
    bool needs_system, no_system; /* the published one has its own system prompt, or elsewhere */
    const char *more;             /* that the published one writes behind a chat without prompt */
} named[] = {
    {"chatml", "chatml-default", false, false, ""},
    {"qwen", "qwen2.5", false, false, ""},
    {"llama3", "llama3", false, false, ""},
    {"mistral", "mistral-v3", false, true, ""},
    {"mistral_v1", "mistral-v1", false, false, ""},
    {"mistral_v3_tekken", "mistral-v3-tekken", false, true, ""},
    {"mistral_v7", "mistral-v7-tekken", true, false, ""},
    {"gemma3", "gemma3", false, false, ""},
    {"phi3", "phi3", false, false, "</s>"},
    {"phi_4", "phi4-axolotl", true, false, ""},
    {"zephyr", "zephyr", false, false, ""},
    {"alpaca", "alpaca", true, false, ""},
    {"llama2", "../templates/llama2", false, false, ""},
};

/* Of alternating turns of strings. */
static bool is_plain(const json_t *set, bool *has_system)
{
    const json_t *messages = json_object_get(set, "messages");
    size_t count = json_array_size(messages);
    *has_system = false;
    for (size_t i = 0; i < count; i++) {
        const json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        bool system = !i && !strcmp(role, "system");
        const char *want = (i - *has_system) % 2 ? "assistant" : "user";
        *has_system |= system;
        if ((!system && strcmp(role, want) != 0) || json_object_size(message) != 2 ||
            !json_is_string(json_object_get(message, "content")))
            return false;
    }
    return count > 1 && json_is_null(json_object_get(set, "tools"));
}

static int compare_named(tsr_chat *own, tsr_chat *published, const json_t *set, const char *more)
{
    tsr_rendering a = {0}, b = {0};
    json_t *names = json_deep_copy(set);
    json_object_set_new(names, "bos_token", json_string("<s>"));
    json_object_set_new(names, "eos_token", json_string("</s>"));
    bool prompt = json_is_true(json_object_get(set, "add_generation_prompt"));
    int compared = tsr_template_render(&b, published->template, names, 1721952000, NULL) == TSR_OK;
    if (compared) {
        if (tsr_template_render(&a, own->template, names, 0, NULL) < 0)
            fail_msg("%s", tsr_last_error());
        tsr_text_puts(&a.text, prompt ? "" : more);
        assert_string_equal(tsr_text_string(&a.text), tsr_text_string(&b.text));
    }
    tsr_rendering_free(&a);
    tsr_rendering_free(&b);
    json_decref(names);
    return compared;
}

static tsr_chat *open_named(const char *name)
{
    tsr_chat *chat;
    tsr_chat_options options = {.template = name};
    if (tsr_chat_create(&chat, tokenizer, &options) < 0)
        fail_msg("%s", tsr_last_error());
    return chat;
}

static void test_names(void **state)
{
    (void)state;
    size_t bytes;
    char *text = golden_file(DIR "conversations.json", &bytes);
    json_t *sets = json_loadb(text, bytes, 0, NULL);
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        tsr_chat *own = open_named(named[i].name), *published = open_chat(named[i].published);
        int compared = 0;
        bool system;
        for (size_t k = 0; k < json_array_size(sets); k++)
            if (is_plain(json_array_get(sets, k), &system) && (system || !named[i].needs_system) &&
                !(system && named[i].no_system))
                compared += compare_named(own, published, json_array_get(sets, k), named[i].more);
        if (compared < 3)
            fail_msg("%s: %d conversations", named[i].name, compared);
        tsr_chat_destroy(own);
        tsr_chat_destroy(published);
    }
    json_decref(sets);
    free(text);
}

/* What is trained under every name: the words and the end of each turn. */
static const struct {
    const char *name, *end, *trained;
} ends[] = {
    {"chatml", "<|im_end|>", "b<|im_end|>\n"},
    {"qwen_25", "<|im_end|>", "b<|im_end|>\n"},
    {"llama3", NULL, "b<|eot_id|>"}, /* which is the tokenizer's eos_token */
    {"llama2", NULL, " b <|eot_id|>"},
    {"mistral", NULL, " b<|eot_id|>"},
    {"mistral_v1", NULL, " b<|eot_id|>"},
    {"mistral_v3_tekken", NULL, "b<|eot_id|>"},
    {"mistral_v7_tekken", NULL, "b<|eot_id|>"},
    {"gemma", "<end_of_turn>", "b<end_of_turn>\n"},
    {"phi_3", "<|end|>", "b<|end|>\n"},
    {"phi_4", "<|im_end|>", "b<|im_end|>"},
    {"zephyr", NULL, "b<|eot_id|>\n"},
    {"vicuna", NULL, " b<|eot_id|>"},
    {"alpaca", NULL, "b<|eot_id|>"},
};

static void check_turn(tsr_conversation *c, size_t index, const char *name, const char *want)
{
    tsr_span a, b;
    bool found;
    assert_int_equal(tsr_chat_turn_by_places(&found, &a, c, index), TSR_OK);
    assert_true(found);
    assert_int_equal(tsr_chat_turn_by_prefix(&b, c, index), TSR_OK);
    assert_int_equal(a.begin, b.begin);
    assert_int_equal(a.end, b.end);
    if (a.end - a.begin != strlen(want) || memcmp(c->row->text.data + a.begin, want, strlen(want)))
        fail_msg("%s: \"%.*s\"", name, (int)(a.end - a.begin), c->row->text.data + a.begin);
}

static void test_named_turns(void **state)
{
    (void)state;
    json_t *messages = json_loads(
        "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},"
        "{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},"
        "{\"role\":\"assistant\",\"content\":\"b\"}]",
        0, NULL);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        tsr_chat *chat = open_named(ends[i].name);
        tsr_chat_row row = {0};
        tsr_conversation c = {.chat = chat, .row = &row, .messages = messages};
        if (tsr_chat_encode(&row, chat, messages, NULL, 0, &assistants) < 0)
            fail_msg("%s: %s", ends[i].name, tsr_last_error());
        assert_int_equal(row.findings, 0);
        assert_int_equal(tsr_chat_see(&c.seen, chat, messages), TSR_OK);
        check_turn(&c, 2, ends[i].name, ends[i].trained);
        check_turn(&c, 4, ends[i].name, ends[i].trained);
        const char *end = tsr_chat_turn_end(chat);
        if (!end != !ends[i].end || (end && strcmp(end, ends[i].end) != 0))
            fail_msg("%s ends turns with %s", ends[i].name, end ? end : "eos_token");
        tsr_conversation_free(&c);
        tsr_chat_row_free(&row);
        tsr_chat_destroy(chat);
    }
    json_decref(messages);
}

/* FastChat's conversation template vicuna_v1.1, as its get_prompt writes it. */
static void test_vicuna(void **state)
{
    (void)state;
    tsr_chat *chat = open_named("vicuna");
    tsr_chat_row row = {0};
    json_t *messages =
        json_loads("[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":"
                   "\"Hello\"},{\"role\":\"user\",\"content\":\"Bye\"}]",
                   0, NULL);
    assert_int_equal(tsr_chat_prompt(&row, chat, messages, NULL), TSR_OK);
    assert_string_equal(row.text.data,
                        "<|begin_of_text|>A chat between a curious user and an artificial "
                        "intelligence assistant. The assistant gives helpful, detailed, and polite "
                        "answers to the user's questions. USER: Hi ASSISTANT: Hello<|eot_id|>USER: "
                        "Bye ASSISTANT:");
    json_decref(messages);
    tsr_chat_row_free(&row);
    tsr_chat_destroy(chat);
}

/* A name, a file, the model's own, and what is none of them. */
static void test_choice(void **state)
{
    (void)state;
    static const struct {
        const char *choice, *text, *error; /* of the model that has one, of the one that has none */
    } cases[] = {
        {NULL, "<|begin_of_text|><|start", "the model has no chat template"},
        {"tokenizer_default", "<|begin_of_text|><|start", "the model has no chat template"},
        {"tokenizer_default_fallback_chatml", "<|start", NULL},
        {"chatlm", NULL, "which is no file and no name of a template; did you mean chatml?"},
        {"no/such.jinja", NULL, "found 'no/such.jinja'"},
    };
    tsr_tokenizer *bare;
    size_t bytes;
    char *json = golden_file("examples/tiny-llama/tokenizer.json", &bytes);
    assert_int_equal(tsr_tokenizer_parse(&bare, "bare", json, bytes, NULL, 0), TSR_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_chat *chat = NULL;
        tsr_chat_options options = {.template = cases[i].choice};
        tsr_status status = tsr_chat_create(&chat, tokenizer, &options);
        assert_int_equal(status, cases[i].text ? TSR_OK : TSR_ECONFIG);
        tsr_chat_destroy(chat);
        chat = NULL;
        status = tsr_chat_create(&chat, bare, &options);
        assert_int_equal(status, cases[i].error ? TSR_ECONFIG : TSR_OK);
        if (cases[i].error && !strstr(tsr_last_error(), cases[i].error))
            fail_msg("%s", tsr_last_error());
        if (cases[i].error && !strstr(tsr_last_error(), "chatml, qwen_25, llama3"))
            fail_msg("%s", tsr_last_error());
        tsr_chat_destroy(chat);
    }
    tsr_tokenizer_destroy(bare);
    free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roles),       cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_chosen),      cmocka_unit_test(test_trained_turns),
        cmocka_unit_test(test_long_chat),   cmocka_unit_test(test_names),
        cmocka_unit_test(test_named_turns), cmocka_unit_test(test_vicuna),
        cmocka_unit_test(test_choice)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
