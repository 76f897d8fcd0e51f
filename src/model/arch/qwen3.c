/*
 * qwen3.c: Qwen 3 and the text of Qwen 3 VL: a Llama with a norm over each head of q and k.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

static const char *const keys[] = {"attention_bias",    "sliding_window", "use_sliding_window",
                                   "max_window_layers", "layer_types",    NULL};
static const char *const vl_keys[] = {"attention_bias", NULL};

static tsr_status read_vl(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    out->head_norms = TSR_HEAD_NORMS_EACH;
    return TSR_OK;
}

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(read_vl(out, root, place));
    return tsr_model_config_qwen_window(out, root, place);
}

const tsr_arch tsr_arch_qwen3 = {.model_type = "qwen3",
                                 .architecture = "Qwen3ForCausalLM",
                                 .models = "Qwen 3",
                                 .kv_head_count = 32,
                                 .head_dim = 128,
                                 .max_position = 32768,
                                 .bos = -1,
                                 .eos = -1,
                                 .eps = 1e-6,
                                 .theta = 10000,
                                 .keys = keys,
                                 .read = read,
                                 .block = tsr_decoder_block};

/* No layer slides. */
const tsr_arch tsr_arch_qwen3_vl = {.model_type = "qwen3_vl_text",
                                    .kv_head_count = 32,
                                    .head_dim = 128,
                                    .max_position = 128000,
                                    .bos = -1,
                                    .eos = -1,
                                    .eps = 1e-6,
                                    .theta = 500000,
                                    .mrope = true,
                                    .keys = vl_keys,
                                    .read = read_vl,
                                    .block = tsr_decoder_block};
