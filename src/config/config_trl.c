/*
 * config_trl.c: defaults that differ from TRL's. Either they are said, in one line, or they are
 * taken (`defaults: trl`).
 */
#include "config/config_store.h"

#include <string.h>

/* TRL's value of one key into the field, through the same reader as a file's. */
static bool take(tsr_config *config, int index, tsr_config_errors *errors)
{
    const tsr_key *key = tsr_keys_at(index);
    tsr_auto_yaml tree = {0};
    if (tsr_yaml_parse(&tree, key->trl, strlen(key->trl), key->name) < 0)
        return false;
    static const char where[] = "default (TRL)";
    const tsr_config_place place = {config->store, errors, where, key->name};
    bool taken = tsr_config_read(config, key, &tree.root, &place);
    if (taken)
        config->store->origin[index] =
            (tsr_config_origin){TSR_LAYER_PEER, where, key->name, NULL, false};
    return taken;
}

void tsr_config_apply_trl(tsr_config *config, tsr_config_errors *errors)
{
    bool trl = config->defaults == TSR_CONFIG_DEFAULTS_TRL;
    tsr_auto_text taken = {0}, different = {0};
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        if (!key->trl || config->store->origin[i].layer >= TSR_LAYER_FILE ||
            tsr_config_objective_decides(config, key->name))
            continue;
        if (trl && !(key->flags & TSR_KEY_TRL_SAID_ONLY)) {
            if (take(config, i, errors))
                tsr_text_printf(&taken, "%s%s %s", taken.length ? ", " : "", key->name, key->trl);
            continue;
        }
        config->trl_differences++;
        tsr_text_printf(&different, "%s%s %s (TRL %s)", different.length ? ", " : "", key->name,
                        key->initial, key->trl);
    }
    tsr_auto_text line = {0};
    if (taken.length) {
        tsr_text_printf(&line, "defaults: trl took %s", tsr_text_string(&taken));
        tsr_config_note(config, tsr_text_string(&line));
        tsr_text_clear(&line);
    }
    if (different.length) {
        tsr_text_printf(&line, "defaults that differ from TRL: %s%s", tsr_text_string(&different),
                        trl ? "; these cannot be taken here" : "; `defaults: trl` uses TRL's");
        tsr_config_note(config, tsr_text_string(&line));
    }
    config->store->failed |= taken.failed || different.failed || line.failed;
}
