/*
 * run.c: running the statements of a template, its scopes, and macros.
 *
 * A for, a with, a macro and a block that is rendered aside have a scope of their own; an if has
 * none. A name is looked up when it is used, from the innermost scope outwards, up to one that hides it.
 */
#include "base/philox.h"
#include "jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

tsr_status tsr_jinja_scope(scope **out, jinja_run *r, scope *parent, const node *body)
{
    TSR_TRY(tsr_jinja_alloc(out, &r->arena, 1, sizeof **out));
    (*out)->parent = parent;
    for (size_t i = 0; body && i < body->hidden_count; i++)
        TSR_TRY(tsr_jinja_scope_set(r, *out, body->hidden[i], (value){.kind = V_ABSENT}));
    return TSR_OK;
}

/* Where a scope has the name, JINJA_NOWHERE if it has not. */
static size_t find_name(const scope *s, int name, size_t *probes)
{
    size_t i;
    do
        i = tsr_jinja_index_next(&s->index, (uint32_t)tsr_mix((uint64_t)name), probes);
    while (i != JINJA_NOWHERE && s->names[i] != name);
    return i;
}

tsr_status tsr_jinja_scope_get(const value **out, jinja_run *r, const scope *s, int name)
{
    for (*out = NULL; s && !*out; s = s->parent) {
        size_t probes = 0, i = find_name(s, name, &probes);
        TSR_TRY(tsr_jinja_spend(r, probes));
        if (i != JINJA_NOWHERE)
            *out = &s->values[i];
    }
    return TSR_OK;
}

static tsr_status grow_scope(jinja_run *r, scope *s)
{
    size_t capacity = s->capacity ? 2 * s->capacity : 4;
    int *names;
    value *values;
    TSR_TRY(tsr_jinja_alloc(&names, &r->arena, capacity, sizeof *names));
    TSR_TRY(tsr_jinja_alloc(&values, &r->arena, capacity, sizeof *values));
    if (s->count) {
        memcpy(names, s->names, s->count * sizeof *names);
        memcpy(values, s->values, s->count * sizeof *values);
    }
    s->names = names;
    s->values = values;
    s->capacity = capacity;
    return TSR_OK;
}

tsr_status tsr_jinja_scope_set(jinja_run *r, scope *s, int name, value v)
{
    size_t probes = 0, i = find_name(s, name, &probes);
    TSR_TRY(tsr_jinja_spend(r, probes));
    if (i != JINJA_NOWHERE) {
        s->values[i] = v;
        return TSR_OK;
    }
    if (s->count == s->capacity)
        TSR_TRY(grow_scope(r, s));
    TSR_TRY(tsr_jinja_index_add(&s->index, &r->arena, (uint32_t)tsr_mix((uint64_t)name), s->count));
    s->names[s->count] = name;
    s->values[s->count++] = v;
    return TSR_OK;
}

/* Renders `body` aside and gives its text. */
static tsr_status capture(value *out, jinja_run *r, const node *body, scope *s)
{
    jinja_writer text = {0}, *before = r->out;
    r->out = &text;
    TSR_TRY(tsr_jinja_body(r, body, s));
    r->out = before;
    *out = tsr_jinja_written(r, &text);
    return TSR_OK;
}

/* ---- assignment ---- */

static tsr_status assign(jinja_run *r, const node *target, scope *s, value v)
{
    if (target->kind == N_NAME)
        return tsr_jinja_scope_set(r, s, target->name, v);
    if (target->kind == N_NSREF) {
        const value *space;
        TSR_TRY(tsr_jinja_scope_get(&space, r, s, target->name));
        if (!space || space->kind != V_NAMESPACE)
            return tsr_jinja_fail(r, "an attribute can be set on a namespace only");
        return tsr_jinja_dict_set(r, space->dict,
                                  tsr_jinja_text(target->text.data, target->text.bytes), v);
    }
    jinja_list *list;
    TSR_TRY(tsr_jinja_iterate(&list, r, &v));
    if (list->count != target->count)
        return tsr_jinja_fail(r, "%zu values for %zu names", list->count, target->count);
    size_t i = 0;
    for (const node *part = target->list; part; part = part->next)
        TSR_TRY(assign(r, part, s, list->items[i++]));
    return TSR_OK;
}

static tsr_status run_set(jinja_run *r, const node *n, scope *s)
{
    value v;
    TSR_TRY(tsr_jinja_eval(&v, r, n->b, s));
    r->line = n->line;
    return assign(r, n->a, s, v);
}

