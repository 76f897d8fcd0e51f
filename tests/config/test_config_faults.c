/* Whichever allocation fails while a configuration is loaded: it is loaded as ever, or out of memory. */
#include "config/config.h"
#include "job/faulty_system.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char text[] = "model_name_or_path: /models/a\n"
                           "dataset: [one.jsonl, two.jsonl]\n"
                           "output_dir: out\n"
                           "init_adapter: before\n"
                           "lora_target_modules: [q_proj, v_proj]\n"
                           "alpha_pattern: {q_proj: 8}\n"
                           "resume_from_checkpoint: last\n"
                           "gradient_checkpointing: true\n"
                           "defaults: trl\n";

static void test_each_allocation(void **state)
{
    static const char *const overrides[] = {"model_name_or_path=/models/b", "trace=trace.json"};
    tsr_config_source source = {.text = text, .overrides = overrides, .override_count = 2};
    int nth = 1;
    (void)state;
    for (bool came = true; came; nth++) {
        tsr_config config;
        system_fail(SYSTEM_MALLOC, nth, ENOMEM);
        tsr_status status = tsr_config_load(&config, &source);
        came = system_clear();
        if (status == TSR_OK) {
            assert_string_equal(config.model_name_or_path, "/models/b");
            assert_string_equal(config.trace, "trace.json");
            tsr_config_free(&config);
        } else if (!came || status != TSR_ENOMEM)
            fail_msg("allocation %d: %s", nth, tsr_last_error());
    }
    print_message("%d allocations\n", nth - 2);
    assert_true(nth > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
