#include "report/report.h"

#include "base/auto.h"
#include "base/escape.h"
#include "config/config_number.h"
#include "io/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_COLUMNS 16
#define DIGITS       6

/* ---- making one ---- */

json_t *tsr_report_text(const char *value)
{
    json_t *string = value ? json_string(value) : json_null();
    if (string || !value)
        return string;
    char *copy = strdup(value);
    for (char *p = copy; p && *p; p++)
        if ((unsigned char)*p >= 0x80)
            *p = '?';
    string = copy ? json_string(copy) : NULL;
    free(copy);
    return string;
}

static void set(json_t *object, const char *key, json_t *value)
{
    if (object)
        json_object_set_new(object, key, value);
    else
        json_decref(value);
}

void tsr_report_int(json_t *object, const char *key, uint64_t value)
{
    set(object, key, json_integer((json_int_t)value));
}

void tsr_report_real(json_t *object, const char *key, double value)
{
    set(object, key, isfinite(value) ? json_real(value) : json_null());
}

void tsr_report_bool(json_t *object, const char *key, bool value)
{
    set(object, key, json_boolean(value));
}

void tsr_report_string(json_t *object, const char *key, const char *value)
{
    set(object, key, tsr_report_text(value));
}

json_t *tsr_report_object(json_t *object, const char *key)
{
    json_t *value = json_object();
    set(object, key, value);
    return object ? json_object_get(object, key) : NULL;
}

json_t *tsr_report_array(json_t *object, const char *key)
{
    json_t *value = json_array();
    set(object, key, value);
    return object ? json_object_get(object, key) : NULL;
}

json_t *tsr_report_row(json_t *array)
{
    if (!array || json_array_append_new(array, json_object()) != 0)
        return NULL;
    return json_array_get(array, json_array_size(array) - 1);
}

/* ---- for people ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), n = strlen(end);
    return length >= n && !strcmp(text + length - n, end);
}

void tsr_report_put_bytes(tsr_text *out, uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    double value = (double)bytes;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    tsr_number_put(out, value, 4);
    tsr_text_printf(out, " %s", units[unit]);
}

static void put_real(tsr_text *out, const char *key, double value)
{
    bool flops = ends_with(key, "_flops_per_s"), bytes = ends_with(key, "_bytes_per_s");
    tsr_number_put(out, flops || bytes ? 1e-9 * value : value, DIGITS);
    tsr_text_puts(out, flops ? " GFLOP/s" : bytes ? " GB/s" : "");
}

static void put_value(tsr_text *out, const char *key, const json_t *value)
{
    const json_t *item;
    size_t i;
    switch (json_typeof(value)) {
    case JSON_STRING:
        tsr_text_escape(out, json_string_value(value), json_string_length(value), TSR_ESCAPE_LINE);
        break;
    case JSON_INTEGER:
        if (ends_with(key, "bytes"))
            tsr_report_put_bytes(out, (uint64_t)json_integer_value(value));
        else
            tsr_text_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        put_real(out, key, json_real_value(value));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        tsr_text_puts(out, json_is_true(value) ? "yes" : "no");
        break;
    case JSON_ARRAY:
        if (!json_array_size(value) && !ends_with(key, "shape"))
            tsr_text_puts(out, "none");
        if (ends_with(key, "shape"))
            tsr_text_puts(out, "[");
        json_array_foreach(value, i, item)
        {
            tsr_text_puts(out, i ? ", " : "");
            put_value(out, key, item);
        }
        if (ends_with(key, "shape"))
            tsr_text_puts(out, "]");
        break;
    default:
        tsr_text_puts(out, "-");
    }
}

/* Of a number without the unit, which stands behind it. */
static void put_key(tsr_text *out, const char *key, bool number)
{
    static const char *const units[] = {"_bytes", "_bytes_per_s", "_flops_per_s"};
    size_t length = strlen(key);
    for (size_t i = 0; number && i < sizeof units / sizeof *units; i++)
        if (ends_with(key, units[i])) {
            length -= strlen(units[i]);
            break;
        }
    tsr_text_escape(out, key, length, TSR_ESCAPE_LINE);
}

static void pad(tsr_text *out, size_t used, size_t width)
{
    while (used++ < width)
        tsr_text_puts(out, " ");
}

