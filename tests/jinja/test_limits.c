/*
 * What a template may take: every filter, test, method and operator, on a long text, a long list, a large dict and a deep
 * one, takes the steps of what it reads before it reads it, ends in the time of its steps, and holds no more memory than
 * a rendering may. With the argument "whole" each is repeated until the limit ends it, which takes a minute.
 */
#include "data/golden_lines.h"
#include "jinja/jinja.h"

#include <malloc.h>
#include <time.h>

#define TEXT_BYTES  ((size_t)1 << 18)
#define READ_BYTES  64 /* at most for one step */
#define STEP_SECOND 1e-6
#define SLACK       0.1
#define HELD_BYTES  ((int64_t)260 << 20) /* 256 MiB, and what malloc has around it */

/* ---- the memory that the library holds ---- */

static int64_t held, most_held;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *data, size_t bytes);
void __real_free(void *data);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *data, size_t bytes);
void __wrap_free(void *data);

static void *counted(void *data, int64_t before)
{
    held += (int64_t)malloc_usable_size(data) - before;
    most_held = held > most_held ? held : most_held;
    return data;
}

void *__wrap_malloc(size_t bytes)
{
    return counted(__real_malloc(bytes), 0);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return counted(__real_calloc(count, bytes), 0);
}

void *__wrap_realloc(void *data, size_t bytes)
{
    int64_t before = (int64_t)malloc_usable_size(data);
    return counted(__real_realloc(data, bytes), before);
}

void __wrap_free(void *data)
{
    held -= (int64_t)malloc_usable_size(data);
    __real_free(data);
}

/* ---- one rendering ---- */

static json_t *variables;

typedef struct {
    tsr_status status;
    int64_t steps;
    double seconds;
} taken;

/* Renders `source` and checks that it kept to its budget. */
static taken render(const char *source, int64_t limit)
{
    tsr_template *t;
    tsr_rendering got = {0};
    int64_t steps = limit, before = held;
    most_held = held;
    if (tsr_template_parse(&t, "t", source, strlen(source)) < 0)
        fail_msg("%s: %s", source, tsr_last_error());
    clock_t begin = clock();
    tsr_status status = tsr_template_render(&got, t, variables, 86400, &steps);
    taken result = {status, limit - steps, (double)(clock() - begin) / CLOCKS_PER_SEC};
    tsr_rendering_free(&got);
    tsr_template_destroy(t);
    assert_true(status == TSR_OK || status == TSR_EDATA);
    if (most_held - before > HELD_BYTES)
        fail_msg("%s held %lld bytes", source, (long long)(most_held - before));
    assert_int_equal(held, before);
    if (result.seconds > SLACK + (double)result.steps * STEP_SECOND)
        fail_msg("%s took %.2f s and %lld steps", source, result.seconds, (long long)result.steps);
    return result;
}

static bool whole;
static double slowest;
static size_t expressions;

/* An expression, of which `read` bytes at least are read; false where it fails, by its type say. */
static bool takes(const char *expression, size_t read)
{
    char source[512];
    assert_true((size_t)snprintf(source, sizeof source, "{%% set y = %s %%}", expression) <
                sizeof source);
    taken once = render(source, TSR_TEMPLATE_STEPS);
    expressions++;
    if (once.status == TSR_OK && once.steps < (int64_t)(read / READ_BYTES))
        fail_msg("%s reads %zu bytes in %lld steps", expression, read, (long long)once.steps);
    if (!whole || once.status < 0)
        return once.status == TSR_OK;
    snprintf(source, sizeof source,
             "{%% set r = range(99999) %%}{%% for i in r %%}{%% for j in r %%}{%% set y = %s %%}"
             "{%% endfor %%}{%% endfor %%}",
             expression);
    taken all = render(source, TSR_TEMPLATE_STEPS);
    assert_int_equal(all.status, TSR_EDATA);
    if (all.seconds > slowest)
        print_message("%.2f s: %s\n", slowest = all.seconds, expression);
    return true;
}

/* s: a long text, q: as long and equal, p: its first half and another end; l: a long list, f: of numbers, d: a large
 * dict, n: nested. */
static const char *const subjects[] = {"s", "e", "l", "f", "d", "n", "7", "1.5"};
#define SUBJECTS (sizeof subjects / sizeof *subjects)

static json_t *long_text(const char *piece, const char *end, size_t bytes)
{
    tsr_text text = {0};
    while (text.length + strlen(piece) <= bytes)
        tsr_text_puts(&text, piece);
    tsr_text_puts(&text, end);
    json_t *json = json_stringn(text.data, text.length);
    tsr_text_free(&text);
    return json;
}

