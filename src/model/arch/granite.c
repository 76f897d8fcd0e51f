/*
 * granite.c: Granite 3: a Llama whose embedding, scores, residual additions and logits are scaled.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

static const char *const keys[] = {"attention_bias",
                                   "mlp_bias",
                                   "embedding_multiplier",
                                   "residual_multiplier",
                                   "attention_multiplier",
                                   "logits_scaling",
                                   NULL};

static tsr_status read_scale(double *out, const json_t *root, const char *key, const char *place)
{
    *out = 1;
    return tsr_json_has(root, key) ? tsr_json_number(out, root, key, 1e-9, 1e9, place) : TSR_OK;
}

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    TSR_TRY(tsr_model_config_flag(&out->mlp_bias, root, "mlp_bias", place));
    TSR_TRY(read_scale(&out->embedding_scale, root, "embedding_multiplier", place));
    out->embedding_scale_later = true;
    TSR_TRY(read_scale(&out->residual_scale, root, "residual_multiplier", place));
    TSR_TRY(read_scale(&out->attention_scale, root, "attention_multiplier", place));
    return read_scale(&out->logits_divisor, root, "logits_scaling", place);
}

const tsr_arch tsr_arch_granite = {.model_type = "granite",
                                   .architecture = "GraniteForCausalLM",
                                   .models = "Granite 3",
                                   .max_position = 2048,
                                   .bos = 1,
                                   .eos = 2,
                                   .eps = 1e-6,
                                   .theta = 10000,
                                   .keys = keys,
                                   .read = read,
                                   .block = tsr_decoder_block};
