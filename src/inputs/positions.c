#include "inputs/positions.h"

#include "base/log.h"

/* The model's own positions, where scaling makes more of them. */
static void put_scaling(tsr_text *out, const tsr_model_config *model)
{
    const char *key;
    uint64_t most = tsr_model_positions(&key, model), own = model->max_position_embeddings;
    double original = model->rope[0].original_max_positions, factor = model->rope[0].factor;
    if (most == own)
        tsr_text_puts(out, key);
    else if (original > 0)
        tsr_text_printf(out, "original_max_position_embeddings %.0f times the factor %g of RoPE",
                        original, factor);
    else
        tsr_text_printf(out, "max_position_embeddings %llu times the factor %g of RoPE",
                        (unsigned long long)own, factor);
}

void tsr_inputs_warn_of_positions(const tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    const char *key;
    uint64_t most = tsr_model_positions(&key, &inputs->model);
    bool splits = config->objective.kind == TSR_OBJECTIVE_SFT;
    tsr_auto_text found = {0}, scaling = {0};
    if (inputs->bounds.longest <= (int64_t)most)
        return;
    put_scaling(&scaling, &inputs->model);
    if (config->max_length)
        tsr_text_printf(&found, "%lld", (long long)config->max_length);
    tsr_log(TSR_LOG_WARNING,
            "%s: max_length: found %s, and documents of %lld tokens, but the model was made for "
            "%llu (%s, %s/config.json); write max_length: %llu with truncation: %sright or drop, "
            "unless this training is to extend it",
            tsr_config_where(config, "max_length"),
            config->max_length ? tsr_text_string(&found) : "null",
            (long long)inputs->bounds.longest, (unsigned long long)most, tsr_text_string(&scaling),
            config->model_name_or_path, (unsigned long long)most, splits ? "split, " : "");
}

tsr_status tsr_inputs_check_positions(const tsr_inputs *inputs)
{
    const tsr_model_config *model = &inputs->model;
    uint64_t most = model->longest_document;
    int64_t longest = inputs->bounds.longest;
    if (most && longest > (int64_t)most)
        return tsr_fail(TSR_EDATA,
                        "%s/config.json: rope_type 'dynamic' turns rows of more than "
                        "max_position_embeddings %llu tokens by the longest of their batch, which "
                        "is not supported, and the longest here has %lld; write max_length: %llu "
                        "with truncation: split, right or drop",
                        inputs->config.model_name_or_path, (unsigned long long)most,
                        (long long)longest, (unsigned long long)most);
    tsr_inputs_warn_of_positions(inputs);
    return TSR_OK;
}
