/*
 * text.c: Python's operations on strings, for filters and methods.
 */
#include "base/unicode.h"
#include "jinja/jinja.h"

#include <string.h>

const char *tsr_jinja_find(jinja_text text, size_t at, jinja_text part)
{
    if (!part.bytes || !part.data || part.bytes > text.bytes - at)
        return NULL;
    return memmem(text.data + at, text.bytes - at, part.data, part.bytes);
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

tsr_status tsr_jinja_case(value *out, jinja_run *r, jinja_text text, jinja_case how)
{
    char *copy;
    bool begins = true;
    TSR_TRY(tsr_jinja_alloc(&copy, &r->arena, text.bytes + 1, 1));
    for (size_t i = 0; i < text.bytes; i++) {
        char c = text.data[i];
        /* Case beyond ASCII depends on the version of Unicode and on neighbours. */
        if ((unsigned char)c >= 0x80)
            return tsr_jinja_fail(r, "changing the case of text beyond ASCII is not supported");
        bool up = how == CASE_UPPER || (how != CASE_LOWER && begins);
        if (is_letter(c))
            copy[i] = (char)(up ? c & ~0x20 : c | 0x20);
        else
            copy[i] = c;
        if (how == CASE_CAPITALIZE)
            begins = false;
        else if (how == CASE_TITLE)
            begins = !is_letter(c);
        else if (how == CASE_TITLE_FILTER)
            begins = (c && strchr("-({[<", c)) || tsr_unicode_python_space((unsigned char)c);
    }
    *out = tsr_jinja_text(copy, text.bytes);
    return TSR_OK;
}

/* The length of the character at `data` if it is to be stripped, or 0. */
static tsr_status stripped(size_t *length, jinja_run *r, const char *data, size_t bytes,
                           const value *chars)
{
    uint32_t code = 0;
    bool wanted;
    *length = tsr_utf8_next(&code, data, bytes);
    if (chars->kind == V_STRING) {
        TSR_TRY(tsr_jinja_scan(r, chars->text.bytes));
        wanted = memmem(chars->text.data, chars->text.bytes, data, *length) != NULL;
    } else {
        wanted = tsr_unicode_python_space(code);
    }
    *length = wanted ? *length : 0;
    return TSR_OK;
}

tsr_status tsr_jinja_strip(value *out, jinja_run *r, jinja_text text, const value *chars,
                           jinja_strip side)
{
    size_t length;
    TSR_TRY(tsr_jinja_scan(r, text.bytes)); /* slower than other reading */
    if (chars->kind != V_ABSENT && chars->kind != V_NONE && chars->kind != V_STRING)
        return tsr_jinja_fail(r, "the characters to strip are a string, not %s",
                              tsr_jinja_type(chars));
    while ((side & STRIP_LEFT) && text.bytes) {
        TSR_TRY(stripped(&length, r, text.data, text.bytes, chars));
        if (!length)
            break;
        text.data += length;
        text.bytes -= length;
    }
    while ((side & STRIP_RIGHT) && text.bytes) {
        size_t last = text.bytes - 1;
        while (last > 0 && ((unsigned char)text.data[last] & 0xc0) == 0x80)
            last--;
        TSR_TRY(stripped(&length, r, text.data + last, text.bytes - last, chars));
        if (!length)
            break;
        text.bytes = last;
    }
    *out = tsr_jinja_text(text.data, text.bytes);
    return TSR_OK;
}

static tsr_status most_count(int64_t *out, jinja_run *r, const value *count)
{
    *out = -1;
    if (count->kind == V_ABSENT || count->kind == V_NONE)
        return TSR_OK;
    if (count->kind != V_INT)
        return tsr_jinja_fail(r, "a count is an integer, not %s", tsr_jinja_type(count));
    *out = count->integer;
    return TSR_OK;
}

tsr_status tsr_jinja_replace(value *out, jinja_run *r, jinja_text text, jinja_text old,
                             jinja_text with, const value *count)
{
    int64_t left;
    jinja_writer result = {0};
    size_t at = 0;
    TSR_TRY(most_count(&left, r, count));
    if (!old.bytes)
        return tsr_jinja_fail(r, "replacing the empty string is not supported");
    for (; left != 0; left--) {
        const char *found = tsr_jinja_find(text, at, old);
        if (!found)
            break;
        TSR_TRY(tsr_jinja_put(r, &result, text.data + at, (size_t)(found - text.data) - at));
        TSR_TRY(tsr_jinja_put(r, &result, with.data, with.bytes));
        at = (size_t)(found - text.data) + old.bytes;
    }
    TSR_TRY(tsr_jinja_put(r, &result, text.data + at, text.bytes - at));
    *out = tsr_jinja_written(r, &result);
    return TSR_OK;
}

tsr_status tsr_jinja_join(value *out, jinja_run *r, jinja_text separator, const jinja_list *list,
                          bool strict)
{
    jinja_writer result = {0};
    for (size_t i = 0; i < list->count; i++) {
        const value *v = &list->items[i];
        if (i)
            TSR_TRY(tsr_jinja_put(r, &result, separator.data, separator.bytes));
        if (strict && v->kind != V_STRING)
            return tsr_jinja_fail(r, "join: element %zu is not a string but %s", i,
                                  tsr_jinja_type(v));
        TSR_TRY(tsr_jinja_str(&result, r, v));
    }
    *out = tsr_jinja_written(r, &result);
    return TSR_OK;
}

tsr_status tsr_jinja_escape(value *out, jinja_run *r, jinja_text plain)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    jinja_writer text = {0};
    size_t put = 0; /* all before it has been written */
    TSR_TRY(tsr_jinja_scan(r, plain.bytes));
    for (size_t i = 0; i < plain.bytes; i++) {
        const char *known = memchr(from, plain.data[i], sizeof from - 1);
        if (!known)
            continue;
        TSR_TRY(tsr_jinja_put(r, &text, plain.data + put, i - put));
        TSR_TRY(tsr_jinja_puts(r, &text, to[known - from]));
        put = i + 1;
    }
    TSR_TRY(tsr_jinja_put(r, &text, plain.data + put, plain.bytes - put));
    *out = tsr_jinja_written(r, &text);
    return TSR_OK;
}

