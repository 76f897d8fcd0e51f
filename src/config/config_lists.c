/*
 * config_lists.c: values that are lists and maps.
 */
#include "config/config_number.h"
#include "config/config_store.h"

#include <math.h>
#include <string.h>

bool tsr_config_read_strings(tsr_config_strings *out, const tsr_key *key,
                             const tsr_yaml_value *value, const tsr_config_place *place)
{
    bool one = value->kind == TSR_YAML_SCALAR;
    int count = one ? 1 : value->count;
    if (value->kind == TSR_YAML_MAP || !count)
        return tsr_config_refuse(place, key, value);
    tsr_config_strings list = {
        tsr_config_store_allocate(place->store, (size_t)count * sizeof *list.items), count};
    for (int i = 0; list.items && i < count; i++) {
        const tsr_yaml_value *item = one ? value : &value->items[i];
        if (item->kind != TSR_YAML_SCALAR || tsr_yaml_is_null(item) || !*item->text)
            return tsr_config_refuse(place, key, item);
        list.items[i] = tsr_config_store_copy(place->store, item->text);
    }
    *out = list;
    return list.items != NULL;
}

/* "self_attn, mlp" is a list too. */
static bool read_module_names(tsr_config_units *out, const tsr_key *key,
                              const tsr_yaml_value *value, const tsr_config_place *place)
{
    tsr_config_units units = {0};
    if (value->kind != TSR_YAML_SCALAR) {
        if (!tsr_config_read_strings(&units.names, key, value, place))
            return false;
        *out = units;
        return true;
    }
    size_t most = strlen(value->text) / 2 + 1;
    units.names.items = tsr_config_store_allocate(place->store, most * sizeof(char *));
    char *copy = (char *)tsr_config_store_copy(place->store, value->text), *next = copy;
    while (units.names.items && copy && next) {
        char *name = next + strspn(next, " "), *end = strchr(name, ',');
        next = end ? end + 1 : NULL;
        end = end ? end : name + strlen(name);
        while (end > name && end[-1] == ' ')
            end--;
        *end = 0;
        if (!*name)
            return tsr_config_refuse(place, key, value);
        units.names.items[units.names.count++] = name;
    }
    *out = units;
    return units.names.items && copy;
}

/* The word, or a list of it alone, which TRL takes for the word. */
static bool is_word(const char *word, const tsr_key *key, const tsr_yaml_value *value)
{
    if (value->kind == TSR_YAML_LIST && value->count == 1)
        value = &value->items[0];
    return key->flags & TSR_KEY_ALL_LINEAR && value->kind == TSR_YAML_SCALAR &&
           !strcmp(value->text, word);
}

static bool read_modules(tsr_config_modules *out, const tsr_key *key, const tsr_yaml_value *value,
                         const tsr_config_place *place)
{
    tsr_config_modules modules = {.kind = TSR_CONFIG_MODULES_LIST};
    if (tsr_yaml_is_null(value)) {
        if (!(key->flags & TSR_KEY_ALL_LINEAR)) {
            *out = (tsr_config_modules){.kind = TSR_CONFIG_MODULES_NONE};
            return true;
        }
        /* PEFT's own default for every family that is supported here. */
        modules.names.items = tsr_config_store_allocate(place->store, 2 * sizeof(char *));
        if (!modules.names.items)
            return false;
        modules.names.items[0] = "q_proj";
        modules.names.items[1] = "v_proj";
        modules.names.count = 2;
        *out = modules;
        return true;
    }
    if (is_word("all-linear", key, value) || is_word("all-linear-peft", key, value)) {
        *out = (tsr_config_modules){.kind = is_word("all-linear", key, value)
                                                ? TSR_CONFIG_MODULES_ALL_LINEAR
                                                : TSR_CONFIG_MODULES_ALL_LINEAR_PEFT};
        return true;
    }
    if (value->kind == TSR_YAML_SCALAR) {
        modules.kind = TSR_CONFIG_MODULES_REGEX;
    } else if (value->kind == TSR_YAML_LIST && !value->count &&
               !(key->flags & TSR_KEY_ALL_LINEAR)) {
        *out = (tsr_config_modules){.kind = TSR_CONFIG_MODULES_NONE};
        return true;
    }
    if (!tsr_config_read_strings(&modules.names, key, value, place))
        return false;
    *out = modules;
    return true;
}

