/*
 * parse.c: tokens to the tree, statement by statement as Jinja's own parser reads them.
 * Expressions are in expr.c.
 */
#include "jinja/jinja.h"
#include "jinja/parser.h"

tsr_status tsr_jinja_node(node **out, jinja_parser *p, node_kind kind, int line)
{
    TSR_TRY(tsr_jinja_alloc(out, &p->t->arena, 1, sizeof **out));
    (*out)->kind = kind;
    (*out)->line = line;
    (*out)->name = -1;
    return TSR_OK;
}

tsr_status tsr_jinja_unexpected(jinja_parser *p, const char *expected)
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
        return tsr_jinja_unexpected(p, what);
    p->at++;
    return TSR_OK;
}

tsr_status tsr_jinja_enter(jinja_parser *p, int line)
{
    if (++p->depth > JINJA_DEPTH)
        return tsr_jinja_syntax(p->t, line, "nested deeper than %d", JINJA_DEPTH);
    return TSR_OK;
}

static bool skip_name(jinja_parser *p, const char *name)
{
    bool same = is_name(peek(p), name);
    p->at += same;
    return same;
}

static tsr_status body(node **out, jinja_parser *p, const char *const *ends);

static tsr_status block_end(jinja_parser *p)
{
    return tsr_jinja_expect(p, T_BLOCK_END, "%}");
}

/* {% end %} of a statement, whose name has been seen. */
static tsr_status finish(jinja_parser *p)
{
    p->at++;
    return block_end(p);
}

static tsr_status target_name(node **out, jinja_parser *p, bool attributes)
{
    const token *t = peek(p);
    if (t->kind != T_NAME)
        return tsr_jinja_syntax(p->t, t->line, "expected a name to assign to, found \"%.*s\"",
                                (int)t->text.bytes, t->text.data);
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < 6; i++)
        if (is_name(t, constants[i]))
            return tsr_jinja_syntax(p->t, t->line, "cannot assign to %s", constants[i]);
    TSR_TRY(tsr_jinja_node(out, p, N_NAME, t->line));
    TSR_TRY(tsr_jinja_intern(&(*out)->name, p->t, t->text));
    (*out)->text = t->text;
    p->at++;
    if (!attributes || peek(p)->kind != T_DOT)
        return TSR_OK;
    p->at++;
    if (peek(p)->kind != T_NAME)
        return tsr_jinja_syntax(p->t, t->line, "expected the name of an attribute");
    (*out)->kind = N_NSREF;
    (*out)->text = peek(p)->text;
    p->at++;
    return TSR_OK;
}

/* One name or a tuple of names, with or without parentheses. */
static tsr_status target(node **out, jinja_parser *p, bool attributes)
{
    bool paren = peek(p)->kind == T_LPAREN;
    int line = peek(p)->line;
    node *first, **tail;
    p->at += paren;
    TSR_TRY(target_name(&first, p, attributes));
    *out = first;
    if (peek(p)->kind == T_COMMA) {
        TSR_TRY(tsr_jinja_node(out, p, N_TUPLE, line));
        (*out)->list = first;
        (*out)->count = 1;
        tail = &first->next;
        while (peek(p)->kind == T_COMMA) {
            p->at++;
            if (peek(p)->kind != T_NAME || is_name(peek(p), "in"))
                break;
            TSR_TRY(target_name(tail, p, attributes));
            tail = &(*tail)->next;
            (*out)->count++;
        }
    }
    return paren ? tsr_jinja_expect(p, T_RPAREN, ")") : TSR_OK;
}

/* After "if" or "elif". */
static tsr_status parse_if(node **out, jinja_parser *p, int line)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    TSR_TRY(tsr_jinja_node(out, p, N_IF, line));
    node *n = *out;
    TSR_TRY(tsr_jinja_enter(p, line));
    TSR_TRY(tsr_jinja_tuple(&n->a, p, false));
    TSR_TRY(block_end(p));
    TSR_TRY(body(&n->b, p, ends));
    if (is_name(peek(p), "elif")) {
        p->at++;
        TSR_TRY(parse_if(&n->c, p, peek(p)->line));
    } else if (skip_name(p, "else")) {
        TSR_TRY(block_end(p));
        TSR_TRY(body(&n->c, p, last));
        TSR_TRY(finish(p));
    } else {
        TSR_TRY(finish(p));
    }
    p->depth--;
    return TSR_OK;
}

