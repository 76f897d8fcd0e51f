/*
 * The resolved configuration as it is written: the marks of what nobody set, and what it does not carry.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "config/config.h"

static tsr_config load_text(const char *text)
{
    tsr_config config;
    const tsr_config_source source = {.text = text};
    if (tsr_config_load(&config, &source) < 0)
        fail_msg("%s", tsr_last_error());
    return config;
}

/* With what is required. */
static tsr_config load(const char *more)
{
    char text[400];
    snprintf(text, sizeof text, "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: o\n%s", more);
    return load_text(text);
}

static void test_marks(void **state)
{
    (void)state;
    tsr_config c = load("lora_r: 16\n");
    uint64_t before = tsr_config_hash(&c);
    c.dtype = TSR_CONFIG_DTYPE_FLOAT32; /* as the job resolves it */
    assert_true(tsr_config_hash(&c) != before);
    tsr_text text = {0};
    assert_int_equal(tsr_config_write(&text, &c), TSR_OK);
    assert_non_null(strstr(text.data, "\nlora_r: 16\n"));
    assert_non_null(strstr(text.data, "\nlora_alpha: 32  # default\n"));
    assert_non_null(strstr(text.data, "\ndtype: float32  # resolved\n"));
    assert_non_null(strstr(text.data, "\ndata_seed: 42  # default: as seed\n"));
    tsr_text_free(&text);
    tsr_config_free(&c);
}

/* What was meant for one start is not of the run: who starts from its file says so again. */
static void test_one_start(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_config plain = load("");
    tsr_config c = load("overwrite_output_dir: true\nresume_from_checkpoint: o/x\n");
    assert_int_equal(tsr_config_hash(&c), tsr_config_hash(&plain));
    assert_int_equal(tsr_config_write(&text, &c), TSR_OK);
    assert_non_null(strstr(text.data, "\n# overwrite_output_dir: for one start alone"));
    assert_non_null(strstr(text.data, "\n# resume_from_checkpoint: for one start alone"));
    tsr_config again = load_text(text.data);
    assert_false(again.overwrite_output_dir);
    assert_null(again.resume_from_checkpoint);
    tsr_text_free(&text);
    tsr_config_free(&plain);
    tsr_config_free(&c);
    tsr_config_free(&again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_marks),
                                       cmocka_unit_test(test_one_start)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
