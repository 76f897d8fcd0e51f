/*
 * config_data.c: data sets, as paths or as maps.
 */
#include "config/config_store.h"

#include <stdio.h>
#include <string.h>

static const tsr_key *find_member(const char *name)
{
    int count;
    const tsr_key *members = tsr_keys_of_set(&count);
    for (int i = 0; i < count; i++)
        if (!strcmp(members[i].name, name))
            return &members[i];
    return NULL;
}

static bool refuse_member(const tsr_yaml_value *name, const tsr_config_place *place)
{
    int count;
    const tsr_key *members = tsr_keys_of_set(&count);
    tsr_text known = {0};
    for (int i = 0; i < count; i++)
        tsr_text_printf(&known, "%s%s", i ? ", " : "", members[i].name);
    tsr_config_error(place->errors, place->where, "%s: no member '%.64s'; expected one of %s",
                     place->spelled, name->text, tsr_text_string(&known));
    place->store->failed |= known.failed;
    tsr_text_free(&known);
    return false;
}

/* One map, or a path alone; `place` names it: dataset[1]. */
static bool read_set(tsr_config_set *set, const tsr_key *key, const tsr_yaml_value *value,
                     const tsr_config_place *place)
{
    const tsr_yaml_value path = {.kind = TSR_YAML_SCALAR, .text = "path", .line = value->line};
    bool alone = value->kind == TSR_YAML_SCALAR, right = true;
    if (value->kind == TSR_YAML_LIST)
        return tsr_config_refuse(place, key, value);
    for (int i = 0; i < (alone ? 1 : value->count); i++) {
        const tsr_yaml_value *name = alone ? &path : &value->keys[i];
        const tsr_key *member = find_member(name->text);
        char spelled[160];
        tsr_config_place inside = *place;
        snprintf(spelled, sizeof spelled, "%s.%.64s", place->spelled, name->text);
        inside.spelled = spelled;
        if (!member) {
            right = refuse_member(name, place);
            continue;
        }
        right &= (alone || !tsr_config_has_twice(value, i, place)) &&
                 tsr_config_read(set, member, alone ? value : &value->items[i], &inside);
    }
    if (right && !set->path) {
        tsr_config_error(place->errors, place->where,
                         "%s: has no path; add path: a file or directory", place->spelled);
        return false;
    }
    return right;
}

/* Whether any of a list is a map. */
static bool has_maps(const tsr_yaml_value *value)
{
    bool any = value->kind == TSR_YAML_MAP;
    for (int i = 0; value->kind == TSR_YAML_LIST && i < value->count; i++)
        any |= value->items[i].kind == TSR_YAML_MAP;
    return any;
}

bool tsr_config_read_data(tsr_config_data *out, const tsr_key *key, const tsr_yaml_value *value,
                          const tsr_config_place *place)
{
    tsr_config_strings paths;
    bool one = value->kind == TSR_YAML_MAP, right = true;
    int count = one ? 1 : value->count;
    if (!has_maps(value)) {
        if (!tsr_config_read_strings(&paths, key, value, place))
            return false;
        *out = (tsr_config_data){paths.items, paths.count, NULL};
        return true;
    }
    tsr_config_data data = {
        tsr_config_store_allocate(place->store, (size_t)count * sizeof *data.items), count,
        tsr_config_store_allocate(place->store, (size_t)count * sizeof *data.sets)};
    for (int i = 0; data.items && data.sets && i < count; i++) {
        char spelled[80];
        tsr_config_place inside = *place;
        snprintf(spelled, sizeof spelled, "%s[%d]", place->spelled, i);
        inside.spelled = spelled;
        right &= read_set(&data.sets[i], key, one ? value : &value->items[i], &inside);
        data.items[i] = data.sets[i].path;
    }
    if (!right || !data.items || !data.sets)
        return false;
    *out = data;
    return true;
}
