/*
 * model/arch/decoder.h: the halves that the layers of most families are made of. Inside src/model/arch.
 */
#ifndef TSR_MODEL_ARCH_DECODER_H
#define TSR_MODEL_ARCH_DECODER_H

#include "model/arch/config.h"
#include "model/block.h"

/* What is said of the layer's heads: rope[1] is that of layers that slide, where they have one of their own, or do
 * not turn. */
tsr_rope_spec tsr_decoder_rope(const tsr_model_config *config, int layer);
tsr_attention_spec tsr_decoder_attention_spec(const tsr_model_config *config, int layer);

/* h through q, k, v, rope and attention to o, which is added to the residual stream. */
void tsr_decoder_attention(tsr_block *block, tsr_residual *r, int16_t h,
                           const tsr_model_config *config, int layer);

/* h through gate, up and down, which is added to the residual stream. */
void tsr_decoder_mlp(tsr_block *block, tsr_residual *r, int16_t h, const tsr_model_config *config);

/* Both, each behind a norm: x += attention(norm(x)), x += mlp(norm(x)). */
tsr_status tsr_decoder_block(tsr_block *out, const tsr_model_config *config, int layer);

#endif
