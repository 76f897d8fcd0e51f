/*
 * io/model_config.h: a model's config.json, both generations of Hugging Face's format.
 *
 * Older: rope_theta, rope_scaling, torch_dtype at the top level; Transformers 5: rope_parameters,
 * dtype. Model types llama, mistral, qwen2, qwen3. Whatever is not understood is refused by the
 * field's name (TSR_EDATA); what cannot change a result is ignored. Where a key is missing, the
 * default is Transformers'.
 */
#ifndef TSR_IO_MODEL_CONFIG_H
#define TSR_IO_MODEL_CONFIG_H

#include "base/dtype.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    TSR_MODEL_LLAMA,
    TSR_MODEL_MISTRAL,
    TSR_MODEL_QWEN2,
    TSR_MODEL_QWEN3
} tsr_model_type;
typedef enum {
    TSR_MODEL_ROPE_DEFAULT,
    TSR_MODEL_ROPE_LINEAR,
    TSR_MODEL_ROPE_LLAMA3
} tsr_model_rope_type;

typedef struct {
    tsr_model_rope_type type;
    double theta;
    double factor;                            /* linear, llama3; else 1 */
    double low_freq_factor, high_freq_factor; /* llama3; else 0 */
    uint64_t original_max_position;           /* llama3; else 0 */
} tsr_rope_config;

#define TSR_MODEL_MAX_EOS 16

typedef struct {
    tsr_model_type model_type;
    uint64_t vocab_size, hidden_size, intermediate_size, layer_count;
    uint64_t head_count, kv_head_count, head_dim;
    double rms_norm_eps;
    tsr_rope_config rope;
    bool q_bias, k_bias, v_bias, o_bias, mlp_bias;
    bool qk_norm; /* RMSNorm over each head of q and k, before RoPE (qwen3) */
    bool tie_word_embeddings;
    uint64_t sliding_window; /* a token sees itself and window - 1 before it; 0: all before it */
    uint64_t max_position_embeddings;
    tsr_dtype dtype;                    /* of the stored weights, by the config; F32 if unsaid */
    int64_t bos_token_id, pad_token_id; /* -1: none */
    int64_t eos_token_id[TSR_MODEL_MAX_EOS];
    int eos_count;
    /* quantization_config: a bitsandbytes nf4 checkpoint. */
    bool prequantized, double_quant;
} tsr_model_config;

/* "llama", "mistral", "qwen2", "qwen3". */
const char *tsr_model_type_name(tsr_model_type type);

/* Reads `directory`/config.json. Sizes are positive, within limits that keep every product of two
 * or three of a tensor's sizes below 2^62, and agree with each other. */
tsr_status tsr_model_config_load(tsr_model_config *out, const char *directory);

/* The same from text; `place` is the file's name for messages. */
tsr_status tsr_model_config_parse(tsr_model_config *out, const char *text, uint64_t bytes,
                                  const char *place);

#endif
