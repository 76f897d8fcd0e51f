/*
 * jinja/parser.h: what parse.c (statements), expr.c (expressions) and
 * operand.c (their operands) share.
 */
#ifndef TSR_JINJA_PARSER_H
#define TSR_JINJA_PARSER_H

#include "jinja/jinja.h"

typedef struct {
    tsr_template *t;
    const token *tokens;
    size_t at;
    int depth;  /* of nesting, so that a hostile source cannot exhaust the stack */
    int loops;  /* for statements around, that break can leave */
    int asides; /* bodies around that are rendered aside */
} jinja_parser;

static inline const token *peek(const jinja_parser *p)
{
    return &p->tokens[p->at];
}

static inline bool is_name(const token *t, const char *name)
{
    return t->kind == T_NAME && tsr_jinja_is_text(t->text, name);
}

tsr_status tsr_jinja_node(node **out, jinja_parser *p, node_kind kind, int line);
tsr_status tsr_jinja_expect(jinja_parser *p, token_kind kind, const char *what);
/* The error of a token that is not `expected`. */
tsr_status tsr_jinja_unexpected(jinja_parser *p, const char *expected);
/* One level deeper; the caller takes one off p->depth when it is done. */
tsr_status tsr_jinja_enter(jinja_parser *p, int line);

/* Appends to n->list, whose end is *tail. */
static inline void tsr_jinja_append(node *n, node ***tail, node *child)
{
    **tail = child;
    *tail = &child->next;
    n->count++;
}

tsr_status tsr_jinja_expression(node **out, jinja_parser *p);
/* An expression, or several with commas as a tuple. plain: no inline if, as the iterable of for. */
tsr_status tsr_jinja_tuple(node **out, jinja_parser *p, bool plain);
/* A signed operand, with its filters and tests if with_filters. */
tsr_status tsr_jinja_unary(node **out, jinja_parser *p, bool with_filters);
/* Wraps *out in the filters that follow, each with its |. */
tsr_status tsr_jinja_filters(node **out, jinja_parser *p);
/* Wraps *out in one filter whose name is next. */
tsr_status tsr_jinja_filter_name(node **out, jinja_parser *p);

#endif
