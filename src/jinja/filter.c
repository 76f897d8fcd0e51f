/*
 * filter.c: the filters, and the binding of arguments that filters, tests and methods share.
 */
#include "jinja/jinja.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PARAMETERS 4

tsr_status tsr_jinja_bind(value *out, jinja_run *r, const char *what, const char *spec,
                          const jinja_args *args)
{
    size_t used = 0, position = 0;
    for (const char *p = spec; *p; position++) {
        size_t length = strcspn(p, " "), name = length - (p[length - 1] == '!');
        out[position] = (value){.kind = V_ABSENT};
        for (size_t i = 0; i < args->count; i++) {
            bool named = args->names[i].data != NULL;
            if (named ? tsr_jinja_same_text(args->names[i], (jinja_text){p, name})
                      : i == position) {
                out[position] = args->values[i];
                used++;
            }
        }
        if (out[position].kind == V_ABSENT && name < length)
            return tsr_jinja_fail(r, "%s: the argument \"%.*s\" is missing", what, (int)name, p);
        p += length;
        p += *p == ' ';
    }
    if (used != args->count)
        return tsr_jinja_fail(r, "%s takes the arguments (%s)", what, spec);
    return TSR_OK;
}

typedef tsr_status (*filter_function)(value *out, jinja_run *r, const value *v, const value *a);

/* str(v), for the filters that begin with it. Markup would make them escape. */
static tsr_status soft_text(jinja_text *out, jinja_run *r, const value *v)
{
    value text;
    if (v->kind == V_STRING && v->safe)
        return tsr_jinja_fail(r, "a filter after the filter safe is not supported");
    TSR_TRY(tsr_jinja_to_text(&text, r, v));
    *out = text.text;
    return TSR_OK;
}

static tsr_status filter_trim(value *out, jinja_run *r, const value *v, const value *a)
{
    jinja_text text;
    TSR_TRY(soft_text(&text, r, v));
    return tsr_jinja_strip(out, r, text, &a[0], STRIP_BOTH);
}

static tsr_status filter_length(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    size_t length;
    TSR_TRY(tsr_jinja_length(&length, r, v));
    *out = tsr_jinja_int((int64_t)length);
    return TSR_OK;
}

static tsr_status json_indent(jinja_json_style *style, jinja_run *r, const value *indent)
{
    if (indent->kind == V_STRING) {
        style->indent = indent->text.data;
        style->indent_bytes = indent->text.bytes;
    } else if (indent->kind == V_INT) {
        if (indent->integer > 64)
            return tsr_jinja_fail(r, "tojson: an indent above 64");
        static const char blank[] =
            "                                                                ";
        style->indent = blank;
        style->indent_bytes = indent->integer > 0 ? (size_t)indent->integer : 0;
    } else if (indent->kind != V_ABSENT && indent->kind != V_NONE) {
        return tsr_jinja_fail(r, "tojson: indent is a number or a string, not %s",
                              tsr_jinja_type(indent));
    }
    return TSR_OK;
}

static tsr_status filter_tojson(value *out, jinja_run *r, const value *v, const value *a)
{
    jinja_json_style style = {.item_separator = {", ", 2}, .key_separator = {": ", 2}};
    style.ascii = tsr_jinja_truth(&a[0]);
    style.sort_keys = tsr_jinja_truth(&a[3]);
    TSR_TRY(json_indent(&style, r, &a[1]));
    if (style.indent)
        style.item_separator.bytes = 1;
    if (a[2].kind != V_ABSENT && a[2].kind != V_NONE) {
        const value *s = &a[2];
        bool two = (s->kind == V_TUPLE || s->kind == V_LIST) && s->list->count == 2 &&
                   s->list->items[0].kind == V_STRING && s->list->items[1].kind == V_STRING;
        if (!two)
            return tsr_jinja_fail(r, "tojson: separators are two strings");
        style.item_separator = s->list->items[0].text;
        style.key_separator = s->list->items[1].text;
    }
    jinja_writer text = {0};
    TSR_TRY(tsr_jinja_tojson(&text, r, v, &style, 0));
    *out = tsr_jinja_written(r, &text);
    return TSR_OK;
}

