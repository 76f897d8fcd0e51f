/*
 * Chats of tiny-llama against transformers: text, ids, the assistant's mask and the generation
 * prompt, without tolerance. Then other templates: marks, prefixes that fail, broken rows.
 */
#include "data/chat_case.h"

#include <sys/stat.h>

static const tsr_chat_training assistants = {.assistant_only = true};

static void check_text(const tsr_chat_row *row, const json_t *golden, const char *key)
{
    size_t bytes;
    const char *want = golden_text(golden, key, &bytes);
    assert_int_equal(row->text.length, bytes);
    assert_string_equal(tsr_text_string(&row->text), want);
}

static void check_ids(const tsr_chat_row *row, const json_t *golden, const char *key)
{
    const json_t *want = json_object_get(golden, key);
    assert_int_equal(row->tokens.count, json_array_size(want));
    for (size_t i = 0; i < row->tokens.count; i++)
        assert_int_equal(row->tokens.ids[i], json_integer_value(json_array_get(want, i)));
}

static void test_golden(void **state)
{
    (void)state;
    tsr_chat *chat;
    tsr_chat_row row = {0};
    int prompts = 0;
    json_t *lines = golden_lines("tests/golden/chat_tiny_llama.jsonl");
    assert_int_equal(json_array_size(lines), 60);
    assert_int_equal(tsr_chat_create(&chat, tokenizer, NULL), TSR_OK);
    for (size_t i = 0; i < 60; i++) {
        const json_t *golden = json_array_get(lines, i);
        const json_t *messages = json_object_get(golden, "messages");
        if (tsr_chat_encode(&row, chat, messages, NULL, 0, &assistants) < 0)
            fail_msg("row %zu: %s", i, tsr_last_error());
        check_text(&row, golden, "text");
        check_ids(&row, golden, "input_ids");
        const char *mask = json_string_value(json_object_get(golden, "assistant_mask"));
        assert_int_equal(strlen(mask), row.tokens.count);
        for (size_t j = 0; j < row.tokens.count; j++)
            if (row.mask[j] != mask[j] - '0')
                fail_msg("row %zu: mask of token %zu is %d", i, j, row.mask[j]);
        if (!json_object_get(golden, "prompt_text"))
            continue;
        assert_int_equal(tsr_chat_prompt(&row, chat, messages, NULL), TSR_OK);
        check_text(&row, golden, "prompt_text");
        check_ids(&row, golden, "prompt_ids");
        prompts++;
    }
    assert_true(prompts >= 2);
    json_decref(lines);
    tsr_chat_row_free(&row);
    tsr_chat_destroy(chat);
}

/* ---- other templates ---- */

static void test_marks(void **state)
{
    (void)state;
    tsr_chat_row row = {0};
    const char *source =
        "{% for m in messages %}{{ m.role }}:"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|eot_id|>{% endgeneration %}"
        "{% else %}{{ m.content }}<|eot_id|>{% endif %}{% endfor %}";
    const char *messages =
        "[" USER("hi") "," ASSISTANT("yes no") "," USER("so") "," ASSISTANT("1") "]";
    assert_int_equal(encode_with(&row, source, messages, true), TSR_OK);
    assert_string_equal(row.text.data, "user:hi<|eot_id|>assistant:yes no<|eot_id|>"
                                       "user:so<|eot_id|>assistant:1<|eot_id|>");
    check_trained(&row, "...........................yes no<|eot_id|>"
                        "...........................1<|eot_id|>");
    /* Without the restriction every token is trained. */
    assert_int_equal(encode_with(&row, source, messages, false), TSR_OK);
    check_trained(&row, row.text.data);
    tsr_chat_row_free(&row);
}

/* A token that reaches over the edge of what is marked is not trained. */
static void test_straddling(void **state)
{
    (void)state;
    tsr_chat_row row = {0};
    assert_int_equal(encode_with(&row,
                                 "{% for m in messages %}th{% generation %}e{{ m.content }}"
                                 "{% endgeneration %}{% endfor %}",
                                 "[" ASSISTANT(" end") "]", true),
                     TSR_OK);
    assert_string_equal(row.text.data, "the end");
    check_trained(&row, "... end");
    tsr_chat_row_free(&row);
}

