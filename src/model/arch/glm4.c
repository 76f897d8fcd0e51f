/*
 * glm4.c: GLM 4: norms before and behind attention and MLP, gate and up in one matrix, and a RoPE that turns neighbouring
 * columns of the first half of a head. Its post_attention_layernorm is the norm before the MLP.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

static const char *const keys[] = {"attention_bias", "partial_rotary_factor", NULL};

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    bool bias = true;
    TSR_TRY(tsr_model_config_flag(&bias, root, "attention_bias", place));
    out->q_bias = out->k_bias = out->v_bias = bias;
    out->one_gate_up = true;
    return TSR_OK;
}

static tsr_status block(tsr_block *out, const tsr_model_config *config, int layer)
{
    static const char *const norm[4] = {"input_layernorm", "post_self_attn_layernorm",
                                        "post_attention_layernorm", "post_mlp_layernorm"};
    return tsr_decoder_between_norms(out, config, layer, norm);
}

const tsr_arch tsr_arch_glm4 = {.model_type = "glm4",
                                .architecture = "Glm4ForCausalLM",
                                .models = "GLM 4 (0414)",
                                .kv_head_count = 2,
                                .head_dim = 128,
                                .max_position = 131072,
                                .bos = -1,
                                .eos = 151329,
                                .eps = 1.5625e-7,
                                .theta = 10000,
                                .partial = 0.5,
                                .neighbours = true,
                                .keys = keys,
                                .read = read,
                                .block = block};
