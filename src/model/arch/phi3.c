/*
 * phi3.c: Phi 3, 3.5 and 4: a Llama with one matrix for q, k and v and one for gate and up, and LongRoPE.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

static const char *const keys[] = {"sliding_window", "partial_rotary_factor",
                                   "original_max_position_embeddings", NULL};

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    out->one_qkv = out->one_gate_up = true;
    return tsr_model_config_slide(out, root, 0, 0, place);
}

const tsr_arch tsr_arch_phi3 = {.model_type = "phi3",
                                .architecture = "Phi3ForCausalLM",
                                .models = "Phi 3, 3.5 and 4",
                                .max_position = 4096,
                                .bos = 1,
                                .eos = 32000,
                                .eps = 1e-5,
                                .theta = 10000,
                                .partial = 1,
                                .long_rope = true,
                                .keys = keys,
                                .read = read,
                                .block = tsr_decoder_block};
