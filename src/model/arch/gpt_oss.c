/*
 * gpt_oss.c: gpt-oss: every second layer slides, heads have sinks, and the MLP is experts whose gate and up are clamped.
 * Published checkpoints hold the experts in MXFP4.
 */
#include "model/arch/config_parts.h"
#include "model/arch/experts.h"
#include "model/arch/families.h"

#include <inttypes.h>

/* initial_context_length: OpenAI's name of the rope's original length, which Transformers does not read. */
static const char *const keys[] = {"attention_bias",
                                   "sliding_window",
                                   "layer_types",
                                   "num_local_experts",
                                   "num_experts_per_tok",
                                   "experts_per_token",
                                   "swiglu_limit",
                                   "output_router_logits",
                                   "router_aux_loss_coef",
                                   "initial_context_length",
                                   NULL};

/* Checkpoints have all experts in one tensor; those that `tessera quantize` writes have one each. */
static const tsr_expert_names names = {
    .router = {.weight = "mlp.router", .bias = "mlp.router.bias"},
    .gate_up = "mlp.experts.gate_up_proj",
    .down = "mlp.experts.down_proj",
    .gate_up_files = {.one = {"mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj"},
                      .fused = "mlp.experts.gate_up_proj",
                      .transposed = true,
                      .bias = "mlp.experts.gate_up_proj_bias"},
    .down_files = {.one = {"mlp.experts.%d.down_proj"},
                   .fused = "mlp.experts.down_proj",
                   .transposed = true,
                   .bias = "mlp.experts.down_proj_bias"}};

static tsr_status read_experts(tsr_model_config *out, const json_t *root, const char *place)
{
    static const char *const counts[] = {"num_local_experts", NULL};
    static const tsr_expert_keys sizes = {counts, "num_experts_per_tok", "intermediate_size"};
    double limit = (double)TSR_CLAMPED_LIMIT;
    uint64_t chosen;
    TSR_TRY(tsr_model_config_experts(out, root, &sizes, place));
    out->experts.scoring = TSR_ROUTE_CHOSEN;
    out->experts.bias = true;
    /* OpenAI's name; published files have both. */
    chosen = out->experts.chosen;
    if (tsr_json_has(root, "experts_per_token"))
        TSR_TRY(tsr_model_config_size(&chosen, root, "experts_per_token", TSR_ROUTE_MOST_CHOSEN,
                                      place));
    if (chosen != out->experts.chosen)
        return tsr_fail(TSR_EDATA,
                        "%s: experts_per_token is %" PRIu64 ", but num_experts_per_tok is %" PRIu64,
                        place, chosen, out->experts.chosen);
    /* Transformers' experts are clamped at 7 whatever it says. */
    if (tsr_json_has(root, "swiglu_limit"))
        TSR_TRY(tsr_json_number(&limit, root, "swiglu_limit", 0, 1e9, place));
    return limit == (double)TSR_CLAMPED_LIMIT
               ? TSR_OK
               : tsr_fail(TSR_EDATA, "%s: swiglu_limit is %g, only %g is supported", place, limit,
                          (double)TSR_CLAMPED_LIMIT);
}

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    out->q_bias = out->k_bias = out->v_bias = out->o_bias = true;
    out->sinks = true;
    if (tsr_json_has(root, "attention_bias"))
        TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    if (!tsr_json_has(root, "rope_parameters") && !tsr_json_has(root, "rope_scaling"))
        return tsr_fail(TSR_EDATA, "%s: rope_scaling is missing, which every gpt_oss has", place);
    TSR_TRY(tsr_model_config_slide(out, root, 128, 2, place));
    TSR_TRY(tsr_model_config_layer_types(out, root, place));
    return read_experts(out, root, place);
}

static tsr_status block(tsr_block *out, const tsr_model_config *config, int layer)
{
    return tsr_decoder_sparse_block(out, config, layer, &names);
}

const tsr_arch tsr_arch_gpt_oss = {.model_type = "gpt_oss",
                                   .architecture = "GptOssForCausalLM",
                                   .models = "gpt-oss 20B and 120B",
                                   .kv_head_count = 8,
                                   .head_dim = 64,
                                   .max_position = 131072,
                                   .bos = -1,
                                   .eos = -1,
                                   .eps = 1e-5,
                                   .theta = 150000,
                                   .mxfp4 = true,
                                   .activation = TSR_SILU_CLAMPED,
                                   .keys = keys,
                                   .read = read,
                                   .block = block};