static tsr_status cased(value *out, jinja_run *r, const value *v, jinja_case how)
{
    jinja_text text;
    TSR_TRY(soft_text(&text, r, v));
    return tsr_jinja_case(out, r, text, how);
}

static tsr_status filter_upper(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    return cased(out, r, v, CASE_UPPER);
}

static tsr_status filter_lower(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    return cased(out, r, v, CASE_LOWER);
}

static tsr_status filter_capitalize(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    return cased(out, r, v, CASE_CAPITALIZE);
}

static tsr_status filter_title(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    return cased(out, r, v, CASE_TITLE_FILTER);
}

static tsr_status filter_default(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)r;
    bool missing = v->kind == V_UNDEFINED || (tsr_jinja_truth(&a[1]) && !tsr_jinja_truth(v));
    *out = !missing ? *v : a[0].kind == V_ABSENT ? tsr_jinja_text("", 0) : a[0];
    return TSR_OK;
}

tsr_status tsr_jinja_attribute(value *out, jinja_run *r, const value *v, const value *path)
{
    *out = *v;
    TSR_TRY(tsr_jinja_scan_values(r, path, 1));
    if (path->kind == V_INT)
        return tsr_jinja_get_item(out, r, *v, *path);
    if (path->kind != V_STRING)
        return tsr_jinja_fail(r, "the name of an attribute is a string, not %s",
                              tsr_jinja_type(path));
    for (size_t at = 0; at <= path->text.bytes;) {
        size_t end = at;
        bool digits = true;
        for (; end < path->text.bytes && path->text.data[end] != '.'; end++)
            digits = digits && path->text.data[end] >= '0' && path->text.data[end] <= '9';
        value key = tsr_jinja_text(path->text.data + at, end - at);
        if (digits && end > at && end - at < 18) {
            int64_t index = 0;
            for (size_t i = at; i < end; i++)
                index = 10 * index + (path->text.data[i] - '0');
            key = tsr_jinja_int(index);
        }
        TSR_TRY(tsr_jinja_get_item(out, r, *out, key));
        at = end + 1;
    }
    return TSR_OK;
}

static tsr_status filter_join(value *out, jinja_run *r, const value *v, const value *a)
{
    jinja_list *list;
    jinja_text separator = {"", 0};
    TSR_TRY(tsr_jinja_iterate(&list, r, v));
    if (a[0].kind != V_ABSENT)
        TSR_TRY(soft_text(&separator, r, &a[0]));
    if (a[1].kind != V_ABSENT && a[1].kind != V_NONE) {
        value parts;
        TSR_TRY(tsr_jinja_list(&parts, r, V_LIST, list->count));
        for (size_t i = 0; i < list->count; i++)
            TSR_TRY(tsr_jinja_attribute(&parts.list->items[i], r, &list->items[i], &a[1]));
        list = parts.list;
    }
    return tsr_jinja_join(out, r, separator, list, false);
}

static tsr_status filter_first(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    jinja_list *list;
    if (v->kind == V_ITER && !v->list->consumed && v->list->count) {
        *out = v->list->items[0]; /* takes one from the generator and leaves the rest */
        v->list->items++;
        v->list->count--;
        return TSR_OK;
    }
    TSR_TRY(tsr_jinja_iterate(&list, r, v));
    if (!list->count)
        return tsr_jinja_undefined(out, r, "No first item, sequence was empty.");
    *out = list->items[0];
    return TSR_OK;
}

static tsr_status filter_last(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    jinja_list *list;
    if (v->kind == V_ITER)
        return tsr_jinja_fail(r, "a generator has no last element: use the filter list first");
    TSR_TRY(tsr_jinja_iterate(&list, r, v));
    if (!list->count)
        return tsr_jinja_undefined(out, r, "No last item, sequence was empty.");
    *out = list->items[list->count - 1];
    return TSR_OK;
}

static tsr_status filter_string(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    return tsr_jinja_to_text(out, r, v);
}

static tsr_status filter_safe(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    TSR_TRY(tsr_jinja_to_text(out, r, v));
    out->safe = true;
    return TSR_OK;
}

