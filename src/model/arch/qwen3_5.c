/*
 * qwen3_5.c: Qwen 3.5, text: three of four layers have linear attention, the gated delta rule; the others attention whose
 * output is gated, with a norm over each head of q and k. All norms but linear attention's own multiply by 1 + w. With
 * experts every layer has them, and beside them an MLP whose output is gated.
 */
#include "kernels/convolution.h"
#include "kernels/delta_rule.h"
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/experts.h"
#include "model/arch/families.h"

#include <inttypes.h>
#include <string.h>

/* mamba_ssm_dtype and mtp_*: of how it is served, and of layers that training leaves out. */
#define COMMON_KEYS                                                                                \
    "attention_bias", "partial_rotary_factor", "layer_types", "full_attention_interval",           \
        "attn_output_gate", "output_gate_type", "linear_conv_kernel_dim", "linear_key_head_dim",   \
        "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads",                 \
        "mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"

static const char *const keys[] = {COMMON_KEYS, NULL};
static const char *const moe_keys[] = {COMMON_KEYS,
                                       "num_experts",
                                       "num_local_experts",
                                       "num_experts_per_tok",
                                       "moe_intermediate_size",
                                       "shared_expert_intermediate_size",
                                       "output_router_logits",
                                       "router_aux_loss_coef",
                                       NULL};

/* Published files have all experts in one tensor, those that Transformers 5 writes each on its own. */
static const tsr_expert_names names = {
    .router = {.weight = "mlp.gate"},
    .gate_up = "mlp.experts.gate_up_proj",
    .down = "mlp.experts.down_proj",
    .gate_up_files = {.one = {"mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj"},
                      .fused = "mlp.experts.gate_up_proj"},
    .down_files = {.one = {"mlp.experts.%d.down_proj"}, .fused = "mlp.experts.down_proj"},
    .shared = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj",
               "mlp.shared_expert.down_proj"}};

/* ---- config.json ---- */

/* layer_types; without them every `4`th layer has full attention. */
static tsr_status read_layers(tsr_model_config *out, const json_t *root, const char *place)
{
    uint64_t interval = 4;
    json_t *types = NULL;
    if (tsr_json_has(root, "full_attention_interval"))
        TSR_TRY(tsr_model_config_size(&interval, root, "full_attention_interval",
                                      TSR_MODEL_MOST_LAYERS, place));
    if (tsr_json_has(root, "layer_types"))
        TSR_TRY(tsr_json_array(&types, root, "layer_types", place));
    if (types && json_array_size(types) != out->layer_count)
        return tsr_fail(TSR_EDATA,
                        "%s: layer_types has %zu entries, expected one for each of %" PRIu64
                        " layers",
                        place, json_array_size(types), out->layer_count);
    for (uint64_t i = 0; i < out->layer_count; i++) {
        const json_t *entry = types ? json_array_get(types, i) : NULL;
        const char *type = json_string_value(entry);
        char found[TSR_JSON_SHOW_BYTES];
        if (types ? type && !strcmp(type, "linear_attention") : (i + 1) % interval != 0)
            tsr_layer_put_in(&out->linear, i);
        else if (types && (!type || strcmp(type, "full_attention")))
            return tsr_fail(TSR_EDATA,
                            "%s: layer_types holds %s, expected full_attention or linear_attention",
                            place, tsr_json_show(found, entry));
    }
    return TSR_OK;
}

static tsr_status read_linear(tsr_model_config *out, const json_t *root, const char *place)
{
    const struct {
        const char *key;
        uint64_t *out;
        uint64_t missing;
        int64_t most;
    } sizes[] = {
        {"linear_conv_kernel_dim", &out->linear_taps, 4, TSR_CONVOLUTION_MOST},
        {"linear_key_head_dim", &out->linear_key_dim, 128, TSR_DELTA_MOST},
        {"linear_value_head_dim", &out->linear_value_dim, 128, TSR_DELTA_MOST},
        {"linear_num_key_heads", &out->linear_key_heads, 16, 1 << 12},
        {"linear_num_value_heads", &out->linear_value_heads, 32, 1 << 12},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *sizes[i].out = sizes[i].missing;
        if (tsr_json_has(root, sizes[i].key))
            TSR_TRY(tsr_model_config_size(sizes[i].out, root, sizes[i].key, sizes[i].most, place));
    }
    if (out->linear_value_heads % out->linear_key_heads)
        return tsr_fail(TSR_EDATA,
                        "%s: linear_num_value_heads %" PRIu64
                        " is not a multiple of linear_num_key_heads %" PRIu64,
                        place, out->linear_value_heads, out->linear_key_heads);
    return TSR_OK;
}

