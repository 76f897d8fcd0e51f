#include "inputs/experts.h"

#include "model/router_bias.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

typedef struct {
    const char *key;
    bool asks;
    const char *change;
} expert_key;

/* Routers with sigmoid scores have a correction (model/arch/experts.h). */
static tsr_status check_correction(const tsr_config *config, const tsr_model_config *model)
{
    static const char key[] = "router_bias_update_rate";
    if (!(config->router_bias_update_rate > 0) || model->experts.scoring == TSR_ROUTE_SIGMOID)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: %s: found %g, which moves the correction biases of routers, but those of "
                    "%s have none; leave it out (router_aux_loss_coef evens out loads too)",
                    tsr_config_where(config, key), key, config->router_bias_update_rate,
                    config->model_name_or_path);
}

tsr_status tsr_inputs_check_experts(const tsr_config *config, const tsr_model_config *model)
{
    static const char without[] = "leave it out";
    const expert_key keys[] = {
        {"lora_target_parameters", config->lora_target_parameters.count > 0, without},
        {"lora_target_modules",
         config->lora_target_modules.kind == TSR_CONFIG_MODULES_ALL_LINEAR_PEFT,
         "write all-linear"},
        {"expert_lora_r", config->expert_lora_r > 0, without},
        {"expert_lora_alpha", config->expert_lora_alpha > 0, without},
        {"router_aux_loss_coef", config->router_aux_loss_coef > 0, without},
        {"router_bias_update_rate", config->router_bias_update_rate > 0, without},
        {"moe_capacity_factor", config->moe_capacity_factor > 0, without},
    };
    tsr_auto_text value = {0};
    if (model->experts.count)
        return check_correction(config, model);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *key = keys[i].key;
        if (!keys[i].asks)
            continue;
        TSR_TRY(tsr_config_value_text(&value, config, key));
        return tsr_fail(TSR_ECONFIG,
                        "%s: %s: found %s, which is for models with experts, but %s has none; %s",
                        tsr_config_where(config, key), key, tsr_text_string(&value),
                        config->model_name_or_path, keys[i].change);
    }
    return TSR_OK;
}

tsr_status tsr_inputs_open_router_bias(tsr_inputs *inputs)
{
    const char *adapter = inputs->config.init_adapter;
    char path[PATH_MAX + sizeof TSR_PEFT_ROUTER_BIAS_FILE + 1];
    if (!adapter)
        return TSR_OK;
    snprintf(path, sizeof path, "%s/" TSR_PEFT_ROUTER_BIAS_FILE, adapter);
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return TSR_OK;
    TSR_TRY(tsr_safetensors_open(&inputs->router_bias, path));
    return tsr_router_bias_check(inputs->router_bias, &inputs->layout);
}

bool tsr_inputs_has_router_bias(const tsr_inputs *inputs, bool train)
{
    return inputs->router_bias || (train && inputs->config.router_bias_update_rate > 0);
}
