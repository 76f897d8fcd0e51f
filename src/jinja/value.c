/*
 * value.c: the values of a rendering: how they are made, equality, order, length, elements.
 */
#include "base/unicode.h"
#include "jinja/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- making values ---- */

#define UNDEFINED_STEPS 8 /* its message is written when it is made */

value tsr_jinja_none(void)
{
    return (value){.kind = V_NONE};
}

value tsr_jinja_bool(bool b)
{
    return (value){.kind = V_BOOL, .boolean = b};
}

value tsr_jinja_int(int64_t i)
{
    return (value){.kind = V_INT, .integer = i};
}

value tsr_jinja_float(double d)
{
    return (value){.kind = V_FLOAT, .real = d};
}

value tsr_jinja_text(const char *data, size_t bytes)
{
    return (value){.kind = V_STRING, .text = {data, bytes}};
}

tsr_status tsr_jinja_copy(value *out, jinja_run *r, const char *data, size_t bytes)
{
    char *copy;
    TSR_TRY(tsr_jinja_alloc(&copy, &r->arena, bytes + 1, 1));
    if (bytes)
        memcpy(copy, data, bytes);
    *out = tsr_jinja_text(copy, bytes);
    return TSR_OK;
}

tsr_status tsr_jinja_undefined(value *out, jinja_run *r, const char *format, ...)
{
    char message[256];
    va_list args;
    TSR_TRY(tsr_jinja_spend(r, UNDEFINED_STEPS));
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    TSR_TRY(tsr_jinja_copy(out, r, message, strlen(message)));
    out->kind = V_UNDEFINED;
    return TSR_OK;
}

tsr_status tsr_jinja_list(value *out, jinja_run *r, tsr_jinja_kind kind, size_t count)
{
    jinja_list *list;
    TSR_TRY(tsr_jinja_spend(r, count));
    TSR_TRY(tsr_jinja_alloc(&list, &r->arena, 1, sizeof *list));
    TSR_TRY(tsr_jinja_alloc(&list->items, &r->arena, count + 1, sizeof *list->items));
    list->count = count;
    *out = (value){.kind = kind, .list = list};
    return TSR_OK;
}

static tsr_status object_from_json(value *out, jinja_run *r, const json_t *json, int depth)
{
    TSR_TRY(tsr_jinja_dict(out, r, V_DICT));
    /* Iteration does not change the object; jansson has no const form of it. */
    for (void *i = json_object_iter((json_t *)(uintptr_t)json); i;
         i = json_object_iter_next((json_t *)(uintptr_t)json, i)) {
        const char *key = json_object_iter_key(i);
        value item;
        TSR_TRY(tsr_jinja_from_json(&item, r, json_object_iter_value(i), depth + 1));
        TSR_TRY(tsr_jinja_dict_add(r, out->dict, tsr_jinja_text(key, strlen(key)), item));
    }
    return TSR_OK;
}

tsr_status tsr_jinja_from_json(value *out, jinja_run *r, const json_t *json, int depth)
{
    TSR_TRY(tsr_jinja_spend(r, 1));
    if (depth > JINJA_DEPTH)
        return tsr_jinja_fail(r, "the data is nested deeper than %d", JINJA_DEPTH);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return object_from_json(out, r, json, depth);
    case JSON_ARRAY:
        TSR_TRY(tsr_jinja_list(out, r, V_LIST, json_array_size(json)));
        for (size_t i = 0; i < out->list->count; i++)
            TSR_TRY(
                tsr_jinja_from_json(&out->list->items[i], r, json_array_get(json, i), depth + 1));
        return TSR_OK;
    case JSON_STRING:
        *out = tsr_jinja_text(json_string_value(json), json_string_length(json));
        return TSR_OK;
    case JSON_INTEGER:
        *out = tsr_jinja_int(json_integer_value(json));
        return TSR_OK;
    case JSON_REAL:
        *out = tsr_jinja_float(json_real_value(json));
        return TSR_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = tsr_jinja_bool(json_is_true(json));
        return TSR_OK;
    case JSON_NULL:
        break;
    }
    *out = tsr_jinja_none();
    return TSR_OK;
}

/* ---- asking values ---- */