/* Transformers gates attention by a sigmoid and linear attention by SiLU, whatever these keys say. */
static tsr_status check_gates(const json_t *root, const char *place)
{
    bool gates = true;
    const char *type = "swish";
    TSR_TRY(tsr_model_config_flag(&gates, root, "attn_output_gate", place));
    if (tsr_json_has(root, "output_gate_type"))
        TSR_TRY(tsr_json_string(&type, root, "output_gate_type", place));
    if (!gates)
        return tsr_fail(TSR_EDATA, "%s: attn_output_gate is false, expected true", place);
    if (strcmp(type, "swish") && strcmp(type, "silu"))
        return tsr_fail(TSR_EDATA, "%s: output_gate_type is '%s', expected swish", place, type);
    return TSR_OK;
}

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    TSR_TRY(check_gates(root, place));
    out->norm_plus_one = true;
    out->head_norms = TSR_HEAD_NORMS_EACH;
    TSR_TRY(read_layers(out, root, place));
    return read_linear(out, root, place);
}

static tsr_status read_moe(tsr_model_config *out, const json_t *root, const char *place)
{
    static const char *const counts[] = {"num_experts", "num_local_experts", NULL};
    static const tsr_expert_keys sizes = {counts, "num_experts_per_tok", "moe_intermediate_size"};
    TSR_TRY(read(out, root, place));
    TSR_TRY(tsr_model_config_experts(out, root, &sizes, place));
    out->experts.scoring = TSR_ROUTE_SOFTMAX;
    out->experts.normalise = true;
    return tsr_model_config_size(&out->experts.shared_width, root,
                                 "shared_expert_intermediate_size", 1 << 20, place);
}

/* ---- a layer ---- */

/* x through the convolution, the delta rule and its gated norm: what out_proj makes of it. */
static int16_t linear_attention(tsr_block *b, int16_t x, const tsr_model_config *c)
{
    const tsr_delta_rule_spec spec = {.key_heads = (int32_t)c->linear_key_heads,
                                      .value_heads = (int32_t)c->linear_value_heads,
                                      .key_dim = (int32_t)c->linear_key_dim,
                                      .value_dim = (int32_t)c->linear_value_dim};
    const tsr_gated_norm_spec norm = {.eps = (float)c->rms_norm_eps,
                                      .head_dim = (int32_t)c->linear_value_dim};
    uint64_t values = c->linear_value_heads * c->linear_value_dim, d = c->hidden_size;
    uint64_t mixed = 2 * c->linear_key_heads * c->linear_key_dim + values;
    const tsr_matrix matrix[4] = {
        {.name = "linear_attn.in_proj_qkv", .out = mixed, .in = d},
        {.name = "linear_attn.in_proj_z", .out = values, .in = d},
        {.name = "linear_attn.in_proj_b", .out = c->linear_value_heads, .in = d},
        {.name = "linear_attn.in_proj_a", .out = c->linear_value_heads, .in = d}};
    enum { QKV, Z, B, A };
    int16_t value[TSR_NODE_PORTS];
    tsr_block_linears(b, value, x, matrix, 4);
    const int16_t in[3] = {
        tsr_block_convolution(b, value[QKV], "linear_attn.conv1d", (int32_t)c->linear_taps),
        value[B], value[A]};
    int16_t o = tsr_block_delta_rule(b, in, "linear_attn.A_log", "linear_attn.dt_bias", &spec);
    int16_t y = tsr_block_gated_norm(b, o, value[Z], "linear_attn.norm", &norm);
    return tsr_block_linear(b, y, "linear_attn.out_proj", d, false);
}

