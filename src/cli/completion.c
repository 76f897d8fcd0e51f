/*
 * completion.c: completions of shells, made of a template and of the tables.
 */
#include "cli/options.h"
#include "cli/pages.h"
#include "config/keys.h"

#include <string.h>

/* ---- words and lines for bash and zsh ---- */

static void put_words(tsr_text *out, const char *word)
{
    tsr_text_printf(out, "%s%s", out->length ? " " : "", word);
}

static void put_verb_names(tsr_text *out, const char *between, bool jobs_only)
{
    const tsr_usage_verb *verb;
    for (int i = 0; (verb = tsr_usage_verb_at(i)) != NULL; i++) {
        if (jobs_only && !tsr_usage_takes_job(verb))
            continue;
        tsr_text_printf(out, "%s%s", out->length ? between : "", verb->name);
        if (verb->also)
            tsr_text_printf(out, "%s%s", between, verb->also);
    }
}

static void put_keys(tsr_text *out)
{
    for (int i = 0; i < tsr_keys_count(); i++)
        put_words(out, tsr_keys_at(i)->name);
}

/* The words of a key; nothing: it takes others. */
static void put_values(tsr_text *out, const tsr_key *key)
{
    bool listed = false;
    if (key->type == TSR_KEY_BOOL)
        put_words(out, "true false");
    for (const tsr_key_word *w = key->words; key->type == TSR_KEY_WORD && w->word; w++) {
        if (w->refused)
            continue;
        put_words(out, w->word);
        listed |= key->none && !strcmp(w->word, key->none);
    }
    if (out->length && key->none && !listed)
        put_words(out, key->none);
}

static void put_value_cases(tsr_text *out)
{
    for (int i = 0; i < tsr_keys_count(); i++) {
        tsr_auto_text words = {0};
        put_values(&words, tsr_keys_at(i));
        if (words.length)
            tsr_text_printf(out, "%s    %s) echo '%s' ;;", out->length ? "\n" : "",
                            tsr_keys_at(i)->name, tsr_text_string(&words));
        out->failed |= words.failed;
    }
}

static void put_option_names(tsr_text *out, const tsr_usage_verb *verb)
{
    const char *line = verb->options;
    tsr_option option;
    while (tsr_option_next(&option, &line)) {
        if (*option.name == '-')
            put_words(out, option.name);
        tsr_text_free(&option.what);
    }
    if (tsr_usage_takes_job(verb))
        put_words(out, "--config");
    put_words(out, "--help");
}

static void put_option_cases(tsr_text *out)
{
    const tsr_usage_verb *verb;
    for (int i = 0; (verb = tsr_usage_verb_at(i)) != NULL; i++) {
        tsr_auto_text names = {0};
        put_option_names(&names, verb);
        tsr_text_printf(out, "%s    %s%s%s) echo '%s' ;;", i ? "\n" : "", verb->name,
                        verb->also ? "|" : "", verb->also ? verb->also : "",
                        tsr_text_string(&names));
        out->failed |= names.failed;
    }
}

/* Options whose argument is a file, or is none. */
static void put_arguments(tsr_text *out, bool files)
{
    const tsr_usage_verb *verb;
    if (files)
        tsr_text_puts(out, "--config");
    for (int i = 0; (verb = tsr_usage_verb_at(i)) != NULL; i++) {
        const char *line = verb->options;
        tsr_option option;
        while (tsr_option_next(&option, &line)) {
            bool file = !strncmp(option.argument, "FILE", 4);
            if (*option.argument && file == files)
                tsr_text_printf(out, "%s%s", out->length ? "|" : "", option.name);
            tsr_text_free(&option.what);
        }
    }
}

/* ---- calls for fish ---- */

static void put_quoted(tsr_text *out, const char *text)
{
    tsr_text_puts(out, "'");
    for (const char *p = text; *p; p++)
        tsr_text_printf(out, *p == '\'' || *p == '\\' ? "\\%c" : "%c", *p);
    tsr_text_puts(out, "'");
}

