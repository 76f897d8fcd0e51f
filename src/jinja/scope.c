/*
 * scope.c: names that a scope hides until it sets them.
 *
 * Jinja decides before rendering where a name of a scope comes from. One that the scope sets, outside an if
 * and before any other mention of it, and that no scope around it mentions, is undefined until then: what
 * runs inside (a loop's body, a macro) does not see a variable of the caller by that name.
 */
#include "jinja/jinja.h"

typedef struct names {
    const struct names *outer;
    bool *mentioned; /* by interned name */
    int *hidden;
    size_t hidden_count;
} names;

static bool mentioned(const names *s, int name)
{
    for (; s; s = s->outer)
        if (s->mentioned[name])
            return true;
    return false;
}

static void store(names *s, int name, bool conditional)
{
    if (!mentioned(s, name) && !conditional)
        s->hidden[s->hidden_count++] = name;
    s->mentioned[name] = true;
}

/* target: of set or with, one name or a tuple of them. */
static void store_target(names *s, const node *target, bool conditional)
{
    if (target->kind == N_TUPLE)
        for (const node *part = target->list; part; part = part->next)
            store_target(s, part, conditional);
    else if (target->kind == N_NSREF)
        s->mentioned[target->name] = true;
    else
        store(s, target->name, conditional);
}

/* A parameter or the variable of a loop. */
static void declare(names *s, const node *target)
{
    if (target->kind == N_NAME)
        s->mentioned[target->name] = true;
    for (const node *part = target->list; part; part = part->next)
        declare(s, part);
}

static void expression(names *s, const node *n)
{
    if (!n)
        return;
    const node *const parts[] = {n->a, n->b, n->c};
    if (n->kind == N_NAME)
        s->mentioned[n->name] = true;
    for (int i = 0; i < 3; i++)
        expression(s, parts[i]);
    for (const node *item = n->list; item; item = item->next)
        expression(s, item);
}

/* What the statements of one scope mention themselves, in their order. */
static void mentions(names *s, const node *body, bool conditional)
{
    for (const node *n = body; n; n = n->next) {
        if (n->kind == N_PRINT || n->kind == N_IF)
            expression(s, n->a);
        if (n->kind == N_SET || n->kind == N_FOR)
            expression(s, n->b);
        if (n->kind == N_FILTERED)
            expression(s, n->c);
        if (n->kind == N_SET || n->kind == N_SETBLOCK)
            store_target(s, n->a, conditional);
        if (n->kind == N_MACRO)
            store(s, n->name, conditional);
        if (n->kind == N_WITH)
            for (const node *set = n->list; set; set = set->next)
                expression(s, set->b);
        if (n->kind == N_IF) {
            mentions(s, n->b, true);
            mentions(s, n->c, true);
        }
    }
}

static tsr_status open(names *s, tsr_template *t, const names *outer)
{
    *s = (names){.outer = outer};
    TSR_TRY(tsr_jinja_alloc(&s->mentioned, &t->arena, t->name_count, sizeof *s->mentioned));
    return tsr_jinja_alloc(&s->hidden, &t->arena, t->name_count, sizeof *s->hidden);
}

static tsr_status scopes_within(tsr_template *t, const names *s, node *body);

/* The scope of `body`, whose parameters are declared. */
static tsr_status finish(tsr_template *t, names *s, node *body)
{
    if (!body)
        return TSR_OK;
    mentions(s, body, false);
    body->hidden = s->hidden;
    body->hidden_count = s->hidden_count;
    return scopes_within(t, s, body);
}

static tsr_status scope_of(tsr_template *t, const names *outer, const node *n)
{
    names s;
    TSR_TRY(open(&s, t, outer));
    if (n->kind == N_FOR) {
        s.mentioned[JINJA_NAME_LOOP] = true;
        declare(&s, n->a);
    }
    for (const node *part = n->kind == N_WITH || n->kind == N_MACRO ? n->list : NULL; part;
         part = part->next)
        declare(&s, n->kind == N_WITH ? part->a : part);
    for (const node *p = n->kind == N_MACRO ? n->list : NULL; p; p = p->next)
        expression(&s, p->a);
    TSR_TRY(finish(t, &s, n->kind == N_FOR ? n->c : n->b));
    if (n->kind != N_FOR || !n->d)
        return TSR_OK;
    TSR_TRY(open(&s, t, outer));
    return finish(t, &s, n->d);
}

static tsr_status scopes_within(tsr_template *t, const names *s, node *body)
{
    for (node *n = body; n; n = n->next) {
        switch (n->kind) {
        case N_IF:
            TSR_TRY(scopes_within(t, s, n->b));
            TSR_TRY(scopes_within(t, s, n->c));
            break;
        case N_FOR:
        case N_WITH:
        case N_MACRO:
        case N_SETBLOCK:
        case N_FILTERED:
        case N_GENERATION:
            TSR_TRY(scope_of(t, s, n));
            break;
        default:
            break;
        }
    }
    return TSR_OK;
}

tsr_status tsr_jinja_find_hidden(tsr_template *t)
{
    names root;
    TSR_TRY(open(&root, t, NULL));
    return finish(t, &root, t->body);
}
