/*
 * What a terminal would obey, in messages, log lines and texts: what is escaped, what stays, in each form; and that a cut
 * message ends between two characters.
 */
#include "base/escape.h"
#include "base/log.h"
#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void check(const char *expected, const char *text, size_t length, tsr_escape_form form)
{
    tsr_text out = {0};
    tsr_text_escape(&out, text, length, form);
    assert_string_equal(tsr_text_string(&out), expected);
    tsr_text_free(&out);
}

static void test_forms(void **state)
{
    (void)state;
    static const struct {
        const char *text, *line, *lines, *colour, *json;
    } cases[] = {
        {"", "", "", "", ""},
        {"plain \\x1b", "plain \\x1b", "plain \\x1b", "plain \\x1b", "plain \\x1b"},
        {"\033[2J", "\\x1b[2J", "\\x1b[2J", "\\x1b[2J", "\\u001b[2J"},
        {"\033[1;32m", "\\x1b[1;32m", "\\x1b[1;32m", "\033[1;32m", "\\u001b[1;32m"},
        {"\033[m\033[0", "\\x1b[m\\x1b[0", "\\x1b[m\\x1b[0", "\033[m\\x1b[0", "\\u001b[m\\u001b[0"},
        {"a\nb\tc\rd", "a\\x0ab\\x09c\\x0dd", "a\nb\tc\\x0dd", "a\nb\tc\\x0dd",
         "a\nb\\u0009c\\u000dd"},
        {"\177\302\233\302\240", "\\x7f\\u{009b}\302\240", "\\x7f\\u{009b}\302\240",
         "\\x7f\\u{009b}\302\240", "\\u007f\\u009b\302\240"},
        {"\342\200\256\342\201\251\342\200\250", "\\u{202e}\\u{2069}\\u{2028}",
         "\\u{202e}\\u{2069}\\u{2028}", "\\u{202e}\\u{2069}\\u{2028}", "\\u202e\\u2069\\u2028"},
        {"\303\251\346\274\242\360\237\230\200", "\303\251\346\274\242\360\237\230\200",
         "\303\251\346\274\242\360\237\230\200", "\303\251\346\274\242\360\237\230\200",
         "\303\251\346\274\242\360\237\230\200"},
        {"\377\303(\355\240\200", "\\xff\\xc3(\\xed\\xa0\\x80", "\\xff\\xc3(\\xed\\xa0\\x80",
         "\\xff\\xc3(\\xed\\xa0\\x80", "\\ufffd\\ufffd(\\ufffd\\ufffd\\ufffd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length = strlen(cases[i].text);
        check(cases[i].line, cases[i].text, length, TSR_ESCAPE_LINE);
        check(cases[i].lines, cases[i].text, length, TSR_ESCAPE_LINES);
        check(cases[i].colour, cases[i].text, length, TSR_ESCAPE_COLOUR);
        check(cases[i].json, cases[i].text, length, TSR_ESCAPE_JSON);
        check(cases[i].line, cases[i].line, strlen(cases[i].line), TSR_ESCAPE_LINE);
    }
    check("a\\x00b", "a\0b", 3, TSR_ESCAPE_LINES);
    check("\\xe2\\x80", "\342\200\256", 2, TSR_ESCAPE_LINE); /* cut */
}

/* Every size of the buffer: whole pieces, and all of the text in the end. */
static void test_pieces(void **state)
{
    (void)state;
    static const char text[] = "a\033\360\237\230\200\342\200\256b";
    for (size_t room = TSR_ESCAPE_BYTES; room < 48; room++) {
        char out[48], all[128] = "";
        for (size_t at = 0, taken; at < sizeof text - 1; at += taken) {
            memset(out, 'x', sizeof out);
            taken = tsr_escape(out, room, text + at, sizeof text - 1 - at, TSR_ESCAPE_LINE);
            assert_true(taken > 0 && strlen(out) < room);
            strcat(all, out);
        }
        assert_string_equal(all, "a\\x1b\360\237\230\200\\u{202e}b");
    }
}

static void test_messages(void **state)
{
    (void)state;
    assert_int_equal(tsr_fail(TSR_EDATA, "%s: found '%s'", "a\nb.json", "\033]0;x\007"), TSR_EDATA);
    assert_string_equal(tsr_last_error(), "a\\x0ab.json: found '\\x1b]0;x\\x07'");
    tsr_fail(TSR_EDATA, "row 1: %s", tsr_last_error()); /* quoted again */
    assert_string_equal(tsr_last_error(), "row 1: a\\x0ab.json: found '\\x1b]0;x\\x07'");
    tsr_fail_lines(TSR_ECONFIG, "2 errors:\n  %s", "\302\233");
    assert_string_equal(tsr_last_error(), "2 errors:\n  \\u{009b}");

    static char name[TSR_ERROR_BYTES];
    memset(name, 1, sizeof name - 1);
    tsr_fail(TSR_EDATA, "%s", name);
    assert_int_equal(strlen(tsr_last_error()), (TSR_ERROR_BYTES - 1) / 4 * 4);
}

static void keep(void *user, tsr_log_level level, const char *line)
{
    (void)level;
    strcpy(user, line);
}

static void test_log(void **state)
{
    (void)state;
    char line[4096] = "";
    tsr_log_set(keep, line, TSR_LOG_INFO);
    tsr_log(TSR_LOG_INFO, "the first row has \"%s\"", "\033[8m\nwarning: \342\200\256");
    tsr_log_set(NULL, NULL, TSR_LOG_ERROR);
    assert_string_equal(line, "the first row has \"\\x1b[8m\\x0awarning: \\u{202e}\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
