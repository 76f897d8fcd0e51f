/*
 * sort.c: the filters that order or compare elements (sort, dictsort, unique, min, max), and
 * indent.
 */
#include "base/unicode.h"
#include "jinja/jinja.h"

#include <string.h>

static bool given(const value *v)
{
    return v->kind != V_ABSENT && v->kind != V_NONE;
}

/* What an element is compared by: itself or an attribute, in lower case unless case matters. */
static tsr_status sort_key(value *out, jinja_run *r, const value *item, const value *attribute,
                           bool with_case)
{
    *out = *item;
    if (given(attribute)) {
        if (attribute->kind == V_STRING && memchr(attribute->text.data, ',', attribute->text.bytes))
            return tsr_jinja_fail(r, "ordering by several attributes is not supported");
        TSR_TRY(tsr_jinja_attribute(out, r, item, attribute));
    }
    if (out->kind != V_STRING || with_case)
        return TSR_OK;
    return tsr_jinja_case(out, r, out->text, CASE_LOWER);
}

/* Merges the ordered from[low..middle) and from[middle..high) into to[low..high). */
static tsr_status merge(size_t *to, const size_t *from, size_t low, size_t middle, size_t high,
                        jinja_run *r, const value *keys, bool reverse)
{
    size_t left = low, right = middle;
    for (size_t i = low; i < high; i++) {
        bool take_right = left == middle;
        if (left < middle && right < high) {
            int order;
            TSR_TRY(tsr_jinja_order(&order, r, &keys[from[right]], &keys[from[left]]));
            take_right = order == (reverse ? 1 : -1);
        }
        to[i] = from[take_right ? right++ : left++];
    }
    return TSR_OK;
}

tsr_status tsr_jinja_sorted(size_t **out, jinja_run *r, const value *keys, size_t count,
                            bool reverse)
{
    size_t *from, *to;
    TSR_TRY(tsr_jinja_alloc(&from, &r->arena, count + 1, sizeof *from));
    TSR_TRY(tsr_jinja_alloc(&to, &r->arena, count + 1, sizeof *to));
    for (size_t i = 0; i < count; i++)
        from[i] = i;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t low = 0; low < count; low += 2 * width) {
            size_t middle = low + width < count ? low + width : count;
            size_t high = middle + width < count ? middle + width : count;
            TSR_TRY(merge(to, from, low, middle, high, r, keys, reverse));
        }
        size_t *other = from;
        from = to;
        to = other;
    }
    *out = from;
    return TSR_OK;
}

/* The list of items[0..count) in the order of their keys. */
static tsr_status ordered(value *out, jinja_run *r, const value *items, const value *keys,
                          size_t count, bool reverse)
{
    size_t *order;
    TSR_TRY(tsr_jinja_sorted(&order, r, keys, count, reverse));
    TSR_TRY(tsr_jinja_list(out, r, V_LIST, count));
    for (size_t i = 0; i < count; i++)
        out->list->items[i] = items[order[i]];
    return TSR_OK;
}

tsr_status tsr_jinja_filter_sort(value *out, jinja_run *r, const value *v, const value *a)
{
    jinja_list *list;
    value keys;
    TSR_TRY(tsr_jinja_iterate(&list, r, v));
    TSR_TRY(tsr_jinja_list(&keys, r, V_LIST, list->count));
    for (size_t i = 0; i < list->count; i++)
        TSR_TRY(sort_key(&keys.list->items[i], r, &list->items[i], &a[2], tsr_jinja_truth(&a[1])));
    return ordered(out, r, list->items, keys.list->items, list->count, tsr_jinja_truth(&a[0]));
}

tsr_status tsr_jinja_filter_dictsort(value *out, jinja_run *r, const value *v, const value *a)
{
    bool by_value = a[1].kind == V_STRING && tsr_jinja_is_text(a[1].text, "value");
    value keys, pairs;
    if (v->kind == V_UNDEFINED)
        return tsr_jinja_fail(r, "%s", v->text.data);
    if (v->kind != V_DICT)
        return tsr_jinja_fail(r, "dictsort needs a dict, not %s", tsr_jinja_type(v));
    if (a[1].kind != V_ABSENT && !by_value &&
        (a[1].kind != V_STRING || !tsr_jinja_is_text(a[1].text, "key")))
        return tsr_jinja_fail(r, "You can only sort by either \"key\" or \"value\"");
    size_t count = v->dict->count;
    TSR_TRY(tsr_jinja_list(&pairs, r, V_LIST, count));
    TSR_TRY(tsr_jinja_list(&keys, r, V_LIST, count));
    for (size_t i = 0; i < count; i++) {
        value *pair = &pairs.list->items[i];
        TSR_TRY(tsr_jinja_list(pair, r, V_TUPLE, 2));
        pair->list->items[0] = v->dict->keys[i];
        pair->list->items[1] = v->dict->values[i];
        TSR_TRY(sort_key(&keys.list->items[i], r, &pair->list->items[by_value],
                         &(value){.kind = V_ABSENT}, tsr_jinja_truth(&a[0])));
    }
    return ordered(out, r, pairs.list->items, keys.list->items, count, tsr_jinja_truth(&a[2]));
}