const char *tsr_jinja_type(const value *v)
{
    static const char *const names[] = {[V_ABSENT] = "nothing",
                                        [V_UNDEFINED] = "Undefined",
                                        [V_NONE] = "None",
                                        [V_BOOL] = "bool",
                                        [V_INT] = "int",
                                        [V_FLOAT] = "float",
                                        [V_STRING] = "str",
                                        [V_LIST] = "list",
                                        [V_TUPLE] = "tuple",
                                        [V_VIEW] = "view",
                                        [V_ITER] = "generator",
                                        [V_DICT] = "dict",
                                        [V_NAMESPACE] = "Namespace",
                                        [V_MACRO] = "Macro",
                                        [V_METHOD] = "method",
                                        [V_GLOBAL] = "function",
                                        [V_LOOP] = "LoopContext"};
    return names[v->kind];
}

bool tsr_jinja_is_text(jinja_text a, const char *b)
{
    return a.bytes == strlen(b) && !memcmp(a.data, b, a.bytes);
}

bool tsr_jinja_same_text(jinja_text a, jinja_text b)
{
    return a.bytes == b.bytes && (a.bytes == 0 || !memcmp(a.data, b.data, a.bytes));
}

bool tsr_jinja_truth(const value *v)
{
    switch (v->kind) {
    case V_ABSENT:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v->boolean;
    case V_INT:
        return v->integer != 0;
    case V_FLOAT:
        return v->real != 0;
    case V_STRING:
        return v->text.bytes != 0;
    case V_LIST:
    case V_TUPLE:
    case V_VIEW:
        return v->list->count != 0;
    case V_DICT:
        return v->dict->count != 0;
    default:
        return true;
    }
}

static bool is_number(const value *v)
{
    return v->kind == V_BOOL || v->kind == V_INT || v->kind == V_FLOAT;
}

/* -1, 0, 1, or 2 for a NaN. */
static int compare_numbers(const value *a, const value *b)
{
    if (a->kind != V_FLOAT && b->kind != V_FLOAT) {
        int64_t x = a->kind == V_BOOL ? a->boolean : a->integer;
        int64_t y = b->kind == V_BOOL ? b->boolean : b->integer;
        return (x > y) - (x < y);
    }
    /* x86's and Arm's long double hold every int64 exactly. */
    long double x = a->kind == V_FLOAT  ? (long double)a->real
                    : a->kind == V_BOOL ? (long double)a->boolean
                                        : (long double)a->integer;
    long double y = b->kind == V_FLOAT  ? (long double)b->real
                    : b->kind == V_BOOL ? (long double)b->boolean
                                        : (long double)b->integer;
    return x != x || y != y ? 2 : (x > y) - (x < y);
}

static tsr_status equal_dicts(bool *out, jinja_run *r, const jinja_dict *a, const jinja_dict *b)
{
    *out = a->count == b->count;
    for (size_t i = 0; i < a->count && *out; i++) {
        const value *other;
        TSR_TRY(tsr_jinja_dict_get(&other, r, b, a->keys[i]));
        *out = other != NULL;
        if (other)
            TSR_TRY(tsr_jinja_equal(out, r, &a->values[i], other));
    }
    return TSR_OK;
}

static tsr_status equal_lists(bool *out, jinja_run *r, const jinja_list *a, const jinja_list *b)
{
    *out = a->count == b->count;
    for (size_t i = 0; i < a->count && *out; i++)
        TSR_TRY(tsr_jinja_equal(out, r, &a->items[i], &b->items[i]));
    return TSR_OK;
}

tsr_status tsr_jinja_equal(bool *out, jinja_run *r, const value *a, const value *b)
{
    TSR_TRY(tsr_jinja_spend(r, 1));
    *out = false;
    if (is_number(a) && is_number(b)) {
        *out = compare_numbers(a, b) == 0;
        return TSR_OK;
    }
    if (a->kind != b->kind)
        return TSR_OK;
    switch (a->kind) {
    case V_NONE:
    case V_UNDEFINED:
        *out = true;
        return TSR_OK;
    case V_STRING:
        if (a->text.bytes == b->text.bytes)
            TSR_TRY(tsr_jinja_scan(r, a->text.bytes));
        *out = tsr_jinja_same_text(a->text, b->text);
        return TSR_OK;
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
        /* A failure ends the rendering, so that the depth need not be restored. */
        if (++r->depth > JINJA_RUN_DEPTH)
            return tsr_jinja_fail(r, "a value is nested too deep");
        TSR_TRY(a->kind == V_DICT ? equal_dicts(out, r, a->dict, b->dict)
                                  : equal_lists(out, r, a->list, b->list));
        r->depth--;
        return TSR_OK;
    case V_NAMESPACE:
        *out = a->dict == b->dict;
        return TSR_OK;
    default:
        return tsr_jinja_fail(r, "comparing two values of type %s is not supported",
                              tsr_jinja_type(a));
    }
}