/* Characters, not bytes. */
static size_t width_of(const char *text)
{
    size_t width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static size_t key_width(const char *key, bool number)
{
    tsr_auto_text text = {0};
    put_key(&text, key, number);
    return width_of(tsr_text_string(&text));
}

typedef struct {
    const char *key;
    size_t width;
    bool right;
} column;

static int find_columns(column columns[MOST_COLUMNS], const json_t *rows)
{
    const json_t *row, *value;
    const char *key;
    size_t r;
    int count = 0;
    tsr_auto_text cell = {0};
    json_array_foreach(rows, r, row) json_object_foreach((json_t *)row, key, value)
    {
        int c = 0;
        while (c < count && strcmp(columns[c].key, key))
            c++;
        bool number = json_is_number(value);
        if (c == MOST_COLUMNS)
            continue;
        if (c == count)
            columns[count++] = (column){key, key_width(key, number), number};
        columns[c].right |= number; /* before it perhaps null */
        tsr_text_clear(&cell);
        put_value(&cell, key, value);
        size_t width = width_of(tsr_text_string(&cell));
        columns[c].width = width > columns[c].width ? width : columns[c].width;
    }
    return count;
}

static void put_cell(tsr_text *out, const column *c, const char *text, bool last)
{
    if (c->right)
        pad(out, width_of(text), c->width);
    tsr_text_puts(out, text);
    if (!c->right && !last)
        pad(out, width_of(text), c->width);
    tsr_text_puts(out, last ? "\n" : "  ");
}

static void put_table(tsr_text *out, const json_t *rows, size_t indent)
{
    column columns[MOST_COLUMNS];
    int count = find_columns(columns, rows);
    const json_t *row;
    size_t r;
    tsr_auto_text cell = {0};
    pad(out, 0, indent);
    for (int c = 0; c < count; c++) {
        tsr_text_clear(&cell);
        put_key(&cell, columns[c].key, columns[c].right);
        put_cell(out, &columns[c], tsr_text_string(&cell), c + 1 == count);
    }
    json_array_foreach(rows, r, row)
    {
        pad(out, 0, indent);
        for (int c = 0; c < count; c++) {
            const json_t *value = json_object_get(row, columns[c].key);
            tsr_text_clear(&cell);
            if (value)
                put_value(&cell, columns[c].key, value);
            put_cell(out, &columns[c], tsr_text_string(&cell), c + 1 == count);
        }
    }
    out->failed |= cell.failed;
}

static bool is_table(const json_t *value)
{
    return json_is_array(value) && json_is_object(json_array_get(value, 0));
}

/* Scalars first, in one column; then what has lines of its own. */
static void put_object(tsr_text *out, const json_t *object, size_t indent)
{
    const char *key;
    json_t *value;
    size_t widest = 0, width;
    json_object_foreach((json_t *)object, key, value)
    {
        bool line = !json_is_object(value) && !is_table(value);
        width = line ? key_width(key, json_is_number(value)) : 0;
        widest = width > widest ? width : widest;
    }
    json_object_foreach((json_t *)object, key, value)
    {
        if (json_is_object(value) || is_table(value))
            continue;
        pad(out, 0, indent);
        put_key(out, key, json_is_number(value));
        pad(out, key_width(key, json_is_number(value)), widest + 2);
        put_value(out, key, value);
        tsr_text_puts(out, "\n");
    }
    json_object_foreach((json_t *)object, key, value)
    {
        if (!json_is_object(value) && !is_table(value))
            continue;
        tsr_text_puts(out, "\n");
        pad(out, 0, indent);
        put_key(out, key, false);
        tsr_text_puts(out, "\n");
        if (is_table(value))
            put_table(out, value, indent + 2);
        else
            put_object(out, value, indent + 2);
    }
}

tsr_status tsr_report_print(char **text, json_t *root, bool json)
{
    json_auto_t *owned = root;
    tsr_auto_text out = {0};
    TSR_AUTO_FREE char *formatted = NULL;
    if (root && json) {
        TSR_TRY(tsr_json_format(&formatted, root, 2));
        tsr_text_printf(&out, "%s\n", formatted);
    } else if (root) {
        put_object(&out, root, 0);
    }
    if (!owned || out.failed)
        return tsr_fail(TSR_ENOMEM, "out of memory for a report");
    *text = out.data;
    out = (tsr_text){0};
    return TSR_OK;
}
