#include "config/config.h"

#include "base/called.h"
#include "base/utf8.h"
#include "config/config_number.h"
#include "config/config_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES (1 << 20)

typedef struct {
    tsr_config config;
    tsr_config_errors errors;
    tsr_config_layer layer;
    tsr_text no_effect, taken_as; /* lists for the notes */
} loader;

static const char *format_where(loader *l, const char *format, const char *name, int line)
{
    tsr_auto_text where = {0};
    tsr_text_printf(&where, format, name, line); /* one of two literals in this file */
    const char *copy = tsr_config_store_copy(l->config.store, tsr_text_string(&where));
    return copy ? copy : name;
}

static void put_name(tsr_text *list, const char *name)
{
    tsr_text_printf(list, "%s%s", list->length ? ", " : "", name);
}

static void apply_peer(loader *l, const char *name, const tsr_yaml_value *value, const char *where,
                       const tsr_key_peer *peer)
{
    if (!peer->nothing) {
        put_name(&l->no_effect, name);
        return;
    }
    const char *text = tsr_config_bool_word(value);
    if (!text)
        text = value->kind == TSR_YAML_LIST  ? (value->count ? "a list" : "[]")
               : value->kind == TSR_YAML_MAP ? (value->count ? "a map" : "{}")
               : tsr_yaml_is_null(value)     ? "null"
               : *value->text                ? value->text
                                             : "null";
    double number;
    bool is_zero = tsr_number_parse(&number, text) && number == 0;
    size_t length = is_zero ? 1 : strlen(text);
    if (is_zero)
        text = "0";
    for (const char *word = peer->nothing; *word;) {
        size_t n = strcspn(word, " ");
        if (n == length && !strncmp(word, text, n))
            return;
        word += n + (word[n] == ' ');
    }
    tsr_auto_text found = {0};
    tsr_config_found(&found, value);
    size_t first = strcspn(peer->nothing, " ");
    tsr_config_error(&l->errors, where,
                     "%s: found %s; not supported here: %s; only %.*s is allowed", name,
                     tsr_text_string(&found), peer->why, (int)first, peer->nothing);
}

static void unknown(loader *l, const char *name, const char *where)
{
    const char *near = tsr_keys_nearest(name);
    const tsr_yaml_value shown = {.kind = TSR_YAML_SCALAR, .text = name, .quoted = true};
    tsr_auto_text text = {0};
    tsr_config_found(&text, &shown);
    if (near)
        tsr_config_error(&l->errors, where, "no key %s; did you mean %s?", tsr_text_string(&text),
                         near);
    else
        tsr_config_error(&l->errors, where, "no key %s; `%s train --help` lists all keys",
                         tsr_text_string(&text), tsr_called());
}

/* The value in our words. False: nothing to set, or an error was said. */
static bool translate(loader *l, tsr_yaml_value *value, const tsr_key_alias *alias,
                      const char *where)
{
    double number;
    if (alias->below > 0 && value->kind == TSR_YAML_SCALAR &&
        tsr_number_parse(&number, value->text) && number >= alias->below) {
        tsr_config_error(&l->errors, where,
                         "%s: found '%s'; expected a share from 0 to below 1 (a number of steps is "
                         "%s)",
                         alias->name, value->text, alias->key);
        return false;
    }
    if (tsr_yaml_is_null(value) && (alias->map || alias->below > 0)) /* the peer's "not given" */
        return false;
    if (!alias->map)
        return true;
    const char *word = tsr_config_bool_word(value);
    const char *text = word ? word : value->kind == TSR_YAML_SCALAR ? value->text : "";
    for (const tsr_key_translation *t = alias->map; t->from; t++)
        if (!strcmp(t->from, text)) {
            if (!t->to) {
                put_name(&l->no_effect, alias->name);
                return false;
            }
            *value = (tsr_yaml_value){.kind = TSR_YAML_SCALAR, .text = t->to, .line = value->line};
            return true;
        }
    tsr_auto_text found = {0};
    tsr_config_found(&found, value);
    tsr_config_error(&l->errors, where, "%s: found %s; %s", alias->name, tsr_text_string(&found),
                     alias->otherwise);
    return false;
}

/* Two names of one key in the same file: equal values agree; a warm-up of 0 and a dtype that is left to be
 * found (TRL's torch_dtype: auto beside bf16: true) yield. Whether the new value is to be taken. */
