/*
 * Parquet files that are not read: tests/golden/tables/refused_*.parquet, each for a reason that is said; and a good file that
 * is cut or changed anywhere. Which rows the good ones hold: test_table_golden.c.
 */
#include "support/scratch.h"

#include "table/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TABLES TSR_SOURCE_DIR "/tests/golden/tables/"

static tsr_status read_all(int64_t *rows, const char *path)
{
    tsr_table *table;
    json_t *row;
    *rows = 0;
    TSR_TRY(tsr_table_open(&table, path, "dataset"));
    tsr_status status;
    do {
        status = tsr_table_next(&row, table);
        *rows += row != NULL;
        json_decref(row);
    } while (status == TSR_OK && row);
    if (status < 0) { /* the rows have ended */
        char message[TSR_ERROR_BYTES];
        snprintf(message, sizeof message, "%s", tsr_last_error());
        assert_int_equal(tsr_table_next(&row, table), TSR_OK);
        assert_null(row);
        tsr_fail(status, "%s", message);
    }
    tsr_table_close(table);
    return status;
}

static const struct {
    const char *name;
    int64_t rows; /* before the refusal */
    const char *words[MOST_WORDS];
} refused[] = {
    {"brotli", 0, {": row 1, column a: it is packed by Brotli", "Snappy, gzip, Zstandard or"}},
    {"lz4", 0, {": row 1, column a: it is packed by LZ4_RAW"}},
    {"bytes", 1, {": row 2, column a: byte 0 of the value is not UTF-8"}},
    {"zero", 1, {": row 2, column a: byte 1 of the value is zero"}},
    {"unsigned", 1, {": row 2, column a: the value is 9223372036854775808"}},
    {"map", 0, {": column a is a map whose keys are no strings"}},
    {"map_twice", 0, {": row 1, column a.key_value.key: two entries of the map have one key"}},
    {"interval", 0, {": column a holds intervals"}},
    {"rows", 1, {"the row groups have 1 rows, the footer says 2"}},
    {"encrypted", 0, {"column a: it is encrypted"}},
    {"encrypted_file", 0, {"the Parquet file is encrypted"}},
    {"elsewhere", 0, {"column a: it is in another file"}},
    {"bit_packed", 0, {": row 1, column a: its levels", "BIT_PACKED"}},
    {"large_page", 0, {": row 1, column a: a page holds 314572800 bytes", "256 MiB"}},
    {"short_page", 1, {": row 2, column a: the page's values", "end too early"}},
    {"few_values", 1, {": row 2, column a: the column ends before its row group"}},
    {"many_values", 1, {"column a: it has more values than its row group has rows"}},
    {"long_row", 0, {": row 1, column a.list.element: the row is longer than 64 MiB"}},
    {"disagree", 1, {": row 2, column a.c: its levels do not agree"}},
    {"twice", 0, {": column a is there twice"}},
};

static void reasons(void **state)
{
    (void)state;
    char path[4096];
    int64_t rows;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(path, sizeof path, TABLES "refused_%s.parquet", refused[i].name);
        check_error(refused[i].name, read_all(&rows, path), TSR_EDATA, refused[i].words);
        assert_int_equal(rows, refused[i].rows);
        assert_non_null(strstr(tsr_last_error(), path));
    }
}

/* Nothing that is missing goes unnoticed. */
static void cut(void **state)
{
    (void)state;
    uint64_t bytes;
    int64_t rows;
    char *file = read_whole(&bytes, TABLES "old_lists.parquet");
    const char *path = scratch_path("cut.parquet");
    for (uint64_t length = 0; length < bytes; length++) {
        write_bytes(path, file, length);
        tsr_status status = read_all(&rows, path);
        check_error("cut", status, TSR_EDATA, (const char *[MOST_WORDS]){"cut.parquet"});
        assert_int_equal(rows, 0);
    }
    free(file);
}

#define MARK_BYTES 5 /* without these it is a file of another format */

/* One bit of every byte of every file up to 2 KiB, one at a time: rows, or a message that names the file. */
static void changed(void **state)
{
    (void)state;
    char name[4096], path[64];
    int fd = memfd_create("changed", MFD_CLOEXEC); /* a disk would be waited for */
    assert_true(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (int n = 0; n < 40; n++) {
        snprintf(name, sizeof name, TABLES "random_%03d.parquet", n);
        FILE *there = fopen(name, "rb");
        if (!there)
            continue;
        fclose(there);
        uint64_t bytes;
        int64_t rows;
        char *file = read_whole(&bytes, name);
        assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
        for (uint64_t i = MARK_BYTES; bytes <= 2048 && i < bytes; i++) {
            file[i] ^= (char)(1 << i % 8);
            assert_int_equal(pwrite(fd, file, bytes, 0), (ssize_t)bytes);
            if (read_all(&rows, path) != TSR_OK)
                assert_non_null(strstr(tsr_last_error(), path));
            file[i] ^= (char)(1 << i % 8);
        }
        free(file);
    }
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasons),
        cmocka_unit_test(cut),
        cmocka_unit_test(changed),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
