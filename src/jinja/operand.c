/*
 * operand.c: what binary operators stand between: literals, names, lists and dicts, with
 * their signs, postfixes (.name, [index], calls), filters and tests.
 */
#include "jinja/parser.h"

#include <string.h>

static tsr_status parse_list(node **out, jinja_parser *p)
{
    TSR_TRY(tsr_jinja_node(out, p, N_LIST, peek(p)->line));
    node **tail = &(*out)->list;
    p->at++;
    while (peek(p)->kind != T_RBRACKET) {
        node *item;
        if ((*out)->count)
            TSR_TRY(tsr_jinja_expect(p, T_COMMA, "a comma"));
        if (peek(p)->kind == T_RBRACKET)
            break;
        TSR_TRY(tsr_jinja_expression(&item, p));
        tsr_jinja_append(*out, &tail, item);
    }
    p->at++;
    return TSR_OK;
}

static tsr_status parse_dict(node **out, jinja_parser *p)
{
    TSR_TRY(tsr_jinja_node(out, p, N_DICT, peek(p)->line));
    node **tail = &(*out)->list;
    p->at++;
    while (peek(p)->kind != T_RBRACE) {
        node *item;
        if ((*out)->count)
            TSR_TRY(tsr_jinja_expect(p, T_COMMA, "a comma"));
        if (peek(p)->kind == T_RBRACE)
            break;
        TSR_TRY(tsr_jinja_expression(&item, p));
        tsr_jinja_append(*out, &tail, item);
        TSR_TRY(tsr_jinja_expect(p, T_COLON, "a colon"));
        TSR_TRY(tsr_jinja_expression(&item, p));
        tsr_jinja_append(*out, &tail, item);
    }
    p->at++;
    return TSR_OK;
}

