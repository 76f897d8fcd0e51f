/*
 * config_write.c: the resolved configuration as YAML that reads back the same, and its hash.
 */
#include "base/escape.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "config/config_number.h"
#include "config/config_store.h"

#include <math.h>
#include <string.h>

static bool is_plain(const char *text)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/";
    const tsr_yaml_value value = {.kind = TSR_YAML_SCALAR, .text = text};
    if (!*text || !strchr(letters, *text) || tsr_yaml_is_null(&value))
        return false;
    for (const char *p = text; *p; p++)
        if (!strchr(letters, *p) && !strchr(".-", *p))
            return false;
    return true;
}

/* Plain where that is safe, double-quoted otherwise. */
void tsr_config_put_string(tsr_text *out, const char *text)
{
    if (is_plain(text)) {
        tsr_text_puts(out, text);
        return;
    }
    tsr_text_puts(out, "\"");
    for (const char *p = text, *end = p + strlen(p); p < end;) {
        uint32_t c;
        size_t length = tsr_utf8_next(&c, p, (size_t)(end - p));
        if (!length) {
            c = 0xfffd;
            length = 1;
        }
        if (c == '"' || c == '\\')
            tsr_text_printf(out, "\\%c", (char)c);
        else if (c < 0x100 && tsr_escape_needed(c))
            tsr_text_printf(out, "\\x%02x", (unsigned)c);
        else if (tsr_escape_needed(c) || c == 0xfeff || c >= 0xfff0)
            tsr_text_printf(out, "\\U%08x", (unsigned)c);
        else
            tsr_text_append(out, p, length);
        p += length;
    }
    tsr_text_puts(out, "\"");
}

static void put_strings(tsr_text *out, const tsr_config_strings *list)
{
    tsr_text_puts(out, "[");
    for (int i = 0; i < list->count; i++) {
        tsr_text_puts(out, i ? ", " : "");
        tsr_config_put_string(out, list->items[i]);
    }
    tsr_text_puts(out, "]");
}

/* Bytes with their unit: a number alone is of layers. */
static void put_units(tsr_text *out, const tsr_config_units *units)
{
    if (units->names.count)
        put_strings(out, &units->names);
    else if (units->bytes)
        tsr_text_printf(out, "%lluB", (unsigned long long)units->bytes);
    else if (units->layers == 1)
        tsr_text_puts(out, "layer");
    else
        tsr_text_printf(out, "%lld", (long long)units->layers);
}

static void put_modules(tsr_text *out, const tsr_config_modules *modules)
{
    switch (modules->kind) {
    case TSR_CONFIG_MODULES_NONE:
        tsr_text_puts(out, "null");
        return;
    case TSR_CONFIG_MODULES_ALL_LINEAR:
        tsr_text_puts(out, "all-linear");
        return;
    case TSR_CONFIG_MODULES_ALL_LINEAR_PEFT:
        tsr_text_puts(out, "all-linear-peft");
        return;
    case TSR_CONFIG_MODULES_LIST:
        put_strings(out, &modules->names);
        return;
    case TSR_CONFIG_MODULES_REGEX:
        tsr_config_put_string(out, modules->names.items[0]);
        return;
    }
}

static void put_ints(tsr_text *out, const tsr_config_ints *list)
{
    if (!list->count) {
        tsr_text_puts(out, "null");
        return;
    }
    for (int i = 0; i < list->count; i++)
        tsr_text_printf(out, "%s%lld", i ? ", " : "[", (long long)list->items[i]);
    tsr_text_puts(out, "]");
}

static void put_tokens(tsr_text *out, const tsr_config_tokens *tokens)
{
    if (!tokens->head.count) {
        put_ints(out, &tokens->embedding);
        return;
    }
    tsr_text_puts(out, "{lm_head: ");
    put_ints(out, &tokens->head);
    if (tokens->embedding.count) {
        tsr_text_puts(out, ", embed_tokens: ");
        put_ints(out, &tokens->embedding);
    }
    tsr_text_puts(out, "}");
}

static void put_patterns(tsr_text *out, const tsr_config_patterns *map)
{
    if (!map->count)
        tsr_text_puts(out, "null");
    for (int i = 0; i < map->count; i++) {
        tsr_text_puts(out, i ? ", " : "{");
        tsr_config_put_string(out, map->items[i].name);
        tsr_text_puts(out, ": ");
        tsr_number_put(out, map->items[i].value, 0);
    }
    tsr_text_puts(out, map->count ? "}" : "");
}

