#include "model/arch/config_parts.h"

#include <string.h>

/* Read for every family. */
static const char *const common[] = {"model_type",
                                     "architectures",
                                     "vocab_size",
                                     "hidden_size",
                                     "intermediate_size",
                                     "num_hidden_layers",
                                     "num_attention_heads",
                                     "num_key_value_heads",
                                     "head_dim",
                                     "hidden_act",
                                     "rms_norm_eps",
                                     "max_position_embeddings",
                                     "tie_word_embeddings",
                                     "rope_theta",
                                     "rope_scaling",
                                     "rope_parameters",
                                     "dtype",
                                     "torch_dtype",
                                     "bos_token_id",
                                     "eos_token_id",
                                     "pad_token_id",
                                     "quantization_config"};

/* What cannot change a logit or a loss: provenance, outputs asked for, initialisation, generation,
 * classification heads. */
static const char *const harmless[] = {
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "transformers_version",
    "transformers.js_config",
    "unsloth_version",
    "unsloth_fixed",
    "is_llama_config",
    "use_cache",
    "cache_implementation",
    "initializer_range",
    "return_dict",
    "return_dict_in_generate",
    "output_hidden_states",
    "output_attentions",
    "output_scores",
    "torchscript",
    "use_bfloat16",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "use_flash_attn",
    "tokenizer_class",
    "model_max_length",
    "chunk_size_feed_forward",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "prefix",
    "sep_token_id",
    "unk_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "begin_suppress_tokens",
    "suppress_tokens",
    "bad_words_ids",
    "max_length",
    "min_length",
    "max_new_tokens",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "diversity_penalty",
    "early_stopping",
    "exponential_decay_length_penalty",
    "remove_invalid_values",
    "tf_legacy_loss",
};

/* Only at the value that does nothing: a number, false (0), or empty. */
static const struct {
    const char *key;
    double value;
} neutral[] = {
    {"attention_dropout", 0},
    {"hidden_dropout", 0},
    {"resid_pdrop", 0},
    {"embd_pdrop", 0},
    {"attn_pdrop", 0},
    {"pretraining_tp", 1},
    {"partial_rotary_factor", 1},
    {"attention_bias", 0},
    {"mlp_bias", 0},
    {"use_sliding_window", 0},
    {"rope_interleaved", 0},
    {"use_mrope", 0},
    {"use_bidirectional_attention", 0},
    {"is_decoder", 0},
    {"is_encoder_decoder", 0},
    {"add_cross_attention", 0},
    {"tie_encoder_decoder", 0},
    {"pruned_heads", 0},
};

static bool at_value(const json_t *value, double wanted)
{
    if (json_is_number(value))
        return json_number_value(value) == wanted;
    if (json_is_boolean(value))
        return json_is_true(value) == (wanted != 0);
    return (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static bool is_in(const char *key, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count && list[i]; i++)
        if (!strcmp(key, list[i]))
            return true;
    return false;
}

static bool is_fine(const char *key, const tsr_arch *arch)
{
    return is_in(key, common, sizeof common / sizeof *common) || is_in(key, arch->keys, SIZE_MAX) ||
           is_in(key, harmless, sizeof harmless / sizeof *harmless);
}

tsr_status tsr_model_config_check_keys(const json_t *root, const tsr_arch *arch, const char *place)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value)
    {
        bool fine = json_is_null(value) || is_fine(key, arch);
        const double *wanted = NULL;
        for (size_t i = 0; !fine && i < sizeof neutral / sizeof *neutral; i++)
            if (!strcmp(key, neutral[i].key))
                wanted = &neutral[i].value;
        char found[TSR_JSON_SHOW_BYTES];
        if (fine || (wanted && at_value(value, *wanted)))
            continue;
        if (wanted)
            return tsr_fail(TSR_EDATA, "%s: key '%s' is %s, only %g is supported for %s", place,
                            key, tsr_json_show(found, value), *wanted, arch->model_type);
        return tsr_fail(TSR_EDATA, "%s: key '%s' (%s) is not understood for %s", place, key,
                        tsr_json_show(found, value), arch->model_type);
    }
    return TSR_OK;
}

/* Which modules are in MXFP4 is seen from the tensors. */
static tsr_status check_mxfp4(const json_t *config, const char *place)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)config, key, value)
    {
        bool fine = json_is_null(value) || !strcmp(key, "quant_method") ||
                    (!strcmp(key, "modules_to_not_convert") && json_is_array(value)) ||
                    (!strcmp(key, "dequantize") && json_is_boolean(value));
        char found[TSR_JSON_SHOW_BYTES];
        if (!fine)
            return tsr_fail(TSR_EDATA, "%s: quantization_config: key '%s' (%s) is not understood",
                            place, key, tsr_json_show(found, value));
    }
    return TSR_OK;
}