/* The text of a block, through filters if there are any. */
static tsr_status filtered(value *out, jinja_run *r, const node *n, scope *s)
{
    scope *inner;
    TSR_TRY(tsr_jinja_scope(&inner, r, s, n->b));
    TSR_TRY(capture(out, r, n->b, inner));
    if (!n->c)
        return TSR_OK;
    value before = r->hole;
    r->hole = *out;
    TSR_TRY(tsr_jinja_eval(out, r, n->c, s));
    r->hole = before;
    return TSR_OK;
}

static tsr_status run_with(jinja_run *r, const node *n, scope *s)
{
    scope *inner;
    TSR_TRY(tsr_jinja_scope(&inner, r, s, n->b));
    for (const node *set = n->list; set; set = set->next) {
        value v;
        TSR_TRY(tsr_jinja_eval(&v, r, set->b, s));
        TSR_TRY(assign(r, set->a, inner, v));
    }
    return tsr_jinja_body(r, n->b, inner);
}

/* ---- for ---- */

/* Keeps the items for which the loop's condition holds. */
static tsr_status keep(jinja_list **out, jinja_run *r, const node *n, scope *s)
{
    value kept;
    const jinja_list *all = *out;
    TSR_TRY(tsr_jinja_list(&kept, r, V_LIST, all->count));
    kept.list->count = 0;
    for (size_t i = 0; i < all->count; i++) {
        scope *inner;
        value yes;
        TSR_TRY(tsr_jinja_scope(&inner, r, s, NULL));
        TSR_TRY(assign(r, n->a, inner, all->items[i]));
        TSR_TRY(tsr_jinja_eval(&yes, r, n->e, inner));
        if (tsr_jinja_truth(&yes))
            kept.list->items[kept.list->count++] = all->items[i];
    }
    *out = kept.list;
    return TSR_OK;
}

/* As in Jinja the else runs if no pass came to its end: none at all, or each left by break or continue. */
static tsr_status run_for(jinja_run *r, const node *n, scope *s)
{
    value iterable;
    jinja_loop *loop;
    scope *inner;
    bool completed = false;
    TSR_TRY(tsr_jinja_eval(&iterable, r, n->b, s));
    TSR_TRY(tsr_jinja_alloc(&loop, &r->arena, 1, sizeof *loop));
    r->line = n->line;
    TSR_TRY(tsr_jinja_iterate(&loop->items, r, &iterable));
    if (n->e)
        TSR_TRY(keep(&loop->items, r, n, s));
    /* Jinja counts a loop's depth only in recursive loops. */
    loop->depth = 1;
    for (loop->index = 0; loop->index < loop->items->count; loop->index++) {
        r->line = n->line;
        TSR_TRY(tsr_jinja_spend(r, 1));
        TSR_TRY(tsr_jinja_scope(&inner, r, s, n->c));
        TSR_TRY(
            tsr_jinja_scope_set(r, inner, JINJA_NAME_LOOP, (value){.kind = V_LOOP, .loop = loop}));
        TSR_TRY(assign(r, n->a, inner, loop->items->items[loop->index]));
        TSR_TRY(tsr_jinja_body(r, n->c, inner));
        bool stop = r->flow == FLOW_BREAK;
        completed = completed || r->flow == FLOW_ON;
        r->flow = FLOW_ON;
        if (stop)
            break;
    }
    if (completed)
        return TSR_OK;
    TSR_TRY(tsr_jinja_scope(&inner, r, s, n->d));
    return tsr_jinja_body(r, n->d, inner);
}

/* ---- macros ---- */

static tsr_status define_macro(jinja_run *r, const node *n, scope *s)
{
    jinja_macro *macro;
    TSR_TRY(tsr_jinja_alloc(&macro, &r->arena, 1, sizeof *macro));
    macro->macro = n;
    macro->scope = s;
    return tsr_jinja_scope_set(r, s, n->name, (value){.kind = V_MACRO, .macro = macro});
}

/* The value given for a parameter at `position`; V_ABSENT if there is none. */
static value given(const jinja_args *args, size_t position, jinja_text name, size_t *used)
{
    for (size_t i = 0; i < args->count; i++) {
        bool named = args->names[i].data != NULL;
        if (named ? tsr_jinja_same_text(args->names[i], name) : i == position) {
            ++*used;
            return args->values[i];
        }
    }
    return (value){.kind = V_ABSENT};
}

