/*
 * save_steps and eval_steps switch their strategies on, unless another one is written.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "config/config.h"

#define NO    TSR_CONFIG_EVERY_NO
#define STEPS TSR_CONFIG_EVERY_STEPS
#define EPOCH TSR_CONFIG_EVERY_EPOCH

static bool has_note(const tsr_config *config, const char *words)
{
    for (int i = 0; i < config->notes.count; i++)
        if (strstr(config->notes.items[i], words))
            return true;
    return false;
}

static void load(tsr_config *out, const char *keys, const char *override)
{
    char text[512] = "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: o\n";
    const char *overrides[] = {override};
    const tsr_config_source source = {
        .text = strcat(text, keys), .overrides = overrides, .override_count = override != NULL};
    if (tsr_config_load(out, &source) < 0)
        fail_msg("%s: %s", keys, tsr_last_error());
}

static void test_given(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *override;
        tsr_config_every save, eval;
        const char *note; /* NULL: none about steps */
    } cases[] = {
        {"", NULL, NO, NO, NULL},
        {"save_steps: 2\n", NULL, STEPS, NO, NULL},
        {"", "save_steps=0.5", STEPS, NO, NULL},
        {"save_steps: 2\nsave_strategy: no\n", NULL, NO, NO, NULL},
        {"save_steps: 2\nsave_strategy: epoch\n", NULL, EPOCH, NO, NULL},
        {"save_strategy: no\n", "save_steps=2", NO, NO,
         "save_steps has no effect with save_strategy: no"},
        {"save_strategy: epoch\n", "save_steps=2", EPOCH, NO, "with save_strategy: epoch"},
        {"save_steps: 2\n", "save_strategy=no", NO, NO, NULL},
        {"save_strategy: steps\n", "save_steps=2", STEPS, NO, NULL},
        {"eval_dataset: e.jsonl\neval_steps: 3\n", NULL, NO, STEPS, NULL},
        {"eval_dataset: e.jsonl\neval_steps: 3\neval_strategy: no\n", NULL, NO, NO, NULL},
        {"eval_dataset: e.jsonl\nevaluation_strategy: no\n", "eval_steps=3", NO, NO,
         "eval_steps has no effect with eval_strategy: no"},
        {"eval_dataset: e.jsonl\neval_steps: null\n", NULL, NO, NO, NULL},
        {"eval_steps: 3\n", NULL, NO, NO, "eval_steps has no effect without eval_dataset"},
        {"validation_split: 0.1\neval_steps: 3\n", NULL, NO, STEPS, NULL},
        {"eval_steps: 3\neval_strategy: no\n", NULL, NO, NO, NULL},
        {"save_steps: 2\ndefaults: trl\n", NULL, STEPS, NO, NULL},
        {"save_strategy: no\ndefaults: trl\n", NULL, NO, NO, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_config c;
        load(&c, cases[i].keys, cases[i].override);
        if (c.save_strategy != cases[i].save || c.eval_strategy != cases[i].eval)
            fail_msg("%s %s: save %d, eval %d", cases[i].keys, cases[i].override,
                     (int)c.save_strategy, (int)c.eval_strategy);
        if (cases[i].note ? !has_note(&c, cases[i].note) : has_note(&c, "does nothing"))
            fail_msg("%s %s: the notes are others", cases[i].keys, cases[i].override);
        if (strstr(cases[i].keys, "save_steps") && has_note(&c, "save_strategy no (TRL steps)"))
            fail_msg("%s: save_strategy is said to be no", cases[i].keys);
        tsr_config_free(&c);
    }
}

/* What is written is what was meant: read again it says the same. */
static void test_written(void **state)
{
    (void)state;
    tsr_config c, again;
    tsr_text yaml = {0};
    load(&c, "save_steps: 2\n", NULL);
    assert_int_equal(tsr_config_write(&yaml, &c), TSR_OK);
    assert_non_null(strstr(tsr_text_string(&yaml), "\nsave_strategy: steps\nsave_steps: 2\n"));
    assert_non_null(
        strstr(tsr_text_string(&yaml), "\neval_strategy: no  # default\neval_steps: 1  #"));
    assert_int_equal(tsr_config_load(&again, &(tsr_config_source){.text = tsr_text_string(&yaml)}),
                     TSR_OK);
    assert_int_equal(again.save_strategy, STEPS);
    assert_int_equal(again.eval_strategy, NO);
    assert_false(has_note(&again, "does nothing"));
    tsr_config_free(&again);
    tsr_config_free(&c);
    tsr_text_free(&yaml);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_given),
                                       cmocka_unit_test(test_written)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
