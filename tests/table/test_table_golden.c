/*
 * Parquet files of pyarrow's against the rows that it was given: tests/golden/tables, made by tools/make_table_golden.py.
 * With an argument: the files of that directory.
 */
#include "support/scratch.h"

#include "io/folder.h"
#include "table/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *directory = TSR_SOURCE_DIR "/tests/golden/tables";

static void check_row(tsr_table *table, json_t *row, const char *line)
{
    json_error_t error;
    json_t *expected = json_loads(line, 0, &error);
    if (!expected)
        fail_msg("the expectation of %s: %s", tsr_table_place(table), error.text);
    if (!json_equal(row, expected))
        fail_msg("%s: %s\nexpected %s", tsr_table_place(table), json_dumps(row, JSON_COMPACT),
                 line);
    json_decref(expected);
    json_decref(row);
}

/* The rows of the file are the lines of the one beside it. */
static void check_file(const char *parquet)
{
    char lines[PATH_MAX];
    snprintf(lines, sizeof lines, "%.*s.jsonl", (int)(strlen(parquet) - strlen(".parquet")),
             parquet);
    FILE *file = fopen(lines, "r");
    assert_non_null(file);
    tsr_table *table;
    json_t *row;
    char *line = NULL;
    size_t room = 0;
    int64_t rows = 0;
    if (tsr_table_open(&table, parquet, "golden") != TSR_OK)
        fail_msg("%s", tsr_last_error());
    while (getline(&line, &room, file) > 0) {
        if (tsr_table_next(&row, table) != TSR_OK)
            fail_msg("%s", tsr_last_error());
        assert_non_null(row);
        check_row(table, row, line);
        assert_int_equal(tsr_table_number(table), ++rows);
    }
    assert_int_equal(tsr_table_next(&row, table), TSR_OK);
    assert_null(row);
    assert_int_equal(tsr_table_rows(table), rows);
    tsr_table_close(table);
    fclose(file);
    free(line);
}

static void all_files(void **state)
{
    (void)state;
    tsr_folder *folder;
    DIR *entries;
    int count = 0;
    assert_int_equal(tsr_folder_open(&folder, directory), TSR_OK);
    assert_non_null(folder);
    assert_int_equal(tsr_folder_list(&entries, folder), TSR_OK);
    for (const char *name; (name = tsr_folder_next(entries));) {
        char path[PATH_MAX];
        size_t length = strlen(name), ending = strlen(".parquet");
        if (length < ending || strcmp(name + length - ending, ".parquet") ||
            !strncmp(name, "refused_", strlen("refused_")))
            continue;
        check_file(tsr_folder_show(path, folder, name));
        count++;
    }
    closedir(entries);
    tsr_folder_close(folder);
    print_message("%d files\n", count);
    assert_true(count >= 20);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        directory = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