static tsr_status check_quantization_keys(const json_t *config, const char *place)
{
    static const char *const known[] = {"quant_method",
                                        "load_in_4bit",
                                        "load_in_8bit",
                                        "_load_in_4bit",
                                        "_load_in_8bit",
                                        "bnb_4bit_quant_type",
                                        "bnb_4bit_use_double_quant",
                                        "bnb_4bit_compute_dtype",
                                        "bnb_4bit_quant_storage",
                                        "llm_int8_enable_fp32_cpu_offload",
                                        "llm_int8_has_fp16_weight",
                                        "llm_int8_skip_modules",
                                        "llm_int8_threshold"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)config, key, value)
    {
        bool fine = json_is_null(value);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            fine = fine || !strcmp(key, known[i]);
        char found[TSR_JSON_SHOW_BYTES];
        if (!fine)
            return tsr_fail(TSR_EDATA, "%s: quantization_config: key '%s' (%s) is not understood",
                            place, key, tsr_json_show(found, value));
    }
    return TSR_OK;
}

/* Weights in e4m3 with a scale for each block of 128 x 128: the checkpoint reads them as BF16 (io/fp8_blocks.h). How
 * activations are rounded when such a model is run says nothing of its weights. */
static tsr_status check_fp8(const json_t *config, const char *place)
{
    static const char *const known[] = {
        "quant_method", "fmt",        "weight_block_size",      "activation_scheme",
        "scale_fmt",    "dequantize", "modules_to_not_convert", "ignored_layers"};
    const char *key, *format = "e4m3";
    json_t *value, *block;
    char found[TSR_JSON_SHOW_BYTES];
    json_object_foreach((json_t *)config, key, value)
    {
        if (!json_is_null(value) && !is_in(key, known, sizeof known / sizeof *known))
            return tsr_fail(TSR_EDATA, "%s: quantization_config: key '%s' (%s) is not understood",
                            place, key, tsr_json_show(found, value));
    }
    if (tsr_json_has(config, "fmt"))
        TSR_TRY(tsr_json_string(&format, config, "fmt", place));
    if (strcmp(format, "e4m3"))
        return tsr_fail(TSR_EDATA,
                        "%s: quantization_config: fmt '%s' is not supported, only e4m3: use the "
                        "original model",
                        place, format);
    block = json_object_get(config, "weight_block_size");
    if (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != 128 ||
        json_integer_value(json_array_get(block, 1)) != 128)
        return tsr_fail(TSR_EDATA,
                        "%s: quantization_config: weight_block_size is %s, only [128, 128] is "
                        "supported for fp8: use the original model",
                        place, block ? tsr_json_show(found, block) : "missing");
    return TSR_OK;
}

tsr_status tsr_model_config_quantization(tsr_model_config *out, const json_t *root,
                                         const char *place)
{
    json_t *config;
    const char *method = "bitsandbytes", *type = "fp4"; /* bitsandbytes' own default is fp4 */
    bool in_4bit = false, in_8bit = false;
    if (!tsr_json_has(root, "quantization_config"))
        return TSR_OK;
    TSR_TRY(tsr_json_object(&config, root, "quantization_config", place));
    if (tsr_json_has(config, "quant_method"))
        TSR_TRY(tsr_json_string(&method, config, "quant_method", place));
    out->fp8 = !strcmp(method, "fp8");
    if (out->fp8)
        return check_fp8(config, place);
    out->mxfp4 = out->arch->mxfp4 && !strcmp(method, "mxfp4");
    if (out->mxfp4)
        return check_mxfp4(config, place);
    if (strcmp(method, "bitsandbytes"))
        return tsr_fail(
            TSR_EDATA,
            "%s: quantization_config: quant_method '%s' is not supported, only "
            "bitsandbytes nf4, fp8 in blocks of 128 x 128 and mxfp4: use the original model",
            place, method);
    if (tsr_json_has(config, "load_in_8bit"))
        TSR_TRY(tsr_json_bool(&in_8bit, config, "load_in_8bit", place));
    out->int8 = in_8bit;
    if (in_8bit) /* its tensors say the rest */
        return check_quantization_keys(config, place);
    TSR_TRY(tsr_json_bool(&in_4bit, config, "load_in_4bit", place));
    if (!in_4bit)
        return tsr_fail(TSR_EDATA, "%s: quantization_config: load_in_4bit is false, expected true",
                        place);
    if (tsr_json_has(config, "bnb_4bit_quant_type"))
        TSR_TRY(tsr_json_string(&type, config, "bnb_4bit_quant_type", place));
    if (strcmp(type, "nf4"))
        return tsr_fail(TSR_EDATA,
                        "%s: quantization_config: bnb_4bit_quant_type '%s' is not supported, only "
                        "nf4: use the original model",
                        place, type);
    if (tsr_json_has(config, "bnb_4bit_use_double_quant"))
        TSR_TRY(tsr_json_bool(&out->double_quant, config, "bnb_4bit_use_double_quant", place));
    out->prequantized = true;
    return check_quantization_keys(config, place);
}
