#include "support/scratch.h"

#include "io/json.h"

#include <string.h>

static void test_broken_text(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *const words[MOST_WORDS];
    } cases[] = {
        {"", {"rows.jsonl:3", "line 1"}},
        {"{\"a\": 1", {"rows.jsonl:3", "line 1", "column"}},
        {"{\"a\": 1,\n \"b\": }", {"line 2"}},
        {"{\"a\": 1, \"a\": 2}", {"duplicate", "a"}},
        {"{\"a\": {\"x\": 1, \"x\": 1}}", {"duplicate", "x"}},
        {"{\"a\": \"\xff\"}", {"UTF-8", "0xff"}},
        {"{\"a\": \"\xc0\xaf\"}", {"UTF-8"}},
        {"{\"a\": 1} x", {"end of file expected"}},
        {"{\"a\": 99999999999999999999}", {"integer", "line 1"}},
        {"{\"a\": 1e999}", {"real number overflow"}},
        {"{\"a\": NaN}", {"line 1"}},
        {"{\"a\": \"x\\u0000y\"}", {"\\u0000"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = NULL;
        check_error(cases[i].text,
                    tsr_json_parse(&root, cases[i].text, strlen(cases[i].text), "rows.jsonl:3"),
                    TSR_EDATA, cases[i].words);
        assert_null(root);
    }
}

static void test_length_rules(void **state)
{
    (void)state;
    json_t *root;
    /* jansson alone passes over a zero behind a number */
    assert_int_equal(tsr_json_parse(&root, "[1\0]", 4, "x"), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "byte 2 is zero"));
    assert_int_equal(tsr_json_parse(&root, "[1, 2]garbage", 6, "x"), TSR_OK);
    assert_int_equal(json_array_size(root), 2);
    json_decref(root);
}

static void test_getters(void **state)
{
    (void)state;
    static const char text[] =
        "{\"s\":\"w\",\"i\":7,\"n\":0.5,\"t\":true,\"l\":[1],\"o\":{},\"z\":null}";
    json_t *root, *inner;
    const char *string;
    bool flag = false;
    int64_t integer;
    double number;
    assert_int_equal(tsr_json_parse(&root, text, strlen(text), "f.json"), TSR_OK);
    assert_int_equal(tsr_json_string(&string, root, "s", "f.json"), TSR_OK);
    assert_string_equal(string, "w");
    assert_int_equal(tsr_json_bool(&flag, root, "t", "f.json"), TSR_OK);
    assert_true(flag);
    assert_int_equal(tsr_json_int(&integer, root, "i", 0, 9, "f.json"), TSR_OK);
    assert_int_equal(integer, 7);
    assert_int_equal(tsr_json_number(&number, root, "n", 0, 1, "f.json"), TSR_OK);
    assert_true(number == 0.5);
    assert_int_equal(tsr_json_number(&number, root, "i", 0, 10, "f.json"), TSR_OK);
    assert_true(number == 7);
    assert_int_equal(tsr_json_array(&inner, root, "l", "f.json"), TSR_OK);
    assert_int_equal(tsr_json_object(&inner, root, "o", "f.json"), TSR_OK);
    assert_true(tsr_json_has(root, "s"));
    assert_false(tsr_json_has(root, "z"));
    assert_false(tsr_json_has(root, "absent"));

    check_error("int range", tsr_json_int(&integer, root, "i", 8, 9, "f.json"), TSR_EDATA,
                (const char *const[MOST_WORDS]){"f.json", "'i'", "7", "8 to 9"});
    check_error("int from real", tsr_json_int(&integer, root, "n", 0, 9, "f.json"), TSR_EDATA,
                (const char *const[MOST_WORDS]){"'n'", "0.5", "an integer"});
    check_error("string missing", tsr_json_string(&string, root, "absent", "f.json"), TSR_EDATA,
                (const char *const[MOST_WORDS]){"'absent'", "missing", "a string"});
    check_error("bool from null", tsr_json_bool(&flag, root, "z", "f.json"), TSR_EDATA,
                (const char *const[MOST_WORDS]){"'z'", "null", "true or false"});
    check_error("array", tsr_json_array(&inner, root, "o", "f.json"), TSR_EDATA,
                (const char *const[MOST_WORDS]){"'o'", "{}", "a list"});
    check_error("object", tsr_json_object(&inner, root, "l", "f.json"), TSR_EDATA,
                (const char *const[MOST_WORDS]){"'l'", "[1]", "an object"});
    json_decref(root);
}

