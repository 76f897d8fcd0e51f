/*
 * method.c: global functions, and the methods of strings, dicts and lists.
 */
#include "base/unicode.h"
#include "jinja/jinja.h"

#include <string.h>
#include <time.h>

/* ---- global functions ---- */

enum { G_RANGE, G_NAMESPACE, G_RAISE, G_STRFTIME };
static const char *const globals[] = {"range", "namespace", "raise_exception", "strftime_now"};

bool tsr_jinja_global(value *out, jinja_text name)
{
    for (int i = 0; i < 4; i++) {
        if (!tsr_jinja_is_text(name, globals[i]))
            continue;
        *out = (value){.kind = V_GLOBAL, .method = i};
        return true;
    }
    return false;
}

#define RANGE_LIMIT 100000 /* the sandbox's own */

static tsr_status range(value *out, jinja_run *r, const jinja_args *args)
{
    value a[3];
    TSR_TRY(tsr_jinja_bind(a, r, "range", "start! stop step", args));
    for (int i = 0; i < 3; i++)
        if (a[i].kind != V_INT && (i == 0 || a[i].kind != V_ABSENT))
            return tsr_jinja_fail(r, "range takes integers, not %s", tsr_jinja_type(&a[i]));
    int64_t begin = a[1].kind == V_ABSENT ? 0 : a[0].integer;
    int64_t end = a[1].kind == V_ABSENT ? a[0].integer : a[1].integer;
    int64_t step = a[2].kind == V_ABSENT ? 1 : a[2].integer;
    if (step == 0)
        return tsr_jinja_fail(r, "range: the step is 0");
    __int128 distance = step > 0 ? (__int128)end - begin : (__int128)begin - end;
    __int128 stride = step > 0 ? step : -(__int128)step;
    __int128 count = distance > 0 ? (distance - 1) / stride + 1 : 0;
    if (count > RANGE_LIMIT)
        return tsr_jinja_fail(r, "range: more than %d elements", RANGE_LIMIT);
    TSR_TRY(tsr_jinja_list(out, r, V_VIEW, (size_t)count));
    for (int64_t i = 0; i < (int64_t)count; i++)
        out->list->items[i] = tsr_jinja_int((int64_t)(begin + (__int128)i * step));
    return TSR_OK;
}

static tsr_status namespace(value *out, jinja_run *r, const jinja_args *args)
{
    TSR_TRY(tsr_jinja_dict(out, r, V_NAMESPACE));
    for (size_t i = 0; i < args->count; i++) {
        const value *v = &args->values[i];
        if (args->names[i].data) {
            TSR_TRY(tsr_jinja_dict_set(
                r, out->dict, tsr_jinja_text(args->names[i].data, args->names[i].bytes), *v));
            continue;
        }
        if (v->kind != V_DICT)
            return tsr_jinja_fail(r, "namespace takes named values or a dict");
        for (size_t j = 0; j < v->dict->count; j++)
            TSR_TRY(tsr_jinja_dict_set(r, out->dict, v->dict->keys[j], v->dict->values[j]));
    }
    return TSR_OK;
}

/* One directive of strftime in English, whatever the locale, with its % in front. */
static tsr_status directive(jinja_writer *out, jinja_run *r, const struct tm *t, const char *text,
                            size_t bytes)
{
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    const char *month = months[t->tm_mon % 12], *day = days[t->tm_wday % 7];
    switch (bytes > 1 ? text[1] : 0) {
    case 'd':
        return tsr_jinja_putf(r, out, "%02d", t->tm_mday);
    case 'm':
        return tsr_jinja_putf(r, out, "%02d", t->tm_mon + 1);
    case 'y':
        return tsr_jinja_putf(r, out, "%02d", (t->tm_year + 1900) % 100);
    case 'H':
        return tsr_jinja_putf(r, out, "%02d", t->tm_hour);
    case 'M':
        return tsr_jinja_putf(r, out, "%02d", t->tm_min);
    case 'S':
        return tsr_jinja_putf(r, out, "%02d", t->tm_sec);
    case 'Y':
        return tsr_jinja_putf(r, out, "%d", t->tm_year + 1900);
    case 'j':
        return tsr_jinja_putf(r, out, "%03d", t->tm_yday + 1);
    case 'b':
        return tsr_jinja_put(r, out, month, 3);
    case 'B':
        return tsr_jinja_puts(r, out, month);
    case 'a':
        return tsr_jinja_put(r, out, day, 3);
    case 'A':
        return tsr_jinja_puts(r, out, day);
    case '%':
        return tsr_jinja_puts(r, out, "%");
    default:
        return tsr_jinja_fail(r, "strftime_now: the directive %.*s is not supported",
                              bytes > 1 ? 2 : 1, text);
    }
}

