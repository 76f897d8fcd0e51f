/*
 * jinja_eval.c: the value of an expression.
 */
#include "data/jinja.h"
#include "data/unicode.h"

#include <math.h>
#include <string.h>

/* Using an undefined value for anything but printing and testing is an error, as in Jinja. */
static tsr_status defined(jinja_run *r, const value *v)
{
    return v->kind == V_UNDEFINED ? tsr_jinja_fail(r, "%s", v->text.data) : TSR_OK;
}

static tsr_status name_value(value *out, jinja_run *r, const node *n, scope *s)
{
    const value *found = tsr_jinja_scope_get(s, n->name);
    if (found && found->kind != V_ABSENT) {
        *out = *found;
        return TSR_OK;
    }
    if (!found && tsr_jinja_global(out, n->text))
        return TSR_OK;
    return tsr_jinja_undefined(out, r, "'%.*s' is undefined", (int)n->text.bytes, n->text.data);
}

static tsr_status sequence(value *out, jinja_run *r, const node *n, scope *s)
{
    TSR_TRY(tsr_jinja_list(out, r, n->kind == N_LIST ? V_LIST : V_TUPLE, n->count));
    size_t i = 0;
    for (const node *item = n->list; item; item = item->next)
        TSR_TRY(tsr_jinja_eval(&out->list->items[i++], r, item, s));
    return TSR_OK;
}

static tsr_status dict(value *out, jinja_run *r, const node *n, scope *s)
{
    TSR_TRY(tsr_jinja_dict(out, r, V_DICT));
    for (const node *key = n->list; key; key = key->next->next) {
        value k, v;
        TSR_TRY(tsr_jinja_eval(&k, r, key, s));
        TSR_TRY(tsr_jinja_eval(&v, r, key->next, s));
        TSR_TRY(tsr_jinja_dict_set(r, out->dict, k, v));
    }
    return TSR_OK;
}

/* ---- attributes and items ---- */

static tsr_status loop_attr(value *out, jinja_run *r, const jinja_loop *loop, jinja_text name)
{
    size_t i = loop->index, count = loop->items->count;
    const struct {
        const char *name;
        value v;
    } table[] = {{"index", tsr_jinja_int((int64_t)i + 1)},
                 {"index0", tsr_jinja_int((int64_t)i)},
                 {"revindex", tsr_jinja_int((int64_t)(count - i))},
                 {"revindex0", tsr_jinja_int((int64_t)(count - i) - 1)},
                 {"length", tsr_jinja_int((int64_t)count)},
                 {"first", tsr_jinja_bool(i == 0)},
                 {"last", tsr_jinja_bool(i + 1 == count)},
                 {"depth", tsr_jinja_int(loop->depth)},
                 {"depth0", tsr_jinja_int(loop->depth - 1)}};
    for (size_t j = 0; j < sizeof table / sizeof *table; j++) {
        if (!tsr_jinja_is_text(name, table[j].name))
            continue;
        *out = table[j].v;
        return TSR_OK;
    }
    bool previous = tsr_jinja_is_text(name, "previtem");
    if (previous || tsr_jinja_is_text(name, "nextitem")) {
        bool there = previous ? i > 0 : i + 1 < count;
        if (!there)
            return tsr_jinja_undefined(out, r, "there is no %s item",
                                       previous ? "previous" : "next");
        *out = loop->items->items[previous ? i - 1 : i + 1];
        return TSR_OK;
    }
    return tsr_jinja_fail(r, "loop.%.*s is not supported", (int)name.bytes, name.data);
}

static tsr_status no_attribute(value *out, jinja_run *r, const value *self, jinja_text name)
{
    return tsr_jinja_undefined(out, r, "'%s%s' has no attribute '%.*s'", tsr_jinja_type(self),
                               self->kind == V_NONE ? "" : " object", (int)name.bytes, name.data);
}

