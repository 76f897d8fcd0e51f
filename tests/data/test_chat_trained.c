/*
 * What is trained where roles and ends of turns are chosen, beyond what axolotl has (test_dataset_golden): other templates,
 * marks of generation, calls, and what cannot be told.
 */
#include "data/chat_case.h"

#define CHOSEN TSR_CHAT_ROLES_CHOSEN

static const char plain[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|eot_id|>"
                            "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
static const char marked[] =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}<|eot_id|>{% endgeneration %}{% else %}{{ m.content }}<|eot_id|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
/* The assistant's turns alone have an end, and a newline behind it. */
static const char half[] =
    "{% for m in messages %}{{ m.role | upper }}:\n{{ m.content }}{% if m.role == 'assistant' %}"
    "<|eot_id|>{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}ASSISTANT:\n{% "
    "endif %}";
/* As Phi-3's: eos_token behind all. */
static const char two_ends[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|end_header_id|>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% else %}{{ eos_token }}{% endif %}";

static const char four[] = "[" USER("a") "," ASSISTANT("b") "," USER("c") "," ASSISTANT("d") "]";

static tsr_status encode_chosen(tsr_chat_row *row, const char *source, const char *messages,
                                unsigned roles, tsr_chat_ends ends)
{
    training = (tsr_chat_training){.roles = roles, .ends = ends};
    return encode_with(row, source, messages, true);
}

/* The trained text, with '.' for each run of other bytes. */
static void check_runs(const tsr_chat_row *row, const char *want)
{
    tsr_text shown = {0};
    size_t last = 0;
    for (size_t i = 0; i < row->tokens.count; i++) {
        tsr_span span = row->tokens.spans[i];
        if (!row->mask[i])
            continue;
        tsr_text_puts(&shown, span.begin > last ? "." : "");
        tsr_text_append(&shown, row->text.data + span.begin, span.end - span.begin);
        last = span.end;
    }
    tsr_text_puts(&shown, row->text.length > last ? "." : "");
    assert_string_equal(tsr_text_string(&shown), want);
    tsr_text_free(&shown);
}

static void check(const char *source, const char *messages, unsigned roles, tsr_chat_ends ends,
                  const char *want)
{
    tsr_chat_row row = {0};
    if (encode_chosen(&row, source, messages, roles, ends) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    check_runs(&row, want);
    tsr_chat_row_free(&row);
}

static void test_ends(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        const char *source = k ? marked : plain;
        check(source, four, 0, TSR_CHAT_ENDS_ALL, ".<|eot_id|>.b<|eot_id|>.<|eot_id|>.d<|eot_id|>");
        check(source, four, 0, TSR_CHAT_ENDS_LAST, ".b.d<|eot_id|>");
        check(source, four, 0, TSR_CHAT_ENDS_NONE, ".b.d.");
        check(source, four, CHOSEN | TSR_CHAT_USER, TSR_CHAT_ENDS_TURN,
              ".a<|eot_id|>.c<|eot_id|>.");
    }
    check(half, four, 0, TSR_CHAT_ENDS_LAST, ".b.d<|eot_id|>\n");
    check(half, four, 0, TSR_CHAT_ENDS_ALL, /* a user's turn has no end */
          ".b<|eot_id|>\n.d<|eot_id|>\n");
    check(half, four, CHOSEN | TSR_CHAT_USER, TSR_CHAT_ENDS_TURN, ".a.c.");
    check(two_ends, four, 0, TSR_CHAT_ENDS_LAST, ".b.d<|end_header_id|>\n<|eot_id|>");
}

/* A message's own switch counts for every role once roles are chosen. */
static void test_switches(void **state)
{
    (void)state;
    const char *rows = "[" SAYS("user", "a", "\"train\":true") "," SAYS(
        "assistant", "b", "\"weight\":0") "," USER("c") "," ASSISTANT("d") "]";
    check(plain, rows, 0, TSR_CHAT_ENDS_TURN, ".d<|eot_id|>");
    check(plain, rows, CHOSEN, TSR_CHAT_ENDS_TURN, ".a<|eot_id|>.");
    tsr_chat_row row = {0};
    assert_int_equal(encode_chosen(&row, plain, rows, CHOSEN, TSR_CHAT_ENDS_TURN), TSR_OK);
    assert_int_equal(row.findings, 0);
    assert_int_equal(encode_chosen(&row, plain, rows, 0, TSR_CHAT_ENDS_NONE), TSR_OK);
    assert_int_equal(row.findings, 1u << TSR_FINDING_IN_VAIN);
    tsr_chat_row_free(&row);
}

/* {% generation %} may begin before the turn does, at the end of the generation prompt: what it marks is of the turn, and is
 * not trained where that is not. */
static void test_early_marks(void **state)
{
    (void)state;
    const char *source =
        "{% for m in messages %}<{{ m.role }}{% if m.role == 'assistant' %}{% generation %}>"
        "{{ m.content }}<|eot_id|>{% endgeneration %}{% else %}>{{ m.content }}<|eot_id|>"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    const char *rows = "[" USER("a") "," SAYS("assistant", "b",
                                              "\"weight\":0") "," USER("c") "," ASSISTANT("d") "]";
    check(source, four, 0, TSR_CHAT_ENDS_TURN, ".>b<|eot_id|>.>d<|eot_id|>");
    check(source, rows, 0, TSR_CHAT_ENDS_TURN, ".>d<|eot_id|>");
    check(source, rows, 0, TSR_CHAT_ENDS_NONE, ".>d.");
    check(source, four, CHOSEN | TSR_CHAT_USER, TSR_CHAT_ENDS_TURN, ".a<|eot_id|>.c<|eot_id|>.");
}

/* Calls belong to the turn; its end is behind them. */
static void test_calls(void **state)
{
    (void)state;
    const char *source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in "
                         "m.tool_calls or [] %}{{ c.function.name }}(){% endfor %}<|eot_id|>"
                         "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    const char *rows = "[" USER("a") ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":"
                                     "[{\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\","
                                     "\"content\":\" r \"}," ASSISTANT("d") "]";
    check(source, rows, 0, TSR_CHAT_ENDS_NONE, ".f().d.");
    check(source, rows, CHOSEN | TSR_CHAT_TOOL | TSR_CHAT_ASSISTANT, TSR_CHAT_ENDS_TURN,
          ".f()<|eot_id|>. r.<|eot_id|>.d<|eot_id|>");
}

static void test_cannot_tell(void **state)
{
    (void)state;
    tsr_chat_row row = {0};
    const char *endless = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
                          "{% if add_generation_prompt %}<assistant>{% endif %}";
    assert_int_equal(encode_chosen(&row, endless, four, 0, TSR_CHAT_ENDS_LAST), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "messages[1]: train_on_eot"));
    const char *shouting = "{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}<|eot_id|>"
                           "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    assert_int_equal(
        encode_chosen(&row, shouting, four, CHOSEN | TSR_CHAT_USER, TSR_CHAT_ENDS_TURN), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "messages[0] (role \"user\")"));
    assert_non_null(strstr(tsr_last_error(), "roles_to_train"));
    tsr_chat_row_free(&row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_early_marks), cmocka_unit_test(test_calls),
        cmocka_unit_test(test_cannot_tell),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
