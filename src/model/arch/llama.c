/*
 * llama.c: Llama 1 to 3, and what is of their shape: TinyLlama, SmolLM, Yi, DeepSeek LLM.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

static const char *const keys[] = {"attention_bias", "mlp_bias", NULL};

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    return tsr_model_config_flag(&out->mlp_bias, root, "mlp_bias", place);
}

const tsr_arch tsr_arch_llama = {.model_type = "llama",
                                 .architecture = "LlamaForCausalLM",
                                 .models =
                                     "Llama 1 to 3, TinyLlama, SmolLM 1 and 2, Yi, DeepSeek LLM",
                                 .kv_head_count = 0,
                                 .head_dim = 0,
                                 .max_position = 2048,
                                 .bos = 1,
                                 .eos = 2,
                                 .eps = 1e-6,
                                 .theta = 10000,
                                 .tokenizer_by_class = true,
                                 .keys = keys,
                                 .read = read,
                                 .block = tsr_decoder_block};