tsr_status tsr_jinja_get_attr(value *out, jinja_run *r, value self, jinja_text name)
{
    const value *found = NULL;
    TSR_TRY(defined(r, &self));
    if (name.bytes > 1 && name.data[0] == '_' && name.data[1] == '_')
        return tsr_jinja_fail(r, "the attribute \"%.*s\" is not allowed", (int)name.bytes,
                              name.data);
    if (self.kind == V_LOOP)
        return loop_attr(out, r, self.loop, name);
    if (self.kind == V_NAMESPACE)
        found = tsr_jinja_dict_text(self.dict, name);
    if (!found) {
        TSR_TRY(tsr_jinja_method(out, r, &self, name));
        if (out->kind != V_ABSENT)
            return TSR_OK;
    }
    if (self.kind == V_DICT)
        found = tsr_jinja_dict_text(self.dict, name);
    if (!found)
        return no_attribute(out, r, &self, name);
    *out = *found;
    return TSR_OK;
}

static tsr_status no_element(value *out, jinja_run *r, const value *self, int64_t index)
{
    return tsr_jinja_undefined(out, r, "%s%s has no element %lld", tsr_jinja_type(self),
                               self->kind == V_NONE ? "" : " object", (long long)index);
}

static tsr_status list_item(value *out, jinja_run *r, const value *self, int64_t given)
{
    int64_t count = (int64_t)self->list->count, index = given + (given < 0 ? count : 0);
    if (index < 0 || index >= count)
        return no_element(out, r, self, given);
    *out = self->list->items[index];
    return TSR_OK;
}

/* The bytes of code points [begin, begin + count) of a string. */
static jinja_text text_part(jinja_text text, int64_t begin, int64_t count)
{
    size_t at = 0, start;
    for (; begin > 0 && at < text.bytes; begin--)
        for (at++; at < text.bytes && ((unsigned char)text.data[at] & 0xc0) == 0x80; at++)
            ;
    start = at;
    for (; count > 0 && at < text.bytes; count--)
        for (at++; at < text.bytes && ((unsigned char)text.data[at] & 0xc0) == 0x80; at++)
            ;
    return (jinja_text){text.data + start, at - start};
}

static tsr_status text_item(value *out, jinja_run *r, const value *self, int64_t given)
{
    int64_t count = (int64_t)tsr_utf8_count(self->text.data, self->text.bytes);
    int64_t index = given + (given < 0 ? count : 0);
    TSR_TRY(tsr_jinja_spend(r, self->text.bytes / 64));
    if (index < 0 || index >= count)
        return no_element(out, r, self, given);
    jinja_text part = text_part(self->text, index, 1);
    *out = tsr_jinja_text(part.data, part.bytes);
    return TSR_OK;
}

tsr_status tsr_jinja_get_item(value *out, jinja_run *r, value self, value key)
{
    const value *found = NULL;
    TSR_TRY(defined(r, &self));
    bool index = key.kind == V_INT || key.kind == V_BOOL;
    int64_t i = key.kind == V_INT ? key.integer : key.kind == V_BOOL ? key.boolean : 0;
    if ((self.kind == V_LIST || self.kind == V_TUPLE) && index)
        return list_item(out, r, &self, i);
    if (self.kind == V_STRING && index)
        return text_item(out, r, &self, i);
    if (self.kind == V_VIEW || self.kind == V_ITER)
        return tsr_jinja_fail(r, "an index into a %s is not supported: use the filter list",
                              tsr_jinja_type(&self));
    if (self.kind == V_DICT)
        TSR_TRY(tsr_jinja_dict_get(&found, r, self.dict, key));
    if (found) {
        *out = *found;
        return TSR_OK;
    }
    if (key.kind == V_STRING)
        return tsr_jinja_get_attr(out, r, self, key.text);
    if (key.kind == V_UNDEFINED && self.kind != V_DICT)
        return tsr_jinja_fail(r, "%s", key.text.data);
    if (key.kind == V_INT)
        return no_element(out, r, &self, key.integer);
    return tsr_jinja_undefined(out, r, "the %s has no such element", tsr_jinja_type(&self));
}

/* One bound of a slice; `given` is false for none. */
static tsr_status slice_bound(bool *given, int64_t *out, jinja_run *r, const node *n, scope *s)
{
    value v = tsr_jinja_none();
    if (n)
        TSR_TRY(tsr_jinja_eval(&v, r, n, s));
    TSR_TRY(defined(r, &v));
    *given = v.kind != V_NONE;
    if (*given && v.kind != V_INT)
        return tsr_jinja_fail(r, "the bounds of a slice are integers, not %s", tsr_jinja_type(&v));
    *out = *given ? v.integer : 0;
    return TSR_OK;
}

