/*
 * deepseek_v3.c: DeepSeek-V3: latent attention (DeepSeek-V2, DeepSeek-AI 2024): queries, and keys with values, come from
 * latents, which have norms of their own; of a head's keys the part that turns is the same for all heads. The first layers
 * have an MLP, the others experts.
 */
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/experts.h"
#include "model/arch/families.h"

#include <inttypes.h>
#include <math.h>

#define LATENT_EPS  1e-6f /* of the latents' norms, whatever rms_norm_eps says, as in Transformers */
#define MOST_LATENT (1 << 16)

static const char *const keys[] = {
    "attention_bias", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "qk_head_dim", "v_head_dim", "rope_interleave", "first_k_dense_replace", "moe_layer_freq",
    "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size",
    "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "scoring_func",
    "topk_method",
    /* Of other losses and of heads that predict further tokens, which are not read. */
    "num_nextn_predict_layers", "num_mtp_layers", "aux_loss_alpha", "seq_aux",
    /* Of running it. */
    "ep_size", "auto_map", NULL};

/* A size; *out stays where the key is missing. */
static tsr_status read_size(uint64_t *out, const json_t *root, const char *key, int64_t most,
                            const char *place)
{
    return tsr_json_has(root, key) ? tsr_model_config_size(out, root, key, most, place) : TSR_OK;
}

/* Keys that repeat a sum of others. */
static tsr_status expect_size(const json_t *root, const char *key, uint64_t wanted,
                              const char *place)
{
    uint64_t found = wanted;
    TSR_TRY(read_size(&found, root, key, INT32_MAX, place));
    if (found != wanted)
        return tsr_fail(TSR_EDATA, "%s: %s is %" PRIu64 ", but the sizes of heads make it %" PRIu64,
                        place, key, found, wanted);
    return TSR_OK;
}

static tsr_status read_heads(tsr_model_config *out, const json_t *root, const char *place)
{
    uint64_t nope = 128;
    out->rope_head_dim = 64;
    out->v_head_dim = 128;
    TSR_TRY(read_size(&nope, root, "qk_nope_head_dim", TSR_MODEL_MOST_HEAD_DIM, place));
    TSR_TRY(
        read_size(&out->rope_head_dim, root, "qk_rope_head_dim", TSR_MODEL_MOST_HEAD_DIM, place));
    TSR_TRY(read_size(&out->v_head_dim, root, "v_head_dim", TSR_MODEL_MOST_HEAD_DIM, place));
    out->head_dim = nope + out->rope_head_dim;
    if (out->rope_head_dim % 2 || out->head_dim > TSR_MODEL_MOST_HEAD_DIM)
        return tsr_fail(TSR_EDATA,
                        "%s: qk_nope_head_dim %" PRIu64 " and qk_rope_head_dim %" PRIu64
                        ", expected an even number of the latter (RoPE turns pairs) and at most %d "
                        "in all",
                        place, nope, out->rope_head_dim, TSR_MODEL_MOST_HEAD_DIM);
    TSR_TRY(expect_size(root, "qk_head_dim", out->head_dim, place));
    TSR_TRY(expect_size(root, "head_dim", out->rope_head_dim, place));
    if (out->kv_head_count != out->head_count)
        return tsr_fail(TSR_EDATA,
                        "%s: num_key_value_heads %" PRIu64 " differs from num_attention_heads "
                        "%" PRIu64 "; in latent attention every head has its own keys",
                        place, out->kv_head_count, out->head_count);
    return TSR_OK;
}

static tsr_status read_latents(tsr_model_config *out, const json_t *root, const char *place)
{
    out->q_lora_rank = json_object_get(root, "q_lora_rank") ? 0 : 1536;
    out->kv_lora_rank = 512;
    TSR_TRY(read_size(&out->q_lora_rank, root, "q_lora_rank", MOST_LATENT, place));
    return read_size(&out->kv_lora_rank, root, "kv_lora_rank", MOST_LATENT, place);
}

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    static const tsr_grouped_defaults experts = {
        .dense_layers = 3, .shared = 1, .groups = 8, .chosen_groups = 4, .scale = 2.5};
    tsr_rope_scaling *rope = &out->rope[0];
    TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    TSR_TRY(read_heads(out, root, place));
    TSR_TRY(read_latents(out, root, place));
    rope->rotary_dim = out->rope_head_dim;
    rope->neighbours = true;
    TSR_TRY(tsr_model_config_flag(&rope->neighbours, root, "rope_interleave", place));
    out->attention_scale = 1 / sqrt((double)out->head_dim);
    if (rope->type == TSR_ROPE_YARN && rope->all_magnitude != 0)
        out->attention_scale *= rope->all_magnitude * rope->all_magnitude;
    return tsr_model_config_grouped(out, root, &experts, place);
}

