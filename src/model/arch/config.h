/*
 * model/arch/config.h: a model's config.json, both generations of Hugging Face's format.
 *
 * Older: rope_theta, rope_scaling, torch_dtype at the top level; Transformers 5: rope_parameters,
 * dtype. What every family has is read here, the rest by the family (model/arch/arch.h). Whatever is not
 * understood is refused by the field's name (TSR_EDATA); what cannot change a result is ignored. Where a
 * key is missing, the default is Transformers'.
 */
#ifndef TSR_MODEL_ARCH_CONFIG_H
#define TSR_MODEL_ARCH_CONFIG_H

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/activation.h"
#include "kernels/rope_tables.h"
#include "kernels/route.h"
#include "model/arch/composite.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tsr_arch tsr_arch; /* model/arch/arch.h */

#define TSR_MODEL_MOST_LAYERS (1 << 14)

/* One bit a layer. */
typedef struct {
    uint64_t bits[TSR_MODEL_MOST_LAYERS / 64];
} tsr_layer_set;

static inline bool tsr_layer_is_in(const tsr_layer_set *set, uint64_t layer)
{
    return set->bits[layer / 64] >> layer % 64 & 1;
}

static inline void tsr_layer_put_in(tsr_layer_set *set, uint64_t layer)
{
    set->bits[layer / 64] |= UINT64_C(1) << layer % 64;
}

static inline void tsr_layer_take_out(tsr_layer_set *set, uint64_t layer)
{
    set->bits[layer / 64] &= ~(UINT64_C(1) << layer % 64);
}

#define TSR_MODEL_MOST_HEAD_DIM 512 /* what the kernels take */
#define TSR_MODEL_ROPES         2

/* RMSNorm of q and k before RoPE. */
typedef enum {
    TSR_HEAD_NORMS_NONE,
    TSR_HEAD_NORMS_EACH, /* over each head */
    TSR_HEAD_NORMS_ALL   /* over all heads at once */
} tsr_head_norms;

/* Mixture of experts; count 0: the model has none. As in kernels/route.h. */
typedef struct {
    uint64_t count, chosen; /* of a layer; of a token */
    uint64_t width;         /* of an expert's MLP */
    uint64_t shared_width;  /* of the MLP beside them; 0: none */
    tsr_route_scoring scoring;
    bool normalise;
    bool bias; /* experts have biases */
    uint64_t groups, chosen_groups;
    double scale; /* of the weights; 0: 1 */
    tsr_activation activation;
    tsr_layer_set sparse; /* the layers that have them */
} tsr_model_experts;

#define TSR_MODEL_MAX_EOS 16

