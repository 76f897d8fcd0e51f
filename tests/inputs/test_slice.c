/*
 * Parts of a split (train[:10%]): what is read of them, which rows they are, and what is refused. Rows are those of `datasets`'
 * ReadInstruction, whose rounding is Python's round().
 */
#include "inputs/slice.h"
#include "support/scratch.h"

#include "base/text.h"

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

static void write_rows(const char *name, int rows)
{
    tsr_text text = {0};
    for (int i = 0; i < rows; i++)
        tsr_text_puts(&text, i % 3 ? "{\"input_ids\":[1,2]}\n" : "{\"input_ids\":[1,2]}\n\n");
    write_text(scratch_path(name), rows ? tsr_text_string(&text) : "\n");
    tsr_text_free(&text);
}

/* The rows [skip, skip + most) that a part of so many rows, in two files, is; most 0: to the end. */
static void check(const char *split, int rows, int64_t skip, int64_t most)
{
    char first[4096], second[4096];
    tsr_slice slice;
    write_rows("a.jsonl", rows - rows / 3);
    write_rows("b.jsonl", rows / 3);
    snprintf(first, sizeof first, "%s", scratch_path("a.jsonl"));
    snprintf(second, sizeof second, "%s", scratch_path("b.jsonl"));
    const char *files[] = {first, second};
    tsr_dataset_options options = {.files = files, .file_count = 2, .key = "dataset"};
    assert_int_equal(tsr_slice_parse(&slice, split, "job.yaml:3", "dataset"), TSR_OK);
    if (tsr_slice_apply(&options, &slice, "job.yaml:3") != TSR_OK)
        fail_msg("%s of %d: %s", split, rows, tsr_last_error());
    if (options.skip_rows != skip || options.max_rows != most)
        fail_msg("%s of %d: rows %lld, %lld; expected %lld, %lld", split, rows,
                 (long long)options.skip_rows, (long long)options.max_rows, (long long)skip,
                 (long long)most);
}

static void rows(void **state)
{
    (void)state;
    check("train", 9, 0, 0);
    check("train[:]", 9, 0, 0);
    check("train[:4]", 9, 0, 4);
    check("train[2:5]", 9, 2, 3);
    check("train[2:]", 9, 2, 0);
    check("train[2:500]", 9, 2, 498); /* rows are not counted for it: reading ends with them */
    check("train[-3:]", 9, 6, 3);
    check("train[:-3]", 9, 0, 6);
    check("train[-5:-2]", 9, 4, 3);
    check("train[-50:]", 9, 0, 9); /* as many as there are */
    check("train[1:-1]", 9, 1, 7);
    /* shares, to the nearest row, halves to the even one */
    check("train[:10%]", 100, 0, 10);
    check("train[:50%]", 9, 0, 4);  /* 4.5 */
    check("train[:50%]", 11, 0, 6); /* 5.5 */
    check("train[:50%]", 13, 0, 6); /* 6.5 */
    check("train[25%:75%]", 10, 2, 6);
    check("train[50%:]", 9, 4, 5);
    check("train[-20%:]", 10, 8, 2);
    check("train[:-20%]", 10, 0, 8);
    check("train[:100%]", 7, 0, 7);
    check("train[33%:66%]", 3, 1, 1);
}

/* Of samples: N and a part the lower one counts. */
static void samples(void **state)
{
    (void)state;
    tsr_slice slice;
    const int64_t most[][3] = {{0, 5, 5}, {3, 5, 3}, {9, 5, 5}};
    for (int i = 0; i < 3; i++) {
        tsr_dataset_options options = {.max_rows = most[i][0], .key = "dataset"};
        char split[32];
        snprintf(split, sizeof split, "train[2:%d]", (int)most[i][1] + 2);
        assert_int_equal(tsr_slice_parse(&slice, split, "w", "dataset"), TSR_OK);
        assert_int_equal(tsr_slice_apply(&options, &slice, "w"), TSR_OK);
        assert_int_equal(options.max_rows, most[i][2]);
    }
    tsr_dataset_options options = {.max_rows = 4, .key = "dataset"};
    assert_int_equal(tsr_slice_parse(&slice, "train[2:]", "w", "dataset"), TSR_OK);
    assert_int_equal(tsr_slice_apply(&options, &slice, "w"), TSR_OK);
    assert_int_equal(options.max_rows, 4);
}