static tsr_status strftime_now(value *out, jinja_run *r, const jinja_args *args)
{
    value format;
    struct tm t;
    jinja_writer text = {0};
    TSR_TRY(tsr_jinja_bind(&format, r, "strftime_now", "format!", args));
    if (format.kind != V_STRING)
        return tsr_jinja_fail(r, "strftime_now takes a string");
    if (!r->now)
        return tsr_jinja_fail(r, "the template asks for the date (strftime_now): give it with "
                                 "chat_template_date, such as 2024-07-26, so that every run reads "
                                 "the same text");
    r->rendering->dated = true;
    time_t now = (time_t)r->now;
    if (!gmtime_r(&now, &t))
        return tsr_jinja_fail(r, "strftime_now: no such time");
    const char *p = format.text.data;
    for (size_t i = 0, bytes = format.text.bytes; i < bytes; i++) {
        if (p[i] != '%')
            TSR_TRY(tsr_jinja_put(r, &text, p + i, 1));
        else
            TSR_TRY(directive(&text, r, &t, p + i, bytes - i));
        i += p[i] == '%';
    }
    *out = tsr_jinja_written(r, &text);
    return TSR_OK;
}

tsr_status tsr_jinja_call_global(value *out, jinja_run *r, int which, const jinja_args *args)
{
    value message;
    switch (which) {
    case G_RANGE:
        return range(out, r, args);
    case G_NAMESPACE:
        return namespace(out, r, args);
    case G_STRFTIME:
        return strftime_now(out, r, args);
    default:
        TSR_TRY(tsr_jinja_bind(&message, r, "raise_exception", "message!", args));
        TSR_TRY(tsr_jinja_to_text(&message, r, &message));
        return tsr_jinja_fail(r, "the template refuses the conversation: %.*s",
                              (int)(message.text.bytes < 800 ? message.text.bytes : 800),
                              message.text.data);
    }
}

/* ---- methods ---- */

typedef enum {
    M_STRIP,
    M_LSTRIP,
    M_RSTRIP,
    M_SPLIT,
    M_RSPLIT,
    M_STARTSWITH,
    M_ENDSWITH,
    M_REPLACE,
    M_UPPER,
    M_LOWER,
    M_TITLE,
    M_CAPITALIZE,
    M_JOIN,
    M_FIND,
    M_COUNT,
    M_REMOVEPREFIX,
    M_REMOVESUFFIX,
    M_GET,
    M_ITEMS,
    M_KEYS,
    M_VALUES,
    M_REFUSED
} which_method;

static const struct {
    tsr_jinja_kind kind;
    const char *name, *spec;
    which_method which;
} methods[] = {
    {V_STRING, "strip", "chars", M_STRIP},
    {V_STRING, "lstrip", "chars", M_LSTRIP},
    {V_STRING, "rstrip", "chars", M_RSTRIP},
    {V_STRING, "split", "sep maxsplit", M_SPLIT},
    {V_STRING, "rsplit", "sep maxsplit", M_RSPLIT},
    {V_STRING, "startswith", "prefix!", M_STARTSWITH},
    {V_STRING, "endswith", "suffix!", M_ENDSWITH},
    {V_STRING, "replace", "old! new! count", M_REPLACE},
    {V_STRING, "upper", "", M_UPPER},
    {V_STRING, "lower", "", M_LOWER},
    {V_STRING, "title", "", M_TITLE},
    {V_STRING, "capitalize", "", M_CAPITALIZE},
    {V_STRING, "join", "iterable!", M_JOIN},
    {V_STRING, "find", "sub!", M_FIND},
    {V_STRING, "count", "sub!", M_COUNT},
    {V_STRING, "removeprefix", "prefix!", M_REMOVEPREFIX},
    {V_STRING, "removesuffix", "suffix!", M_REMOVESUFFIX},
    {V_DICT, "get", "key! default", M_GET},
    {V_DICT, "items", "", M_ITEMS},
    {V_DICT, "keys", "", M_KEYS},
    {V_DICT, "values", "", M_VALUES},
};

