#include "config/config.h"

#include "base/called.h"
#include "config/config_number.h"
#include "config/config_store.h"
#include "config/peers.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    tsr_config config;
    tsr_config_errors errors;
    tsr_config_layer layer;
    const tsr_peer *peer; /* whose file it is; NULL: ours, or TRL's */
    tsr_text taken_as;    /* a list for the notes */
} loader;

static void unknown(loader *l, const tsr_config_entry *entry)
{
    const char *near = tsr_peers_nearest(l->peer, entry->name);
    const tsr_yaml_value shown = {.kind = TSR_YAML_SCALAR, .text = entry->name, .quoted = true};
    tsr_auto_text text = {0};
    tsr_config_found(&text, &shown);
    if (!strcmp(entry->name, "adapters"))
        tsr_config_error(&l->errors, entry->where,
                         "adapters: the list is written in the job's file, not as an override");
    else if (tsr_peers_awaits(entry))
        tsr_config_error(&l->errors, entry->where, "%s: no key %s in this version", entry->spelled,
                         tsr_text_string(&text));
    else if (near)
        tsr_config_error(&l->errors, entry->where, "no key %s; did you mean %s?",
                         tsr_text_string(&text), near);
    else
        tsr_config_error(&l->errors, entry->where, "no key %s; `%s train --help` lists all keys",
                         tsr_text_string(&text), tsr_called());
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

/* What all adapters share is not one adapter's. */
static bool may_be_there(const tsr_key *key, const tsr_config_entry *entry,
                         const tsr_config_place *place)
{
    if (entry->layer != TSR_LAYER_ADAPTER || !(key->flags & TSR_KEY_OF_BASE))
        return true;
    tsr_config_error(place->errors, place->where,
                     "%s: is the same for all adapters; write it at the top level, not in an entry",
                     place->spelled);
    return false;
}

static void set_key(loader *l, int index, const tsr_config_entry *entry)
{
    const tsr_key *key = tsr_keys_at(index);
    tsr_config_origin *origin = &l->config.store->origin[index];
    const tsr_config_place place = {l->config.store, &l->errors, entry->where,
                                    tsr_config_store_copy(l->config.store, entry->spelled)};
    tsr_config next = l->config;
    if (!place.spelled)
        return;
    bool right = !entry->bad && may_be_there(key, entry, &place) &&
                 tsr_config_read(&next, key, &entry->value, &place);
    if (l->config.store->failed) /* it may hold a part of the value */
        return;
    if (right && !agrees(l, &next, index, &place))
        return;
    if (right)
        l->config = next;
    *origin = (tsr_config_origin){l->layer, entry->where, place.spelled, NULL, !right};
    if (!right || !strcmp(entry->spelled, key->name) || l->peer)
        return;
    tsr_text_printf(&l->taken_as, "%s%s as %s ", l->taken_as.length ? ", " : "", entry->spelled,
                    key->name);
    tsr_config_put(&l->taken_as, &l->config, key);
}

/* Those of one layer, in their order. */
static void apply(loader *l, const tsr_config_entries *entries, tsr_config_layer layer)
{
    l->layer = layer;
    for (int i = 0; i < entries->count; i++) {
        const tsr_config_entry *entry = &entries->items[i];
        int index = tsr_keys_find(entry->name);
        if (entry->layer != layer)
            continue;
        if (index >= 0)
            set_key(l, index, entry);
        else
            unknown(l, entry);
    }
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
    if (tsr_config_evaluates(&l->config))
        switch_on(l, "eval_steps", "eval_strategy");
    else if (tsr_config_is_set(&l->config, "eval_steps") &&
             !tsr_config_is_set(&l->config, "eval_strategy"))
        tsr_config_note(&l->config,
                        "eval_steps has no effect without eval_dataset or validation_split");
}

static void note_text(loader *l, tsr_text *line)
{
    if (line->length)
        tsr_config_note(&l->config, tsr_text_string(line));
    l->config.store->failed |= line->failed;
    tsr_text_clear(line);
}

/* Whose file it is, and which of its defaults are not ours. */
static void note_peer(loader *l, const tsr_peers_result *result, const char *name, tsr_text *line)
{
    int translated = 0, taken = 0;
    for (int i = 0; i < result->ours.count; i++) {
        const tsr_config_entry *entry = &result->ours.items[i];
        translated += entry->layer > TSR_LAYER_PEER && strcmp(entry->name, entry->spelled) != 0;
    }
    if (l->peer)
        tsr_text_printf(line, "a file of %s: %d keys translated, as `%s translate %s` shows",
                        l->peer->name, translated, tsr_called(), name);
    for (int i = 0; i < result->ours.count; i++) {
        const tsr_config_entry *entry = &result->ours.items[i];
        if (entry->layer != TSR_LAYER_PEER)
            continue;
        const char *begin = l->peer ? "; defaults taken: " : "TRL's default taken: ";
        tsr_text_printf(line, "%s%s %s", taken++ ? ", " : begin, entry->name, entry->value.text);
    }
    note_text(l, line);
}

static void add_notes(loader *l, const tsr_peers_result *result, const char *name)
{
    tsr_text line = {0};
    note_peer(l, result, name, &line);
    if (l->taken_as.length)
        tsr_text_printf(&line, "other names: %s", tsr_text_string(&l->taken_as));
    note_text(l, &line);
    for (int i = 0; i < result->idle.count; i++) {
        const tsr_config_entry *entry = &result->idle.items[i];
        tsr_text_printf(&line, "%s%s", i ? ", " : "without effect here: ", entry->spelled);
        if (entry->why && (!i || entry->why != entry[-1].why)) /* one reason for both */
            tsr_text_printf(&line, " (%s)", entry->why);
    }
    note_text(l, &line);
    if (result->remarks.length)
        tsr_text_printf(&line, "not as in %s: %s", l->peer ? l->peer->name : "TRL",
                        tsr_text_string(&result->remarks));
    note_text(l, &line);
    tsr_text_free(&line);
    if (!l->peer)
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

/* Asked before what looks at all values: one that had no memory is not there. */
static tsr_status check_memory(const loader *l, const char *name)
{
    if (l->config.store->failed || l->errors.text.failed || l->taken_as.failed)
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

/* An adapter that does not say its directory has one in that of the run. */
static void place_adapter(loader *l)
{
    struct tsr_config_store *store = l->config.store;
    tsr_config_origin *origin = &store->origin[tsr_keys_find("output_dir")];
    tsr_auto_text path = {0};
    l->config.adapter_name = store->adapter_name;
    l->config.adapter_count = store->adapter_count;
    if (!store->adapter_name || !l->config.output_dir || origin->bad ||
        origin->layer == TSR_LAYER_ADAPTER)
        return;
    tsr_text_printf(&path, "%s/%s", l->config.output_dir, store->adapter_name);
    store->failed |= path.failed;
    l->config.output_dir = tsr_config_store_copy(store, tsr_text_string(&path));
}

static tsr_status load(loader *l, const tsr_config_source *source, tsr_peers_result *result)
{
    const char *name = tsr_config_source_name(source);
    tsr_config_entries written = {0};
    set_defaults(l);
    TSR_TRY(check_memory(l, name));
    TSR_TRY(tsr_config_collect(&written, l->config.store, &l->errors, source, name));
    tsr_peers_translate(result, l->config.store, &l->errors, &written);
    TSR_TRY(check_memory(l, name));
    l->peer = result->peer == &tsr_peer_trl ? NULL : result->peer;
    apply(l, &result->ours, TSR_LAYER_PEER);
    apply(l, &result->ours, TSR_LAYER_FILE);
    adapt_to_run(l, source, name);
    apply(l, &result->ours, TSR_LAYER_ADAPTER);
    apply(l, &result->ours, TSR_LAYER_OVERRIDE);
    place_adapter(l);
    TSR_TRY(check_memory(l, name));
    switch_strategies(l);
    add_notes(l, result, name);
    tsr_config_derive(&l->config);
    tsr_config_check(&l->config, source, &l->errors);
    TSR_TRY(check_memory(l, name));
    remember(l);
    TSR_TRY(check_memory(l, name));
    return tsr_config_all_errors(&l->errors);
}

tsr_status tsr_config_load(tsr_config *out, const tsr_config_source *source)
{
    loader l = {0};
    l.config.store = calloc(1, sizeof *l.config.store);
    if (!l.config.store)
        return tsr_fail(TSR_ENOMEM, "out of memory: configuration");
    tsr_peers_result result = {0};
    tsr_status status = load(&l, source, &result);
    if (status == TSR_ECONFIG && l.config.store->adapter_name)
        status = tsr_fail_lines(status, "adapter %s: %s", l.config.store->adapter_name,
                                tsr_last_error());
    if (status < 0)
        tsr_config_free(&l.config);
    else
        *out = l.config;
    tsr_text_free(&l.errors.text);
    tsr_text_free(&l.taken_as);
    tsr_text_free(&result.remarks);
    return status;
}
