/*
 * mixtral.c: Mixtral: a Mistral whose MLPs are experts, with a softmax over those of a token.
 */
#include "model/arch/config_parts.h"
#include "model/arch/experts.h"
#include "model/arch/families.h"

static const char *const keys[] = {"sliding_window",
                                   "num_local_experts",
                                   "num_experts_per_tok",
                                   "output_router_logits",
                                   "router_aux_loss_coef",
                                   "router_jitter_noise",
                                   NULL};

static const tsr_expert_names names = {
    .router = {.weight = "block_sparse_moe.gate"},
    .gate_up = "mlp.experts.gate_up_proj",
    .down = "mlp.experts.down_proj",
    .gate_up_files = {.one = {"block_sparse_moe.experts.%d.w1", "block_sparse_moe.experts.%d.w3"}},
    .down_files = {.one = {"block_sparse_moe.experts.%d.w2"}}};

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    static const char *const counts[] = {"num_local_experts", NULL};
    static const tsr_expert_keys sizes = {counts, "num_experts_per_tok", "intermediate_size"};
    double noise = 0;
    TSR_TRY(tsr_model_config_slide(out, root, 0, 0, place));
    TSR_TRY(tsr_model_config_experts(out, root, &sizes, place));
    out->experts.scoring = TSR_ROUTE_CHOSEN;
    if (tsr_json_has(root, "router_jitter_noise"))
        TSR_TRY(tsr_json_number(&noise, root, "router_jitter_noise", 0, 1, place));
    return noise == 0
               ? TSR_OK
               : tsr_fail(TSR_EDATA,
                          "%s: router_jitter_noise is %g; noise on the router's input is not "
                          "supported, write 0",
                          place, noise);
}

static tsr_status block(tsr_block *out, const tsr_model_config *config, int layer)
{
    return tsr_decoder_sparse_block(out, config, layer, &names);
}

const tsr_arch tsr_arch_mixtral = {.model_type = "mixtral",
                                   .architecture = "MixtralForCausalLM",
                                   .models = "Mixtral 8x7B and 8x22B",
                                   .kv_head_count = 8,
                                   .max_position = 131072,
                                   .bos = 1,
                                   .eos = 2,
                                   .eps = 1e-5,
                                   .theta = 1000000,
                                   .keys = keys,
                                   .read = read,
                                   .block = block};