static void test_prefixes(void **state)
{
    (void)state;
    tsr_chat_row row = {0};
    /* What the template adds after the end of turn belongs to the turn. */
    const char *plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|eot_id|>\n"
                        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    assert_int_equal(encode_with(&row, plain, "[" USER("a") "," ASSISTANT("b") "]", true), TSR_OK);
    assert_string_equal(row.text.data, "<user>a<|eot_id|>\n<assistant>b<|eot_id|>\n");
    check_trained(&row, ".............................b<|eot_id|>\n");
    /* A prompt that the turn does not begin with. */
    const char *other = "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
                        "{% endfor %}{% if add_generation_prompt %}<model>{% endif %}";
    assert_int_equal(encode_with(&row, other, "[" USER("a") "," ASSISTANT("b") "]", true),
                     TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "messages[1]: this chat template opens the reply with "
                                             "\"<model>\", which the finished"));
    const char *thinking = /* upper hides the marks that tell a turn by its place */
        "{% for m in messages %}<{{ m.role }}>\n{{ m.content | upper }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>\n<think>\n{% endif %}";
    assert_int_equal(encode_with(&row, thinking, "[" USER("a") "," ASSISTANT("b") "]", true),
                     TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "opens the reply with \"<think>\""));
    assert_int_equal(encode_with(&row, other, "[" USER("a") "," ASSISTANT("b") "]", false), TSR_OK);
    /* A turn that changes once others follow, and tests its content. */
    const char *changing =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if loop.last and "
        "m.content.startswith('b') %}!{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}";
    assert_int_equal(
        encode_with(&row, changing,
                    "[" USER("a") "," ASSISTANT("b") "," USER("c") "," ASSISTANT("b") "]", true),
        TSR_EDATA);
    assert_non_null(
        strstr(tsr_last_error(), "messages[1]: the template renders this turn differently"));
    tsr_chat_row_free(&row);
}

/* A template that takes much for each rendering, and whose turns are told by a rendering each, ends a row of many
 * turns, not one of few. */
static void test_row_budget(void **state)
{
    (void)state;
    static char
        source[(1 << 18) + 1024]; /* a comparison of the text with itself takes 16385 steps */
    tsr_chat_row row = {0};
    tsr_text turns = {0};
    int begin = snprintf(source, sizeof source, "{%% set s = '");
    memset(source + begin, 's', 1 << 18);
    strcpy(source + begin + (1 << 18),
           "' %}{% for i in range(400) if s != s %}{% endfor %}{% for m in messages %}"
           "{{ m.role }}{{ 'B' if m.content == 'b' else m.content }}{% endfor %}"
           "{% if add_generation_prompt %}assistant{% endif %}");
    for (int i = 0; i < 20; i++)
        tsr_text_printf(&turns, "%s" USER("a") "," ASSISTANT("b"), i ? "," : "[");
    tsr_text_puts(&turns, "]");
    assert_int_equal(encode_with(&row, source, "[" USER("a") "," ASSISTANT("b") "]", true), TSR_OK);
    assert_int_equal(encode_with(&row, source, tsr_text_string(&turns), true), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "does not come to an end in time"));
    tsr_text_free(&turns);
    tsr_chat_row_free(&row);
}

