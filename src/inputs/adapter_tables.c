#include "inputs/adapter_tables.h"

#include <string.h>

/* Smoothed labels need the mean row of the head, which is made once. */
static tsr_status smooths(const tsr_config *config, const char *key)
{
    return tsr_fail(TSR_ECONFIG,
                    "%s: label_smoothing_factor: found with %s; labels are smoothed where the head "
                    "is frozen; leave one of them out",
                    tsr_config_where(config, "label_smoothing_factor"), key);
}

tsr_status tsr_adapter_tables_task(const tsr_config *config, const tsr_peft_config *peft)
{
    if (!peft->scores || config->objective.kind == TSR_OBJECTIVE_REWARD)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: init_adapter: %s is a reward model's adapter (task_type SEQ_CLS), whose "
                    "score is trained and evaluated with objective: reward; found objective: %s. "
                    "It cannot be merged either; PEFT loads it beside its base",
                    tsr_config_where(config, "init_adapter"), config->init_adapter,
                    tsr_config_objective_name(config->objective.kind));
}

/* A reward model's score is trained without being asked for; nothing else is beside it. */
static tsr_status choose_score(tsr_train_adapter *adapter, const tsr_config *config)
{
    adapter->trains_score = true;
    if (config->init_adapter && config->modules_to_save.count &&
        !tsr_config_is_set(config, "modules_to_save"))
        return tsr_fail(
            TSR_ECONFIG,
            "%s: init_adapter: %s trains %s whole, and a reward model can only train its "
            "score so; start from an adapter without modules_to_save",
            tsr_config_where(config, "init_adapter"), config->init_adapter,
            config->modules_to_save.items[0]);
    for (int i = 0; i < config->modules_to_save.count; i++)
        if (strcmp(config->modules_to_save.items[i], "score") != 0)
            return tsr_fail(TSR_ECONFIG,
                            "%s: modules_to_save: found %s; with objective: reward (%s) score is "
                            "trained whole, and nothing else; leave the key out",
                            tsr_config_where(config, "modules_to_save"),
                            config->modules_to_save.items[i],
                            tsr_config_where(config, "objective"));
    return TSR_OK;
}

tsr_status tsr_adapter_tables_choose(tsr_train_adapter *adapter, const tsr_config *config)
{
    const tsr_config_tokens *tokens = &config->trainable_token_indices;
    adapter->embedding_rows =
        (tsr_layout_rows){.id = tokens->embedding.items, .count = tokens->embedding.count};
    adapter->head_rows = (tsr_layout_rows){.id = tokens->head.items, .count = tokens->head.count};
    if (config->objective.kind == TSR_OBJECTIVE_REWARD)
        return choose_score(adapter, config);
    if (tokens->embedding.count + tokens->head.count && config->modules_to_save.count)
        return tsr_fail(TSR_ECONFIG,
                        "%s: trainable_token_indices: found with modules_to_save; rows of tokens "
                        "or whole tables can be trained; write one of the two keys",
                        tsr_config_where(config, "trainable_token_indices"));
    if (config->label_smoothing_factor > 0 && tokens->embedding.count + tokens->head.count)
        return smooths(config, "trainable_token_indices");
    for (int i = 0; i < config->modules_to_save.count; i++) {
        const char *name = config->modules_to_save.items[i], *dot = strrchr(name, '.');
        const char *last = dot ? dot + 1 : name;
        bool head = !strcmp(last, "lm_head"), embedding = !strcmp(last, "embed_tokens");
        if (head && config->label_smoothing_factor > 0)
            return smooths(config, "modules_to_save: lm_head");
        adapter->trains_head |= head;
        adapter->trains_embedding |= embedding;
        if (!head && !embedding)
            return tsr_fail(TSR_ECONFIG,
                            "%s: modules_to_save: found %s; lm_head and embed_tokens can be "
                            "trained whole; write one of them, or %s",
                            tsr_config_where(config, "modules_to_save"), name,
                            !strcmp(last, "score")
                                ? "objective: reward, which trains score"
                                : "name linears of the layers in lora_target_modules");
    }
    return TSR_OK;
}

static const char *last_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

