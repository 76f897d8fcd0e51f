/*
 * csv.c: CSV and TSV with a header line, as RFC 4180 has them: a field in quotes may hold separators, line ends
 * and doubled quotes. Lines end with LF or CRLF; empty ones are passed over. A quote inside a field that does
 * not begin with one is a character like any other.
 */
#include "table/table_parts.h"

#include <stdlib.h>
#include <string.h>

#define MOST_COLUMNS 65536

typedef struct {
    char **names;
    size_t columns; /* of the header */
    size_t *ends;   /* of the record's fields, in text->row */
    size_t fields, capacity;
    size_t quotes; /* fields of the record that began with one */
} csv;

typedef enum { START, BARE, QUOTED, CLOSED } place_in_field;

static tsr_status fail(const tsr_table_text *text, const char *what)
{
    char place[TSR_TABLE_PLACE_BYTES];
    return tsr_fail(TSR_EDATA, "%s: %s", tsr_table_show(place, text, true), what);
}

static tsr_status end_field(csv *c, const tsr_table_text *text)
{
    if (c->fields == MOST_COLUMNS)
        return fail(text, "the row has more than 65536 columns, the most that are read");
    if (c->fields == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 64;
        size_t *bigger = realloc(c->ends, capacity * sizeof *bigger);
        if (!bigger)
            return tsr_fail(TSR_ENOMEM, "%s: out of memory", text->path);
        c->ends = bigger;
        c->capacity = capacity;
    }
    c->ends[c->fields++] = text->row.length;
    return TSR_OK;
}

/* How many bytes stand for themselves. */
static size_t plain_bytes(place_in_field at, const char *data, size_t bytes, char separator)
{
    size_t i = 0;
    if (at == QUOTED)
        while (i < bytes && data[i] != '"' && data[i] != '\n')
            i++;
    else if (at == BARE)
        while (i < bytes && data[i] != separator && data[i] != '\n')
            i++;
    return i;
}

/* One byte that may end something; *done at the end of the record. */
static tsr_status take_byte(bool *done, place_in_field *at, char byte, csv *c, tsr_table_text *text,
                            char separator)
{
    text->line += byte == '\n';
    if (*at == QUOTED && byte != '"')
        return tsr_table_append(text, &byte, 1, true);
    if (*at == QUOTED || (*at == START && byte == '"')) {
        c->quotes += *at == START;
        *at = *at == START ? QUOTED : CLOSED;
        return TSR_OK;
    }
    if (*at == CLOSED && byte == '"') { /* two of them */
        *at = QUOTED;
        return tsr_table_append(text, &byte, 1, true);
    }
    if (byte == separator) {
        *at = START;
        return end_field(c, text);
    }
    if (byte == '\n') {
        size_t begin = c->fields ? c->ends[c->fields - 1] : 0;
        if (*at == BARE && text->row.length > begin && text->row.data[text->row.length - 1] == '\r')
            text->row.length--;
        *done = true;
        return end_field(c, text);
    }
    if (*at == CLOSED && byte == '\r') /* of CRLF */
        return TSR_OK;
    if (*at == CLOSED)
        return fail(text, "something follows the quote that ends a field; a quote inside a field "
                          "in quotes is written twice");
    *at = BARE;
    return tsr_table_append(text, &byte, 1, true);
}

/* The next record's fields; *found is false at the end of the file. */
static tsr_status read_record(bool *found, csv *c, tsr_table_text *text, char separator)
{
    place_in_field at = START;
    bool done = false;
    tsr_text_clear(&text->row);
    c->fields = c->quotes = 0;
    text->number = text->line + 1;
    while (!done) {
        const char *data;
        size_t bytes;
        TSR_TRY(tsr_reader_look(&data, &bytes, text->reader));
        if (!bytes && at == QUOTED)
            return fail(text, "the file ends inside a field in quotes that begins in this row");
        if (!bytes && at == START && !c->fields) {
            *found = false;
            return TSR_OK;
        }
        if (!bytes) {
            TSR_TRY(take_byte(&done, &at, '\n', c, text, separator));
            break;
        }
        size_t plain = plain_bytes(at, data, bytes, separator);
        if (plain) {
            TSR_TRY(tsr_table_append(text, data, plain, true));
            tsr_reader_take(text->reader, plain);
        } else {
            TSR_TRY(take_byte(&done, &at, *data, c, text, separator));
            tsr_reader_take(text->reader, 1);
        }
    }
    *found = true;
    return TSR_OK;
}

