/*
 * expr.c: expressions, with the precedence of Jinja 3.1's parser: inline if, or, and, not,
 * comparison, + -, ~, * / // %. Their operands are in operand.c.
 */
#include "jinja/parser.h"

/* Left-associative binary operators, one level of them. */
typedef tsr_status (*level)(node **out, jinja_parser *p);

static tsr_status binary(node **out, jinja_parser *p, level operand, token_kind first,
                         token_kind last)
{
    int levels = 0;
    TSR_TRY(operand(out, p));
    while (peek(p)->kind >= first && peek(p)->kind <= last) {
        const token *t = peek(p);
        node *left = *out;
        TSR_TRY(tsr_jinja_enter(p, t->line));
        levels++;
        p->at++;
        TSR_TRY(tsr_jinja_node(out, p, first == T_TILDE ? N_CONCAT : N_BINARY, t->line));
        (*out)->op = t->kind;
        (*out)->a = left;
        TSR_TRY(operand(&(*out)->b, p));
    }
    p->depth -= levels;
    return TSR_OK;
}

static tsr_status operand_of_product(node **out, jinja_parser *p)
{
    TSR_TRY(tsr_jinja_unary(out, p, true));
    if (peek(p)->kind == T_POW)
        return tsr_jinja_syntax(p->t, peek(p)->line, "the operator ** is not supported");
    return TSR_OK;
}

static tsr_status product(node **out, jinja_parser *p)
{
    return binary(out, p, operand_of_product, T_MUL, T_MOD);
}

static tsr_status concat(node **out, jinja_parser *p)
{
    return binary(out, p, product, T_TILDE, T_TILDE);
}

static tsr_status sum(node **out, jinja_parser *p)
{
    return binary(out, p, concat, T_ADD, T_SUB);
}

/* The comparison operator that is next and how many tokens it has; 0 if there is none. */
static int comparison(token_kind *op, const jinja_parser *p)
{
    const token *t = peek(p);
    *op = t->kind;
    if (t->kind >= T_EQ && t->kind <= T_GE)
        return 1;
    bool negated = is_name(t, "not") && is_name(t + 1, "in");
    *op = negated ? T_NOTIN : T_IN;
    return negated ? 2 : is_name(t, "in") ? 1 : 0;
}

static tsr_status compare(node **out, jinja_parser *p)
{
    token_kind op;
    TSR_TRY(sum(out, p));
    int length = comparison(&op, p);
    if (!length)
        return TSR_OK;
    node *first = *out, **tail;
    TSR_TRY(tsr_jinja_node(out, p, N_COMPARE, peek(p)->line));
    (*out)->a = first;
    tail = &(*out)->list;
    for (; length; length = comparison(&op, p)) {
        node *operand;
        TSR_TRY(tsr_jinja_node(&operand, p, N_OPERAND, peek(p)->line));
        operand->op = op;
        p->at += (size_t)length;
        TSR_TRY(sum(&operand->a, p));
        tsr_jinja_append(*out, &tail, operand);
    }
    return TSR_OK;
}

static tsr_status parse_not(node **out, jinja_parser *p)
{
    const token *t = peek(p);
    if (!is_name(t, "not"))
        return compare(out, p);
    TSR_TRY(tsr_jinja_enter(p, t->line));
    p->at++;
    TSR_TRY(tsr_jinja_node(out, p, N_NOT, t->line));
    TSR_TRY(parse_not(&(*out)->a, p));
    p->depth--;
    return TSR_OK;
}

static tsr_status parse_and(node **out, jinja_parser *p)
{
    int levels = 0;
    TSR_TRY(parse_not(out, p));
    while (is_name(peek(p), "and")) {
        node *left = *out;
        TSR_TRY(tsr_jinja_enter(p, peek(p)->line));
        levels++;
        TSR_TRY(tsr_jinja_node(out, p, N_AND, peek(p)->line));
        p->at++;
        (*out)->a = left;
        TSR_TRY(parse_not(&(*out)->b, p));
    }
    p->depth -= levels;
    return TSR_OK;
}

static tsr_status parse_or(node **out, jinja_parser *p)
{
    int levels = 0;
    TSR_TRY(parse_and(out, p));
    while (is_name(peek(p), "or")) {
        node *left = *out;
        TSR_TRY(tsr_jinja_enter(p, peek(p)->line));
        levels++;
        TSR_TRY(tsr_jinja_node(out, p, N_OR, peek(p)->line));
        p->at++;
        (*out)->a = left;
        TSR_TRY(parse_and(&(*out)->b, p));
    }
    p->depth -= levels;
    return TSR_OK;
}

tsr_status tsr_jinja_expression(node **out, jinja_parser *p)
{
    int levels = 1;
    TSR_TRY(tsr_jinja_enter(p, peek(p)->line));
    TSR_TRY(parse_or(out, p));
    while (is_name(peek(p), "if")) {
        node *value_if = *out;
        TSR_TRY(tsr_jinja_enter(p, peek(p)->line));
        levels++;
        TSR_TRY(tsr_jinja_node(out, p, N_COND, peek(p)->line));
        p->at++;
        (*out)->a = value_if;
        TSR_TRY(parse_or(&(*out)->b, p));
        if (is_name(peek(p), "else")) {
            p->at++;
            TSR_TRY(tsr_jinja_expression(&(*out)->c, p));
        }
    }
    p->depth -= levels;
    return TSR_OK;
}

/* Whether a tuple ends here: after a last comma. */
static bool tuple_end(const token *t, bool plain)
{
    return t->kind == T_RPAREN || t->kind == T_PRINT_END || t->kind == T_BLOCK_END ||
           (plain && is_name(t, "recursive"));
}

tsr_status tsr_jinja_tuple(node **out, jinja_parser *p, bool plain)
{
    int line = peek(p)->line;
    node *first, **tail;
    TSR_TRY(tsr_jinja_enter(p, line));
    TSR_TRY(plain ? parse_or(&first, p) : tsr_jinja_expression(&first, p));
    *out = first;
    if (peek(p)->kind == T_COMMA) {
        TSR_TRY(tsr_jinja_node(out, p, N_TUPLE, line));
        (*out)->list = first;
        (*out)->count = 1;
        tail = &first->next;
        while (peek(p)->kind == T_COMMA) {
            node *item;
            p->at++;
            if (tuple_end(peek(p), plain))
                break;
            TSR_TRY(plain ? parse_or(&item, p) : tsr_jinja_expression(&item, p));
            tsr_jinja_append(*out, &tail, item);
        }
    }
    p->depth--;
    return TSR_OK;
}