static void test_broken_rows(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *words[2];
    } cases[] = {
        {"{}", {"not a list"}},
        {"[]", {"empty"}},
        {"[1]", {"messages[0]", "not an object"}},
        {"[" USER("a") ",{\"content\":\"b\"}]", {"messages[1]", "\"role\" is missing"}},
        {"[{\"role\":3,\"content\":\"b\"}]",
         {"messages[0]", "\"role\" is an integer, expected a string"}},
        {"[{\"role\":\"user\"}]", {"messages[0]", "\"content\" is missing"}},
        {"[" USER("a") ",{\"role\":\"assistant\",\"content\":[\"b\"]}]",
         {"messages[1]", "\"content\" is a list, expected a string"}},
        {"[{\"role\":\"assistant\",\"content\":null}]",
         {"messages[0]", "is null, expected a string"}},
        {"[" USER("a") "," SAYS("wizard", "b", "\"x\":1") "]",
         {"messages[1]: \"role\" is \"wizard\", expected system, user, assistant or tool",
          "gpt, "}},
        {"[" USER("a") "," SAYS("assistant", "b", "\"weight\":0.5") "]",
         {"messages[1]: \"weight\" is 0.5", "expected 0 (not trained) or 1"}},
        {"[" SAYS("user", "a", "\"weight\":-1") "]", {"\"weight\" is -1"}},
        {"[" SAYS("user", "a", "\"weight\":true") "]", {"\"weight\" is true"}},
        {"[" SAYS("user", "a", "\"train\":1") "]", {"\"train\" is 1", "expected true or false"}},
        {"[" SAYS("user", "a", "\"training\":\"no\"") "]", {"\"training\" is \"no\""}},
        {"[" SAYS("user", "a", "\"weight\":1,\"train\":false") "]",
         {"messages[0]", "disagree about whether it is trained"}},
        {"[" SAYS("user", "a", "\"training_detail\":[]") "]",
         {"\"training_detail\" is not supported", "\"train\": true or false"}},
        {"[" SAYS("user", "a", "\"train_detail\":[{}]") "]", {"\"train_detail\" is not supported"}},
    };
    tsr_chat *chat;
    tsr_chat_row row = {0};
    assert_int_equal(tsr_chat_create(&chat, tokenizer, NULL), TSR_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *messages = json_loads(cases[i].messages, JSON_DECODE_ANY, NULL);
        assert_non_null(messages);
        assert_int_equal(tsr_chat_encode(&row, chat, messages, NULL, 0, &assistants), TSR_EDATA);
        for (int j = 0; j < 2 && cases[i].words[j]; j++)
            if (!strstr(tsr_last_error(), cases[i].words[j]))
                fail_msg("case %zu: \"%s\" is not in \"%s\"", i, cases[i].words[j],
                         tsr_last_error());
        json_decref(messages);
    }
    tsr_chat_row_free(&row);
    tsr_chat_destroy(chat);
}

static void test_no_template(void **state)
{
    (void)state;
    tsr_tokenizer *bare;
    tsr_chat *chat;
    size_t bytes;
    char *json = golden_file("examples/tiny-llama/tokenizer.json", &bytes);
    assert_int_equal(tsr_tokenizer_parse(&bare, "bare", json, bytes, NULL, 0), TSR_OK);
    assert_int_equal(tsr_chat_create(&chat, bare, NULL), TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), "add a name, such as chat_template: chatml"));
    tsr_tokenizer_destroy(bare);
    /* In tokenizer_config.json, plain or as a list of named ones; bos_token as an object. */
    const char *configs[] = {
        "{\"bos_token\":{\"content\":\"<|begin_of_text|>\"},\"chat_template\":\"{{ bos_token "
        "}}x\"}",
        "{\"bos_token\":\"<|begin_of_text|>\",\"chat_template\":[{\"name\":\"tool\",\"template\":"
        "\"no\"},{\"name\":\"default\",\"template\":\"{{ bos_token }}x\"}]}"};
    for (int i = 0; i < 2; i++) {
        tsr_chat_row row = {0};
        json_t *messages = json_loads("[" USER("a") "]", 0, NULL);
        assert_int_equal(
            tsr_tokenizer_parse(&bare, "bare", json, bytes, configs[i], strlen(configs[i])),
            TSR_OK);
        assert_int_equal(tsr_tokenizer_id(bare, tsr_tokenizer_special(bare, "bos_token")), 0);
        assert_int_equal(tsr_chat_create(&chat, bare, NULL), TSR_OK);
        assert_int_equal(tsr_chat_encode(&row, chat, messages, NULL, 0, &assistants), TSR_OK);
        assert_string_equal(row.text.data, "<|begin_of_text|>x");
        assert_int_equal(row.tokens.ids[0], 0);
        json_decref(messages);
        tsr_chat_row_free(&row);
        tsr_chat_destroy(chat);
        tsr_tokenizer_destroy(bare);
    }
    free(json);
}

/* ---- a template of its own for rows with tools ---- */

#define DEFAULT                                                                                    \
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}<|eot_id|>{% endfor %}"    \
    "{% if add_generation_prompt %}[assistant]{% endif %}"
#define TOOL_USE                                                                                   \
    "{{ bos_token }}tools: {{ tools | tojson }};{% for m in messages %}<{{ m.role }}>"             \
    "{% generation %}{{ m.content }}{% endgeneration %}<|eot_id|>{% endfor %}"                     \
    "{% if add_generation_prompt %}<assistant>{% endif %}"

