#include "jinja/template.h"

#include "base/hash.h"
#include "jinja/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tsr_status tsr_jinja_syntax(const tsr_template *t, int line, const char *format, ...)
{
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return tsr_fail(TSR_EDATA, "%s:%d: %s", t->name, line, message);
}

tsr_status tsr_jinja_fail(const jinja_run *r, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return tsr_fail(TSR_EDATA, "%s:%d: %s", r->t->name, r->line, message);
}

tsr_status tsr_jinja_intern(int *out, tsr_template *t, jinja_text name)
{
    uint32_t hash = (uint32_t)tsr_hash(TSR_HASH_START, name.data, name.bytes);
    size_t probes = 0, found;
    while ((found = tsr_jinja_index_next(&t->name_index, hash, &probes)) != JINJA_NOWHERE) {
        if (tsr_jinja_same_text(t->names[found], name)) {
            *out = (int)found;
            return TSR_OK;
        }
    }
    TSR_TRY(tsr_jinja_index_add(&t->name_index, &t->arena, hash, t->name_count));
    if (t->name_count == t->name_capacity) {
        size_t capacity = t->name_capacity ? 2 * t->name_capacity : 32;
        jinja_text *names;
        TSR_TRY(tsr_jinja_alloc(&names, &t->arena, capacity, sizeof *names));
        if (t->name_count)
            memcpy(names, t->names, t->name_count * sizeof *names);
        t->names = names;
        t->name_capacity = capacity;
    }
    /* With a zero at its end, to look it up in JSON. */
    char *copy;
    TSR_TRY(tsr_jinja_alloc(&copy, &t->arena, name.bytes + 1, 1));
    memcpy(copy, name.data, name.bytes);
    *out = (int)t->name_count;
    t->names[t->name_count++] = (jinja_text){copy, name.bytes};
    return TSR_OK;
}

static tsr_status parse(tsr_template *t, const char *name, const char *source, size_t bytes)
{
    token *tokens;
    size_t count;
    int loop;
    t->arena.steps = INT64_MAX; /* memory alone limits a source */
    t->arena.name = name;
    TSR_TRY(tsr_jinja_alloc(&t->name, &t->arena, strlen(name) + 1, 1));
    strcpy(t->name, name);
    t->arena.name = t->name;
    TSR_TRY(tsr_jinja_intern(&loop, t, (jinja_text){"loop", 4}));
    TSR_TRY(tsr_jinja_lex(&tokens, &count, t, source, bytes));
    TSR_TRY(tsr_jinja_parse(t, tokens));
    return tsr_jinja_find_hidden(t);
}

tsr_status tsr_template_parse(tsr_template **out, const char *name, const char *source,
                              size_t bytes)
{
    tsr_template *t = calloc(1, sizeof *t);
    if (!t)
        return tsr_fail(TSR_ENOMEM, "no memory for the template %s", name);
    tsr_status status = parse(t, name, source, bytes);
    if (status < 0) {
        tsr_template_destroy(t);
        return status;
    }
    *out = t;
    return TSR_OK;
}

void tsr_template_destroy(tsr_template *template)
{
    if (!template)
        return;
    tsr_jinja_arena_free(&template->arena);
    free(template);
}

bool tsr_template_marks_generation(const tsr_template *template)
{
    return template->generation;
}

void tsr_rendering_free(tsr_rendering *rendering)
{
    tsr_text_free(&rendering->text);
    free(rendering->spans);
    memset(rendering, 0, sizeof *rendering);
}

/* Of the variables only those that the template names are read. */
static tsr_status global_scope(scope **out, jinja_run *r)
{
    TSR_TRY(tsr_jinja_scope(out, r, NULL, NULL));
    for (size_t i = 0; i < r->t->name_count; i++) {
        const json_t *json = json_object_get(r->variables, r->t->names[i].data);
        value v;
        if (!json)
            continue;
        TSR_TRY(tsr_jinja_from_json(&v, r, json, 0));
        TSR_TRY(tsr_jinja_scope_set(r, *out, (int)i, v));
    }
    return TSR_OK;
}

static tsr_status render(jinja_run *r)
{
    scope *global, *root;
    TSR_TRY(global_scope(&global, r));
    TSR_TRY(tsr_jinja_scope(&root, r, global, r->t->body));
    TSR_TRY(tsr_jinja_body(r, r->t->body, root));
    TSR_TRY(tsr_jinja_hold(&r->arena, 2 * r->out->bytes)); /* a text grows to twice what it holds */
    tsr_text_append(&r->rendering->text, r->out->data, r->out->bytes);
    if (r->rendering->text.failed)
        return tsr_fail(TSR_ENOMEM, "no memory for the text of a conversation");
    return TSR_OK;
}

tsr_status tsr_template_render(tsr_rendering *out, const tsr_template *template,
                               const json_t *variables, int64_t now, int64_t *steps)
{
    jinja_writer text = {0};
    jinja_run r = {.t = template,
                   .arena = {.name = template->name},
                   .out = &text,
                   .rendering = out,
                   .variables = variables,
                   .now = now};
    int64_t given = !steps || *steps > TSR_TEMPLATE_STEPS ? TSR_TEMPLATE_STEPS : *steps;
    tsr_text_clear(&out->text);
    out->span_count = 0;
    out->dated = false;
    r.arena.steps = given;
    r.arena.line = &r.line;
    tsr_status status = render(&r);
    if (steps)
        *steps -= given - r.arena.steps;
    tsr_jinja_arena_free(&r.arena);
    return status;
}
