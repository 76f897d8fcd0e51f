/*
 * model/arch/decoder.h: the halves that the layers of most families are made of. Inside src/model/arch.
 */
#ifndef TSR_MODEL_ARCH_DECODER_H
#define TSR_MODEL_ARCH_DECODER_H

#include "model/arch/config.h"
#include "model/block.h"

/* What is said of the layer's heads. */
tsr_rope_spec tsr_decoder_rope(const tsr_model_config *config, int layer);
tsr_attention_spec tsr_decoder_attention_spec(const tsr_model_config *config, int layer);

/* x through q, k, v, rope and attention: what o_proj makes of it. */
int16_t tsr_decoder_attention(tsr_block *block, int16_t x, const tsr_model_config *config,
                              int layer);

/* x through gate, up and down: what down_proj makes of it. */
int16_t tsr_decoder_mlp(tsr_block *block, int16_t x, const tsr_model_config *config);

/* Adds it to the residual stream, scaled where the model does so. */
void tsr_decoder_add(tsr_block *block, tsr_residual *r, int16_t value,
                     const tsr_model_config *config);

/* Both, each behind a norm: x += attention(norm(x)), x += mlp(norm(x)). */
tsr_status tsr_decoder_block(tsr_block *out, const tsr_model_config *config, int layer);

/* Both, each between two norms, of which the family says the names: x += norm(attention(norm(x))), x +=
 * norm(mlp(norm(x))). */
tsr_status tsr_decoder_between_norms(tsr_block *out, const tsr_model_config *config, int layer,
                                     const char *const norm[4]);

#endif