typedef struct {
    const tsr_arch *arch;           /* the family */
    const tsr_composite *composite; /* whose text decoder the model is; NULL: none's */
    uint64_t vocab_size, hidden_size, intermediate_size, layer_count;
    uint64_t head_count, kv_head_count, head_dim;
    /* Latent attention; 0: not latent. Sizes of the queries' latent (0: they have none), of the latent of keys and values, of
     * a head's RoPE columns, which follow the others, and of a head of values. head_dim is that of q and k. */
    uint64_t q_lora_rank, kv_lora_rank, rope_head_dim, v_head_dim;
    /* Of layers that see all, where these have other heads than those that slide; 0: they do not. */
    uint64_t full_head_dim, full_kv_head_count;
    uint64_t
        layer_input_width; /* columns that every layer takes of a token beside the stream; 0: none */
    uint64_t
        shared_layer_count; /* the last layers, which read the keys and values of layers below */
    bool double_shared_mlp; /* and whose MLP is twice as wide */
    bool
        values_are_keys; /* layers that see all have no v_proj: values are keys before their norm */
    double rms_norm_eps;
    tsr_rope_scaling rope[TSR_MODEL_ROPES];
    int rope_count;
    bool q_bias, k_bias, v_bias, o_bias, mlp_bias;
    bool one_qkv, one_gate_up; /* one matrix for q, k and v, for gate and up */
    tsr_head_norms head_norms;
    bool sinks; /* of attention (kernels/attention.h) */
    bool tie_word_embeddings;
    double initializer_range; /* of what a checkpoint does not have: a reward model's score */
    double attention_scale;   /* of the scores; 0: 1 / sqrt(head_dim) */
    double embedding_scale, residual_scale; /* of embedded rows; of what layers add; 0: 1 */
    bool embedding_scale_later; /* the embedding itself is not scaled: NEFTune's noise is */
    double logits_divisor;      /* 0: 1 */
    double attention_softcap, logits_softcap; /* c tanh(score / c); 0: none */
    tsr_activation activation;
    tsr_model_experts experts;
    bool norm_plus_one; /* norms multiply by 1 + w */
    uint64_t
        sliding_window; /* of the layers that slide: a token sees itself and window - 1 before it */
    tsr_layer_set sliding;
    tsr_layer_set second_rope; /* the layers that turn by rope[1], where there are two */
    tsr_layer_set linear;      /* the layers with linear attention */
    uint64_t linear_key_heads, linear_value_heads, linear_key_dim, linear_value_dim, linear_taps;
    uint64_t max_position_embeddings;
    uint64_t
        longest_document; /* beyond it RoPE (dynamic) turns by the longest of a batch; 0: any */
    tsr_dtype dtype;      /* of the stored weights, by the config; F32 if unsaid */
    int64_t bos_token_id, pad_token_id; /* -1: none */
    int64_t eos_token_id[TSR_MODEL_MAX_EOS];
    int eos_count;
    /* quantization_config: a bitsandbytes nf4 checkpoint. */
    bool prequantized, double_quant;
    bool int8;  /* weights are LLM.int8, as bitsandbytes has them */
    bool fp8;   /* or weights in e4m3, which the checkpoint reads as BF16 (io/fp8_blocks.h) */
    bool mxfp4; /* or one of gpt-oss: experts may be blocks of MXFP4 (quant/mxfp4.h) */
} tsr_model_config;

/* Positions that the model is made for, and the key of config.json that says so: max_position_embeddings, or what rope_scaling
 * makes of the positions before it, where that is more. A factor counts from the original length where the file has one (llama3,
 * yarn, longrope), since max_position_embeddings then is mostly the product. */
uint64_t tsr_model_positions(const char **key, const tsr_model_config *config);

/* Columns of a head that turn by rope[rope]. */
static inline uint64_t tsr_model_rotary_dim(const tsr_model_config *config, int rope)
{
    uint64_t dim = config->rope[rope].rotary_dim;
    return dim ? dim : config->head_dim;
}

/* Tables of all ropes, each with a row a position: of rope[0] that of short documents, then those of long ones and
 * of queries where it has them; then of rope[1]. Here: angles of a position, in all of them. */
static inline uint64_t tsr_model_rope_angles(const tsr_model_config *config)
{
    uint64_t more = (config->rope[0].type == TSR_ROPE_LONG) + (config->rope[0].query_beta != 0);
    uint64_t angles = (1 + more) * (tsr_model_rotary_dim(config, 0) / 2);
    return config->rope_count > 1 ? angles + tsr_model_rotary_dim(config, 1) / 2 : angles;
}

/* The window of a layer; 0: a token sees all before it. */
static inline uint64_t tsr_model_config_window(const tsr_model_config *config, uint64_t layer)
{
    return tsr_layer_is_in(&config->sliding, layer) ? config->sliding_window : 0;
}

/* Reads `directory`/config.json. Sizes are positive, within limits that keep every product of two
 * or three of a tensor's sizes below 2^62, and agree with each other. */
tsr_status tsr_model_config_load(tsr_model_config *out, const char *directory);

/* The same from text; `place` is the file's name for messages. */
tsr_status tsr_model_config_parse(tsr_model_config *out, const char *text, uint64_t bytes,
                                  const char *place);

#endif