static bool read_ints(tsr_config_ints *out, const tsr_key *key, const tsr_yaml_value *value,
                      const tsr_config_place *place)
{
    bool one = value->kind == TSR_YAML_SCALAR;
    int count = one ? 1 : value->count;
    if (value->kind == TSR_YAML_MAP || !count)
        return tsr_config_refuse(place, key, value);
    tsr_config_ints list = {
        tsr_config_store_allocate(place->store, (size_t)count * sizeof *list.items), count};
    for (int i = 0; list.items && i < count; i++) {
        const tsr_yaml_value *item = one ? value : &value->items[i];
        if (item->kind != TSR_YAML_SCALAR || !tsr_number_parse_whole(&list.items[i], item->text) ||
            !tsr_config_fits(key, (double)list.items[i]))
            return tsr_config_refuse(place, key, item);
        for (int j = 0; j < i; j++)
            if (list.items[j] == list.items[i]) {
                tsr_config_error(place->errors, place->where, "%s: %lld is listed twice",
                                 place->spelled, (long long)list.items[i]);
                return false;
            }
    }
    *out = list;
    return list.items != NULL;
}

static bool read_tokens(tsr_config_tokens *out, const tsr_key *key, const tsr_yaml_value *value,
                        const tsr_config_place *place)
{
    tsr_config_tokens tokens = {0};
    if (value->kind != TSR_YAML_MAP)
        return read_ints(&out->embedding, key, value, place);
    for (int i = 0; i < value->count; i++) {
        const char *name = value->keys[i].text;
        bool head = !strcmp(name, "lm_head"), embedding = !strcmp(name, "embed_tokens");
        if (tsr_config_has_twice(value, i, place))
            return false;
        if (!head && !embedding) {
            tsr_config_error(place->errors, place->where,
                             "%s: no table '%s'; expected embed_tokens or lm_head", place->spelled,
                             name);
            return false;
        }
        if (!read_ints(head ? &tokens.head : &tokens.embedding, key, &value->items[i], place))
            return false;
    }
    *out = tokens;
    return true;
}

/* A key twice in one map. */
bool tsr_config_has_twice(const tsr_yaml_value *map, int index, const tsr_config_place *place)
{
    for (int j = 0; j < index; j++)
        if (!strcmp(map->keys[j].text, map->keys[index].text)) {
            tsr_config_error(place->errors, place->where,
                             "%s: '%s' appears twice in the map (lines %d and %d); keep one",
                             place->spelled, map->keys[index].text, map->keys[j].line,
                             map->keys[index].line);
            return true;
        }
    return false;
}

static const char *find_word(const tsr_key *key, const char *name)
{
    for (const tsr_key_word *w = key->words; w->word; w++)
        if (!strcmp(w->word, name))
            return w->word;
    return NULL;
}

static bool read_names(tsr_config_names *out, const tsr_key *key, const tsr_yaml_value *value,
                       const tsr_config_place *place)
{
    tsr_config_names map = {0};
    if (value->kind != TSR_YAML_MAP)
        return tsr_config_refuse(place, key, value);
    map.items = tsr_config_store_allocate(place->store, (size_t)value->count * sizeof *map.items);
    for (int i = 0; map.items && i < value->count; i++) {
        const char *name = find_word(key, value->keys[i].text);
        bool list = value->items[i].kind != TSR_YAML_SCALAR;
        if (!name)
            return tsr_config_refuse(place, key, &value->keys[i]);
        if (tsr_config_has_twice(value, i, place))
            return false;
        if (tsr_yaml_is_null(&value->items[i]))
            continue;
        if (list && key->flags & TSR_KEY_ONE_EACH)
            return tsr_config_refuse(place, key, &value->items[i]);
        map.items[map.count].name = name;
        if (!tsr_config_read_strings(&map.items[map.count++].words, key, &value->items[i], place))
            return false;
    }
    *out = map;
    return map.items != NULL;
}

static bool read_patterns(tsr_config_patterns *out, const tsr_key *key, const tsr_yaml_value *value,
                          const tsr_config_place *place)
{
    tsr_config_patterns map = {0};
    if (!tsr_yaml_is_null(value)) {
        if (value->kind != TSR_YAML_MAP)
            return tsr_config_refuse(place, key, value);
        map.count = value->count;
        map.items = tsr_config_store_allocate(place->store, (size_t)map.count * sizeof *map.items);
        if (!map.items)
            return false;
    }
    for (int i = 0; i < map.count; i++) {
        if (tsr_config_has_twice(value, i, place))
            return false;
        map.items[i].name = tsr_config_store_copy(place->store, value->keys[i].text);
        if (!map.items[i].name ||
            !tsr_config_read_number(&map.items[i].value, key, &value->items[i], place))
            return false;
        if (!*map.items[i].name)
            return tsr_config_refuse(place, key, &value->keys[i]);
    }
    *out = map;
    return true;
}