static void put_lr_kwargs(tsr_text *out, const tsr_schedule_arguments *kwargs)
{
    bool any = false;
    for (int i = 0; i < TSR_SCHEDULE_ARGUMENTS; i++) {
        const char *const *words = tsr_schedule_argument_words(i);
        if (isnan(kwargs->value[i]))
            continue;
        tsr_text_printf(out, "%s%s: ", any ? ", " : "{", tsr_schedule_argument_name(i));
        if (words)
            tsr_text_puts(out, words[(int)kwargs->value[i]]);
        else
            tsr_number_put(out, kwargs->value[i], 0);
        any = true;
    }
    tsr_text_puts(out, any ? "}" : "null");
}

static void put_bytes(tsr_text *out, uint64_t bytes)
{
    if (bytes % ((uint64_t)1 << 30) == 0)
        tsr_text_printf(out, "%lluGiB", (unsigned long long)(bytes >> 30));
    else if (bytes % ((uint64_t)1 << 20) == 0)
        tsr_text_printf(out, "%lluMiB", (unsigned long long)(bytes >> 20));
    else
        tsr_text_printf(out, "%lluB", (unsigned long long)bytes);
}

static void put_word(tsr_text *out, const tsr_key *key, int value)
{
    for (const tsr_key_word *w = key->words; w->word; w++)
        if (w->value == value && !w->refused) {
            tsr_text_puts(out, w->word);
            return;
        }
    tsr_text_puts(out, key->initial);
}

static void put_number(tsr_text *out, const tsr_key *key, double value)
{
    if (key->none && value == key->none_value)
        tsr_text_puts(out, key->none);
    else
        tsr_number_put(out, value, 0);
}

static void put_names(tsr_text *out, const tsr_config_names *map)
{
    if (!map->count)
        tsr_text_puts(out, "null");
    for (int i = 0; i < map->count; i++) {
        const tsr_config_strings *words = &map->items[i].words;
        tsr_text_printf(out, "%s%s: ", i ? ", " : "{", map->items[i].name);
        if (words->count == 1)
            tsr_config_put_string(out, words->items[0]);
        else
            put_strings(out, words);
    }
    tsr_text_puts(out, map->count ? "}" : "");
}

/* The members that were given. */
static void put_set(tsr_text *out, const tsr_config_set *set)
{
    int count;
    const tsr_key *members = tsr_keys_of_set(&count);
    tsr_auto_text value = {0};
    for (int i = 0, written = 0; i < count; i++) {
        tsr_text_clear(&value);
        tsr_config_put(&value, set, &members[i]);
        if (i && !strcmp(tsr_text_string(&value), members[i].initial))
            continue;
        tsr_text_printf(out, "%s%s: %s", written++ ? ", " : "{", members[i].name,
                        tsr_text_string(&value));
    }
    tsr_text_puts(out, "}");
    out->failed |= value.failed;
}

static void put_data(tsr_text *out, const tsr_config_data *data)
{
    const tsr_config_strings paths = {data->items, data->count};
    if (!data->count) {
        tsr_text_puts(out, "null");
        return;
    }
    if (!data->sets) {
        put_strings(out, &paths);
        return;
    }
    for (int i = 0; i < data->count; i++) {
        tsr_text_puts(out, i ? ", " : "[");
        put_set(out, &data->sets[i]);
    }
    tsr_text_puts(out, "]");
}