static void put_fish_verbs(tsr_text *out)
{
    const tsr_usage_verb *verb;
    for (int i = 0; (verb = tsr_usage_verb_at(i)) != NULL; i++) {
        tsr_text_printf(out, "%scomplete -c tessera -n __fish_use_subcommand -f -a '%s' -d ",
                        i ? "\n" : "", verb->name);
        put_quoted(out, verb->what);
    }
}

static void put_fish_option(tsr_text *out, const tsr_usage_verb *verb, const char *name,
                            const char *argument, const char *what)
{
    bool file = !strncmp(argument, "FILE", 4) || !strcmp(argument, "job.yaml");
    tsr_text_printf(
        out, "%scomplete -c tessera -n '__fish_seen_subcommand_from %s%s%s' -%s %s%s -d ",
        out->length ? "\n" : "", verb->name, verb->also ? " " : "", verb->also ? verb->also : "",
        name[1] == '-' ? "l" : "s", name + strspn(name, "-"),
        file        ? " -r -F"
        : *argument ? " -x"
                    : "");
    put_quoted(out, what);
}

static void put_fish_options(tsr_text *out)
{
    const tsr_usage_verb *verb;
    for (int i = 0; (verb = tsr_usage_verb_at(i)) != NULL; i++) {
        const char *line = verb->options;
        tsr_option option;
        while (tsr_option_next(&option, &line)) {
            if (*option.name == '-')
                put_fish_option(out, verb, option.name, option.argument,
                                tsr_text_string(&option.what));
            tsr_text_free(&option.what);
        }
        if (tsr_usage_takes_job(verb))
            put_fish_option(out, verb, "--config", "job.yaml", "the job");
    }
}

static void put_fish_keys(tsr_text *out)
{
    tsr_auto_text jobs = {0};
    put_verb_names(&jobs, " ", true);
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        tsr_auto_text values = {0};
        put_values(&values, key);
        tsr_text_printf(out, "%scomplete -c tessera -n '__fish_seen_subcommand_from %s' -a '",
                        i ? "\n" : "", tsr_text_string(&jobs));
        if (!values.length)
            tsr_text_printf(out, "%s=", key->name);
        for (const char *p = tsr_text_string(&values); *p; p += strcspn(p, " "), p += *p == ' ')
            tsr_text_printf(out, "%s%s=%.*s", p == values.data ? "" : " ", key->name,
                            (int)strcspn(p, " "), p);
        tsr_text_puts(out, "' -d ");
        put_quoted(out, key->help);
        out->failed |= values.failed;
    }
    out->failed |= jobs.failed;
}

/* ---- templates ---- */

/* What stands for a marker; nothing: it is none. */
static void put_part(tsr_text *out, const char *marker, size_t length, bool fish)
{
    static const char *const names[] = {"VERBS", "OPTIONS", "KEYS",    "VALUES",
                                        "JOBS",  "FILES",   "NUMBERS", "KEYS_OF_JOBS"};
    size_t which = 0;
    while (which < 8 && (strlen(names[which]) != length || memcmp(names[which], marker, length)))
        which++;
    if (which == 0 && fish)
        put_fish_verbs(out);
    else if (which == 0)
        put_verb_names(out, " ", false);
    else if (which == 1 && fish)
        put_fish_options(out);
    else if (which == 1)
        put_option_cases(out);
    else if (which == 2)
        put_keys(out);
    else if (which == 3)
        put_value_cases(out);
    else if (which == 4)
        put_verb_names(out, "|", true);
    else if (which == 5 || which == 6)
        put_arguments(out, which == 5);
    else if (which == 7)
        put_fish_keys(out);
}

tsr_status tsr_pages_completion(tsr_text *out, const char *pattern, bool fish)
{
    for (const char *p = pattern; *p;) {
        const char *end = *p == '@' ? strchr(p + 1, '@') : NULL;
        tsr_auto_text part = {0};
        if (end)
            put_part(&part, p + 1, (size_t)(end - p - 1), fish);
        if (part.length) {
            tsr_text_puts(out, tsr_text_string(&part));
            p = end + 1;
        } else
            tsr_text_append(out, p++, 1);
        out->failed |= part.failed;
    }
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory: a completion") : TSR_OK;
}
