/*
 * peers.c: recognises a peer's file, and finds the row of each of its keys.
 */
#include "config/peers.h"

#include "base/near.h"
#include "config/config_number.h"

#include <string.h>

static const tsr_peer *const all[] = {&tsr_peer_axolotl, &tsr_peer_llamafactory, &tsr_peer_trl};

#define COUNT (int)(sizeof all / sizeof *all)

int tsr_peers_count(void)
{
    return COUNT;
}

const tsr_peer *tsr_peers_at(int index)
{
    return all[index];
}

/* A null is the peer's "not given". */
static bool has(const tsr_config_entries *list, const char *name, size_t length)
{
    for (int i = 0; i < list->count; i++)
        if (strlen(list->items[i].name) == length && !memcmp(list->items[i].name, name, length) &&
            !tsr_yaml_is_null(&list->items[i].value))
            return true;
    return false;
}

/* How many of the names, separated by spaces, are there. */
static int count_of(const tsr_config_entries *list, const char *names)
{
    int count = 0;
    for (const char *name = names; *name;) {
        size_t length = strcspn(name, " ");
        count += has(list, name, length);
        name += length + (name[length] == ' ');
    }
    return count;
}

static const tsr_peer *recognise(const tsr_config_entries *theirs)
{
    for (int i = 0; i < COUNT; i++)
        if ((!all[i]->needs || count_of(theirs, all[i]->needs)) &&
            count_of(theirs, all[i]->marks) >= all[i]->least)
            return all[i];
    return NULL;
}

static const tsr_key_alias *find_renamed(const tsr_peer *peer, const char *name)
{
    for (const tsr_key_alias *row = peer ? peer->renamed : NULL; row && row->name; row++)
        if (!strcmp(row->name, name))
            return row;
    return NULL;
}

static const tsr_peer_converted *find_converted(const tsr_peer *peer, const char *name)
{
    for (const tsr_peer_converted *row = peer ? peer->converted : NULL; row && row->name; row++)
        if (!strcmp(row->name, name))
            return row;
    return NULL;
}

static const tsr_key_peer *find_other(const tsr_peer *peer, const char *name)
{
    for (const tsr_key_peer *row = peer ? peer->others : NULL; row && row->name; row++)
        if (tsr_keys_matches(row->name, name))
            return row;
    return NULL;
}

const char *tsr_peers_called(const char *name)
{
    for (int i = 0; i < COUNT; i++) {
        const tsr_key_alias *renamed = find_renamed(all[i], name);
        const tsr_peer_converted *converted = find_converted(all[i], name);
        if (renamed || (converted && converted->here))
            return renamed ? renamed->key : converted->here;
    }
    return NULL;
}

bool tsr_peers_awaits(const tsr_config_entry *entry)
{
    const char *called = tsr_peers_called(entry->spelled);
    return strcmp(entry->name, entry->spelled) != 0 || (called && !strcmp(called, entry->name));
}

bool tsr_peers_row(const char *name, const tsr_key_alias **renamed, const tsr_key_peer **other)
{
    const tsr_key_alias *alias = tsr_keys_alias(name);
    const tsr_key_peer *row = alias ? NULL : tsr_keys_peer(name);
    bool converts = false;
    for (int i = 0; i < COUNT && !alias && !row && !converts; i++) {
        converts = find_converted(all[i], name);
        alias = find_renamed(all[i], name);
        row = converts || alias ? NULL : find_other(all[i], name);
    }
    if (renamed)
        *renamed = alias;
    if (other)
        *other = row;
    return alias || row || converts;
}

const char *tsr_peers_nearest(const tsr_peer *peer, const char *name)
{
    int distance = tsr_near_too_far(name);
    const char *best = NULL;
    if (!peer)
        return tsr_keys_nearest(name);
    for (const tsr_key_alias *row = peer->renamed; row && row->name; row++)
        tsr_keys_consider(&best, &distance, name, row->name);
    for (const tsr_peer_converted *row = peer->converted; row && row->name; row++)
        tsr_keys_consider(&best, &distance, name, row->name);
    for (const tsr_key_peer *row = peer->others; row && row->name; row++)
        tsr_keys_consider(&best, &distance, name, row->name);
    return best ? best : tsr_keys_nearest(name);
}

/* Without effect, or refused. */
static void judge(tsr_peers_work *work, const tsr_config_entry *entry, const tsr_key_peer *row)
{
    static const char nothing[] = "null false 0 [] {}";
    if (!row->nothing && !tsr_yaml_is_null(&entry->value))
        tsr_peers_idle(work, entry, tsr_peers_is_one_of(&entry->value, nothing) ? NULL : row->why);
    else if (row->nothing && !tsr_peers_is_one_of(&entry->value, row->nothing))
        tsr_peers_refuse(work, entry, &entry->value, "not supported here: %s; only %.*s is allowed",
                         row->why, (int)strcspn(row->nothing, " "), row->nothing);
}