/* A word, as its place in `words`. */
static bool read_word_of(double *out, const char *const *words, const tsr_yaml_value *value,
                         const tsr_config_place *place)
{
    tsr_text known = {0};
    for (int i = 0; words[i]; i++) {
        if (value->kind == TSR_YAML_SCALAR && !strcmp(value->text, words[i])) {
            *out = i;
            tsr_text_free(&known);
            return true;
        }
        tsr_text_printf(&known, "%s%s", i ? ", " : "", words[i]);
    }
    tsr_config_error(place->errors, place->where, "%s: expected one of %s", place->spelled,
                     tsr_text_string(&known));
    tsr_text_free(&known);
    return false;
}

static tsr_schedule_argument find_argument(const char *name, const tsr_config_place *place)
{
    tsr_text known = {0};
    for (int i = 0; i < TSR_SCHEDULE_ARGUMENTS; i++) {
        if (!strcmp(tsr_schedule_argument_name(i), name)) {
            tsr_text_free(&known);
            return i;
        }
        tsr_text_printf(&known, "%s%s", i ? ", " : "", tsr_schedule_argument_name(i));
    }
    tsr_config_error(place->errors, place->where, "%s: no member '%s'; expected one of %s",
                     place->spelled, name, tsr_text_string(&known));
    tsr_text_free(&known);
    return TSR_SCHEDULE_ARGUMENTS;
}

static bool read_lr_kwargs(tsr_schedule_arguments *out, const tsr_key *key,
                           const tsr_yaml_value *value, const tsr_config_place *place)
{
    tsr_schedule_arguments kwargs = TSR_SCHEDULE_NO_ARGUMENTS;
    if (!tsr_yaml_is_null(value) && value->kind != TSR_YAML_MAP)
        return tsr_config_refuse(place, key, value);
    for (int i = 0; i < value->count; i++) {
        tsr_schedule_argument m = find_argument(value->keys[i].text, place);
        if (m == TSR_SCHEDULE_ARGUMENTS || tsr_config_has_twice(value, i, place))
            return false;
        if (tsr_yaml_is_null(&value->items[i]))
            continue;
        const tsr_key member = {.name = tsr_schedule_argument_name(m),
                                .type = TSR_KEY_NUMBER,
                                .high = tsr_schedule_argument_most(m)};
        const char *const *words = tsr_schedule_argument_words(m);
        tsr_config_place inside = *place;
        inside.spelled = member.name;
        if (words ? !read_word_of(&kwargs.value[m], words, &value->items[i], &inside)
                  : !tsr_config_read_number(&kwargs.value[m], &member, &value->items[i], &inside))
            return false;
    }
    *out = kwargs;
    return true;
}

bool tsr_config_read_list(void *field, const tsr_key *key, const tsr_yaml_value *value,
                          const tsr_config_place *place)
{
    bool null = tsr_yaml_is_null(value);
    switch (key->type) {
    case TSR_KEY_STRINGS:
        if (null) {
            *(tsr_config_strings *)field = (tsr_config_strings){0};
            return true;
        }
        if (value->kind == TSR_YAML_LIST && !value->count && key->flags & TSR_KEY_EMPTY_TOO) {
            const char **items = tsr_config_store_allocate(place->store, sizeof *items);
            *(tsr_config_strings *)field = (tsr_config_strings){items, 0};
            return items != NULL;
        }
        return tsr_config_read_strings(field, key, value, place);
    case TSR_KEY_DATA:
        if (null) {
            *(tsr_config_data *)field = (tsr_config_data){0};
            return true;
        }
        return tsr_config_read_data(field, key, value, place);
    case TSR_KEY_NAMES:
        if (null) {
            *(tsr_config_names *)field = (tsr_config_names){0};
            return true;
        }
        return read_names(field, key, value, place);
    case TSR_KEY_INTS:
        if (null) {
            *(tsr_config_ints *)field = (tsr_config_ints){0};
            return true;
        }
        return read_ints(field, key, value, place);
    case TSR_KEY_TOKENS:
        if (null) {
            *(tsr_config_tokens *)field = (tsr_config_tokens){0};
            return true;
        }
        return read_tokens(field, key, value, place);
    case TSR_KEY_UNITS:
        return read_module_names(field, key, value, place);
    case TSR_KEY_MODULES:
        return read_modules(field, key, value, place);
    case TSR_KEY_PATTERNS:
        return read_patterns(field, key, value, place);
    case TSR_KEY_LR_KWARGS:
        return read_lr_kwargs(field, key, value, place);
    default:
        return tsr_config_refuse(place, key, value);
    }
}