/* What transformers makes of a row of "hi" and "yes" with these tools. */
static void check_row(tsr_chat *chat, const char *tools, const char *text, const char *prompt,
                      const char *trained)
{
    tsr_chat_row row = {0};
    json_t *messages = json_loads("[" USER("hi") "," ASSISTANT("yes") "]", 0, NULL);
    json_t *list = tools ? json_loads(tools, 0, NULL) : NULL;
    assert_int_equal(tsr_chat_encode(&row, chat, messages, list, 0, &assistants), TSR_OK);
    assert_string_equal(row.text.data, text);
    check_trained(&row, trained);
    json_array_remove(messages, 1);
    assert_int_equal(tsr_chat_prompt(&row, chat, messages, list), TSR_OK);
    assert_string_equal(row.text.data, prompt);
    json_decref(messages);
    json_decref(list);
    tsr_chat_row_free(&row);
}

static void check_both_templates(const char *directory)
{
    tsr_tokenizer *t;
    tsr_chat *chat;
    if (tsr_tokenizer_open(&t, directory, false) < 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(tsr_chat_create(&chat, t, NULL), TSR_OK);
    for (int twice = 0; twice < 2; twice++) {
        check_row(chat, NULL, "<|begin_of_text|>[user]hi<|eot_id|>[assistant]yes<|eot_id|>",
                  "<|begin_of_text|>[user]hi<|eot_id|>[assistant]",
                  "..............................................yes<|eot_id|>");
        check_row(
            chat, "[{\"name\":\"f\"}]",
            "<|begin_of_text|>tools: [{\"name\": "
            "\"f\"}];<user>hi<|eot_id|><assistant>yes<|eot_id|>",
            "<|begin_of_text|>tools: [{\"name\": \"f\"}];<user>hi<|eot_id|><assistant>",
            "..............................................hi.....................yes..........");
        check_row(chat, "[]",
                  "<|begin_of_text|>tools: [];<user>hi<|eot_id|><assistant>yes<|eot_id|>",
                  "<|begin_of_text|>tools: [];<user>hi<|eot_id|><assistant>",
                  ".................................hi.....................yes..........");
    }
    tsr_chat_destroy(chat);
    tsr_tokenizer_destroy(t);
}

/* A directory with tiny-llama's tokenizer, this tokenizer_config.json and this template; NULL: without
 * it. */
static const char *model_with(const char *name, const char *config, const char *template)
{
    static char directory[600];
    char path[700];
    snprintf(directory, sizeof directory, "%s", scratch_path(name));
    assert_int_equal(mkdir(directory, 0777), 0);
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    assert_int_equal(symlink(MODEL "/tokenizer.json", path), 0);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", directory);
    if (config)
        write_text(path, config);
    snprintf(path, sizeof path, "%s/chat_template.jinja", directory);
    if (template)
        write_text(path, template);
    return directory;
}

#define BOS "\"bos_token\":\"<|begin_of_text|>\""

/* The text of tokenizer_config.json with these templates, in a list or in an object. */
static char *config_of(bool list, const char *plain, const char *tool_use)
{
    json_t *json = list ? json_pack("{s:s, s:[{s:s,s:s},{s:s,s:s}]}", "bos_token",
                                    "<|begin_of_text|>", "chat_template", "name", "tool_use",
                                    "template", tool_use, "name", "default", "template", plain)
                        : json_pack("{s:s, s:{s:s,s:s}}", "bos_token", "<|begin_of_text|>",
                                    "chat_template", "tool_use", tool_use, "default", plain);
    char *text = json_dumps(json, 0);
    assert_non_null(text);
    json_decref(json);
    return text;
}

static void test_tool_use(void **state)
{
    (void)state;
    scratch_make();
    char *list = config_of(true, DEFAULT, TOOL_USE), *object = config_of(false, DEFAULT, TOOL_USE);
    check_both_templates(model_with("list", list, NULL));
    check_both_templates(model_with("object", object, NULL));
    const char *directory = model_with("files", "{" BOS "}", DEFAULT);
    char path[700];
    snprintf(path, sizeof path, "%s/additional_chat_templates", directory);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/additional_chat_templates/tool_use.jinja", directory);
    write_text(path, TOOL_USE);
    check_both_templates(directory);
    free(list);
    free(object);
    scratch_remove();
}

/* Files keep the templates of tokenizer_config.json out, and chat_template_path is for all rows. */
static void test_one_template_for_all(void **state)
{
    (void)state;
    scratch_make();
    char *list = config_of(true, DEFAULT, TOOL_USE);
    const char *directory = model_with("one", list, "{{ messages | length }}");
    char path[700];
    snprintf(path, sizeof path, "%s/chat_template.jinja", directory);
    for (int given = 0; given < 2; given++) {
        tsr_tokenizer *t;
        tsr_chat *chat;
        tsr_chat_row row = {0};
        tsr_chat_options options = {.template = given ? path : NULL};
        json_t *messages = json_loads("[" USER("hi") "]", 0, NULL), *tools = json_array();
        if (given)
            directory = model_with("given", list, NULL);
        assert_int_equal(tsr_tokenizer_open(&t, directory, false), TSR_OK);
        assert_int_equal(tsr_chat_create(&chat, t, &options), TSR_OK);
        assert_int_equal(tsr_chat_encode(&row, chat, messages, tools, 0, &assistants), TSR_OK);
        assert_string_equal(row.text.data, "1");
        json_decref(messages);
        json_decref(tools);
        tsr_chat_row_free(&row);
        tsr_chat_destroy(chat);
        tsr_tokenizer_destroy(t);
    }
    free(list);
    scratch_remove();
}

/* A tokenizer that puts a space before each part between special tokens: the one before the next user's words is
 * not trained, the one before the assistant's is. */
static void test_space_before(void **state)
{
    (void)state;
    static const char config[] = "{\"chat_template\":\"{% for m in messages %}{% if m.role == "
                                 "'assistant' %}<s>{% generation "
                                 "%}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content "
                                 "}}{% endif %}{% endfor %}\"}";
    size_t bytes;
    tsr_tokenizer *t;
    tsr_chat *chat;
    tsr_chat_row row = {0};
    char *json = golden_file("tests/golden/tokenizers/spaces_prepended.json", &bytes);
    assert_int_equal(tsr_tokenizer_parse(&t, "t", json, bytes, config, strlen(config)), TSR_OK);
    assert_int_equal(tsr_chat_create(&chat, t, NULL), TSR_OK);
    json_t *messages =
        json_loads("[" USER("\\n") "," ASSISTANT("\\n") "," USER("\\n") "]", 0, NULL);
    assert_int_equal(tsr_chat_encode(&row, chat, messages, NULL, 0, &assistants), TSR_OK);
    static const char *const tokens[] = {"\xe2\x96\x81", "\n",   "<s>",          "\xe2\x96\x81",
                                         "\n",           "</s>", "\xe2\x96\x81", "\n"};
    static const uint8_t trained[] = {0, 0, 0, 1, 1, 1, 0, 0};
    assert_int_equal(row.tokens.count, 8);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(row.tokens.ids[i], tsr_tokenizer_id(t, tokens[i]));
        assert_int_equal(row.mask[i], trained[i]);
    }
    json_decref(messages);
    tsr_chat_row_free(&row);
    tsr_chat_destroy(chat);
    tsr_tokenizer_destroy(t);
    free(json);
}

