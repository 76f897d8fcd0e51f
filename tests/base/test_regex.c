/* Searches within budgets: what has no end is given up in words, what tokenizers are published with never is. */
#include "base/regex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Of Llama 3 and Qwen; of GPT-4o; of those that group digits from the right. */
#define LLAMA                                                                                      \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                     \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
#define GPT                                                                                        \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SHORT "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER    \
    "*" SHORT "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DIGITS      "\\d{1,3}(?=(?:\\d{3})*\\b)"
#define SUPERDIGITS "(?=(\\d{3})+(?!\\d))"

static tsr_regex *compile(const char *expression)
{
    tsr_regex *regex;
    char reason[TSR_REGEX_REASON_BYTES] = "";
    if (tsr_regex_create(&regex, reason, expression, strlen(expression), TSR_REGEX_RUBY) < 0)
        fail_msg("%s: %s", expression, reason);
    return regex;
}

/* `bytes` of `unit` again and again, with `tail` at the end. The caller frees. */
static char *repeat(const char *unit, size_t bytes, const char *tail)
{
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    for (size_t i = 0; i < bytes; i++)
        text[i] = unit[i % strlen(unit)];
    text[bytes] = 0;
    memcpy(text + bytes - strlen(tail), tail, strlen(tail));
    return text;
}

/* All matches of the text, one after the other. */
static tsr_status search_all(size_t *count, const tsr_regex *regex, tsr_regex_budget *budget,
                             const char *text)
{
    size_t bytes = strlen(text), match[2], at = 0;
    bool found = true;
    for (*count = 0; at <= bytes; *count += found) {
        TSR_TRY(tsr_regex_search(&found, match, regex, budget, text, 0, at, bytes));
        if (!found)
            return TSR_OK;
        at = match[1] > match[0] ? match[1] : match[1] + 1;
    }
    return TSR_OK;
}

static void published(void **state)
{
    (void)state;
    static const struct {
        const char *expression, *unit;
        size_t bytes, count;
        const char *tail;
    } cases[] = {
        {LLAMA, " ", 120000, 1, ""},          {LLAMA, " ", 300000, 2, "a"},
        {LLAMA, "\n ", 120000, 2, ""},        {LLAMA, "Hello, 2024 ", 120000, 50001, ""},
        {LLAMA, "=", 120000, 1, ""},          {GPT, "A", 300000, 1, ""},
        {GPT, "A", 120000, 2, "1"},           {GPT, " ", 300000, 1, ""},
        {GPT, "\xe6\xbc\xa2", 120000, 1, ""}, {DIGITS, "1", 5001, 1667, ""},
        {DIGITS, "1", 2001, 0, "a"},          {SUPERDIGITS, "1", 3000, 1000, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_regex *regex = compile(cases[i].expression);
        char *text = repeat(cases[i].unit, cases[i].bytes, cases[i].tail);
        tsr_regex_budget budget;
        size_t count;
        tsr_regex_budget_begin(&budget, cases[i].bytes, 1);
        if (search_all(&count, regex, &budget, text) < 0)
            fail_msg("case %zu: %s", i, budget.reason);
        if (count != cases[i].count)
            fail_msg("case %zu: %zu matches, not %zu", i, count, cases[i].count);
        free(text);
        tsr_regex_destroy(regex);
    }
}

/* On a text of 2000 bytes; most of them took seconds at each place of it. */
static void without_end(void **state)
{
    (void)state;
    static const char *const cases[] = {"(a+)+$", "(?:(a+)+[cd]|a)", "(a|a)*[cd]", "(a*)*(a*)*[cd]",
                                        "(a|aa)*-[^d]"};
    char *text = repeat("a", 2000, "-d");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_regex *regex = compile(cases[i]);
        tsr_regex_budget budget, again;
        size_t count, second;
        tsr_regex_budget_begin(&budget, 100, 1);
        assert_int_equal(search_all(&count, regex, &budget, text), TSR_EDATA);
        if (!strstr(budget.reason, "goes back in the text too often"))
            fail_msg("%s: %s", cases[i], budget.reason);
        tsr_regex_budget_begin(&again, 100, 1); /* the same text fares the same */
        assert_int_equal(search_all(&second, regex, &again, text), TSR_EDATA);
        assert_int_equal(second, count);
        assert_int_equal(again.steps, budget.steps);
        tsr_regex_destroy(regex);
    }
    free(text);
}

/* What goes forward only, at each place anew, is no step back: it ends by the clock. */
static void without_steps(void **state)
{
    (void)state;
    static const char *const cases[] = {"(?>[ab]*)\\d", "[ab]*+\\d", "(?:(?=(?>[ab]*)).)*+\\d",
                                        "a(?=(?>[ab]*))"};
    char *text = repeat("a", 200000, " 1");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_regex *regex = compile(cases[i]);
        tsr_regex_budget budget;
        size_t count;
        tsr_regex_budget_begin(&budget, strlen(text), 1);
        budget.seconds = 0.1;
        assert_int_equal(search_all(&count, regex, &budget, text), TSR_EDATA);
        if (!strstr(budget.reason, "takes too long"))
            fail_msg("%s: %s", cases[i], budget.reason);
        tsr_regex_destroy(regex);
    }
    free(text);
}

static void expressions(void **state)
{
    (void)state;
    tsr_regex *regex;
    tsr_regex_budget budget;
    char reason[TSR_REGEX_REASON_BYTES] = "";
    bool found;
    assert_int_equal(tsr_regex_create(&regex, reason, "(a", 2, TSR_REGEX_RUBY), TSR_EDATA);
    assert_string_equal(reason, "end pattern with unmatched parenthesis");
    char *text = repeat("ab", 70000, "");
    assert_int_equal(tsr_regex_create(&regex, reason, text, 70000, TSR_REGEX_PYTHON), TSR_EDATA);
    assert_string_equal(reason, "it has 70000 bytes, at most 65536 are taken");
    free(text);
    regex = compile("b+");
    tsr_regex_budget_begin(&budget, 3, 1);
    assert_int_equal(tsr_regex_match(&found, regex, &budget, "bba", 3), TSR_OK);
    assert_true(found);
    assert_int_equal(tsr_regex_match(&found, regex, &budget, "abb", 3), TSR_OK);
    assert_false(found);
    tsr_regex_destroy(regex);
    tsr_regex_budget_begin(&budget, SIZE_MAX, SIZE_MAX); /* does not wrap */
    assert_true(budget.steps == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published),
        cmocka_unit_test(without_end),
        cmocka_unit_test(without_steps),
        cmocka_unit_test(expressions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
