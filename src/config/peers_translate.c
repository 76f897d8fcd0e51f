/*
 * peers_translate.c: a peer's file written out as a job.yaml.
 */
#include "base/escape.h"
#include "config/peers.h"

#include <stdlib.h>
#include <string.h>

#define DEEPEST 16 /* as yaml.c reads */

static void put_flow(tsr_text *out, const tsr_yaml_value *value, int depth)
{
    bool map = value->kind == TSR_YAML_MAP;
    if (value->kind == TSR_YAML_SCALAR) {
        if (tsr_yaml_is_null(value))
            tsr_text_puts(out, "null");
        else
            tsr_config_put_string(out, value->text);
        return;
    }
    tsr_text_puts(out, map ? "{" : "[");
    for (int i = 0; i < value->count && depth < DEEPEST; i++) {
        tsr_text_puts(out, i ? ", " : "");
        if (map) {
            tsr_config_put_string(out, value->keys[i].text);
            tsr_text_puts(out, ": ");
        }
        put_flow(out, &value->items[i], depth + 1);
    }
    tsr_text_puts(out, map ? "}" : "]");
}

/* The maps of a list of them, a line for each member. */
static void put_maps(tsr_text *out, const tsr_yaml_value *list)
{
    for (int i = 0; i < list->count; i++)
        for (int m = 0; m < list->items[i].count; m++) {
            tsr_text_puts(out, m ? "\n    " : "\n  - ");
            tsr_config_put_string(out, list->items[i].keys[m].text);
            tsr_text_puts(out, ": ");
            put_flow(out, &list->items[i].items[m], 2);
        }
    tsr_text_puts(out, "\n");
}

static void put_entry(tsr_text *out, const tsr_config_entry *entry)
{
    bool maps = entry->value.kind == TSR_YAML_LIST && entry->value.count &&
                entry->value.items[0].kind == TSR_YAML_MAP && entry->value.items[0].count;
    const char *comment = entry->layer == TSR_LAYER_PEER             ? entry->where
                          : strcmp(entry->name, entry->spelled) != 0 ? entry->spelled
                                                                     : NULL;
    tsr_text_printf(out, "%s:", entry->name);
    if (!maps) {
        tsr_text_puts(out, " ");
        put_flow(out, &entry->value, 1);
    }
    if (comment)
        tsr_text_printf(out, "  # %s", comment);
    if (maps)
        put_maps(out, &entry->value);
    else
        tsr_text_puts(out, "\n");
}

static void put_idle(tsr_text *out, const tsr_config_entry *entry)
{
    tsr_text_printf(out, "#   %s: ", entry->spelled);
    put_flow(out, &entry->value, 1);
    if (entry->why)
        tsr_text_printf(out, "  (%s)", entry->why);
    tsr_text_puts(out, "\n");
}

/* Of two values for one key only the stronger is written. */
static bool is_weaker(const tsr_config_entries *list, int index)
{
    for (int i = 0; i < list->count; i++)
        if (!strcmp(list->items[i].name, list->items[index].name) &&
            (list->items[i].layer > list->items[index].layer ||
             (list->items[i].layer == list->items[index].layer && i > index)))
            return true;
    return false;
}

static void check_names(const tsr_peers_result *result, tsr_config_errors *errors)
{
    for (int i = 0; i < result->ours.count; i++) {
        const tsr_config_entry *entry = &result->ours.items[i];
        const char *near = tsr_peers_nearest(result->peer, entry->name);
        if (tsr_keys_find(entry->name) < 0 && !tsr_peers_awaits(entry))
            tsr_config_error(errors, entry->where, "no key '%.64s'%s%s%s", entry->name,
                             near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
}

static void put_all(tsr_text *out, const tsr_peers_result *result, const char *name)
{
    tsr_text_puts(out, "# Made from ");
    tsr_text_name(out, name);
    tsr_text_printf(out, "%s%s%s.\n", result->peer ? ", a file of " : "",
                    result->peer ? result->peer->name : "", result->peer ? "" : ", a job.yaml");
    for (int i = 0; i < result->ours.count; i++)
        if (!is_weaker(&result->ours, i))
            put_entry(out, &result->ours.items[i]);
    if (result->idle.count)
        tsr_text_puts(out, "\n# Without effect here:\n");
    for (int i = 0; i < result->idle.count; i++)
        put_idle(out, &result->idle.items[i]);
    if (result->remarks.length)
        tsr_text_printf(out, "\n# Not as there: %s.\n", tsr_text_string(&result->remarks));
}

static tsr_status translate(tsr_text *out, struct tsr_config_store *store, tsr_peers_result *result,
                            tsr_config_errors *errors, const tsr_config_source *source)
{
    const char *name = tsr_config_source_name(source);
    tsr_config_entries written = {0};
    TSR_TRY(tsr_config_collect(&written, store, errors, source, name));
    if (store->adapter_count)
        tsr_config_error(errors, name,
                         "adapters: no other program has this list, so there is nothing to "
                         "translate; use the file as it is");
    tsr_peers_translate(result, store, errors, &written);
    if (!store->failed)
        check_names(result, errors);
    TSR_TRY(tsr_config_all_errors(errors));
    put_all(out, result, name);
    return store->failed || out->failed ? tsr_fail(TSR_ENOMEM, "%s: out of memory", name) : TSR_OK;
}

tsr_status tsr_config_translate(tsr_text *out, const tsr_config_source *source)
{
    struct tsr_config_store *store = calloc(1, sizeof *store);
    tsr_peers_result result = {0};
    tsr_config_errors errors = {0};
    if (!store)
        return tsr_fail(TSR_ENOMEM, "out of memory: configuration");
    tsr_status status = translate(out, store, &result, &errors, source);
    tsr_text_free(&errors.text);
    tsr_text_free(&result.remarks);
    tsr_config_store_free(store);
    return status;
}