static void test_show_is_short_and_whole(void **state)
{
    (void)state;
    char buffer[TSR_JSON_SHOW_BYTES], text[600] = "\"";
    json_t *root;
    for (int i = 0; i < 100; i++)
        strcat(text, "\xe2\x82\xac"); /* three bytes each: a cut may fall inside one */
    strcat(text, "\"");
    assert_int_equal(tsr_json_parse(&root, text, strlen(text), "x"), TSR_OK);
    tsr_json_show(buffer, root);
    size_t length = strlen(buffer);
    assert_true(length < sizeof buffer && length > 80);
    assert_string_equal(buffer + length - 3, "...");
    assert_int_equal((length - 3 - 1) % 3, 0);
    json_decref(root);
    assert_string_equal(tsr_json_show(buffer, NULL), "nothing");
}

/* One member goes, and nothing else is touched: what no number of ours holds, and the same word elsewhere. */
static void test_without(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"a\": 1, \"t\": \"x\"}", "{\"a\": 1}"},
        {"{\n  \"t\": {\"t\": [\"}\", \"\\\"\"]},\n  \"b\": 1e99\n}\n", "{\n  \"b\": 1e99\n}\n"},
        {"{\"a\":1000000000000000019884624838656,\"t\":[1,{\"x\":2}],\"b\":{\"t\":1}}",
         "{\"a\":1000000000000000019884624838656,\"b\":{\"t\":1}}"},
        {"{\n  \"a\": \"t\",\n  \"t\": null\n}", "{\n  \"a\": \"t\"\n}"},
        {"{ \"t\" : 1 }", "{ }"},
        {"{}", "{}"},
        {" {\"tt\": 1}", " {\"tt\": 1}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_text out = {0};
        assert_int_equal(tsr_json_without(&out, cases[i][0], strlen(cases[i][0]), "t", "f.json"),
                         TSR_OK);
        assert_string_equal(tsr_text_string(&out), cases[i][1]);
        tsr_text_free(&out);
    }
    tsr_text out = {0};
    check_error("a list", tsr_json_without(&out, "[1]", 3, "t", "f.json"), TSR_EDATA,
                (const char *const[MOST_WORDS]){"f.json", "expected an object"});
    check_error("no JSON", tsr_json_without(&out, "{\"t\": }", 8, "t", "f.json"), TSR_EDATA,
                (const char *const[MOST_WORDS]){"f.json"});
    tsr_text_free(&out);
}

static void test_load(void **state)
{
    (void)state;
    json_t *root;
    scratch_make();
    write_text(scratch_path("list.json"), "[1]");
    write_text(scratch_path("bad.json"), "{\n  \"a\": ,\n}");
    assert_int_equal(tsr_json_load(&root, scratch_path("list.json")), TSR_OK);
    json_decref(root);
    check_error("root", tsr_json_load_object(&root, scratch_path("list.json")), TSR_EDATA,
                (const char *const[MOST_WORDS]){"list.json", "a list", "expected an object"});
    check_error("syntax", tsr_json_load(&root, scratch_path("bad.json")), TSR_EDATA,
                (const char *const[MOST_WORDS]){"bad.json", "line 2"});
    check_error("absent", tsr_json_load(&root, scratch_path("none.json")), TSR_EDATA,
                (const char *const[MOST_WORDS]){"none.json", "No such file"});
    scratch_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken_text), cmocka_unit_test(test_length_rules),
        cmocka_unit_test(test_getters),     cmocka_unit_test(test_show_is_short_and_whole),
        cmocka_unit_test(test_without),     cmocka_unit_test(test_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