/* The end of a turn is trained where the token takes the line break behind it along, which the template left out of
 * what is trained; the beginning of the turn, which does as well, is not. */
static void test_space_taken_along(void **state)
{
    (void)state;
    static const char config[] =
        "{\"chat_template\":\"{% for m in messages %}<|{{ m.role }}|>{{ '\\n' }}{% if m.role == "
        "'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% else %}"
        "{{ m.content }}<|end|>{% endif %}{{ '\\n' }}{% endfor %}\"}";
    size_t bytes, at = 0, end;
    tsr_tokenizer *t;
    tsr_chat *chat;
    tsr_chat_row row = {0};
    char *json = golden_file("tests/golden/tokenizers/families/phi3.json", &bytes);
    assert_int_equal(tsr_tokenizer_parse(&t, "t", json, bytes, config, strlen(config)), TSR_OK);
    assert_int_equal(tsr_chat_create(&chat, t, NULL), TSR_OK);
    json_t *messages = json_loads("[" USER("one") "," ASSISTANT("two") "]", 0, NULL);
    assert_int_equal(tsr_chat_encode(&row, chat, messages, NULL, 0, &assistants), TSR_OK);
    while (at < row.tokens.count && row.tokens.ids[at] != tsr_tokenizer_id(t, "<|assistant|>"))
        at++;
    end = row.tokens.count - 1;
    assert_true(at + 1 < end);
    assert_int_equal(row.tokens.ids[end], tsr_tokenizer_id(t, "<|end|>"));
    for (size_t i = 0; i <= end; i++)
        assert_int_equal(row.mask[i], i > at);
    json_decref(messages);
    tsr_chat_row_free(&row);
    tsr_chat_destroy(chat);
    tsr_tokenizer_destroy(t);
    free(json);
}

