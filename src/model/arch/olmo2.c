/*
 * olmo2.c: OLMo 2 and 3: a norm behind attention and behind the MLP instead of before them, and norms over all heads
 * of q and of k at once. In OLMo 3 three of four layers slide, and turn without the others' scaling.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/families.h"

static const char *const keys[] = {"attention_bias", NULL};
static const char *const olmo3_keys[] = {"attention_bias", "sliding_window", "layer_types", NULL};

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    out->head_norms = TSR_HEAD_NORMS_ALL;
    return TSR_OK;
}

static tsr_status read_olmo3(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(read(out, root, place));
    TSR_TRY(tsr_model_config_slide(out, root, 4096, 4, place));
    TSR_TRY(tsr_model_config_layer_types(out, root, place));
    out->second_rope = out->sliding;
    return TSR_OK;
}

static tsr_status block(tsr_block *out, const tsr_model_config *c, int layer)
{
    float eps = (float)c->rms_norm_eps;
    tsr_residual r = tsr_block_begin(out, c->hidden_size);
    int16_t x = tsr_block_sum(out, &r, (tsr_value_name){"x", "input of the layer"});
    int16_t y = tsr_decoder_attention(out, x, c, layer);
    tsr_block_add(out, &r,
                  tsr_block_norm_of(out, y, "post_attention_layernorm", eps,
                                    (tsr_value_name){"h", "attention's output, normed"}));
    x = tsr_block_sum(out, &r, (tsr_value_name){"x_mid", "the residual after attention"});
    y = tsr_decoder_mlp(out, x, c);
    tsr_block_add(out, &r,
                  tsr_block_norm_of(out, y, "post_feedforward_layernorm", eps,
                                    (tsr_value_name){"h2", "the MLP's output, normed"}));
    return tsr_block_end(out, r, "OLMo's layer");
}

const tsr_arch tsr_arch_olmo2 = {.model_type = "olmo2",
                                 .architecture = "Olmo2ForCausalLM",
                                 .models = "OLMo 2",
                                 .max_position = 2048,
                                 .bos = -1,
                                 .eos = 50279,
                                 .eps = 1e-5,
                                 .theta = 10000,
                                 .keys = keys,
                                 .read = read,
                                 .block = block};

const tsr_arch tsr_arch_olmo3 = {.model_type = "olmo3",
                                 .architecture = "Olmo3ForCausalLM",
                                 .models = "OLMo 3",
                                 .max_position = 2048,
                                 .bos = -1,
                                 .eos = 50279,
                                 .eps = 1e-5,
                                 .theta = 500000,
                                 .sliding_theta = 500000,
                                 .keys = olmo3_keys,
                                 .read = read_olmo3,
                                 .block = block};
