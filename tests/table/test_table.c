/*
 * Rows of text: JSON lines, JSON arrays, CSV, TSV, text; packed and not; how a file's format is found; and the messages of what
 * is broken.
 */
#include "support/scratch.h"

#include "table/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define MOST_ROWS 4

static json_t *parse(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    return value;
}

/* The file's rows are these, at these places. */
static void check_rows(const char *path, const char *const rows[MOST_ROWS],
                       const char *const places[MOST_ROWS])
{
    tsr_table *table;
    json_t *row;
    if (tsr_table_open(&table, path, "dataset") != TSR_OK)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(tsr_table_rows(table), -1);
    for (int i = 0; i < MOST_ROWS && rows[i]; i++) {
        if (tsr_table_next(&row, table) != TSR_OK)
            fail_msg("%s", tsr_last_error());
        json_t *expected = parse(rows[i]);
        if (!json_equal(row, expected))
            fail_msg("%s: %s, expected %s", tsr_table_place(table),
                     row ? json_dumps(row, JSON_COMPACT) : "the end", rows[i]);
        if (places[i] && !strstr(tsr_table_place(table), places[i]))
            fail_msg("row %d is at %s, expected %s", i, tsr_table_place(table), places[i]);
        json_decref(expected);
        json_decref(row);
    }
    assert_int_equal(tsr_table_next(&row, table), TSR_OK);
    assert_null(row);
    assert_int_equal(tsr_table_next(&row, table), TSR_OK); /* and stays so */
    assert_null(row);
    tsr_table_close(table);
}

static const struct {
    const char *name, *text;
    const char *rows[MOST_ROWS], *places[MOST_ROWS];
} whole[] = {
    {"a.jsonl",
     "{\"a\":1}\n\n \t\r\n{\"a\":2}",
     {"{\"a\":1}", "{\"a\":2}"},
     {"a.jsonl:1", ".jsonl:4"}},
    {"bom.jsonl", "\xEF\xBB\xBF{\"a\":1}\r\n", {"{\"a\":1}"}, {":1"}},
    {"no_ending", "{\"a\":1}\n", {"{\"a\":1}"}, {":1"}},
    {"a.json",
     " [ {\"a\":[1,\"]\\\\\\\"\"]} ,\n\n{\"b\":{}}]\n ",
     {"{\"a\":[1,\"]\\\\\\\"\"]}", "{\"b\":{}}"},
     {"a.json: row 1", "a.json: row 2"}},
    {"lines.json", "{\"a\":1}\n{\"a\":2}\n", {"{\"a\":1}", "{\"a\":2}"}, {":1", ":2"}},
    {"array.jsonl", "[{\"a\":1}]", {"{\"a\":1}"}, {": row 1"}},
    {"empty.json", "[ ]", {NULL}, {NULL}},
    {"a.csv",
     "a,\"b \"\"c\"\"\"\r\n1,\"two\r\n\"\"lines\"\", and\"\r\n\r\n,\r\n x ,5\" y",
     {"{\"a\":\"1\",\"b \\\"c\\\"\":\"two\\r\\n\\\"lines\\\", and\"}",
      "{\"a\":\"\",\"b \\\"c\\\"\":\"\"}", "{\"a\":\" x \",\"b \\\"c\\\"\":\"5\\\" y\"}"},
     {"a.csv:2", "a.csv:5", "a.csv:6"}},
    {"bom.CSV",
     "\xEF\xBB\xBF"
     "a\n\"\"\n\n1\n",
     {"{\"a\":\"\"}", "{\"a\":\"1\"}"},
     {":2", ":4"}},
    {"header.csv", "a,b\n", {NULL}, {NULL}},
    {"a.tsv", "a\tb\n1,2\t\"\t\"\n", {"{\"a\":\"1,2\",\"b\":\"\\t\"}"}, {":2"}},
    {"a.txt",
     "one \n\n\r\n[\"two\"]\r\n",
     {"{\"text\":\"one \"}", "{\"text\":\"[\\\"two\\\"]\"}"},
     {":1", ":4"}},
    {"PAR1.csv", "PAR1,PARE\nPAR1,2\n", {"{\"PAR1\":\"PAR1\",\"PARE\":\"2\"}"}, {":2"}},
};

#define WHOLE (sizeof whole / sizeof *whole)

static void formats(void **state)
{
    (void)state;
    for (size_t i = 0; i < WHOLE; i++) {
        const char *path = scratch_path(whole[i].name);
        write_text(path, whole[i].text);
        check_rows(path, whole[i].rows, whole[i].places);
    }
}

/* A gzip member; returns its bytes. */
static size_t gzip(unsigned char *out, size_t room, const char *text, size_t bytes)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)text;
    z.avail_in = (uInt)bytes;
    z.next_out = out;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

static size_t pack(bool zstandard, unsigned char *out, size_t room, const char *text, size_t bytes)
{
    if (!zstandard)
        return gzip(out, room, text, bytes);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    size_t packed = ZSTD_compress2(context, out, room, text, bytes);
    ZSTD_freeCCtx(context);
    assert_true(packed <= room);
    return packed;
}

