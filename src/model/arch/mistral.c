/*
 * mistral.c: Mistral 7B and what is of its shape; where there is a window all layers slide.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

static const char *const keys[] = {"sliding_window", NULL};

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    return tsr_model_config_slide(out, root, 4096, 0, place);
}

const tsr_arch tsr_arch_mistral = {.model_type = "mistral",
                                   .architecture = "MistralForCausalLM",
                                   .models = "Mistral 7B, Mistral Nemo",
                                   .kv_head_count = 8,
                                   .head_dim = 0,
                                   .max_position = 131072,
                                   .bos = 1,
                                   .eos = 2,
                                   .eps = 1e-6,
                                   .theta = 10000,
                                   .keys = keys,
                                   .read = read,
                                   .block = tsr_decoder_block};
