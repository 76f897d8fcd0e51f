/* Samples held out of the training data: which, how many, and that nothing is lost or in both parts. */
#include "support/scratch.h"

#include "base/text.h"
#include "data/held_out.h"

#include <string.h>

#define MOST 200

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

/* Row i is i and i + 1, of which `labelled` rows train the second. */
static tsr_dataset *load(int rows, int labelled)
{
    const char *path = scratch_path("rows.jsonl");
    tsr_text text = {0};
    tsr_dataset *data = NULL;
    for (int i = 0; i < rows; i++)
        tsr_text_printf(&text, "{\"input_ids\":[%d,%d],\"labels\":[-100,%d]}\n", i, i + 1,
                        i < labelled ? i + 1 : -100);
    write_text(path, tsr_text_string(&text));
    tsr_text_free(&text);
    const tsr_dataset_options options = {.files = &path, .file_count = 1};
    if (tsr_dataset_load(&data, &options) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return data;
}

/* The rows of a part, in its order, which is that of the file. */
static int64_t rows_of(int *rows, const tsr_dataset *data)
{
    int64_t count = tsr_dataset_sample_count(data);
    for (int64_t i = 0; i < count; i++) {
        tsr_sample s = tsr_dataset_sample(data, i);
        rows[i] = s.ids[0];
        assert_int_equal(s.line, rows[i] + 1);
        assert_int_equal(s.ids[1], rows[i] + 1);
        assert_true(!i || rows[i] > rows[i - 1]);
    }
    return count;
}

static tsr_dataset *hold(tsr_dataset *data, double split, uint64_t seed, int64_t most)
{
    tsr_dataset *held = NULL;
    const tsr_held_out_options options = {split, most, seed, "job.yaml:3"};
    if (tsr_dataset_hold_out(&held, data, &options) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return held;
}

static void check_stats(const tsr_dataset *data)
{
    const tsr_dataset_stats *stats = tsr_dataset_stats_of(data);
    int64_t count = tsr_dataset_sample_count(data);
    assert_int_equal(stats->samples, count);
    assert_int_equal(stats->rows, count);
    assert_int_equal(stats->documents, count);
    assert_int_equal(stats->tokens, 2 * count);
    assert_int_equal(stats->label_tokens, count);
    assert_int_equal(stats->longest_sample, 2);
}

static void parts(void **state)
{
    static const struct {
        double split;
        int rows;
        int64_t held;
    } cases[] = {{0.1, 100, 10}, {0.01, 12, 1}, {0.105, 100, 11}, {7, 100, 7},
                 {1, 2, 1},      {0.5, 3, 2},   {99, 100, 99}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tsr_dataset *data = load(cases[c].rows, cases[c].rows);
        uint64_t whole = tsr_dataset_hash(data);
        tsr_dataset *held = hold(data, cases[c].split, 42, 0);
        int train[MOST], evaluate[MOST], seen[MOST] = {0};
        int64_t left = rows_of(train, data), count = rows_of(evaluate, held);
        assert_int_equal(count, cases[c].held);
        assert_int_equal(left + count, cases[c].rows);
        for (int64_t i = 0; i < left; i++)
            seen[train[i]]++;
        for (int64_t i = 0; i < count; i++)
            seen[evaluate[i]]++;
        for (int i = 0; i < cases[c].rows; i++)
            assert_int_equal(seen[i], 1);
        check_stats(data);
        check_stats(held);
        assert_true(tsr_dataset_hash(data) != whole);
        assert_true(tsr_dataset_hash(held) != tsr_dataset_hash(data));
        tsr_dataset_destroy(held);
        tsr_dataset_destroy(data);
    }
}

/* The same seed the same rows, another seed others; and no end of the file is preferred. */
static void seeds(void **state)
{
    int rows[3][MOST], often[MOST] = {0};
    uint64_t hashes[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        tsr_dataset *data = load(100, 100), *held = hold(data, 20, i < 2 ? 7 : 8, 0);
        assert_int_equal(rows_of(rows[i], held), 20);
        hashes[i] = tsr_dataset_hash(data);
        tsr_dataset_destroy(data); /* either order */
        tsr_dataset_destroy(held);
    }
    assert_memory_equal(rows[0], rows[1], 20 * sizeof(int));
    assert_true(memcmp(rows[0], rows[2], 20 * sizeof(int)) != 0);
    assert_true(hashes[0] == hashes[1] && hashes[0] != hashes[2]);
    for (uint64_t seed = 0; seed < 200; seed++) {
        tsr_dataset *data = load(20, 20), *held = hold(data, 0.25, seed, 0);
        int64_t count = rows_of(rows[0], held);
        for (int64_t i = 0; i < count; i++)
            often[rows[0][i]]++;
        tsr_dataset_destroy(held);
        tsr_dataset_destroy(data);
    }
    for (int i = 0; i < 20; i++) /* 50 +- 6 of 200; five times that never happens by chance */
        assert_in_range(often[i], 20, 80);
}

/* The parts of a row that was split stay together, and rows are counted. */
static void parts_stay_together(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        const char *path = scratch_path("long.jsonl");
        tsr_text text = {0};
        tsr_dataset *data = NULL;
        int held_parts[MOST] = {0}, count = 0;
        for (int i = 0; i < 20; i++)
            tsr_text_puts(&text,
                          i % 3 ? "{\"input_ids\":[1,2,3,4,5,6,7]}\n" : "{\"input_ids\":[1,2]}\n");
        write_text(path, tsr_text_string(&text));
        tsr_text_free(&text);
        const tsr_dataset_options options = {
            .files = &path, .file_count = 1, .max_length = 3, .truncation = TSR_TRUNCATE_SPLIT};
        assert_int_equal(tsr_dataset_load(&data, &options), TSR_OK);
        assert_int_equal(tsr_dataset_sample_count(data), 7 + 3 * 13);
        tsr_dataset *held = hold(data, 0.25, seed, 0);
        for (int64_t i = 0; i < tsr_dataset_sample_count(held); i++)
            held_parts[tsr_dataset_sample(held, i).line]++;
        for (int64_t i = 0; i < tsr_dataset_sample_count(data); i++)
            assert_int_equal(held_parts[tsr_dataset_sample(data, i).line], 0);
        for (int i = 1; i <= 20; i++)
            count += held_parts[i] > 0;
        assert_int_equal(count, 5);
        assert_int_equal(tsr_dataset_stats_of(held)->rows, 5);
        assert_int_equal(tsr_dataset_stats_of(data)->rows, 15);
        tsr_dataset_destroy(held);
        tsr_dataset_destroy(data);
    }
}

/* max_eval_samples leaves the split as it is. */
static void most(void **state)
{
    int all[MOST], few[MOST];
    uint64_t hash[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        tsr_dataset *data = load(100, 100), *held = hold(data, 0.3, 1, i ? 5 : 0);
        assert_int_equal(rows_of(i ? few : all, held), i ? 5 : 30);
        assert_int_equal(tsr_dataset_sample_count(data), 70);
        check_stats(held);
        hash[i] = tsr_dataset_hash(data);
        tsr_dataset_destroy(held);
        tsr_dataset_destroy(data);
    }
    assert_memory_equal(all, few, 5 * sizeof(int));
    assert_true(hash[0] == hash[1]);
}

static void refused(void **state)
{
    static const struct {
        int rows, labelled;
        double split;
        tsr_status status;
        const char *says;
    } cases[] = {
        {10, 10, 10, TSR_ECONFIG, "job.yaml:3: validation_split: 10 would leave nothing to train"},
        {10, 10, 1e15, TSR_ECONFIG, "has 10 samples"},
        {10, 10, 0.99, TSR_ECONFIG, "0.99 would leave nothing"},
        {1, 1, 0.5, TSR_ECONFIG, "has 1 sample;"},
        {10, 1, 9, TSR_EDATA, "samples that are"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_dataset *data = load(cases[i].rows, cases[i].labelled), *held = NULL;
        const tsr_held_out_options options = {cases[i].split, 0, 0, "job.yaml:3"};
        assert_int_equal(tsr_dataset_hold_out(&held, data, &options), cases[i].status);
        assert_null(held);
        if (!strstr(tsr_last_error(), cases[i].says))
            fail_msg("expected \"%s\" in: %s", cases[i].says, tsr_last_error());
        tsr_dataset_destroy(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts), cmocka_unit_test(seeds),
                                       cmocka_unit_test(parts_stay_together),
                                       cmocka_unit_test(most), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