static int64_t clamp(int64_t i, int64_t count, int64_t low, int64_t high)
{
    if (i < 0)
        i = i < -count ? -1 : i + count;
    return i < low ? low : i > high ? high : i;
}

static tsr_status slice(value *out, jinja_run *r, value self, const node *n, scope *s)
{
    int64_t bounds[3];
    bool given[3];
    TSR_TRY(defined(r, &self));
    TSR_TRY(slice_bound(&given[0], &bounds[0], r, n->a, s));
    TSR_TRY(slice_bound(&given[1], &bounds[1], r, n->b, s));
    TSR_TRY(slice_bound(&given[2], &bounds[2], r, n->c, s));
    bool is_list = self.kind == V_LIST || self.kind == V_TUPLE;
    if (!is_list && self.kind != V_STRING)
        return tsr_jinja_fail(r, "a value of type %s cannot be sliced", tsr_jinja_type(&self));
    int64_t step = given[2] ? bounds[2] : 1, count, length = 0;
    if (step == 0)
        return tsr_jinja_fail(r, "the step of a slice is 0");
    size_t elements;
    TSR_TRY(tsr_jinja_length(&elements, r, &self));
    count = (int64_t)elements;
    /* Python's rules: a negative step goes from the last element to before the first. */
    bool down = step < 0;
    int64_t low = down ? -1 : 0, high = down ? count - 1 : count;
    int64_t begin = given[0] ? clamp(bounds[0], count, low, high) : down ? high : low;
    int64_t end = given[1] ? clamp(bounds[1], count, low, high) : down ? low : high;
    step = step > count + 1 ? count + 1 : step < -count - 1 ? -count - 1 : step;
    if (down ? begin > end : begin < end)
        length = down ? (begin - end - 1) / -step + 1 : (end - begin - 1) / step + 1;
    if (self.kind == V_STRING && step == 1) {
        jinja_text part = text_part(self.text, begin, length);
        *out = tsr_jinja_text(part.data, part.bytes);
        return TSR_OK;
    }
    jinja_list *from;
    value result;
    TSR_TRY(tsr_jinja_iterate(&from, r, &self));
    TSR_TRY(tsr_jinja_list(&result, r, is_list ? self.kind : V_LIST, (size_t)length));
    for (int64_t i = 0; i < length; i++)
        result.list->items[i] = from->items[begin + i * step];
    if (is_list) {
        *out = result;
        return TSR_OK;
    }
    char *joined;
    size_t bytes = 0;
    TSR_TRY(tsr_jinja_alloc(&joined, &r->arena, self.text.bytes + 1, 1));
    for (int64_t i = 0; i < length; i++) {
        const jinja_text *c = &result.list->items[i].text;
        memcpy(joined + bytes, c->data, c->bytes);
        bytes += c->bytes;
    }
    *out = tsr_jinja_text(joined, bytes);
    return TSR_OK;
}

static tsr_status item(value *out, jinja_run *r, const node *n, scope *s)
{
    value self, key;
    TSR_TRY(tsr_jinja_eval(&self, r, n->a, s));
    if (n->b->kind == N_SLICE)
        return slice(out, r, self, n->b, s);
    TSR_TRY(tsr_jinja_eval(&key, r, n->b, s));
    return tsr_jinja_get_item(out, r, self, key);
}

/* ---- calls ---- */

static tsr_status arguments(jinja_args *args, jinja_run *r, const node *n, scope *s)
{
    size_t i = 0;
    args->count = n->count;
    TSR_TRY(tsr_jinja_alloc(&args->values, &r->arena, n->count + 1, sizeof *args->values));
    TSR_TRY(tsr_jinja_alloc(&args->names, &r->arena, n->count + 1, sizeof *args->names));
    for (const node *a = n->list; a; a = a->next, i++) {
        TSR_TRY(tsr_jinja_eval(&args->values[i], r, a->a, s));
        if (a->name >= 0)
            args->names[i] = r->t->names[a->name];
    }
    return TSR_OK;
}

