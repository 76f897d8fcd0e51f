/*
 * gpt_oss.c: gpt-oss: every second layer slides, heads have sinks, and the MLP is experts whose gate and up are clamped.
 * Published checkpoints hold the experts in MXFP4.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

#include <string.h>

#define MOST_EXPERTS 1024

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

/* num_experts_per_tok, which OpenAI calls experts_per_token; published files have both. */
static tsr_status read_chosen(tsr_model_config *out, const json_t *root, const char *place)
{
    static const char *const names[] = {"num_experts_per_tok", "experts_per_token"};
    uint64_t found[2] = {0};
    for (int i = 0; i < 2; i++)
        if (tsr_json_has(root, names[i]))
            TSR_TRY(tsr_model_config_size(&found[i], root, names[i], MOST_EXPERTS, place));
    if (found[0] && found[1] && found[0] != found[1])
        return tsr_fail(TSR_EDATA, "%s: experts_per_token is %llu, but num_experts_per_tok is %llu",
                        place, (unsigned long long)found[1], (unsigned long long)found[0]);
    out->experts_per_token = found[0] ? found[0] : found[1] ? found[1] : 4;
    if (out->experts_per_token > out->expert_count)
        return tsr_fail(TSR_EDATA, "%s: num_experts_per_tok is %llu, but num_local_experts is %llu",
                        place, (unsigned long long)out->experts_per_token,
                        (unsigned long long)out->expert_count);
    return TSR_OK;
}

static tsr_status read_experts(tsr_model_config *out, const json_t *root, const char *place)
{
    double limit = (double)TSR_CLAMPED_LIMIT;
    out->expert_count = 128;
    if (tsr_json_has(root, "num_local_experts"))
        TSR_TRY(tsr_model_config_size(&out->expert_count, root, "num_local_experts", MOST_EXPERTS,
                                      place));
    TSR_TRY(read_chosen(out, root, place));
    /* Transformers' experts are clamped at 7 whatever it says. */
    if (tsr_json_has(root, "swiglu_limit"))
        TSR_TRY(tsr_json_number(&limit, root, "swiglu_limit", 0, 1e9, place));
    if (limit != (double)TSR_CLAMPED_LIMIT)
        return tsr_fail(TSR_EDATA, "%s: swiglu_limit is %g, only %g is supported", place, limit,
                        (double)TSR_CLAMPED_LIMIT);
    out->router_aux_loss_coef = 0.001;
    TSR_TRY(tsr_model_config_flag(&out->output_router_logits, root, "output_router_logits", place));
    return tsr_json_has(root, "router_aux_loss_coef")
               ? tsr_json_number(&out->router_aux_loss_coef, root, "router_aux_loss_coef", 0, 1e6,
                                 place)
               : TSR_OK;
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

static tsr_status block(tsr_block *out, const tsr_model_config *c, int layer)
{
    float eps = (float)c->rms_norm_eps;
    tsr_residual r = tsr_block_begin(out, c->hidden_size);
    int16_t h =
        tsr_block_norm(out, &r, "input_layernorm", eps, (tsr_value_name){"x", "input of the layer"},
                       (tsr_value_name){"h", "the normed input of attention"});
    tsr_decoder_add(out, &r, tsr_decoder_attention(out, h, c, layer), c);
    h = tsr_block_norm(out, &r, "post_attention_layernorm", eps,
                       (tsr_value_name){"x_mid", "the residual after attention"},
                       (tsr_value_name){"h2", "the normed input of the experts"});
    return tsr_fail(TSR_EUNSUPPORTED, "gpt_oss: its experts are not supported yet");
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
