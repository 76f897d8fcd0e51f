/*
 * jinja_print.c: Python's str and repr of values, and json.dumps.
 */
#include "data/jinja.h"
#include "data/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tsr_status repr(tsr_text *out, jinja_run *r, const value *v, int depth);

tsr_status tsr_jinja_float_repr(tsr_text *out, double d, bool json)
{
    if (d != d || isinf(d)) {
        const char *name = d != d ? (json ? "NaN" : "nan") : (json ? "Infinity" : "inf");
        tsr_text_printf(out, "%s%s", d < 0 ? "-" : "", name);
        return TSR_OK;
    }
    /* The shortest digits that read back as d, then Python's choice of notation. */
    char text[64], digits[32];
    for (int precision = 0; precision < 18; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, d);
        if (strtod(text, NULL) == d)
            break;
    }
    int count = 0;
    const char *p = text;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digits[count++] = *p;
    int exponent = atoi(p + 1);
    while (count > 1 && digits[count - 1] == '0')
        count--;
    digits[count] = 0;
    if (signbit(d))
        tsr_text_puts(out, "-");
    if (exponent < -4 || exponent >= 16) {
        tsr_text_append(out, digits, 1);
        if (count > 1)
            tsr_text_printf(out, ".%s", digits + 1);
        tsr_text_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        tsr_text_printf(out, "0.%.*s%s", -exponent - 1, "0000", digits);
    } else if (count <= exponent + 1) {
        tsr_text_printf(out, "%s%.*s.0", digits, exponent + 1 - count, "0000000000000000");
    } else {
        tsr_text_printf(out, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    }
    return TSR_OK;
}

static tsr_status repr_text(tsr_text *out, jinja_run *r, jinja_text text)
{
    bool single = memchr(text.data, '\'', text.bytes) != NULL;
    bool twice = memchr(text.data, '"', text.bytes) != NULL;
    char quote = single && !twice ? '"' : '\'';
    tsr_text_append(out, &quote, 1);
    for (size_t i = 0; i < text.bytes; i++) {
        unsigned char c = (unsigned char)text.data[i];
        /* Which of them Python escapes depends on its version's Unicode tables. */
        if (c >= 0x80)
            return tsr_jinja_fail(r, "printing a list or dict that holds text beyond ASCII is not "
                                     "supported: use the filter tojson");
        if (c == '\\' || c == (unsigned char)quote)
            tsr_text_printf(out, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            tsr_text_printf(out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c < 0x20 || c == 0x7f)
            tsr_text_printf(out, "\\x%02x", c);
        else
            tsr_text_append(out, text.data + i, 1);
    }
    tsr_text_append(out, &quote, 1);
    return TSR_OK;
}

static tsr_status repr_list(tsr_text *out, jinja_run *r, const value *v, int depth)
{
    bool tuple = v->kind == V_TUPLE;
    tsr_text_puts(out, tuple ? "(" : "[");
    for (size_t i = 0; i < v->list->count; i++) {
        tsr_text_puts(out, i ? ", " : "");
        TSR_TRY(repr(out, r, &v->list->items[i], depth + 1));
    }
    tsr_text_puts(out, !tuple ? "]" : v->list->count == 1 ? ",)" : ")");
    return TSR_OK;
}

static tsr_status repr_dict(tsr_text *out, jinja_run *r, const jinja_dict *dict, int depth)
{
    tsr_text_puts(out, "{");
    for (size_t i = 0; i < dict->count; i++) {
        tsr_text_puts(out, i ? ", " : "");
        TSR_TRY(repr(out, r, &dict->keys[i], depth + 1));
        tsr_text_puts(out, ": ");
        TSR_TRY(repr(out, r, &dict->values[i], depth + 1));
    }
    tsr_text_puts(out, "}");
    return TSR_OK;
}

static tsr_status repr(tsr_text *out, jinja_run *r, const value *v, int depth)
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
        tsr_text_puts(out, "Undefined");
        return TSR_OK;
    default:
        return tsr_jinja_str(out, r, v);
    }
}

