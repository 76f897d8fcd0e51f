/*
 * data/jinja_parser.h: what jinja_parse.c (statements) and jinja_expr.c (expressions) share.
 */
#ifndef TSR_DATA_JINJA_PARSER_H
#define TSR_DATA_JINJA_PARSER_H

#include "data/jinja.h"

typedef struct {
    tsr_template *t;
    const token *tokens;
    size_t at;
    int depth;  /* of nesting, so that a hostile source cannot exhaust the stack */
    int loops;  /* for statements around, that break can leave */
    int asides; /* bodies around that are rendered aside */
} jinja_parser;

tsr_status tsr_jinja_node(node **out, jinja_parser *p, node_kind kind, int line);
tsr_status tsr_jinja_expect(jinja_parser *p, token_kind kind, const char *what);
/* One level deeper; the caller takes one off p->depth when it is done. */
tsr_status tsr_jinja_enter(jinja_parser *p, int line);

tsr_status tsr_jinja_expression(node **out, jinja_parser *p);
/* An expression, or several with commas as a tuple. plain: no inline if, as the iterable of for. */
tsr_status tsr_jinja_tuple(node **out, jinja_parser *p, bool plain);
/* Wraps *out in the filters that follow, each with its |. */
tsr_status tsr_jinja_filters(node **out, jinja_parser *p);
/* Wraps *out in one filter whose name is next. */
tsr_status tsr_jinja_filter_name(node **out, jinja_parser *p);

#endif