static int make_variables(void **state)
{
    (void)state;
    json_t *list = json_array(), *numbers = json_array(), *dict = json_object(),
           *nested = json_array();
    for (int i = 0; i < 5000; i++) {
        char key[32];
        snprintf(key, sizeof key, "key %d", i);
        json_array_append_new(list, json_string(key));
        json_array_append_new(numbers, json_real(0.1 * i));
        json_object_set_new(dict, key, json_integer(i));
    }
    for (int i = 0; i < 90; i++)
        nested = json_pack("[o]", nested);
    variables = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "s", long_text("ab \n", "", TEXT_BYTES), "q",
        long_text("ab \n", "", TEXT_BYTES), "p", long_text("ab \n", "b", TEXT_BYTES / 2), "e",
        long_text(" ", "", TEXT_BYTES), "l", list, "f", numbers, "d", dict, "n", nested);
    assert_non_null(variables);
    return 0;
}

static int free_variables(void **state)
{
    (void)state;
    json_decref(variables);
    return 0;
}

/* What stands behind a name; "" if the table does not have it. */
typedef struct {
    const char *name, *behind;
    bool looks; /* does not read its subject */
} arguments;

static arguments find(const arguments *table, const char *name)
{
    while (table->name && strcmp(table->name, name))
        table++;
    return table->name ? *table : (arguments){name, "", false};
}

/* SUBJECT<before>NAME<behind> for every subject; one at least has to fit. */
static void check_name(const char *before, const arguments *a)
{
    bool fits = false;
    for (size_t i = 0; i < SUBJECTS; i++) {
        char expression[256];
        bool text = subjects[i][0] == 's' || subjects[i][0] == 'e';
        snprintf(expression, sizeof expression, "%s%s%s%s", subjects[i], before, a->name,
                 a->behind);
        fits = takes(expression, text && !a->looks ? TEXT_BYTES : 0) || fits;
    }
    if (!fits)
        fail_msg("%s%s fits no subject", a->name, a->behind);
}