tsr_status tsr_jinja_str(tsr_text *out, jinja_run *r, const value *v)
{
    TSR_TRY(tsr_jinja_spend(r, 1));
    switch (v->kind) {
    case V_ABSENT:
    case V_UNDEFINED:
        return TSR_OK;
    case V_NONE:
        tsr_text_puts(out, "None");
        return TSR_OK;
    case V_BOOL:
        tsr_text_puts(out, v->boolean ? "True" : "False");
        return TSR_OK;
    case V_INT:
        tsr_text_printf(out, "%lld", (long long)v->integer);
        return TSR_OK;
    case V_FLOAT:
        return tsr_jinja_float_repr(out, v->real, false);
    case V_STRING:
        TSR_TRY(tsr_jinja_spend(r, v->text.bytes / 64));
        tsr_text_append(out, v->text.data, v->text.bytes);
        return TSR_OK;
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
    tsr_text text = {0};
    tsr_status status = tsr_jinja_str(&text, r, v);
    if (status == TSR_OK && text.failed)
        status = tsr_fail(TSR_ENOMEM, "no memory for the text of a value");
    if (status == TSR_OK)
        status = tsr_jinja_copy(out, r, text.data, text.length);
    tsr_text_free(&text);
    return status;
}

/* ---- json.dumps ---- */

static void json_text(tsr_text *out, jinja_text text, bool ascii)
{
    tsr_text_puts(out, "\"");
    for (size_t i = 0; i < text.bytes;) {
        uint32_t code = 0;
        size_t length = tsr_utf8_next(&code, text.data + i, text.bytes - i);
        length = length ? length : 1;
        static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
        const char *known = code && code < 0x80 ? strchr(from, (int)code) : NULL;
        if (known)
            tsr_text_printf(out, "\\%c", to[known - from]);
        else if (ascii && code > 0xffff)
            tsr_text_printf(out, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                            0xdc00 + ((code - 0x10000) & 0x3ff));
        else if (code < 0x20 || (ascii && code > 0x7e))
            tsr_text_printf(out, "\\u%04x", code);
        else
            tsr_text_append(out, text.data + i, length);
        i += length;
    }
    tsr_text_puts(out, "\"");
}

static void json_line(tsr_text *out, const jinja_json_style *style, int depth)
{
    if (!style->indent)
        return;
    tsr_text_puts(out, "\n");
    for (int i = 0; i < depth; i++)
        tsr_text_append(out, style->indent, style->indent_bytes);
}

/* The order of the members: of insertion, or sorted. */
static tsr_status json_order(size_t **out, jinja_run *r, const jinja_dict *dict, bool sorted)
{
    TSR_TRY(tsr_jinja_alloc(out, &r->arena, dict->count + 1, sizeof **out));
    for (size_t i = 0; i < dict->count; i++) {
        size_t at = i;
        int order = -1;
        for (; sorted && at > 0; at--) {
            TSR_TRY(tsr_jinja_spend(r, 1));
            TSR_TRY(tsr_jinja_order(&order, r, &dict->keys[i], &dict->keys[(*out)[at - 1]]));
            if (order >= 0)
                break;
            (*out)[at] = (*out)[at - 1];
        }
        (*out)[at] = i;
    }
    return TSR_OK;
}

static tsr_status json_key(tsr_text *out, jinja_run *r, const value *key,
                           const jinja_json_style *style, int depth)
{
    if (key->kind == V_STRING) {
        json_text(out, key->text, style->ascii);
        return TSR_OK;
    }
    if (key->kind != V_NONE && key->kind != V_BOOL && key->kind != V_INT && key->kind != V_FLOAT)
        return tsr_jinja_fail(r, "tojson: a %s cannot be a key", tsr_jinja_type(key));
    tsr_text_puts(out, "\"");
    TSR_TRY(tsr_jinja_tojson(out, r, key, style, depth));
    tsr_text_puts(out, "\"");
    return TSR_OK;
}

static tsr_status json_dict(tsr_text *out, jinja_run *r, const jinja_dict *dict,
                            const jinja_json_style *style, int depth)
{
    size_t *order;
    if (!dict->count) {
        tsr_text_puts(out, "{}");
        return TSR_OK;
    }
    TSR_TRY(json_order(&order, r, dict, style->sort_keys));
    tsr_text_puts(out, "{");
    for (size_t i = 0; i < dict->count; i++) {
        if (i)
            tsr_text_append(out, style->item_separator.data, style->item_separator.bytes);
        json_line(out, style, depth + 1);
        TSR_TRY(json_key(out, r, &dict->keys[order[i]], style, depth));
        tsr_text_append(out, style->key_separator.data, style->key_separator.bytes);
        TSR_TRY(tsr_jinja_tojson(out, r, &dict->values[order[i]], style, depth + 1));
    }
    json_line(out, style, depth);
    tsr_text_puts(out, "}");
    return TSR_OK;
}

static tsr_status json_list(tsr_text *out, jinja_run *r, const jinja_list *list,
                            const jinja_json_style *style, int depth)
{
    if (!list->count) {
        tsr_text_puts(out, "[]");
        return TSR_OK;
    }
    tsr_text_puts(out, "[");
    for (size_t i = 0; i < list->count; i++) {
        if (i)
            tsr_text_append(out, style->item_separator.data, style->item_separator.bytes);
        json_line(out, style, depth + 1);
        TSR_TRY(tsr_jinja_tojson(out, r, &list->items[i], style, depth + 1));
    }
    json_line(out, style, depth);
    tsr_text_puts(out, "]");
    return TSR_OK;
}

tsr_status tsr_jinja_tojson(tsr_text *out, jinja_run *r, const value *v,
                            const jinja_json_style *style, int depth)
{
    TSR_TRY(tsr_jinja_spend(r, 1));
    if (depth > JINJA_DEPTH)
        return tsr_jinja_fail(r, "tojson: the value is nested deeper than %d", JINJA_DEPTH);
    switch (v->kind) {
    case V_NONE:
        tsr_text_puts(out, "null");
        return TSR_OK;
    case V_BOOL:
        tsr_text_puts(out, v->boolean ? "true" : "false");
        return TSR_OK;
    case V_INT:
        return tsr_jinja_str(out, r, v);
    case V_FLOAT:
        return tsr_jinja_float_repr(out, v->real, true);
    case V_STRING:
        json_text(out, v->text, style->ascii);
        return TSR_OK;
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