bool tsr_adapter_tables_has(const tsr_train_adapter *adapter, const tsr_peft_module *stored)
{
    const char *name = last_name(stored->path);
    bool head = !strcmp(name, "lm_head"), embedding = !strcmp(name, "embed_tokens");
    uint64_t rows = (uint64_t)(head ? adapter->head_rows.count : adapter->embedding_rows.count);
    if (stored->whole && adapter->trains_score)
        return !strcmp(stored->path, "score");
    if (stored->rows)
        return (head || embedding) && stored->out_features == rows;
    return stored->whole &&
           ((adapter->trains_head && head) || (adapter->trains_embedding && embedding));
}

tsr_status tsr_adapter_tables_count(uint64_t *out, const tsr_train_adapter *adapter,
                                    const tsr_config *config, bool tied)
{
    uint64_t found = 0, wanted = (uint64_t)adapter->trains_head + adapter->trains_embedding +
                                 (adapter->embedding_rows.count > 0) +
                                 (adapter->head_rows.count > 0);
    wanted += adapter->trains_score && (tsr_peft_config_of(adapter->init)->scores ||
                                        tsr_peft_module_find(adapter->init, "score"));
    bool may_share = tied && adapter->embedding_rows.count && adapter->head_rows.count;
    for (uint64_t i = 0; i < tsr_peft_module_count(adapter->init); i++) {
        const tsr_peft_module *stored = tsr_peft_module_at(adapter->init, i);
        if ((stored->whole || stored->rows) && !tsr_adapter_tables_has(adapter, stored))
            return tsr_fail(TSR_EDATA,
                            "%s: " TSR_PEFT_WEIGHTS_FILE
                            " has %s of %s, which is not what %s of its adapter_config.json says",
                            config->init_adapter, stored->whole ? "the whole weight" : "rows",
                            stored->path,
                            stored->whole ? "modules_to_save" : "trainable_token_indices");
        found += tsr_adapter_tables_has(adapter, stored);
    }
    *out = found;
    return found == wanted || (may_share && found + 1 == wanted)
               ? TSR_OK
               : tsr_fail(
                     TSR_EDATA,
                     "%s: modules_to_save or trainable_token_indices of its "
                     "adapter_config.json names a module that is not in " TSR_PEFT_WEIGHTS_FILE,
                     config->init_adapter);
}

/* A LoRA of the head. */
static tsr_status check_head(const tsr_train_adapter *adapter, const tsr_config *config)
{
    const char *key = adapter->trains_head                    ? "modules_to_save: lm_head"
                      : adapter->head_rows.count              ? "trainable_token_indices"
                      : adapter->start == TSR_START_PRINCIPAL ? "init_lora_weights: pissa"
                      : config->label_smoothing_factor > 0    ? "label_smoothing_factor"
                      : config->lora_dropout > 0              ? "lora_dropout"
                                                              : NULL;
    bool layers = false;
    for (uint64_t i = 0; i < adapter->set.count; i++)
        layers |= adapter->set.adapter[i].table != TSR_TABLE_HEAD;
    if (!layers)
        key = "no linear of a layer";
    return !key ? TSR_OK
                : tsr_fail(TSR_ECONFIG,
                           "%s: lora_target_modules: lm_head is found in it with %s, which is not "
                           "supported; take one of them out, or, without one, add q_proj",
                           tsr_config_where(config, "lora_target_modules"), key);
}

tsr_status tsr_adapter_tables_check(const tsr_train_adapter *adapter, const tsr_config *config)
{
    bool found = false, head = false;
    for (uint64_t i = 0; i < adapter->set.count; i++) {
        found |= adapter->set.adapter[i].table == TSR_TABLE_EMBEDDING;
        head |= adapter->set.adapter[i].table == TSR_TABLE_HEAD;
    }
    if (head)
        TSR_TRY(check_head(adapter, config));
    const char *key = adapter->trains_embedding               ? "modules_to_save"
                      : adapter->embedding_rows.count         ? "trainable_token_indices"
                      : adapter->start == TSR_START_PRINCIPAL ? "init_lora_weights: pissa"
                                                              : NULL;
    if (!found || !key)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: lora_target_modules: embed_tokens is found in it with %s; one of them can "
                    "be about the embedding; take it out of the other",
                    tsr_config_where(config, "lora_target_modules"), key);
}
