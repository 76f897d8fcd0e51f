/*
 * glm4_moe.c: GLM 4.5 and 4.6: a Llama of which half of a head turns, with norms of queries and keys or without; the first
 * layers have an MLP, the others experts.
 */
#include "model/arch/config_parts.h"
#include "model/arch/experts.h"
#include "model/arch/families.h"

static const char *const keys[] = {
    "attention_bias", "partial_rotary_factor", "use_qk_norm", "first_k_dense_replace",
    "n_routed_experts", "num_local_experts", "n_shared_experts", "num_experts_per_tok",
    "moe_intermediate_size", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor",
    /* Of heads that predict further tokens, which are not read. */
    "num_nextn_predict_layers", "num_mtp_layers", NULL};

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    static const tsr_grouped_defaults experts = {
        .dense_layers = 1, .shared = 1, .groups = 1, .chosen_groups = 1, .scale = 1};
    bool norms = false;
    TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    out->o_bias = false;
    TSR_TRY(tsr_model_config_flag(&norms, root, "use_qk_norm", place));
    out->head_norms = norms ? TSR_HEAD_NORMS_EACH : TSR_HEAD_NORMS_NONE;
    return tsr_model_config_grouped(out, root, &experts, place);
}

static tsr_status block(tsr_block *out, const tsr_model_config *config, int layer)
{
    return tsr_decoder_sparse_block(out, config, layer, &tsr_expert_names_grouped);
}

const tsr_arch tsr_arch_glm4_moe = {.model_type = "glm4_moe",
                                    .architecture = "Glm4MoeForCausalLM",
                                    .models = "GLM 4.5, GLM 4.6",
                                    .kv_head_count = 8,
                                    .max_position = 131072,
                                    .bos = -1,
                                    .eos = -1,
                                    .eps = 1e-5,
                                    .theta = 10000,
                                    .further_tokens = true,
                                    .partial = 0.5,
                                    .keys = keys,
                                    .read = read,
                                    .block = block};
