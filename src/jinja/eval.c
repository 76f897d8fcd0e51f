/*
 * eval.c: the value of an expression.
 */
#include "jinja/jinja.h"

#include <math.h>
#include <string.h>

static tsr_status name_value(value *out, jinja_run *r, const node *n, scope *s)
{
    const value *found;
    TSR_TRY(tsr_jinja_scope_get(&found, r, s, n->name));
    if (found && found->kind != V_ABSENT) {
        *out = *found;
        return TSR_OK;
    }
    if (!found && tsr_jinja_global(out, n->text))
        return TSR_OK;
    return tsr_jinja_undefined(out, r, "'%.*s' is undefined", tsr_jinja_shown(n->text),
                               n->text.data);
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

static tsr_status item(value *out, jinja_run *r, const node *n, scope *s)
{
    value self, key;
    TSR_TRY(tsr_jinja_eval(&self, r, n->a, s));
    if (n->b->kind == N_SLICE)
        return tsr_jinja_slice(out, r, self, n->b, s);
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
    TSR_TRY(tsr_jinja_defined(r, &a));
    TSR_TRY(tsr_jinja_defined(r, &b));
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
    TSR_TRY(tsr_jinja_defined(r, &v));
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
        TSR_TRY(tsr_jinja_scan(r, whole->text.bytes));
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
