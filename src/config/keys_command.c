/*
 * keys_command.c: what a command line has to know of a key, ours or a peer's, to tell its values.
 */
#include "config/peers.h"

#include <string.h>

static const tsr_key *find_key(const char *name)
{
    const tsr_key_alias *alias = tsr_keys_alias(name);
    int index = tsr_keys_find(alias ? alias->key : name);
    return index < 0 ? NULL : tsr_keys_at(index);
}

bool tsr_keys_known(const char *name)
{
    return tsr_keys_find(name) >= 0 || tsr_peers_row(name, NULL, NULL);
}

static bool has_word(const tsr_key *key, const char *word)
{
    for (const tsr_key_word *w = key->words; w && w->word; w++)
        if (!strcmp(w->word, word))
            return true;
    return false;
}

bool tsr_keys_is_flag(const char *name)
{
    const tsr_key *key = find_key(name);
    const tsr_key_alias *renamed;
    const tsr_key_peer *other;
    if (key && !strcmp(key->name, name))
        return key->type == TSR_KEY_BOOL || has_word(key, "true");
    tsr_peers_row(name, &renamed, &other);
    if (renamed && renamed->map)
        return !strcmp(renamed->map->from, "true") || !strcmp(renamed->map->from, "auto");
    return other && other->nothing &&
           (!strncmp(other->nothing, "false", 5) || !strncmp(other->nothing, "true", 4));
}

bool tsr_keys_needs_value(const char *name)
{
    const tsr_key_alias *renamed;
    const tsr_key *key = find_key(name);
    tsr_peers_row(name, &renamed, NULL);
    if (key && key->flags & TSR_KEY_TRUE_TOO)
        return false;
    return !tsr_keys_is_flag(name) && (key || renamed);
}

bool tsr_keys_is_list(const char *name)
{
    const tsr_key *key = find_key(name);
    if (!key)
        return !strcmp(name, "lora_modules_to_save");
    return key->type == TSR_KEY_STRINGS || key->type == TSR_KEY_DATA ||
           key->type == TSR_KEY_MODULES || key->type == TSR_KEY_INTS ||
           key->type == TSR_KEY_TOKENS || key->flags & TSR_KEY_LIST_OF_ONE;
}

bool tsr_keys_takes_word(const char *name, const char *word)
{
    const tsr_key *key = find_key(name);
    return key && has_word(key, word);
}
