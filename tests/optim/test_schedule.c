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

static tsr_schedule_kind kind_of(const char *name)
{
    int kind = 0;
    while (kind < TSR_SCHEDULE_KINDS && strcmp(tsr_schedule_name(kind), name))
        kind++;
    assert_int_not_equal(kind, TSR_SCHEDULE_KINDS);
    return kind;
}

/* NaN: the entry has no such key. A word counts as its place. */
static double argument_of(json_t *entry, tsr_schedule_argument argument)
{
    json_t *value = json_object_get(entry, tsr_schedule_argument_name(argument));
    const char *const *words = tsr_schedule_argument_words(argument);
    int place = 0;
    if (!value || !words)
        return value ? json_number_value(value) : NAN;
    while (strcmp(words[place], json_string_value(value)))
        place++;
    return place;
}

static double learning_rate_of(json_t *entry)
{
    json_t *value = json_object_get(entry, "learning_rate");
    return value ? json_number_value(value) : 1;
}

static void check_entry(json_t *entry, size_t index)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    json_t *expected = json_object_get(entry, "multipliers");
    tsr_schedule_options o = {.kind = kind_of(name), .learning_rate = learning_rate_of(entry)};
    o.warmup_steps = (double)json_integer_value(json_object_get(entry, "num_warmup_steps"));
    for (int i = 0; i < TSR_SCHEDULE_ARGUMENTS; i++)
        o.arguments.value[i] = argument_of(entry, i);
    tsr_schedule s;
    uint64_t total = (uint64_t)json_integer_value(json_object_get(entry, "num_training_steps"));
    assert_int_equal(tsr_schedule_make(&s, &o, total), TSR_OK);
    for (size_t k = 0; k < json_array_size(expected); k++) {
        double e = json_number_value(json_array_get(expected, k));
        double found = tsr_schedule_multiplier(&s, k);
        if (!(fabs(found - e) <= TOLERANCE))
            fail_msg("%s (%zu), step %zu: %.17g, expected %.17g", name, index, k, found, e);
    }
}

static void test_transformers(void **state)
{
    (void)state;
    json_t *file = golden_json(TSR_SOURCE_DIR "/tests/golden/schedules.json"), *entry;
    size_t index;
    unsigned seen = 0;
    json_array_foreach(json_object_get(file, "schedules"), index, entry)
    {
        check_entry(entry, index);
        seen |= 1u << kind_of(json_string_value(json_object_get(entry, "name")));
    }
    assert_int_equal(seen, (1u << TSR_SCHEDULE_KINDS) - 1);
    json_decref(file);
}

static uint64_t warmup(double steps, uint64_t total)
{
    tsr_schedule s;
    tsr_schedule_options o = {
        .warmup_steps = steps, .learning_rate = 1, .arguments = TSR_SCHEDULE_NO_ARGUMENTS};
    assert_int_equal(tsr_schedule_make(&s, &o, total), TSR_OK);
    assert_int_equal(s.kind, TSR_SCHEDULE_LINEAR);
    return s.warmup_steps;
}

static void test_warmup(void **state)
{
    (void)state;
    assert_int_equal(warmup(0, 50), 0);
    assert_int_equal(warmup(4, 50), 4);
    assert_int_equal(warmup(1, 50), 1);
    assert_int_equal(warmup(0.1, 50), 5);
    assert_int_equal(warmup(0.1, 51), 6);
    assert_int_equal(warmup(0.03, 100), 3);
    assert_int_equal(warmup(0.03, 101), 4);
    tsr_schedule s; /* constant has no warm-up, whatever the key says */
    tsr_schedule_options o = {
        .kind = TSR_SCHEDULE_CONSTANT, .warmup_steps = 10, .arguments = TSR_SCHEDULE_NO_ARGUMENTS};
    assert_int_equal(tsr_schedule_make(&s, &o, 20), TSR_OK);
    assert_true(tsr_schedule_multiplier(&s, 0) == 1);
}

/* Each pair is an argument and its value, up to TSR_SCHEDULE_ARGUMENTS. */
static void refuse(const char *words, tsr_schedule_kind kind, double warmup_steps, ...)
{
    tsr_schedule s;
    tsr_schedule_options o = {.kind = kind,
                              .warmup_steps = warmup_steps,
                              .learning_rate = 1e-3,
                              .arguments = TSR_SCHEDULE_NO_ARGUMENTS};
    va_list pairs;
    va_start(pairs, warmup_steps);
    for (int a; (a = va_arg(pairs, int)) != TSR_SCHEDULE_ARGUMENTS;)
        o.arguments.value[a] = va_arg(pairs, double);
    va_end(pairs);
    assert_int_equal(tsr_schedule_make(&s, &o, 10), TSR_ECONFIG);
    if (!strstr(tsr_last_error(), words))
        fail_msg("\"%s\" is not in: %s", words, tsr_last_error());
}

static void test_refusals(void **state)
{
    (void)state;
    enum { END = TSR_SCHEDULE_ARGUMENTS };
    refuse("warmup_steps", TSR_SCHEDULE_LINEAR, -1, END);
    refuse("warmup_steps", TSR_SCHEDULE_LINEAR, NAN, END);
    refuse("linear takes no num_cycles; these do: cosine", TSR_SCHEDULE_LINEAR, 0,
           TSR_SCHEDULE_NUM_CYCLES, 1.0, END);
    refuse("num_cycles is -1", TSR_SCHEDULE_COSINE, 0, TSR_SCHEDULE_NUM_CYCLES, -1.0, END);
    refuse("cosine takes no min_lr; these do: cosine_with_min_lr", TSR_SCHEDULE_COSINE, 0,
           TSR_SCHEDULE_MIN_LR, 0.0, END);
    refuse("needs min_lr or min_lr_rate", TSR_SCHEDULE_COSINE_WITH_MIN_LR, 0, END);
    refuse("say the same", TSR_SCHEDULE_COSINE_WITH_MIN_LR, 0, TSR_SCHEDULE_MIN_LR, 0.0,
           TSR_SCHEDULE_MIN_LR_RATE, 0.0, END);
    refuse("min_lr 1 is above the learning_rate", TSR_SCHEDULE_COSINE_WITH_MIN_LR, 0,
           TSR_SCHEDULE_MIN_LR, 1.0, END);
    refuse("min_lr_rate is 2", TSR_SCHEDULE_COSINE_WITH_MIN_LR, 0, TSR_SCHEDULE_MIN_LR_RATE, 2.0,
           END);
    refuse("lr_end 0.001", TSR_SCHEDULE_POLYNOMIAL, 0, TSR_SCHEDULE_LR_END, 1e-3, END);
    refuse("needs num_decay_steps", TSR_SCHEDULE_WARMUP_STABLE_DECAY, 0, END);
    refuse("timescale is 0", TSR_SCHEDULE_INVERSE_SQRT, 0, TSR_SCHEDULE_TIMESCALE, 0.0, END);
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
