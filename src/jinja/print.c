/*
 * print.c: Python's str and repr of values, and json.dumps.
 */
#include "base/unicode.h"
#include "jinja/jinja.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tsr_status repr(jinja_writer *out, jinja_run *r, const value *v, int depth);

#define FLOAT_STEPS 32 /* of finding a number's digits */

/* The shortest digits that read back as d, in scientific notation. */
static void shortest(char text[64], double d)
{
    /* 15 digits hold every shorter number; a denormal has fewer digits than that. */
    for (int digits = fabs(d) < DBL_MIN ? 1 : DBL_DIG; digits <= 17; digits++) {
        snprintf(text, 64, "%.*e", digits - 1, d);
        if (strtod(text, NULL) == d)
            return;
    }
}

/* Those digits in Python's choice of notation. */
static tsr_status put_float(jinja_writer *out, jinja_run *r, double d, bool json)
{
    TSR_TRY(tsr_jinja_spend(r, FLOAT_STEPS));
    if (d != d || isinf(d)) {
        const char *name = d != d ? (json ? "NaN" : "nan") : (json ? "Infinity" : "inf");
        return tsr_jinja_putf(r, out, "%s%s", d < 0 ? "-" : "", name);
    }
    char text[64], digits[32];
    int count = 0;
    shortest(text, d);
    const char *p = text;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digits[count++] = *p;
    int exponent = atoi(p + 1);
    while (count > 1 && digits[count - 1] == '0')
        count--;
    digits[count] = 0;
    const char *sign = signbit(d) ? "-" : "";
    if (exponent < -4 || exponent >= 16)
        return tsr_jinja_putf(r, out, "%s%c%s%se%c%02d", sign, digits[0], count > 1 ? "." : "",
                              digits + 1, exponent < 0 ? '-' : '+', abs(exponent));
    if (exponent < 0)
        return tsr_jinja_putf(r, out, "%s0.%.*s%s", sign, -exponent - 1, "0000", digits);
    if (count <= exponent + 1)
        return tsr_jinja_putf(r, out, "%s%s%.*s.0", sign, digits, exponent + 1 - count,
                              "0000000000000000");
    return tsr_jinja_putf(r, out, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
}

static tsr_status repr_text(jinja_writer *out, jinja_run *r, jinja_text text)
{
    TSR_TRY(tsr_jinja_scan(r, text.bytes));
    bool single = memchr(text.data, '\'', text.bytes) != NULL;
    bool twice = memchr(text.data, '"', text.bytes) != NULL;
    char quote = single && !twice ? '"' : '\'';
    size_t put = 0; /* all before it has been written */
    TSR_TRY(tsr_jinja_put(r, out, &quote, 1));
    for (size_t i = 0; i < text.bytes; i++) {
        unsigned char c = (unsigned char)text.data[i];
        /* Which of them Python escapes depends on its version's Unicode tables. */
        if (c >= 0x80)
            return tsr_jinja_fail(r, "printing a list or dict that holds text beyond ASCII is not "
                                     "supported: use the filter tojson");
        if (c >= 0x20 && c < 0x7f && c != '\\' && c != (unsigned char)quote)
            continue;
        TSR_TRY(tsr_jinja_put(r, out, text.data + put, i - put));
        put = i + 1;
        if (c == '\\' || c == (unsigned char)quote)
            TSR_TRY(tsr_jinja_putf(r, out, "\\%c", c));
        else if (c == '\n' || c == '\r' || c == '\t')
            TSR_TRY(tsr_jinja_putf(r, out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't'));
        else
            TSR_TRY(tsr_jinja_putf(r, out, "\\x%02x", c));
    }
    TSR_TRY(tsr_jinja_put(r, out, text.data + put, text.bytes - put));
    return tsr_jinja_put(r, out, &quote, 1);
}

static tsr_status repr_list(jinja_writer *out, jinja_run *r, const value *v, int depth)
{
    bool tuple = v->kind == V_TUPLE;
    TSR_TRY(tsr_jinja_puts(r, out, tuple ? "(" : "["));
    for (size_t i = 0; i < v->list->count; i++) {
        TSR_TRY(tsr_jinja_puts(r, out, i ? ", " : ""));
        TSR_TRY(repr(out, r, &v->list->items[i], depth + 1));
    }
    return tsr_jinja_puts(r, out, !tuple ? "]" : v->list->count == 1 ? ",)" : ")");
}

static tsr_status repr_dict(jinja_writer *out, jinja_run *r, const jinja_dict *dict, int depth)
{
    TSR_TRY(tsr_jinja_puts(r, out, "{"));
    for (size_t i = 0; i < dict->count; i++) {
        TSR_TRY(tsr_jinja_puts(r, out, i ? ", " : ""));
        TSR_TRY(repr(out, r, &dict->keys[i], depth + 1));
        TSR_TRY(tsr_jinja_puts(r, out, ": "));
        TSR_TRY(repr(out, r, &dict->values[i], depth + 1));
    }
    return tsr_jinja_puts(r, out, "}");
}

static tsr_status repr(jinja_writer *out, jinja_run *r, const value *v, int depth)
{
    TSR_TRY(tsr_jinja_spend(r, 1));
    if (depth > JINJA_DEPTH)
        return tsr_jinja_fail(r, "a value is nested deeper than %d", JINJA_DEPTH);
    switch (v->kind) {
    case V_STRING:
        return repr_text(out, r, v->text);
    case V_LIST:
    case V_TUPLE:
        return repr_list(out, r, v, depth);
    case V_DICT:
        return repr_dict(out, r, v->dict, depth);
    case V_UNDEFINED:
        return tsr_jinja_puts(r, out, "Undefined");
    default:
        return tsr_jinja_str(out, r, v);
    }
}

tsr_status tsr_jinja_str(jinja_writer *out, jinja_run *r, const value *v)
{
    TSR_TRY(tsr_jinja_spend(r, 1));
    switch (v->kind) {
    case V_ABSENT:
    case V_UNDEFINED:
        return TSR_OK;
    case V_NONE:
        return tsr_jinja_puts(r, out, "None");
    case V_BOOL:
        return tsr_jinja_puts(r, out, v->boolean ? "True" : "False");
    case V_INT:
        return tsr_jinja_putf(r, out, "%lld", (long long)v->integer);
    case V_FLOAT:
        return put_float(out, r, v->real, false);
    case V_STRING:
        return tsr_jinja_put(r, out, v->text.data, v->text.bytes);
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
        return repr(out, r, v, 0);
    default:
        return tsr_jinja_fail(r, "printing a value of type %s is not supported", tsr_jinja_type(v));
    }
}

tsr_status tsr_jinja_to_text(value *out, jinja_run *r, const value *v)
{
    if (v->kind == V_STRING) {
        *out = *v;
        return TSR_OK;
    }
    jinja_writer text = {0};
    TSR_TRY(tsr_jinja_str(&text, r, v));
    *out = tsr_jinja_written(r, &text);
    return TSR_OK;
}

/* ---- json.dumps ---- */

/* How JSON writes a code point; "" where it stays as it is. */
static void json_escape(char out[16], uint32_t code, bool ascii)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *known = code && code < 0x80 ? strchr(from, (int)code) : NULL;
    out[0] = 0;
    if (known)
        snprintf(out, 16, "\\%c", to[known - from]);
    else if (ascii && code > 0xffff)
        snprintf(out, 16, "\\u%04x\\u%04x", (0xd800 + ((code - 0x10000) >> 10)) & 0xffff,
                 (0xdc00 + ((code - 0x10000) & 0x3ff)) & 0xffff);
    else if (code < 0x20 || (ascii && code > 0x7e))
        snprintf(out, 16, "\\u%04x", code & 0xffff);
}