static tsr_status parse_for(node **out, jinja_parser *p, int line)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    TSR_TRY(tsr_jinja_node(out, p, N_FOR, line));
    node *n = *out;
    TSR_TRY(target(&n->a, p, false));
    if (!skip_name(p, "in"))
        return tsr_jinja_syntax(p->t, line, "for needs \"in\"");
    TSR_TRY(tsr_jinja_tuple(&n->b, p, true));
    if (skip_name(p, "if"))
        TSR_TRY(tsr_jinja_expression(&n->e, p));
    if (is_name(peek(p), "recursive"))
        return tsr_jinja_syntax(p->t, line, "a recursive for is not supported");
    TSR_TRY(block_end(p));
    p->loops++;
    TSR_TRY(body(&n->c, p, ends));
    p->loops--;
    if (skip_name(p, "else")) {
        TSR_TRY(block_end(p));
        TSR_TRY(body(&n->d, p, last));
    }
    return finish(p);
}

/* A body that is rendered aside: break cannot leave it. */
static tsr_status aside(node **out, jinja_parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    int loops = p->loops;
    p->loops = 0;
    p->asides++;
    TSR_TRY(body(out, p, ends));
    p->asides--;
    p->loops = loops;
    return finish(p);
}

static tsr_status parse_set(node **out, jinja_parser *p, int line)
{
    TSR_TRY(tsr_jinja_node(out, p, N_SET, line));
    node *n = *out;
    TSR_TRY(target(&n->a, p, true));
    if (peek(p)->kind == T_ASSIGN) {
        p->at++;
        TSR_TRY(tsr_jinja_tuple(&n->b, p, false));
        return block_end(p);
    }
    n->kind = N_SETBLOCK;
    if (n->a->kind == N_TUPLE)
        return tsr_jinja_syntax(p->t, line, "a set block has one target");
    if (peek(p)->kind == T_PIPE) {
        TSR_TRY(tsr_jinja_node(&n->c, p, N_HOLE, line));
        TSR_TRY(tsr_jinja_filters(&n->c, p));
    }
    TSR_TRY(block_end(p));
    return aside(&n->b, p, "endset");
}

static tsr_status parse_with(node **out, jinja_parser *p, int line)
{
    static const char *const ends[] = {"endwith", NULL};
    TSR_TRY(tsr_jinja_node(out, p, N_WITH, line));
    node **tail = &(*out)->list;
    while (peek(p)->kind != T_BLOCK_END) {
        if ((*out)->list)
            TSR_TRY(tsr_jinja_expect(p, T_COMMA, ","));
        TSR_TRY(tsr_jinja_node(tail, p, N_SET, peek(p)->line));
        TSR_TRY(target_name(&(*tail)->a, p, false));
        TSR_TRY(tsr_jinja_expect(p, T_ASSIGN, "="));
        TSR_TRY(tsr_jinja_expression(&(*tail)->b, p));
        tail = &(*tail)->next;
    }
    TSR_TRY(block_end(p));
    TSR_TRY(body(&(*out)->b, p, ends));
    return finish(p);
}

static tsr_status parse_macro(node **out, jinja_parser *p, int line)
{
    TSR_TRY(tsr_jinja_node(out, p, N_MACRO, line));
    node *n = *out, *name, **tail = &n->list;
    TSR_TRY(target_name(&name, p, false));
    n->name = name->name;
    n->text = name->text;
    TSR_TRY(tsr_jinja_expect(p, T_LPAREN, "("));
    bool defaults = false;
    while (peek(p)->kind != T_RPAREN) {
        if (n->list)
            TSR_TRY(tsr_jinja_expect(p, T_COMMA, ","));
        TSR_TRY(target_name(tail, p, false));
        if (peek(p)->kind == T_ASSIGN) {
            p->at++;
            defaults = true;
            TSR_TRY(tsr_jinja_expression(&(*tail)->a, p));
        } else if (defaults) {
            return tsr_jinja_syntax(p->t, line, "a parameter without default follows one with");
        }
        tail = &(*tail)->next;
        n->count++;
    }
    p->at++;
    TSR_TRY(block_end(p));
    return aside(&n->b, p, "endmacro");
}

