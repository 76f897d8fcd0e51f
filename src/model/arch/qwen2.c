/*
 * qwen2.c: Qwen 1.5, 2, 2.5 and the text of 2.5 VL: a Llama whose q, k and v have biases.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

static const char *const keys[] = {"sliding_window", "use_sliding_window", "max_window_layers",
                                   "layer_types", NULL};

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    out->q_bias = out->k_bias = out->v_bias = true;
    return tsr_model_config_qwen_window(out, root, place);
}

const tsr_arch tsr_arch_qwen2 = {.model_type = "qwen2",
                                 .architecture = "Qwen2ForCausalLM",
                                 .models = "Qwen 1.5, 2 and 2.5",
                                 .kv_head_count = 32,
                                 .head_dim = 0,
                                 .max_position = 32768,
                                 .bos = -1,
                                 .eos = -1,
                                 .eps = 1e-6,
                                 .theta = 10000,
                                 .keys = keys,
                                 .read = read,
                                 .block = tsr_decoder_block};

/* Alike, but for what its configuration class takes for missing keys. */
const tsr_arch tsr_arch_qwen2_5_vl = {.model_type = "qwen2_5_vl_text",
                                      .kv_head_count = 8,
                                      .max_position = 32768,
                                      .bos = 151643,
                                      .eos = 151645,
                                      .eps = 1e-5,
                                      .theta = 1000000,
                                      .mrope = true,
                                      .keys = keys,
                                      .read = read,
                                      .block = tsr_decoder_block};