static void rename_key(tsr_peers_work *work, const tsr_config_entry *entry,
                       const tsr_key_alias *row)
{
    double number;
    tsr_config_entry bad = *entry;
    const tsr_yaml_value *value = &entry->value;
    bad.bad = true;
    bool scalar = value->kind == TSR_YAML_SCALAR;
    if (tsr_yaml_is_null(value) && (row->map || row->below > 0)) /* the peer's "not given" */
        return;
    if (row->below > 0 && scalar && tsr_number_parse(&number, value->text) &&
        number >= row->below) {
        tsr_peers_refuse(work, entry, value,
                         "expected a share from 0 to less than 1 (a number of steps is %s)",
                         row->key);
        tsr_peers_give(work, &bad, row->key, *value);
        return;
    }
    if (!row->map) {
        tsr_peers_give(work, entry, row->key, *value);
        return;
    }
    const char *word = tsr_config_bool_word(value);
    const char *text = word ? word : scalar ? value->text : "";
    for (const tsr_key_translation *t = row->map; t->from; t++)
        if (!strcmp(t->from, text)) {
            if (t->to)
                tsr_peers_give_text(work, entry, row->key, t->to);
            else
                tsr_peers_idle(work, entry, NULL);
            return;
        }
    tsr_peers_refuse(work, entry, value, "%s", row->otherwise);
    tsr_peers_give(work, &bad, row->key, *value);
}

static void translate_key(tsr_peers_work *work, const tsr_config_entry *entry)
{
    const tsr_peer *peer = work->out->peer;
    const tsr_peer_converted *converted = find_converted(peer, entry->name);
    const tsr_key_alias *renamed = find_renamed(peer, entry->name);
    const tsr_key_peer *other = find_other(peer, entry->name);
    if (!converted && !renamed && !other)
        converted = find_converted(&tsr_peer_trl, entry->name);
    if (!converted && !renamed && !other && tsr_keys_find(entry->name) < 0) {
        renamed = tsr_keys_alias(entry->name);
        other = tsr_keys_peer(entry->name);
    }
    bool row = converted || renamed || other,
         file = entry->layer >= TSR_LAYER_FILE && entry->layer < TSR_LAYER_OVERRIDE;
    /* A peer's null is "not given"; of a key of ours it is a value, but in a peer's file. */
    if (tsr_yaml_is_null(&entry->value) &&
        (converted || (peer && peer != &tsr_peer_trl && (row || file))))
        return;
    if (converted)
        converted->convert(work, entry);
    else if (renamed)
        rename_key(work, entry, renamed);
    else if (other)
        judge(work, entry, other);
    else
        tsr_config_add_entry(&work->out->ours, work->store, *entry);
}

static void take_defaults(tsr_peers_work *work)
{
    tsr_text where = {0};
    tsr_text_printf(&where, "default (%s)", work->out->peer->name);
    const char *place = tsr_config_store_copy(work->store, tsr_text_string(&where));
    work->store->failed |= where.failed;
    tsr_text_free(&where);
    for (const tsr_peer_default *row = work->out->peer->defaults; place && row && row->key; row++) {
        if (count_of(work->theirs, row->unless) || count_of(&work->out->ours, row->key))
            continue;
        const tsr_config_entry from = {
            .spelled = row->key, .where = place, .layer = TSR_LAYER_PEER, .value.line = 1};
        tsr_peers_give_text(work, &from, row->key, row->value);
    }
}

/* A key of a peer's file that is given on the command line again: one value of ours may come from several of theirs. */
static bool is_overridden(const tsr_peers_work *work, const tsr_config_entry *entry)
{
    for (int i = 0; i < work->theirs->count && work->out->peer; i++)
        if (work->theirs->items[i].layer > entry->layer &&
            !strcmp(work->theirs->items[i].name, entry->name))
            return true;
    return false;
}

void tsr_peers_translate(tsr_peers_result *out, struct tsr_config_store *store,
                         tsr_config_errors *errors, const tsr_config_entries *theirs)
{
    *out = (tsr_peers_result){.peer = recognise(theirs)};
    tsr_peers_work work = {store, errors, theirs, out};
    for (int i = 0; i < theirs->count; i++)
        if (!is_overridden(&work, &theirs->items[i]))
            translate_key(&work, &theirs->items[i]);
    if (out->peer)
        take_defaults(&work);
    store->failed |= out->remarks.failed;
}
