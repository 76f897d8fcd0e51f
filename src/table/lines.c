/*
 * lines.c: JSON lines, and plain text, a row a line.
 */
#include "table/table_parts.h"

#include <string.h>

/* The next line into text->row, without its end; *found is false at the end of the file. */
static tsr_status read_line(bool *found, tsr_table_text *text)
{
    tsr_text_clear(&text->row);
    *found = false;
    text->number = ++text->line;
    for (;;) {
        const char *data;
        size_t bytes;
        TSR_TRY(tsr_reader_look(&data, &bytes, text->reader));
        if (!bytes)
            return TSR_OK;
        const char *end = memchr(data, '\n', bytes);
        size_t length = end ? (size_t)(end - data) : bytes;
        *found = true;
        TSR_TRY(tsr_table_append(text, data, length, true));
        tsr_reader_take(text->reader, length + (end != NULL));
        if (end)
            return TSR_OK;
    }
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The next line that is not blank; *bytes 0 at the end. */
static tsr_status read_filled(size_t *bytes, tsr_table_text *text, bool spaces_count)
{
    bool found;
    do {
        tsr_status status = read_line(&found, text);
        *bytes = text->row.length;
        text->ended = status < 0;
        TSR_TRY(status);
        while (*bytes && (spaces_count ? text->row.data[*bytes - 1] == '\r'
                                       : is_space(text->row.data[*bytes - 1])))
            --*bytes;
    } while (found && !*bytes);
    text->ended = !found;
    return TSR_OK;
}

static tsr_status next_json(json_t **row, tsr_table_text *text, void **state)
{
    char place[TSR_TABLE_PLACE_BYTES];
    size_t bytes;
    (void)state;
    TSR_TRY(read_filled(&bytes, text, false));
    if (!bytes)
        return TSR_OK;
    return tsr_table_parse(row, text->row.data, bytes, tsr_table_show(place, text, true), true);
}

static tsr_status next_plain(json_t **row, tsr_table_text *text, void **state)
{
    char place[TSR_TABLE_PLACE_BYTES];
    size_t bytes;
    json_t *value;
    (void)state;
    TSR_TRY(read_filled(&bytes, text, true));
    if (!bytes)
        return TSR_OK;
    TSR_TRY(tsr_table_cell(&value, text->row.data, bytes, tsr_table_show(place, text, true), NULL));
    *row = json_pack("{s:o}", "text", value);
    return *row ? TSR_OK : tsr_fail(TSR_ENOMEM, "%s: no memory for the row", place);
}

const tsr_table_format tsr_table_json_lines = {.by_line = true, .next = next_json};
const tsr_table_format tsr_table_plain = {.by_line = true, .next = next_plain};