/* Every file of above, in two parts that are packed one after the other, cut between any two bytes. */
static void packed(void **state)
{
    (void)state;
    unsigned char out[4096];
    char name[64];
    for (size_t i = 0; i < 2 * WHOLE; i++) {
        bool zstandard = i % 2;
        const char *text = whole[i / 2].text;
        snprintf(name, sizeof name, "%s%s", whole[i / 2].name, zstandard ? ".zst" : ".GZ");
        for (size_t cut = 0; cut <= strlen(text); cut++) {
            size_t bytes = pack(zstandard, out, sizeof out / 2, text, cut);
            bytes += pack(zstandard, out + bytes, sizeof out / 2, text + cut, strlen(text + cut));
            write_bytes(scratch_path(name), out, bytes);
            check_rows(scratch_path(name), whole[i / 2].rows, (const char *[MOST_ROWS]){NULL});
        }
    }
}

/* The first failure of a file. */
static tsr_status read_all(const char *path)
{
    tsr_table *table;
    json_t *row;
    TSR_TRY(tsr_table_open(&table, path, "dataset"));
    tsr_status status;
    do {
        status = tsr_table_next(&row, table);
        json_decref(row);
    } while (status == TSR_OK && row);
    tsr_table_close(table);
    return status;
}

/* Larger than any buffer, and more than one of a decoder's blocks: damage shows wherever it is. */
static void damaged(void **state)
{
    (void)state;
    size_t rows = 40000, bytes = 0, room = 8 << 20;
    char *text = malloc(room), name[16];
    unsigned char *out = malloc(room);
    assert_non_null(text);
    assert_non_null(out);
    unsigned noise = 1;
    for (size_t i = 0; i < rows; i++) {
        noise = noise * 1664525 + 1013904223;
        bytes += (size_t)snprintf(text + bytes, room - bytes, "{\"a\":%zu,\"b\":%u}\n", i, noise);
    }
    for (int zstandard = 0; zstandard < 2; zstandard++) {
        const char *path = scratch_path(strcpy(name, zstandard ? "x.jsonl.zst" : "x.jsonl.gz"));
        size_t length = pack(zstandard, out, room, text, bytes);
        write_bytes(path, out, length);
        assert_int_equal(read_all(path), TSR_OK);
        const char *stream = zstandard ? "the Zstandard stream is damaged at byte"
                                       : "the gzip stream is damaged at byte";
        for (size_t cut = 8; cut < length; cut += length / 7) {
            write_bytes(path, out, cut);
            check_error("cut", read_all(path), TSR_EDATA,
                        (const char *[MOST_WORDS]){name, stream, "ends before the stream does"});
        }
        write_bytes(path, out, length);
        out[length] = 'x';
        write_bytes(path, out, length + 1);
        check_error("behind it", read_all(path), TSR_EDATA,
                    (const char *[MOST_WORDS]){name, stream});
        out[length / 2] ^= 0x55;
        write_bytes(path, out, length);
        assert_int_equal(read_all(path), TSR_EDATA);
        assert_non_null(strstr(tsr_last_error(), name));
    }
    free(text);
    free(out);
}

static const struct {
    const char *name, *text, *words[MOST_WORDS];
} broken[] = {
    {"a.csv", "a,b\n1\n", {"a.csv:2: the row has 1 column, the header has 2 (a, b)"}},
    {"a.csv", "a,b\n1,2\n\n1,\"\n\n\",3\n", {"a.csv:4: the row has 3 columns"}},
    {"a.csv", "a,b\n1,\"2\n", {"a.csv:2: ", "ends inside a field in quotes"}},
    {"a.csv", "a,b\n\"1\"2,3\n", {"a.csv:2: ", "quote"}},
    {"a.csv", "a,b,a\n1,2,3\n", {"a.csv:1: two columns have the name 'a'"}},
    {"a.csv", "a,b\n1,\xFF\n", {"a.csv:2, column b: byte 0 of the value is not UTF-8"}},
    {"a.txt", "a\nb\xC3\n", {"a.txt:2: byte 1 of the value is not UTF-8"}},
    {"a.json", "[{\"a\":1},{\"a\":}]", {"a.json: row 2, line 1 of it, column 6: not valid JSON"}},
    {"a.json", "[{\"a\":1},7]", {"a.json: row 2: the row holds an integer, expected an object"}},
    {"a.json", "[{\"a\":1},]", {"a.json: row 2: nothing stands"}},
    {"a.json", "[{\"a\":1}", {"a.json: row 1: the file ends inside the array"}},
    {"a.json", "[{\"a\":1}}", {"a.json: row 1: a '}'"}},
    {"a.json", "[{\"a\":1}]\n[]", {"a.json: something follows the array"}},
    {"a.jsonl", "{\"a\":1}\n{\"a\" 1}", {"a.jsonl:2:", "not valid JSON"}},
    {"a.jsonl", "{ 'a': 1}", {"a.jsonl:1:", "not valid JSON", "json.dumps"}},
    {"a.jsonl", "PK\x03\x04", {"a.jsonl: the file is a ZIP archive"}},
    {"a.jsonl", "\xFF\xFE{", {"a.jsonl: the file is text in UTF-16"}},
    {"a.jsonl", "BZh91AY&SY...", {"packed by bzip2"}},
    {"a.arrow", "ARROW1..", {"an Arrow file; write it as Parquet or JSON lines"}},
    {"a.parquet", "PAR1\x15\x02PAR1", {"a.parquet: the Parquet file is cut or damaged"}},
    {"a.parquet", "{\"a\":1}", {"a.parquet: the file is named as Parquet", "PAR1"}},
    {"a.parquet", "PAR", {"a.parquet: the file is named as Parquet", "cut, damaged"}},
    {"a.parquet", "PARE........PARE", {"a.parquet: the Parquet file is encrypted"}},
    {"a.parquet", "PAR1\x15\x02\x1D\x00\x00\x00PAR1", {"a.parquet: the Parquet file is cut"}},
};

