/*
 * Paths of a configuration.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/config.h"
#include "support/scratch.h"

/* In one's home, as transformers takes output_dir. */
static void test_home(void **state)
{
    (void)state;
    const char *const overrides[] = {"output_dir=~/runs/a"};
    const tsr_config_source source = {
        .text = "model_name_or_path: ~/m\ndataset: ['~/d.jsonl', d~]\neval_dataset: ~x/e\n"
                "init_adapter: \"~\"\n",
        .overrides = overrides,
        .override_count = 1};
    tsr_config c;
    char *before = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    assert_int_equal(setenv("HOME", "/h/me", 1), 0);
    assert_int_equal(tsr_config_load(&c, &source), TSR_OK);
    assert_string_equal(c.model_name_or_path, "/h/me/m");
    assert_string_equal(c.dataset.items[0], "/h/me/d.jsonl");
    assert_string_equal(c.dataset.items[1], "d~");
    assert_string_equal(c.eval_dataset.items[0], "~x/e");
    assert_string_equal(c.init_adapter, "/h/me");
    assert_string_equal(c.output_dir, "/h/me/runs/a");
    tsr_config_free(&c);
    assert_int_equal(before ? setenv("HOME", before, 1) : unsetenv("HOME"), 0);
    free(before);
}

static const char *refusal(const char *path, const char *text)
{
    tsr_config c;
    const tsr_config_source source = {.path = path, .text = text, .use = TSR_CONFIG_PLAN};
    if (tsr_config_load(&c, &source) == TSR_OK) {
        tsr_config_free(&c);
        return "";
    }
    return tsr_last_error();
}

/* a/b that is not here: a path from where the file is, a path all the same, or a name on the Hub. */
static void test_not_here(void **state)
{
    (void)state;
    char expected[256];
    assert_int_equal(mkdir(scratch_path("tree"), 0777) | mkdir(scratch_path("tree/shapes"), 0777) |
                         mkdir(scratch_path("tree/shapes/tiny"), 0777) |
                         mkdir(scratch_path("tree/jobs"), 0777),
                     0);
    write_text(scratch_path("tree/jobs/a.yaml"), "model_name_or_path: shapes/tiny\n");
    snprintf(
        expected, sizeof expected,
        "found 'shapes/tiny', which is not in the working directory but in %s: start there, or "
        "write model_name_or_path: %s/shapes/tiny",
        scratch_path("tree"), scratch_path("tree"));
    assert_non_null(strstr(refusal(scratch_path("tree/jobs/a.yaml"), NULL), expected));
    assert_non_null(strstr(refusal(NULL, "model_name_or_path: shapes/tiny\n"),
                           "`hf download shapes/tiny --local-dir tiny`"));
    assert_string_equal(refusal(NULL, "model_name_or_path: examples/tiny-lama\n"), "");
    assert_string_equal(refusal(NULL, "model_name_or_path: runs/first\n"), "");
    assert_string_equal(refusal(NULL, "model_name_or_path: -x/y\n"), ""); /* no name there */
    assert_int_equal(chdir(scratch_path("tree")), 0);
    assert_string_equal(refusal(NULL, "model_name_or_path: jobs/tiny\n"), "");
    assert_int_equal(chdir("/"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_home),
                                       cmocka_unit_test(test_not_here)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
