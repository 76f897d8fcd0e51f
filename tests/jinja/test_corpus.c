/*
 * Templates of published models against Jinja2 as transformers sets it up: tests/golden/corpus,
 * made by tools/make_template_corpus.py (`--show NAME SET` prints the text of a pair). Every
 * template over every conversation: the same bytes and marks, the same message where the template
 * raises or uses what is undefined, an error where Python has an error.
 */
#include "base/hash.h"
#include "data/golden_lines.h"
#include "jinja/template.h"

#define DIR "tests/golden/corpus/"
#define NOW 1721952000 /* 2024-07-26 */

/* The hash of text and marks as 16 digits. */
static void digest(char *out, size_t bytes, const tsr_rendering *got)
{
    tsr_text marks = {0};
    for (size_t i = 0; i < got->span_count; i++)
        tsr_text_printf(&marks, "%zu-%zu;", got->spans[i].begin, got->spans[i].end);
    uint64_t hash = tsr_hash(TSR_HASH_START, tsr_text_string(&got->text), got->text.length);
    hash = tsr_hash(hash, tsr_text_string(&marks), marks.length);
    snprintf(out, bytes, "%016llx", (unsigned long long)hash);
    tsr_text_free(&marks);
}

/* What the error must end with; "" where only Python knows the words. */
static const char *wanted_message(const json_t *outcome)
{
    static const char undefined[] = "UndefinedError: ";
    const char *raised = json_string_value(json_object_get(outcome, "raise"));
    const char *error = json_string_value(json_object_get(outcome, "error"));
    if (raised)
        return raised;
    return strncmp(error, undefined, sizeof undefined - 1) ? "" : error + sizeof undefined - 1;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

/* 1 if the pair differs; says how. */
static int compare(const char *name, size_t set, const tsr_template *t, const json_t *variables,
                   const json_t *outcome)
{
    char got_digest[32];
    tsr_rendering got = {0};
    tsr_status status = tsr_template_render(&got, t, variables, NOW, NULL);
    bool same;
    if (json_is_string(outcome)) {
        digest(got_digest, sizeof got_digest, &got);
        same = status == TSR_OK && !strcmp(got_digest, json_string_value(outcome));
        if (!same)
            print_error("%s %zu: %s\n%s\n", name, set,
                        status < 0 ? tsr_last_error() : "other text or marks",
                        tsr_text_string(&got.text));
    } else {
        same = status == TSR_EDATA && ends_with(tsr_last_error(), wanted_message(outcome));
        if (!same)
            print_error("%s %zu: \"%s\" instead of %s\n", name, set,
                        status < 0 ? tsr_last_error() : tsr_text_string(&got.text),
                        wanted_message(outcome));
    }
    tsr_rendering_free(&got);
    return !same;
}

static int check_template(const json_t *line, const json_t *sets)
{
    const char *name = json_string_value(json_object_get(line, "template"));
    const json_t *outcomes = json_object_get(line, "outcomes");
    char path[256];
    size_t bytes;
    tsr_template *t;
    int wrong = 0;
    snprintf(path, sizeof path, DIR "%s.jinja", name);
    char *source = golden_file(path, &bytes);
    if (tsr_template_parse(&t, name, source, bytes) < 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(json_array_size(outcomes), json_array_size(sets));
    for (size_t i = 0; i < json_array_size(sets); i++)
        wrong += compare(name, i, t, json_array_get(sets, i), json_array_get(outcomes, i));
    tsr_template_destroy(t);
    free(source);
    return wrong;
}

static void test_corpus(void **state)
{
    (void)state;
    size_t bytes;
    int wrong = 0;
    char *text = golden_file(DIR "conversations.json", &bytes);
    json_t *sets = json_loadb(text, bytes, 0, NULL);
    json_t *lines = golden_lines(DIR "expected.jsonl");
    assert_true(json_array_size(sets) >= 40);
    assert_true(json_array_size(lines) > 45);
    for (size_t i = 1; i < json_array_size(lines); i++) /* the first has versions */
        wrong += check_template(json_array_get(lines, i), sets);
    if (wrong)
        fail_msg("%d of %zu pairs differ", wrong,
                 (json_array_size(lines) - 1) * json_array_size(sets));
    json_decref(lines);
    json_decref(sets);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_corpus)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
