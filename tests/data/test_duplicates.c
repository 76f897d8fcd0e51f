/* Samples with the tokens of an earlier one: found in one pass and in many, against a comparison of all with all. */
#include "support/scratch.h"

#include "base/text.h"
#include "data/duplicates.h"
#include "data/mix.h"

#include <string.h>

static int setup(void **state)
{
    (void)state;
    scratch_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

static tsr_dataset *load(const char *text)
{
    tsr_dataset *data = NULL;
    const char *path = scratch_path("rows.jsonl");
    write_text(path, text);
    const tsr_dataset_options options = {.files = &path, .file_count = 1};
    if (tsr_dataset_load(&data, &options) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return data;
}

static bool same(const tsr_dataset *data, int64_t a, int64_t b)
{
    tsr_sample x = tsr_dataset_sample(data, a), y = tsr_dataset_sample(data, b);
    return x.token_count == y.token_count &&
           !memcmp(x.ids, y.ids, (size_t)x.token_count * sizeof *x.ids);
}

/* What a comparison of all with all finds. */
static void expect(tsr_duplicates *out, const tsr_dataset *data)
{
    *out = (tsr_duplicates){0};
    for (int64_t b = 0; b < tsr_dataset_sample_count(data); b++) {
        int64_t a = 0;
        while (a < b && !same(data, a, b))
            a++;
        if (a == b)
            continue;
        out->samples++;
        if (out->pair_count < TSR_DUPLICATES_NAMED)
            out->pairs[out->pair_count++] = (tsr_duplicate){a, b};
    }
}

static void check(const tsr_dataset *data, int64_t at_once)
{
    tsr_duplicates found, expected;
    expect(&expected, data);
    assert_int_equal(tsr_duplicates_find(&found, data, at_once), TSR_OK);
    assert_int_equal(found.samples, expected.samples);
    assert_int_equal(found.pair_count, expected.pair_count);
    for (int i = 0; i < found.pair_count; i++) {
        assert_int_equal(found.pairs[i].first, expected.pairs[i].first);
        assert_int_equal(found.pairs[i].again, expected.pairs[i].again);
    }
}

static void few(void **state)
{
    (void)state;
    tsr_duplicates found;
    tsr_dataset *data = load("{\"input_ids\":[1,2,3]}\n{\"input_ids\":[1,2]}\n"
                             "{\"input_ids\":[1,2,3],\"labels\":[-100,2,-100]}\n"
                             "{\"input_ids\":[1,2,4]}\n{\"input_ids\":[1,2,3]}\n");
    assert_int_equal(tsr_duplicates_find(&found, data, 0), TSR_OK);
    assert_int_equal(found.samples, 2); /* whatever their labels */
    assert_int_equal(found.pairs[0].first, 0);
    assert_int_equal(found.pairs[0].again, 2);
    assert_int_equal(found.pairs[1].first, 0);
    assert_int_equal(found.pairs[1].again, 4);
    tsr_dataset_destroy(data);
    data = load("{\"input_ids\":[7,8]}\n");
    check(data, 0);
    tsr_dataset_destroy(data);
}

static void passes(void **state)
{
    (void)state;
    tsr_text text = {0};
    uint32_t random = 1;
    for (int i = 0; i < 400; i++) {
        random = random * 1664525u + 1013904223u;
        tsr_text_printf(&text, "{\"input_ids\":[%u,%u]}\n", random >> 28, random >> 24 & 7);
    }
    tsr_dataset *data = load(tsr_text_string(&text));
    const int64_t at_once[] = {0, 400, 399, 100, 7, 1};
    for (size_t i = 0; i < sizeof at_once / sizeof *at_once; i++)
        check(data, at_once[i]);
    tsr_dataset_destroy(data);
    tsr_text_clear(&text); /* all alike, in passes that would have room for a few */
    for (int i = 0; i < 300; i++)
        tsr_text_puts(&text, "{\"input_ids\":[5,6]}\n");
    data = load(tsr_text_string(&text));
    check(data, 3);
    tsr_dataset_destroy(data);
    tsr_text_free(&text);
}

/* A sample that a weight repeats is the same one. */
static void repeated(void **state)
{
    (void)state;
    tsr_duplicates found;
    tsr_dataset *part =
        load("{\"input_ids\":[1,2]}\n{\"input_ids\":[3,4]}\n{\"input_ids\":[1,2]}\n");
    tsr_dataset *data = NULL;
    const double weight = 3;
    const tsr_mix_options options = {.weights = &weight};
    assert_int_equal(tsr_dataset_mix(&data, &part, 1, &options), TSR_OK);
    assert_int_equal(tsr_dataset_sample_count(data), 9);
    assert_int_equal(tsr_duplicates_find(&found, data, 0), TSR_OK);
    assert_int_equal(found.pairs[0].again, 2);
    assert_int_equal(found.samples, 3); /* the third row, as often as it is there */
    tsr_dataset_destroy(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few),
        cmocka_unit_test(passes),
        cmocka_unit_test(repeated),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
