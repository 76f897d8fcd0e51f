#include "model/arch/decoder.h"

tsr_rope_spec tsr_decoder_rope(const tsr_model_config *c, int layer)
{
    int second = tsr_layer_is_in(&c->second_rope, (uint64_t)layer);
    const tsr_rope_scaling *rope = &c->rope[second];
    return (tsr_rope_spec){.q_heads = (int32_t)c->head_count,
                           .kv_heads = (int32_t)c->kv_head_count,
                           .head_dim = (int32_t)c->head_dim,
                           .head_norm_eps = (float)c->rms_norm_eps,
                           .table = second,
                           .own_queries = !second && rope->query_beta != 0,
                           .rotary_dim = (int32_t)rope->rotary_dim,
                           .neighbours = rope->neighbours};
}

tsr_attention_spec tsr_decoder_attention_spec(const tsr_model_config *c, int layer)
{
    return (tsr_attention_spec){.q_heads = (int32_t)c->head_count,
                                .kv_heads = (int32_t)c->kv_head_count,
                                .head_dim = (int32_t)c->head_dim,
                                .window = (int32_t)tsr_model_config_window(c, (uint64_t)layer),
                                .scale = (float)c->attention_scale,
                                .softcap = (float)c->attention_softcap};
}

void tsr_decoder_add(tsr_block *b, tsr_residual *r, int16_t value, const tsr_model_config *c)
{
    bool scaled = c->residual_scale != 0 && c->residual_scale != 1;
    tsr_block_add(b, r, scaled ? tsr_block_scale(b, value, (float)c->residual_scale) : value);
}

int16_t tsr_decoder_attention(tsr_block *b, int16_t x, const tsr_model_config *c, int layer)
{
    uint64_t q = c->head_count * c->head_dim, kv = c->kv_head_count * c->head_dim;
    const tsr_matrix qkv[3] = {
        {.name = "self_attn.q_proj", .out = q, .in = c->hidden_size, .bias = c->q_bias},
        {.name = "self_attn.k_proj", .out = kv, .in = c->hidden_size, .bias = c->k_bias},
        {.name = "self_attn.v_proj", .out = kv, .in = c->hidden_size, .bias = c->v_bias}};
    static const char *const norm[2] = {"self_attn.q_norm", "self_attn.k_norm"};
    static const tsr_value_name normed[2] = {{"q all", "queries, normed over all heads"},
                                             {"k all", "keys, normed over all heads"}};
    bool each = c->head_norms == TSR_HEAD_NORMS_EACH, all = c->head_norms == TSR_HEAD_NORMS_ALL;
    tsr_rope_spec rope = tsr_decoder_rope(c, layer);
    tsr_attention_spec attention = tsr_decoder_attention_spec(c, layer);
    const tsr_matrix one = {
        .name = "self_attn.qkv_proj", .out = q + 2 * kv, .in = c->hidden_size, .bias = c->q_bias};
    int16_t value[TSR_NODE_PORTS] = {TSR_NONE, TSR_NONE, TSR_NONE, TSR_NONE};
    tsr_block_linears(b, value, x, c->one_qkv ? &one : qkv, c->one_qkv ? 1 : 3);
    for (int i = 0; i < 2 && all; i++)
        value[i] = tsr_block_norm_of(b, value[i], norm[i], (float)c->rms_norm_eps, normed[i]);
    tsr_block_rope(b, value, each ? norm[0] : NULL, each ? norm[1] : NULL, &rope);
    int16_t o = tsr_block_attention(b, value, &attention);
    if (c->sinks)
        tsr_block_sinks(b, o, "self_attn.sinks");
    return tsr_block_linear(b, o, "self_attn.o_proj", c->hidden_size, c->o_bias);
}

int16_t tsr_decoder_mlp(tsr_block *b, int16_t x, const tsr_model_config *c)
{
    const tsr_matrix gate_up[2] = {{.name = "mlp.gate_proj",
                                    .out = c->intermediate_size,
                                    .in = c->hidden_size,
                                    .bias = c->mlp_bias},
                                   {.name = "mlp.up_proj",
                                    .out = c->intermediate_size,
                                    .in = c->hidden_size,
                                    .bias = c->mlp_bias}};
    const tsr_matrix one = {.name = "mlp.gate_up_proj",
                            .out = 2 * c->intermediate_size,
                            .in = c->hidden_size,
                            .bias = c->mlp_bias};
    int16_t value[TSR_NODE_PORTS] = {TSR_NONE, TSR_NONE, TSR_NONE, TSR_NONE};
    tsr_block_linears(b, value, x, c->one_gate_up ? &one : gate_up, c->one_gate_up ? 1 : 2);
    int16_t act = tsr_block_glu(b, value[0], value[1], c->activation);
    return tsr_block_linear(b, act, "mlp.down_proj", c->hidden_size, c->mlp_bias);
}

tsr_status tsr_decoder_block(tsr_block *out, const tsr_model_config *c, int layer)
{
    float eps = (float)c->rms_norm_eps;
    tsr_residual r = tsr_block_begin(out, c->hidden_size);
    int16_t h =
        tsr_block_norm(out, &r, "input_layernorm", eps, (tsr_value_name){"x", "input of the layer"},
                       (tsr_value_name){"h", "the normed input of attention"});
    tsr_decoder_add(out, &r, tsr_decoder_attention(out, h, c, layer), c);
    h = tsr_block_norm(out, &r, "post_attention_layernorm", eps,
                       (tsr_value_name){"x_mid", "the residual after attention"},
                       (tsr_value_name){"h2", "the normed input of the MLP"});
    tsr_decoder_add(out, &r, tsr_decoder_mlp(out, h, c), c);
    return tsr_block_end(out, r, "a decoder's layer");
}

tsr_status tsr_decoder_between_norms(tsr_block *out, const tsr_model_config *c, int layer,
                                     const char *const norm[4])
{
    float eps = (float)c->rms_norm_eps;
    tsr_residual r = tsr_block_begin(out, c->hidden_size);
    out->plus_one = c->norm_plus_one;
    int16_t h = tsr_block_norm(out, &r, norm[0], eps, (tsr_value_name){"x", "input of the layer"},
                               (tsr_value_name){"h", "the normed input of attention"});
    int16_t y = tsr_decoder_attention(out, h, c, layer);
    tsr_block_add(out, &r,
                  tsr_block_norm_of(out, y, norm[1], eps,
                                    (tsr_value_name){"a", "attention's output, normed"}));
    h = tsr_block_norm(out, &r, norm[2], eps,
                       (tsr_value_name){"x_mid", "the residual after attention"},
                       (tsr_value_name){"h2", "the normed input of the MLP"});
    y = tsr_decoder_mlp(out, h, c);
    tsr_block_add(
        out, &r,
        tsr_block_norm_of(out, y, norm[3], eps, (tsr_value_name){"m", "the MLP's output, normed"}));
    return tsr_block_end(out, r, "a layer between norms");
}