static tsr_status json_text(jinja_writer *out, jinja_run *r, jinja_text text, bool ascii)
{
    size_t put = 0; /* all before it has been written */
    TSR_TRY(tsr_jinja_scan(r, text.bytes));
    TSR_TRY(tsr_jinja_puts(r, out, "\""));
    for (size_t i = 0, length; i < text.bytes; i += length) {
        uint32_t code = 0;
        char escaped[16];
        length = tsr_utf8_next(&code, text.data + i, text.bytes - i);
        length = length ? length : 1;
        json_escape(escaped, code, ascii);
        if (!escaped[0])
            continue;
        TSR_TRY(tsr_jinja_put(r, out, text.data + put, i - put));
        TSR_TRY(tsr_jinja_puts(r, out, escaped));
        put = i + length;
    }
    TSR_TRY(tsr_jinja_put(r, out, text.data + put, text.bytes - put));
    return tsr_jinja_puts(r, out, "\"");
}

static tsr_status json_line(jinja_writer *out, jinja_run *r, const jinja_json_style *style,
                            int depth)
{
    if (!style->indent)
        return TSR_OK;
    TSR_TRY(tsr_jinja_puts(r, out, "\n"));
    for (int i = 0; i < depth; i++)
        TSR_TRY(tsr_jinja_put(r, out, style->indent, style->indent_bytes));
    return TSR_OK;
}

