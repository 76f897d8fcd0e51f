/*
 * jinja_text.c: Python's operations on strings, for filters and methods.
 */
#include "data/jinja.h"
#include "data/unicode.h"

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
        else
            begins = (c && strchr("-({[<", c)) || tsr_unicode_python_space((unsigned char)c);
    }
    *out = tsr_jinja_text(copy, text.bytes);
    return TSR_OK;
}

static bool stripped(uint32_t code, const value *chars)
{
    if (chars->kind != V_STRING)
        return tsr_unicode_python_space(code);
    for (size_t i = 0; i < chars->text.bytes;) {
        uint32_t other = 0;
        i += tsr_utf8_next(&other, chars->text.data + i, chars->text.bytes - i);
        if (other == code)
            return true;
    }
    return false;
}

tsr_status tsr_jinja_strip(value *out, jinja_run *r, jinja_text text, const value *chars,
                           jinja_strip side)
{
    uint32_t code = 0;
    if (chars->kind != V_ABSENT && chars->kind != V_NONE && chars->kind != V_STRING)
        return tsr_jinja_fail(r, "the characters to strip are a string, not %s",
                              tsr_jinja_type(chars));
    while ((side & STRIP_LEFT) && text.bytes) {
        size_t length = tsr_utf8_next(&code, text.data, text.bytes);
        if (!stripped(code, chars))
            break;
        text.data += length;
        text.bytes -= length;
    }
    while ((side & STRIP_RIGHT) && text.bytes) {
        size_t last = text.bytes - 1;
        while (last > 0 && ((unsigned char)text.data[last] & 0xc0) == 0x80)
            last--;
        tsr_utf8_next(&code, text.data + last, text.bytes - last);
        if (!stripped(code, chars))
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

/* Finishes a text that was built outside the arena. */
static tsr_status built(value *out, jinja_run *r, tsr_text *text, tsr_status status)
{
    if (status == TSR_OK && text->failed)
        status = tsr_fail(TSR_ENOMEM, "no memory for a string");
    if (status == TSR_OK)
        status = tsr_jinja_spend(r, text->length / 64);
    if (status == TSR_OK)
        status = tsr_jinja_copy(out, r, text->data, text->length);
    tsr_text_free(text);
    return status;
}

tsr_status tsr_jinja_replace(value *out, jinja_run *r, jinja_text text, jinja_text old,
                             jinja_text with, const value *count)
{
    int64_t left;
    tsr_text result = {0};
    tsr_status status = TSR_OK;
    TSR_TRY(most_count(&left, r, count));
    if (!old.bytes)
        return tsr_jinja_fail(r, "replacing the empty string is not supported");
    size_t at = 0;
    while (left != 0 && status == TSR_OK) {
        const char *found = tsr_jinja_find(text, at, old);
        if (!found)
            break;
        tsr_text_append(&result, text.data + at, (size_t)(found - text.data) - at);
        tsr_text_append(&result, with.data, with.bytes);
        status = tsr_jinja_spend(r, 1 + with.bytes / 64);
        at = (size_t)(found - text.data) + old.bytes;
        left--;
    }
    tsr_text_append(&result, text.data + at, text.bytes - at);
    return built(out, r, &result, status);
}

tsr_status tsr_jinja_join(value *out, jinja_run *r, jinja_text separator, const jinja_list *list,
                          bool strict)
{
    tsr_text result = {0};
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < list->count && status == TSR_OK; i++) {
        const value *v = &list->items[i];
        if (i)
            tsr_text_append(&result, separator.data, separator.bytes);
        if (strict && v->kind != V_STRING)
            status =
                tsr_jinja_fail(r, "join: element %zu is not a string but %s", i, tsr_jinja_type(v));
        else
            status = tsr_jinja_str(&result, r, v);
        if (status == TSR_OK)
            status = tsr_jinja_spend(r, 1 + separator.bytes / 64);
    }
    return built(out, r, &result, status);
}

tsr_status tsr_jinja_escape(value *out, jinja_run *r, jinja_text plain)
{
    static const struct {
        char from;
        const char *to;
    } table[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    tsr_text text = {0};
    for (size_t i = 0; i < plain.bytes; i++) {
        size_t t = 0;
        while (t < 5 && table[t].from != plain.data[i])
            t++;
        tsr_text_append(&text, t < 5 ? table[t].to : plain.data + i,
                        t < 5 ? strlen(table[t].to) : 1);
    }
    tsr_status status = text.failed ? tsr_fail(TSR_ENOMEM, "no memory for escaped text")
                                    : tsr_jinja_copy(out, r, text.data, text.length);
    tsr_text_free(&text);
    return status;
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
        while (at < text.bytes && space_at(text, at))
            at += space_at(text, at);
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

static tsr_status split_right(parts *p, jinja_run *r, jinja_text text, jinja_text by, int64_t most)
{
    size_t end = text.bytes;
    for (size_t at = end; most != 0 && at-- > 0;) {
        if (at + by.bytes > end || memcmp(text.data + at, by.data, by.bytes))
            continue;
        TSR_TRY(push(p, r, text.data + at + by.bytes, end - at - by.bytes));
        end = at;
        most--;
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
