/*
 * test.c: what can follow "is".
 */
#include "jinja/jinja.h"

typedef enum {
    IS_DEFINED,
    IS_UNDEFINED,
    IS_NONE,
    IS_TRUE,
    IS_FALSE,
    IS_BOOLEAN,
    IS_INTEGER,
    IS_FLOAT,
    IS_NUMBER,
    IS_STRING,
    IS_MAPPING,
    IS_ITERABLE,
    IS_SEQUENCE,
    IS_CALLABLE,
    IS_ODD,
    IS_EVEN,
    IS_DIVISIBLEBY,
    IS_SAMEAS,
    IS_IN,
    IS_EQ,
    IS_NE,
    IS_LT,
    IS_LE,
    IS_GT,
    IS_GE
} which_test;

static const struct {
    const char *name;
    which_test which;
} tests[] = {
    {"defined", IS_DEFINED},
    {"undefined", IS_UNDEFINED},
    {"none", IS_NONE},
    {"true", IS_TRUE},
    {"false", IS_FALSE},
    {"boolean", IS_BOOLEAN},
    {"integer", IS_INTEGER},
    {"float", IS_FLOAT},
    {"number", IS_NUMBER},
    {"string", IS_STRING},
    {"mapping", IS_MAPPING},
    {"iterable", IS_ITERABLE},
    {"sequence", IS_SEQUENCE},
    {"callable", IS_CALLABLE},
    {"odd", IS_ODD},
    {"even", IS_EVEN},
    {"divisibleby", IS_DIVISIBLEBY},
    {"sameas", IS_SAMEAS},
    {"in", IS_IN},
    {"eq", IS_EQ},
    {"equalto", IS_EQ},
    {"==", IS_EQ},
    {"ne", IS_NE},
    {"!=", IS_NE},
    {"lt", IS_LT},
    {"lessthan", IS_LT},
    {"<", IS_LT},
    {"le", IS_LE},
    {"<=", IS_LE},
    {"gt", IS_GT},
    {"greaterthan", IS_GT},
    {">", IS_GT},
    {"ge", IS_GE},
    {">=", IS_GE},
};

int tsr_jinja_test_find(jinja_text name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (tsr_jinja_is_text(name, tests[i].name))
            return (int)i;
    return -1;
}

/* The tests that look at the type or value alone. */
static bool by_kind(which_test which, const value *v)
{
    tsr_jinja_kind k = v->kind;
    bool indexed = k == V_STRING || k == V_LIST || k == V_TUPLE || k == V_DICT;
    switch (which) {
    case IS_DEFINED:
        return k != V_UNDEFINED;
    case IS_UNDEFINED:
        return k == V_UNDEFINED;
    case IS_NONE:
        return k == V_NONE;
    case IS_TRUE:
        return k == V_BOOL && v->boolean;
    case IS_FALSE:
        return k == V_BOOL && !v->boolean;
    case IS_BOOLEAN:
        return k == V_BOOL;
    case IS_INTEGER:
        return k == V_INT;
    case IS_FLOAT:
        return k == V_FLOAT;
    case IS_NUMBER:
        return k == V_INT || k == V_FLOAT || k == V_BOOL;
    case IS_STRING:
        return k == V_STRING;
    case IS_MAPPING:
        return k == V_DICT;
    case IS_ITERABLE:
        return indexed || k == V_UNDEFINED || k == V_VIEW || k == V_ITER || k == V_LOOP;
    case IS_SEQUENCE: /* has a length and can be indexed, which an undefined value claims too */
        return indexed || k == V_UNDEFINED;
    default: /* callable */
        return k == V_GLOBAL || k == V_METHOD || k == V_MACRO || k == V_UNDEFINED;
    }
}

static tsr_status divides(bool *out, jinja_run *r, const value *v, int64_t by)
{
    if (v->kind != V_INT)
        return tsr_jinja_fail(r, "divisibility of a %s", tsr_jinja_type(v));
    if (by == 0)
        return tsr_jinja_fail(r, "division by zero");
    *out = by == -1 || v->integer % by == 0;
    return TSR_OK;
}

static tsr_status same_object(bool *out, jinja_run *r, const value *a, const value *b)
{
    if ((a->kind != V_BOOL && a->kind != V_NONE) || (b->kind != V_BOOL && b->kind != V_NONE))
        return tsr_jinja_fail(r, "sameas is supported for true, false and none only");
    return a->kind != b->kind ? (*out = false, TSR_OK) : tsr_jinja_equal(out, r, a, b);
}

tsr_status tsr_jinja_test(bool *out, jinja_run *r, int which, value subject, const jinja_args *args)
{
    which_test t = tests[which].which;
    value other;
    int order;
    TSR_TRY(tsr_jinja_spend(r, 1));
    TSR_TRY(
        tsr_jinja_bind(&other, r, tests[which].name, t >= IS_DIVISIBLEBY ? "other!" : "", args));
    switch (t) {
    case IS_ODD:
    case IS_EVEN:
        TSR_TRY(divides(out, r, &subject, 2));
        *out = *out == (t == IS_EVEN);
        return TSR_OK;
    case IS_DIVISIBLEBY:
        if (other.kind != V_INT)
            return tsr_jinja_fail(r, "divisibleby needs an integer");
        return divides(out, r, &subject, other.integer);
    case IS_SAMEAS:
        return same_object(out, r, &subject, &other);
    case IS_IN:
        return tsr_jinja_contains(out, r, &subject, &other);
    case IS_EQ:
    case IS_NE:
        TSR_TRY(tsr_jinja_equal(out, r, &subject, &other));
        *out = *out == (t == IS_EQ);
        return TSR_OK;
    case IS_LT:
    case IS_LE:
    case IS_GT:
    case IS_GE:
        TSR_TRY(tsr_jinja_order(&order, r, &subject, &other));
        *out = order != 2 && (t == IS_LT   ? order < 0
                              : t == IS_LE ? order <= 0
                              : t == IS_GT ? order > 0
                                           : order >= 0);
        return TSR_OK;
    default:
        *out = by_kind(t, &subject);
        return TSR_OK;
    }
}

const char *tsr_jinja_test_name_at(size_t index)
{
    return index < sizeof tests / sizeof *tests ? tests[index].name : NULL;
}