static tsr_status filter_list(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    jinja_list *list;
    TSR_TRY(tsr_jinja_iterate(&list, r, v));
    *out = (value){.kind = V_LIST, .list = list}; /* never changed, so that it may be shared */
    return TSR_OK;
}

static tsr_status filter_items(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    if (v->kind == V_UNDEFINED)
        return tsr_jinja_list(out, r, V_ITER, 0);
    if (v->kind != V_DICT)
        return tsr_jinja_fail(r, "items needs a dict, not %s", tsr_jinja_type(v));
    TSR_TRY(tsr_jinja_list(out, r, V_ITER, v->dict->count));
    for (size_t i = 0; i < v->dict->count; i++) {
        value *pair = &out->list->items[i];
        TSR_TRY(tsr_jinja_list(pair, r, V_TUPLE, 2));
        pair->list->items[0] = v->dict->keys[i];
        pair->list->items[1] = v->dict->values[i];
    }
    return TSR_OK;
}

static tsr_status filter_reverse(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    jinja_list *list;
    TSR_TRY(tsr_jinja_iterate(&list, r, v));
    TSR_TRY(tsr_jinja_list(out, r, V_ITER, list->count));
    for (size_t i = 0; i < list->count; i++)
        out->list->items[i] = list->items[list->count - 1 - i];
    return v->kind == V_STRING ? tsr_jinja_join(out, r, (jinja_text){"", 0}, out->list, true)
                               : TSR_OK;
}

static tsr_status filter_replace(value *out, jinja_run *r, const value *v, const value *a)
{
    jinja_text text, old, with;
    TSR_TRY(soft_text(&text, r, v));
    TSR_TRY(soft_text(&old, r, &a[0]));
    TSR_TRY(soft_text(&with, r, &a[1]));
    return tsr_jinja_replace(out, r, text, old, with, &a[2]);
}

/* ---- numbers ---- */

/* A number in text as float() reads it, in plain notation; false if it is none. */
static tsr_status read_number(bool *ok, bool *whole, double *real, int64_t *integer, jinja_run *r,
                              jinja_text text)
{
    char copy[64];
    value v;
    TSR_TRY(tsr_jinja_strip(&v, r, text, &(value){.kind = V_ABSENT}, STRIP_BOTH));
    *ok = v.text.bytes > 0;
    *whole = true;
    size_t length = v.text.bytes;
    if (*ok && (length >= sizeof copy || memchr(v.text.data, '_', length)))
        return tsr_jinja_fail(r, "a number of this form is not supported");
    memcpy(copy, v.text.data, length);
    copy[length] = 0;
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)copy[i] >= 0x80)
            return tsr_jinja_fail(r, "a number of this form is not supported");
        if (!strchr("+-0123456789.eE", copy[i]))
            *ok = false;
        if (strchr(".eE", copy[i]))
            *whole = false;
    }
    char *end = copy;
    errno = 0;
    if (*ok && *whole)
        *integer = strtoll(copy, &end, 10);
    if (errno)
        return tsr_jinja_fail(r, "an integer beyond 64 bits");
    if (*ok)
        *real = strtod(copy, &end);
    *ok = *ok && end > copy && *end == 0;
    return TSR_OK;
}

static tsr_status filter_int(value *out, jinja_run *r, const value *v, const value *a)
{
    value fallback = a[0].kind == V_ABSENT ? tsr_jinja_int(0) : a[0];
    double real = 0;
    int64_t integer = 0;
    bool ok = true, whole = false;
    if (v->kind == V_UNDEFINED)
        return tsr_jinja_fail(r, "%s", v->text.data);
    if (v->kind == V_INT || v->kind == V_BOOL) {
        *out = tsr_jinja_int(v->kind == V_INT ? v->integer : v->boolean);
        return TSR_OK;
    }
    if (v->kind == V_STRING)
        TSR_TRY(read_number(&ok, &whole, &real, &integer, r, v->text));
    else if (v->kind == V_FLOAT)
        real = v->real;
    else
        ok = false;
    if (ok && whole) {
        *out = tsr_jinja_int(integer);
        return TSR_OK;
    }
    ok = ok && isfinite(real);
    if (ok && fabs(real) >= 9.2e18)
        return tsr_jinja_fail(r, "an integer beyond 64 bits");
    *out = ok ? tsr_jinja_int((int64_t)real) : fallback;
    return TSR_OK;
}

