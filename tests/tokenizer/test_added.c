/*
 * Added tokens in a text: those that a search through all of them at every byte finds, and how long it takes with many.
 */
#include "tokenizer/added.h"

#include "base/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static uint64_t drawn;

static size_t draw(size_t below)
{
    return (size_t)(tsr_mix(drawn++) % below);
}

static tsr_status append(tsr_added_set *set, const char *text, int32_t id)
{
    tsr_added_token token = {.match = strdup(text), .match_bytes = strlen(text), .id = id};
    tsr_status status = tsr_added_append(set, &token);
    if (status < 0)
        free(token.match);
    return status;
}

/* The leftmost token from `at` on, the longest of those, by looking at all. */
static const tsr_added_token *plain_next(size_t *where, const tsr_added_set *set, const char *text,
                                         size_t at, size_t end)
{
    const tsr_added_token *best = NULL;
    for (; at < end && !best; at++)
        for (size_t i = 0; i < set->count; i++) {
            const tsr_added_token *t = &set->tokens[i];
            if (t->match_bytes <= end - at && !memcmp(text + at, t->match, t->match_bytes) &&
                (!best || t->match_bytes > best->match_bytes))
                best = t;
            *where = at;
        }
    return best;
}

static void random_text(char *out, size_t most)
{
    size_t bytes = 1 + draw(most);
    for (size_t i = 0; i < bytes; i++)
        out[i] = "aab\xc3"[draw(4)];
    out[bytes] = 0;
}

/* Few letters, so that tokens begin, end and lie within one another. */
static void test_random(void **state)
{
    (void)state;
    for (int round = 0; round < 3000; round++) {
        tsr_added_set set = {0};
        char text[128];
        size_t count = 1 + draw(12), searches = 2;
        for (size_t i = 0; i < count; i++) {
            bool twice = false;
            random_text(text, 6);
            for (size_t j = 0; j < set.count; j++)
                twice = twice || !strcmp(text, set.tokens[j].match);
            if (!twice)
                assert_int_equal(append(&set, text, (int32_t)i), TSR_OK);
        }
        assert_int_equal(tsr_added_finish(&set), TSR_OK);
        while (searches--) {
            random_text(text, sizeof text - 1);
            size_t begin = draw(strlen(text)), end = strlen(text), at = begin;
            const tsr_added_token *want = NULL;
            assert_int_equal(tsr_added_search(&set, text, begin, end), TSR_OK);
            do {
                size_t where = 0, there = 0;
                const tsr_added_token *got = tsr_added_next(&where, &set, at);
                want = plain_next(&there, &set, text, at, end);
                assert_ptr_equal(got, want);
                if (want)
                    assert_int_equal(where, there);
                at = there + (want ? want->match_bytes : 0);
            } while (want);
        }
        tsr_added_free(&set);
    }
}

/* Published tokenizers have hundreds; one with 60 thousand, over a text full of their beginnings, takes no longer for each
 * byte, nor does one with tokens that all but match everywhere. */
static void test_many(void **state)
{
    (void)state;
    tsr_added_set set = {0};
    size_t bytes = (size_t)2 << 20, where, found = 0, at = 0;
    char name[2048], *text = malloc(bytes);
    assert_non_null(text);
    for (size_t i = 0; i < bytes; i++)
        text[i] = "<tok1 "[i % 6];
    clock_t begin = clock();
    for (int32_t i = 0; i < 60000; i++) {
        snprintf(name, sizeof name, "<tok%d>", i);
        assert_int_equal(append(&set, name, i), TSR_OK);
    }
    memset(name, '1', 2000);
    snprintf(name + 2000, sizeof name - 2000, ">");
    assert_int_equal(append(&set, name, 60000), TSR_OK);
    assert_int_equal(append(&set, "<tok1 <tok1 <", 60001), TSR_OK);
    assert_int_equal(tsr_added_finish(&set), TSR_OK);
    assert_int_equal(tsr_added_search(&set, text, 0, bytes), TSR_OK);
    for (const tsr_added_token *t; (t = tsr_added_next(&where, &set, at)) != NULL; found++)
        at = where + t->match_bytes;
    assert_int_equal(found, bytes / 18);
    memset(text, '1', bytes);
    assert_int_equal(tsr_added_search(&set, text, 0, bytes), TSR_OK);
    assert_null(tsr_added_next(&where, &set, 0));
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    if (seconds > 2)
        fail_msg("60000 added tokens took %.2f s", seconds);
    tsr_added_free(&set);
    free(text);
}

static void test_refused(void **state)
{
    (void)state;
    tsr_added_set set = {0};
    assert_int_equal(append(&set, "<b>", 0), TSR_OK);
    assert_int_equal(append(&set, "<a>", 1), TSR_OK);
    assert_int_equal(append(&set, "<b>", 2), TSR_OK);
    assert_int_equal(tsr_added_finish(&set), TSR_EDATA);
    assert_string_equal(tsr_last_error(), "\"<b>\" is there twice");
    tsr_added_free(&set);
    char *text = malloc(((size_t)4 << 20) + 2);
    assert_non_null(text);
    memset(text, 'a', ((size_t)4 << 20) + 1);
    text[((size_t)4 << 20) + 1] = 0;
    assert_int_equal(append(&set, text, 0), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "4194304 bytes"));
    free(text);
    assert_int_equal(tsr_added_finish(&set), TSR_OK);
    assert_int_equal(tsr_added_search(&set, "text", 0, 4), TSR_OK);
    size_t where;
    assert_null(tsr_added_next(&where, &set, 0));
    tsr_added_free(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
