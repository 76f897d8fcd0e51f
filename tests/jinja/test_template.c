/*
 * Templates against Jinja2 as transformers sets it up (tests/golden/templates, made by
 * tools/make_template_golden.py): the templates of well-known models over many conversations, and
 * snippets of every construct. What raises there has to fail here; texts and marks are equal.
 */
#include "data/golden_lines.h"
#include "jinja/template.h"

#define DIR "tests/golden/templates/"

static json_t *load(const char *path)
{
    size_t bytes;
    char *text = golden_file(path, &bytes);
    json_t *json = json_loadb(text, bytes, 0, NULL);
    free(text);
    assert_non_null(json);
    return json;
}

/* Renders and compares with a golden line; `what` and `source` name it. */
static void check(const json_t *golden, const char *what, size_t index, const char *source,
                  size_t bytes, const json_t *variables)
{
    tsr_template *t = NULL;
    tsr_rendering got = {0};
    const json_t *error = json_object_get(golden, "error");
    tsr_status status = tsr_template_parse(&t, what, source, bytes);
    if (status == TSR_OK)
        status = tsr_template_render(&got, t, variables, 0, NULL);
    if (error && status != TSR_EDATA)
        fail_msg("%s %zu gave \"%s\" instead of: %s", what, index, tsr_text_string(&got.text),
                 json_string_value(error));
    if (!error && status < 0)
        fail_msg("%s %zu: %s\n%s", what, index, tsr_last_error(), source);
    if (!error) {
        size_t length;
        const char *want = golden_text(golden, "text", &length);
        if (length != got.text.length || memcmp(want, tsr_text_string(&got.text), length))
            fail_msg("%s %zu:\n%s\n--- got\n%s\n--- not\n%s", what, index, source,
                     tsr_text_string(&got.text), want);
        const json_t *spans = json_object_get(golden, "spans");
        assert_int_equal(got.span_count, json_array_size(spans));
        for (size_t i = 0; i < got.span_count; i++) {
            const json_t *span = json_array_get(spans, i);
            assert_int_equal(got.spans[i].begin, json_integer_value(json_array_get(span, 0)));
            assert_int_equal(got.spans[i].end, json_integer_value(json_array_get(span, 1)));
        }
    }
    tsr_rendering_free(&got);
    tsr_template_destroy(t);
}

static void test_known_templates(void **state)
{
    (void)state;
    json_t *variables = load(DIR "variables.json");
    json_t *lines = golden_lines(DIR "renders.jsonl");
    assert_true(json_array_size(lines) > 250);
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        const char *name = json_string_value(json_object_get(line, "template"));
        size_t set = (size_t)json_integer_value(json_object_get(line, "set")), bytes;
        char path[256];
        snprintf(path, sizeof path, DIR "%s.jinja", name);
        char *source = golden_file(path, &bytes);
        check(line, name, set, source, bytes,
              json_array_get(json_object_get(variables, "sets"), set));
        free(source);
    }
    json_decref(lines);
    json_decref(variables);
}

static void test_snippets(void **state)
{
    (void)state;
    json_t *variables = load(DIR "variables.json");
    json_t *lines = golden_lines(DIR "snippets.jsonl");
    assert_true(json_array_size(lines) > 90);
    for (size_t i = 0; i < json_array_size(lines); i++) {
        size_t bytes;
        const char *source = golden_text(json_array_get(lines, i), "source", &bytes);
        check(json_array_get(lines, i), "snippet", i, source, bytes,
              json_object_get(variables, "snippets"));
    }
    json_decref(lines);
    json_decref(variables);
}