static tsr_status filter_float(value *out, jinja_run *r, const value *v, const value *a)
{
    value fallback = a[0].kind == V_ABSENT ? tsr_jinja_float(0) : a[0];
    double real = 0;
    int64_t integer = 0;
    bool ok = true, whole;
    if (v->kind == V_UNDEFINED)
        return tsr_jinja_fail(r, "%s", v->text.data);
    if (v->kind == V_STRING)
        TSR_TRY(read_number(&ok, &whole, &real, &integer, r, v->text));
    else if (v->kind == V_INT)
        real = (double)v->integer;
    else if (v->kind == V_BOOL)
        real = v->boolean;
    else if (v->kind == V_FLOAT)
        real = v->real;
    else
        ok = false;
    *out = ok ? tsr_jinja_float(real) : fallback;
    return TSR_OK;
}

static tsr_status filter_abs(value *out, jinja_run *r, const value *v, const value *a)
{
    (void)a;
    if (v->kind != V_FLOAT && (v->kind != V_INT || v->integer == INT64_MIN))
        return tsr_jinja_fail(r, "abs of a %s", tsr_jinja_type(v));
    *out = v->kind == V_FLOAT ? tsr_jinja_float(fabs(v->real))
                              : tsr_jinja_int(v->integer < 0 ? -v->integer : v->integer);
    return TSR_OK;
}

/* ---- those that take a test or a filter ---- */

static jinja_args rest_of(const jinja_args *args, size_t skip)
{
    skip = skip < args->count ? skip : args->count;
    return (jinja_args){args->values + skip, args->names + skip, args->count - skip};
}

/* What is false, none or a number too, is empty to these filters. */
static tsr_status items_of(jinja_list **out, jinja_run *r, const value *v)
{
    value none;
    if (tsr_jinja_truth(v))
        return tsr_jinja_iterate(out, r, v);
    TSR_TRY(tsr_jinja_list(&none, r, V_LIST, 0));
    *out = none.list;
    return TSR_OK;
}

/* select, reject (with_attribute: selectattr, rejectattr). */
static tsr_status choose(value *out, jinja_run *r, const value *v, const jinja_args *args,
                         bool with_attribute, bool wanted)
{
    jinja_list *list;
    int which = -1;
    if (with_attribute && !args->count)
        return tsr_jinja_fail(r, "the name of an attribute is missing");
    jinja_args named = rest_of(args, with_attribute);
    if (named.count && named.values[0].kind == V_STRING)
        which = tsr_jinja_test_find(named.values[0].text);
    if (named.count && which < 0)
        return tsr_jinja_fail(r, "the name of a test is not a string that is known");
    jinja_args rest = rest_of(&named, 1);
    TSR_TRY(items_of(&list, r, v));
    TSR_TRY(tsr_jinja_list(out, r, V_ITER, list->count));
    out->list->count = 0;
    for (size_t i = 0; i < list->count; i++) {
        value subject = list->items[i];
        bool yes;
        if (with_attribute)
            TSR_TRY(tsr_jinja_attribute(&subject, r, &list->items[i], &args->values[0]));
        if (which < 0)
            yes = tsr_jinja_truth(&subject);
        else
            TSR_TRY(tsr_jinja_test(&yes, r, which, subject, &rest));
        if (yes == wanted)
            out->list->items[out->list->count++] = list->items[i];
    }
    return TSR_OK;
}