static void messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        const char *path = scratch_path(broken[i].name);
        write_bytes(path, broken[i].text,
                    strlen(broken[i].text) + (i == sizeof broken / sizeof *broken - 1 ? 7 : 0));
        check_error(broken[i].text, read_all(path), TSR_EDATA, broken[i].words);
    }
    const char *path = scratch_path("zero.csv");
    write_bytes(path, "a\nx\0\n", 5);
    check_error("zero", read_all(path), TSR_EDATA,
                (const char *[MOST_WORDS]){"zero.csv:2, column a: byte 1 of the value is zero"});
}

/* After a row that is bad by itself the next one is read. */
static void goes_on(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"a\":1}\n{\"a\"\n{\"a\":3}",
                                        "[{\"a\":1},{\"a\"},{\"a\":3}]"};
    for (int i = 0; i < 2; i++) {
        tsr_table *table;
        json_t *row;
        write_text(scratch_path("on.json"), texts[i]);
        assert_int_equal(tsr_table_open(&table, scratch_path("on.json"), "dataset"), TSR_OK);
        for (int r = 1; r <= 4; r++) {
            assert_int_equal(tsr_table_next(&row, table), r == 2 ? TSR_EDATA : TSR_OK);
            assert_int_equal(json_integer_value(json_object_get(row, "a")), r % 2 ? r : 0);
            assert_true(r == 4 || tsr_table_number(table) == r);
            json_decref(row);
        }
        tsr_table_close(table);
    }
}

/* What is unpacked from a small file is not held: 128 MiB of spaces in one row is refused at the row's limit, and as many blank
 * lines are passed over. */
static void bombs(void **state)
{
    (void)state;
    size_t part = 1 << 20, room = 1 << 20, bytes = 0, one;
    char *text = malloc(part);
    unsigned char *out = malloc(room);
    assert_non_null(text);
    assert_non_null(out);
    for (int blank = 0; blank < 2; blank++) {
        memset(text, blank ? '\n' : ' ', part);
        one = pack(true, out, room, text, part);
        for (bytes = one; bytes < 128 * one && bytes + one < room; bytes += one)
            memcpy(out + bytes, out, one);
        write_bytes(scratch_path("bomb.jsonl.zst"), out, bytes);
        if (blank)
            assert_int_equal(read_all(scratch_path("bomb.jsonl.zst")), TSR_OK);
        else
            check_error(
                "bomb", read_all(scratch_path("bomb.jsonl.zst")), TSR_EDATA,
                (const char *[MOST_WORDS]){"bomb.jsonl.zst:1: the line is longer than 64 MiB"});
    }
    free(text);
    free(out);
}

/* Lines just short enough, and progress in bytes of the file. */
static void longest(void **state)
{
    (void)state;
    const char *path = scratch_path("long.txt");
    size_t most = TSR_TABLE_ROW_BYTES;
    char *text = malloc(most + 8);
    tsr_table *table;
    json_t *row;
    assert_non_null(text);
    memset(text, 'x', most + 8);
    text[most] = '\n';
    write_bytes(path, text, most + 8);
    assert_int_equal(tsr_table_open(&table, path, "dataset"), TSR_OK);
    assert_true(tsr_table_done(table) == 0);
    assert_int_equal(tsr_table_next(&row, table), TSR_OK);
    assert_int_equal(json_string_length(json_object_get(row, "text")), most);
    assert_true(tsr_table_done(table) == (double)most + 1);
    json_decref(row);
    assert_int_equal(tsr_table_next(&row, table), TSR_OK);
    assert_true(tsr_table_done(table) == (double)most + 8);
    json_decref(row);
    tsr_table_close(table);
    text[most] = 'x';
    write_bytes(path, text, most + 8);
    check_error("too long", read_all(path), TSR_EDATA,
                (const char *[MOST_WORDS]){"long.txt:1: the line is longer than 64 MiB"});
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats),  cmocka_unit_test(packed),  cmocka_unit_test(damaged),
        cmocka_unit_test(messages), cmocka_unit_test(goes_on), cmocka_unit_test(bombs),
        cmocka_unit_test(longest),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