/* The next that is not an empty line. */
static tsr_status read_filled(bool *found, csv *c, tsr_table_text *text, char separator)
{
    do
        TSR_TRY(read_record(found, c, text, separator));
    while (*found && c->fields == 1 && !text->row.length && !c->quotes);
    return TSR_OK;
}

static const char *field(size_t *bytes, const csv *c, const tsr_table_text *text, size_t i)
{
    size_t begin = i ? c->ends[i - 1] : 0;
    *bytes = c->ends[i] - begin;
    return *bytes ? text->row.data + begin : "";
}

static tsr_status read_header(csv *c, tsr_table_text *text, char separator)
{
    char place[TSR_TABLE_PLACE_BYTES];
    bool found;
    TSR_TRY(read_filled(&found, c, text, separator));
    if (!found)
        return TSR_OK;
    c->names = calloc(c->fields, sizeof *c->names);
    if (!c->names)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", text->path);
    json_t *names = json_object(); /* to find one that is there twice */
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < c->fields && status >= 0; i++) {
        size_t bytes;
        json_t *name = NULL;
        const char *data = field(&bytes, c, text, i);
        status =
            tsr_table_cell(&name, data, bytes, tsr_table_show(place, text, true), "of the header");
        if (status < 0)
            break;
        if (json_object_get(names, json_string_value(name)))
            status = tsr_fail(TSR_EDATA, "%s: two columns have the name '%s'", place,
                              json_string_value(name));
        c->names[i] = strdup(json_string_value(name));
        if (json_object_set_new(names, json_string_value(name), name) != 0 || !c->names[i])
            status = tsr_fail(TSR_ENOMEM, "%s: out of memory", text->path);
        c->columns++;
    }
    json_decref(names);
    return status;
}

static tsr_status check_columns(const csv *c, const tsr_table_text *text)
{
    char place[TSR_TABLE_PLACE_BYTES];
    tsr_text names = {0};
    if (c->fields == c->columns)
        return TSR_OK;
    for (size_t i = 0; i < c->columns && names.length < 200; i++)
        tsr_text_printf(&names, "%s%s", i ? ", " : "", c->names[i]);
    tsr_fail(TSR_EDATA,
             "%s: the row has %zu column%s, the header has %zu (%.200s); a field that holds a "
             "separator or a line end is written in quotes",
             tsr_table_show(place, text, true), c->fields, c->fields == 1 ? "" : "s", c->columns,
             tsr_text_string(&names));
    tsr_text_free(&names);
    return TSR_EDATA;
}

static tsr_status make_row(json_t **row, const csv *c, const tsr_table_text *text)
{
    char place[TSR_TABLE_PLACE_BYTES];
    TSR_TRY(check_columns(c, text));
    json_t *object = json_object();
    tsr_status status = TSR_OK;
    tsr_table_show(place, text, true);
    for (size_t i = 0; i < c->columns && status >= 0; i++) {
        size_t bytes;
        const char *data = field(&bytes, c, text, i);
        json_t *value;
        status = tsr_table_cell(&value, data, bytes, place, c->names[i]);
        if (status >= 0 && json_object_set_new(object, c->names[i], value) != 0)
            status = tsr_fail(TSR_ENOMEM, "%s: no memory for the row", place);
    }
    if (status < 0) {
        json_decref(object);
        return status;
    }
    *row = object;
    return TSR_OK;
}

static tsr_status next_row(json_t **row, tsr_table_text *text, void **state, char separator)
{
    bool found = true;
    csv *c = *state;
    tsr_status status = TSR_OK;
    if (!c && !(c = *state = calloc(1, sizeof *c)))
        status = tsr_fail(TSR_ENOMEM, "%s: out of memory", text->path);
    if (status >= 0 && !c->columns)
        status = read_header(c, text, separator);
    if (status >= 0)
        status = read_filled(&found, c, text, separator);
    text->ended = status < 0 || !found;
    if (text->ended)
        return status;
    return make_row(row, c, text);
}

static tsr_status next_csv(json_t **row, tsr_table_text *text, void **state)
{
    return next_row(row, text, state, ',');
}

static tsr_status next_tsv(json_t **row, tsr_table_text *text, void **state)
{
    return next_row(row, text, state, '\t');
}

static void free_csv(void *state)
{
    csv *c = state;
    if (!c)
        return;
    for (size_t i = 0; i < c->columns; i++)
        free(c->names[i]);
    free(c->names);
    free(c->ends);
    free(c);
}

const tsr_table_format tsr_table_csv = {.by_line = true, .next = next_csv, .free = free_csv};
const tsr_table_format tsr_table_tsv = {.by_line = true, .next = next_tsv, .free = free_csv};
