/*
 * smollm3.c: SmolLM 3: a Llama of which every fourth layer has no RoPE.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

static const char *const keys[] = {
    "attention_bias", "mlp_bias",           "no_rope_layers", "no_rope_layer_interval",
    "sliding_window", "use_sliding_window", "layer_types",    NULL};

/* no_rope_layers: 1 for a layer that has RoPE. */
static tsr_status read_unturned(tsr_model_config *out, const json_t *root, const char *place)
{
    uint64_t interval = 4;
    json_t *list;
    if (tsr_json_has(root, "no_rope_layer_interval"))
        TSR_TRY(tsr_model_config_size(&interval, root, "no_rope_layer_interval",
                                      TSR_MODEL_MOST_LAYERS, place));
    for (uint64_t i = interval - 1; i < out->layer_count; i += interval)
        tsr_layer_put_in(&out->second_rope, i);
    if (!tsr_json_has(root, "no_rope_layers"))
        return TSR_OK;
    TSR_TRY(tsr_json_array(&list, root, "no_rope_layers", place));
    if (json_array_size(list) != out->layer_count)
        return tsr_fail(TSR_EDATA, "%s: no_rope_layers has %zu entries, expected %llu, one a layer",
                        place, json_array_size(list), (unsigned long long)out->layer_count);
    out->second_rope = (tsr_layer_set){0};
    for (uint64_t i = 0; i < out->layer_count; i++) {
        const json_t *turned = json_array_get(list, i);
        char found[TSR_JSON_SHOW_BYTES];
        if (!json_is_integer(turned) || json_integer_value(turned) >> 1)
            return tsr_fail(TSR_EDATA, "%s: no_rope_layers holds %s, expected 0 or 1", place,
                            tsr_json_show(found, turned));
        if (!json_integer_value(turned))
            tsr_layer_put_in(&out->second_rope, i);
    }
    return TSR_OK;
}

/* Layers slide only where use_sliding_window says so: those of layer_types, or those without RoPE. */
static tsr_status read_window(tsr_model_config *out, const json_t *root, const char *place)
{
    bool slides = false;
    TSR_TRY(tsr_model_config_sliding_window(&out->sliding_window, root, 0, place));
    TSR_TRY(tsr_model_config_flag(&slides, root, "use_sliding_window", place));
    if (slides && out->sliding_window)
        out->sliding = out->second_rope;
    TSR_TRY(tsr_model_config_layer_types(out, root, place));
    if (!slides)
        out->sliding_window = 0;
    return TSR_OK;
}

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    TSR_TRY(tsr_model_config_flag(&out->mlp_bias, root, "mlp_bias", place));
    out->rope[out->rope_count++] = (tsr_rope_scaling){.type = TSR_ROPE_NONE, .theta = 1};
    TSR_TRY(read_unturned(out, root, place));
    return read_window(out, root, place);
}

const tsr_arch tsr_arch_smollm3 = {.model_type = "smollm3",
                                   .architecture = "SmolLM3ForCausalLM",
                                   .models = "SmolLM 3",
                                   .kv_head_count = 4,
                                   .max_position = 32768,
                                   .bos = 128000,
                                   .eos = 128001,
                                   .eps = 1e-6,
                                   .theta = 2000000,
                                   .tied = true,
                                   .keys = keys,
                                   .read = read,
                                   .block = tsr_decoder_block};