static bool agrees(loader *l, const tsr_config *next, int index, const tsr_config_place *place)
{
    const tsr_key *key = tsr_keys_at(index);
    const tsr_config_origin *origin = &l->config.store->origin[index];
    if (origin->layer != l->layer || l->layer == TSR_LAYER_OVERRIDE || origin->bad)
        return true;
    if (key->offset == offsetof(tsr_config, warmup_steps) &&
        (next->warmup_steps == 0 || l->config.warmup_steps == 0))
        return next->warmup_steps != 0;
    if (key->offset == offsetof(tsr_config, dtype) &&
        (next->dtype == TSR_CONFIG_DTYPE_AUTO || l->config.dtype == TSR_CONFIG_DTYPE_AUTO))
        return next->dtype != TSR_CONFIG_DTYPE_AUTO;
    tsr_auto_text before = {0}, now = {0};
    tsr_config_put(&before, &l->config, key);
    tsr_config_put(&now, next, key);
    bool same = !strcmp(tsr_text_string(&before), tsr_text_string(&now));
    if (!same)
        tsr_config_error(&l->errors, place->where,
                         "%s: means %s %s, but %s (%s) means %s; keep one of the two",
                         place->spelled, key->name, tsr_text_string(&now), origin->spelled,
                         origin->where, tsr_text_string(&before));
    return false;
}

static void set_key(loader *l, int index, const char *name, tsr_yaml_value value, const char *where,
                    const tsr_key_alias *alias)
{
    const tsr_key *key = tsr_keys_at(index);
    tsr_config_origin *origin = &l->config.store->origin[index];
    const tsr_config_place place = {l->config.store, &l->errors, where,
                                    tsr_config_store_copy(l->config.store, name)};
    if (!place.spelled)
        return;
    int before = l->errors.count;
    bool there = !alias || translate(l, &value, alias, where);
    tsr_config next = l->config;
    bool right = there && tsr_config_read(&next, key, &value, &place);
    if (l->config.store->failed) /* it may hold a part of the value */
        return;
    if (right) {
        if (!agrees(l, &next, index, &place))
            return;
        next.store->failed |= l->config.store->failed;
        l->config = next;
        *origin = (tsr_config_origin){l->layer, where, place.spelled, NULL, false};
        if (alias) {
            tsr_text_printf(&l->taken_as, "%s%s as %s ", l->taken_as.length ? ", " : "", name,
                            key->name);
            tsr_config_put(&l->taken_as, &l->config, key);
        }
    } else if (l->errors.count > before || there) {
        *origin = (tsr_config_origin){l->layer, where, place.spelled, NULL, true};
    }
}

static void apply(loader *l, const char *name, const tsr_yaml_value *value, const char *where)
{
    int index = tsr_keys_find(name);
    const tsr_key_alias *alias = index < 0 ? tsr_keys_alias(name) : NULL;
    const tsr_key_peer *peer = index < 0 && !alias ? tsr_keys_peer(name) : NULL;
    if (alias)
        index = tsr_keys_find(alias->key);
    if (index >= 0)
        set_key(l, index, name, *value, where, alias);
    else if (peer)
        apply_peer(l, name, value, where, peer);
    else
        unknown(l, name, where);
}

static void set_defaults(loader *l)
{
    l->layer = TSR_LAYER_DEFAULT;
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        const tsr_yaml_value value = {.kind = TSR_YAML_SCALAR, .text = key->initial};
        const tsr_config_place place = {l->config.store, &l->errors, "default", key->name};
        tsr_config_read(&l->config, key, &value, &place);
        l->config.store->origin[i] =
            (tsr_config_origin){TSR_LAYER_DEFAULT, "default", key->name, NULL, false};
    }
}

static tsr_status apply_file(loader *l, const char *text, size_t bytes, const char *name)
{
    tsr_auto_yaml tree = {0};
    l->layer = TSR_LAYER_FILE;
    TSR_TRY(tsr_yaml_parse(&tree, text, bytes, name));
    const tsr_yaml_value *root = &tree.root;
    if (root->kind != TSR_YAML_MAP && !tsr_yaml_is_null(root))
        return tsr_fail(TSR_ECONFIG, "%s:%d: expected lines of `key: value`", name, root->line);
    for (int i = 0; i < root->count; i++) {
        const tsr_yaml_value *key = &root->keys[i];
        const char *where = format_where(l, "%s:%d", name, key->line);
        int earlier = 0;
        while (earlier < i && strcmp(root->keys[earlier].text, key->text))
            earlier++;
        if (earlier < i)
            tsr_config_error(&l->errors, where,
                             "%.64s: appears twice, in line %d and line %d; keep one", key->text,
                             root->keys[earlier].line, key->line);
        else
            apply(l, key->text, &root->items[i], where);
    }
    return TSR_OK;
}