void tsr_config_put(tsr_text *out, const void *fields, const tsr_key *key)
{
    const void *field = (const char *)fields + key->offset;
    switch (key->type) {
    case TSR_KEY_BOOL:
        tsr_text_puts(out, *(const bool *)field ? "true" : "false");
        return;
    case TSR_KEY_WORD:
        put_word(out, key, *(const int *)field);
        return;
    case TSR_KEY_INT:
        if (key->none && *(const int64_t *)field == (int64_t)key->none_value)
            tsr_text_puts(out, key->none);
        else
            tsr_text_printf(out, "%lld", (long long)*(const int64_t *)field);
        return;
    case TSR_KEY_NUMBER:
    case TSR_KEY_STEPS:
    case TSR_KEY_DURATION:
        put_number(out, key, *(const double *)field);
        return;
    case TSR_KEY_BYTES:
        if (*(const uint64_t *)field)
            put_bytes(out, *(const uint64_t *)field);
        else
            tsr_text_puts(out, key->none);
        return;
    case TSR_KEY_STRING:
        if (*(const char *const *)field)
            tsr_config_put_string(out, *(const char *const *)field);
        else
            tsr_text_puts(out, "null");
        return;
    case TSR_KEY_STRINGS:
        if (((const tsr_config_strings *)field)->count)
            put_strings(out, field);
        else
            tsr_text_puts(out, ((const tsr_config_strings *)field)->items ? "[]" : "null");
        return;
    case TSR_KEY_DATA:
        put_data(out, field);
        return;
    case TSR_KEY_NAMES:
        put_names(out, field);
        return;
    case TSR_KEY_UNITS:
        put_units(out, field);
        return;
    case TSR_KEY_MODULES:
        put_modules(out, field);
        return;
    case TSR_KEY_INTS:
        put_ints(out, field);
        return;
    case TSR_KEY_TOKENS:
        put_tokens(out, field);
        return;
    case TSR_KEY_PATTERNS:
        put_patterns(out, field);
        return;
    case TSR_KEY_LR_KWARGS:
        put_lr_kwargs(out, field);
        return;
    }
}

bool tsr_config_same_text(const tsr_config *config, const tsr_key *key, const char *was,
                          const char *now)
{
    tsr_auto_yaml tree = {0};
    tsr_auto_text again = {0};
    tsr_config_errors errors = {0};
    tsr_config read = *config;
    const tsr_config_place place = {config->store, &errors, "", key->name};
    if (!strcmp(was, now))
        return true;
    if (tsr_yaml_parse(&tree, was, strlen(was), key->name) < 0)
        return false;
    if (tsr_config_read(&read, key, &tree.root, &place))
        tsr_config_put(&again, &read, key);
    tsr_text_free(&errors.text);
    return !again.failed && !strcmp(tsr_text_string(&again), now);
}

tsr_status tsr_config_value_text(tsr_text *out, const tsr_config *config, const char *key)
{
    int index = tsr_keys_find(key);
    if (index < 0)
        return tsr_fail(TSR_EINVAL, "configuration: no key '%s'", key);
    tsr_config_put(out, config, tsr_keys_at(index));
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory: configuration text") : TSR_OK;
}

/* "  # default" and the like; nothing for what the user set. */
static void put_mark(tsr_text *out, const tsr_config_origin *origin, const tsr_key *key,
                     const char *value)
{
    if (origin->layer >= TSR_LAYER_FILE)
        return;
    if (!origin->loaded || strcmp(origin->loaded, value))
        tsr_text_puts(out, "  # resolved");
    else if (origin->layer == TSR_LAYER_PEER)
        tsr_text_printf(out, "  # %s", origin->where);
    else if (key->derived)
        tsr_text_printf(out, "  # default: as %s", key->derived);
    else
        tsr_text_puts(out, "  # default");
}

tsr_status tsr_config_write(tsr_text *out, const tsr_config *config)
{
    const char *group = "";
    tsr_auto_text value = {0};
    tsr_text_puts(out, TSR_CONFIG_HEADER);
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        if (strcmp(group, key->group)) {
            group = key->group;
            tsr_text_printf(out, "\n# %s\n", group);
        }
        if (key->flags & TSR_KEY_ONE_START) {
            tsr_text_printf(out, "# %s: for one start alone, so it is not kept\n", key->name);
            continue;
        }
        tsr_text_clear(&value);
        tsr_config_put(&value, config, key);
        tsr_text_printf(out, "%s: %s", key->name, tsr_text_string(&value));
        if (config->store)
            put_mark(out, &config->store->origin[i], key, tsr_text_string(&value));
        tsr_text_puts(out, "\n");
    }
    bool failed = out->failed || value.failed;
    return failed ? tsr_fail(TSR_ENOMEM, "out of memory: configuration text") : TSR_OK;
}

uint64_t tsr_config_hash(const tsr_config *config)
{
    uint64_t hash = TSR_HASH_START;
    tsr_auto_text text = {0};
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        if (key->flags & TSR_KEY_ONE_START)
            continue;
        tsr_text_clear(&text);
        tsr_text_printf(&text, "%s=", key->name);
        tsr_config_put(&text, config, key);
        hash = tsr_hash(hash, tsr_text_string(&text), text.length);
    }
    return hash;
}
