/*
 * config_adapters.c: the list `adapters:`, of which a configuration is one entry: its keys before those beside the list.
 */
#include "config/config_store.h"

#include <string.h>

/* Names are directories, and stand in messages. */
static bool is_name(const char *text)
{
    size_t length = strlen(text);
    return length && length <= TSR_CONFIG_ADAPTER_NAME && *text != '.' && *text != '-' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
               length;
}

/* The name of an entry; NULL: it has none that will do, which was said. */
static const char *name_of(const tsr_yaml_value *entry, int index, const tsr_config_place *place)
{
    const tsr_yaml_value *name = NULL;
    for (int i = 0; entry->kind == TSR_YAML_MAP && i < entry->count; i++)
        if (!strcmp(entry->keys[i].text, "name"))
            name = &entry->items[i];
    if (!name) {
        tsr_config_error(place->errors, place->where,
                         "adapters: entry %d has no name; expected a map such as {name: math, "
                         "dataset: math.jsonl}",
                         index + 1);
        return NULL;
    }
    if (name->kind == TSR_YAML_SCALAR && !tsr_yaml_is_null(name) && is_name(name->text))
        return name->text;
    tsr_auto_text found = {0};
    tsr_config_found(&found, name);
    tsr_config_error(place->errors, place->where,
                     "adapters: name of entry %d: found %s; expected at most %d letters, digits, "
                     "'.', '_' and '-', the first a letter or a digit",
                     index + 1, tsr_text_string(&found), TSR_CONFIG_ADAPTER_NAME);
    return NULL;
}

static void check_names(const tsr_yaml_value *list, const tsr_config_place *place)
{
    for (int i = 0; i < list->count; i++) {
        const char *name = name_of(&list->items[i], i, place);
        for (int j = 0; name && j < i; j++) {
            const tsr_yaml_value *other = &list->items[j];
            for (int k = 0; other->kind == TSR_YAML_MAP && k < other->count; k++)
                if (!strcmp(other->keys[k].text, "name") &&
                    other->items[k].kind == TSR_YAML_SCALAR && !strcmp(other->items[k].text, name))
                    tsr_config_error(place->errors, place->where,
                                     "adapters: entries %d and %d are both called %s", j + 1, i + 1,
                                     name);
        }
    }
}

/* The keys of the entry that is read. */
static void add_entry(tsr_config_entries *out, const tsr_yaml_value *entry,
                      const tsr_config_place *place, const char *file)
{
    for (int i = 0; i < entry->count; i++) {
        const tsr_yaml_value *key = &entry->keys[i];
        tsr_auto_text where = {0};
        if (tsr_config_has_twice(entry, i, place))
            continue;
        if (!strcmp(key->text, "name"))
            continue;
        tsr_text_printf(&where, "%s:%d", file, key->line);
        place->store->failed |= where.failed;
        tsr_config_add_entry(out, place->store,
                             (tsr_config_entry){.name = key->text,
                                                .spelled = key->text,
                                                .value = entry->items[i],
                                                .where = tsr_config_store_copy(
                                                    place->store, tsr_text_string(&where)),
                                                .layer = TSR_LAYER_ADAPTER});
    }
}

void tsr_config_collect_adapter(tsr_config_entries *out, const tsr_yaml_value *list, int entry,
                                const tsr_config_place *place, const char *file)
{
    int before = place->errors->count;
    if (tsr_yaml_is_null(list))
        return;
    if (list->kind != TSR_YAML_LIST || !list->count || list->count > TSR_CONFIG_MAX_ADAPTERS) {
        tsr_config_error(place->errors, place->where,
                         "adapters: expected a list of 1 to %d maps, each with a name",
                         TSR_CONFIG_MAX_ADAPTERS);
        return;
    }
    check_names(list, place);
    if (place->errors->count > before)
        return;
    place->store->adapter_count = list->count;
    if (entry >= list->count)
        return;
    place->store->adapter_name = name_of(&list->items[entry], entry, place);
    add_entry(out, &list->items[entry], place, file);
}
