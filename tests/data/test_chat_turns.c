/*
 * What of a row is trained, beyond the plain case: templates that drop or move something, what messages say of
 * themselves, the words for roles, and tokens of a template that are none.
 */
#include "data/chat_case.h"

/* Templates that show the thinking of the last turn alone, as Qwen3's, or of none: the turns are what is rendered,
 * and what of the row is left out is said. */
static void test_last_turn(void **state)
{
    (void)state;
    tsr_chat_row row = {0};
    const unsigned lost = 1u << TSR_FINDING_THINKING;
    const char *thinking =
        "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}<think>"
        "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] "
        "%}"
        "{{ c.function.name }}(){% endfor %}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}";
    assert_int_equal(
        encode_with(&row, thinking,
                    "[" USER("a") "," ASSISTANT("b") "," USER("c") "," ASSISTANT("d") "]", true),
        TSR_OK);
    check_trained(&row, "............................b<|eot_id|>............................"
                        "<think></think>d<|eot_id|>");
    assert_int_equal(row.findings, 0);
    const char *call = "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":"
                       "[{\"function\":{\"name\":\"f\"}}]}";
    char rows[400];
    snprintf(rows, sizeof rows, "[" USER("a") ",%s," USER("c") "]", call);
    assert_int_equal(encode_with(&row, thinking, rows, true), TSR_OK);
    check_trained(&row, "............................f()<|eot_id|>.................");
    assert_int_equal(
        encode_with(&row, thinking,
                    "[" USER("a") "," SAYS("assistant", "b", "\"reasoning\":\"r1\"") "," USER(
                        "c") "," SAYS("assistant", "d", "\"thinking\":\"r2\"") "]",
                    true),
        TSR_OK);
    check_trained(&row, "............................b<|eot_id|>............................"
                        "<think>r2</think>d<|eot_id|>");
    assert_int_equal(row.findings, lost);
    /* Thinking in the content, which the template takes off earlier turns, and one that it takes off all. */
    const char *splitting =
        "{% for m in messages %}<{{ m.role }}>{% if loop.last %}{{ m.content }}"
        "{% else %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endif %}"
        "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    const char *twice = "[" USER("a") "," ASSISTANT("<think>x1</think>\\n\\nb ") "," USER(
        "c") "," ASSISTANT("<think>x2</think>d") "]";
    assert_int_equal(encode_with(&row, splitting, twice, true), TSR_OK);
    check_trained(&row, "............................b <|eot_id|>............................"
                        "<think>x2</think>d<|eot_id|>");
    assert_int_equal(row.findings, lost);
    tsr_chat_row_free(&row);
}

/* Generation prompts that end with what turns leave out, as DeepSeek-R1's. */
static void test_longer_prompt(void **state)
{
    (void)state;
    tsr_chat_row row = {0};
    const char *source =
        "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}"
        "{% if m.role == 'assistant' %}<|eot_id|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant><think>\n{% endif %}";
    assert_int_equal(
        encode_with(&row, source,
                    "[" USER("a ") "," ASSISTANT(" b") "," USER("c") "," ASSISTANT("<th") "]",
                    true),
        TSR_OK);
    check_trained(&row, "................... b<|eot_id|>..................<th<|eot_id|>");
    assert_int_equal(row.findings, 1u << TSR_FINDING_UNPROMPTED);
    /* Nothing is left of this one. */
    assert_int_equal(
        encode_with(&row, source, "[" USER("a") "," ASSISTANT("<think>hmm\\n</think>") "]", true),
        TSR_OK);
    check_trained(&row, "..................<|eot_id|>");
    assert_int_equal(row.findings, 1u << TSR_FINDING_UNPROMPTED | 1u << TSR_FINDING_THINKING |
                                       1u << TSR_FINDING_BARE | 1u << TSR_FINDING_HOLLOW);
    /* The words of the prompt in what a user says are his. */
    assert_int_equal(
        encode_with(&row, source, "[" USER("<assistant><think>\\n") "," ASSISTANT("b") "]", true),
        TSR_OK);
    check_trained(&row, "....................................b<|eot_id|>");
    /* Prompt and completion. */
    assert_int_equal(encode_as(&row, source, "[" USER("a") "," ASSISTANT("b") "]", 1, false),
                     TSR_OK);
    check_trained(&row, "..................b<|eot_id|>");
    tsr_chat_row_free(&row);
}

/* A template that puts the end of sequence behind the last turn alone, as Phi-3's. */
static void test_one_end(void **state)
{
    (void)state;
    tsr_chat_row row = {0};
    const char *source =
        "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% else %}{{ eos_token }}{% endif %}";
    assert_int_equal(
        encode_with(&row, source,
                    "[" USER("a ") "," ASSISTANT(" b\\n") "," USER("c") "," ASSISTANT("d") "]",
                    true),
        TSR_OK);
    assert_string_equal(row.text.data, "<user>a\n<assistant>b\n<user>c\n<assistant>d\n<|eot_id|>");
    check_trained(&row, "...................b\n...................d\n<|eot_id|>");
    tsr_chat_row_free(&row);
}

