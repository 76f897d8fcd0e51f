/*
 * A file of rows in text, of the format that the first byte chooses: '0' is CSV. The rows of a CSV or TSV file, written again
 * with every field in quotes, are the same rows.
 */
#include "fuzz/fuzz.h"
#include "table/table_parts.h"

#include <fcntl.h>
#include <string.h>

typedef struct {
    const tsr_table_format *format;
    tsr_table_text text;
    void *state;
} rows;

static tsr_status open_rows(rows *r, const tsr_table_format *format, const uint8_t *data,
                            size_t bytes)
{
    const char *path = fuzz_file(data, bytes);
    *r = (rows){.format = format, .text.path = path};
    return tsr_reader_open(&r->text.reader, open(path, O_RDONLY | O_CLOEXEC), path);
}

static void close_rows(rows *r)
{
    tsr_reader_close(r->text.reader);
    if (r->format->free)
        r->format->free(r->state);
    tsr_text_free(&r->text.row);
}

/* Unpacked: a bracket may begin a frame of Zstandard's too. */
static bool begins_array(rows *r)
{
    const char *data;
    size_t bytes;
    return tsr_reader_look(&data, &bytes, r->text.reader) == TSR_OK && bytes && *data == '[';
}

static tsr_status next_row(json_t **row, rows *r)
{
    *row = NULL;
    fuzz_begin();
    tsr_status status = r->text.ended ? TSR_OK : r->format->next(row, &r->text, &r->state);
    fuzz_answer(status, TSR_EDATA);
    fuzz_check(!*row || (status == TSR_OK && json_is_object(*row)));
    return status;
}

static void put_field(tsr_text *out, const char *value, size_t bytes)
{
    tsr_text_puts(out, "\"");
    for (size_t i = 0; i < bytes; i++)
        tsr_text_append(out, value[i] == '"' ? "\"\"" : value + i, value[i] == '"' ? 2 : 1);
    tsr_text_puts(out, "\"");
}

static void put_row(tsr_text *out, const json_t *row, bool header, const char *separator)
{
    const char *key, *before = "";
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)row, key, value)
    {
        tsr_text_puts(out, before);
        put_field(out, header ? key : json_string_value(value),
                  header ? strlen(key) : json_string_length(value));
        before = separator;
    }
    tsr_text_puts(out, "\r\n");
}

/* All rows are those of `expected`, an array. */
static void check_again(const tsr_table_format *format, const tsr_text *written,
                        const json_t *expected)
{
    rows r;
    json_t *row;
    fuzz_check(open_rows(&r, format, (const uint8_t *)written->data, written->length) == TSR_OK);
    for (size_t i = 0; i < json_array_size(expected); i++) {
        fuzz_check(next_row(&row, &r) == TSR_OK && json_equal(row, json_array_get(expected, i)));
        json_decref(row);
    }
    fuzz_check(next_row(&row, &r) == TSR_OK && !row);
    close_rows(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const tsr_table_format *const formats[] = {&tsr_table_csv, &tsr_table_tsv,
                                                      &tsr_table_json_array, &tsr_table_json_lines,
                                                      &tsr_table_plain};
    static const char *const separators[] = {",", "\t"};
    rows r;
    if (!bytes)
        return 0;
    unsigned choice = (uint8_t)(data[0] - '0') % 5;
    fuzz_begin();
    tsr_status status = open_rows(&r, formats[choice], data + 1, bytes - 1);
    fuzz_answer(status, TSR_EDATA);
    if (status < 0)
        return 0;
    /* What decided for an array is that it begins with a bracket. */
    if (choice == 2 && !begins_array(&r)) {
        close_rows(&r);
        return 0;
    }
    json_t *all = json_array(), *row;
    tsr_text written = {0};
    bool good = true;
    for (;;) {
        status = next_row(&row, &r);
        good &= status == TSR_OK;
        if (status == TSR_OK && !row)
            break;
        if (choice < 2 && row && !written.length)
            put_row(&written, row, true, separators[choice]);
        if (choice < 2 && row)
            put_row(&written, row, false, separators[choice]);
        if (row)
            json_array_append_new(all, row);
    }
    close_rows(&r);
    if (good && choice < 2)
        check_again(formats[choice], &written, all);
    tsr_text_free(&written);
    json_decref(all);
    return 0;
}