/* Queries and the latent of keys with values, which is one matrix with the keys' shared part. */
static void first_linears(tsr_block *b, int16_t out[2], int16_t x, const tsr_model_config *c)
{
    uint64_t q = c->head_count * c->head_dim, kv = c->kv_lora_rank + c->rope_head_dim;
    const tsr_matrix latent = {.name = "self_attn.q_a_proj",
                               .out = c->q_lora_rank,
                               .in = c->hidden_size,
                               .bias = c->q_bias};
    const tsr_matrix whole = {.name = "self_attn.q_proj", .out = q, .in = c->hidden_size};
    const tsr_matrix both[2] = {c->q_lora_rank ? latent : whole,
                                {.name = "self_attn.kv_a_proj_with_mqa",
                                 .out = kv,
                                 .in = c->hidden_size,
                                 .bias = c->k_bias}};
    int16_t value[TSR_NODE_PORTS];
    tsr_block_linears(b, value, x, both, 2);
    out[0] = value[0];
    if (c->q_lora_rank)
        out[0] =
            tsr_block_linear(b,
                             tsr_block_norm_of(b, value[0], "self_attn.q_a_layernorm", LATENT_EPS,
                                               (tsr_value_name){"q_a", "the queries' latent"}),
                             "self_attn.q_b_proj", q, false);
    out[1] = value[1];
}

static int16_t attention(tsr_block *b, int16_t x, const tsr_model_config *c)
{
    static const tsr_value_name called[2] = {{"c", "the latent of keys and values"},
                                             {"k_rope", "the keys' part of all heads"}};
    uint64_t nope = c->head_dim - c->rope_head_dim;
    int16_t first[2], part[2];
    tsr_latent_spec spec = {.heads = (int32_t)c->head_count,
                            .nope_dim = (int32_t)nope,
                            .rope_dim = (int32_t)c->rope_head_dim,
                            .v_dim = (int32_t)c->v_head_dim,
                            .neighbours = c->rope[0].neighbours};
    first_linears(b, first, x, c);
    tsr_block_columns(b, part, first[1], c->kv_lora_rank, called);
    int16_t latent = tsr_block_norm_of(b, part[0], "self_attn.kv_a_layernorm", LATENT_EPS,
                                       (tsr_value_name){"kv_a", "the latent, normed"});
    int16_t qkv[3] = {first[0], part[1],
                      tsr_block_linear(b, latent, "self_attn.kv_b_proj",
                                       c->head_count * (nope + c->v_head_dim), false)};
    tsr_attention_spec attention = tsr_decoder_attention_spec(c, 0);
    attention.v_dim = spec.v_dim;
    tsr_block_latent(b, qkv, &spec);
    int16_t o = tsr_block_attention(b, qkv, &attention);
    return tsr_block_linear(b, o, "self_attn.o_proj", c->hidden_size, c->o_bias);
}

static tsr_status block(tsr_block *out, const tsr_model_config *c, int layer)
{
    float eps = (float)c->rms_norm_eps;
    tsr_residual r = tsr_block_begin(out, c->hidden_size);
    int16_t h =
        tsr_block_norm(out, &r, "input_layernorm", eps, (tsr_value_name){"x", "input of the layer"},
                       (tsr_value_name){"h", "the normed input of attention"});
    tsr_block_add(out, &r, attention(out, h, c));
    h = tsr_block_norm(out, &r, "post_attention_layernorm", eps,
                       (tsr_value_name){"x_mid", "the residual after attention"},
                       (tsr_value_name){"h2", "the normed input of the MLP"});
    tsr_block_add(out, &r,
                  tsr_decoder_is_sparse(c, layer)
                      ? tsr_decoder_experts(out, h, c, &tsr_expert_names_grouped)
                      : tsr_decoder_mlp(out, h, c));
    return tsr_block_end(out, r, "DeepSeek's layer");
}

const tsr_arch tsr_arch_deepseek_v3 = {.model_type = "deepseek_v3",
                                       .architecture = "DeepseekV3ForCausalLM",
                                       .models = "DeepSeek-V3, DeepSeek-R1",
                                       .kv_head_count = 128,
                                       .head_dim = 64,
                                       .max_position = 4096,
                                       .bos = 0,
                                       .eos = 1,
                                       .eps = 1e-6,
                                       .theta = 10000,
                                       .further_tokens = true,
                                       .keys = keys,
                                       .read = read,
                                       .block = block};