static tsr_status json_key(jinja_writer *out, jinja_run *r, const value *key,
                           const jinja_json_style *style, int depth)
{
    if (key->kind == V_STRING)
        return json_text(out, r, key->text, style->ascii);
    if (key->kind != V_NONE && key->kind != V_BOOL && key->kind != V_INT && key->kind != V_FLOAT)
        return tsr_jinja_fail(r, "tojson: a %s cannot be a key", tsr_jinja_type(key));
    TSR_TRY(tsr_jinja_puts(r, out, "\""));
    TSR_TRY(tsr_jinja_tojson(out, r, key, style, depth));
    return tsr_jinja_puts(r, out, "\"");
}

static tsr_status json_dict(jinja_writer *out, jinja_run *r, const jinja_dict *dict,
                            const jinja_json_style *style, int depth)
{
    size_t *order = NULL;
    if (!dict->count)
        return tsr_jinja_puts(r, out, "{}");
    if (style->sort_keys)
        TSR_TRY(tsr_jinja_sorted(&order, r, dict->keys, dict->count, false));
    TSR_TRY(tsr_jinja_puts(r, out, "{"));
    for (size_t i = 0; i < dict->count; i++) {
        size_t at = order ? order[i] : i;
        const jinja_text *between = &style->item_separator, *colon = &style->key_separator;
        if (i)
            TSR_TRY(tsr_jinja_put(r, out, between->data, between->bytes));
        TSR_TRY(json_line(out, r, style, depth + 1));
        TSR_TRY(json_key(out, r, &dict->keys[at], style, depth));
        TSR_TRY(tsr_jinja_put(r, out, colon->data, colon->bytes));
        TSR_TRY(tsr_jinja_tojson(out, r, &dict->values[at], style, depth + 1));
    }
    TSR_TRY(json_line(out, r, style, depth));
    return tsr_jinja_puts(r, out, "}");
}

static tsr_status json_list(jinja_writer *out, jinja_run *r, const jinja_list *list,
                            const jinja_json_style *style, int depth)
{
    const jinja_text *between = &style->item_separator;
    if (!list->count)
        return tsr_jinja_puts(r, out, "[]");
    TSR_TRY(tsr_jinja_puts(r, out, "["));
    for (size_t i = 0; i < list->count; i++) {
        if (i)
            TSR_TRY(tsr_jinja_put(r, out, between->data, between->bytes));
        TSR_TRY(json_line(out, r, style, depth + 1));
        TSR_TRY(tsr_jinja_tojson(out, r, &list->items[i], style, depth + 1));
    }
    TSR_TRY(json_line(out, r, style, depth));
    return tsr_jinja_puts(r, out, "]");
}

tsr_status tsr_jinja_tojson(jinja_writer *out, jinja_run *r, const value *v,
                            const jinja_json_style *style, int depth)
{
    TSR_TRY(tsr_jinja_spend(r, 1));
    if (depth > JINJA_DEPTH)
        return tsr_jinja_fail(r, "tojson: the value is nested deeper than %d", JINJA_DEPTH);
    switch (v->kind) {
    case V_NONE:
        return tsr_jinja_puts(r, out, "null");
    case V_BOOL:
        return tsr_jinja_puts(r, out, v->boolean ? "true" : "false");
    case V_INT:
        return tsr_jinja_str(out, r, v);
    case V_FLOAT:
        return put_float(out, r, v->real, true);
    case V_STRING:
        return json_text(out, r, v->text, style->ascii);
    case V_LIST:
    case V_TUPLE:
        return json_list(out, r, v->list, style, depth);
    case V_DICT:
        return json_dict(out, r, v->dict, style, depth);
    default:
        return tsr_jinja_fail(r, "tojson: a value of type %s is not JSON%s%s", tsr_jinja_type(v),
                              v->kind == V_UNDEFINED ? ": " : "",
                              v->kind == V_UNDEFINED ? v->text.data : "");
    }
}