/* Lists, maps and quoted texts are YAML; anything else is the text itself. */
static void apply_override(loader *l, const char *override)
{
    tsr_auto_yaml tree = {0};
    l->layer = TSR_LAYER_OVERRIDE;
    const char *where = format_where(l, "override %s", override, 0);
    const char *equals = strchr(override, '=');
    size_t dashes = strspn(override, "-"), length = equals ? (size_t)(equals - override) : 0;
    if (!length || dashes) {
        tsr_config_error(&l->errors, where, "expected key=value%s%s", dashes ? ", such as " : "",
                         dashes ? (equals ? override + dashes : "lora_r=8") : "");
        return;
    }
    tsr_auto_text key = {0};
    size_t bad;
    tsr_text_append(&key, override, length);
    l->config.store->failed |= key.failed;
    const char *text = equals + 1;
    tsr_yaml_value value = {.kind = TSR_YAML_SCALAR, .text = text, .line = 1};
    if (*text && strchr("[{\"'", *text)) {
        tsr_status status = tsr_yaml_parse(&tree, text, strlen(text), tsr_text_string(&key));
        if (status < 0) {
            l->config.store->failed |= status == TSR_ENOMEM;
            tsr_config_error(&l->errors, where, "%s", tsr_last_error());
            return;
        }
        value = tree.root;
    } else if (!tsr_utf8_check(text, strlen(text), &bad)) {
        tsr_config_error(&l->errors, where, "%s: the value is not UTF-8", tsr_text_string(&key));
        return;
    }
    apply(l, tsr_text_string(&key), &value, where);
}

static tsr_status read_file(tsr_text *out, const char *path)
{
    char buffer[4096], reason[128];
    FILE *file = fopen(path, "rbe");
    if (!file)
        return tsr_fail(tsr_status_of_open(errno) == TSR_EDATA ? TSR_ECONFIG : TSR_EIO,
                        "%s: cannot be opened: %s", path, strerror_r(errno, reason, sizeof reason));
    size_t got;
    while ((got = fread(buffer, 1, sizeof buffer, file)) > 0 && out->length <= MAX_FILE_BYTES)
        tsr_text_append(out, buffer, got);
    bool bad = ferror(file);
    int error = errno;
    fclose(file);
    if (bad)
        return tsr_fail(error == EISDIR ? TSR_ECONFIG : TSR_EIO, "%s: cannot be read: %s", path,
                        strerror_r(error, reason, sizeof reason));
    if (out->length > MAX_FILE_BYTES)
        return tsr_fail(TSR_ECONFIG, "%s: larger than 1 MiB; this is not a job.yaml", path);
    return out->failed ? tsr_fail(TSR_ENOMEM, "%s: out of memory while reading", path) : TSR_OK;
}

/* Who says how many steps apart wants it. A strategy that was written wins, and in a run's job.yaml every
 * key is: steps on the command line that come to nothing are said. */
static void switch_on(loader *l, const char *steps, const char *strategy)
{
    int index = tsr_keys_find(strategy);
    const tsr_config_origin *asked = &l->config.store->origin[tsr_keys_find(steps)];
    tsr_config_origin *origin = &l->config.store->origin[index];
    tsr_config_every *every = (tsr_config_every *)((char *)&l->config + tsr_keys_at(index)->offset);
    tsr_text line = {0};
    if (asked->layer < TSR_LAYER_FILE || asked->bad)
        return;
    if (origin->layer < TSR_LAYER_FILE) {
        *every = TSR_CONFIG_EVERY_STEPS;
        *origin = *asked;
    } else if (*every != TSR_CONFIG_EVERY_STEPS && origin->layer < asked->layer) {
        tsr_text_printf(&line, "%s has no effect with %s: %s (%s); write %s=steps too", steps,
                        strategy, *every == TSR_CONFIG_EVERY_NO ? "no" : "epoch", origin->where,
                        strategy);
        tsr_config_note(&l->config, tsr_text_string(&line));
        l->config.store->failed |= line.failed;
        tsr_text_free(&line);
    }
}

