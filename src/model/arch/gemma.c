/*
 * gemma.c: Gemma 2 and 3, text: norms before and behind attention and MLP, all multiplying by 1 + w; an embedding
 * scaled by sqrt(hidden_size); a gated MLP with GELU; layers that slide and layers that see all. Gemma 2 caps scores
 * and logits; Gemma 3 norms the heads of q and k, and its sliding layers turn by a theta of their own.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

#include <math.h>

static const char *const gemma2_keys[] = {
    "hidden_activation", "attention_bias",          "query_pre_attn_scalar",  "sliding_window",
    "layer_types",       "final_logit_softcapping", "attn_logit_softcapping", NULL};

/* attn_logit_softcapping: Transformers reads it and does nothing. */
static const char *const gemma3_keys[] = {"hidden_activation",
                                          "attention_bias",
                                          "query_pre_attn_scalar",
                                          "sliding_window",
                                          "layer_types",
                                          "sliding_window_pattern",
                                          "_sliding_window_pattern",
                                          "final_logit_softcapping",
                                          "attn_logit_softcapping",
                                          "rope_local_base_freq",
                                          NULL};

/* A number above 0; null: 0; *out stays where the key is missing. */
static tsr_status read_number(double *out, const json_t *root, const char *key, const char *place)
{
    if (json_is_null(json_object_get(root, key)))
        *out = 0;
    return tsr_json_has(root, key) ? tsr_json_number(out, root, key, 1e-6, 1e9, place) : TSR_OK;
}

/* Every `pattern`th layer sees all. */
static tsr_status read_window(tsr_model_config *out, const json_t *root, uint64_t pattern,
                              const char *place)
{
    TSR_TRY(tsr_model_config_slide(out, root, 4096, pattern, place));
    return tsr_model_config_layer_types(out, root, place);
}

static tsr_status read_common(tsr_model_config *out, const json_t *root, const char *place)
{
    double scalar = 256;
    TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    TSR_TRY(read_number(&scalar, root, "query_pre_attn_scalar", place));
    out->attention_scale = 1 / sqrt(scalar);
    out->embedding_scale = sqrt((double)out->hidden_size);
    out->norm_plus_one = true;
    return read_number(&out->logits_softcap, root, "final_logit_softcapping", place);
}

static tsr_status read_gemma2(tsr_model_config *out, const json_t *root, const char *place)
{
    out->logits_softcap = 30;
    out->attention_softcap = 50;
    TSR_TRY(read_common(out, root, place));
    TSR_TRY(read_number(&out->attention_softcap, root, "attn_logit_softcapping", place));
    return read_window(out, root, 2, place);
}

static tsr_status read_gemma3(tsr_model_config *out, const json_t *root, const char *place)
{
    uint64_t pattern = 6;
    TSR_TRY(read_common(out, root, place));
    out->head_norms = TSR_HEAD_NORMS_EACH;
    if (tsr_json_has(root, "sliding_window_pattern"))
        TSR_TRY(tsr_model_config_size(&pattern, root, "sliding_window_pattern",
                                      TSR_MODEL_MOST_LAYERS, place));
    if (tsr_json_has(root, "rope_local_base_freq"))
        TSR_TRY(tsr_json_number(&out->rope[1].theta, root, "rope_local_base_freq", 1, 1e15, place));
    TSR_TRY(read_window(out, root, pattern, place));
    out->second_rope = out->sliding;
    return TSR_OK;
}

static tsr_status block(tsr_block *out, const tsr_model_config *config, int layer)
{
    static const char *const norm[4] = {"input_layernorm", "post_attention_layernorm",
                                        "pre_feedforward_layernorm", "post_feedforward_layernorm"};
    return tsr_decoder_between_norms(out, config, layer, norm);
}

const tsr_arch tsr_arch_gemma2 = {.model_type = "gemma2",
                                  .architecture = "Gemma2ForCausalLM",
                                  .models = "Gemma 2",
                                  .kv_head_count = 4,
                                  .head_dim = 256,
                                  .max_position = 8192,
                                  .bos = 2,
                                  .eos = 1,
                                  .eps = 1e-6,
                                  .theta = 10000,
                                  .tied = true,
                                  .activation = TSR_GELU_TANH,
                                  .keys = gemma2_keys,
                                  .read = read_gemma2,
                                  .block = block};

const tsr_arch tsr_arch_gemma3 = {.model_type = "gemma3_text",
                                  .architecture = "Gemma3ForCausalLM",
                                  .models = "Gemma 3 1B",
                                  .kv_head_count = 4,
                                  .head_dim = 256,
                                  .max_position = 131072,
                                  .bos = 2,
                                  .eos = 1,
                                  .eps = 1e-6,
                                  .theta = 1000000,
                                  .sliding_theta = 10000,
                                  .tied = true,
                                  .activation = TSR_GELU_TANH,
                                  .keys = gemma3_keys,
                                  .read = read_gemma3,
                                  .block = block};