/* What a message says of its own training, in either method, and where all is trained. */
static void test_training_keys(void **state)
{
    (void)state;
    static const char plain[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|eot_id|>"
                                "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    static const char marked[] =
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}<|eot_id|>{% endgeneration %}{% else %}{{ m.content }}<|eot_id|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    static const char *const no[] = {"\"weight\":0", "\"weight\":0.0", "\"train\":false",
                                     "\"training\":false", "\"weight\":0,\"train\":false"};
    static const char *const yes[] = {"\"weight\":1", "\"weight\":null", "\"train\":true",
                                      "\"train\":true,\"training\":true", "\"training\":null"};
    tsr_chat_row row = {0};
    char messages[512];
    for (int i = 0; i < 5; i++) {
        snprintf(messages, sizeof messages,
                 "[%s,{\"role\":\"assistant\",\"content\":\"b\",%s},%s,"
                 "{\"role\":\"assistant\",\"content\":\"d\",%s}]",
                 USER("a"), no[i], SAYS("user", "c", "\"weight\":0.0"), yes[i]);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(encode_with(&row, k ? marked : plain, messages, true), TSR_OK);
            check_trained(&row, "......................................."
                                "............................d<|eot_id|>");
            assert_int_equal(row.findings, 0);
        }
        /* All but the turns that say no: the user's too. */
        assert_int_equal(encode_with(&row, plain, messages, false), TSR_OK);
        check_trained(&row, "<user>a<|eot_id|><assistant>............................"
                            "<assistant>d<|eot_id|>");
    }
    static const char *const in_vain[] = {
        "[" SAYS("user", "a", "\"train\":true") "," ASSISTANT("b") "]",
        "[" SAYS("tool", "a", "\"weight\":1") "," ASSISTANT("b") "]"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(encode_with(&row, plain, in_vain[i], true), TSR_OK);
        assert_int_equal(row.findings, 1u << TSR_FINDING_IN_VAIN);
        assert_int_equal(encode_with(&row, plain, in_vain[i], false), TSR_OK);
        assert_int_equal(row.findings, 0);
    }
    tsr_chat_row_free(&row);
}

/* A data set's words for the assistant, the user and tools mean the same as the standard ones; a role that the
 * template has of its own is left to it. */
static void test_roles(void **state)
{
    (void)state;
    static const char source[] =
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'critic' %}!{% endif %}{{ m.content "
        "}}"
        "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    static const char *const assistants[] = {"model", "gpt", "Assistant", "BOT", "chatbot"};
    tsr_chat_row row = {0};
    char messages[300];
    for (int i = 0; i < 5; i++) {
        snprintf(messages, sizeof messages, "[%s,{\"role\":\"%s\",\"content\":\"b\"},%s,%s]",
                 SAYS("human", "a", "\"x\":1"), assistants[i], USER("c"), ASSISTANT("d"));
        assert_int_equal(encode_with(&row, source, messages, true), TSR_OK);
        assert_string_equal(row.text.data, "<user>a<|eot_id|><assistant>b<|eot_id|>"
                                           "<user>c<|eot_id|><assistant>d<|eot_id|>");
        check_trained(&row, "............................b<|eot_id|>"
                            "............................d<|eot_id|>");
    }
    assert_int_equal(
        encode_with(&row, source, "[" SAYS("critic", "a", "\"x\":1") "," ASSISTANT("b") "]", true),
        TSR_OK);
    check_trained(&row, "...............................b<|eot_id|>");
    tsr_chat_row_free(&row);
}

/* What a template writes as tokens and the tokenizer does not have. */
static void test_lacking_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *template, *lacking;
    } cases[] = {
        {"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
         "<|im_start|> (8 pieces), <|im_end|> (7 pieces)"},
        {"{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content }}{{ eos_token }}{% endfor "
         "%}",
         "<|system|> (6 pieces), <|user|> (6 pieces), <|assistant|> (7 pieces)"},
        {"{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
         "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.content }}[|end|]</s>{% endfor "
         "%}",
         "<start_of_turn> (9 pieces), [|end|] (5 pieces), </s> (4 pieces)"},
        /* Tokens that are there, and what is text to models that know it. */
        {"<|start_header_id|><|eot_id|><think>[INST] <tool_call> <a b> < | > <|> <<SYS>> {{ "
         "messages[0].role }}",
         ""},
        {"{{ raise_exception('never') }}<|im_start|>", ""},
    };
    scratch_make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_chat *chat;
        const char *path = scratch_path("lacking.jinja");
        tsr_chat_options options = {.template = path};
        write_text(path, cases[i].template);
        assert_int_equal(tsr_chat_create(&chat, tokenizer, &options), TSR_OK);
        assert_string_equal(tsr_chat_lacking_tokens(chat), cases[i].lacking);
        tsr_chat_destroy(chat);
    }
    scratch_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_turn), cmocka_unit_test(test_longer_prompt),
        cmocka_unit_test(test_one_end),   cmocka_unit_test(test_training_keys),
        cmocka_unit_test(test_roles),     cmocka_unit_test(test_lacking_tokens),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
