/* What is suggested for a path that is not there (io/missing.h). */
#include "support/scratch.h"

#include "io/missing.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void make(const char *name)
{
    assert_int_equal(mkdir(scratch_path(name), 0700), 0);
}

static void make_files(void)
{
    make("base");
    make("runs");
    make("y");
    make("runs/first");
    make("data");
    make(".hidden");
    write_text(scratch_path("runs/first/job.yaml"), "");
    write_text(scratch_path("job.yaml"), "");
    write_text(scratch_path("chats.parquet"), "");
    write_text(scratch_path("eval.jsonl"), "");
    write_text(scratch_path("data/rows.jsonl"), "");
    write_text(scratch_path("data/twins_b"), "");
    write_text(scratch_path("data/twins_a"), "");
}

static void test_near(void **state)
{
    static const struct {
        const char *path, *meant; /* NULL: nothing is near */
    } cases[] = {
        {"jobs.yaml", "job.yaml"},
        {"Base", "base"},
        {"./bsae", "./base"},
        {"chat.parquet", "chats.parquet"},
        {"chats.parquet.gz", "chats.parquet"},
        {"chats.jsonl", "chats.parquet"}, /* another format */
        {"run", "runs"},
        {"run/first", "runs/first"},
        {"runs/frist/job.yaml", "runs/first/job.yaml"},
        {"runs//frist", "runs//first"},
        {"runs/frist/", "runs/first/"},
        {"first", "runs/first"}, /* a directory further down */
        {"rows.jsonl", "data/rows.jsonl"},
        {"data/twins_x", "data/twins_a"}, /* whatever the order of the directory */
        {"train.jsonl", NULL},            /* another file, not a misspelt one */
        {"runs/second", NULL},
        {"x", NULL}, /* one letter is as near as any other */
        {"hidden", NULL},
        {"runs/frist/nothing.txt", NULL},
        {"job.yaml/x", NULL},
    };
    (void)state;
    char hint[TSR_MISSING_BYTES], expected[PATH_MAX + 32], where[PATH_MAX];
    make_files();
    assert_int_equal(chdir(scratch_path("")), 0);
    assert_non_null(getcwd(where, sizeof where));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].meant)
            snprintf(expected, sizeof expected, "; did you mean %s?", cases[i].meant);
        else
            snprintf(expected, sizeof expected,
                     " (a relative path starts from the working directory, %.4000s)", where);
        assert_string_equal(tsr_missing_hint(hint, cases[i].path, ENOENT), expected);
    }
    snprintf(expected, sizeof expected, "; did you mean %.4000s/base?", where);
    assert_string_equal(tsr_missing_hint(hint, scratch_path("bases"), ENOENT), expected);
    assert_string_equal(tsr_missing_hint(hint, scratch_path("other"), ENOENT), "");
    assert_string_equal(tsr_missing_hint(hint, "jobs.yaml", EACCES), "");
    assert_string_equal(tsr_missing_hint(hint, "/", ENOENT), "");
    assert_int_equal(chdir("/"), 0);
}

static void test_long(void **state)
{
    (void)state;
    char hint[TSR_MISSING_BYTES], path[2 * PATH_MAX];
    static const size_t lengths[] = {NAME_MAX,     NAME_MAX + 1, PATH_MAX - 2,
                                     PATH_MAX - 1, PATH_MAX,     sizeof path - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memset(path, 'a', lengths[i]);
        path[lengths[i]] = 0;
        tsr_missing_hint(hint, path, ENOENT);
        path[0] = '/';
        tsr_missing_hint(hint, path, ENOENT);
        assert_string_equal(hint, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_near), cmocka_unit_test(test_long)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