static tsr_status parse_generation(node **out, jinja_parser *p, int line)
{
    /* Hugging Face's marks of such blocks count from the wrong place. */
    if (p->asides)
        return tsr_jinja_syntax(
            p->t, line,
            "{%% generation %%} inside a macro, a set block, a filter or another "
            "{%% generation %%} is not supported");
    TSR_TRY(tsr_jinja_node(out, p, N_GENERATION, line));
    TSR_TRY(block_end(p));
    p->t->generation = true;
    return aside(&(*out)->b, p, "endgeneration");
}

static tsr_status parse_filtered(node **out, jinja_parser *p, int line)
{
    TSR_TRY(tsr_jinja_node(out, p, N_FILTERED, line));
    TSR_TRY(tsr_jinja_node(&(*out)->c, p, N_HOLE, line));
    TSR_TRY(tsr_jinja_filter_name(&(*out)->c, p));
    TSR_TRY(tsr_jinja_filters(&(*out)->c, p));
    TSR_TRY(block_end(p));
    return aside(&(*out)->b, p, "endfilter");
}

static tsr_status parse_jump(node **out, jinja_parser *p, int line, node_kind kind)
{
    if (!p->loops)
        return tsr_jinja_syntax(p->t, line, "break or continue outside a for");
    TSR_TRY(tsr_jinja_node(out, p, kind, line));
    return block_end(p);
}

/* After {% and the statement's name. */
static tsr_status statement(node **out, jinja_parser *p, const token *t)
{
    if (is_name(t, "if"))
        return parse_if(out, p, t->line);
    if (is_name(t, "for"))
        return parse_for(out, p, t->line);
    if (is_name(t, "set"))
        return parse_set(out, p, t->line);
    if (is_name(t, "with"))
        return parse_with(out, p, t->line);
    if (is_name(t, "macro"))
        return parse_macro(out, p, t->line);
    if (is_name(t, "generation"))
        return parse_generation(out, p, t->line);
    if (is_name(t, "filter"))
        return parse_filtered(out, p, t->line);
    if (is_name(t, "break"))
        return parse_jump(out, p, t->line, N_BREAK);
    if (is_name(t, "continue"))
        return parse_jump(out, p, t->line, N_CONTINUE);
    return tsr_jinja_syntax(p->t, t->line, "the statement {%% %.*s %%} is not supported here",
                            (int)t->text.bytes, t->text.data);
}

static tsr_status print(node **out, jinja_parser *p, const token *t)
{
    TSR_TRY(tsr_jinja_node(out, p, N_PRINT, t->line));
    TSR_TRY(tsr_jinja_tuple(&(*out)->a, p, false));
    return tsr_jinja_expect(p, T_PRINT_END, "}}");
}

/* Statements up to {% and one of `ends` (which stays to be read), or to the end of the source. */
static tsr_status body(node **out, jinja_parser *p, const char *const *ends)
{
    int line = p->tokens[p->at ? p->at - 1 : 0].line; /* of the statement's own tag */
    TSR_TRY(tsr_jinja_enter(p, line));
    for (node **tail = out;; tail = &(*tail)->next) {
        const token *t = peek(p);
        if (t->kind == T_END) {
            if (!ends)
                break;
            while (ends[1]) /* the end itself is the last of them */
                ends++;
            return tsr_jinja_syntax(p->t, line, "{%% %s %%} is missing", ends[0]);
        }
        p->at++;
        if (t->kind == T_DATA) {
            TSR_TRY(tsr_jinja_node(tail, p, N_TEXT, t->line));
            (*tail)->text = t->text;
            continue;
        }
        if (t->kind == T_PRINT_BEGIN) {
            TSR_TRY(print(tail, p, t));
            continue;
        }
        t = peek(p);
        bool end = false;
        for (const char *const *e = ends; e && *e; e++)
            end = end || is_name(t, *e);
        if (end)
            break;
        if (t->kind != T_NAME)
            return tsr_jinja_syntax(p->t, t->line, "a statement's name is missing after {%%");
        p->at++;
        TSR_TRY(statement(tail, p, t));
    }
    p->depth--;
    return TSR_OK;
}

tsr_status tsr_jinja_parse(tsr_template *t, const token *tokens)
{
    jinja_parser p = {.t = t, .tokens = tokens};
    return body(&t->body, &p, NULL);
}