static void names(void **state)
{
    (void)state;
    tsr_slice slice;
    assert_int_equal(tsr_slice_parse(&slice, "train_sft[:10%]", "w", "dataset"), TSR_OK);
    assert_string_equal(slice.name, "train_sft");
    assert_true(slice.sliced && slice.percent && slice.has_to && !slice.has_from);
    assert_int_equal(tsr_slice_parse(&slice, "test", "w", "dataset"), TSR_OK);
    assert_string_equal(slice.name, "test");
    assert_false(slice.sliced);
}

static void refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        "[:10%]",
                                        "train[10]",
                                        "train[:10%",
                                        "train[:10%]x",
                                        "train[:10%] ",
                                        "train[a:b]",
                                        "train[10%:20]",
                                        "train[:101%]",
                                        "train[-101%:]",
                                        "train+test",
                                        "train[:1]+test[:1]",
                                        "train[:99999999999999999999]",
                                        "train[1:2:3]"};
    tsr_slice slice;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (tsr_slice_parse(&slice, wrong[i], "job.yaml:3", "dataset[1]") != TSR_ECONFIG)
            fail_msg("'%s' is taken", wrong[i]);
        assert_non_null(strstr(tsr_last_error(), "job.yaml:3: dataset[1]: found split '"));
        assert_non_null(strstr(tsr_last_error(), "train[100:200]"));
    }
    char name[400];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(tsr_slice_parse(&slice, name, "w", "dataset"), TSR_ECONFIG);
}

static int no_rows(void *user, const char *name, int64_t index, const char **row, size_t *bytes)
{
    (void)user, (void)name, (void)index, (void)row, (void)bytes;
    fail_msg("rows of a callback are counted");
    return 0;
}

/* No row is left, or rows cannot be counted. */
static void empty(void **state)
{
    (void)state;
    static const char *const none[] = {"train[5:5]", "train[5:2]", "train[9:-1]",
                                       "train[:0]",  "train[:4%]", "train[:-100%]"};
    char path[4096];
    tsr_slice slice;
    write_rows("a.jsonl", 9);
    snprintf(path, sizeof path, "%s", scratch_path("a.jsonl"));
    const char *files[] = {path};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        tsr_dataset_options options = {.files = files, .file_count = 1, .key = "dataset"};
        assert_int_equal(tsr_slice_parse(&slice, none[i], "w", "dataset"), TSR_OK);
        if (tsr_slice_apply(&options, &slice, "job.yaml:3") != TSR_ECONFIG)
            fail_msg("'%s' has rows", none[i]);
        assert_non_null(strstr(tsr_last_error(), "job.yaml:3: dataset: split: "));
        assert_non_null(strstr(tsr_last_error(), "has no row"));
    }
    tsr_dataset_options options = {.files = files, .file_count = 1, .key = "dataset"};
    options.rows.next = no_rows;
    assert_int_equal(tsr_slice_parse(&slice, "train[:10%]", "w", "dataset"), TSR_OK);
    assert_int_equal(tsr_slice_apply(&options, &slice, "w"), TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), "train[:100]"));
    assert_int_equal(tsr_slice_parse(&slice, "train[2:6]", "w", "dataset"), TSR_OK);
    assert_int_equal(tsr_slice_apply(&options, &slice, "w"), TSR_OK);
    assert_int_equal(options.skip_rows, 2);
    assert_int_equal(options.max_rows, 4);
}

/* A file that cannot be read to its end is an error of that file. */
static void broken(void **state)
{
    (void)state;
    char path[4096];
    tsr_slice slice;
    write_text(scratch_path("broken.jsonl"), "{\"input_ids\":[1]}\n{\"input_ids\":\n");
    snprintf(path, sizeof path, "%s", scratch_path("broken.jsonl"));
    const char *files[] = {path};
    tsr_dataset_options options = {.files = files, .file_count = 1, .key = "dataset"};
    assert_int_equal(tsr_slice_parse(&slice, "train[:50%]", "w", "dataset"), TSR_OK);
    assert_int_equal(tsr_slice_apply(&options, &slice, "w"), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "broken.jsonl:2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows),    cmocka_unit_test(samples), cmocka_unit_test(names),
        cmocka_unit_test(refused), cmocka_unit_test(empty),   cmocka_unit_test(broken),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
