/*
 * json_array.c: the elements of a JSON array, one at a time: the end of each is found by its brackets and
 * strings, the parser sees no more than that.
 */
#include "table/table_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    bool begun;  /* the bracket was read */
    bool closed; /* so was the one that ends the array */
} array;

static tsr_status next_byte(int *byte, tsr_table_text *text)
{
    const char *data;
    size_t bytes;
    TSR_TRY(tsr_reader_look(&data, &bytes, text->reader));
    *byte = bytes ? (unsigned char)*data : -1;
    return TSR_OK;
}

static tsr_status skip_space(int *byte, tsr_table_text *text)
{
    for (;;) {
        TSR_TRY(next_byte(byte, text));
        if (*byte != ' ' && *byte != '\t' && *byte != '\r' && *byte != '\n')
            return TSR_OK;
        tsr_reader_take(text->reader, 1);
    }
}

/* Where a scan of the element is. */
typedef struct {
    int64_t depth;
    bool in_string, escaped, done;
} scan;

/* How many of the bytes belong to the element; s->done if what follows them ends it. */
static size_t scan_bytes(scan *s, const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        char c = data[i];
        if (s->in_string) {
            if (s->escaped)
                s->escaped = false;
            else if (c == '\\')
                s->escaped = true;
            else if (c == '"')
                s->in_string = false;
        } else if (c == '"') {
            s->in_string = true;
        } else if (c == '{' || c == '[') {
            s->depth++;
        } else if ((c == ',' || c == ']' || c == '}') && s->depth == 0) {
            s->done = true;
            return i;
        } else if (c == '}' || c == ']') {
            s->depth--;
        }
    }
    return bytes;
}

static tsr_status fail(const tsr_table_text *text, const char *what)
{
    char place[TSR_TABLE_PLACE_BYTES];
    return tsr_fail(TSR_EDATA, "%s: %s", tsr_table_show(place, text, false), what);
}

/* The element that begins here, and the comma or bracket behind it. */
static tsr_status read_element(tsr_table_text *text, array *a)
{
    scan s = {0};
    const char *data;
    size_t bytes;
    tsr_text_clear(&text->row);
    while (!s.done) {
        TSR_TRY(tsr_reader_look(&data, &bytes, text->reader));
        if (!bytes)
            return fail(text, "the file ends inside the array: its end is missing");
        size_t length = scan_bytes(&s, data, bytes);
        TSR_TRY(tsr_table_append(text, data, length, false));
        tsr_reader_take(text->reader, length);
    }
    int byte;
    TSR_TRY(next_byte(&byte, text));
    if (byte == '}')
        return fail(text, "a '}' where a ',' or ']' was expected");
    tsr_reader_take(text->reader, 1);
    a->closed = byte == ']';
    return TSR_OK;
}

static tsr_status check_end(tsr_table_text *text)
{
    int byte;
    TSR_TRY(skip_space(&byte, text));
    text->ended = true;
    return byte < 0 ? TSR_OK
                    : tsr_fail(TSR_EDATA,
                               "%s: something follows the array that the file begins with; one "
                               "array of objects, or one object a line, is read",
                               text->path);
}

static tsr_status next_element(bool *found, tsr_table_text *text, array *a)
{
    int byte;
    *found = false;
    if (a->closed)
        return check_end(text);
    TSR_TRY(skip_space(&byte, text));
    if (!a->begun) {
        tsr_reader_take(text->reader, 1); /* it decided the format */
        a->begun = true;
        TSR_TRY(skip_space(&byte, text));
        if (byte == ']') {
            tsr_reader_take(text->reader, 1);
            a->closed = true;
            return check_end(text);
        }
    }
    text->number++;
    TSR_TRY(read_element(text, a));
    *found = true;
    return text->row.length ? TSR_OK
                            : fail(text, "nothing stands between two commas, or before ']'");
}

static tsr_status next_json(json_t **row, tsr_table_text *text, void **state)
{
    char place[TSR_TABLE_PLACE_BYTES];
    bool found;
    if (!*state && !(*state = calloc(1, sizeof(array))))
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", text->path);
    tsr_status status = next_element(&found, text, *state);
    if (status < 0)
        text->ended = true;
    if (status < 0 || !found)
        return status;
    return tsr_table_parse(row, text->row.data, text->row.length,
                           tsr_table_show(place, text, false), false);
}

const tsr_table_format tsr_table_json_array = {.next = next_json, .free = free};