/* The text of one message through a template that prints its keys. */
static void check_keys(const char *message, const char *text)
{
    tsr_tokenizer *t;
    tsr_chat *chat;
    tsr_chat_row row = {0};
    char name[16];
    static int count;
    snprintf(name, sizeof name, "keys%d", count++);
    const char *template =
        "{% for m in messages %}{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}"
        "{{ m.content is defined }}{% endfor %}";
    json_t *messages = json_pack("[o]", json_loads(message, 0, NULL));
    assert_int_equal(tsr_tokenizer_open(&t, model_with(name, "{" BOS "}", template), false),
                     TSR_OK);
    assert_int_equal(tsr_chat_create(&chat, t, NULL), TSR_OK);
    assert_int_equal(tsr_chat_prompt(&row, chat, messages, NULL), TSR_OK);
    assert_string_equal(row.text.data, text);
    json_decref(messages);
    tsr_chat_row_free(&row);
    tsr_chat_destroy(chat);
    tsr_tokenizer_destroy(t);
}

/* What apply_chat_template makes of these: nulls are not there, reasoning has the names that templates read. */
static void test_message_keys(void **state)
{
    (void)state;
    scratch_make();
    check_keys("{\"role\":\"user\",\"content\":\"a\",\"tool_calls\":null,\"name\":null}",
               "role=user;content=a;True");
    check_keys("{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]}",
               "role=assistant;tool_calls=[];False");
    check_keys("{\"role\":\"assistant\",\"reasoning\":\"r\",\"thinking\":null,\"content\":\"a\"}",
               "thinking=r;role=assistant;reasoning=r;content=a;reasoning_content=r;True");
    check_keys(
        "{\"role\":\"assistant\",\"thinking\":\"t\",\"reasoning_content\":\"c\",\"content\":\"a\"}",
        "thinking=t;role=assistant;reasoning_content=c;content=a;True");
    scratch_remove();
}

/* chat_template.json is for models that have no other. */
static void test_template_json(void **state)
{
    (void)state;
    static const struct {
        const char *config, *text;
    } cases[] = {{"{" BOS ",\"chat_template\":\"config\"}", "config"},
                 {"{" BOS ",\"chat_template\":null}", "json"},
                 {"{" BOS "}", "json"},
                 {NULL, "json"}};
    scratch_make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_tokenizer *t;
        tsr_chat *chat;
        tsr_chat_row row = {0};
        char name[16], path[700];
        snprintf(name, sizeof name, "json%zu", i);
        const char *directory = model_with(name, cases[i].config, NULL);
        snprintf(path, sizeof path, "%s/chat_template.json", directory);
        write_text(path, "{\"chat_template\":\"json\"}");
        json_t *messages = json_loads("[" USER("hi") "]", 0, NULL);
        assert_int_equal(tsr_tokenizer_open(&t, directory, false), TSR_OK);
        assert_int_equal(tsr_chat_create(&chat, t, NULL), TSR_OK);
        assert_int_equal(tsr_chat_encode(&row, chat, messages, NULL, 0, &assistants), TSR_OK);
        assert_string_equal(row.text.data, cases[i].text);
        json_decref(messages);
        tsr_chat_row_free(&row);
        tsr_chat_destroy(chat);
        tsr_tokenizer_destroy(t);
    }
    scratch_remove();
}

/* A template for tools that is not understood is no matter of rows without tools. */
static void test_bad_tool_use(void **state)
{
    (void)state;
    scratch_make();
    tsr_tokenizer *t;
    tsr_chat *chat;
    tsr_chat_row row = {0};
    char *list = config_of(true, "plain", "{% nonsense %}");
    json_t *messages = json_loads("[" USER("hi") "]", 0, NULL), *tools = json_array();
    assert_int_equal(tsr_tokenizer_open(&t, model_with("bad", list, NULL), false), TSR_OK);
    assert_int_equal(tsr_chat_create(&chat, t, NULL), TSR_OK);
    assert_int_equal(tsr_chat_encode(&row, chat, messages, NULL, 0, &assistants), TSR_OK);
    assert_string_equal(row.text.data, "plain");
    for (int twice = 0; twice < 2; twice++) {
        assert_int_equal(tsr_chat_encode(&row, chat, messages, tools, 0, &assistants), TSR_EDATA);
        assert_non_null(strstr(tsr_last_error(), "tokenizer_config.json (tool_use):1"));
        assert_non_null(strstr(tsr_last_error(), "nonsense"));
    }
    json_decref(messages);
    json_decref(tools);
    tsr_chat_row_free(&row);
    tsr_chat_destroy(chat);
    tsr_tokenizer_destroy(t);
    free(list);
    scratch_remove();
}

