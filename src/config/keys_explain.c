/*
 * keys_explain.c: one key in full, ours or a peer's: what it does, what it takes, its default and its other names.
 */
#include "config/config.h"
#include "config/peers.h"

#include <string.h>

#define INDENT  12 /* columns before a fact */
#define COLUMNS 80

static void put_fact(tsr_text *out, const char *label, const char *text)
{
    tsr_text_printf(out, "  %-*s", INDENT - 2, label);
    tsr_text_wrap(out, text, INDENT, COLUMNS);
    tsr_text_puts(out, "\n");
}

const char *tsr_keys_type_name(const tsr_key *key)
{
    static const char *const names[] = {[TSR_KEY_BOOL] = "true or false",
                                        [TSR_KEY_WORD] = "word",
                                        [TSR_KEY_INT] = "whole number",
                                        [TSR_KEY_NUMBER] = "number",
                                        [TSR_KEY_STEPS] = "steps or share",
                                        [TSR_KEY_DURATION] = "time",
                                        [TSR_KEY_BYTES] = "size",
                                        [TSR_KEY_STRING] = "text",
                                        [TSR_KEY_STRINGS] = "list",
                                        [TSR_KEY_DATA] = "list",
                                        [TSR_KEY_NAMES] = "map",
                                        [TSR_KEY_MODULES] = "list",
                                        [TSR_KEY_INTS] = "list",
                                        [TSR_KEY_TOKENS] = "list or map",
                                        [TSR_KEY_PATTERNS] = "map",
                                        [TSR_KEY_UNITS] = "word or list",
                                        [TSR_KEY_LR_KWARGS] = "map"};
    return names[key->type];
}

void tsr_keys_default(tsr_text *out, const tsr_key *key)
{
    tsr_text_printf(out, "%s%s", key->derived ? "as " : "",
                    key->derived ? key->derived : key->initial);
    if (key->trl)
        tsr_text_printf(out, "; TRL's is %s", key->trl);
}

static void put_accepted(tsr_text *out, const tsr_key *key)
{
    tsr_auto_text line = {0};
    if (key->later)
        tsr_text_printf(&line, "only %s in this version: %s", key->initial, key->later);
    else
        tsr_keys_expects(&line, key);
    for (int i = 0, count = 0; key->type == TSR_KEY_DATA; i++) {
        const tsr_key *member = tsr_keys_of_set(&count) + i;
        if (i == count)
            break;
        tsr_text_printf(&line, "%s%s", i ? ", " : "; a map has ", member->name);
    }
    put_fact(out, "accepts", tsr_text_string(&line));
    for (const tsr_key_word *w = key->words; w && w->word; w++) {
        if (!w->refused)
            continue;
        tsr_text_clear(&line);
        tsr_text_printf(&line, "%s %s", w->word, w->refused);
        put_fact(out, "refuses", tsr_text_string(&line));
    }
    out->failed |= line.failed;
}

/* One more name, once; whose it is follows the last of a peer's. */
static void put_alias(tsr_text *line, const char *name, const char *whose, const char **before)
{
    if (*before)
        tsr_text_puts(line, strcmp(*before, whose) ? "; " : ", ");
    if (!*before || strcmp(*before, whose))
        tsr_text_printf(line, "%s: ", whose);
    tsr_text_puts(line, name);
    *before = whose;
}

void tsr_keys_other_names(tsr_text *out, const tsr_key *key)
{
    const char *before = NULL;
    for (const tsr_key_alias *row = tsr_keys_aliases(); row->name; row++)
        if (!strcmp(row->key, key->name))
            put_alias(out, row->name, "TRL, Transformers", &before);
    for (int i = 0; i < tsr_peers_count(); i++) {
        const tsr_peer *peer = tsr_peers_at(i);
        for (const tsr_key_alias *row = peer->renamed; row && row->name; row++)
            if (!strcmp(row->key, key->name))
                put_alias(out, row->name, peer->name, &before);
        for (const tsr_peer_converted *row = peer->converted; row && row->name; row++)
            if (row->here && !strcmp(row->here, key->name) && strcmp(row->name, key->name) != 0)
                put_alias(out, row->name, peer->name, &before);
    }
}

static void explain(tsr_text *out, const tsr_key *key)
{
    tsr_auto_text line = {0};
    tsr_text_printf(out, "%s (%s)\n  ", key->name, key->group);
    tsr_text_wrap(out, key->help, 2, COLUMNS);
    tsr_text_puts(out, "\n");
    put_fact(out, "type", tsr_keys_type_name(key));
    tsr_keys_default(&line, key);
    put_fact(out, "default", tsr_text_string(&line));
    put_accepted(out, key);
    tsr_text_clear(&line);
    tsr_keys_other_names(&line, key);
    if (line.length)
        put_fact(out, "elsewhere", tsr_text_string(&line));
    if (key->flags & TSR_KEY_RESULT)
        put_fact(out, "resuming", "must have the value of the checkpoint");
    if (key->flags & TSR_KEY_ONE_START)
        put_fact(out, "job.yaml", "a run's own does not carry it: it is meant for one start");
    out->failed |= line.failed;
}

/* The words of docs/peers.md about a key that is converted into no single one of ours. */
static const char *converted_to(const char *name)
{
    for (int i = 0; i < tsr_peers_count(); i++)
        for (const tsr_peer_converted *c = tsr_peers_at(i)->converted; c && c->name; c++)
            if (!strcmp(c->name, name))
                return c->what;
    return NULL;
}

/* A peer's key that is no name of one of ours. */
static void explain_other(tsr_text *out, const char *name, const tsr_key_peer *row)
{
    tsr_auto_text line = {0};
    tsr_text_printf(out, "%s (another trainer's)\n", name);
    if (row && row->nothing)
        tsr_text_printf(&line, "only %.*s: %s", (int)strcspn(row->nothing, " "), row->nothing,
                        row->why);
    else if (row)
        tsr_text_printf(&line, "any value, without effect%s%s", row->why ? ": " : "",
                        row->why ? row->why : "");
    else if (converted_to(name))
        tsr_text_puts(&line, converted_to(name));
    put_fact(out, "accepts", tsr_text_string(&line));
    out->failed |= line.failed;
}

tsr_status tsr_config_help_key(tsr_text *out, const char *name)
{
    int index = tsr_keys_find(name);
    const tsr_key_alias *alias = tsr_keys_alias(name);
    const char *called = index >= 0 ? NULL : alias ? alias->key : tsr_peers_called(name);
    const tsr_key_peer *other = NULL;
    if (index >= 0) {
        explain(out, tsr_keys_at(index));
    } else if (called && tsr_keys_find(called) >= 0) {
        tsr_text_printf(out, "%s is another trainer's name; here it is %s:\n\n", name, called);
        explain(out, tsr_keys_at(tsr_keys_find(called)));
    } else if (tsr_peers_row(name, NULL, &other)) {
        explain_other(out, name, other);
    } else {
        const char *near = tsr_keys_nearest(name);
        return tsr_fail(TSR_EUSAGE, "no key '%.60s'%s%s%s", name, near ? "; did you mean " : "",
                        near ? near : "", near ? "?" : "");
    }
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory: help text") : TSR_OK;
}