/* Attention whose queries come with a gate for each of their columns. */
static int16_t full_attention(tsr_block *b, int16_t x, const tsr_model_config *c, int layer)
{
    static const tsr_value_name halves[2] = {{"q raw", "queries before their norm"},
                                             {"gate", "the gate of attention's output"}};
    tsr_rope_spec rope = tsr_decoder_rope(c, layer);
    tsr_attention_spec spec = tsr_decoder_attention_spec(c, layer);
    uint64_t q = c->head_count * c->head_dim, kv = c->kv_head_count * c->head_dim;
    const tsr_matrix matrix[3] = {
        {.name = "self_attn.q_proj", .out = 2 * q, .in = c->hidden_size, .bias = c->q_bias},
        {.name = "self_attn.k_proj", .out = kv, .in = c->hidden_size, .bias = c->k_bias},
        {.name = "self_attn.v_proj", .out = kv, .in = c->hidden_size, .bias = c->v_bias}};
    int16_t value[TSR_NODE_PORTS], half[2];
    tsr_block_linears(b, value, x, matrix, 3);
    tsr_block_split(b, half, value[0], rope.q_heads, halves);
    value[0] = half[0];
    tsr_block_rope(b, value, "self_attn.q_norm", "self_attn.k_norm", &rope);
    int16_t o = tsr_block_attention(b, value, &spec);
    o = tsr_block_gate(b, o, half[1], (tsr_value_name){"o gated", "attention's output, gated"});
    return tsr_block_linear(b, o, "self_attn.o_proj", c->hidden_size, c->o_bias);
}

/* The experts, and the MLP beside them times the sigmoid of its gate. */
static int16_t experts(tsr_block *b, int16_t x, const tsr_model_config *c)
{
    tsr_block_routes routes = tsr_decoder_route(b, x, c, &names);
    int16_t y = tsr_decoder_routed(b, x, &routes, c, &names);
    int16_t shared = tsr_block_scale(b, tsr_decoder_shared_mlp(b, x, c, &names), 1);
    int16_t gate = tsr_block_linear(b, x, "mlp.shared_expert_gate", 1, false);
    shared = tsr_block_gate(b, shared, gate,
                            (tsr_value_name){"shared", "the MLP beside the experts, gated"});
    return tsr_block_plus(b, y, shared,
                          (tsr_value_name){"mlp", "the experts and the MLP beside them"});
}

static tsr_status block(tsr_block *out, const tsr_model_config *c, int layer)
{
    float eps = (float)c->rms_norm_eps;
    bool linear = tsr_layer_is_in(&c->linear, (uint64_t)layer);
    tsr_residual r = tsr_block_begin(out, c->hidden_size);
    out->plus_one = c->norm_plus_one;
    int16_t h =
        tsr_block_norm(out, &r, "input_layernorm", eps, (tsr_value_name){"x", "input of the layer"},
                       (tsr_value_name){"h", "the normed input of attention"});
    tsr_block_add(out, &r, linear ? linear_attention(out, h, c) : full_attention(out, h, c, layer));
    h = tsr_block_norm(out, &r, "post_attention_layernorm", eps,
                       (tsr_value_name){"x_mid", "the residual after attention"},
                       (tsr_value_name){"h2", "the normed input of the MLP"});
    tsr_block_add(
        out, &r, tsr_decoder_is_sparse(c, layer) ? experts(out, h, c) : tsr_decoder_mlp(out, h, c));
    return tsr_block_end(out, r, "a layer of Qwen 3.5");
}

const tsr_arch tsr_arch_qwen3_5 = {.model_type = "qwen3_5_text",
                                   .architecture = "Qwen3_5ForCausalLM",
                                   .models = "Qwen 3.5, dense, text",
                                   .kv_head_count = 4,
                                   .head_dim = 256,
                                   .max_position = 32768,
                                   .bos = -1,
                                   .eos = -1,
                                   .eps = 1e-6,
                                   .theta = 10000,
                                   .partial = 0.25,
                                   .mrope = true,
                                   .keys = keys,
                                   .read = read,
                                   .block = block};

const tsr_arch tsr_arch_qwen3_5_moe = {.model_type = "qwen3_5_moe_text",
                                       .architecture = "Qwen3_5MoeForCausalLM",
                                       .models = "Qwen 3.5 35B-A3B, 122B-A10B and 397B-A17B, text",
                                       .kv_head_count = 2,
                                       .head_dim = 256,
                                       .max_position = 32768,
                                       .bos = -1,
                                       .eos = -1,
                                       .eps = 1e-6,
                                       .theta = 10000,
                                       .partial = 0.25,
                                       .mrope = true,
                                       .experts_alone = true,
                                       .keys = moe_keys,
                                       .read = read_moe,
                                       .block = block};
