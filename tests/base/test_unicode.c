/* Normalization form C: what composes and what does not, and where each byte came from. */
#include "base/unicode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *text, *nfc;
} cases[] = {
    {"plain", "plain"},
    {"e\u0301", "\u00e9"},
    {"a\u0301\u0323", "\u1ea1\u0301"}, /* the mark below moves before the one above */
    {"\u212b", "\u00c5"},              /* a singleton */
    {"\u0958", "\u0915\u093c"},        /* excluded from composition */
    {"\u1112\u1161\u11ab", "\ud55c"},  /* Hangul */
    {"\uac00\u11a8", "\uac01"},        /* a final behind a syllable without */
    {"\uac00\u11a7", "\uac00\u11a7"},  /* a vowel, not a final */
    {"a\u0591\u0301", "\u00e1\u0591"}, /* across a mark of a lower class */
    {"a\u0300\u0301", "\u00e0\u0301"}, /* blocked by one of the same class */
    {"\U0001d15e", "\U0001d157\U0001d165"},
};

static void texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *out;
        size_t bytes, *map;
        assert_int_equal(TSR_OK,
                         tsr_unicode_nfc(&out, &bytes, &map, cases[i].text, strlen(cases[i].text)));
        assert_string_equal(out, cases[i].nfc);
        assert_int_equal(bytes, strlen(cases[i].nfc));
        free(out);
        free(map);
    }
}

static void sources(void **state)
{
    (void)state;
    char *out;
    size_t bytes, *map;
    const size_t expected[] = {0, 1, 1, 4, 1, 4, 4, 5};
    assert_int_equal(TSR_OK, tsr_unicode_nfc(&out, &bytes, &map, "xe\u0301y", 5));
    assert_string_equal(out, "x\u00e9y");
    assert_memory_equal(map, expected, sizeof expected);
    free(out);
    free(map);
}

/* Marks above and below in turn, behind one letter: they are sorted, stably, in linear time. */
static void many_marks(void **state)
{
    (void)state;
    const size_t pairs[] = {16, 17, 1000, 1000000};
    for (size_t c = 0; c < sizeof pairs / sizeof *pairs; c++) {
        size_t count = pairs[c], bytes, *map;
        char *text = malloc(4 * count + 1), *out;
        assert_non_null(text);
        text[0] = 'e';
        for (size_t i = 0; i < count; i++)
            memcpy(text + 1 + 4 * i, "\u0301\u0316", 4);
        assert_int_equal(TSR_OK, tsr_unicode_nfc(&out, &bytes, &map, text, 4 * count + 1));
        assert_int_equal(bytes, 4 * count);
        assert_memory_equal(out, "\u00e9", 2);
        for (size_t i = 0; i < count; i++) { /* each from its own place */
            assert_memory_equal(out + 2 + 2 * i, "\u0316", 2);
            assert_int_equal(map[2 * (2 + 2 * i)], 4 * i + 3);
        }
        for (size_t i = 1; i < count; i++) {
            assert_memory_equal(out + 2 * (count + i), "\u0301", 2);
            assert_int_equal(map[4 * (count + i)], 4 * i + 1);
        }
        free(text);
        free(out);
        free(map);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(sources),
                                       cmocka_unit_test(many_marks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
