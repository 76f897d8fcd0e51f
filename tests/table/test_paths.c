/*
 * Which files a path names: directories with and without splits, a snapshot's folder data, patterns, lists.
 */
#include "support/scratch.h"

#include "base/log.h"
#include "table/paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_FILES 8

static char logged[4096];

static void note(void *user, tsr_log_level level, const char *line)
{
    (void)user;
    (void)level;
    snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", line);
}

/* A directory of empty files; names that end in / are directories. */
static const char *make(const char *name, const char *const files[])
{
    char path[4096];
    assert_int_equal(mkdir(scratch_path(name), 0700), 0);
    for (int i = 0; files[i]; i++) {
        snprintf(path, sizeof path, "%s/%s", name, files[i]);
        if (path[strlen(path) - 1] == '/')
            assert_int_equal(mkdir(scratch_path(path), 0700), 0);
        else
            write_text(scratch_path(path), "");
    }
    return scratch_path(name);
}

/* The path names these files of the scratch directory, in this order. */
static void check(const char *path, const char *split, const char *const expected[MOST_FILES])
{
    tsr_paths files;
    logged[0] = 0;
    if (tsr_paths_expand(&files, &path, 1, split, "dataset") != TSR_OK)
        fail_msg("%s", tsr_last_error());
    for (int i = 0; i < files.count || (i < MOST_FILES && expected[i]); i++)
        if (i >= files.count || i >= MOST_FILES || !expected[i] ||
            strcmp(files.items[i], scratch_path(expected[i])))
            fail_msg("%s, split %s: file %d is %s, expected %s", path, split, i,
                     i < files.count ? files.items[i] : "none", expected[i]);
    tsr_paths_free(&files);
}

static void refuse(const char *path, const char *split, const char *const words[MOST_WORDS])
{
    tsr_paths files;
    check_error(path, tsr_paths_expand(&files, &path, 1, split, "dataset"), TSR_EDATA, words);
}

static void splits(void **state)
{
    (void)state;

    make("plain",
         (const char *[]){"b.jsonl", "B.csv", "a.parquet", "_x.jsonl", ".x.json", "README.md",
                          "dataset_infos.json", "c.tsv.gz", "d.json.zst", "e.zst", "data/", NULL});
    check(scratch_path("plain"), "train",
          (const char *[MOST_FILES]){"plain/B.csv", "plain/a.parquet", "plain/b.jsonl",
                                     "plain/c.tsv.gz", "plain/d.json.zst"});
    assert_non_null(strstr(logged, "plain: 5 files: B.csv, a.parquet, b.jsonl, ... d.json.zst\n"));
    refuse(scratch_path("plain"), "test",
           (const char *[MOST_WORDS]){"dataset: ",
                                      "plain has no file of the split test; no file has one"});

    make("named", (const char *[]){"train.jsonl", "train_more.jsonl", "trainer.jsonl",
                                   "dev-1.jsonl", "test.csv", NULL});
    check(scratch_path("named"), "train",
          (const char *[MOST_FILES]){"named/train.jsonl", "named/train_more.jsonl"});
    assert_non_null(strstr(logged, "named, split train: 2 files: train.jsonl, train_more.jsonl\n"));
    check(scratch_path("named"), "validation", (const char *[MOST_FILES]){"named/dev-1.jsonl"});
    check(scratch_path("named"), "dev", (const char *[MOST_FILES]){"named/dev-1.jsonl"});
    check(scratch_path("named"), "test", (const char *[MOST_FILES]){"named/test.csv"});
    check(scratch_path("named"), "train_more",
          (const char *[MOST_FILES]){"named/train_more.jsonl"});
    refuse(scratch_path("named"), "other",
           (const char *[MOST_WORDS]){"split other, but of dev, test, train; name the files"});

    make("hub", (const char *[]){"README.md", "dataset_info.json", "data/",
                                 "data/train_sft-00001-of-00002.parquet",
                                 "data/train_sft-00000-of-00002.parquet",
                                 "data/train_gen-00000-of-00001-0123abcd.parquet",
                                 "data/test_sft-00000-of-00001.parquet", NULL});
    check(scratch_path("hub"), "train_sft",
          (const char *[MOST_FILES]){"hub/data/train_sft-00000-of-00002.parquet",
                                     "hub/data/train_sft-00001-of-00002.parquet"});
    check(scratch_path("hub"), "train_gen",
          (const char *[MOST_FILES]){"hub/data/train_gen-00000-of-00001-0123abcd.parquet"});
    refuse(scratch_path("hub"), "train",
           (const char *[MOST_WORDS]){"split train, but of test_sft, train_gen, train_sft"});

    refuse(make("nothing", (const char *[]){"a.md", "data/", "data/b.bin", NULL}), "train",
           (const char *[MOST_WORDS]){"nothing has no file of rows, and no folder data with any"});
}

/* In the Hub's cache a snapshot's files are links. */
static void links(void **state)
{
    (void)state;
    make("blobs", (const char *[]){"0123", NULL});
    make("snapshot", (const char *[]){"data/", NULL});
    assert_int_equal(
        symlink("../../blobs/0123", scratch_path("snapshot/data/train-00000-of-00001.parquet")), 0);
    assert_int_equal(
        symlink("../../blobs/4567", scratch_path("snapshot/data/train-00000-of-00009.parquet")), 0);
    check(scratch_path("snapshot"), "train",
          (const char *[MOST_FILES]){"snapshot/data/train-00000-of-00001.parquet"});
}

static void patterns(void **state)
{
    (void)state;
    make("glob",
         (const char *[]){"b1.jsonl", "a1.jsonl", "B1.jsonl", "c[1].jsonl", "d1.jsonl/", NULL});
    check(scratch_path("glob/?1.jsonl"), "test",
          (const char *[MOST_FILES]){"glob/B1.jsonl", "glob/a1.jsonl", "glob/b1.jsonl"});
    assert_non_null(strstr(logged, "glob/?1.jsonl: 3 files: B1.jsonl, a1.jsonl, b1.jsonl\n"));
    /* A file of that very name, and what is not there. */
    check(scratch_path("glob/c[1].jsonl"), "train", (const char *[MOST_FILES]){"glob/c[1].jsonl"});
    check(scratch_path("glob/missing.jsonl"), "train",
          (const char *[MOST_FILES]){"glob/missing.jsonl"});
    assert_string_equal(logged, "");
    refuse(scratch_path("glob/*.csv"), "train",
           (const char *[MOST_WORDS]){"dataset: no file matches the pattern", "*.csv"});
}

/* A list keeps its order; a long one too. */
static void lists(void **state)
{
    (void)state;
    enum { COUNT = 100 };
    const char *given[COUNT];
    char names[COUNT][16];
    tsr_paths files;
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "%d.jsonl", 99 - i);
        given[i] = names[i];
    }
    given[50] = scratch_path("list");
    make("list", (const char *[]){"y.csv", "x.csv", NULL});
    assert_int_equal(tsr_paths_expand(&files, given, COUNT, "train", "dataset"), TSR_OK);
    assert_int_equal(files.count, COUNT + 1);
    assert_string_equal(files.items[0], "99.jsonl");
    assert_string_equal(files.items[50], scratch_path("list/x.csv"));
    assert_string_equal(files.items[51], scratch_path("list/y.csv"));
    assert_string_equal(files.items[COUNT], "0.jsonl");
    tsr_paths_free(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits),
        cmocka_unit_test(links),
        cmocka_unit_test(patterns),
        cmocka_unit_test(lists),
    };
    tsr_log_set(note, NULL, TSR_LOG_INFO);
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