/* Python's other attributes of these types: there, so that they are not taken for undefined. */
static const char text_refused[] =
    " casefold center encode expandtabs format format_map index isalnum isalpha isascii isdecimal "
    "isdigit isidentifier islower isnumeric isprintable isspace istitle isupper ljust maketrans "
    "partition rfind rindex rjust rpartition splitlines swapcase translate zfill ";
static const char dict_refused[] = " clear copy fromkeys pop popitem setdefault update ";
static const char list_refused[] =
    " append clear copy count extend index insert pop remove reverse sort ";

static bool word_in(const char *words, jinja_text name)
{
    char wanted[32];
    if (name.bytes + 3 > sizeof wanted || memchr(name.data, ' ', name.bytes))
        return false;
    wanted[0] = ' ';
    memcpy(wanted + 1, name.data, name.bytes);
    memcpy(wanted + 1 + name.bytes, " ", 2);
    return strstr(words, wanted) != NULL;
}

tsr_status tsr_jinja_method(value *out, jinja_run *r, const value *self, jinja_text name)
{
    const char *refused = self->kind == V_STRING                          ? text_refused
                          : self->kind == V_DICT                          ? dict_refused
                          : self->kind == V_LIST || self->kind == V_TUPLE ? list_refused
                                                                          : " ";
    *out = (value){.kind = V_ABSENT};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (methods[i].kind != self->kind || !tsr_jinja_is_text(name, methods[i].name))
            continue;
        value *copy;
        TSR_TRY(tsr_jinja_alloc(&copy, &r->arena, 1, sizeof *copy));
        *copy = *self;
        *out = (value){.kind = V_METHOD, .method = (int)i, .self = copy};
        return TSR_OK;
    }
    if (name.bytes && word_in(refused, name))
        return tsr_jinja_fail(r, "the method %s.%.*s is not supported", tsr_jinja_type(self),
                              (int)name.bytes, name.data);
    return TSR_OK;
}

static bool affix(jinja_text text, jinja_text part, bool at_end)
{
    return part.bytes <= text.bytes &&
           !memcmp(text.data + (at_end ? text.bytes - part.bytes : 0), part.data, part.bytes);
}

/* startswith and endswith take a string or a tuple of them. */
static tsr_status has_affix(value *out, jinja_run *r, jinja_text text, const value *part,
                            bool at_end)
{
    bool tuple = part->kind == V_TUPLE, yes = false;
    size_t count = tuple ? part->list->count : 1;
    const value *parts = tuple ? part->list->items : part;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].kind != V_STRING)
            return tsr_jinja_fail(r, "%s needs a string, not %s",
                                  at_end ? "endswith" : "startswith", tsr_jinja_type(&parts[i]));
        TSR_TRY(tsr_jinja_scan_values(r, &parts[i], 1));
        yes = yes || affix(text, parts[i].text, at_end);
    }
    *out = tsr_jinja_bool(yes);
    return TSR_OK;
}

static tsr_status search(value *out, jinja_run *r, jinja_text text, jinja_text part, bool count)
{
    if (!part.bytes)
        return tsr_jinja_fail(r, "searching the empty string is not supported");
    int64_t found = 0;
    size_t at = 0;
    for (;;) {
        const char *hit = tsr_jinja_find(text, at, part);
        if (!count) {
            int64_t index =
                hit ? (int64_t)tsr_utf8_count(text.data, (size_t)(hit - text.data)) : -1;
            *out = tsr_jinja_int(index);
            return TSR_OK;
        }
        if (!hit)
            break;
        found++;
        at = (size_t)(hit - text.data) + part.bytes;
    }
    *out = tsr_jinja_int(found);
    return TSR_OK;
}