tsr_status tsr_jinja_filter_unique(value *out, jinja_run *r, const value *v, const value *a)
{
    jinja_list *list;
    value seen;
    size_t count = 0;
    TSR_TRY(tsr_jinja_iterate(&list, r, v));
    TSR_TRY(tsr_jinja_list(out, r, V_ITER, list->count));
    TSR_TRY(tsr_jinja_dict(&seen, r, V_DICT));
    for (size_t i = 0; i < list->count; i++) {
        value key;
        const value *before;
        TSR_TRY(sort_key(&key, r, &list->items[i], &a[1], tsr_jinja_truth(&a[0])));
        if (key.kind == V_LIST || key.kind == V_DICT || key.kind == V_TUPLE)
            return tsr_jinja_fail(r, "unique elements of type %s are not supported",
                                  tsr_jinja_type(&key));
        TSR_TRY(tsr_jinja_dict_get(&before, r, seen.dict, key));
        if (before)
            continue;
        TSR_TRY(tsr_jinja_dict_add(r, seen.dict, key, key));
        out->list->items[count++] = list->items[i];
    }
    out->list->count = count;
    return TSR_OK;
}

/* The first of the least (sign 1) or greatest (sign -1) elements. */
static tsr_status extreme(value *out, jinja_run *r, const value *v, const value *a, int sign)
{
    jinja_list *list;
    value best, key;
    TSR_TRY(tsr_jinja_iterate(&list, r, v));
    if (!list->count)
        return tsr_jinja_undefined(out, r, "No aggregated item, sequence was empty.");
    for (size_t i = 0; i < list->count; i++) {
        int before = -sign;
        TSR_TRY(sort_key(&key, r, &list->items[i], &a[1], tsr_jinja_truth(&a[0])));
        if (i)
            TSR_TRY(tsr_jinja_order(&before, r, &key, &best));
        if (before != -sign)
            continue;
        best = key;
        *out = list->items[i];
    }
    return TSR_OK;
}

tsr_status tsr_jinja_filter_min(value *out, jinja_run *r, const value *v, const value *a)
{
    return extreme(out, r, v, a, 1);
}

tsr_status tsr_jinja_filter_max(value *out, jinja_run *r, const value *v, const value *a)
{
    return extreme(out, r, v, a, -1);
}

/* ---- indent ---- */

/* Bytes of the line that begins at `at`, and of what ends it, as str.splitlines splits. */
static size_t line_bytes(size_t *end_bytes, jinja_text text, size_t at)
{
    for (size_t i = at; i < text.bytes;) {
        uint32_t code;
        size_t length = tsr_utf8_next(&code, text.data + i, text.bytes - i);
        bool ends = (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) ||
                    code == 0x85 || code == 0x2028 || code == 0x2029;
        bool pair = code == '\r' && i + 1 < text.bytes && text.data[i + 1] == '\n';
        *end_bytes = length + pair;
        if (ends)
            return i - at;
        i += length;
    }
    *end_bytes = 0;
    return text.bytes - at;
}

static tsr_status put_indent(jinja_run *r, jinja_writer *out, const value *width)
{
    static const char blank[] = "                                                                ";
    if (width->kind == V_STRING)
        return tsr_jinja_put(r, out, width->text.data, width->text.bytes);
    size_t left = width->kind == V_INT ? (size_t)width->integer : 4, most = sizeof blank - 1;
    for (; left > most; left -= most)
        TSR_TRY(tsr_jinja_put(r, out, blank, most));
    return tsr_jinja_put(r, out, blank, left);
}

tsr_status tsr_jinja_filter_indent(value *out, jinja_run *r, const value *v, const value *a)
{
    jinja_writer text = {0};
    bool first = tsr_jinja_truth(&a[1]), blank = tsr_jinja_truth(&a[2]);
    if (v->kind != V_STRING || v->safe)
        return tsr_jinja_fail(r, "indent needs a plain string, not %s", tsr_jinja_type(v));
    if (a[0].kind != V_ABSENT && a[0].kind != V_STRING &&
        (a[0].kind != V_INT || a[0].integer < 0 || a[0].integer > 1024))
        return tsr_jinja_fail(r, "indent: the width is a string or a number from 0 to 1024");
    if (first)
        TSR_TRY(put_indent(r, &text, &a[0]));
    /* Jinja splits the string with a newline behind it, which keeps an empty last line. */
    for (size_t at = 0, end_bytes = 1; at < v->text.bytes || end_bytes;) {
        size_t bytes = line_bytes(&end_bytes, v->text, at);
        if (at && (bytes || blank))
            TSR_TRY(put_indent(r, &text, &a[0]));
        TSR_TRY(tsr_jinja_put(r, &text, v->text.data + at, bytes));
        at += bytes + end_bytes;
        if (end_bytes)
            TSR_TRY(tsr_jinja_puts(r, &text, "\n"));
    }
    *out = tsr_jinja_written(r, &text);
    return TSR_OK;
}