/* ---- special tokens ---- */

#define SPECIALS                                                                                   \
    "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ sep_token }}|"             \
    "{{ cls_token }}|{{ mask_token }}"
#define CONFIG  BOS ",\"eos_token\":\"<|eot_id|>\",\"pad_token\":\"<|pad|>\""
#define EARLIER "{\"bos_token\":\"<|pad|>\",\"eos_token\":{\"content\":\"<|start_header_id|>\"}}"

/* Config and special_tokens_map.json, and what transformers makes of them. */
static const struct {
    const char *config, *map, *text;
    int bos, eos, pad;
} specials[] = {
    {"{" CONFIG "}", NULL, "<|begin_of_text|>|<|eot_id|>|<|pad|>||||", 0, 4, 5},
    {"{}", EARLIER, "<|pad|>|<|start_header_id|>|||||", 5, 2, -1},
    {NULL, EARLIER, "<|pad|>|<|start_header_id|>|||||", 5, 2, -1},
    {"{" CONFIG "}", EARLIER, "<|pad|>|<|start_header_id|>|<|pad|>||||", 5, 2, 5},
    {"{" CONFIG ",\"added_tokens_decoder\":{}}", EARLIER,
     "<|begin_of_text|>|<|eot_id|>|<|pad|>||||", 0, 4, 5},
    {"{" CONFIG "}", "{\"bos_token\":null,\"pad_token\":\"<|eot_id|>\"}",
     "|<|eot_id|>|<|eot_id|>||||", -1, 4, 4},
    {"{" CONFIG ",\"sep_token\":\"s\",\"cls_token\":\"c\",\"mask_token\":\"m\"}", NULL,
     "<|begin_of_text|>|<|eot_id|>|<|pad|>||s|c|m", 0, 4, 5},
};

static int32_t special_id(const tsr_tokenizer *t, const char *key)
{
    const char *content = tsr_tokenizer_special(t, key);
    return content ? tsr_tokenizer_id(t, content) : -1;
}

static void test_special_tokens(void **state)
{
    (void)state;
    scratch_make();
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
        tsr_tokenizer *t;
        tsr_chat *chat;
        tsr_chat_row row = {0};
        char name[8], path[700];
        json_t *messages = json_loads("[" USER("hi") "]", 0, NULL);
        snprintf(name, sizeof name, "%zu", i);
        const char *directory = model_with(name, specials[i].config, SPECIALS);
        snprintf(path, sizeof path, "%s/special_tokens_map.json", directory);
        if (specials[i].map)
            write_text(path, specials[i].map);
        assert_int_equal(tsr_tokenizer_open(&t, directory, false), TSR_OK);
        assert_int_equal(tsr_chat_create(&chat, t, NULL), TSR_OK);
        assert_int_equal(tsr_chat_encode(&row, chat, messages, NULL, 0, &assistants), TSR_OK);
        assert_string_equal(row.text.data, specials[i].text);
        assert_int_equal(special_id(t, "bos_token"), specials[i].bos);
        assert_int_equal(tsr_tokenizer_eos(t), specials[i].eos);
        assert_int_equal(special_id(t, "pad_token"), specials[i].pad);
        json_decref(messages);
        tsr_chat_row_free(&row);
        tsr_chat_destroy(chat);
        tsr_tokenizer_destroy(t);
    }
    scratch_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_marks),
        cmocka_unit_test(test_straddling),   cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_broken_rows),  cmocka_unit_test(test_no_template),
        cmocka_unit_test(test_tool_use),     cmocka_unit_test(test_one_template_for_all),
        cmocka_unit_test(test_space_before), cmocka_unit_test(test_space_taken_along),
        cmocka_unit_test(test_message_keys), cmocka_unit_test(test_template_json),
        cmocka_unit_test(test_bad_tool_use), cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_row_budget),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