/* Refused by name and line. The first word is the place. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *source, *words[3];
        bool parses;
    } cases[] = {
        {"a\n{% include 'x' %}", {"t:2:", "include"}, false},
        {"{% extends 'x' %}", {"t:1:", "extends"}, false},
        {"\n\n{% call m() %}{% endcall %}", {"t:3:", "call"}, false},
        {"{{ x | urlize }}", {"t:1:", "filter \"urlize\""}, false},
        {"{{ x\n is\n escaped }}", {"t:3:", "test \"escaped\""}, false},
        {"{{ x | map('urlize') }}", {"t:1:", "filter \"urlize\""}, false},
        {"{{ x | selectattr('a', 'escaped') }}", {"t:1:", "test \"escaped\""}, false},
        {"{{ cycler(1) }}", {"t:1:", "cycler"}, false},
        {"{{ 2 ** 3 }}", {"t:1:", "**"}, false},
        {"{{ f(*x) }}", {"t:1:", "*"}, false},
        {"{% for x in y recursive %}{% endfor %}", {"t:1:", "recursive"}, false},
        {"{% macro m() %}{% generation %}{% endgeneration %}{% endmacro %}",
         {"t:1:", "generation"},
         false},
        {"{% generation %}{% generation %}{% endgeneration %}{% endgeneration %}",
         {"t:1:", "generation"},
         false},
        {"{{ '\\N{DASH}' }}", {"t:1:", "\\N"}, false},
        {"x\n{% if y %}\nz", {"t:2:", "endif", "missing"}, false},
        {"\n{{ y", {"t:2:", "not closed"}, false},
        {"\xff", {"t:", "UTF-8"}, false},
        {"\n{{ 'a'.zfill(3) }}", {"t:2:", "str.zfill"}, true},
        {"{{ {}.update({}) }}", {"t:1:", "dict.update"}, true},
        {"{{ 'e\xcc\x81' | upper }}", {"t:1:", "ASCII"}, true},
        {"{{ ['\xc3\xa9'] }}", {"t:1:", "tojson"}, true},
        {"{{ 'a' * 3 }}", {"t:1:", "operator *"}, true},
        {"{{ 'a' % 3 }}", {"t:1:", "operator %"}, true},
        {"{{ ('a' | safe).strip() }}", {"t:1:", "safe"}, true},
        {"\n{{ raise_exception('no good') }}", {"t:2:", "refuses", "no good"}, true},
        {"\n{{ strftime_now('%d') }}", {"t:2:", "chat_template_date"}, true},
        {"{{ 9223372036854775807 + 1 }}", {"t:1:", "64 bits"}, true},
        {"{% set r = range(99999) %}{% for a in r %}{{ 99998 in r }}{% endfor %}",
         {"t:1:", "does not come to an end"},
         true},
        {"{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
         {"t:1:", "does not come to an end"},
         true},
        {"{% set n = namespace(x='x') %}\n{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% "
         "endfor %}",
         {"t:2:", "256 MiB", "shorten the row"},
         true},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", {"t:1:", "too deep"}, true},
        {"{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}"
         "{{ n.x }}",
         {"t:1:", "nested"},
         true},
        {"{% set n = namespace(x=[], y=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}"
         "{% set n.y = [n.y] %}{% endfor %}{{ n.x == n.y }}",
         {"t:1:", "nested"},
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_template *t = NULL;
        tsr_rendering got = {0};
        tsr_status status = tsr_template_parse(&t, "t", cases[i].source, strlen(cases[i].source));
        if ((status == TSR_OK) != cases[i].parses)
            fail_msg("case %zu: %s", i, status < 0 ? tsr_last_error() : "it was parsed");
        if (status == TSR_OK)
            status = tsr_template_render(&got, t, NULL, 0, NULL);
        if (status != TSR_EDATA)
            fail_msg("case %zu was rendered: %s", i, tsr_text_string(&got.text));
        for (int j = 0; j < 3 && cases[i].words[j]; j++)
            if (!strstr(tsr_last_error(), cases[i].words[j]))
                fail_msg("case %zu: \"%s\" is not in \"%s\"", i, cases[i].words[j],
                         tsr_last_error());
        tsr_rendering_free(&got);
        tsr_template_destroy(t);
    }
}

static void test_date(void **state)
{
    (void)state;
    tsr_template *t;
    tsr_rendering got = {0};
    const char *source = "{{ strftime_now('%d %b %Y|%B %y %j %A %a %m %H:%M:%S %%') }}";
    setenv("TZ", "America/New_York", 1); /* which does not matter */
    assert_int_equal(tsr_template_parse(&t, "t", source, strlen(source)), TSR_OK);
    assert_int_equal(tsr_template_render(&got, t, NULL, 1721995200, NULL), TSR_OK);
    assert_string_equal(got.text.data, "26 Jul 2024|July 24 208 Friday Fri 07 12:00:00 %");
    tsr_template_destroy(t);
    source = "{{ strftime_now('%Q') }}";
    assert_int_equal(tsr_template_parse(&t, "t", source, strlen(source)), TSR_OK);
    assert_int_equal(tsr_template_render(&got, t, NULL, 1721995200, NULL), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "%Q"));
    tsr_rendering_free(&got);
    tsr_template_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_templates),
        cmocka_unit_test(test_snippets),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_date),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