static tsr_status call(value *out, jinja_run *r, const node *n, scope *s)
{
    value f;
    jinja_args args;
    TSR_TRY(tsr_jinja_eval(&f, r, n->a, s));
    TSR_TRY(arguments(&args, r, n, s));
    r->line = n->line;
    switch (f.kind) {
    case V_GLOBAL:
        return tsr_jinja_call_global(out, r, f.method, &args);
    case V_METHOD:
        return tsr_jinja_call_method(out, r, &f, &args);
    case V_MACRO:
        return tsr_jinja_call_macro(out, r, f.macro, &args);
    case V_UNDEFINED:
        return tsr_jinja_fail(r, "%s", f.text.data);
    default:
        return tsr_jinja_fail(r, "a value of type %s cannot be called", tsr_jinja_type(&f));
    }
}

static tsr_status filter(value *out, jinja_run *r, const node *n, scope *s)
{
    value subject;
    jinja_args args;
    TSR_TRY(tsr_jinja_eval(&subject, r, n->a, s));
    TSR_TRY(arguments(&args, r, n, s));
    r->line = n->line;
    return tsr_jinja_filter(out, r, n->which, subject, &args);
}

static tsr_status test(value *out, jinja_run *r, const node *n, scope *s)
{
    value subject;
    jinja_args args;
    bool yes;
    TSR_TRY(tsr_jinja_eval(&subject, r, n->a, s));
    TSR_TRY(arguments(&args, r, n, s));
    r->line = n->line;
    TSR_TRY(tsr_jinja_test(&yes, r, n->which, subject, &args));
    *out = tsr_jinja_bool(yes);
    return TSR_OK;
}

/* ---- operators ---- */

static tsr_status add_sequences(value *out, jinja_run *r, const value *a, const value *b)
{
    if (a->kind == V_STRING && a->safe != b->safe) {
        value escaped;
        TSR_TRY(tsr_jinja_escape(&escaped, r, (a->safe ? b : a)->text));
        escaped.safe = true;
        return a->safe ? add_sequences(out, r, a, &escaped) : add_sequences(out, r, &escaped, b);
    }
    if (a->kind == V_STRING) {
        char *joined;
        size_t bytes = a->text.bytes + b->text.bytes;
        TSR_TRY(tsr_jinja_spend(r, bytes / 64));
        TSR_TRY(tsr_jinja_alloc(&joined, &r->arena, bytes + 1, 1));
        memcpy(joined, a->text.data, a->text.bytes);
        memcpy(joined + a->text.bytes, b->text.data, b->text.bytes);
        *out = tsr_jinja_text(joined, bytes);
        out->safe = a->safe;
        return TSR_OK;
    }
    size_t count = a->list->count;
    TSR_TRY(tsr_jinja_list(out, r, a->kind, count + b->list->count));
    memcpy(out->list->items, a->list->items, count * sizeof(value));
    memcpy(out->list->items + count, b->list->items, b->list->count * sizeof(value));
    return TSR_OK;
}

static tsr_status real_arithmetic(value *out, jinja_run *r, token_kind op, double a, double b)
{
    if ((op == T_DIV || op == T_FLOORDIV || op == T_MOD) && b == 0)
        return tsr_jinja_fail(r, "division by zero");
    if (op == T_FLOORDIV || op == T_MOD) {
        double rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0))
            rest += b;
        *out = tsr_jinja_float(op == T_MOD ? rest : floor((a - rest) / b + 0.5));
        return TSR_OK;
    }
    *out = tsr_jinja_float(op == T_ADD ? a + b : op == T_SUB ? a - b : op == T_MUL ? a * b : a / b);
    return TSR_OK;
}

static tsr_status integer_arithmetic(value *out, jinja_run *r, token_kind op, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool overflow = false;
    if (op == T_DIV)
        return real_arithmetic(out, r, op, (double)a, (double)b);
    if (op == T_FLOORDIV || op == T_MOD) {
        if (b == 0)
            return tsr_jinja_fail(r, "division by zero");
        overflow = a == INT64_MIN && b == -1;
        if (!overflow) {
            int64_t quotient = a / b, rest = a % b;
            bool down = rest != 0 && (rest < 0) != (b < 0);
            result = op == T_MOD ? rest + (down ? b : 0) : quotient - down;
        }
    } else if (op == T_ADD) {
        overflow = __builtin_add_overflow(a, b, &result);
    } else if (op == T_SUB) {
        overflow = __builtin_sub_overflow(a, b, &result);
    } else {
        overflow = __builtin_mul_overflow(a, b, &result);
    }
    if (overflow)
        return tsr_jinja_fail(r, "an integer beyond 64 bits");
    *out = tsr_jinja_int(result);
    return TSR_OK;
}

