#include "inputs/objective.h"

tsr_pairs tsr_inputs_pairs(const tsr_config *config)
{
    static const tsr_pairs pairs[] = {
        [TSR_OBJECTIVE_SFT] = TSR_PAIRS_NONE,  [TSR_OBJECTIVE_DPO] = TSR_PAIRS_DPO,
        [TSR_OBJECTIVE_ORPO] = TSR_PAIRS_ORPO, [TSR_OBJECTIVE_CPO] = TSR_PAIRS_ORPO,
        [TSR_OBJECTIVE_KTO] = TSR_PAIRS_KTO,   [TSR_OBJECTIVE_REWARD] = TSR_PAIRS_REWARD};
    return pairs[config->objective.kind];
}

bool tsr_inputs_has_reference(const tsr_config *config)
{
    return config->objective.kind == TSR_OBJECTIVE_DPO ||
           config->objective.kind == TSR_OBJECTIVE_KTO;
}

/* What a reward model is made of. */
static tsr_status check_score(const tsr_inputs *inputs, bool train)
{
    const tsr_config *config = &inputs->config;
    const char *where = tsr_config_where(config, "objective");
    const tsr_peft *init = inputs->adapter.init;
    if (inputs->model.composite)
        return tsr_fail(TSR_ECONFIG,
                        "%s: objective: reward is for models of text alone in this version, but %s "
                        "is %s; take a text model",
                        where, config->model_name_or_path, inputs->model.composite->model_type);
    if (!train && !(init && tsr_peft_module_find(init, "score")))
        return tsr_fail(TSR_ECONFIG,
                        "%s: objective: reward evaluates a trained score, but %s has none; name a "
                        "reward model's adapter with init_adapter",
                        where, init ? config->init_adapter : "the base model");
    return TSR_OK;
}

/* The gradient of a row of the head is that of its label, times what the objective says; a trained head would take that of the
 * label alone. */
tsr_status tsr_inputs_check_objective(const tsr_inputs *inputs, bool train)
{
    const tsr_config *config = &inputs->config;
    const tsr_train_adapter *adapter = &inputs->adapter;
    const char *where = tsr_config_where(config, "objective");
    const char *name = tsr_config_objective_name(config->objective.kind);
    bool head = adapter->trains_head || adapter->head_rows.count || inputs->layout.head_lora.r;
    bool tables = adapter->trains_embedding || adapter->embedding_rows.count;
    if (config->objective.kind == TSR_OBJECTIVE_SFT)
        return TSR_OK;
    if (config->objective.kind == TSR_OBJECTIVE_REWARD)
        TSR_TRY(check_score(inputs, train));
    if (head)
        return tsr_fail(TSR_ECONFIG,
                        "%s: objective: %s does not train lm_head, as in TRL; leave it out of "
                        "lora_target_modules, modules_to_save and trainable_token_indices",
                        where, name);
    if (tables && config->ref_adapter)
        return tsr_fail(TSR_ECONFIG,
                        "%s: ref_adapter: %s, but rows of the embedding are trained (%s), and the "
                        "base's own are not kept; leave one of them out",
                        tsr_config_where(config, "ref_adapter"), config->ref_adapter,
                        adapter->trains_embedding ? "modules_to_save" : "trainable_token_indices");
    return TSR_OK;
}