static void switch_strategies(loader *l)
{
    switch_on(l, "save_steps", "save_strategy");
    if (l->config.eval_steps == 0) /* null: as logging_steps */
        return;
    if (l->config.eval_dataset.count)
        switch_on(l, "eval_steps", "eval_strategy");
    else if (tsr_config_is_set(&l->config, "eval_steps") &&
             !tsr_config_is_set(&l->config, "eval_strategy"))
        tsr_config_note(&l->config, "eval_steps has no effect without an eval_dataset");
}

static void add_notes(loader *l)
{
    tsr_text line = {0};
    if (l->taken_as.length) {
        tsr_text_printf(&line, "other names: %s", tsr_text_string(&l->taken_as));
        tsr_config_note(&l->config, tsr_text_string(&line));
        tsr_text_clear(&line);
    }
    if (l->no_effect.length) {
        tsr_text_printf(&line, "without effect here: %s", tsr_text_string(&l->no_effect));
        tsr_config_note(&l->config, tsr_text_string(&line));
    }
    l->config.store->failed |= line.failed;
    tsr_text_free(&line);
    tsr_config_apply_trl(&l->config, &l->errors);
}

/* The values as they are now, so that a later assignment can be told from a default. */
static void remember(loader *l)
{
    tsr_auto_text text = {0};
    for (int i = 0; i < tsr_keys_count(); i++) {
        tsr_text_clear(&text);
        tsr_config_put(&text, &l->config, tsr_keys_at(i));
        l->config.store->origin[i].loaded =
            tsr_config_store_copy(l->config.store, tsr_text_string(&text));
    }
    l->config.store->failed |= text.failed;
}

static tsr_status all_errors(const tsr_config_errors *errors)
{
    if (!errors->count)
        return TSR_OK;
    if (errors->count == 1) /* without the indentation */
        return tsr_fail_lines(TSR_ECONFIG, "%s", tsr_text_string(&errors->text) + 3);
    return tsr_fail_lines(TSR_ECONFIG, "%d errors in the configuration:%s", errors->count,
                          tsr_text_string(&errors->text));
}

/* Asked before what looks at all values: one that had no memory is not there. */
static tsr_status check_memory(const loader *l, const char *name)
{
    if (l->config.store->failed || l->errors.text.failed || l->no_effect.failed ||
        l->taken_as.failed)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", name);
    return TSR_OK;
}

/* Of a run's own job.yaml another command takes the run's adapter, and leaves its trace as it is. */
static void adapt_to_run(loader *l, const tsr_config_source *source, const char *name)
{
    if (source->of_run)
        l->config.trace = NULL;
    if (!source->adapter)
        return;
    l->config.init_adapter = tsr_config_store_copy(l->config.store, source->adapter);
    l->config.store->origin[tsr_keys_find("init_adapter")] =
        (tsr_config_origin){TSR_LAYER_FILE, name, "init_adapter", NULL, false};
}

static tsr_status load(loader *l, const tsr_config_source *source)
{
    tsr_text file = {0};
    tsr_status status = TSR_OK;
    const char *name = source->name ? source->name : source->path ? source->path : "configuration";
    set_defaults(l);
    TSR_TRY(check_memory(l, name));
    if (source->path) {
        status = read_file(&file, source->path);
        if (status == TSR_OK)
            status = apply_file(l, tsr_text_string(&file), file.length, name);
    } else if (source->text) {
        status = apply_file(l, source->text,
                            source->text_bytes ? source->text_bytes : strlen(source->text), name);
    }
    tsr_text_free(&file);
    TSR_TRY(status);
    adapt_to_run(l, source, name);
    for (int i = 0; i < source->override_count; i++)
        apply_override(l, source->overrides[i]);
    TSR_TRY(check_memory(l, name));
    switch_strategies(l);
    add_notes(l);
    tsr_config_derive(&l->config);
    tsr_config_check(&l->config, source, &l->errors);
    TSR_TRY(check_memory(l, name));
    remember(l);
    TSR_TRY(check_memory(l, name));
    return all_errors(&l->errors);
}

tsr_status tsr_config_load(tsr_config *out, const tsr_config_source *source)
{
    loader l = {0};
    l.config.store = calloc(1, sizeof *l.config.store);
    if (!l.config.store)
        return tsr_fail(TSR_ENOMEM, "out of memory: configuration");
    tsr_status status = load(&l, source);
    if (status < 0)
        tsr_config_free(&l.config);
    else
        *out = l.config;
    tsr_text_free(&l.errors.text);
    tsr_text_free(&l.no_effect);
    tsr_text_free(&l.taken_as);
    return status;
}