/* ---- split ---- */

typedef struct {
    value list;
    size_t capacity;
} parts;

static tsr_status push(parts *p, jinja_run *r, const char *data, size_t bytes)
{
    jinja_list *list = p->list.list;
    if (list->count == p->capacity) {
        value bigger;
        size_t capacity = 2 * p->capacity;
        TSR_TRY(tsr_jinja_list(&bigger, r, V_LIST, capacity));
        memcpy(bigger.list->items, list->items, list->count * sizeof(value));
        bigger.list->count = list->count;
        p->list = bigger;
        p->capacity = capacity;
        list = bigger.list;
    }
    list->items[list->count++] = tsr_jinja_text(data, bytes);
    return tsr_jinja_spend(r, 1);
}

static size_t space_at(jinja_text text, size_t at)
{
    uint32_t code = 0;
    size_t length = tsr_utf8_next(&code, text.data + at, text.bytes - at);
    return tsr_unicode_python_space(code) ? length : 0;
}

static tsr_status split_spaces(parts *p, jinja_run *r, jinja_text text, int64_t most)
{
    size_t at = 0;
    for (;;) {
        for (size_t length; at < text.bytes && (length = space_at(text, at)); at += length)
            ;
        if (at == text.bytes)
            return TSR_OK;
        size_t begin = at;
        if (most == 0) /* the rest, with the space at its end, as in Python */
            return push(p, r, text.data + at, text.bytes - at);
        while (at < text.bytes && !space_at(text, at))
            at++;
        TSR_TRY(push(p, r, text.data + begin, at - begin));
        most -= most > 0;
    }
}

/* The bytes of a text from the last to the first, so that the last occurrence is found as the first is. */
static tsr_status backwards(jinja_text *out, jinja_run *r, jinja_text text)
{
    char *copy;
    TSR_TRY(tsr_jinja_alloc(&copy, &r->arena, text.bytes + 1, 1));
    for (size_t i = 0; i < text.bytes; i++)
        copy[i] = text.data[text.bytes - 1 - i];
    *out = (jinja_text){copy, text.bytes};
    return TSR_OK;
}

static tsr_status split_right(parts *p, jinja_run *r, jinja_text text, jinja_text by, int64_t most)
{
    jinja_text mirrored, part;
    size_t end = text.bytes;
    TSR_TRY(backwards(&mirrored, r, text));
    TSR_TRY(backwards(&part, r, by));
    for (; most != 0; most--) {
        size_t done = text.bytes - end;
        const char *found = tsr_jinja_find(mirrored, done, part);
        if (!found)
            break;
        size_t length = (size_t)(found - mirrored.data) - done;
        TSR_TRY(push(p, r, text.data + end - length, length));
        end -= length + by.bytes;
    }
    TSR_TRY(push(p, r, text.data, end));
    jinja_list *list = p->list.list;
    for (size_t i = 0; i < list->count / 2; i++) {
        value other = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = other;
    }
    return TSR_OK;
}

tsr_status tsr_jinja_split(value *out, jinja_run *r, jinja_text text, const value *separator,
                           const value *most, bool from_right)
{
    parts p = {.capacity = 4};
    int64_t left;
    TSR_TRY(most_count(&left, r, most));
    TSR_TRY(tsr_jinja_list(&p.list, r, V_LIST, p.capacity));
    p.list.list->count = 0;
    if (separator->kind == V_ABSENT || separator->kind == V_NONE) {
        if (from_right && left >= 0)
            return tsr_jinja_fail(r, "rsplit at white space with a count is not supported");
        TSR_TRY(tsr_jinja_scan(r, text.bytes)); /* slower than other reading */
        TSR_TRY(split_spaces(&p, r, text, left));
        *out = p.list;
        return TSR_OK;
    }
    if (separator->kind != V_STRING || !separator->text.bytes)
        return tsr_jinja_fail(r, "split needs a string that is not empty");
    jinja_text by = separator->text;
    if (from_right) {
        TSR_TRY(split_right(&p, r, text, by, left));
        *out = p.list;
        return TSR_OK;
    }
    size_t at = 0;
    for (; left != 0; left--) {
        const char *found = tsr_jinja_find(text, at, by);
        if (!found)
            break;
        TSR_TRY(push(&p, r, text.data + at, (size_t)(found - text.data) - at));
        at = (size_t)(found - text.data) + by.bytes;
    }
    TSR_TRY(push(&p, r, text.data + at, text.bytes - at));
    *out = p.list;
    return TSR_OK;
}