tsr_status tsr_jinja_call_macro(value *out, jinja_run *r, const jinja_macro *m,
                                const jinja_args *args)
{
    const node *n = m->macro;
    size_t position = 0, used = 0;
    scope *inner;
    TSR_TRY(tsr_jinja_scope(&inner, r, m->scope, n->b));
    /* All that is given comes first: a default may name any parameter, and sees no name outside that a
     * parameter has. */
    for (const node *p = n->list; p; p = p->next) {
        TSR_TRY(tsr_jinja_spend(r, args->count));
        TSR_TRY(tsr_jinja_scope_set(r, inner, p->name, given(args, position++, p->text, &used)));
    }
    for (const node *p = n->list; p; p = p->next) {
        const value *found;
        TSR_TRY(tsr_jinja_scope_get(&found, r, inner, p->name));
        value v = *found;
        if (v.kind == V_ABSENT && p->a)
            TSR_TRY(tsr_jinja_eval(&v, r, p->a, inner));
        else if (v.kind == V_ABSENT)
            TSR_TRY(tsr_jinja_undefined(&v, r, "parameter '%.*s' was not provided",
                                        (int)p->text.bytes, p->text.data));
        TSR_TRY(tsr_jinja_scope_set(r, inner, p->name, v));
    }
    if (used != args->count)
        return tsr_jinja_fail(r, "the macro '%.*s' was called with an argument it does not take",
                              (int)n->text.bytes, n->text.data);
    return capture(out, r, n->b, inner);
}

/* ---- statements ---- */

static tsr_status run_generation(jinja_run *r, const node *n, scope *s)
{
    tsr_rendering *to = r->rendering;
    scope *inner;
    size_t begin = r->out->bytes;
    TSR_TRY(tsr_jinja_scope(&inner, r, s, n->b));
    TSR_TRY(tsr_jinja_body(r, n->b, inner));
    if (to->span_count == to->span_capacity) {
        size_t capacity = to->span_capacity ? 2 * to->span_capacity : 8;
        TSR_TRY(tsr_jinja_hold(&r->arena, (capacity - to->span_capacity) * sizeof(tsr_span)));
        tsr_span *spans = realloc(to->spans, capacity * sizeof *spans);
        if (!spans)
            return tsr_fail(TSR_ENOMEM, "no memory for the marks of a template");
        to->spans = spans;
        to->span_capacity = capacity;
    }
    to->spans[to->span_count++] = (tsr_span){begin, r->out->bytes};
    return TSR_OK;
}

/* An elif is an if alone in c, which runs there in the same scope. */
static tsr_status run_if(jinja_run *r, const node *n, scope *s)
{
    value v;
    TSR_TRY(tsr_jinja_eval(&v, r, n->a, s));
    return tsr_jinja_body(r, tsr_jinja_truth(&v) ? n->b : n->c, s);
}

static tsr_status statement(jinja_run *r, const node *n, scope *s)
{
    value v;
    switch (n->kind) {
    case N_TEXT:
        return tsr_jinja_put(r, r->out, n->text.data, n->text.bytes);
    case N_PRINT:
        TSR_TRY(tsr_jinja_eval(&v, r, n->a, s));
        return tsr_jinja_str(r->out, r, &v);
    case N_IF:
        return run_if(r, n, s);
    case N_FOR:
        return run_for(r, n, s);
    case N_SET:
        return run_set(r, n, s);
    case N_SETBLOCK:
        TSR_TRY(filtered(&v, r, n, s));
        return assign(r, n->a, s, v);
    case N_FILTERED:
        TSR_TRY(filtered(&v, r, n, s));
        return tsr_jinja_str(r->out, r, &v);
    case N_WITH:
        return run_with(r, n, s);
    case N_MACRO:
        return define_macro(r, n, s);
    case N_GENERATION:
        return run_generation(r, n, s);
    case N_BREAK:
    case N_CONTINUE:
        r->flow = n->kind == N_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
        return TSR_OK;
    default:
        return tsr_fail(TSR_EINTERNAL, "an expression where a statement is expected");
    }
}

tsr_status tsr_jinja_body(jinja_run *r, const node *body, scope *s)
{
    if (r->depth >= JINJA_RUN_DEPTH)
        return tsr_jinja_fail(r, "calls and expressions nested too deep");
    r->depth++;
    for (const node *n = body; n && r->flow == FLOW_ON; n = n->next) {
        r->line = n->line;
        TSR_TRY(tsr_jinja_spend(r, 1));
        TSR_TRY(statement(r, n, s));
    }
    r->depth--;
    return TSR_OK;
}