static bool is_number(const value *v)
{
    return v->kind == V_INT || v->kind == V_BOOL || v->kind == V_FLOAT;
}

static double as_real(const value *v)
{
    return v->kind == V_FLOAT ? v->real : v->kind == V_BOOL ? v->boolean : (double)v->integer;
}

static tsr_status binary(value *out, jinja_run *r, const node *n, scope *s)
{
    value a, b;
    static const char *const names[] = {"+", "-", "*", "/", "//", "%"};
    TSR_TRY(tsr_jinja_eval(&a, r, n->a, s));
    TSR_TRY(tsr_jinja_eval(&b, r, n->b, s));
    r->line = n->line;
    TSR_TRY(defined(r, &a));
    TSR_TRY(defined(r, &b));
    if (n->op == T_ADD && a.kind == b.kind &&
        (a.kind == V_STRING || a.kind == V_LIST || a.kind == V_TUPLE))
        return add_sequences(out, r, &a, &b);
    if (!is_number(&a) || !is_number(&b))
        return tsr_jinja_fail(r, "the operator %s between %s and %s is not supported",
                              names[n->op - T_ADD], tsr_jinja_type(&a), tsr_jinja_type(&b));
    if (a.kind == V_FLOAT || b.kind == V_FLOAT)
        return real_arithmetic(out, r, n->op, as_real(&a), as_real(&b));
    return integer_arithmetic(out, r, n->op, a.kind == V_BOOL ? a.boolean : a.integer,
                              b.kind == V_BOOL ? b.boolean : b.integer);
}

static tsr_status concat(value *out, jinja_run *r, const node *n, scope *s)
{
    value a, b;
    TSR_TRY(tsr_jinja_eval(&a, r, n->a, s));
    TSR_TRY(tsr_jinja_eval(&b, r, n->b, s));
    r->line = n->line;
    TSR_TRY(tsr_jinja_to_text(&a, r, &a));
    TSR_TRY(tsr_jinja_to_text(&b, r, &b));
    a.safe = b.safe = false; /* ~ takes markup as plain text, unlike + */
    return add_sequences(out, r, &a, &b);
}

static tsr_status negate(value *out, jinja_run *r, const node *n, scope *s)
{
    value v;
    TSR_TRY(tsr_jinja_eval(&v, r, n->a, s));
    r->line = n->line;
    TSR_TRY(defined(r, &v));
    if (!is_number(&v))
        return tsr_jinja_fail(r, "a sign before a value of type %s", tsr_jinja_type(&v));
    if (v.kind == V_FLOAT) {
        *out = tsr_jinja_float(n->kind == N_NEG ? -v.real : v.real);
        return TSR_OK;
    }
    int64_t i = v.kind == V_BOOL ? v.boolean : v.integer;
    return integer_arithmetic(out, r, n->kind == N_NEG ? T_SUB : T_ADD, 0, i);
}

tsr_status tsr_jinja_contains(bool *out, jinja_run *r, const value *part, const value *whole)
{
    if (whole->kind == V_STRING) {
        if (part->kind != V_STRING)
            return tsr_jinja_fail(r, "\"in\" a string needs a string, not %s",
                                  tsr_jinja_type(part));
        TSR_TRY(tsr_jinja_spend(r, whole->text.bytes / 64));
        *out = !part->text.bytes || tsr_jinja_find(whole->text, 0, part->text);
        return TSR_OK;
    }
    if (whole->kind == V_DICT) {
        const value *found;
        TSR_TRY(tsr_jinja_dict_get(&found, r, whole->dict, *part));
        *out = found != NULL;
        return TSR_OK;
    }
    jinja_list *list;
    TSR_TRY(tsr_jinja_iterate(&list, r, whole));
    *out = false;
    for (size_t i = 0; i < list->count && !*out; i++)
        TSR_TRY(tsr_jinja_equal(out, r, &list->items[i], part));
    return TSR_OK;
}

