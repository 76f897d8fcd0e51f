/*
 * Learning-rate schedules against transformers' (golden schedules), 1e-12; the keys' rules.
 */
#include "optim/schedule.h"

#include "support/golden_plain.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define TOLERANCE 1e-12

static double number(json_t *entry, const char *key, bool *set)
{
    json_t *value = json_object_get(entry, key);
    *set = value != NULL;
    return json_number_value(value);
}

static void test_transformers(void **state)
{
    (void)state;
    json_t *file = golden_json(TSR_SOURCE_DIR "/tests/golden/schedules.json"), *entry;
    size_t index;
    json_array_foreach(json_object_get(file, "schedules"), index, entry)
    {
        tsr_schedule_options o = {.name = json_string_value(json_object_get(entry, "name")),
                                  .learning_rate = 1};
        o.warmup_steps = (double)json_integer_value(json_object_get(entry, "num_warmup_steps"));
        o.num_cycles = number(entry, "num_cycles", &o.num_cycles_set);
        o.min_lr = number(entry, "min_lr", &o.min_lr_set);
        o.min_lr_rate = number(entry, "min_lr_rate", &o.min_lr_rate_set);
        tsr_schedule s;
        uint64_t total = (uint64_t)json_integer_value(json_object_get(entry, "num_training_steps"));
        assert_int_equal(tsr_schedule_make(&s, &o, total), TSR_OK);
        json_t *expected = json_object_get(entry, "multipliers");
        for (size_t k = 0; k < json_array_size(expected); k++) {
            double e = json_number_value(json_array_get(expected, k));
            double found = tsr_schedule_multiplier(&s, k);
            if (!(fabs(found - e) <= TOLERANCE))
                fail_msg("%s (%zu), step %zu: %.17g, expected %.17g", o.name, index, k, found, e);
        }
    }
    assert_true(index >= 28);
    json_decref(file);
}

static uint64_t warmup(double steps, double ratio, uint64_t total)
{
    tsr_schedule s;
    tsr_schedule_options o = {.warmup_steps = steps, .warmup_ratio = ratio, .learning_rate = 1};
    assert_int_equal(tsr_schedule_make(&s, &o, total), TSR_OK);
    assert_int_equal(s.kind, TSR_SCHEDULE_LINEAR);
    return s.warmup_steps;
}

static void test_warmup(void **state)
{
    (void)state;
    assert_int_equal(warmup(0, 0, 50), 0);
    assert_int_equal(warmup(4, 0, 50), 4);
    assert_int_equal(warmup(1, 0, 50), 1);
    assert_int_equal(warmup(0.1, 0, 50), 5);
    assert_int_equal(warmup(0.1, 0, 51), 6);
    assert_int_equal(warmup(0, 0.03, 100), 3);
    assert_int_equal(warmup(0, 0.03, 101), 4);
    assert_int_equal(warmup(7, 0.5, 100), 7);
    tsr_schedule s; /* constant has no warm-up, whatever the key says */
    tsr_schedule_options o = {.name = "constant", .warmup_steps = 10};
    assert_int_equal(tsr_schedule_make(&s, &o, 20), TSR_OK);
    assert_true(tsr_schedule_multiplier(&s, 0) == 1);
}

static void refuse(tsr_schedule_options o, const char *words)
{
    tsr_schedule s;
    o.learning_rate = 1e-3;
    assert_int_equal(tsr_schedule_make(&s, &o, 10), TSR_ECONFIG);
    if (!strstr(tsr_last_error(), words))
        fail_msg("\"%s\" is not in: %s", words, tsr_last_error());
}

static void test_refusals(void **state)
{
    (void)state;
    refuse((tsr_schedule_options){.name = "polynomial"}, "cosine_with_min_lr");
    refuse((tsr_schedule_options){.warmup_steps = -1}, "warmup_steps");
    refuse((tsr_schedule_options){.warmup_steps = NAN}, "warmup_steps");
    refuse((tsr_schedule_options){.warmup_ratio = 1.5}, "warmup_ratio");
    refuse((tsr_schedule_options){.num_cycles_set = true, .num_cycles = 1}, "num_cycles");
    refuse((tsr_schedule_options){.name = "cosine", .num_cycles_set = true, .num_cycles = -1},
           "num_cycles");
    refuse((tsr_schedule_options){.name = "cosine", .min_lr_set = true}, "min_lr");
    refuse((tsr_schedule_options){.name = "cosine_with_min_lr"}, "neither");
    refuse((tsr_schedule_options){.name = "cosine_with_min_lr",
                                  .min_lr_set = true,
                                  .min_lr_rate_set = true},
           "both");
    refuse((tsr_schedule_options){.name = "cosine_with_min_lr", .min_lr_set = true, .min_lr = 1},
           "min_lr is 1");
    refuse((tsr_schedule_options){.name = "cosine_with_min_lr",
                                  .min_lr_rate_set = true,
                                  .min_lr_rate = 2},
           "min_lr_rate is 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transformers),
        cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
