/*
 * ministral3.c: Ministral 3: a Llama with YaRN, whose queries grow with the logarithm of their position.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

static const char *const keys[] = {"sliding_window", NULL};

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    if (!tsr_json_has(root, "rope_parameters"))
        return tsr_fail(TSR_EDATA, "%s: rope_parameters is missing, which every ministral3 has",
                        place);
    return tsr_model_config_slide(out, root, 0, 0, place);
}

const tsr_arch tsr_arch_ministral3 = {.model_type = "ministral3",
                                      .architecture = "Ministral3ForCausalLM",
                                      .models = "Ministral 3",
                                      .kv_head_count = 8,
                                      .head_dim = 128,
                                      .max_position = 262144,
                                      .bos = 1,
                                      .eos = 2,
                                      .eps = 1e-5,
                                      .theta = 1000000,
                                      .query_beta = true,
                                      .keys = keys,
                                      .read = read,
                                      .block = tsr_decoder_block};
