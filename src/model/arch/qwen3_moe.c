/*
 * qwen3_moe.c: Qwen 3 with experts: softmax over all of them, divided by the sum of the chosen if norm_topk_prob.
 */
#include "model/arch/config_parts.h"
#include "model/arch/experts.h"
#include "model/arch/families.h"

#include <inttypes.h>

static const char *const keys[] = {
    "attention_bias",       "sliding_window",       "use_sliding_window",
    "max_window_layers",    "layer_types",          "num_experts",
    "num_local_experts",    "num_experts_per_tok",  "moe_intermediate_size",
    "norm_topk_prob",       "decoder_sparse_step",  "mlp_only_layers",
    "output_router_logits", "router_aux_loss_coef", NULL};

/* Layer i is sparse unless mlp_only_layers has it, every decoder_sparse_step. */
static tsr_status read_sparse(tsr_model_config *out, const json_t *root, const char *place)
{
    int64_t step = 1;
    json_t *dense;
    if (tsr_json_has(root, "decoder_sparse_step"))
        TSR_TRY(tsr_json_int(&step, root, "decoder_sparse_step", 1, TSR_MODEL_MOST_LAYERS, place));
    for (uint64_t i = 0; i < out->layer_count; i++)
        if ((i + 1) % (uint64_t)step)
            tsr_layer_take_out(&out->experts.sparse, i);
    if (!tsr_json_has(root, "mlp_only_layers"))
        return TSR_OK;
    TSR_TRY(tsr_json_array(&dense, root, "mlp_only_layers", place));
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *layer = json_array_get(dense, i);
        json_int_t at = json_integer_value(layer);
        char found[TSR_JSON_SHOW_BYTES];
        if (!json_is_integer(layer) || at < 0 || (uint64_t)at >= out->layer_count)
            return tsr_fail(TSR_EDATA,
                            "%s: mlp_only_layers holds %s, expected layers 0 to %" PRIu64, place,
                            tsr_json_show(found, layer), out->layer_count - 1);
        tsr_layer_take_out(&out->experts.sparse, (uint64_t)at);
    }
    return TSR_OK;
}

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    static const char *const counts[] = {"num_experts", "num_local_experts", NULL};
    static const tsr_expert_keys names = {counts, "num_experts_per_tok", "moe_intermediate_size"};
    TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    out->head_norms = TSR_HEAD_NORMS_EACH;
    TSR_TRY(tsr_model_config_qwen_window(out, root, place));
    TSR_TRY(tsr_model_config_experts(out, root, &names, place));
    out->experts.scoring = TSR_ROUTE_SOFTMAX;
    TSR_TRY(tsr_model_config_flag(&out->experts.normalise, root, "norm_topk_prob", place));
    return read_sparse(out, root, place);
}

static tsr_status block(tsr_block *out, const tsr_model_config *config, int layer)
{
    return tsr_decoder_sparse_block(out, config, layer, &tsr_expert_names_usual);
}

const tsr_arch tsr_arch_qwen3_moe = {.model_type = "qwen3_moe",
                                     .architecture = "Qwen3MoeForCausalLM",
                                     .models = "Qwen 3 30B-A3B, 235B-A22B and Coder",
                                     .kv_head_count = 4,
                                     .head_dim = 128,
                                     .max_position = 32768,
                                     .bos = -1,
                                     .eos = -1,
                                     .eps = 1e-6,
                                     .theta = 10000,
                                     .keys = keys,
                                     .read = read,
                                     .block = block};
