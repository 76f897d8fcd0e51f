/*
 * parse.c: rows and their values as JSON, and what all formats of text share.
 */
#include "base/utf8.h"
#include "io/json.h"
#include "table/table_parts.h"

#include <stdio.h>
#include <string.h>

/* What text that is no row looks like; "" if nothing is recognised. */
static const char *recognise(const char *text, size_t bytes)
{
    if (bytes == 1 && *text == '[')
        return " (a list over several lines: write one object a line, as `jq -c '.[]'` does)";
    if (bytes == 1 && *text == '{')
        return " (an object over several lines: write it on one, as `jq -c .` does)";
    if (bytes > 1 && *text == '{' && text[1 + strspn(text + 1, " ")] == '\'')
        return " (JSON has double quotes: write rows with json.dumps, not str, in Python)";
    return *text == '{' ? "" : " (expected an object {...} on each line)";
}

static const char *advise(const json_error_t *error, const char *text, size_t bytes, bool line)
{
    if (json_error_code(error) == json_error_invalid_utf8)
        return "; write the file in UTF-8";
    return line ? recognise(text, bytes) : "";
}

static tsr_status cannot_parse(const json_error_t *error, const char *text, size_t bytes,
                               const char *place, bool line)
{
    char at[64];
    int column = error->column < 0 ? 0 : error->column;
    if (json_error_code(error) == json_error_out_of_memory)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to parse the row", place);
    if (line)
        snprintf(at, sizeof at, ":%d", column);
    else
        snprintf(at, sizeof at, ", line %d of it, column %d", error->line < 0 ? 1 : error->line,
                 column);
    if (json_error_code(error) == json_error_numeric_overflow)
        return tsr_fail(TSR_EDATA,
                        "%s%s: a number is too large to be read (a whole number is within 64 "
                        "bits); write it as a string, or leave its key out",
                        place, at);
    if (json_error_code(error) == json_error_null_character)
        return tsr_fail(TSR_EDATA, "%s%s: \\u0000 is in a string, which no text has; leave it out",
                        place, at);
    return tsr_fail(TSR_EDATA, "%s%s: not valid %s: %s%s", place, at,
                    json_error_code(error) == json_error_invalid_utf8 ? "UTF-8" : "JSON",
                    error->text, advise(error, text, bytes, line));
}

tsr_status tsr_table_parse(json_t **row, const char *text, size_t bytes, const char *place,
                           bool line)
{
    json_error_t error;
    const char *zero = memchr(text, 0, bytes); /* jansson passes over one behind a number */
    if (zero)
        return tsr_fail(TSR_EDATA, "%s: byte %td is zero, which no JSON has%s", place, zero - text,
                        line ? recognise(text, bytes) : "");
    json_t *object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!object)
        return cannot_parse(&error, text, bytes, place, line);
    if (!json_is_object(object)) {
        tsr_fail(TSR_EDATA, "%s: the %s holds %s, expected an object {...}%s", place,
                 line ? "line" : "row", tsr_json_kind(object),
                 json_is_array(object) && line ? "; write one object a line, as `jq -c '.[]'` does"
                                               : "");
        json_decref(object);
        return TSR_EDATA;
    }
    *row = object;
    return TSR_OK;
}

const char *tsr_table_show(char out[TSR_TABLE_PLACE_BYTES], const tsr_table_text *text,
                           bool by_line)
{
    snprintf(out, TSR_TABLE_PLACE_BYTES, "%s:%s%lld", text->path, by_line ? "" : " row ",
             (long long)text->number);
    return out;
}

tsr_status tsr_table_append(tsr_table_text *text, const char *data, size_t bytes, bool by_line)
{
    char place[TSR_TABLE_PLACE_BYTES];
    if (bytes > TSR_TABLE_ROW_BYTES - text->row.length)
        return tsr_fail(TSR_EDATA,
                        "%s: the %s is longer than %d MiB, the most that is read; write what it "
                        "holds as several rows, or leave it out",
                        tsr_table_show(place, text, by_line), by_line ? "line" : "row",
                        TSR_TABLE_ROW_MIB);
    tsr_text_append(&text->row, data, bytes);
    return text->row.failed
               ? tsr_fail(TSR_ENOMEM, "%s: no memory for a row of %zu bytes",
                          tsr_table_show(place, text, by_line), text->row.length + bytes)
               : TSR_OK;
}

json_t *tsr_table_string(const char *data, size_t bytes)
{
    if (!bytes)
        return json_stringn_nocheck("", 0);
    return memchr(data, 0, bytes) ? NULL : json_stringn(data, bytes);
}

const char *tsr_table_fault(char out[TSR_TABLE_FAULT_BYTES], const char *data, size_t bytes)
{
    size_t bad;
    const char *zero = memchr(data, 0, bytes);
    if (!tsr_utf8_check(data, bytes, &bad))
        snprintf(out, TSR_TABLE_FAULT_BYTES, "byte %zu of the value is not UTF-8", bad);
    else if (zero)
        snprintf(out, TSR_TABLE_FAULT_BYTES, "byte %td of the value is zero, which no text has",
                 zero - data);
    else
        return NULL;
    return out;
}

tsr_status tsr_table_cell(json_t **out, const char *data, size_t bytes, const char *place,
                          const char *column)
{
    char fault[TSR_TABLE_FAULT_BYTES];
    *out = tsr_table_string(data, bytes);
    if (*out)
        return TSR_OK;
    if (!tsr_table_fault(fault, data, bytes))
        return tsr_fail(TSR_ENOMEM, "%s: no memory for the row", place);
    return tsr_fail(TSR_EDATA, "%s%s%s: %s", place, column ? ", column " : "", column ? column : "",
                    fault);
}