static void test_filters(void **state)
{
    (void)state;
    static const arguments table[] = {{"default", "(s, true)", true},
                                      {"d", "", true},
                                      {"string", "", true},
                                      {"safe", "", true},
                                      {"replace", "('a', 'bb')", false},
                                      {"select", "('eq', s)", false},
                                      {"reject", "('in', d)", false},
                                      {"selectattr", "('a')", false},
                                      {"rejectattr", "('a', 'eq', s)", false},
                                      {"map", "('upper')", false},
                                      {0}};
    const char *name;
    for (size_t i = 0; (name = tsr_jinja_filter_name_at(i)) != NULL; i++) {
        arguments a = find(table, name);
        check_name(" | ", &a);
    }
    static const char *const more[] = {"s | replace(p, '')",
                                       "s | trim(s)",
                                       "s | indent(s)",
                                       "s | indent(1024, true)",
                                       "l | join(s)",
                                       "n | tojson(indent=s)",
                                       "n | tojson(indent=64)",
                                       "l | join",
                                       "f | tojson(separators=(s, s))",
                                       "d | tojson(sort_keys=true)",
                                       "[s, q] | max",
                                       "d | dictsort(by='value')",
                                       "l | map(attribute=s)",
                                       "l | sort(reverse=true) | list",
                                       "s | tojson(true)",
                                       "[[s], n] | string",
                                       "l | map('replace', 'k', s) | list",
                                       "l | unique | list"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        takes(more[i], 0);
}

static void test_tests(void **state)
{
    (void)state;
    static const char *const readers[] = {"in",       "eq", "equalto", "ne",          "lt",
                                          "lessthan", "le", "gt",      "greaterthan", "ge"};
    const char *name;
    for (size_t i = 0; (name = tsr_jinja_test_name_at(i)) != NULL; i++) {
        if (strchr("=!<>", name[0])) /* the names that select alone can give */
            continue;
        arguments a = {name, strcmp(name, "sameas") ? "" : "(true)", true};
        if (!strcmp(name, "divisibleby"))
            a.behind = "(3)";
        if (!strcmp(name, "sameas"))
            takes("true is sameas(true)", 0);
        for (size_t j = 0; j < sizeof readers / sizeof *readers; j++) {
            char expression[64];
            if (strcmp(name, readers[j]))
                continue;
            snprintf(expression, sizeof expression, "s is %s(q)", name);
            assert_true(takes(expression, TEXT_BYTES));
            a.behind = strcmp(name, "in") ? "(7)" : "(l)";
        }
        if (strcmp(name, "sameas"))
            check_name(" is ", &a);
    }
}

static void test_methods(void **state)
{
    (void)state;
    static const arguments table[] = {
        {"startswith", "(q)", false},   {"endswith", "((p, q, s))", false},
        {"replace", "(p, q)", false},   {"join", "(['a', q])", false},
        {"find", "(p)", false},         {"count", "('b')", false},
        {"removeprefix", "(q)", false}, {"removesuffix", "(q)", false},
        {"get", "('key 4999')", false}, {0}};
    const char *name;
    for (size_t i = 0; (name = tsr_jinja_method_name_at(i)) != NULL; i++) {
        arguments a = find(table, name);
        if (!a.behind[0])
            a.behind = "()";
        check_name(".", &a);
    }
    static const char *const more[] = {"s.strip(s)",   "s.rsplit(p)",      "s.split(p)",
                                       "s.split('a')", "s.rsplit('a', 3)", "e.split(none, 0)",
                                       "s.lstrip(q)",  "e.rstrip(s)"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        takes(more[i], TEXT_BYTES);
}

static void test_operators(void **state)
{
    (void)state;
    static const char *const readers[] = {
        "s + q",  "s ~ q",  "s == q",     "s != q",     "s < q",     "s <= q",  "s > q",
        "s >= q", "p in s", "p not in s", "s[-1]",      "s[5:]",     "s[::2]",  "s[::-1]",
        "l[s]",   "d[s]",   "{s: 1}",     "[s] == [q]", "d[p ~ '']", "s in [q]"};
    static const char *const others[] = {"s if s else q",
                                         "not s",
                                         "s and q",
                                         "s or q",
                                         "l + l",
                                         "l[::-1]",
                                         "l[5]",
                                         "l == l",
                                         "n == n",
                                         "7 in f",
                                         "'x' in d",
                                         "d.x",
                                         "-7",
                                         "7 + 7 * 7",
                                         "7 // 2 % 3",
                                         "1.5 / 7",
                                         "1 < 2 < 3",
                                         "range(99999)",
                                         "namespace(d)",
                                         "namespace(x=s)",
                                         "strftime_now('%d')",
                                         "strftime_now(s)",
                                         "[s, q]",
                                         "(s, q)",
                                         "{'a': s, 'b': q}",
                                         "d[7]",
                                         "n[0][0][0]",
                                         "x_not_defined",
                                         "l.x",
                                         "0.1 ~ ''"};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        takes(readers[i], TEXT_BYTES / 2);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        takes(others[i], 0);
    static const char *const statements[] = {
        "{% for c in s %}{% endfor %}",
        "{% set x %}{{ s }}{% endset %}",
        "{% filter upper %}{{ s }}{% endfilter %}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{% set x = m(s) %}",
        "{{ s }}",
    };
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        taken once = render(statements[i], TSR_TEMPLATE_STEPS);
        assert_int_equal(once.status, TSR_OK);
        assert_true(once.steps >= (int64_t)(TEXT_BYTES / READ_BYTES));
    }
    assert_true(expressions > 80);
}

/* Many of what a template may have many of: no search through all of them for each. */
static void test_many(void **state)
{
    (void)state;
    static const struct {
        const char *before, *each, *between, *behind;
    } many[] = {{"", "{%% set a%d = 1 %%}", "", ""},
                {"{% set n = namespace() %}", "{%% set n.a%d = 1 %%}", "", ""},
                {"{% set d = {", "'k%d': 1", ", ", "} %}"},
                {"{% macro m(", "a%d=0", ", ", ") %}{% endmacro %}{{ m(a0=1, a9=2) }}"}};
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        tsr_text source = {0};
        tsr_text_puts(&source, many[i].before);
        for (int j = 0; j < 20000; j++) {
            char each[64];
            snprintf(each, sizeof each, many[i].each, j);
            tsr_text_puts(&source, j ? many[i].between : "");
            tsr_text_puts(&source, each);
        }
        tsr_text_puts(&source, many[i].behind);
        clock_t begin = clock();
        assert_int_equal(render(tsr_text_string(&source), TSR_TEMPLATE_STEPS).status, TSR_OK);
        double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        if (seconds > 1)
            fail_msg("20000 of %s took %.2f s", many[i].each, seconds);
        tsr_text_free(&source);
    }
}

/* What would hold much more than a rendering may, and what is beyond 64 bits. */
static void test_memory(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "{% for i in range(999) %}{{ s }}{% endfor %}",
        "{% set n = namespace(x=s) %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x=l) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{{ s | replace('a', s) }}",
        "{{ s | indent(s) }}",
        "{{ n | tojson(indent=s ~ s ~ s) }}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        assert_int_equal(render(sources[i], TSR_TEMPLATE_STEPS).status, TSR_EDATA);
    assert_int_equal(
        render("{{ range(-9000000000000000000, 9000000000000000000, 6000000000000000000) | list }}",
               TSR_TEMPLATE_STEPS)
            .status,
        TSR_OK);
    /* Several renderings together, as the turns of a row. */
    assert_int_equal(render("{{ s }}", 1000).status, TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "t:1: the template does not come to an end"));
}

int main(int argc, char **argv)
{
    (void)argv;
    whole = argc > 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filters), cmocka_unit_test(test_tests),
        cmocka_unit_test(test_methods), cmocka_unit_test(test_operators),
        cmocka_unit_test(test_many),    cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, make_variables, free_variables);
}
