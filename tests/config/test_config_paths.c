/*
 * Paths of a configuration.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/config.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_home)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