tsr_status tsr_jinja_order(int *out, jinja_run *r, const value *a, const value *b)
{
    TSR_TRY(tsr_jinja_spend(r, 1));
    if (a->kind == V_UNDEFINED || b->kind == V_UNDEFINED)
        return tsr_jinja_fail(r, "%s", a->kind == V_UNDEFINED ? a->text.data : b->text.data);
    if (is_number(a) && is_number(b)) {
        *out = compare_numbers(a, b);
        return TSR_OK;
    }
    if (a->kind != V_STRING || b->kind != V_STRING)
        return tsr_jinja_fail(r, "%s and %s cannot be ordered", tsr_jinja_type(a),
                              tsr_jinja_type(b));
    /* Bytes of UTF-8 order as code points do. */
    size_t least = a->text.bytes < b->text.bytes ? a->text.bytes : b->text.bytes;
    TSR_TRY(tsr_jinja_scan(r, least));
    int order = least ? memcmp(a->text.data, b->text.data, least) : 0;
    *out = order ? (order > 0) - (order < 0)
                 : (a->text.bytes > b->text.bytes) - (a->text.bytes < b->text.bytes);
    return TSR_OK;
}

tsr_status tsr_jinja_length(size_t *out, jinja_run *r, const value *v)
{
    switch (v->kind) {
    case V_UNDEFINED:
        *out = 0;
        return TSR_OK;
    case V_STRING:
        TSR_TRY(tsr_jinja_scan(r, v->text.bytes));
        *out = tsr_utf8_count(v->text.data, v->text.bytes);
        return TSR_OK;
    case V_LIST:
    case V_TUPLE:
    case V_VIEW:
        *out = v->list->count;
        return TSR_OK;
    case V_DICT:
        *out = v->dict->count;
        return TSR_OK;
    default:
        return tsr_jinja_fail(r, "a value of type %s has no length", tsr_jinja_type(v));
    }
}

static tsr_status characters(value *out, jinja_run *r, const value *v)
{
    size_t count, at = 0;
    TSR_TRY(tsr_jinja_length(&count, r, v));
    TSR_TRY(tsr_jinja_list(out, r, V_LIST, count));
    for (size_t i = 0; i < count; i++) {
        uint32_t code;
        size_t length = tsr_utf8_next(&code, v->text.data + at, v->text.bytes - at);
        out->list->items[i] = tsr_jinja_text(v->text.data + at, length);
        at += length;
    }
    return TSR_OK;
}

tsr_status tsr_jinja_iterate(jinja_list **out, jinja_run *r, const value *v)
{
    value list = {.kind = V_LIST};
    switch (v->kind) {
    case V_LIST:
    case V_TUPLE:
    case V_VIEW:
        *out = v->list;
        return TSR_OK;
    case V_ITER:
        list = *v;
        if (v->list->consumed)
            TSR_TRY(tsr_jinja_list(&list, r, V_LIST, 0));
        v->list->consumed = true;
        break;
    case V_UNDEFINED:
        TSR_TRY(tsr_jinja_list(&list, r, V_LIST, 0));
        break;
    case V_STRING:
        TSR_TRY(characters(&list, r, v));
        break;
    case V_DICT:
        TSR_TRY(tsr_jinja_list(&list, r, V_LIST, v->dict->count));
        if (v->dict->count)
            memcpy(list.list->items, v->dict->keys, v->dict->count * sizeof(value));
        break;
    default:
        return tsr_jinja_fail(r, "a value of type %s cannot be iterated", tsr_jinja_type(v));
    }
    *out = list.list;
    return TSR_OK;
}