static tsr_status remove_affix(value *out, jinja_text text, jinja_text part, bool at_end)
{
    size_t less = affix(text, part, at_end) ? part.bytes : 0;
    *out = tsr_jinja_text(text.data + (at_end ? 0 : less), text.bytes - less);
    return TSR_OK;
}

static tsr_status needs_text(jinja_run *r, const char *what, const value *v)
{
    return v->kind == V_STRING
               ? TSR_OK
               : tsr_jinja_fail(r, "%s needs a string, not %s", what, tsr_jinja_type(v));
}

static tsr_status text_method(value *out, jinja_run *r, which_method which, jinja_text text,
                              const value *a)
{
    jinja_list *list;
    switch (which) {
    case M_STRIP:
        return tsr_jinja_strip(out, r, text, &a[0], STRIP_BOTH);
    case M_LSTRIP:
        return tsr_jinja_strip(out, r, text, &a[0], STRIP_LEFT);
    case M_RSTRIP:
        return tsr_jinja_strip(out, r, text, &a[0], STRIP_RIGHT);
    case M_SPLIT:
    case M_RSPLIT:
        return tsr_jinja_split(out, r, text, &a[0], &a[1], which == M_RSPLIT);
    case M_STARTSWITH:
    case M_ENDSWITH:
        return has_affix(out, r, text, &a[0], which == M_ENDSWITH);
    case M_UPPER:
        return tsr_jinja_case(out, r, text, CASE_UPPER);
    case M_LOWER:
        return tsr_jinja_case(out, r, text, CASE_LOWER);
    case M_TITLE:
        return tsr_jinja_case(out, r, text, CASE_TITLE);
    case M_CAPITALIZE:
        return tsr_jinja_case(out, r, text, CASE_CAPITALIZE);
    case M_JOIN:
        TSR_TRY(tsr_jinja_iterate(&list, r, &a[0]));
        return tsr_jinja_join(out, r, text, list, true);
    case M_REPLACE:
        TSR_TRY(needs_text(r, "replace", &a[0]));
        TSR_TRY(needs_text(r, "replace", &a[1]));
        return tsr_jinja_replace(out, r, text, a[0].text, a[1].text, &a[2]);
    default:
        TSR_TRY(needs_text(r, "the method", &a[0]));
        if (which == M_FIND || which == M_COUNT)
            return search(out, r, text, a[0].text, which == M_COUNT);
        return remove_affix(out, text, a[0].text, which == M_REMOVESUFFIX);
    }
}

static tsr_status dict_method(value *out, jinja_run *r, which_method which, const jinja_dict *dict,
                              const value *a)
{
    if (which == M_GET) {
        const value *found;
        TSR_TRY(tsr_jinja_dict_get(&found, r, dict, a[0]));
        *out = found ? *found : a[1].kind == V_ABSENT ? tsr_jinja_none() : a[1];
        return TSR_OK;
    }
    TSR_TRY(tsr_jinja_list(out, r, V_VIEW, dict->count));
    for (size_t i = 0; i < dict->count; i++) {
        value *item = &out->list->items[i];
        *item = which == M_VALUES ? dict->values[i] : dict->keys[i];
        if (which != M_ITEMS)
            continue;
        TSR_TRY(tsr_jinja_list(item, r, V_TUPLE, 2));
        item->list->items[0] = dict->keys[i];
        item->list->items[1] = dict->values[i];
    }
    return TSR_OK;
}

tsr_status tsr_jinja_call_method(value *out, jinja_run *r, const value *method,
                                 const jinja_args *args)
{
    value a[3];
    const char *name = methods[method->method].name;
    which_method which = methods[method->method].which;
    const value *self = method->self;
    TSR_TRY(tsr_jinja_scan_values(r, self, 1));
    TSR_TRY(tsr_jinja_scan_values(r, args->values, args->count));
    TSR_TRY(tsr_jinja_bind(a, r, name, methods[method->method].spec, args));
    if (self->kind == V_STRING && self->safe)
        return tsr_jinja_fail(r, "the method %s after the filter safe is not supported", name);
    if (self->kind == V_STRING)
        return text_method(out, r, which, self->text, a);
    return dict_method(out, r, which, self->dict, a);
}

const char *tsr_jinja_method_name_at(size_t index)
{
    return index < sizeof methods / sizeof *methods ? methods[index].name : NULL;
}
