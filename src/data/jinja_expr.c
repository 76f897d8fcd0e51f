/*
 * jinja_expr.c: expressions, with the precedence of Jinja 3.1's parser: inline if, or, and, not,
 * comparison, + -, ~, * / // %, unary signs, then postfix, filters and tests.
 */
#include "data/jinja_parser.h"

#include <string.h>

static const token *peek(const jinja_parser *p)
{
    return &p->tokens[p->at];
}

static bool is_name(const token *t, const char *name)
{
    return t->kind == T_NAME && tsr_jinja_is_text(t->text, name);
}

tsr_status tsr_jinja_node(node **out, jinja_parser *p, node_kind kind, int line)
{
    TSR_TRY(tsr_jinja_alloc(out, &p->t->arena, 1, sizeof **out));
    (*out)->kind = kind;
    (*out)->line = line;
    (*out)->name = -1;
    return TSR_OK;
}

static tsr_status unexpected(jinja_parser *p, const char *expected)
{
    const token *t = peek(p);
    if (t->kind == T_END)
        return tsr_jinja_syntax(p->t, t->line, "the template ends where %s is expected", expected);
    return tsr_jinja_syntax(p->t, t->line, "expected %s, found \"%.*s\"", expected,
                            (int)(t->text.bytes < 40 ? t->text.bytes : 40), t->text.data);
}

tsr_status tsr_jinja_expect(jinja_parser *p, token_kind kind, const char *what)
{
    if (peek(p)->kind != kind)
        return unexpected(p, what);
    p->at++;
    return TSR_OK;
}

tsr_status tsr_jinja_enter(jinja_parser *p, int line)
{
    if (++p->depth > JINJA_DEPTH)
        return tsr_jinja_syntax(p->t, line, "nested deeper than %d", JINJA_DEPTH);
    return TSR_OK;
}

static tsr_status unary(node **out, jinja_parser *p, bool with_filters);
static tsr_status parse_or(node **out, jinja_parser *p);

/* Appends to n->list, whose end is *tail. */
static void append(node *n, node ***tail, node *child)
{
    **tail = child;
    *tail = &child->next;
    n->count++;
}

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
        append(*out, &tail, item);
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
        append(*out, &tail, item);
        TSR_TRY(tsr_jinja_expect(p, T_COLON, "a colon"));
        TSR_TRY(tsr_jinja_expression(&item, p));
        append(*out, &tail, item);
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
        return unexpected(p, "a value");
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
        append(n, &tail, argument);
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
                return unexpected(p, "]");
            slice = true;
            p->at++;
            continue;
        }
        if (parts[part])
            return unexpected(p, "]");
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

tsr_status tsr_jinja_filter_name(node **out, jinja_parser *p)
{
    const token *t = peek(p);
    node *inner = *out;
    if (t->kind != T_NAME)
        return unexpected(p, "the name of a filter");
    int which = tsr_jinja_filter_find(t->text);
    if (which < 0 || p->tokens[p->at + 1].kind == T_DOT)
        return tsr_jinja_syntax(p->t, t->line, "the filter \"%.*s\" is not supported",
                                (int)t->text.bytes, t->text.data);
    TSR_TRY(tsr_jinja_node(out, p, N_FILTER, t->line));
    (*out)->a = inner;
    (*out)->which = which;
    (*out)->text = t->text;
    p->at++;
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
    node *inner = *out, *argument;
    p->at++; /* is */
    bool negated = is_name(peek(p), "not");
    p->at += negated;
    const token *t = peek(p);
    if (t->kind != T_NAME)
        return unexpected(p, "the name of a test");
    int which = tsr_jinja_test_find(t->text);
    if (which < 0 || p->tokens[p->at + 1].kind == T_DOT)
        return tsr_jinja_syntax(p->t, t->line, "the test \"%.*s\" is not supported",
                                (int)t->text.bytes, t->text.data);
    TSR_TRY(tsr_jinja_node(out, p, N_TEST, t->line));
    (*out)->a = inner;
    (*out)->which = which;
    (*out)->text = t->text;
    p->at++;
    if (peek(p)->kind == T_LPAREN) {
        p->at++;
        TSR_TRY(arguments(*out, p));
    } else if (bare_argument(peek(p))) {
        int levels = 0;
        if (is_name(peek(p), "is"))
            return tsr_jinja_syntax(p->t, t->line, "tests cannot be chained with \"is\"");
        TSR_TRY(tsr_jinja_node(&argument, p, N_OPERAND, t->line));
        TSR_TRY(primary(&argument->a, p));
        TSR_TRY(postfix(&argument->a, p, &levels));
        p->depth -= levels;
        (*out)->list = argument;
        (*out)->count = 1;
    }
    if (negated) {
        node *not_node;
        TSR_TRY(tsr_jinja_node(&not_node, p, N_NOT, t->line));
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

static tsr_status unary(node **out, jinja_parser *p, bool with_filters)
{
    const token *t = peek(p);
    int levels = 1;
    TSR_TRY(tsr_jinja_enter(p, t->line));
    if (t->kind == T_SUB || t->kind == T_ADD) {
        p->at++;
        TSR_TRY(tsr_jinja_node(out, p, t->kind == T_SUB ? N_NEG : N_POS, t->line));
        TSR_TRY(unary(&(*out)->a, p, false));
    } else {
        TSR_TRY(primary(out, p));
    }
    TSR_TRY(postfix(out, p, &levels));
    if (with_filters)
        TSR_TRY(tsr_jinja_filters(out, p));
    p->depth -= levels;
    return TSR_OK;
}

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
    TSR_TRY(unary(out, p, true));
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
        append(*out, &tail, operand);
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
            append(*out, &tail, item);
        }
    }
    p->depth--;
    return TSR_OK;
}