static tsr_status parse_name(node **out, jinja_parser *p, const token *t)
{
    static const char *const refused[] = {"dict",   "lipsum", "cycler", "joiner", "varargs",
                                          "kwargs", "caller", "self",   "super"};
    bool yes = is_name(t, "true") || is_name(t, "True");
    bool none = is_name(t, "none") || is_name(t, "None");
    if (yes || none || is_name(t, "false") || is_name(t, "False")) {
        TSR_TRY(tsr_jinja_node(out, p, N_CONST, t->line));
        (*out)->constant = none ? tsr_jinja_none() : tsr_jinja_bool(yes);
        return TSR_OK;
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (is_name(t, refused[i]))
            return tsr_jinja_syntax(p->t, t->line, "\"%s\" is not supported", refused[i]);
    TSR_TRY(tsr_jinja_node(out, p, N_NAME, t->line));
    (*out)->text = t->text;
    return tsr_jinja_intern(&(*out)->name, p->t, t->text);
}

/* Adjacent strings are one. */
static tsr_status parse_strings(node **out, jinja_parser *p)
{
    size_t bytes = 0, first = p->at;
    char *joined;
    TSR_TRY(tsr_jinja_node(out, p, N_CONST, peek(p)->line));
    for (; peek(p)->kind == T_STRING; p->at++)
        bytes += peek(p)->text.bytes;
    TSR_TRY(tsr_jinja_alloc(&joined, &p->t->arena, bytes + 1, 1));
    (*out)->constant = tsr_jinja_text(joined, bytes);
    for (size_t i = first; i < p->at; i++) {
        memcpy(joined, p->tokens[i].text.data, p->tokens[i].text.bytes);
        joined += p->tokens[i].text.bytes;
    }
    return TSR_OK;
}

static tsr_status parenthesis(node **out, jinja_parser *p)
{
    int line = peek(p)->line;
    p->at++;
    if (peek(p)->kind == T_RPAREN)
        TSR_TRY(tsr_jinja_node(out, p, N_TUPLE, line));
    else
        TSR_TRY(tsr_jinja_tuple(out, p, false));
    return tsr_jinja_expect(p, T_RPAREN, ")");
}

static tsr_status primary(node **out, jinja_parser *p)
{
    const token *t = peek(p);
    switch (t->kind) {
    case T_NAME:
        p->at++;
        return parse_name(out, p, t);
    case T_STRING:
        return parse_strings(out, p);
    case T_INT:
    case T_FLOAT:
        p->at++;
        TSR_TRY(tsr_jinja_node(out, p, N_CONST, t->line));
        (*out)->constant = t->kind == T_INT ? tsr_jinja_int(t->integer) : tsr_jinja_float(t->real);
        return TSR_OK;
    case T_LPAREN:
        return parenthesis(out, p);
    case T_LBRACKET:
        return parse_list(out, p);
    case T_LBRACE:
        return parse_dict(out, p);
    default:
        return tsr_jinja_unexpected(p, "a value");
    }
}

/* The arguments of a call, after "(", into n->list. */
static tsr_status arguments(node *n, jinja_parser *p)
{
    node **tail = &n->list;
    bool keywords = false;
    while (peek(p)->kind != T_RPAREN) {
        node *item;
        int name = -1;
        if (n->count)
            TSR_TRY(tsr_jinja_expect(p, T_COMMA, "a comma"));
        if (peek(p)->kind == T_RPAREN)
            break;
        if (peek(p)->kind == T_MUL || peek(p)->kind == T_POW)
            return tsr_jinja_syntax(p->t, peek(p)->line, "* in arguments is not supported");
        if (peek(p)->kind == T_NAME && p->tokens[p->at + 1].kind == T_ASSIGN) {
            TSR_TRY(tsr_jinja_intern(&name, p->t, peek(p)->text));
            keywords = true;
            p->at += 2;
        } else if (keywords) {
            return tsr_jinja_syntax(p->t, peek(p)->line, "a plain argument follows a named one");
        }
        TSR_TRY(tsr_jinja_expression(&item, p));
        /* A name's node keeps its own; an argument's name lies in a node around it. */
        node *argument;
        TSR_TRY(tsr_jinja_node(&argument, p, N_OPERAND, item->line));
        argument->a = item;
        argument->name = name;
        tsr_jinja_append(n, &tail, argument);
    }
    p->at++;
    return TSR_OK;
}

/* begin:end:step, or a plain index, up to "]". */
static tsr_status subscript(node **out, jinja_parser *p)
{
    int line = peek(p)->line;
    node *parts[3] = {0};
    int part = 0;
    bool slice = false;
    while (peek(p)->kind != T_RBRACKET) {
        if (peek(p)->kind == T_COLON) {
            if (++part > 2)
                return tsr_jinja_unexpected(p, "]");
            slice = true;
            p->at++;
            continue;
        }
        if (parts[part])
            return tsr_jinja_unexpected(p, "]");
        TSR_TRY(tsr_jinja_expression(&parts[part], p));
    }
    p->at++;
    *out = parts[0];
    if (!slice && !parts[0])
        return tsr_jinja_syntax(p->t, line, "an index is missing in [ ]");
    if (slice) {
        TSR_TRY(tsr_jinja_node(out, p, N_SLICE, line));
        (*out)->a = parts[0];
        (*out)->b = parts[1];
        (*out)->c = parts[2];
    }
    return TSR_OK;
}

static tsr_status dotted(node **out, jinja_parser *p, node *inner)
{
    const token *t = peek(p);
    p->at++;
    if (t->kind == T_NAME) {
        TSR_TRY(tsr_jinja_node(out, p, N_ATTR, t->line));
        (*out)->text = t->text;
    } else if (t->kind == T_INT) {
        TSR_TRY(tsr_jinja_node(out, p, N_ITEM, t->line));
        TSR_TRY(tsr_jinja_node(&(*out)->b, p, N_CONST, t->line));
        (*out)->b->constant = tsr_jinja_int(t->integer);
    } else {
        return tsr_jinja_syntax(p->t, t->line, "expected a name or a number after the dot");
    }
    (*out)->a = inner;
    return TSR_OK;
}

static tsr_status call(node **out, jinja_parser *p, node *inner)
{
    TSR_TRY(tsr_jinja_node(out, p, N_CALL, peek(p)->line));
    (*out)->a = inner;
    p->at++;
    return arguments(*out, p);
}

/* A chain of postfixes nests as deep as it is long, so that each counts. */
static tsr_status postfix(node **out, jinja_parser *p, int *levels)
{
    for (;;) {
        node *inner = *out;
        token_kind kind = peek(p)->kind;
        if (kind != T_DOT && kind != T_LBRACKET && kind != T_LPAREN)
            return TSR_OK;
        TSR_TRY(tsr_jinja_enter(p, peek(p)->line));
        ++*levels;
        if (kind == T_DOT) {
            p->at++;
            TSR_TRY(dotted(out, p, inner));
        } else if (kind == T_LBRACKET) {
            TSR_TRY(tsr_jinja_node(out, p, N_ITEM, peek(p)->line));
            p->at++;
            (*out)->a = inner;
            TSR_TRY(subscript(&(*out)->b, p));
        } else {
            TSR_TRY(call(out, p, inner));
        }
    }
}

/* A filter or test that is named by a string, as in map("trim"), is checked here too. */
static tsr_status check_named(jinja_parser *p, const node *n)
{
    const jinja_text *name = &n->text;
    bool tests = tsr_jinja_is_text(*name, "select") || tsr_jinja_is_text(*name, "reject");
    bool attributes =
        tsr_jinja_is_text(*name, "selectattr") || tsr_jinja_is_text(*name, "rejectattr");
    bool filters = tsr_jinja_is_text(*name, "map");
    const node *argument = n->list;
    if (attributes && argument)
        argument = argument->next;
    if (!(tests || attributes || filters) || !argument || argument->name >= 0)
        return TSR_OK;
    const value *v = &argument->a->constant;
    if (argument->a->kind != N_CONST || v->kind != V_STRING)
        return tsr_jinja_syntax(p->t, n->line, "%.*s needs the name of a %s as a string",
                                (int)name->bytes, name->data, filters ? "filter" : "test");
    int which = filters ? tsr_jinja_filter_find(v->text) : tsr_jinja_test_find(v->text);
    if (which < 0)
        return tsr_jinja_syntax(p->t, n->line, "the %s \"%.*s\" is not supported",
                                filters ? "filter" : "test", (int)v->text.bytes, v->text.data);
    return TSR_OK;
}

/* The name of a filter or test that is next, around *out. */
static tsr_status named(node **out, jinja_parser *p, node_kind kind)
{
    const token *t = peek(p);
    node *inner = *out;
    bool filter = kind == N_FILTER;
    if (t->kind != T_NAME)
        return tsr_jinja_unexpected(p, filter ? "the name of a filter" : "the name of a test");
    int which = filter ? tsr_jinja_filter_find(t->text) : tsr_jinja_test_find(t->text);
    if (which < 0 || p->tokens[p->at + 1].kind == T_DOT)
        return tsr_jinja_syntax(p->t, t->line, "the %s \"%.*s\" is not supported",
                                filter ? "filter" : "test", (int)t->text.bytes, t->text.data);
    TSR_TRY(tsr_jinja_node(out, p, kind, t->line));
    (*out)->a = inner;
    (*out)->which = which;
    (*out)->text = t->text;
    p->at++;
    return TSR_OK;
}

tsr_status tsr_jinja_filter_name(node **out, jinja_parser *p)
{
    TSR_TRY(named(out, p, N_FILTER));
    if (peek(p)->kind == T_LPAREN) {
        p->at++;
        TSR_TRY(arguments(*out, p));
    }
    return check_named(p, *out);
}

/* Whether a test takes the next token as its one argument without parentheses. */
static bool bare_argument(const token *t)
{
    switch (t->kind) {
    case T_NAME:
        return !is_name(t, "else") && !is_name(t, "or") && !is_name(t, "and");
    case T_STRING:
    case T_INT:
    case T_FLOAT:
    case T_LBRACKET:
    case T_LBRACE:
        return true;
    default:
        return false;
    }
}

static tsr_status test(node **out, jinja_parser *p)
{
    node *argument;
    p->at++; /* is */
    bool negated = is_name(peek(p), "not");
    p->at += negated;
    TSR_TRY(named(out, p, N_TEST));
    int line = (*out)->line;
    if (peek(p)->kind == T_LPAREN) {
        p->at++;
        TSR_TRY(arguments(*out, p));
    } else if (bare_argument(peek(p))) {
        int levels = 0;
        if (is_name(peek(p), "is"))
            return tsr_jinja_syntax(p->t, line, "tests cannot be chained with \"is\"");
        TSR_TRY(tsr_jinja_node(&argument, p, N_OPERAND, line));
        TSR_TRY(primary(&argument->a, p));
        TSR_TRY(postfix(&argument->a, p, &levels));
        p->depth -= levels;
        (*out)->list = argument;
        (*out)->count = 1;
    }
    if (negated) {
        node *not_node;
        TSR_TRY(tsr_jinja_node(&not_node, p, N_NOT, line));
        not_node->a = *out;
        *out = not_node;
    }
    return TSR_OK;
}

tsr_status tsr_jinja_filters(node **out, jinja_parser *p)
{
    int levels = 0;
    for (;;) {
        if (peek(p)->kind == T_PIPE) {
            p->at++;
            TSR_TRY(tsr_jinja_filter_name(out, p));
        } else if (is_name(peek(p), "is")) {
            TSR_TRY(test(out, p));
        } else if (peek(p)->kind == T_LPAREN) { /* calls are allowed after a filter */
            TSR_TRY(call(out, p, *out));
        } else {
            p->depth -= levels;
            return TSR_OK;
        }
        TSR_TRY(tsr_jinja_enter(p, peek(p)->line));
        levels++;
    }
}

tsr_status tsr_jinja_unary(node **out, jinja_parser *p, bool with_filters)
{
    const token *t = peek(p);
    int levels = 1;
    TSR_TRY(tsr_jinja_enter(p, t->line));
    if (t->kind == T_SUB || t->kind == T_ADD) {
        p->at++;
        TSR_TRY(tsr_jinja_node(out, p, t->kind == T_SUB ? N_NEG : N_POS, t->line));
        TSR_TRY(tsr_jinja_unary(&(*out)->a, p, false));
    } else {
        TSR_TRY(primary(out, p));
    }
    TSR_TRY(postfix(out, p, &levels));
    if (with_filters)
        TSR_TRY(tsr_jinja_filters(out, p));
    p->depth -= levels;
    return TSR_OK;
}