static tsr_status compare_two(bool *out, jinja_run *r, token_kind op, const value *a,
                              const value *b)
{
    int order;
    if (op == T_EQ || op == T_NE) {
        TSR_TRY(tsr_jinja_equal(out, r, a, b));
        *out = *out == (op == T_EQ);
        return TSR_OK;
    }
    if (op == T_IN || op == T_NOTIN) {
        TSR_TRY(tsr_jinja_contains(out, r, a, b));
        *out = *out == (op == T_IN);
        return TSR_OK;
    }
    TSR_TRY(tsr_jinja_order(&order, r, a, b));
    /* 2 is a NaN, for which nothing holds. */
    *out = order != 2 && (op == T_LT   ? order < 0
                          : op == T_LE ? order <= 0
                          : op == T_GT ? order > 0
                                       : order >= 0);
    return TSR_OK;
}

static tsr_status compare(value *out, jinja_run *r, const node *n, scope *s)
{
    value left, right;
    bool yes = true;
    TSR_TRY(tsr_jinja_eval(&left, r, n->a, s));
    for (const node *operand = n->list; operand && yes; operand = operand->next) {
        TSR_TRY(tsr_jinja_eval(&right, r, operand->a, s));
        r->line = n->line;
        TSR_TRY(compare_two(&yes, r, operand->op, &left, &right));
        left = right;
    }
    *out = tsr_jinja_bool(yes);
    return TSR_OK;
}

static tsr_status logic(value *out, jinja_run *r, const node *n, scope *s)
{
    TSR_TRY(tsr_jinja_eval(out, r, n->a, s));
    if (tsr_jinja_truth(out) == (n->kind == N_AND))
        TSR_TRY(tsr_jinja_eval(out, r, n->b, s));
    return TSR_OK;
}

static tsr_status conditional(value *out, jinja_run *r, const node *n, scope *s)
{
    value test_value;
    TSR_TRY(tsr_jinja_eval(&test_value, r, n->b, s));
    if (tsr_jinja_truth(&test_value))
        return tsr_jinja_eval(out, r, n->a, s);
    if (n->c)
        return tsr_jinja_eval(out, r, n->c, s);
    return tsr_jinja_undefined(
        out, r,
        "the inline if-expression on line %d evaluated to false and no else section was defined.",
        n->line);
}

static tsr_status evaluate(value *out, jinja_run *r, const node *n, scope *s)
{
    value v;
    switch (n->kind) {
    case N_CONST:
        *out = n->constant;
        return TSR_OK;
    case N_NAME:
        return name_value(out, r, n, s);
    case N_LIST:
    case N_TUPLE:
        return sequence(out, r, n, s);
    case N_DICT:
        return dict(out, r, n, s);
    case N_ATTR:
        TSR_TRY(tsr_jinja_eval(&v, r, n->a, s));
        r->line = n->line;
        return tsr_jinja_get_attr(out, r, v, n->text);
    case N_ITEM:
        return item(out, r, n, s);
    case N_CALL:
        return call(out, r, n, s);
    case N_FILTER:
        return filter(out, r, n, s);
    case N_TEST:
        return test(out, r, n, s);
    case N_NOT:
        TSR_TRY(tsr_jinja_eval(&v, r, n->a, s));
        *out = tsr_jinja_bool(!tsr_jinja_truth(&v));
        return TSR_OK;
    case N_AND:
    case N_OR:
        return logic(out, r, n, s);
    case N_NEG:
    case N_POS:
        return negate(out, r, n, s);
    case N_BINARY:
        return binary(out, r, n, s);
    case N_CONCAT:
        return concat(out, r, n, s);
    case N_COMPARE:
        return compare(out, r, n, s);
    case N_COND:
        return conditional(out, r, n, s);
    case N_HOLE:
        *out = r->hole;
        return TSR_OK;
    default:
        return tsr_fail(TSR_EINTERNAL, "a statement where an expression is expected");
    }
}

tsr_status tsr_jinja_eval(value *out, jinja_run *r, const node *n, scope *s)
{
    TSR_TRY(tsr_jinja_spend(r, 1));
    r->line = n->line;
    if (r->depth >= JINJA_RUN_DEPTH)
        return tsr_jinja_fail(r, "calls and expressions nested too deep");
    r->depth++;
    tsr_status status = evaluate(out, r, n, s);
    r->depth--;
    return status;
}