static tsr_status map(value *out, jinja_run *r, const value *v, const jinja_args *args)
{
    jinja_list *list;
    value bound[2];
    int which = -1;
    bool by_attribute = args->count && args->names[0].data != NULL;
    if (by_attribute)
        TSR_TRY(tsr_jinja_bind(bound, r, "map", "attribute! default", args));
    else if (args->count && args->values[0].kind == V_STRING)
        which = tsr_jinja_filter_find(args->values[0].text);
    if (!by_attribute && which < 0)
        return tsr_jinja_fail(r, "map needs an attribute or the name of a filter");
    jinja_args rest = rest_of(args, 1);
    TSR_TRY(items_of(&list, r, v));
    TSR_TRY(tsr_jinja_list(out, r, V_ITER, list->count));
    for (size_t i = 0; i < list->count; i++) {
        value *item = &out->list->items[i];
        if (!by_attribute) {
            TSR_TRY(tsr_jinja_filter(item, r, which, list->items[i], &rest));
            continue;
        }
        TSR_TRY(tsr_jinja_attribute(item, r, &list->items[i], &bound[0]));
        if (item->kind == V_UNDEFINED && bound[1].kind != V_ABSENT)
            *item = bound[1];
    }
    return TSR_OK;
}

/* Of a filter with a function its subject and arguments are charged as read, but for those that only look at what
 * kind of value they have. */
enum { READS, LOOKS, SELECT, REJECT, SELECTATTR, REJECTATTR, MAP };

static const struct {
    const char *name, *spec;
    filter_function function;
    int kind;
} filters[] = {
    {"trim", "chars", filter_trim},
    {"length", "", filter_length},
    {"count", "", filter_length},
    {"tojson", "ensure_ascii indent separators sort_keys", filter_tojson},
    {"upper", "", filter_upper},
    {"lower", "", filter_lower},
    {"capitalize", "", filter_capitalize},
    {"title", "", filter_title},
    {"default", "default_value boolean", filter_default, LOOKS},
    {"d", "default_value boolean", filter_default, LOOKS},
    {"join", "d attribute", filter_join},
    {"first", "", filter_first},
    {"last", "", filter_last},
    {"string", "", filter_string, LOOKS},
    {"safe", "", filter_safe, LOOKS},
    {"list", "", filter_list},
    {"items", "", filter_items},
    {"reverse", "", filter_reverse},
    {"replace", "old! new! count", filter_replace},
    {"int", "default", filter_int},
    {"float", "default", filter_float},
    {"abs", "", filter_abs},
    {"sort", "reverse case_sensitive attribute", tsr_jinja_filter_sort},
    {"dictsort", "case_sensitive by reverse", tsr_jinja_filter_dictsort},
    {"unique", "case_sensitive attribute", tsr_jinja_filter_unique},
    {"min", "case_sensitive attribute", tsr_jinja_filter_min},
    {"max", "case_sensitive attribute", tsr_jinja_filter_max},
    {"indent", "width first blank", tsr_jinja_filter_indent},
    {"select", NULL, NULL, SELECT},
    {"reject", NULL, NULL, REJECT},
    {"selectattr", NULL, NULL, SELECTATTR},
    {"rejectattr", NULL, NULL, REJECTATTR},
    {"map", NULL, NULL, MAP},
};

int tsr_jinja_filter_find(jinja_text name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (tsr_jinja_is_text(name, filters[i].name))
            return (int)i;
    return -1;
}

tsr_status tsr_jinja_filter(value *out, jinja_run *r, int which, value subject,
                            const jinja_args *args)
{
    value bound[MOST_PARAMETERS];
    int kind = filters[which].kind;
    TSR_TRY(tsr_jinja_spend(r, 1));
    if (kind == MAP)
        return map(out, r, &subject, args);
    if (kind >= SELECT)
        return choose(out, r, &subject, args, kind == SELECTATTR || kind == REJECTATTR,
                      kind == SELECT || kind == SELECTATTR);
    if (kind == READS) {
        TSR_TRY(tsr_jinja_scan_values(r, &subject, 1));
        TSR_TRY(tsr_jinja_scan_values(r, args->values, args->count));
    }
    TSR_TRY(tsr_jinja_bind(bound, r, filters[which].name, filters[which].spec, args));
    return filters[which].function(out, r, &subject, bound);
}

const char *tsr_jinja_filter_name_at(size_t index)
{
    return index < sizeof filters / sizeof *filters ? filters[index].name : NULL;
}
