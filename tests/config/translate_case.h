/*
 * config/translate_case.h: files of peers with words that their translation, or the message that refuses them, has.
 */
#ifndef TESTS_CONFIG_TRANSLATE_CASE_H
#define TESTS_CONFIG_TRANSLATE_CASE_H

#include "config/config.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct {
    const char *text, *override; /* NULL: none */
    const char *words[6];        /* each must be in the job.yaml; with ! in front it must not be */
} expected;

static inline tsr_status translate(tsr_text *out, const char *text, const char *override)
{
    const tsr_config_source source = {.text = text,
                                      .name = "their.yaml",
                                      .overrides = &override,
                                      .override_count = override != NULL};
    return tsr_config_translate(out, &source);
}

static inline void check_words(const char *in, const char *const *words, int count,
                               const char *text)
{
    for (int w = 0; w < count && words[w]; w++) {
        bool absent = *words[w] == '!';
        if ((strstr(in, words[w] + absent) != NULL) == absent)
            fail_msg("%s\ngave\n%s\n%s '%s'", text, in, absent ? "with" : "without",
                     words[w] + absent);
    }
}

static inline void check_each(const expected *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tsr_text out = {0};
        if (translate(&out, cases[i].text, cases[i].override) < 0)
            fail_msg("%s\n%s", cases[i].text, tsr_last_error());
        check_words(tsr_text_string(&out), cases[i].words, 6, cases[i].text);
        tsr_text_free(&out);
    }
}

static inline void check_refused(const expected *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tsr_text out = {0};
        assert_int_equal(translate(&out, cases[i].text, cases[i].override), TSR_ECONFIG);
        check_words(tsr_last_error(), cases[i].words, 6, cases[i].text);
        assert_int_equal(out.length, 0);
        tsr_text_free(&out);
    }
}

#endif
